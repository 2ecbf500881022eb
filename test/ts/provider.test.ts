// SPDX-License-Identifier: Apache-2.0
// The whole stack without a VM: lima() on the real addon and engine, a scripted limactl, a scripted guest behind a real
// channel.
import { describe, expect, it } from "vitest";
import { stages } from "./support/stages.js";

const stage = stages();

describe("a lane", () => {
  it("runs commands as Sandcastle does", async () => {
    const s = stage();
    const r = await s.run(`
      const events = [];
      const lane = await create({ env: { OWN: "own", BOTH: "own" }, onEvent: (e) => events.push(e.type) }, { RUN: "a b", BOTH: "run" });
      report("worktree", lane.worktreePath === WT);
      report("plain", await lane.exec("pwd; echo $OWN $RUN $BOTH; echo err >&2; exit 3"));
      report("undefined keys", await lane.exec("cat; echo .", { cwd: undefined, sudo: undefined, stdin: undefined, onLine: undefined }));
      report("later key", (await lane.exec("echo yes", { ofALaterSandcastle: 1, cwd: "/" })).stdout);
      report("empty stdin", (await lane.exec("cat; echo .", { stdin: "" })).stdout);
      report("stdin", (await lane.exec("wc -c", { stdin: "é".repeat(1e6) })).stdout.trim());
      report("untrimmed", (await lane.exec("printf '\\\\n a \\\\n\\\\n'")).stdout);
      report("cwd", (await lane.exec("pwd", { cwd: "/" })).stdout);
      report("sudo", (await lane.exec("echo $SCRIPTED_USER", { sudo: true })).stdout);
      report("signal", (await lane.exec("kill -9 $$")).exitCode);
      report("large", (await lane.exec("head -c 3000000 /dev/zero | tr '\\\\0' x")).stdout.length);
      const lines = [];
      const tail = await lane.exec("printf 'l1\\\\r\\\\n\\\\nz\\\\303\\\\266lf'; echo noise >&2", { onLine: (l) => lines.push(l) });
      report("lines", lines); report("tail", tail);
      let n = 0, last; const many = await lane.exec("seq 1 200000", { onLine: (l) => { n++; last = l; } });
      report("many", [n, last, many.stdout.length <= 65536, many.stdout.endsWith("199999\\n200000")]);
      const all = await Promise.all(Array.from({ length: 20 }, (_, i) => lane.exec("sleep 0.1; echo " + i)));
      report("parallel", all.map((x) => x.stdout.trim()).join());
      report("bad cwd", await failure(() => lane.exec("true", { cwd: "/no/such/dir" })));
      await lane.close();
      while (events.at(-1) !== "closed") await new Promise((ok) => setTimeout(ok, 10));
      report("events", events);`);
    expect(r.err).toBe("");
    expect(r.status).toBe(0);
    expect(r.said).toMatchObject({
      worktree: true,
      plain: { stdout: `${s.work}\nown a b run\n`, stderr: "err\n", exitCode: 3 },
      "undefined keys": { stdout: ".\n", exitCode: 0 },
      "later key": "yes\n",
      "empty stdin": ".\n",
      stdin: "2000000",
      untrimmed: "\n a \n\n",
      cwd: "/\n",
      sudo: "root\n",
      signal: 137,
      large: 3000000,
      lines: ["l1", "", "zölf"],
      tail: { stdout: "l1\n\nzölf", stderr: "noise\n", exitCode: 0 },
      many: [200000, "200000", true, true],
      parallel: Array.from({ length: 20 }, (_, i) => i).join(),
      "bad cwd": { name: "LaneError", code: "EXEC_FAILED" },
    });
    expect(r.said["events"]).toEqual(["queued", "creating", "booting", "connecting", "ready", "closing", "closed"]);
    expect(s.left()).toEqual([]);
  });

  it("rejects when onLine throws, and goes on living", async () => {
    const s = stage();
    const r = await s.run(`
      const lane = await create();
      const t0 = Date.now(); let n = 0;
      report("threw", await failure(() => lane.exec("seq 1 100000; sleep 100", { onLine: () => { if (++n === 50) throw new Error("boo"); } })));
      report("calls", n); report("soon", Date.now() - t0 < 10000);
      report("after", (await lane.exec("echo alive")).stdout);
      await lane.close();`);
    expect(r.said).toMatchObject({
      threw: { code: "CALLBACK_THREW", cause: "boo" },
      calls: 50,
      soon: true,
      after: "alive\n",
    });
    expect(r.status).toBe(0);
  });

  it("stops the command that passes maxBufferedBytes, and no other", async () => {
    const s = stage();
    const r = await s.run(`
      const lane = await create({ maxBufferedBytes: 2 ** 20 });
      const other = lane.exec("head -c 600000 /dev/zero; sleep 2");
      await lane.exec("sleep 1");
      report("passed", await failure(() => lane.exec("head -c 600000 /dev/zero; sleep 100")));
      report("other", (await other).stdout.length);
      report("after", (await lane.exec("head -c 1048576 /dev/zero")).stdout.length);
      await lane.close();`);
    const passed = r.said["passed"] as { message: string; cure: string };
    expect(passed).toMatchObject({
      code: "OUTPUT_LIMIT",
      message: expect.stringContaining("maxBufferedBytes") as string,
    });
    expect(passed.cure).toContain("maxBufferedBytes");
    expect(r.said).toMatchObject({ other: 600000, after: 1048576 });
    expect(r.status).toBe(0);
  });

  it("settles what is in flight at close, delivers no line after it, and answers concurrent closes", async () => {
    const s = stage();
    const r = await s.run(`
      const lane = await create();
      let late = 0, closing = false;
      const hanging = failure(() => lane.exec("while :; do echo x; sleep 0.01; done", { onLine: () => { if (closing) late++; } }));
      await new Promise((ok) => setTimeout(ok, 200));
      closing = true;
      await Promise.all([lane.close(), lane.close(), lane.close()]);
      report("hanging", await hanging); report("late", late);
      report("after", await failure(() => lane.exec("true")));
      await lane.close();`);
    expect(r.said).toMatchObject({
      hanging: { code: "LANE_CLOSED" },
      late: 0,
      after: { code: "LANE_CLOSED", name: "LaneError" },
    });
    expect(r.status).toBe(0);
    expect(s.left()).toEqual([]);
  });

  it("gives programs the caller's streams, with back-pressure", async () => {
    const s = stage();
    const r = await s.run(`
      import { PassThrough } from "node:stream";
      const lane = await create();
      const streams = () => ({ stdin: new PassThrough(), stdout: new PassThrough(), stderr: new PassThrough() });
      const a = streams(); let got = 0; a.stdout.on("data", (d) => (got += d.length));
      a.stdin.end(Buffer.alloc(3e6, "x"));
      report("cat", [await lane.interactiveExec(["sh", "-c", "cat; echo done >&2; exit 9"], a), got, String(a.stderr.read())]);
      const b = streams(); b.stdin.end();
      const slow = lane.interactiveExec(["sh", "-c", "head -c 5000000 /dev/zero"], b);
      await new Promise((ok) => setTimeout(ok, 1000));
      report("held", b.stdout.readableLength + b.stdout.writableLength < 600000);
      let m = 0; b.stdout.on("data", (d) => (m += d.length));
      report("slow", [await slow, m]);
      await lane.close();`);
    expect(r.said).toMatchObject({
      cat: [{ exitCode: 9 }, 3000000, "done\n"],
      held: true,
      slow: [{ exitCode: 0 }, 5000000],
    });
    expect(r.status).toBe(0);
  });

  it("says so when the guest dies", async () => {
    const s = stage({ guest: { dieAfterMs: 1500 } });
    const r = await s.run(`
      const lane = await create();
      report("exec", await failure(() => lane.exec("sleep 100")));
      report("later", await failure(() => lane.exec("true")));
      await lane.close();`);
    expect(r.err).toBe("");
    expect(r.said).toMatchObject({
      exec: { code: "CHANNEL_CLOSED" },
      later: { code: expect.stringMatching(/^(CHANNEL|LANE)_CLOSED$/) as string },
    });
    expect(r.status).toBe(0);
    expect(s.left()).toEqual([]);
  });

  it("that Sandcastle lost is closed after syncInTimeoutSeconds; one that it synced into lives", async () => {
    const s = stage();
    const r = await s.run(`
      const events = (to) => ({ syncInTimeoutSeconds: 10, onEvent: (e) => to.push(e.type) });
      const lost = [], kept = [];
      const a = await create(events(lost)), b = await create(events(kept));
      await b.exec("git init -q . && git -c user.name=a -c user.email=b commit -q --allow-empty -m x");
      report("head", (await b.exec("git rev-parse HEAD", { cwd: WT })).exitCode);
      await new Promise((ok) => setTimeout(ok, 11500));
      report("lost", [lost.includes("closed"), await failure(() => a.exec("true"))]);
      report("kept", [kept.includes("closed"), (await b.exec("echo here")).stdout]);
      await a.close(); await b.close();`);
    expect(r.said).toMatchObject({ head: 0, lost: [true, { code: "LANE_CLOSED" }], kept: [false, "here\n"] });
    expect(r.status).toBe(0);
  });
});

describe("a create that fails", () => {
  const failing = (options = "{}") => `report("error", await failure(() => create(${options})));`;

  it.each([
    ["no limactl", {}, '{ limactlPath: "/no/such/limactl" }', "LIMA_MISSING"],
    ["an old limactl", { version: "limactl version 2.1.4" }, "{}", "LIMA_TOO_OLD"],
    ["a limactl of unknown version", { version: "limactl version HEAD-1234567" }, "{}", "LIMA_UNKNOWN_VERSION"],
    ["an image that is not there", {}, '{ image: "nothing" }', "IMAGE_MISSING"],
    ["a mount in the effective configuration", { list: { mounts: [{ location: "/" }] } }, "{}", "CONFIG_REFUSED"],
    ["a start that fails", { start: "fail" }, "{}", "START_FAILED"],
    ["a start that hangs", { start: "hang" }, "{ startTimeoutSeconds: 5 }", "START_TIMEOUT"],
    ["a guest that never speaks", { guest: { mute: true } }, "{ startTimeoutSeconds: 8 }", "START_TIMEOUT"],
    ["somebody else in the guest's place", { guest: { impostor: true } }, "{}", "PEER_UNPROVEN"],
  ])("for %s leaves nothing, and says code, sentence and cure", async (_what, scenario, options, code) => {
    const s = stage(scenario);
    const r = await s.run(failing(options));
    const error = r.said["error"] as { code: string; message: string; cure: string; name: string };
    expect(error).toMatchObject({ name: "LaneError", code });
    expect(error.cure).toMatch(/\w+ \w+/);
    // Sandcastle shows nothing but the message, so all must be in it.
    expect(error.message).toContain(code);
    expect(error.message).toContain(error.cure);
    expect(r.status).toBe(0);
    expect(s.left()).toEqual([]);
  });

  it("may accept a limactl of unknown version when it is told to", async () => {
    const s = stage({ version: "limactl version HEAD-1234567" });
    const r = await s.run(
      `const lane = await create({ allowUnknownLima: true }); report("ok", (await lane.exec("echo ok")).stdout); await lane.close();`,
    );
    expect(r.said).toMatchObject({ ok: "ok\n" });
  });

  it.skipIf(process.getuid?.() !== 0)("refuses root", async () => {
    const { openLane } = await import("../../lib/open.js");
    const { resolveOptions } = await import("../../lib/options.js");
    const s = stage();
    const error = await openLane(resolveOptions({ home: `${s.dir}/root-home`, limactlPath: s.limactl })).then(
      () => undefined,
      (e: { code: string }) => e.code,
    );
    expect(error).toBe("LIMA_ROOT");
  });
});

describe("the environment's end", () => {
  it("of a worker thread destroys the worker's lanes", async () => {
    const s = stage();
    const r = await s.run(`
      import { Worker } from "node:worker_threads";
      const w = new Worker(\`
        import { parentPort, workerData } from "node:worker_threads";
        const { lima } = await import(workerData.url);
        const lane = await lima(workerData.options).create({ env: {} });
        parentPort.postMessage((await lane.exec("echo w")).stdout);
        process.exit(0);\`, { eval: true, workerData: { url: PACKAGE, options: OPTIONS } });
      w.on("message", (m) => report("message", m));
      w.on("error", (e) => report("error", String(e.stack)));
      await new Promise((ok) => w.on("exit", ok));
      report("end", true);`);
    expect(r.said).toMatchObject({ message: "w\n", end: true });
    expect(s.left()).toEqual([]);
  });
});
