// SPDX-License-Identifier: Apache-2.0
// createLane, spawn and lines on the real addon and the real lane agent.
import { describe, expect, it, vi } from "vitest";
import { stages } from "./support/stages.js";

// Each starts processes and some a few lanes, on a machine that may be busy.
vi.setConfig({ testTimeout: 100_000 });

const stage = stages();

const KIT = `
  import { text } from "node:stream/consumers";
  import { createHash } from "node:crypto";
  import { finished, pipeline } from "node:stream/promises";
  import { Readable } from "node:stream";
  import { setTimeout as sleep } from "node:timers/promises";
  const { createLane } = await import(PACKAGE);
  const open = (o = {}) => createLane({ ...OPTIONS, ...o });
  const lane = await open();
  const alive = (pid) => { try { process.kill(pid, 0); return true; } catch { return false; } };
  // A file that is written anew all the time may be caught while it is empty.
  const progress = async () => { for (;;) { const { stdout } = await lane.exec("cat progress"); if (stdout.trim()) return stdout.trim(); } };
  const gone = async (pid) => { for (let i = 0; i < 1000 && alive(pid); i++) await sleep(10); return !alive(pid); };
`;

async function run(script: string): Promise<Record<string, unknown>> {
  const s = stage({ guest: "agent" });
  const r = await s.run(`${KIT}${script}; await lane.close();`);
  expect(r.err).toBe("");
  expect(r.status).toBe(0);
  expect(s.left()).toEqual([]);
  return r.said;
}

describe("lane.spawn", () => {
  it("gives streams, a status and a signal, by argv or by sh -c", async () => {
    const said = await run(`
      const cat = lane.spawn(["cat"]);
      cat.stdin.end("both ways ✓");
      report("cat", [await text(cat.stdout), await cat.exited, cat.running]);
      const sh = lane.spawn("echo out; echo err >&2; pwd; echo $X; exit 7", { cwd: "/", env: { X: "a b" } });
      sh.stdin.end();
      report("sh", await Promise.all([text(sh.stdout), text(sh.stderr), sh.exited]));
      const killed = lane.spawn(["sh", "-c", "trap 'echo term; exit 3' TERM; echo ready; while :; do sleep 0.05; done"]);
      killed.stdout.once("data", () => report("sent", killed.kill()));
      report("term", [await killed.exited, killed.kill()]);
      const hard = lane.spawn("exec sleep 60");
      hard.kill("SIGKILL");
      report("kill", await hard.exited);
      report("missing", await failure(() => lane.spawn(["no-such-program"]).exited));
      report("bad", await Promise.all([
        failure(() => lane.spawn([])), failure(() => lane.spawn(5)), failure(() => lane.spawn("x", { cwd: "rel" })),
        failure(() => lane.spawn("x", { tty: { rows: 0, columns: 5 } })), failure(() => hard.kill("SIGNOPE"))]));
    `);
    expect(said["cat"]).toEqual(["both ways ✓", { exitCode: 0, signal: null }, false]);
    expect(said["sh"]).toEqual(["out\n/\na b\n", "err\n", { exitCode: 7, signal: null }]);
    expect(said["sent"]).toBe(true);
    expect(said["term"]).toEqual([{ exitCode: 3, signal: null }, false]);
    expect(said["kill"]).toEqual({ exitCode: 137, signal: "SIGKILL" });
    expect(said["missing"]).toMatchObject({ code: "EXEC_FAILED" });
    for (const error of said["bad"] as unknown[]) expect(error).toMatchObject({ code: "BAD_OPTION" });
  });

  it("moves 64 MiB each way, exactly", async () => {
    const said = await run(`
      const hash = createHash("sha256"), back = createHash("sha256");
      const block = Buffer.alloc(65536, 7);
      async function* source() { for (let i = 0; i < 1024; i++) { block.writeUInt32LE(i, 0); hash.update(block); yield Buffer.from(block); } }
      const p = lane.spawn(["cat"]);
      const [n] = await Promise.all([
        (async () => { let n = 0; for await (const data of p.stdout) { back.update(data); n += data.length; } return n; })(),
        pipeline(Readable.from(source()), p.stdin)]);
      report("n", [n, hash.digest("hex") === back.digest("hex"), (await p.exited).exitCode]);
    `);
    expect(said["n"]).toEqual([64 * 2 ** 20, true, 0]);
  });

  it("stops a writer that nobody reads, and keeps little", async () => {
    const said = await run(`
      const p = lane.spawn("i=0; while :; do head -c 65536 /dev/zero; i=$((i+1)); echo $i >progress; done");
      let before = "", now = "0";
      for (let i = 0; i < 20 && before !== now; i++) { before = now; await sleep(300); now = await progress(); }
      report("stopped", [before === now, Number(now) * 65536 <= 2 ** 20, p.stdout.readableLength <= 512 * 1024, p.running]);
      let got = 0;
      for await (const data of p.stdout) if ((got += data.length) > 4 * 2 ** 20) break;
      let later = 0;
      for (let i = 0; i < 500 && later <= Number(now); i++) later = Number(await progress());
      report("goes on", [later > Number(now), got > 4 * 2 ** 20]);
      await p[Symbol.asyncDispose]();
      const slow = lane.spawn("exec sleep 60");
      let written = 0;
      while (written < 2 ** 26 && slow.stdin.write(Buffer.alloc(65536))) written += 65536;
      await sleep(300);
      while (written < 2 ** 26 && !slow.stdin.writableNeedDrain) { slow.stdin.write(Buffer.alloc(65536)); written += 65536; await sleep(5); }
      report("written", written < 4 * 2 ** 20);
      await slow[Symbol.asyncDispose]();
      report("disposed", await failure(() => slow.exited));
    `);
    expect(said["stopped"]).toEqual([true, true, true, true]);
    expect(said["goes on"]).toEqual([true, true]);
    expect(said["written"]).toBe(true);
    expect(said["disposed"]).toMatchObject({ code: "ABORTED" });
  });

  it("tells the status while output is unread, and drops input that nobody reads", async () => {
    const said = await run(`
      const p = lane.spawn("exec <&-; head -c 100000 /dev/zero; exit 4");
      for (let i = 0; i < 100; i++) p.stdin.write(Buffer.alloc(65536));
      report("status", (await p.exited).exitCode);
      report("output", (await text(p.stdout)).length);
      report("after", [p.stdin.write("x"), p.kill()]);
    `);
    expect(said).toMatchObject({ status: 4, output: 100000, after: [false, false] });
  });

  it("ends the command with a signal, with disposal and with the lane; nobody has to look", async () => {
    const said = await run(`
      const controller = new AbortController();
      const start = (o) => { const p = lane.spawn("(trap '' TERM; echo $$ >pid; exec sleep 60) & wait", { killGraceMs: 100, ...o }); p.stdout.resume(); return p; };
      const pid = async () => { for (;;) { const { stdout } = await lane.exec("[ -s pid ] && cat pid && rm pid"); if (stdout) return Number(stdout); await sleep(20); } };
      const a = start({ signal: controller.signal }), pa = await pid();
      controller.abort("enough");
      report("abort", [await failure(() => a.exited), await gone(pa)]);
      report("late", await failure(() => start({ signal: controller.signal })));
      let pb;
      const b = start(); pb = await pid(); await b[Symbol.asyncDispose]();
      report("using", await gone(pb));
      const c = start();
      await lane.close();
      report("close", [(await failure(() => c.exited)).code, c.stdout.destroyed, c.stdout.errored?.code]);
      report("closed", await failure(() => lane.spawn("true")));
    `);
    expect(said["abort"]).toMatchObject([{ code: "ABORTED" }, true]);
    expect(said["late"]).toMatchObject({ code: "ABORTED" });
    expect(said["using"]).toBe(true);
    expect(said["close"]).toEqual(["LANE_CLOSED", true, "LANE_CLOSED"]);
    expect(said["closed"]).toMatchObject({ code: "LANE_CLOSED" });
  });

  it("gives a terminal, which can be resized", async () => {
    const said = await run(`
      const p = lane.spawn("stty size; trap 'stty size; exit 2' WINCH; echo on; while :; do sleep 0.05; done", { tty: { rows: 30, columns: 90 } });
      let out = "";
      p.stdout.on("data", (d) => { out += d; if (out.endsWith("on\\r\\n")) p.resize({ rows: 12, columns: 34 }); });
      report("status", (await p.exited).exitCode);
      await finished(p.stdout);
      report("out", out);
      const cat = lane.spawn(["cat"], { tty: true });
      cat.stdin.end("x\\n");
      report("end", [await text(cat.stdout), (await cat.exited).exitCode]);
    `);
    expect(said).toMatchObject({ status: 2, out: "30 90\r\non\r\n12 34\r\n", end: ["x\r\nx\r\n", 0] });
  });
});

describe("lane.lines", () => {
  it("gives each line, then the status", async () => {
    const said = await run(`
      const got = [];
      for await (const line of lane.lines("printf 'a\\\\r\\\\n\\\\nzölf'; echo >&2 why")) got.push(line);
      report("lines", got);
      let n = 0, last;
      for await (const line of lane.lines("seq 1 300000")) { n++; last = line; }
      report("many", [n, last]);
      const seen = [];
      report("failed", await failure(async () => { for await (const line of lane.lines("echo one; echo reason >&2; exit 3")) seen.push(line); }));
      report("seen", seen);
      let error; try { for await (const _ of lane.lines("exit 3")); } catch (e) { error = e; }
      report("code", [error.exitCode, error.stderr]);
      for await (const line of lane.lines("echo fine; exit 3", { check: false })) report("unchecked", line);
      const cat = []; for await (const line of lane.lines("cat", { stdin: Readable.from(["x\\n", "y\\n"]) })) cat.push(line);
      report("stdin", cat);
    `);
    expect(said["lines"]).toEqual(["a", "", "zölf"]);
    expect(said["many"]).toEqual([300000, "300000"]);
    expect(said["failed"]).toMatchObject({ code: "COMMAND_FAILED", message: "the command ended with status 3: reason" });
    expect(said["seen"]).toEqual(["one"]);
    expect(said["code"]).toEqual([3, ""]);
    expect(said["unchecked"]).toBe("fine");
    expect(said["stdin"]).toEqual(["x", "y"]);
  });

  it("ends the command when the loop is left, and holds it while the loop waits", async () => {
    const said = await run(`
      let n = 0;
      for await (const line of lane.lines("echo $$ >pid; yes")) if (++n === 5) break;
      report("gone", await gone(Number((await lane.exec("cat pid")).stdout)));
      report("thrown", await failure(async () => { for await (const line of lane.lines("echo $$ >pid2; yes")) throw Object.assign(new Error("mine"), { code: "MINE" }); }));
      report("gone 2", await gone(Number((await lane.exec("cat pid2")).stdout)));
      let before = "", now = "0", count = 0;
      for await (const line of lane.lines("x=$(seq 2000 | tr -d '\\\\n'); i=0; while :; do i=$((i+1)); echo $x; echo $i >progress; done")) {
        if (++count > 1) continue;
        for (let i = 0; i < 20 && before !== now; i++) { before = now; await sleep(300); now = await progress(); }
        report("held", before === now);
        break;
      }
      const controller = new AbortController();
      report("abort", await failure(async () => { for await (const line of lane.lines("echo x; sleep 60", { signal: controller.signal })) controller.abort(); }));
      report("closed", await failure(async () => { for await (const line of lane.lines("echo x; sleep 60")) void lane.close(); }));
    `);
    expect(said).toMatchObject({
      gone: true,
      thrown: { code: "MINE" },
      "gone 2": true,
      held: true,
      abort: { code: "ABORTED" },
      closed: { code: "LANE_CLOSED" },
    });
  });
});

describe("createLane", () => {
  it("waits for a place as long as it is told, apart from its start, and says for whom", async () => {
    const said = await run(`
      const events = [];
      const options = { maxConcurrentVms: 1, startTimeoutSeconds: 10, onEvent: (e) => events.push(e) };
      const started = Date.now();
      report("busy", await failure(() => open({ ...options, queueTimeoutSeconds: 2 })));
      report("waited", Date.now() - started >= 2000);
      report("told", events.some((e) => e.type === "queued" && e.position === 1 && e.of === 1 && e.message?.includes(lane.name)));
      const next = open({ ...options, queueTimeoutSeconds: 60 });
      await sleep(12000); // longer than the start may take
      await lane.close();
      const second = await next;
      report("second", (await second.exec("echo here")).stdout);
      await second.close();
    `);
    expect(said["busy"]).toMatchObject({ code: "BUSY" });
    expect((said["busy"] as { message: string }).message).toContain("within 2 s (queueTimeoutSeconds)");
    expect(said).toMatchObject({ waited: true, told: true, second: "here\n" });
  });

  it("has no sync-in to wait for, closes with await using, and refuses what is not its own", async () => {
    const said = await run(`
      const messages = [];
      const other = await open({ startTimeoutSeconds: 200, onEvent: (e) => messages.push(e.type) }); await other.exec("true"); report("other", other.name !== lane.name); await other[Symbol.asyncDispose]();
      report("messages", messages.filter((m) => m === "warning" || m === "ready"));
      report("refused", [await failure(() => open({ syncInTimeoutSeconds: 10 })), await failure(() => open({ queueTimeoutSeconds: 0 })),
        await failure(() => open({ nope: 1 })), await failure(() => open({ queueTimeout: 1 })), await failure(() => createLane(null))].map((e) => e.code));
      async function theCaller(call) { try { await call(); } catch (e) { return [e.code, /at .*theCaller/.test(e.stack)]; } }
      report("stacks", [
        await theCaller(() => lane.exec("true", { cwd: "/no/such/dir" })), await theCaller(() => lane.copyIn("/no/such", "/x")),
        await theCaller(() => lane.copyFileOut("/no/such", "/tmp/never")), await theCaller(() => open({ image: "nope" })),
      ]);
      report("near", await Promise.all([
        () => open({ queueTimeout: 1 }), () => lane.exec("true", { timeoutMS: 100 }),
        () => lane.exec("true", { limits: { memory: 1 } }), () => lane.spawn("true", { ttty: true }),
        () => lane.spawn("true", { stdin: "x" }), () => lane.lines("true", { checks: false }).next(),
        () => lane.interactiveExec(["true"], { stdin: 1, stdout: 1, stderr: 1, cdw: "/" }),
        () => lane.spawn("true").kill("SIGTERM", { three: true }),
      ].map(async (call) => { const e = await failure(call); return e.code + ": " + e.message; })));
    `);
    expect(said["other"]).toBe(true);
    expect(said["messages"]).toEqual(["ready"]);
    expect(said["refused"]).toEqual(["BAD_OPTION", "BAD_OPTION", "UNKNOWN_OPTION", "UNKNOWN_OPTION", "BAD_OPTION"]);
    expect(said["stacks"]).toEqual(
      ["EXEC_FAILED", "SOURCE_MISSING", "GUEST_FILE_MISSING", "IMAGE_MISSING"].map((code) => [code, true]),
    );
    expect(said["near"]).toEqual([
      'UNKNOWN_OPTION: there is no option "queueTimeout"; did you mean queueTimeoutSeconds?',
      'UNKNOWN_OPTION: there is no option of exec() "timeoutMS"; did you mean timeoutMs?',
      'UNKNOWN_OPTION: there is no option of limits "memory"; did you mean memoryBytes?',
      'UNKNOWN_OPTION: there is no option of spawn() "ttty"; did you mean tty?',
      expect.stringMatching(/^UNKNOWN_OPTION: there is no option of spawn\(\) "stdin"/),
      'UNKNOWN_OPTION: there is no option of lines() "checks"; did you mean check?',
      'UNKNOWN_OPTION: there is no option of interactiveExec() "cdw"; did you mean cwd?',
      'UNKNOWN_OPTION: there is no option of kill() "three"; did you mean tree?',
    ]);
  });
});
