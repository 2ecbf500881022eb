// SPDX-License-Identifier: Apache-2.0
// Every option of every call: what is just inside its bounds is taken, what is just outside, or of another kind, is BAD_OPTION with the
// option's name. The interfaces are read from the source, so that no option is without its line here. (Those of lima(): options.test.ts.)
import { PassThrough } from "node:stream";
import { describe, expect, it } from "vitest";
import { exportsOf } from "../../scripts/lib/api.mjs";
import { createLane } from "../../lib/create.js";
import type { Engine } from "../../lib/engine.js";
import { LaneError } from "../../lib/errors.js";
import { Lane } from "../../lib/lane.js";
import { OPTION_NAMES, resolveOptions } from "../../lib/options.js";
import { checkQueueTime } from "../../lib/rules.js";
import { FakeEngine } from "./support/fake-engine.js";

type Values = { readonly bad: readonly unknown[]; readonly good: readonly unknown[] };

/** Numbers from `least` to `most`; whole ones unless `part` says otherwise. */
const number = (least: number, most: number, part?: number): Values => ({
  bad: [least - (part ?? 1), most + 1, NaN, Infinity, String(least), null, {}, ...(part === undefined ? [least + 0.5] : [])],
  good: [least, most, ...(part === undefined ? [] : [least + part])],
});
const flag: Values = { bad: [1, "yes", null, {}], good: [true, false] };
const func: Values = { bad: [1, "f", null, {}], good: [() => undefined] };
const signal: Values = { bad: [null, {}, "x", new AbortController()], good: [new AbortController().signal] };
const environment: Values = { bad: [null, 5, [], { "A-B": "1" }, { A: 1 }, { A: "x\0" }], good: [{}, { A: "" }] };
const cwd: Values = { bad: [1, null, "relative", "/a\0b"], good: ["/", "/tmp/x"] };
const HOUR = 3_600_000;
const TIB = 2 ** 40;

const CALLS: Record<string, Record<string, Values>> = {
  ExecOptions: {
    onLine: func,
    onStderrLine: func,
    cwd,
    sudo: flag,
    stdin: { bad: [1, null, {}, true], good: ["", "x", Buffer.from("x"), new PassThrough()] },
    env: environment,
    signal,
    timeoutMs: number(1, 2 ** 31 - 1),
    killGraceMs: number(0, HOUR),
    holdGraceMs: number(0, HOUR),
    leaveDaemons: flag,
    maxOutputBytes: number(1, 512 * 2 ** 20),
    limits: { bad: [1, null, [], "x", { more: 1 }], good: [{}] },
  },
  ExecLimits: { processes: number(1, 2 ** 22), memoryBytes: number(2 ** 20, 2 ** 50), cpus: number(0.01, 1024, 0.005) },
  SpawnOptions: { tty: { bad: [1, null, "x", {}, { rows: 0, columns: 80 }, { rows: 24, columns: 65536 }], good: [true, false, { rows: 1, columns: 65535 }] } },
  LinesOptions: { check: flag },
  InteractiveOptions: {
    stdin: { bad: [null, {}, "x"], good: [new PassThrough()] },
    stdout: { bad: [null, {}, "x"], good: [new PassThrough()] },
    stderr: { bad: [null, {}, "x"], good: [new PassThrough()] },
    cwd,
    signal,
  },
  CopyOptions: { onProgress: func, signal },
  CopyInOptions: {
    ignore: { bad: [1, null, "x", {}, [1], [""], ["x\0"], ["x".repeat(4097)], Array(1025).fill("x")], good: [[], ["x".repeat(4096)], Array(1024).fill("x")] },
  },
  CopyFileOutOptions: { maxBytes: number(1, TIB) },
  CopyOutOptions: { maxBytes: number(1, TIB), maxEntries: number(1, 10_000_000), maxDepth: number(1, 128), executables: flag },
  ProjectImage: {
    extends: { bad: [1, null, "", "x".repeat(5000)], good: ["base", "/images/base"] },
    setup: { bad: [1, null, "", " ", "x\0", "x".repeat(32769)], good: ["x", "x".repeat(32768)] },
    inputs: { bad: [1, null, "x", ["/etc/passwd"], ["../x"], ["a/../b"], [".git/config"], [""], Array(1001).fill("x")], good: [[], ["a/b"], Array(1000).fill("x")] },
    directory: { bad: [1, null, "relative", ""], good: ["/project"] },
    project: { bad: [1, null, "", " ", "a\nb", "x".repeat(201)], good: ["x", "x".repeat(200)] },
    env: environment,
    network: { bad: [1, null, "closed", true], good: ["open", "none"] },
    timeoutMinutes: number(1, 1425),
  },
  CreateLaneOptions: { queueTimeoutSeconds: number(1, 86400) },
};

function open(): { lane: Lane; engine: FakeEngine } {
  const engine = new FakeEngine();
  const lane = new Lane(engine as unknown as Engine, resolveOptions(), { lane: "agent-lane-test0000-test0000", worktreePath: "/w" }, () => undefined);
  return { lane, engine };
}

const streams = () => ({ stdin: new PassThrough(), stdout: new PassThrough(), stderr: new PassThrough() });

/** What a call with this option does: the error it ends with, or undefined when it was taken. */
async function outcome(type: string, options: object): Promise<unknown> {
  const { lane, engine } = open();
  const calls: Record<string, () => unknown> = {
    ExecOptions: () => lane.exec("true", options),
    ExecLimits: () => lane.exec("true", { limits: options }),
    SpawnOptions: () => void lane.spawn("true", options).exited.catch(() => undefined),
    LinesOptions: () => lane.lines("true", options).next(),
    InteractiveOptions: () => lane.interactiveExec(["true"], { ...streams(), ...options }),
    CopyOptions: () => lane.copyIn("/a", "/b", options),
    CopyInOptions: () => lane.copyIn("/a", "/b", options),
    CopyFileOutOptions: () => lane.copyFileOut("/a", "/b", options),
    CopyOutOptions: () => lane.copyOut("/a", "/b", options),
    ProjectImage: () => void resolveOptions({ image: { setup: "true", ...options } }),
    CreateLaneOptions: () => checkQueueTime((options as { queueTimeoutSeconds?: unknown }).queueTimeoutSeconds as number),
  };
  try {
    const pending = Promise.resolve(calls[type]!());
    return await Promise.race([
      pending.then(() => undefined, (error: unknown) => error),
      new Promise<undefined>((done) => setTimeout(() => done(undefined), 50)),
    ]);
  } catch (error) {
    return error;
  } finally {
    for (const call of engine.calls) call.fail("ABORTED");
  }
}

describe.each(Object.entries(CALLS))("%s", (type, options) => {
  it.each(Object.entries(options))("%s", async (name, { bad, good }) => {
    for (const value of good) expect(await outcome(type, { [name]: value }), `${name}: ${String(value)}`).toBeUndefined();
    for (const value of bad) {
      const error = await outcome(type, { [name]: value });
      expect(error, `${name}: ${JSON.stringify(value)}`).toBeInstanceOf(LaneError);
      // A field of limits that does not exist has a code of its own.
      expect(["BAD_OPTION", "UNKNOWN_OPTION"]).toContain((error as LaneError).code);
      expect((error as LaneError).message).toMatch(new RegExp(name === "tty" ? "tty|rows|columns" : name));
    }
  });
});

it("has every option that there is", () => {
  const given = exportsOf().filter((one) => one.kind === "interface" && /Options$|^ExecLimits$|^ProjectImage$/.test(one.name) && one.name !== "LimaOptions");
  const names = Object.fromEntries(given.map((one) => [one.name, one.members.map((member) => member.name)]));
  expect(Object.fromEntries(Object.entries(CALLS).map(([type, options]) => [type, Object.keys(options)]))).toEqual(names);
});

it("createLane() refuses the option that is Sandcastle's, and knows all others", async () => {
  await expect(createLane({ syncInTimeoutSeconds: 10 } as object)).rejects.toMatchObject({ code: "BAD_OPTION", message: expect.stringContaining("sync-in") });
  await expect(createLane({ queueTimeoutSeconds: 0 })).rejects.toMatchObject({ code: "BAD_OPTION", message: expect.stringContaining("queueTimeoutSeconds") });
  for (const name of OPTION_NAMES.filter((each) => each !== "syncInTimeoutSeconds"))
    await expect(createLane({ [name]: Symbol("x") } as object)).rejects.toMatchObject({ code: "BAD_OPTION", message: expect.stringContaining(name) });
});
