// SPDX-License-Identifier: Apache-2.0
// Commands through the whole product and the real lane agent on this machine: their end, time, input, lines and bounds.
import { afterAll, beforeAll, describe, expect, it, vi } from "vitest";
import { Stage } from "./support/stage.js";

// A lane for each test, on machines that are busy.
vi.setConfig({ testTimeout: 120_000 });

// The long version of what takes minutes: scripts/check --nightly.
const long = process.env["AL_LONG"] === "1";
// A sanitizer's own memory is no measure of ours.
const measured = process.env["AL_PRELOAD"] === undefined;

let s: Stage;
beforeAll(() => {
  s = new Stage();
  s.scenario({ guest: "agent" });
});
afterAll(() => s.remove());

const KIT = `
  import { createHash } from "node:crypto";
  import { readFileSync } from "node:fs";
  import { PassThrough, Readable, Writable } from "node:stream";
  import { setTimeout as sleep } from "node:timers/promises";
  const sha = (b) => createHash("sha256").update(b).digest("hex");
  const rss = () => Number(/VmRSS:\\s+(\\d+)/.exec(readFileSync("/proc/self/status", "utf8"))[1]) * 1024;
  const refused = async (work) => { try { await work(); return "it succeeded"; } catch (e) { const { code, stdout, stderr, exitCode, message } = e; return { code, stdout, stderr, exitCode, message, cause: e.cause?.message }; } };
  const lane = await create();
`;

async function play(script: string): Promise<Record<string, never>> {
  const r = await s.run(`${KIT}${script}\nawait lane.close();`, {}, long ? 800_000 : undefined);
  expect(r.err).toBe("");
  expect(r.status).toBe(0);
  return r.said;
}

describe("the end of a command", () => {
  it("comes by its caller's signal: ABORTED, with what it said and the reason", async () => {
    const said = await play(`
      const c = new AbortController(), lines = [];
      const call = refused(() => lane.exec("trap 'echo bye; exit 5' TERM; echo err >&2; echo one; while :; do sleep 0.05; done",
        { signal: c.signal, onLine: (l) => { lines.push(l); c.abort(new Error("enough")); } }));
      report("aborted", await call);
      report("lines", lines);
      report("before", await refused(() => lane.exec("touch ran", { signal: AbortSignal.abort(new Error("too late")) })));
      report("not run", (await lane.exec("ls")).stdout);
      const late = new AbortController();
      report("result", await lane.exec("exit 4", { signal: late.signal }));
      late.abort();
      report("after", (await lane.exec("echo fine")).stdout);
      const third = new AbortController();
      report("whole", await refused(() => lane.exec("head -c 100000 /dev/zero | tr '\\\\0' x; echo; echo >&2; exec sleep 60", { signal: third.signal, onStderrLine: () => third.abort() })).then((e) => [e.code, e.stdout.length, e.exitCode]));`);
    expect(said["aborted"]).toMatchObject({
      code: "ABORTED",
      stdout: "one\nbye\n",
      stderr: expect.stringMatching(/^err\n/),
      exitCode: 5,
      cause: "enough",
    });
    expect(said["lines"]).toEqual(["one"]);
    expect(said["before"]).toMatchObject({ code: "ABORTED", cause: "too late" });
    expect(said["not run"]).toBe("");
    expect(said["result"]).toEqual({ stdout: "", stderr: "", exitCode: 4 });
    expect(said["after"]).toBe("fine\n");
    expect(said["whole"]).toEqual(["ABORTED", 65536, 143]);
  });

  it("comes by its time: TIMEOUT, SIGTERM first, then SIGKILL after the grace", async () => {
    const said = await play(`
      report("obeys", await refused(() => lane.exec("echo a; exec sleep 60", { timeoutMs: 2500 })));
      const t = Date.now();
      report("deaf", await refused(() => lane.exec("trap '' TERM; echo b; while :; do sleep 0.1; done", { timeoutMs: 2500, killGraceMs: 600 })));
      report("ms", Date.now() - t);
      report("at once", await refused(() => lane.exec("trap 'echo never' TERM; echo c; while :; do sleep 0.1; done", { timeoutMs: 2500, killGraceMs: 0 })));
      report("in time", await lane.exec("echo d", { timeoutMs: 60000 }));`);
    expect(said["obeys"]).toMatchObject({ code: "TIMEOUT", stdout: "a\n", exitCode: 143 });
    expect((said["obeys"] as { message: string }).message).toMatch(/2\.5 s.*timeoutMs/);
    expect(said["deaf"]).toMatchObject({ code: "TIMEOUT", stdout: "b\n", exitCode: 137 });
    expect(said["ms"]).toBeGreaterThanOrEqual(3090);
    expect(said["at once"]).toMatchObject({ code: "TIMEOUT", stdout: "c\n", exitCode: 137 });
    expect(said["in time"]).toEqual({ stdout: "d\n", stderr: "", exitCode: 0 });
  });

  it("is not held up by a daemon for longer than asked", async () => {
    const said = await play(`
      let t = Date.now();
      report("short", (await lane.exec("sleep 61 & echo out", { holdGraceMs: 0 })).stdout);
      report("short ms", Date.now() - t);
      t = Date.now();
      report("fed", (await lane.exec("(for i in 1 2 3 4 5; do sleep 0.4; echo $i; done; exec sleep 61) & echo 0", { holdGraceMs: 1500 })).stdout);
      report("fed ms", Date.now() - t);`);
    expect(said["short"]).toBe("out\n");
    expect(said["short ms"]).toBeLessThan(20_000);
    expect(said["fed"]).toBe("0\n1\n2\n3\n4\n5\n");
    expect(said["fed ms"]).toBeGreaterThanOrEqual(3400);
  });

  it("comes when it writes more than is kept, and when a limit cannot be enforced it does not begin", async () => {
    const said = await play(`
      report("much", await refused(() => lane.exec("yes; :", { maxOutputBytes: 200000 })).then((e) => [e.code, e.message, e.stdout.length, e.exitCode]));
      report("exact", (await lane.exec("head -c 200000 /dev/zero", { maxOutputBytes: 200000 })).stdout.length);
      for (const limits of [{ processes: 5 }, { memoryBytes: 1e8 }, { cpus: 0.5 }]) report(Object.keys(limits)[0], await refused(() => lane.exec("touch ran", { limits })).then((e) => e.code));
      report("ran", (await lane.exec("ls")).stdout);
      report("bad", await Promise.all([{ limits: { processes: 0 } }, { limits: { cpus: "1" } }, { limits: 5 }, { timeoutMs: 0 }, { timeoutMs: 1.5 }, { killGraceMs: -1 }, { maxOutputBytes: 1e12 }, { signal: {} }, { stdin: 5 }, { stdin: null }, { onStderrLine: 1 }, { leaveDaemons: "no" }]
        .map((o) => refused(() => lane.exec("touch ran", o)).then((e) => e.code))));
      report("env", (await lane.exec("echo $A $B $C", { env: { B: "own", C: "also" } })).stdout);`);
    expect(said["much"]).toEqual([
      "OUTPUT_LIMIT",
      expect.stringMatching(/more than 200000 bytes to stdout/),
      65536,
      137,
    ]);
    expect(said["exact"]).toBe(200_000);
    for (const limit of ["processes", "memoryBytes", "cpus"]) expect(said[limit]).toBe("LIMIT_UNENFORCEABLE");
    expect(said["ran"]).toBe("");
    expect(new Set(said["bad"])).toEqual(new Set(["BAD_OPTION"]));
    expect(said["env"]).toBe("own also\n");
  });
});

describe("input", () => {
  it("may be of any kind and size, and ends exactly", async () => {
    const said = await play(`
      const text = "Grüße, 世界 – \\0 $\`\\r\\n".replace("\\0", "").repeat(120000);
      report("text", (await lane.exec("sha256sum | cut -d' ' -f1", { stdin: text })).stdout.trim() === sha(text));
      const bytes = Buffer.alloc(5000001, "\\0\\xff\\n", "latin1");
      report("bytes", (await lane.exec("sha256sum | cut -d' ' -f1", { stdin: bytes })).stdout.trim() === sha(bytes));
      const h = createHash("sha256");
      async function* blocks() { for (let i = 0; i < 1024; i++) { const b = Buffer.alloc(65536, i); h.update(b); yield b; } }
      const got = (await lane.exec("sha256sum | cut -d' ' -f1", { stdin: Readable.from(blocks()) })).stdout.trim();
      report("stream", got === h.digest("hex"));
      for (const [name, stdin] of Object.entries({ "": "", nothing: Readable.from([]), gone: Buffer.alloc(0) })) report("empty " + name, (await lane.exec("wc -c", { stdin })).stdout.trim());
      const pass = new PassThrough();
      const slow = lane.exec("cat", { stdin: pass });
      for (const part of ["o", "ne", "\\nt", "wo"]) { pass.write(part); await sleep(50); }
      pass.end();
      report("slow", (await slow).stdout);`);
    expect(said).toMatchObject({ text: true, bytes: true, stream: true, slow: "one\ntwo" });
    expect([said["empty "], said["empty nothing"], said["empty gone"]]).toEqual(["0", "0", "0"]);
  });

  it("is read no faster than the command takes it, and not at all after its end", async () => {
    const said = await play(`
      let given = 0;
      const endless = () => new Readable({ read() { given += 65536; this.push(Buffer.alloc(65536)); } });
      const reader = endless();
      const call = lane.exec("sleep 2; head -c 1000000 | wc -c", { stdin: reader });
      await sleep(1500);
      report("ahead", given);
      report("took", (await call).stdout.trim());
      const at = given;
      await sleep(300);
      report("more", given - at);
      report("left alone", [reader.destroyed, reader.listenerCount("error"), reader.listenerCount("readable")]);
      given = 0;
      report("closed", (await lane.exec("exec <&-; sleep 1; echo ok", { stdin: endless() })).stdout);
      report("dropped", given);
      report("ended", (await lane.exec("exit 7", { stdin: endless() })).exitCode);`);
    expect(said["ahead"]).toBeLessThan(4 << 20);
    expect(said["took"]).toBe("1000000");
    expect(said["more"]).toBe(0);
    expect(said["left alone"]).toEqual([false, 0, 0]);
    expect(said["closed"]).toBe("ok\n");
    expect(said["dropped"]).toBeLessThan(4 << 20);
    expect(said["ended"]).toBe(7);
  });

  it("that fails ends the command and says so", async () => {
    const said = await play(`
      let came, back = new Promise((resolve) => { came = resolve; });
      async function* broken() { yield "some\\n"; await back; throw new Error("the disk is gone"); }
      report("error", await refused(() => lane.exec("cat; echo whole", { stdin: Readable.from(broken()), onLine: came })));
      const cut = new PassThrough();
      cut.write("some\\n");
      report("cut", await refused(() => lane.exec("cat; echo whole", { stdin: cut, onLine: () => cut.destroy() })));
      const full = new Readable({ read() { this.push(Buffer.alloc(65536)); } });
      setTimeout(() => full.destroy(new Error("the disk is gone")), 1500);
      report("full", await refused(() => lane.exec("exec sleep 90", { stdin: full })).then((e) => [e.code, e.cause]));
      report("objects", await refused(() => lane.exec("cat", { stdin: Readable.from([{ a: 1 }]) })));
      report("before", await refused(() => lane.exec("cat", { stdin: cut })).then((e) => e.code));
      report("fine", (await lane.exec("echo fine")).stdout);`);
    expect(said["error"]).toMatchObject({ code: "STDIN_FAILED", stdout: "some\n", cause: "the disk is gone" });
    expect((said["error"] as { message: string }).message).toContain("the disk is gone");
    expect(said["cut"]).toMatchObject({ code: "STDIN_FAILED", stdout: "some\n", cause: "it was closed before its end" });
    expect(said["full"]).toEqual(["STDIN_FAILED", "the disk is gone"]); // though the command took nothing any more
    expect(said["objects"]).toMatchObject({ code: "STDIN_FAILED", cause: "it gave an object instead of bytes or text" });
    expect(said["before"]).toBe("STDIN_FAILED");
    expect(said["fine"]).toBe("fine\n");
  });
});

describe("lines", () => {
  it("are exact: characters and CRLF split at every place, NUL, no newline at the end", async () => {
    const said = await play(`
      // Two lines of 2-, 3- and 4-byte characters, CRLF, a NUL and bytes that are no UTF-8; written in two parts, cut at every offset.
      const raw = Buffer.concat([Buffer.from("aäß世🚂\\0é\\r\\n\\r\\nb\\r\\r\\n"), Buffer.from([0xff, 0xe4, 0xb8, 0x0a, 0xf0, 0x9f]), Buffer.from("ende")]);
      const want = ["aäß世🚂\\0é", "", "b\\r", "\\ufffd\\ufffd", "\\ufffdende"];
      const wrong = [];
      await lane.exec("cat > raw", { stdin: raw });
      for (let at = 0; at <= raw.length; at += 12) await Promise.all(Array.from({ length: Math.min(12, raw.length + 1 - at) }, async (_, k) => {
        const out = [], err = [];
        const cut = "head -c " + (at + k) + " raw; sleep 0.1; tail -c +" + (at + k + 1) + " raw";
        const r = await lane.exec("(" + cut + "); (" + cut + ") >&2", { onLine: (l) => out.push(l), onStderrLine: (l) => err.push(l) });
        if (JSON.stringify([out, err]) !== JSON.stringify([want, want])) wrong.push([at + k, out, err]);
        const whole = await lane.exec(cut);
        if (whole.stdout !== raw.toString("utf8")) wrong.push([at + k, whole.stdout]);
      }));
      report("wrong", wrong);
      report("offsets", raw.length + 1);`);
    expect(said["wrong"]).toEqual([]);
    expect(said["offsets"]).toBe(34);
  });

  it("of stderr come like those of stdout, each output by itself", async () => {
    const said = await play(`
      const err = [];
      const whole = await lane.exec("seq 1 20000 >&2; echo '  out '; printf end >&2", { onStderrLine: (l) => err.push(l) });
      report("whole", [whole.stdout, err.length, err[19999], err[20000], whole.stderr.length, whole.stderr.endsWith("20000\\nend")]);
      const out = [];
      const both = await lane.exec("seq 1 30000 & seq 30000 -1 1 >&2; wait", { onLine: (l) => out.push(l), onStderrLine: (l) => err.push(l) });
      report("both", [out.length, out.every((l, i) => l === String(i + 1)), err.slice(20001).every((l, i) => l === String(30000 - i)), both.exitCode]);
      report("threw", await refused(() => lane.exec("echo x >&2; exec sleep 60", { onStderrLine: () => { throw new Error("parser bug"); } })));`);
    expect(said["whole"]).toEqual(["  out \n", 20_001, "20000", "end", 65536, true]);
    expect(said["both"]).toEqual([30_000, true, true, 0]);
    expect(said["threw"]).toMatchObject({ code: "CALLBACK_THREW", stderr: "x\n", cause: "parser bug" });
    expect((said["threw"] as { message: string }).message).toContain("onStderrLine threw");
  });

  it("of 100 MiB come in pieces of 16 MiB, whole again when joined, and the result says so", async () => {
    const said = await play(`
      const source = "head -c 104857600 /dev/zero | tr '\\\\0' '\\\\303'"; // each begins a character that never comes: no piece may end with one
      let bytes = 0, pieces = 0, long = 0, other = 0;
      const r = await lane.exec(source + "; printf '\\\\nlast'", { onLine: (l) => { pieces++; bytes += l.length; long = Math.max(long, l.length); if (/[^\\ufffd]/.test(l) && l !== "last") other++; } });
      report("line", [bytes, pieces, long, other, r.cutLines, r.stdout.endsWith("\\nlast")]);
      report("short", "cutLines" in (await lane.exec("echo a", { onLine() {} })));`);
    expect(said["line"]).toEqual([104_857_604, 8, (16 << 20) - 1, 0, 6, true]);
    expect(said["short"]).toBe(false);
  });
});

describe("memory", () => {
  const size = long ? 1 << 30 : 64 << 20;
  const stall = long ? 30_000 : 3000;

  it(`stays bounded with a consumer that stalls in the middle of ${size >> 20} MiB; others are answered meanwhile`, async () => {
    const said = await play(`
      const hash = createHash("sha256");
      let got = 0, peak = 0, stalled = false, meanwhile;
      const base = rss();
      const sampler = setInterval(() => (peak = Math.max(peak, rss() - base)), 20);
      const stdout = new Writable({ write(chunk, _, done) {
        hash.update(chunk);
        got += chunk.length;
        if (stalled || got < ${size / 2}) return done();
        stalled = true;
        (async () => {
          const first = got;
          for (const end = Date.now() + ${stall}; Date.now() < end; await sleep(100)) meanwhile = (await lane.exec("echo alive")).stdout;
          report("during the stall", got - first);
          done();
        })();
      } });
      const source = "openssl enc -aes-128-ctr -K 00112233445566778899aabbccddeeff -iv 0 -in /dev/zero 2>/dev/null | head -c ${size}";
      const { exitCode } = await lane.interactiveExec(["sh", "-c", source], { stdin: Readable.from([]), stdout, stderr: new PassThrough().resume() });
      clearInterval(sampler);
      report("exit", exitCode);
      report("got", got);
      report("peak", peak);
      report("meanwhile", meanwhile);
      report("hash", hash.digest("hex") === (await lane.exec(source + " | sha256sum | cut -d' ' -f1")).stdout.trim());`);
    expect(said).toMatchObject({ exit: 0, got: size, meanwhile: "alive\n", hash: true, "during the stall": 0 });
    if (measured) expect(said["peak"]).toBeLessThan(96 << 20); // Node's own heap included; the bytes would be far more in the long version
    console.log(JSON.stringify({ name: "stalled consumer", MiB: size >> 20, stallMs: stall, peakRssGrowth: said["peak"] }));
  }, 900_000);

  it("does not grow while the JavaScript thread is blocked", async () => {
    const said = await play(`
      let n = 0;
      const c = new AbortController();
      const calls = [1, 2, 3, 4].map(() => refused(() => lane.exec("yes 0123456789012345678901234567890123456789", { signal: c.signal, onLine: () => n++ })));
      calls.push(refused(() => lane.exec("yes >&2", { signal: c.signal, onStderrLine: () => n++ })));
      await sleep(1500);
      const before = rss(), lines = n;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ${long ? 60_000 : 5000});
      report("grown", rss() - before);
      report("lines before", lines > 1000);
      report("lines meanwhile", n - lines);
      await sleep(500);
      report("lines after", n > lines + 1000);
      c.abort();
      report("ended", (await Promise.all(calls)).map((e) => e.code));`);
    if (measured) expect(said["grown"]).toBeLessThan(8 << 20);
    expect(said["lines before"]).toBe(true);
    expect(said["lines meanwhile"]).toBe(0);
    expect(said["lines after"]).toBe(true);
    expect(said["ended"]).toEqual(Array(5).fill("ABORTED"));
  });
});
