// SPDX-License-Identifier: Apache-2.0
// The JavaScript side of the engine: request ids to promises, and events to whoever asked for them.
import type { CopyProgress } from "./copy.js";
import { asLaneError, fromNative, LaneError, wordsOf, type NativeError } from "./errors.js";
import { leaveAtExit } from "./exit.js";
import { native, packageDir, type NativeEngine, type NativeEvent, type NativeValue } from "./native.js";

/** Callbacks of one request. They must not throw. */
export interface RequestHooks {
  /** Whole lines of stdout (1, the default) or stderr (2), each ended by a newline. */
  readonly onLines?: (data: Buffer, sub?: 1 | 2) => void;
  readonly onBytes?: (sub: 1 | 2, data: Buffer) => void;
  readonly onDrain?: () => void;
  /** How far a copy is; what JavaScript had no time for is one event, the newest. */
  readonly onProgress?: (progress: CopyProgress) => void;
  /** Lane events; they may go on after the request's answer, until `forget`. */
  readonly onLane?: (event: unknown) => void;
}

interface Pending {
  readonly resolve: (value: unknown) => void;
  readonly reject: (error: LaneError) => void;
  readonly hooks: RequestHooks;
}

export interface Request<T> {
  readonly id: number;
  readonly done: Promise<T>;
}

// Answers that wait in the thread-safe function when the engine closes are delivered within this time.
const LAST_ANSWERS_MS = 10;
const UNDESCRIBED: NativeError = { code: "INTERNAL", message: "an error without a description", cure: "" };

function interrupted(): LaneError {
  return new LaneError({
    code: "INTERRUPTED",
    message: "this process is ending and its lanes were closed",
    cure: "The process was asked to stop; start again.",
  });
}

export class Engine {
  #native: NativeEngine | undefined;
  #closed = false;
  #lastId = 0;
  readonly #pending = new Map<number, Pending>();
  readonly #watchers = new Map<number, (event: unknown) => void>();

  /** Throws LaneError NATIVE_LOAD_FAILED, or what the engine's start failed with. */
  constructor() {
    try {
      this.#native = native().open(packageDir, (events) => this.#dispatch(events));
      leaveAtExit();
    } catch (error) {
      if (error instanceof LaneError || typeof (error as NativeError).code !== "string") throw asLaneError(error);
      throw fromNative(error as NativeError);
    }
  }

  get closed(): boolean {
    return this.#closed;
  }

  /** Number of requests without an answer. */
  get open(): number {
    return this.#pending.size;
  }

  /** Posts a request. Throws the binding's TypeError when a parameter cannot cross the border, LaneError NO_MEMORY. */
  start<T = unknown>(
    op: string,
    params: { readonly [key: string]: NativeValue },
    hooks: RequestHooks = {},
  ): Request<T> {
    const engine = this.#native;
    if (engine === undefined) return { id: 0, done: Promise.reject(interrupted()) };
    const id = this.#nextId();
    try {
      engine.post(id, op, params);
    } catch (error) {
      if (error instanceof TypeError || typeof (error as NativeError).code !== "string") throw error;
      throw fromNative(error as NativeError);
    }
    if (hooks.onLane !== undefined) this.#watchers.set(id, hooks.onLane);
    const done = new Promise<unknown>((resolve, reject) => this.#pending.set(id, { resolve, reject, hooks }));
    return { id, done: done as Promise<T> };
  }

  /** Posts a request whose id is of no interest. Rejects (never throws) with a LaneError or TypeError. */
  async request<T = unknown>(op: string, params: { readonly [key: string]: NativeValue } = {}): Promise<T> {
    return this.start<T>(op, params).done;
  }

  /** Gives bytes of a stream back: the guest may send as many again. */
  taken(id: number, sub: 1 | 2, n: number): void {
    this.#native?.taken(id, sub, n);
  }

  /** Ends the lane events of a create request. */
  forget(id: number): void {
    this.#watchers.delete(id);
  }

  /**
   * Ends every lane, blocking for at most `timeoutMs`; open requests reject with INTERRUPTED. Returns the number of
   * lanes left.
   */
  close(timeoutMs: number): number {
    const engine = this.#native;
    if (engine === undefined) return 0;
    this.#native = undefined;
    this.#closed = true;
    const left = engine.close(timeoutMs);
    if (this.#pending.size > 0) {
      setTimeout(() => {
        for (const [id, pending] of this.#pending) {
          this.#pending.delete(id);
          pending.reject(interrupted());
        }
      }, LAST_ANSWERS_MS);
    }
    return left;
  }

  #nextId(): number {
    do this.#lastId = (this.#lastId % 0xffffffff) + 1;
    while (this.#pending.has(this.#lastId) || this.#watchers.has(this.#lastId));
    return this.#lastId;
  }

  #dispatch(events: readonly NativeEvent[]): void {
    for (const event of events) {
      try {
        this.#handle(event);
      } catch (error) {
        // A hook of ours threw: a bug, but the other events of the batch must still be handled.
        process.emitWarning(`event "${event.type}": ${wordsOf(error)}`, "AgentLaneWarning");
      }
    }
  }

  #handle(event: NativeEvent): void {
    if (event.type === "lane") {
      this.#watchers.get(event.id)?.(event.value);
      return;
    }
    const pending = this.#pending.get(event.id);
    if (pending === undefined) return;
    switch (event.type) {
      case "done":
        this.#pending.delete(event.id);
        pending.resolve(event.value ?? null);
        break;
      case "error":
        this.#pending.delete(event.id);
        pending.reject(fromNative(event.error ?? UNDESCRIBED, event.value));
        break;
      case "lines":
        pending.hooks.onLines?.(event.value as Buffer, event.sub === 2 ? 2 : 1);
        break;
      case "bytes":
        pending.hooks.onBytes?.(event.sub === 2 ? 2 : 1, event.value as Buffer);
        break;
      case "drain":
        pending.hooks.onDrain?.();
        break;
      case "progress":
        pending.hooks.onProgress?.(event.value as CopyProgress);
        break;
    }
  }
}

let shared: Engine | undefined;

/** The environment's engine, started at first use. Once closed it stays closed. */
export function engine(): Engine {
  shared ??= new Engine();
  return shared;
}
