// SPDX-License-Identifier: Apache-2.0
// Signals by name, in Linux's numbers: the guest is Linux whatever the host is.
import { badOption } from "./errors.js";
import { kindOf } from "./rules.js";

const NUMBERS: Readonly<Record<string, number>> = {
  SIGHUP: 1,
  SIGINT: 2,
  SIGQUIT: 3,
  SIGILL: 4,
  SIGTRAP: 5,
  SIGABRT: 6,
  SIGBUS: 7,
  SIGFPE: 8,
  SIGKILL: 9,
  SIGUSR1: 10,
  SIGSEGV: 11,
  SIGUSR2: 12,
  SIGPIPE: 13,
  SIGALRM: 14,
  SIGTERM: 15,
  SIGCHLD: 17,
  SIGCONT: 18,
  SIGSTOP: 19,
  SIGTSTP: 20,
  SIGTTIN: 21,
  SIGTTOU: 22,
  SIGURG: 23,
  SIGXCPU: 24,
  SIGXFSZ: 25,
  SIGVTALRM: 26,
  SIGPROF: 27,
  SIGWINCH: 28,
  SIGIO: 29,
  SIGSYS: 31,
};

/** Throws BAD_OPTION for what is no signal. */
export function signalNumber(signal: string | number): number {
  const number = typeof signal === "string" && Object.hasOwn(NUMBERS, signal) ? NUMBERS[signal] : signal;
  const shown = typeof signal === "string" ? JSON.stringify(signal.slice(0, 40)) : kindOf(signal);
  if (typeof number !== "number" || !Number.isInteger(number) || number < 1 || number > 64)
    throw badOption(`signal must be a name such as "SIGTERM" or a number from 1 to 64, not ${shown}`);
  return number;
}

/** A number without a name is SIGRTMIN and so on. */
export function signalName(number: number): string | null {
  if (number === 0) return null;
  return Object.keys(NUMBERS).find((name) => NUMBERS[name] === number) ?? `SIG${number}`;
}
