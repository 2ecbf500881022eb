// SPDX-License-Identifier: Apache-2.0
// The addon itself: what may cross the border, the life of the engine in its environment, and advice when it cannot be
// loaded.
import { spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { copyFileSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Worker } from "node:worker_threads";
import { afterAll, describe, expect, it } from "vitest";
import { Engine } from "../../lib/engine.js";
import { adviceFor, TARGETS } from "../../lib/advice.js";
import { CORE_ERROR_CODES, LaneError } from "../../lib/errors.js";
import { hostTarget, native, packageDir, type NativeEvent } from "../../lib/native.js";
import { rejection } from "./support/fake-engine.js";

const root = join(import.meta.dirname, "..", "..");
const addon =
  process.env["AL_BINDING"] ?? join(root, "prebuilds", `${process.platform}-${process.arch}`, "agent_lane.node");
const dist = (name: string): string => join(root, "dist", name);
const scratch = mkdtempSync(join(tmpdir(), "al-native-"));
afterAll(() => rmSync(scratch, { recursive: true, force: true }));

function node(
  script: string,
  env: NodeJS.ProcessEnv = {},
): { status: number | null; signal: string | null; out: string; err: string } {
  const r = spawnSync(process.execPath, ["--expose-gc", "--input-type=module", "-e", script], {
    encoding: "utf8",
    timeout: 20_000,
    env: { ...process.env, ...env },
  });
  return { status: r.status, signal: r.signal, out: r.stdout, err: r.stderr };
}

describe("values", () => {
  const engine = new Engine();
  afterAll(() => void engine.close(500));

  it("come back as they are in the table of errors, which lib/errors.ts knows completely", async () => {
    const table = await engine.request<{ code: string; number: number; cure: string }[]>("errors");
    expect(table.map((row) => row.code)).toEqual([...CORE_ERROR_CODES]);
    for (const row of table) {
      expect(row.number).toBeLessThanOrEqual(-20001);
      expect(row.cure).toMatch(/\w/);
    }
  });

  it("may be text of any script", async () => {
    const error = await rejection(engine.request("exec", { lane: "żółć ✓ 🚂", command: "true" }));
    expect(error).toBeInstanceOf(LaneError);
    expect(error.code).toBe("LANE_CLOSED");
    expect(error.message).toContain("żółć ✓ 🚂");
  });

  it.each([
    [{ a: { b: ["x", "y\0z"] } }, "params.a.b[1] contains a NUL character"],
    [{ "a\0": 1 }, /contains a NUL character in its name/],
    [{ n: NaN }, "params.n must be a finite number"],
    [{ n: -Infinity }, "params.n must be a finite number"],
    [{ f: () => 1 }, "params.f must be plain data, not a function, symbol or bigint"],
    [{ b: 1n }, "params.b must be plain data, not a function, symbol or bigint"],
    [{ s: Symbol("s") }, "params.s must be plain data, not a function, symbol or bigint"],
    [{ d: new Date() }, /^params.d must be plain data/],
    [{ p: Promise.resolve() }, /^params.p must be plain data/],
    [{ t: new Float32Array(1) }, /^params.t must be a Uint8Array or Buffer/],
    [{ t: new ArrayBuffer(1) }, /^params.t must be plain data/],
  ])("that cannot cross are TypeErrors that name the argument: %o", async (params, message) => {
    const error = await rejection(engine.request("errors", params as never));
    expect(error).toBeInstanceOf(TypeError);
    expect(error.message).toMatch(message);
  });

  it("are bounded in depth and number", async () => {
    const nest = (n: number): object => (n === 0 ? {} : { d: nest(n - 1) });
    await engine.request("errors", nest(16) as never);
    expect((await rejection(engine.request("errors", nest(17) as never))).message).toMatch(
      /^params(\.d)+ is nested too deeply/,
    );
    const cyclic: Record<string, unknown> = {};
    cyclic["self"] = cyclic;
    expect((await rejection(engine.request("errors", cyclic as never))).message).toContain("nested too deeply");
    await engine.request("errors", { list: Array(99_998).fill(1) } as never);
    expect((await rejection(engine.request("errors", { list: Array(99_999).fill(1) } as never))).message).toMatch(
      /^params\.list\[99998\] has too many/,
    );
  });

  it("are bounded in bytes", async () => {
    const half = Buffer.alloc(128 * 2 ** 20);
    expect((await rejection(engine.request("errors", { a: half, b: half, c: Buffer.alloc(1) }))).message).toMatch(
      /^params\.[bc] is larger than 256 MiB/,
    );
  });

  it("let the exception of a getter through, and stay usable", async () => {
    const params = {
      get x(): never {
        throw new RangeError("getter");
      },
    };
    expect(await rejection(engine.request("errors", params))).toBeInstanceOf(RangeError);
    expect(await engine.request("errors")).not.toHaveLength(0);
  });

  it("of the call itself are checked too", () => {
    const raw = native().open(packageDir, () => undefined);
    const post = raw.post.bind(raw) as (...args: unknown[]) => void;
    expect(() => post(-1, "errors", {})).toThrow(/id must be an integer/);
    expect(() => post(1.5, "errors", {})).toThrow(/id must be an integer/);
    expect(() => post(1, 2, {})).toThrow(/op must be a string/);
    for (const params of [undefined, null, 1, [], Buffer.alloc(1)])
      expect(() => post(1, "errors", params)).toThrow(/params must be an object/);
    expect(() => raw.taken(1, 1, -1)).toThrow(/n must be an integer/);
    expect(() => raw.close(NaN)).toThrow(/timeoutMs must be an integer/);
    expect(raw.close(500)).toBe(0);
    expect(raw.close(500)).toBe(0);
    expect(() => post(1, "errors", {})).toThrow(/closed/);
    const open = native().open as (...args: unknown[]) => unknown;
    expect(() => open()).toThrow(/packageDir must be a string/);
    expect(() => open("")).toThrow(/packageDir must be a path/);
    expect(() => open("/x")).toThrow(/onEvents must be a function/);
  });
});

describe("an engine", () => {
  it("answers many requests, each once", async () => {
    const answers = new Map<number, number>();
    const raw = await new Promise<{ close(ms: number): number }>((resolve) => {
      const engine = native().open(packageDir, (events: readonly NativeEvent[]) => {
        for (const e of events) answers.set(e.id, (answers.get(e.id) ?? 0) + 1);
        if (answers.size === 500) resolve(engine);
      });
      for (let i = 1; i <= 500; i++) engine.post(i, i % 2 === 0 ? "errors" : "no-such-op", {});
    });
    raw.close(500);
    expect([...answers.values()].every((n) => n === 1)).toBe(true);
  });

  it("that is closed rejects what is open and what comes later with INTERRUPTED", async () => {
    const engine = new Engine();
    const open = [engine.request("errors"), engine.request("list", { home: scratch })];
    const settled = Promise.allSettled(open);
    engine.close(500);
    for (const r of await settled)
      if (r.status === "rejected") expect((r.reason as LaneError).code).toBe("INTERRUPTED");
    expect((await rejection(engine.request("errors"))).code).toBe("INTERRUPTED");
    expect(engine.open).toBe(0);
  });

  it("holds the process while a request is open, and not longer", () => {
    const r = node(`
      import { engine } from ${JSON.stringify(dist("engine.js"))};
      engine().request("errors").then((t) => console.log("answer", t.length > 10));
      const t0 = Date.now();
      process.on("exit", () => console.log(Date.now() - t0 < 5000 ? "soon" : "late"));`);
    expect(r).toMatchObject({ status: 0, out: "answer true\nsoon\n", err: "" });
  });

  it("survives the process's exit with requests open", () => {
    const r = node(`
      import { engine } from ${JSON.stringify(dist("engine.js"))};
      for (let i = 0; i < 50; i++) engine().request("errors").catch(() => {});
      process.exit(5);`);
    expect(r).toMatchObject({ status: 5, signal: null, err: "" });
  });

  it("lives on when only the core holds it, and lets a closed one go", () => {
    const r = node(`
      import { Engine } from ${JSON.stringify(dist("engine.js"))};
      let answered = 0;
      for (let i = 0; i < 20; i++) { const e = new Engine(); e.request("errors").then(() => { answered++; if (i % 2) e.close(500); }); }
      gc();
      setTimeout(() => { gc(); console.log(answered); }, 300);`);
    expect(r).toMatchObject({ status: 0, out: "20\n", err: "" });
  });
});

describe("worker threads", () => {
  const worker = (body: string): Promise<{ code: number; messages: unknown[] }> =>
    new Promise((resolve, reject) => {
      const file = join(scratch, `worker-${Math.random().toString(36).slice(2)}.mjs`);
      writeFileSync(
        file,
        `import { parentPort } from "node:worker_threads";\nimport { engine } from ${JSON.stringify(dist("engine.js"))};\n${body}`,
      );
      const w = new Worker(file);
      const messages: unknown[] = [];
      w.on("message", (m) => messages.push(m));
      w.on("error", reject);
      w.on("exit", (code) => resolve({ code, messages }));
    });

  it("have an engine each, loaded again and again", async () => {
    for (let round = 0; round < 3; round++) {
      const ends = await Promise.all(
        [0, 1, 2].map(() => worker(`parentPort.postMessage((await engine().request("errors")).length);`)),
      );
      for (const end of ends) expect(end).toEqual({ code: 0, messages: [CORE_ERROR_CODES.length] });
    }
  });

  it("may end with requests open", async () => {
    for (let round = 0; round < 3; round++) {
      const end = await worker(
        `for (let i = 0; i < 100; i++) engine().request("errors").catch(() => {}); process.exit(3);`,
      );
      expect(end.code).toBe(3);
    }
  });
});

describe("an addon that cannot be loaded", () => {
  const script = `
    import { engine } from ${JSON.stringify(dist("engine.js"))};
    try { engine(); } catch (e) { console.log(e.name, e.code); console.log(e.message); console.log(e.cure); }`;

  it.each([
    ["not there", () => join(scratch, "none.node"), /npm run build:native/],
    [
      "no library at all",
      () => {
        const f = join(scratch, "text.node");
        writeFileSync(f, "text");
        return f;
      },
      /another platform|npm run build:native/,
    ],
  ])("(%s) is a LaneError with advice", (_what, path, cure) => {
    const r = node(script, { AL_BINDING: path() });
    expect(r.out).toMatch(/^LaneError NATIVE_LOAD_FAILED\n/);
    expect(r.out).toMatch(cure);
    expect(r.status).toBe(0);
  });

  it.each(["bun", "deno"])("is not tried in %s, which has no libuv for it", (name) => {
    const r = node(`Object.defineProperty(process, "versions", { value: { ...process.versions, ${name}: "1.2.3" } });\n${script.replace("import {", "const {").replace("} from ", "} = await import(").replace('js";', 'js");')}`);
    expect(r.out).toMatch(new RegExp(`^LaneError NATIVE_LOAD_FAILED\\n.*libuv, which ${name} 1\\.2\\.3 does not have\\nRun the script with Node`));
    expect(r.status).toBe(0);
  });

  it("is found in the place that AL_BINDING names", () => {
    const copy = join(scratch, "copy.node");
    copyFileSync(addon, copy);
    const r = node(
      `import { engine } from ${JSON.stringify(dist("engine.js"))}; await engine().request("errors"); console.log(Object.keys((await import("node:module")).createRequire(import.meta.url).cache ?? {}).join());`,
      { AL_BINDING: copy },
    );
    expect(r.status).toBe(0);
    expect(r.out).toContain("copy.node");
  });

  const failure = (message: string, code = "ERR_DLOPEN_FAILED") => [
    { path: "/p/agent_lane.node", error: Object.assign(new Error(message), { code }) },
  ];
  // The words are those of the loaders of glibc, musl and macOS, the path left out.
  it.each([
    ["libarchive.so.13: cannot open shared object file: No such file or directory", /had libarchive\.so\.13\. .*apt-get/],
    ["Error loading shared library libsqlite3.so.0: No such file or directory (needed by x)", /had libsqlite3\.so\.0/],
    ["dlopen(x, 0x0001): Library not loaded: /opt/homebrew/opt/libarchive/lib/libarchive.13.dylib", /had libarchive\.13/],
    ["libfoo.so.1: cannot open shared object file: No such file or directory", /shared library libfoo\.so\.1 is missing/],
    ["/lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.28' not found", /older than glibc 2\.28.*build:native/],
    ["Error loading shared library ld-linux-x86-64.so.2: No such file or directory (needed by x)", /is for musl\./],
    ["Error relocating x: __vsnprintf_chk: symbol not found", /is for musl\./],
    ["/lib/x86_64-linux-gnu/libc.so: invalid ELF header", /is for glibc\./],
    ["libc.musl-x86_64.so.1: cannot open shared object file: No such file or directory", /is for glibc\./],
    ["/p/agent_lane.node: undefined symbol: napi_create_external_buffer", /Node 20\.19 or newer; this is v/],
    ["Error relocating x: uv_async_send: symbol not found", /Node 20\.19 or newer/],
    ["dlopen(x, 0x0001): symbol not found in flat namespace '_napi_create_error'", /Node 20\.19 or newer/],
    ["Module did not self-register: 'x'.", /for another Node/],
    ["x: failed to map segment from shared object: Operation not permitted", /noexec/],
    ["/p/agent_lane.node: invalid ELF header", /another platform/],
    ["/p/agent_lane.node: file too short", /damaged/],
    ["dlopen(x): tried: 'x' (mach-o file, but is an incompatible architecture (have 'x86_64'))", /another platform/],
    ["something new", /npm run build:native/],
  ])("gets advice by cause: %s", (words, cure) => {
    const advice = adviceFor(failure(words), "linux-x64");
    expect(advice.cure).toMatch(cure);
    expect(advice.message).toContain("/p/agent_lane.node");
  });

  it("gets advice by the code of the error too", () => {
    const disabled = failure("Cannot load native addon because loading addons is disabled.", "ERR_DLOPEN_DISABLED");
    expect(adviceFor(disabled, "linux-x64").cure).toMatch(/without --no-addons/);
    expect(adviceFor(failure("x", "EACCES"), "linux-x64").cure).toMatch(/readable/);
  });

  it("of a package is compared with what was packed", () => {
    const dir = join(scratch, "prebuilds", "linux-x64");
    mkdirSync(dir, { recursive: true });
    const path = join(dir, "agent_lane.node");
    const packed = (bytes: number, sha256: string): void =>
      writeFileSync(
        join(scratch, "prebuilds", "prebuilds.json"),
        JSON.stringify({ files: { "linux-x64/agent_lane.node": { bytes, sha256 } } }),
      );
    const advice = () => adviceFor([{ path, error: new Error("no") }], "linux-x64");
    writeFileSync(path, "text");
    packed(5, "");
    expect(advice()).toMatchObject({ message: expect.stringMatching(/has 4 bytes instead of 5$/), cure: expect.stringMatching(/damaged/) });
    packed(4, "0".repeat(64));
    expect(advice().message).toMatch(/contents have changed$/);
    packed(4, createHash("sha256").update("text").digest("hex"));
    expect(advice().cure).not.toMatch(/damaged/);
  });

  it("on a system that is not served is told so", () => {
    expect(adviceFor([], "win32-x64").cure).toContain("runs on Linux");
    expect(adviceFor([], "darwin-x64").cure).toContain("runs on Linux");
    expect(adviceFor([], "linux-arm64").cure).toContain("build:native");
  });

  it("is looked for by platform, processor and C library", () => {
    expect(TARGETS).toContain(hostTarget());
  });
});
