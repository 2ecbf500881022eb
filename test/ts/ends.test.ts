// SPDX-License-Identifier: Apache-2.0
// The process's exit and an uncaught exception at each stage of a lane, and what holds a process that has one.
import { beforeAll, describe, expect, it, vi } from "vitest";
import type { Stage } from "./support/stage.js";
import { stages } from "./support/stages.js";

// Many processes after another, on machines that are busy.
vi.setConfig({ testTimeout: 60_000 });

const stage = stages();
let s: Stage;
beforeAll(() => {
  s = stage({ guest: "agent" });
});

describe("the process ends", () => {
  const event = (type: string): string => `create({ onEvent: (e) => { if (e.type === "${type}") end(); } })`;
  const during = (call: string): string =>
    `create().then((lane) => { setTimeout(end, 200); return lane.${call}; }).then(() => report("it ended by itself"))`;
  const copying = (call: string): string =>
    `createLane({ ...OPTIONS, maxCopyOutBytes: 2 ** 30 }).then((lane) => { const o = { onProgress: end }; return lane.${call}; }).then(() => report("it ended by itself"))`;
  const stages: [string, string][] = [
    ...["queued", "creating", "booting", "connecting", "ready"].map((type): [string, string] => [type, event(type)]),
    ["with a command running", during(`exec("sleep 100")`)],
    ["with lines coming", during(`exec("while :; do echo x; done", { onLine() {} })`)],
    ["inside onLine", `create().then((lane) => lane.exec("echo x; sleep 100", { onLine() { queueMicrotask(end); } }))`],
    ["copying in", copying(`copyIn(WT + "/big", WT + "/there", o)`)],
    ["copying out", copying(`copyFileOut(WT + "/big", WT + "/out/back", o)`)],
    ["closing", `create().then((lane) => { const done = lane.close(); setImmediate(end); return done; })`],
  ];
  const ends: [string, string, number][] = [
    ["process.exit", "process.exit(7)", 7],
    ["an uncaught exception", "setImmediate(() => { throw new Error('a bug of the caller'); })", 1],
  ];

  describe.each(ends)("by %s", (_how, end, status) => {
    it.each(stages)("%s: nothing is left", async (_at, work) => {
      const r = await s.run(`
        import { mkdirSync, writeFileSync } from "node:fs";
        const { createLane } = await import(PACKAGE);
        writeFileSync(WT + "/big", Buffer.alloc(400e6, "x")); mkdirSync(WT + "/out", { recursive: true });
        let ended = false;
        const end = () => { if (!ended) { ended = true; report("end"); ${end}; } };
        ${work}.catch(() => undefined);`);
      expect(r.said).toEqual({ end: null });
      expect(r).toMatchObject({ status, signal: null });
      expect(r.err).toMatch(status === 1 ? /a bug of the caller/ : /^$/);
      expect(s.left()).toEqual([]);
    });
  });
});

// A little for copies, and the streams of a caller.
const FILES = `
  import { mkdirSync, writeFileSync } from "node:fs";
  import { PassThrough, Readable } from "node:stream";
  writeFileSync(WT + "/some", "x".repeat(3e6)); mkdirSync(WT + "/out", { recursive: true });
`;

describe("a process with a lane", () => {
  it.each([
    ["exec", `lane.exec("sleep 0.5; echo late").then((r) => report("answer", r.stdout));`, { answer: "late\n" }],
    [
      "onLine",
      `lane.exec("sleep 0.5; echo late", { onLine: (l) => report("line", l) }).then((r) => report("answer", r.stdout));`,
      { line: "late", answer: "late" },
    ],
    ["copyIn", `lane.copyIn(WT + "/some", WT + "/there").then(() => report("answer", 1));`, { answer: 1 }],
    ["copyFileOut", `lane.copyFileOut(WT + "/some", WT + "/out/back").then(() => report("answer", 1));`, { answer: 1 }],
    [
      "interactiveExec",
      `const stdout = new PassThrough();
       const streams = { stdin: Readable.from([]), stdout, stderr: new PassThrough() };
       lane.interactiveExec(["sh", "-c", "sleep 0.5; echo late"], streams)
         .then((r) => report("answer", [r.exitCode, String(stdout.read())]));`,
      { answer: [0, "late\n"] },
    ],
    ["close", `lane.close().then(() => report("answer", 1));`, { answer: 1 }],
  ])("is held by a pending %s", async (_what, call, said) => {
    const r = await s.run(`${FILES} create().then((lane) => { ${call} });`);
    expect(r.err).toBe("");
    expect(r.said).toEqual(said);
    expect(r.status).toBe(0);
    expect(s.left()).toEqual([]);
  });

  it("is not held by one that is idle after calls of every kind, good and bad", async () => {
    const own = stage({ guest: "agent" });
    const r = await own.run(`${FILES}
      const lane = await create();
      await lane.exec("cat", { stdin: "x" });
      await lane.exec("seq 1 1000", { onLine() {} });
      report("cwd", (await failure(() => lane.exec("true", { cwd: "/no/such/place" }))).code);
      const onLine = () => { throw new Error("no"); };
      report("threw", (await failure(() => lane.exec("echo a; sleep 60", { onLine }))).code);
      const streams = { stdin: Readable.from(["a"]), stdout: new PassThrough().resume(), stderr: new PassThrough() };
      await lane.interactiveExec(["cat"], streams);
      await lane.copyIn(WT + "/some", WT + "/there");
      await lane.copyFileOut(WT + "/some", WT + "/out/back");
      report("out", (await failure(() => lane.copyFileOut(WT + "/none", WT + "/out/none"))).code);
      report("create", (await failure(() => create({ limactlPath: "/no/such/limactl" }))).code);
      report("idle");`);
    expect(r.err).toBe("");
    expect(r.said).toEqual({
      cwd: "EXEC_FAILED",
      threw: "CALLBACK_THREW",
      out: "GUEST_FILE_MISSING",
      create: "LIMA_MISSING",
      idle: null,
    });
    expect(r).toMatchObject({ status: 0, signal: null });
    expect(own.left()).toEqual([]);
  });

  it("is held by a pending create", async () => {
    const r = await s.run(`create().then((lane) => report("lane", lane.worktreePath === WT));`);
    expect(r.said).toEqual({ lane: true });
    expect(r.status).toBe(0);
    expect(s.left()).toEqual([]);
  });
});
