// SPDX-License-Identifier: Apache-2.0
// Arguments that are nothing of what was asked for, and callbacks that throw what nobody expects: each call ends, at
// once and with a LaneError that names the argument.
import { beforeAll, describe, expect, it } from "vitest";
import { stages } from "./support/stages.js";

const stage = stages();

/** A script with one lane, and `wrong(name, work)`, which reports "CODE: message" or what else came of it. */
const script = (body: string): string => `
  import { runInNewContext } from "node:vm";
  import { PassThrough, Readable, Writable } from "node:stream";
  import { chdir } from "node:process";
  import { mkdirSync, rmdirSync } from "node:fs";
  process.on("unhandledRejection", (e) => report("unhandled", String(e)));
  const { createLane } = await import(PACKAGE);
  const lane = await createLane(OPTIONS);
  const bare = Object.create(null), big = "x".repeat(1 << 20);
  const late = new Promise((ok) => setTimeout(ok, 15_000, "it hangs").unref());
  async function wrong(name, work) {
    try { report(name, (await Promise.race([(async () => work())(), late])) ?? "it succeeded"); }
    catch (e) { report(name, e instanceof LaneError ? e.code + ": " + e.message : "raw: " + e); }
  }
  ${body}
  await lane.close();`;

describe("arguments of a wrong kind", () => {
  let said: Record<string, string>;
  beforeAll(async () => {
    const r = await stage({ guest: "agent" }).run(
      script(`
        const deaf = { addEventListener() {}, aborted: false };
        const streams = { stdin: Readable.from([]), stdout: new PassThrough(), stderr: new PassThrough() };
        for (const timeoutMs of [bare, big, 5n, Symbol("s"), NaN])
          await wrong("timeoutMs " + typeof timeoutMs, () => lane.exec("true", { timeoutMs }));
        for (const [name, env] of Object.entries({ "null": null, number: 5, array: ["A=1"], map: new Map([["A", "1"]]),
          missing: { A: undefined }, zero: { A: "hunter2\\0" }, deep: { A: { B: "hunter2\\0" } } }))
          await wrong("env " + name, () => lane.exec("true", { env }));
        await wrong("spawn env", () => lane.spawn("true", { env: null }).exited);
        await wrong("limits", () => lane.exec("true", { limits: [] }));
        await wrong("signal", () => lane.exec("true", { signal: deaf }));
        await wrong("spawn signal", () => lane.spawn("true", { signal: deaf }));
        await wrong("lines signal", () => lane.lines("true", { signal: deaf }).next());
        await wrong("interactive signal", () => lane.interactiveExec(["true"], { ...streams, signal: deaf }));
        await wrong("interactive stdin", () => lane.interactiveExec(["true"], { ...streams, stdin: { read() {} } }));
        await wrong("interactive stdout", () => lane.interactiveExec(["true"], { ...streams, stdout: 5 }));
        await wrong("interactive args", () => lane.interactiveExec(Array(2000).fill("x"), streams));
        await wrong("spawn args", () => lane.spawn(["echo", , "b"]));
        await wrong("spawn many", () => lane.spawn(Array(2000).fill("x")));
        await wrong("tty", () => lane.spawn("true", { tty: null }));
        await wrong("rows", () => lane.spawn("true", { tty: { rows: bare, columns: 80 } }));
        await wrong("check", () => lane.lines("false", { check: 0 }).next());
        await wrong("command", () => lane.exec("x".repeat(600_000)));
        const sleeping = lane.spawn("sleep 60");
        await wrong("tree", () => sleeping.kill("SIGTERM", { tree: "yes" }));
        await wrong("kill", () => sleeping.kill(bare));
        await wrong("kill word", () => sleeping.kill("constructor"));
        await wrong("resize", () => sleeping.resize());
        await sleeping[Symbol.asyncDispose]();
        await wrong("copyIn", () => lane.copyIn("", WT + "/all"));
        await wrong("copyFileOut", () => lane.copyFileOut("/etc/hostname", ""));
        mkdirSync(WT + "/gone"); chdir(WT + "/gone"); rmdirSync(WT + "/gone");
        await wrong("no directory", () => lane.copyIn("here", WT + "/all"));
        chdir(WT);
        await wrong("inherited", () => lane.exec("pwd", Object.freeze(Object.create({ cwd: "/" }))).then((r) => r.stdout));
        const bytes = runInNewContext("new Uint8Array([65, 66])");
        await wrong("other realm", () => lane.exec("cat", { stdin: bytes }).then((r) => r.stdout));`),
    );
    expect(r.err).toBe("");
    ({ said } = r);
  }, 100_000);

  it.each([
    ["timeoutMs object", /^BAD_OPTION: timeoutMs must be .*, not an object$/],
    ["timeoutMs string", /^BAD_OPTION: timeoutMs must be .*, not a string$/],
    ["timeoutMs bigint", /^BAD_OPTION: timeoutMs must be .*, not a bigint$/],
    ["timeoutMs symbol", /^BAD_OPTION: timeoutMs must be .*, not a symbol$/],
    ["timeoutMs number", /^BAD_OPTION: timeoutMs must be .*, not the number NaN$/],
    ["env null", /^BAD_OPTION: env must be an object of names and texts, not null/],
    ["env number", /^BAD_OPTION: env must be .*, not the number 5/],
    ["env array", /^BAD_OPTION: env must be .*, not an array/],
    ["env map", /^BAD_OPTION: env must be .*, not an object/],
    ["env missing", /^BAD_OPTION: env: A must be a text, not undefined/],
    ["env zero", /^BAD_OPTION: env: A contains a NUL/],
    ["env deep", /^BAD_OPTION: env: A must be a text, not an object/],
    ["spawn env", /^BAD_OPTION: env must be /],
    ["limits", /^BAD_OPTION: limits must be an object, not an array/],
    ["signal", /^BAD_OPTION: signal must be an AbortSignal/],
    ["spawn signal", /^BAD_OPTION: signal must be an AbortSignal/],
    ["lines signal", /^BAD_OPTION: signal must be an AbortSignal/],
    ["interactive signal", /^BAD_OPTION: signal must be an AbortSignal/],
    ["interactive stdin", /^BAD_OPTION: stdin must be a readable stream/],
    ["interactive stdout", /^BAD_OPTION: stdout must be a writable stream/],
    ["interactive args", /^BAD_OPTION: args must be an array of at most \d+ texts, not of 2000/],
    ["spawn args", /^BAD_OPTION: command\[1\] must be a string, not undefined/],
    ["spawn many", /^BAD_OPTION: command must be an array of at most/],
    ["tty", /^BAD_OPTION: tty must be .*, not null/],
    ["rows", /^BAD_OPTION: rows must be .*, not an object/],
    ["check", /^BAD_OPTION: check must be true or false, not the number 0/],
    ["command", /^BAD_OPTION: the request .* too long/],
    ["tree", /^BAD_OPTION: tree must be true or false/],
    ["kill", /^BAD_OPTION: signal must be .*, not an object/],
    ["kill word", /^BAD_OPTION: signal must be .*, not "constructor"/],
    ["resize", /^BAD_OPTION: size must be .*, not undefined/],
    ["copyIn", /^BAD_OPTION: hostPath must be a path, not an empty text/],
    ["copyFileOut", /^BAD_OPTION: hostPath must be a path/],
    ["no directory", /^BAD_OPTION: hostPath is a relative path/],
    ["inherited", /^\/\n$/],
    ["other realm", /^AB$/],
  ])("%s", (name, wanted) => expect(said[name]).toMatch(wanted));

  it("never show the value of a variable", () => expect(JSON.stringify(said)).not.toContain("hunter2"));
});

describe("what callers' functions throw", () => {
  it("ends the command whatever it is, also later and from another context", async () => {
    const r = await stage({ guest: "agent" }).run(
      script(`
        const mute = new Error("x"); Object.defineProperty(mute, "message", { get() { throw 1; } });
        const thrown = { bare, mute, undefined, zero: new Error("a\\0b"), big: new Error(big) };
        for (const [name, what] of Object.entries(thrown)) {
          await wrong(name, () => lane.exec("echo a; exec sleep 60", { onLine() { throw what; } }));
          const stdin = new Readable({ read() { this.destroy(what ?? new Error("none")); } });
          await wrong("stdin " + name, () => lane.exec("cat; exec sleep 60", { stdin }));
        }
        const async = runInNewContext("async () => { throw new Error('elsewhere'); }");
        await wrong("context", () => lane.exec("echo a; exec sleep 60", { onLine: async }));
        const thenable = { then(_, no) { no(new Error("thenable")); } };
        await wrong("thenable", () => lane.exec("echo a; exec sleep 60", { onLine: () => thenable }));
        const out = { stdin: Readable.from([]), stdout: new Writable({ write() { throw mute; } }), stderr: new PassThrough() };
        await wrong("write", () => lane.interactiveExec(["echo", "a"], out).then((r) => "status " + r.exitCode));
        const objects = { ...out, stdin: Readable.from([{ a: 1 }]), stdout: new PassThrough() };
        await wrong("objects", () => lane.interactiveExec(["cat"], objects));`),
    );
    expect(r.err).toBe("");
    const { said } = r as { said: Record<string, string> };
    for (const name of ["bare", "mute", "undefined", "zero", "big", "context", "thenable"]) {
      expect(said[name]).toMatch(/^CALLBACK_THREW: onLine threw/);
      expect(said[name]?.length).toBeLessThan(600);
    }
    for (const name of ["bare", "mute", "undefined", "zero", "big"])
      expect(said[`stdin ${name}`]).toMatch(/^STDIN_FAILED: /);
    expect(said["zero"]).toMatch(/a b$/);
    expect(said["write"]).toMatch(/^(status 0|ABORTED: )/);
    expect(said["objects"]).toMatch(/^STDIN_FAILED: .* an object instead of bytes/);
    expect(said).not.toHaveProperty("unhandled");
  }, 100_000);

  it("is a warning when it is onEvent, also when that is async", async () => {
    const s = stage();
    const r = await s.run(`
      process.on("warning", (w) => report(w.name, w.message));
      const lane = await create({ onEvent: async (e) => { throw Object.assign(Object.create(null), { message: e.type }); } });
      await lane.close(); report("closed");`, { NODE_NO_WARNINGS: "1" });
    expect(r).toMatchObject({ status: 0, err: "" });
    expect(r.said["AgentLaneWarning"]).toMatch(/^onEvent threw for "(\w+)": \1$/);
    expect(r.said).toHaveProperty("closed");
    expect(s.left()).toEqual([]);
  });
});
