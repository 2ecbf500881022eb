// SPDX-License-Identifier: Apache-2.0
// The handle against an engine that the test answers by hand: what is asked of the core, and what the caller gets to
// see.
import { inspect } from "node:util";
import { afterEach, describe, expect, it, vi } from "vitest";
import type { LaneEvent } from "../../lib/events.js";
import type { Lane } from "../../lib/lane.js";
import { openLane } from "../../lib/open.js";
import { resolveOptions, type LimaOptions } from "../../lib/options.js";
import { execResult, FakeEngine, rejection, tick } from "./support/fake-engine.js";

// A machine of 16 GiB with 12 to spare, whatever runs the tests.
vi.mock("node:os", async (original) => ({
  ...(await original<typeof import("node:os")>()),
  totalmem: () => 16 * 2 ** 30,
  freemem: () => 12 * 2 ** 30,
}));

const WT = "/home/agent/workspace";
const open: Lane[] = [];

async function laneOn(engine: FakeEngine, options: LimaOptions = {}, env: Record<string, string> = {}): Promise<Lane> {
  const lane = await openLane(resolveOptions(options), { env, engine: engine.asEngine(), syncInWatchdog: true });
  open.push(lane);
  return lane;
}

afterEach(async () => {
  for (const lane of open.splice(0)) await lane.close();
});

describe("create", () => {
  it("passes the options on, Sandcastle's variables over the option's", async () => {
    const engine = new FakeEngine();
    const onEvent = vi.fn();
    await laneOn(
      engine,
      { cpus: 2, env: { A: "own", B: "own" }, image: "base", copyOutRoot: "/x", onEvent },
      { B: "run", C: "run" },
    );
    const { params } = engine.last("create");
    expect(params).toMatchObject({
      cpus: 2,
      memoryGiB: 8,
      image: "base",
      syncInTimeoutSeconds: 150,
      env: { A: "own", B: "run", C: "run" },
    });
    expect(params).not.toHaveProperty("onEvent");
    expect(params).not.toHaveProperty("copyOutRoot");
  });

  it("refuses a bad variable before anything is asked of the core", async () => {
    const engine = new FakeEngine();
    const error = await rejection(openLane(resolveOptions(), { env: { "a b": "1" }, engine: engine.asEngine() }));
    expect(error.code).toBe("BAD_OPTION");
    expect(engine.calls).toHaveLength(0);
  });

  it("refuses more memory than there is, warns of more than is available, also without a listener, and once", async () => {
    const refused = await rejection(laneOn(new FakeEngine(), { memoryGiB: 17 }));
    expect(refused).toMatchObject({ code: "BAD_OPTION", message: expect.stringContaining("16.0 GiB of memory") });
    const events: LaneEvent[] = [];
    for (const memoryGiB of [12, 13]) await laneOn(new FakeEngine(), { memoryGiB, onEvent: (e) => events.push(e) });
    expect(events).toEqual([{ type: "warning", option: "memoryGiB", message: expect.stringMatching(/13, and 12.0 GiB/) }]);
    const warn = vi.spyOn(process, "emitWarning").mockImplementation(() => undefined);
    for (const memoryGiB of [12, 14, 14]) await laneOn(new FakeEngine(), { memoryGiB });
    expect(warn.mock.calls.map(String)).toEqual([expect.stringMatching(/^memoryGiB is 14, .*AgentLaneWarning$/)]);
    warn.mockRestore();
  });

  it("warns of a start timeout that outlives Sandcastle's patience, and only then", async () => {
    for (const [seconds, warnings] of [
      [115, 0],
      [116, 1],
    ] as const) {
      const events: LaneEvent[] = [];
      await laneOn(new FakeEngine(), { startTimeoutSeconds: seconds, onEvent: (e) => events.push(e) });
      expect(events.filter((e) => e.type === "warning" && e.option !== "memoryGiB")).toHaveLength(warnings);
    }
  });

  it("tells of the lane's life, also after it is open, and survives a listener that throws", async () => {
    const engine = new FakeEngine();
    const events: string[] = [];
    const warning = vi.spyOn(process, "emitWarning").mockImplementation(() => undefined);
    const lane = await laneOn(engine, {
      onEvent: (e) => {
        events.push(e.type);
        throw new Error("listener");
      },
    });
    const { onLane } = engine.last("create").hooks;
    onLane?.({ type: "booting", lane: lane.name, timeMs: 1 });
    onLane?.({ type: "closed", lane: lane.name, timeMs: 2, message: "the lane's lifetime of 1 minutes is over" });
    expect(events).toEqual(["booting", "closed"]);
    expect(warning).toHaveBeenCalledTimes(2);
    warning.mockRestore();
    const error = await rejection(lane.exec("true"));
    expect(error.code).toBe("LANE_CLOSED");
    expect(error.message).toContain("lifetime");
  });
});

describe("exec", () => {
  it("asks for the whole output in the worktree, and returns it untrimmed", async () => {
    const engine = new FakeEngine();
    const lane = await laneOn(engine);
    const done = lane.exec("git diff HEAD");
    await tick();
    expect(engine.last("exec").params).toEqual({
      lane: lane.name,
      command: "git diff HEAD",
      cwd: WT,
      sudo: false,
      mode: "whole",
      stdin: undefined,
    });
    engine.last("exec").resolve(execResult({ stdout: "\n a \n\n", stderr: "e\n", exitCode: 3 }));
    expect(await done).toEqual({ stdout: "\n a \n\n", stderr: "e\n", exitCode: 3 });
  });

  it("treats keys that are present but undefined as absent", async () => {
    const engine = new FakeEngine();
    const lane = await laneOn(engine);
    void lane.exec("x", { sudo: undefined, cwd: undefined, stdin: undefined, onLine: undefined });
    expect(engine.last("exec").params).toMatchObject({ cwd: WT, sudo: false, mode: "whole", stdin: undefined });
    engine.last("exec").resolve(execResult());
  });

  it("sends stdin as UTF-8, and the empty text as an empty pipe", async () => {
    const engine = new FakeEngine();
    const lane = await laneOn(engine);
    void lane.exec("cat", { stdin: "é✓" });
    expect(engine.last("exec").params["stdin"]).toEqual(Buffer.from("é✓"));
    void lane.exec("cat", { stdin: "" });
    expect(engine.last("exec").params["stdin"]).toEqual(Buffer.alloc(0));
    for (const call of engine.calls.filter((c) => c.op === "exec")) call.resolve(execResult());
  });

  it.each([
    [3, {}, /command must be a string/],
    ["a\0b", {}, /command contains a NUL/],
    ["x", { cwd: "sub" }, /cwd must be an absolute path/],
    ["x", { cwd: "/a\0" }, /cwd contains a NUL/],
    ["x", { stdin: 5 }, /stdin must be a string/],
    ["x", { sudo: "yes" }, /sudo must be true or false/],
    ["x", { onLine: "f" }, /onLine must be a function/],
  ])("refuses %j %j", async (command, options, message) => {
    const lane = await laneOn(new FakeEngine());
    const error = await rejection(lane.exec(command as string, options as object));
    expect(error.code).toBe("BAD_OPTION");
    expect(error.message).toMatch(message);
  });
});

describe("onLine", () => {
  it("gets each line in order, decoded as UTF-8, and gives the bytes back", async () => {
    const engine = new FakeEngine();
    const lane = await laneOn(engine);
    const lines: string[] = [];
    const done = lane.exec("agent", { onLine: (line) => lines.push(line) });
    const call = engine.last("exec");
    expect(call.params["mode"]).toBe("lines");
    call.hooks.onLines?.(Buffer.from("line1\n\nzwölf\u2028x\n"));
    call.hooks.onLines?.(Buffer.from([0x61, 0xff, 0x0a]));
    call.resolve(execResult({ stdout: "a\nb\n" }));
    expect((await done).stdout).toBe("a\nb");
    expect(lines).toEqual(["line1", "", "zwölf\u2028x", "a\ufffd"]);
    expect(engine.takenBytes.map((t) => t.n)).toEqual([18, 3]);
    expect(engine.takenBytes.every((t) => t.id === call.id && t.sub === 1)).toBe(true);
  });

  it("drops the rest of a character that the tail begins in, and only then", async () => {
    const engine = new FakeEngine();
    const lane = await laneOn(engine);
    for (const [dropped, text] of [
      [10, "xy"],
      [0, "\ufffd\ufffdxy"],
    ] as const) {
      const done = lane.exec("agent", { onLine: () => undefined });
      engine
        .last("exec")
        .resolve(execResult({ stdout: Buffer.from([0x9c, 0x93, 0x78, 0x79, 0x0a]), stdoutDropped: dropped }));
      expect((await done).stdout).toBe(text);
    }
  });

  it.each([
    [
      "throws",
      (): void => {
        throw new Error("boo");
      },
    ],
    [
      "rejects",
      (async (): Promise<void> => {
        throw new Error("boo");
      }) as () => void,
    ],
  ])("that %s stops delivery, cancels the command and rejects the call", async (_what, fail) => {
    const engine = new FakeEngine();
    const lane = await laneOn(engine);
    let calls = 0;
    const done = lane.exec("agent", {
      onLine: () => {
        calls++;
        return fail();
      },
    });
    const call = engine.last("exec");
    call.hooks.onLines?.(Buffer.from("1\n"));
    await tick();
    call.hooks.onLines?.(Buffer.from("2\n3\n"));
    expect(calls).toBe(1);
    expect(engine.last("cancel").params).toMatchObject({ exec: call.id, code: "CALLBACK_THREW" });
    expect(engine.count("cancel")).toBe(1);
    call.fail("CALLBACK_THREW", "from the core");
    const error = await rejection(done);
    expect(error.code).toBe("CALLBACK_THREW");
    expect((error.cause as Error).message).toBe("boo");
    expect(engine.takenBytes.map((t) => t.n)).toEqual([2, 4]);
  });

  it("that throws on the last line rejects although the command had ended well", async () => {
    const engine = new FakeEngine();
    const lane = await laneOn(engine);
    const done = lane.exec("agent", {
      onLine: () => {
        throw new Error("boo");
      },
    });
    engine.last("exec").hooks.onLines?.(Buffer.from("1\n"));
    engine.last("exec").resolve(execResult());
    expect((await rejection(done)).code).toBe("CALLBACK_THREW");
  });

  it("hears nothing once close has begun, not even the rest of a batch", async () => {
    const engine = new FakeEngine();
    const lane = await laneOn(engine);
    const lines: string[] = [];
    const done = rejection(
      lane.exec("agent", {
        onLine: (line) => {
          lines.push(line);
          if (line === "2") void lane.close();
        },
      }),
    );
    const call = engine.last("exec");
    call.hooks.onLines?.(Buffer.from("1\n2\n3\n"));
    call.hooks.onLines?.(Buffer.from("4\n"));
    call.fail("LANE_CLOSED");
    expect((await done).code).toBe("LANE_CLOSED");
    expect(lines).toEqual(["1", "2"]);
  });
});

describe("the sync-in watchdog", () => {
  it.each([
    ["the last step of Sandcastle's sync-in", "git rev-parse HEAD", WT, 0, 1],
    ["the same without cwd", "git rev-parse HEAD", undefined, 0, 1],
    ["a failing one", "git rev-parse HEAD", WT, 128, 0],
    ["another directory", "git rev-parse HEAD", "/tmp", 0, 0],
    ["another command", "git rev-parse --abbrev-ref HEAD", WT, 0, 0],
  ])("%s", async (_what, command, cwd, exitCode, posts) => {
    const engine = new FakeEngine();
    const lane = await laneOn(engine);
    for (let i = 0; i < 2; i++) {
      const done = lane.exec(command, { cwd });
      engine.last("exec").resolve(execResult({ exitCode }));
      await done;
    }
    expect(engine.count("syncedIn")).toBe(posts);
  });
});

describe("copies", () => {
  it("make host paths absolute and pass the limits on", async () => {
    const engine = new FakeEngine();
    const lane = await laneOn(engine, { maxCopyOutBytes: 10, copyOutRoot: "/root-of-it" });
    const copies = [lane.copyIn("a/../b", "/g"), lane.copyFileOut("/g/f", "rel/f")];
    expect(engine.last("copyIn").params).toEqual({ lane: lane.name, hostPath: `${process.cwd()}/b`, guestPath: "/g" });
    expect(engine.last("copyOut").params).toEqual({
      lane: lane.name,
      guestPath: "/g/f",
      hostPath: `${process.cwd()}/rel/f`,
      maxBytes: 10,
      root: "/root-of-it",
    });
    engine.last("copyIn").resolve({ bytes: 1, files: 1 });
    engine.last("copyOut").fail("IS_LINK");
    await copies[0];
    expect((await rejection(copies[1]!)).code).toBe("IS_LINK");
  });
});

describe("close", () => {
  it("is asked of the core once, however often it is called", async () => {
    const engine = new FakeEngine();
    const lane = await laneOn(engine);
    const first = lane.close();
    expect(lane.close()).toBe(first);
    await Promise.all([first, lane.close(), lane[Symbol.asyncDispose]()]);
    expect(engine.count("close")).toBe(1);
  });

  it("ends every later call with LANE_CLOSED", async () => {
    const lane = await laneOn(new FakeEngine());
    void lane.close();
    const streams = { stdin: process.stdin, stdout: process.stdout, stderr: process.stderr };
    for (const call of [
      lane.exec("x"),
      lane.copyIn("a", "/a"),
      lane.copyFileOut("/a", "a"),
      lane.interactiveExec(["x"], streams),
      lane.ping(),
    ]) {
      const error = await rejection(call);
      expect(error.code).toBe("LANE_CLOSED");
      expect(error.lane).toBe(lane.name);
    }
  });

  it("never rejects: a failure becomes an event and a process warning", async () => {
    const engine = new FakeEngine();
    const warning = vi.spyOn(process, "emitWarning").mockImplementation(() => undefined);
    const events: LaneEvent[] = [];
    const lane = await laneOn(engine, { onEvent: (e) => events.push(e) });
    engine.auto.delete("close");
    const done = lane.close();
    engine.last("close").fail("DESTROY_FAILED", "qemu is still there");
    await done;
    expect(events).toMatchObject([{ type: "close-failed", lane: lane.name, error: { code: "DESTROY_FAILED" } }]);
    expect(warning).toHaveBeenCalledWith(
      expect.stringContaining("qemu is still there"),
      expect.objectContaining({ code: "DESTROY_FAILED" }),
    );
    warning.mockRestore();
  });
});

it("an error shows code, sentence and cure", async () => {
  const lane = await laneOn(new FakeEngine());
  await lane.close();
  const error = await rejection(lane.exec("x"));
  expect(error.message).not.toContain("Create a new lane");
  for (const text of [String(error), inspect(error)]) {
    expect(text).toContain("LANE_CLOSED");
    expect(text).toContain("is closed");
    expect(text).toContain("cure: Create a new lane");
  }
});
