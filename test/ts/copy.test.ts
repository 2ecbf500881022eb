// SPDX-License-Identifier: Apache-2.0
// What copies are asked with, against an engine that the test answers by hand: options, progress, and their ends.
import { afterEach, describe, expect, it, vi } from "vitest";
import type { CopyProgress } from "../../lib/copy.js";
import type { Lane } from "../../lib/lane.js";
import { openLane } from "../../lib/open.js";
import { resolveOptions, type LimaOptions } from "../../lib/options.js";
import { lima } from "../../lib/provider.js";
import { FakeEngine, rejection, tick, type Call } from "./support/fake-engine.js";

// The engine that lima() takes when none is given.
const shared = vi.hoisted(() => ({ engine: undefined as unknown }));
vi.mock("../../lib/engine.js", async (original) => ({ ...(await original<object>()), engine: () => shared.engine }));

const open: Lane[] = [];

async function laneOn(engine: FakeEngine, options: LimaOptions = {}): Promise<Lane> {
  const lane = await openLane(resolveOptions({ memoryGiB: 1, ...options }), { engine: engine.asEngine() });
  open.push(lane);
  return lane;
}

afterEach(async () => {
  for (const lane of open.splice(0)) await lane.close();
  vi.restoreAllMocks();
});

type Options = Record<string, unknown>;
/** Each kind of copy: its operation in the engine, and a call of it. */
const CALLS: [string, string, (lane: Lane, options?: Options) => Promise<unknown>][] = [
  ["copyIn", "copyIn", (lane, options) => lane.copyIn("/h", "/g", options)],
  ["copyFileOut", "copyOut", (lane, options) => lane.copyFileOut("/g", "/h", options)],
  ["copyOut", "copyTreeOut", (lane, options) => lane.copyOut("/g", "/h", options)],
];
const TIB = 2 ** 40;

describe("options", () => {
  const bad: [string, Options, RegExp][] = [
    ...CALLS.flatMap(([name]): [string, Options, RegExp][] => [
      [name, { onProgress: 5 }, /onProgress must be a function, not the number 5/],
      [name, { signal: {} }, /signal must be an AbortSignal/],
    ]),
    ["copyIn", { ignore: "node_modules" }, /ignore must be an array of patterns, not a string/],
    ["copyIn", { ignore: [1] }, /ignore\[0\] must be a string/],
    ["copyIn", { ignore: ["a", ""] }, /ignore\[1\] must be a pattern of 1 to 4096 characters, not of 0/],
    ["copyIn", { ignore: ["a".repeat(4097)] }, /not of 4097/],
    ["copyIn", { ignore: ["a\0b"] }, /ignore\[0\] contains a NUL/],
    ["copyIn", { ignore: Array(1025).fill("x") }, /at most 1024 patterns, not of 1025/],
    ...(
      [
        ["copyFileOut", "maxBytes", TIB],
        ["copyOut", "maxBytes", TIB],
        ["copyOut", "maxEntries", 10_000_000],
        ["copyOut", "maxDepth", 128],
      ] as const
    ).flatMap(([call, name, most]) =>
      [0, -1, 1.5, most + 1, NaN, Infinity, "1", null].map((value): [string, Options, RegExp] => [
        call,
        { [name]: value },
        new RegExp(`${name} must be a whole number from 1 to ${most}`),
      ]),
    ),
    ["copyOut", { executables: "yes" }, /executables must be true or false, not a string/],
  ];
  it.each(bad)("%s %j is BAD_OPTION, before anything is asked", async (name, options, message) => {
    const engine = new FakeEngine();
    const lane = await laneOn(engine);
    const asked = engine.calls.length;
    const call = CALLS.find(([n]) => n === name)![2];
    expect(await rejection(call(lane, options))).toMatchObject({ code: "BAD_OPTION", message: expect.stringMatching(message) });
    expect(engine.calls).toHaveLength(asked);
  });

  it.each([
    ["copyIn", { ignored: [] }, /option of copyIn\(\) "ignored"; did you mean ignore\?/],
    ["copyIn", { exclude: [] }, /did you mean ignore\?/],
    ["copyIn", { maxBytes: 5 }, /no option of copyIn\(\) "maxBytes"/],
    ["copyFileOut", { onprogress: () => 0 }, /did you mean onProgress\?/],
    ["copyFileOut", { ignore: [] }, /no option of copyFileOut\(\) "ignore"/],
    ["copyFileOut", { maxEntries: 5 }, /no option of copyFileOut\(\) "maxEntries"/],
    ["copyOut", { maxdepth: 5 }, /did you mean maxDepth\?/],
  ])("%s %j is UNKNOWN_OPTION", async (name, options, message) => {
    const lane = await laneOn(new FakeEngine());
    const call = CALLS.find(([n]) => n === name)![2];
    expect(await rejection(call(lane, options))).toMatchObject({ code: "UNKNOWN_OPTION", message: expect.stringMatching(message) });
  });

  it.each(CALLS)("%s refuses options that are no object", async (name, _op, call) => {
    const lane = await laneOn(new FakeEngine());
    for (const options of [null, 5, "x", []])
      expect((await rejection(call(lane, options as never))).message).toContain(`the options of ${name}() must be an object`);
  });

  it("at their bounds go to the engine, each read once", async () => {
    const engine = new FakeEngine();
    const lane = await laneOn(engine, { maxCopyOutBytes: 10, copyOutRoot: "/root-of-it" });
    let reads = 0;
    const ignore = Array<string>(1024).fill("x".repeat(4096));
    const copies = [
      lane.copyIn("/h", "/g", { get ignore() { reads++; return ignore; }, onProgress: () => undefined }),
      lane.copyIn("/h", "/g", { ignore: [], onProgress: undefined, signal: undefined }),
      lane.copyFileOut("/g", "/h", { maxBytes: 1 }),
      lane.copyFileOut("/g", "/h", { maxBytes: TIB, onProgress: () => undefined }),
      lane.copyOut("/g", "/h", { maxBytes: 1, maxEntries: 1, maxDepth: 1, executables: false }),
      lane.copyOut("/g", "/h", { maxBytes: TIB, maxEntries: 10_000_000, maxDepth: 128, executables: true }),
      lane.copyOut("/g", "/h"),
    ];
    const [inAll, inNone, outLeast, outMost, treeLeast, treeMost, tree] = engine.calls.slice(-7).map((c) => c.params);
    expect(inAll).toEqual({ lane: lane.name, hostPath: "/h", guestPath: "/g", ignore, progress: true });
    expect(inAll!["ignore"]).not.toBe(ignore);
    expect(inNone).toEqual({ lane: lane.name, hostPath: "/h", guestPath: "/g" });
    expect(outLeast).toEqual({ lane: lane.name, hostPath: "/h", guestPath: "/g", maxBytes: 1, root: "/root-of-it" });
    expect(outMost).toMatchObject({ maxBytes: TIB, progress: true });
    expect(treeLeast).toMatchObject({ maxBytes: 1, maxEntries: 1, maxDepth: 1, executables: false });
    expect(treeMost).toMatchObject({ maxBytes: TIB, maxEntries: 10_000_000, maxDepth: 128, executables: true });
    expect(tree).toEqual({ lane: lane.name, hostPath: "/h", guestPath: "/g", maxBytes: 10, root: "/root-of-it" });
    expect(reads).toBe(1);
    for (const call of engine.calls.slice(-7)) call.resolve({ bytes: 1, files: 1 });
    await Promise.all(copies);
  });
});

describe.each(CALLS)("%s", (name, op, call) => {
  const started = async (options: Options): Promise<{ engine: FakeEngine; lane: Lane; done: Promise<unknown>; copy: Call }> => {
    const engine = new FakeEngine();
    const lane = await laneOn(engine);
    const done = call(lane, options);
    done.catch(() => undefined);
    return { engine, lane, done, copy: engine.last(op) };
  };

  it("resolves with what was copied", async () => {
    const { done, copy } = await started({});
    const result = { bytes: 7, files: 2, ...(name === "copyIn" ? { changed: 1, changedPath: "/h/x" } : {}) };
    copy.resolve(result);
    expect(await done).toEqual(result);
  });

  it("tells progress in order, at most ten times in any second, and nothing after the end", async () => {
    let now = 5000;
    vi.spyOn(performance, "now").mockImplementation(() => now);
    const told: [number, CopyProgress][] = [];
    const { done, copy } = await started({ onProgress: (p: CopyProgress) => told.push([now, p]) });
    for (let i = 0; i < 100; i++, now += 37) copy.hooks.onProgress?.({ bytes: i, files: 1, totalBytes: 100 });
    expect(told[0]).toEqual([5000, { bytes: 0, files: 1, totalBytes: 100 }]);
    expect(told.map(([, p]) => p.bytes)).toEqual(told.map(([, p]) => p.bytes).sort((a, b) => a - b));
    for (const [at] of told) expect(told.filter(([t]) => t >= at && t < at + 1000).length).toBeLessThanOrEqual(10);
    expect(told.length).toBeGreaterThanOrEqual(35); // of 3.7 s
    const before = told.length;
    now += 5000;
    copy.resolve({ bytes: 1, files: 1 });
    await done;
    expect(told).toHaveLength(before);
  });

  it("that never begins for a signal which has said so already is ABORTED", async () => {
    const engine = new FakeEngine();
    const lane = await laneOn(engine);
    const done = call(lane, { signal: AbortSignal.abort(new Error("no")) });
    done.catch(() => undefined);
    await tick();
    expect(engine.count(op)).toBe(0);
    const error = await rejection(done);
    expect(error).toMatchObject({ code: "ABORTED", lane: lane.name, message: `${name} was aborted by its signal` });
    expect((error.cause as Error).message).toBe("no");
  });

  it("that is aborted is cancelled, tells nothing more, and rejects when the core has cleaned up", async () => {
    const controller = new AbortController();
    const told: CopyProgress[] = [];
    const { engine, done, copy } = await started({ signal: controller.signal, onProgress: (p: CopyProgress) => told.push(p) });
    let settled = false;
    done.then(() => (settled = true), () => (settled = true));
    copy.hooks.onProgress?.({ bytes: 1, files: 1 });
    controller.abort("enough");
    controller.abort("again");
    copy.hooks.onProgress?.({ bytes: 2, files: 1 });
    await tick();
    expect(settled).toBe(false);
    expect(engine.last("cancel").params).toMatchObject({ exec: copy.id, code: "ABORTED" });
    expect(engine.count("cancel")).toBe(1);
    copy.fail("ABORTED", "from the core");
    expect(await rejection(done)).toMatchObject({ code: "ABORTED", cause: "enough", message: `${name} was aborted by its signal` });
    expect(told).toHaveLength(1);
  });

  it("leaves no listener at the signal", async () => {
    const { signal } = new AbortController();
    const add = vi.spyOn(signal, "addEventListener");
    const remove = vi.spyOn(signal, "removeEventListener");
    const { done, copy } = await started({ signal });
    expect([add.mock.calls.length, remove.mock.calls.length]).toEqual([1, 0]);
    copy.resolve({ bytes: 1, files: 1 });
    await done;
    expect(remove.mock.calls[0]?.[1]).toBe(add.mock.calls[0]?.[1]);
  });

  it.each([
    ["throws", (): never => { throw new Error("boo"); }],
    ["rejects", (): Promise<never> => Promise.reject(new Error("boo"))],
  ])("whose onProgress %s is cancelled once and rejects with CALLBACK_THREW", async (_what, onProgress) => {
    let calls = 0;
    const { engine, done, copy } = await started({ onProgress: () => { calls++; return onProgress(); } });
    copy.hooks.onProgress?.({ bytes: 1, files: 1 });
    await tick();
    copy.hooks.onProgress?.({ bytes: 2, files: 1 });
    expect([calls, engine.count("cancel")]).toEqual([1, 1]);
    expect(engine.last("cancel").params).toMatchObject({ exec: copy.id, code: "CALLBACK_THREW" });
    copy.fail("ABORTED", "from the core");
    const error = await rejection(done);
    expect(error).toMatchObject({ code: "CALLBACK_THREW", message: expect.stringContaining("onProgress threw, and the copy was cancelled: boo") });
    expect((error.cause as Error).message).toBe("boo");
  });

  it("whose onProgress throws when all is done rejects all the same", async () => {
    const { done, copy } = await started({ onProgress: () => { throw new Error("boo"); } });
    copy.hooks.onProgress?.({ bytes: 1, files: 1 });
    copy.resolve({ bytes: 1, files: 1 });
    expect((await rejection(done)).code).toBe("CALLBACK_THREW");
  });

  it("tells nothing once close has begun", async () => {
    const told: CopyProgress[] = [];
    const { lane, done, copy } = await started({ onProgress: (p: CopyProgress) => told.push(p) });
    copy.hooks.onProgress?.({ bytes: 1, files: 1 });
    void lane.close();
    copy.hooks.onProgress?.({ bytes: 2, files: 1 });
    copy.fail("LANE_CLOSED");
    expect((await rejection(done)).code).toBe("LANE_CLOSED");
    expect(told).toHaveLength(1);
  });
});

describe("Sandcastle's copies", () => {
  it("resolve to nothing, take no options, and tell of files that changed", async () => {
    const engine = new FakeEngine();
    shared.engine = engine;
    const events: unknown[] = [];
    const provider = lima({ memoryGiB: 1, onEvent: (e) => events.push(e) }) as unknown as {
      create(o: object): Promise<{ copyIn(...a: unknown[]): Promise<unknown>; copyFileOut(...a: unknown[]): Promise<unknown>; close(): Promise<void> }>;
    };
    const handle = await provider.create({ env: {} });
    const last = (op: string): Call => engine.last(op);
    const answers: unknown[] = [];
    for (const [call, op, result] of [
      [() => handle.copyIn("/h", "/g"), "copyIn", { bytes: 1, files: 1, changed: 0 }],
      [() => handle.copyIn("/h", "/g"), "copyIn", { bytes: 1, files: 3, changed: 2, changedPath: "/h/x" }],
      [() => handle.copyFileOut("/g", "/h", { maxBytes: 1 }), "copyOut", { bytes: 1, files: 1 }],
    ] as const) {
      const done = call();
      last(op).resolve(result);
      answers.push(await done);
    }
    expect(answers).toEqual([undefined, undefined, undefined]);
    expect(last("copyOut").params["maxBytes"]).toBe(2 ** 28);
    expect(events).toEqual([
      {
        type: "notice",
        lane: "agent-lane-test0000-test0000",
        timeMs: expect.any(Number),
        message: "copyIn: 2 files changed while being read, first /h/x: cut or padded with zeros to the size at first",
      },
    ]);
    await handle.close();
  });

  it("that changed become a process warning without a listener", async () => {
    const engine = new FakeEngine();
    shared.engine = engine;
    const warn = vi.spyOn(process, "emitWarning").mockImplementation(() => undefined);
    const handle = await (lima({ memoryGiB: 1 }) as unknown as { create(o: object): Promise<Lane> }).create({ env: {} });
    const done = handle.copyIn("/h", "/g");
    engine.last("copyIn").resolve({ bytes: 1, files: 1, changed: 1, changedPath: "/h/y" });
    await done;
    expect(warn.mock.calls.map(String)).toEqual([expect.stringMatching(/^copyIn: a file changed .*\/h\/y.*AgentLaneWarning$/)]);
    await handle.close();
  });
});
