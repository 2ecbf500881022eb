// SPDX-License-Identifier: Apache-2.0
// A program on the caller's streams: order, ends and back-pressure in all three directions.
import { PassThrough, Writable } from "node:stream";
import { describe, expect, it } from "vitest";
import type { Lane } from "../../lib/lane.js";
import { openLane } from "../../lib/open.js";
import { resolveOptions } from "../../lib/options.js";
import { FakeEngine, rejection, tick } from "./support/fake-engine.js";

async function setUp(
  engine = new FakeEngine(),
): Promise<{ engine: FakeEngine; lane: Lane; stdin: PassThrough; stdout: PassThrough; stderr: PassThrough }> {
  engine.auto.set("write", (p) => ({ queued: (p["data"] as Buffer).length }));
  const lane = await openLane(resolveOptions(), { engine: engine.asEngine() });
  return { engine, lane, stdin: new PassThrough(), stdout: new PassThrough(), stderr: new PassThrough() };
}

function written(engine: FakeEngine): string {
  return Buffer.concat(engine.calls.filter((c) => c.op === "write").map((c) => c.params["data"] as Buffer)).toString();
}

describe("interactiveExec", () => {
  it("runs argv without a shell, in the worktree or where it is told to", async () => {
    const { engine, lane, ...streams } = await setUp();
    const done = lane.interactiveExec(["sh", "-c", "exit 7"], { ...streams, cwd: "/tmp" });
    expect(engine.last("exec").params).toEqual({
      lane: lane.name,
      argv: ["sh", "-c", "exit 7"],
      cwd: "/tmp",
      mode: "stream",
      inputOpen: true,
    });
    engine.last("exec").resolve({ exitCode: 7 });
    expect(await done).toEqual({ exitCode: 7 });
    await lane.close();
  });

  it("ends the program by a signal, and does not start it when that has come before", async () => {
    const { engine, lane, ...streams } = await setUp();
    const controller = new AbortController();
    const done = lane.interactiveExec(["yes"], { ...streams, signal: controller.signal });
    controller.abort();
    expect(engine.last("cancel").params).toMatchObject({ exec: engine.last("exec").id, code: "ABORTED" });
    engine.last("exec").fail("ABORTED");
    expect((await rejection(done)).code).toBe("ABORTED");
    const error = await rejection(lane.interactiveExec(["yes"], { ...streams, signal: controller.signal }));
    expect([error.code, engine.count("exec")]).toEqual(["ABORTED", 1]);
    await lane.close();
  });

  it.each([[[]], ["sh"], [[1]], [["a\0"]]])("refuses args %j", async (args) => {
    const { lane, engine: _engine, ...streams } = await setUp();
    expect((await rejection(lane.interactiveExec(args as string[], streams))).code).toBe("BAD_OPTION");
    await lane.close();
  });

  it("passes input on in order and ends it", async () => {
    const { engine, lane, ...streams } = await setUp();
    const done = lane.interactiveExec(["cat"], streams);
    streams.stdin.write("one ");
    streams.stdin.write(Buffer.from("two ✓"));
    streams.stdin.end();
    await tick(20);
    expect(written(engine)).toBe("one two ✓");
    expect(engine.last("write").params["end"]).toBe(true);
    expect(engine.calls.filter((c) => c.params["end"] === true)).toHaveLength(1);
    engine.last("exec").resolve({ exitCode: 0 });
    await done;
    await lane.close();
  });

  it("ends the input only after a large chunk has gone out in pieces", async () => {
    const { engine, lane, ...streams } = await setUp();
    const done = lane.interactiveExec(["cat"], streams);
    streams.stdin.end(Buffer.alloc(1_000_000, "x"));
    await tick(50);
    const writes = engine.calls.filter((c) => c.op === "write");
    expect(written(engine)).toHaveLength(1_000_000);
    expect(writes.map((c) => c.params["end"] === true).indexOf(true)).toBe(writes.length - 1);
    expect(Math.max(...writes.map((c) => (c.params["data"] as Buffer).length))).toBeLessThanOrEqual(256 * 1024);
    engine.last("exec").resolve({ exitCode: 0 });
    await done;
    await lane.close();
  });

  it("ends the input at once when stdin had ended before", async () => {
    const { engine, lane, ...streams } = await setUp();
    streams.stdin.end();
    streams.stdin.resume();
    await tick(5);
    const done = lane.interactiveExec(["cat"], streams);
    await tick(5);
    expect(engine.last("write").params["end"]).toBe(true);
    engine.last("exec").resolve({ exitCode: 0 });
    await done;
    await lane.close();
  });

  it("pauses stdin while the guest does not read, and goes on when it drains", async () => {
    const { engine, lane, ...streams } = await setUp();
    engine.auto.set("write", () => ({ queued: 1 << 20 }));
    const done = lane.interactiveExec(["cat"], streams);
    for (let i = 0; i < 5; i++) streams.stdin.write(Buffer.alloc(1000, 97 + i));
    await tick(20);
    expect(engine.count("write")).toBe(1);
    engine.last("exec").hooks.onDrain?.();
    await tick(20);
    expect(engine.count("write")).toBeGreaterThan(1);
    engine.auto.set("write", () => ({ queued: 0 }));
    engine.last("exec").hooks.onDrain?.();
    await tick(20);
    expect(written(engine)).toHaveLength(5000);
    engine.last("exec").resolve({ exitCode: 0 });
    await done;
    await lane.close();
  });

  it("gives output back only when the caller's stream has taken it, and resolves after that", async () => {
    const { engine, lane, ...streams } = await setUp();
    const parked: (() => void)[] = [];
    const got: Buffer[] = [];
    const stdout = new Writable({
      write: (chunk: Buffer, _enc, cb) => {
        got.push(chunk);
        parked.push(cb);
      },
    });
    let resolved = false;
    const done = lane.interactiveExec(["yes"], { ...streams, stdout }).then((r) => {
      resolved = true;
      return r;
    });
    const call = engine.last("exec");
    call.hooks.onBytes?.(1, Buffer.from("abc"));
    call.hooks.onBytes?.(1, Buffer.from("de"));
    call.hooks.onBytes?.(2, Buffer.from("err"));
    call.resolve({ exitCode: 0 });
    await tick(20);
    expect(engine.takenBytes).toEqual([{ id: call.id, sub: 2, n: 3 }]);
    expect(resolved).toBe(false);
    parked.shift()?.();
    await tick(5);
    parked.shift()?.();
    expect(await done).toEqual({ exitCode: 0 });
    expect(engine.takenBytes.filter((t) => t.sub === 1).map((t) => t.n)).toEqual([3, 2]);
    expect(Buffer.concat(got).toString()).toBe("abcde");
    expect(streams.stderr.read().toString()).toBe("err");
    await lane.close();
  });

  it("waits for a receiver that takes nothing until the lane closes or the caller's signal comes", async () => {
    for (const way of ["close", "signal", "closed before"]) {
      const { engine, lane, ...streams } = await setUp();
      const stdout = new Writable({ write: () => undefined });
      const controller = new AbortController();
      const done = lane.interactiveExec(["echo"], { ...streams, stdout, signal: controller.signal });
      let settled = false;
      void done.catch(() => undefined).then(() => (settled = true));
      engine.last("exec").hooks.onBytes?.(1, Buffer.from("abc"));
      if (way === "closed before") await lane.close();
      engine.last("exec").resolve({ exitCode: 3 });
      await tick(20);
      expect(settled).toBe(way === "closed before");
      if (way === "close") await lane.close();
      if (way === "signal") controller.abort(new Error("enough"));
      if (way !== "signal") expect(await done).toEqual({ exitCode: 3 });
      else expect(await rejection(done)).toMatchObject({ code: "ABORTED", cause: { message: "enough" } });
      expect([stdout.listenerCount("error"), streams.stderr.listenerCount("error")]).toEqual([0, 0]);
      await lane.close();
    }
  });

  it("cancels the program when the caller's stdout breaks, instead of throwing", async () => {
    const { engine, lane, ...streams } = await setUp();
    const stdout = new Writable({ write: (_chunk, _enc, cb) => cb(new Error("EPIPE")) });
    const done = lane.interactiveExec(["yes"], { ...streams, stdout });
    engine.last("exec").hooks.onBytes?.(1, Buffer.from("y"));
    await tick(20);
    expect(engine.last("cancel").params).toMatchObject({ exec: engine.last("exec").id, code: "ABORTED" });
    engine.last("exec").fail("ABORTED");
    expect((await rejection(done)).code).toBe("ABORTED");
    await lane.close();
  });

  it("leaves the caller's streams as they were", async () => {
    const { engine, lane, ...streams } = await setUp();
    const done = lane.interactiveExec(["x"], streams);
    engine.last("exec").resolve({ exitCode: 0 });
    await done;
    expect(streams.stdin.isPaused()).toBe(true);
    expect(streams.stdin.listenerCount("data")).toBe(0);
    expect(streams.stdout.listenerCount("error") + streams.stderr.listenerCount("error")).toBe(0);
    await lane.close();
  });
});
