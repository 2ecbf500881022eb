// SPDX-License-Identifier: Apache-2.0
// The process's end: lanes are destroyed at exit and on signals, what is not done in time is their keeper's, and an idle
// process is left alone.
import { isMainThread } from "node:worker_threads";
import type { Engine } from "./engine.js";

// How long the process's end may be held up. At `exit` nothing may wait long; a signal is answered by a person's
// patience. Not shorter, though the keeper would do: an engine that still works while
// the process takes itself down meets libuv's own end, which aborts.
const EXIT_MS = 2000;
const SIGNAL_MS = 5000;
// After a signal: time for rejections (a create in flight) to reach the caller before the process ends.
const SAY_MS = 200;

const SIGNALS = ["SIGINT", "SIGTERM", "SIGHUP"] as const;
type Listener = ((signal: NodeJS.Signals) => void) & { [OURS]?: true };

// Marks our listeners, so that two copies of this package in one process know each other.
export const OURS: unique symbol = Symbol.for("agent-lane.signal") as never;

/** Listeners of the widespread package signal-exit, which also gives way to any other listener: waiting for it would be a deadlock. */
function signalExitListeners(): number {
  const v3 = (process as { __signal_exit_emitter__?: { count?: number } }).__signal_exit_emitter__?.count;
  const v4 = (globalThis as { [key: symbol]: { count?: number } | undefined })[Symbol.for("signal-exit emitter")]
    ?.count;
  return (v3 ?? 0) + (v4 ?? 0);
}

/** Whether somebody else decides what this signal does. */
export function othersListen(signal: NodeJS.Signals): boolean {
  const foreign = (process.listeners(signal) as Listener[]).filter((listener) => listener[OURS] !== true);
  return foreign.length > signalExitListeners();
}

/** Counts what must be destroyed before the process may go; listens for its end exactly while that is not zero. */
export class ExitGuard {
  readonly #engine: Engine;
  #holds = 0;
  #ending = false;
  readonly #onExit = (): void => {
    this.#engine.close(EXIT_MS);
  };
  readonly #onSignal: Listener = Object.assign((signal: NodeJS.Signals): void => this.#end(signal), {
    [OURS]: true as const,
  });

  constructor(engine: Engine) {
    this.#engine = engine;
  }

  /** Call when a create starts; call the result (any number of times) when its lane is gone. */
  hold(): () => void {
    if (this.#holds++ === 0) this.#listen();
    let held = true;
    return () => {
      if (!held) return;
      held = false;
      if (--this.#holds === 0 && !this.#ending) this.#unlisten();
    };
  }

  // In a worker neither signals nor the process's exit arrive; the environment's clean-up hook in the addon does the
  // work.
  #listen(): void {
    if (!isMainThread) return;
    process.on("exit", this.#onExit);
    // Before the others: a `once` listener that has run is off the list, and we would not know of it and what it still
    // does.
    for (const signal of SIGNALS) process.prependListener(signal, this.#onSignal);
  }

  #unlisten(): void {
    if (!isMainThread) return;
    process.off("exit", this.#onExit);
    for (const signal of SIGNALS) process.off(signal, this.#onSignal);
  }

  #end(signal: NodeJS.Signals): void {
    // Sandcastle's createSandbox handles signals itself, by process.exit: our turn is then `exit`.
    if (this.#ending || othersListen(signal)) return;
    this.#ending = true;
    this.#engine.close(SIGNAL_MS);
    setTimeout(() => {
      this.#unlisten();
      process.kill(process.pid, signal);
    }, SAY_MS);
  }
}
