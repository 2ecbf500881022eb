// SPDX-License-Identifier: Apache-2.0
// An engine that a test answers by hand: it records requests and hands their hooks out.
import type { Engine, RequestHooks } from "../../../lib/engine.js";
import { LaneError, type LaneErrorCode } from "../../../lib/errors.js";
import type { NativeValue } from "../../../lib/native.js";

type Params = { readonly [key: string]: NativeValue };

export interface Call {
  readonly id: number;
  readonly op: string;
  readonly params: Params;
  readonly hooks: RequestHooks;
  resolve(value?: unknown): void;
  fail(code: LaneErrorCode, message?: string): void;
}

export class FakeEngine {
  closed = false;
  readonly calls: Call[] = [];
  readonly takenBytes: { id: number; sub: number; n: number }[] = [];
  readonly forgotten: number[] = [];
  /** Answers that are given at once, by operation. */
  readonly auto = new Map<string, (params: Params) => unknown>([
    ["create", (p) => ({ lane: "agent-lane-test0000-test0000", worktreePath: p["worktreePath"] })],
    ["cancel", () => null],
    ["syncedIn", () => null],
    ["close", () => null],
  ]);
  #lastId = 0;

  start(op: string, params: Params, hooks: RequestHooks = {}): { id: number; done: Promise<unknown> } {
    const id = ++this.#lastId;
    let settle!: [(value: unknown) => void, (error: unknown) => void];
    const done = new Promise<unknown>((resolve, reject) => (settle = [resolve, reject]));
    this.calls.push({
      id,
      op,
      params,
      hooks,
      resolve: (value = null) => settle[0](value),
      fail: (code, message = "as the test wants") => settle[1](new LaneError({ code, message, cure: "none" })),
    });
    const auto = this.auto.get(op);
    if (auto !== undefined) settle[0](auto(params));
    return { id, done };
  }

  async request(op: string, params: Params = {}): Promise<unknown> {
    return this.start(op, params).done;
  }

  taken(id: number, sub: number, n: number): void {
    this.takenBytes.push({ id, sub, n });
  }

  forget(id: number): void {
    this.forgotten.push(id);
  }

  close(): number {
    this.closed = true;
    return 0;
  }

  /** The newest request of an operation. */
  last(op: string): Call {
    const call = this.calls.findLast((c) => c.op === op);
    if (call === undefined) throw new Error(`no ${op} was requested`);
    return call;
  }

  count(op: string): number {
    return this.calls.filter((c) => c.op === op).length;
  }

  asEngine(): Engine {
    return this as unknown as Engine;
  }
}

export function execResult(
  fields: { stdout?: string | Buffer; stderr?: string; exitCode?: number; stdoutDropped?: number } = {},
): unknown {
  return {
    exitCode: fields.exitCode ?? 0,
    signal: 0,
    stdout: Buffer.from(fields.stdout ?? ""),
    stderr: Buffer.from(fields.stderr ?? ""),
    stdoutDropped: fields.stdoutDropped ?? 0,
    stderrDropped: 0,
    spawnNs: 1,
  };
}

/** The error a promise rejects with; fails the test when it resolves. */
export async function rejection(promise: Promise<unknown>): Promise<LaneError> {
  try {
    await promise;
  } catch (error) {
    return error as LaneError;
  }
  throw new Error("the promise resolved");
}

export function tick(ms = 0): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
