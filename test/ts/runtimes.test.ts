// SPDX-License-Identifier: Apache-2.0
// What docs/COMPATIBILITY.md says of runtimes other than Node: AL_RUNTIMES="bun=/path/to/bun deno=/path/to/deno" tries them. Node itself,
// by the same script, is always tried.
import { expect, it, vi } from "vitest";
import { stages } from "./support/stages.js";

vi.setConfig({ testTimeout: 150_000 });
const made = stages();

const given = (process.env["AL_RUNTIMES"] ?? "").split(" ").filter(Boolean).map((each) => each.split("=") as [string, string]);
const runtimes: [string, string[]][] = [
  ["node", [process.execPath]],
  ...given.map(([name, path]): [string, string[]] => [name, name === "deno" ? [path, "run", "-A", "--node-modules-dir=manual"] : [path]]),
];

/** Each step says how it went, so that one that a runtime cannot do does not hide the others. */
const SCRIPT = `
  import { Readable } from "node:stream";
  import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
  const { createLane } = await import(PACKAGE);
  const { syncInTimeoutSeconds, ...rest } = OPTIONS;
  const step = async (name, work) => report(name, await Promise.race([work(), new Promise((_, no) => setTimeout(() => no(new Error("no end within 20 s")), 20000).unref())]).catch((e) => (e.code ?? e.name) + ": " + e.message));
  const events = [];
  let lane;
  await step("create", async () => { lane = await createLane({ ...rest, onEvent: (e) => events.push(e.type) }); return "ok"; });
  if (lane) {
    await step("exec", async () => (await lane.exec("printf hello; cat", { stdin: "x".repeat(300000) })).stdout.length);
    await step("lines callback", async () => { const got = []; await lane.exec("echo a; echo b", { onLine: (l) => got.push(l) }); return got; });
    await step("stdin stream", async () => (await lane.exec("wc -c", { stdin: Readable.from([Buffer.alloc(100000), Buffer.alloc(100000)]) })).stdout.trim());
    await step("lines", async () => { const got = []; for await (const l of lane.lines("seq 3")) got.push(l); return got; });
    await step("spawn", async () => {
      const p = lane.spawn(["sh", "-c", "read x; echo got $x; exit 7"]);
      p.stdin.end("word\\n");
      let text = "";
      for await (const data of p.stdout) text += data;
      return [text, (await p.exited).exitCode];
    });
    await step("signal", async () => { const c = new AbortController(); setTimeout(() => c.abort(), 200); return await lane.exec("sleep 60", { signal: c.signal }).catch((e) => e.code); });
    await step("copy", async () => {
      writeFileSync("in.txt", "text"); 
      await lane.copyIn("in.txt", WT + "/there/in.txt");
      await lane.copyFileOut(WT + "/there/in.txt", process.cwd() + "/out.txt");
      return readFileSync("out.txt", "utf8");
    });
    await step("error", async () => await lane.copyFileOut(WT + "/none", process.cwd() + "/none").catch((e) => [e.name, e.code, e instanceof LaneError]));
    await step("close", async () => { await lane.close(); return events.at(-1); });
  }`;

const OF_NODE = {
  create: "ok",
  exec: 300005,
  "lines callback": ["a", "b"],
  "stdin stream": "200000",
  lines: ["1", "2", "3"],
  spawn: ["got word\n", 7],
  signal: "ABORTED",
  copy: "text",
  error: ["LaneError", "GUEST_FILE_MISSING", true],
  close: "closed",
};

it.each(runtimes)("%s: a lane from create to close, or a clear word, and the process ends by itself", async (name, runtime) => {
  const stage = made({ guest: "agent" });
  stage.runtime = runtime;
  const { said, status, signal, err } = await stage.run(SCRIPT, { DENO_DIR: stage.work }, 120_000);
  if (name === "node") expect(said, err).toEqual(OF_NODE);
  else expect(said, err).toEqual({ create: expect.stringMatching(`^NATIVE_LOAD_FAILED: .*libuv, which ${name} `) });
  expect([status, signal]).toEqual([0, null]);
  expect(stage.left()).toEqual([]);
});
