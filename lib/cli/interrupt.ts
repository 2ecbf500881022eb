// SPDX-License-Identifier: Apache-2.0
// Ctrl-C and its kin while a command works: the first one ends the work in order, the second one at once.
import { engine } from "../engine.js";

// As every shell has it: 128 and the signal's number.
const CODES = { SIGINT: 130, SIGTERM: 143, SIGHUP: 129 } as const;
type Name = keyof typeof CODES;
const NAMES = Object.keys(CODES) as readonly Name[];

// How long the first one may take where nothing can be ended by itself.
const LEAVE_MS = 2000;

export interface Interrupt {
  readonly signal: AbortSignal;
  /** Which one came. */
  readonly by: () => NodeJS.Signals | undefined;
  /** Says that what is done now ends by `signal`. Until then the whole engine is closed. */
  endsBySignal(): void;
}

/** Does the work. When a signal came, what the work said counts no more: the exit status tells of the signal. */
export async function interruptible(work: (interrupt: Interrupt) => Promise<void>): Promise<void> {
  const controller = new AbortController();
  let by: Name | undefined;
  let byItself = false;
  const onSignal = (name: Name): void => {
    if (by !== undefined) process.exit(CODES[name]);
    by = name;
    controller.abort();
    if (!byItself) engine().close(LEAVE_MS);
  };
  for (const name of NAMES) process.on(name, onSignal);
  try {
    await work({ signal: controller.signal, by: () => by, endsBySignal: () => (byItself = true) });
  } catch (error) {
    if (by === undefined) throw error;
  } finally {
    for (const name of NAMES) process.off(name, onSignal);
    if (by !== undefined) process.exitCode = CODES[by];
  }
}

const LOOK_MS = 250;

/** Until a signal has come, the time is over, or somebody else has ended the lane. */
export function heldOpen(lane: { readonly closed: boolean }, signal: AbortSignal, ms: number): Promise<void> {
  return new Promise((resolve) => {
    const over = (): void => {
      clearTimeout(end);
      clearInterval(looks);
      signal.removeEventListener("abort", over);
      resolve();
    };
    const end = setTimeout(over, ms);
    const looks = setInterval(() => (lane.closed ? over() : undefined), LOOK_MS);
    signal.addEventListener("abort", over, { once: true });
    if (signal.aborted) over();
  });
}
