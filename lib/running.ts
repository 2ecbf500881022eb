// SPDX-License-Identifier: Apache-2.0
// A call that is under way in the engine, with the reason for which it is being ended, if it is.
import type { Engine } from "./engine.js";
import { aborted, LaneError, type LaneErrorFields } from "./errors.js";

export type Why = Pick<LaneErrorFields, "code" | "message" | "cure" | "cause">;

export class Running {
  /** The engine's number of the call; to be set as soon as there is one. */
  id = 0;
  protected readonly engine: Engine;
  readonly #lane: string;
  #why: Why | undefined;

  constructor(engine: Engine, lane: string) {
    this.engine = engine;
    this.#lane = lane;
  }

  get ending(): boolean {
    return this.#why !== undefined;
  }

  /** Ends the call and all that it started. The first reason counts. */
  end(why: Why): void {
    if (this.#why !== undefined) return;
    this.#why = why;
    this.engine.request("cancel", { exec: this.id, code: why.code, message: why.message }).catch(() => undefined);
  }

  /** What `work` resolves with, unless the call is ended before. `call` is what the caller knows it as. */
  async until<T>(call: string, signal: AbortSignal | undefined, work: () => Promise<T>): Promise<T> {
    const why = (): LaneError => aborted(call, this.#lane, signal?.reason);
    if (signal?.aborted === true) throw why();
    const onAbort = (): void => this.end(why());
    // Before the call: a signal that cannot be listened to must not leave one running.
    signal?.addEventListener("abort", onAbort, { once: true });
    try {
      const result = await work();
      if (this.ending) throw this.error();
      return result;
    } catch (thrown) {
      throw this.error(thrown);
    } finally {
      signal?.removeEventListener("abort", onAbort);
    }
  }

  /** What the caller is told: our own reason goes before what the core says, with the output that it has. */
  error(thrown?: unknown): unknown {
    if (this.#why === undefined) return thrown;
    const { code, message, cure, cause } = this.#why;
    const { stdout, stderr, exitCode, oom } = thrown instanceof LaneError ? thrown : ({} as Partial<LaneError>);
    return new LaneError({ code, message, cure, cause, lane: this.#lane, stdout, stderr, exitCode, oom });
  }
}
