// SPDX-License-Identifier: Apache-2.0
// The caller's terminal while a program of the guest has it: raw, and given back on every way out.
import { isMainThread } from "node:worker_threads";
import { native } from "./native.js";

export interface Size {
  readonly rows: number;
  readonly columns: number;
}

interface RawInput {
  readonly isTTY?: boolean;
  readonly isRaw?: boolean;
  setRawMode?(mode: boolean): unknown;
  readonly fd?: number;
}

interface SizedOutput {
  readonly isTTY?: boolean;
  readonly rows?: number;
  readonly columns?: number;
  /** Node's own: asks the system and emits `resize`. Without it only process.stdout and process.stderr follow. */
  _refreshSize?(): void;
}

type Listener = ((signal: NodeJS.Signals) => void) & { [OURS]?: true };

// Marks our listeners, so that two copies of this package in one process know each other.
const OURS: unique symbol = Symbol.for("agent-lane.signal") as never;

const DEADLY = ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"] as const;
const held = new Set<Terminal>();

/** Gives every terminal back as it was taken. For the moments before the process stops or ends. */
export function restoreTerminals(): void {
  for (const terminal of held) terminal.setRaw(false);
}

export function isTerminal(stream: unknown): boolean {
  return (stream as RawInput | undefined)?.isTTY === true;
}

function side(n: number | undefined, otherwise: number): number {
  return n !== undefined && Number.isInteger(n) && n >= 1 && n <= 65535 ? n : otherwise;
}

/** Listeners of the widespread package signal-exit, which also gives way to any other listener: waiting for it would be a deadlock. */
function signalExitListeners(): number {
  const v3 = (process as { __signal_exit_emitter__?: { count?: number } }).__signal_exit_emitter__?.count;
  const v4 = (globalThis as { [key: symbol]: { count?: number } | undefined })[Symbol.for("signal-exit emitter")]
    ?.count;
  return (v3 ?? 0) + (v4 ?? 0);
}

/** Whether somebody else decides what this signal does. */
function othersListen(signal: NodeJS.Signals): boolean {
  const foreign = (process.listeners(signal) as Listener[]).filter((listener) => listener[OURS] !== true);
  return foreign.length > signalExitListeners();
}

// Who stops or kills us from outside finds a terminal that works. A signal that somebody else answers is theirs: the
// process may go on, and ends with `exit` where it does not.
const onDeath: Listener = (signal) => {
  if (othersListen(signal)) return;
  restoreTerminals();
  unlisten();
  process.kill(process.pid, signal);
};
onDeath[OURS] = true;

const onStop: Listener = () => {
  if (othersListen("SIGTSTP")) return;
  restoreTerminals();
  process.kill(process.pid, "SIGSTOP");
};
onStop[OURS] = true;

const onContinue: Listener = () => {
  for (const terminal of held) terminal.resume();
};
onContinue[OURS] = true;

const onWindow: Listener = () => {
  for (const terminal of held) terminal.measure();
};
onWindow[OURS] = true;

const onExit = (): void => restoreTerminals();

function listen(): void {
  if (!isMainThread) return;
  process.on("exit", onExit);
  for (const signal of DEADLY) process.on(signal, onDeath);
  process.on("SIGTSTP", onStop).on("SIGCONT", onContinue).on("SIGWINCH", onWindow);
}

function unlisten(): void {
  if (!isMainThread) return;
  process.off("exit", onExit);
  for (const signal of DEADLY) process.off(signal, onDeath);
  process.off("SIGTSTP", onStop).off("SIGCONT", onContinue).off("SIGWINCH", onWindow);
}

/** One terminal for the time between `take` and `release`. */
export class Terminal {
  readonly #input: RawInput;
  readonly #output: SizedOutput;
  readonly #onSize: (size: Size) => void;
  #wasRaw = false;
  #told: Size;

  constructor(input: unknown, output: unknown, onSize: (size: Size) => void) {
    this.#input = input as RawInput;
    this.#output = output as SizedOutput;
    this.#onSize = onSize;
    this.#told = this.size;
  }

  get size(): Size {
    const { isTTY, rows, columns } = this.#output;
    return isTTY === true ? { rows: side(rows, 24), columns: side(columns, 80) } : { rows: 24, columns: 80 };
  }

  /** What a program must know to draw on it. */
  static environment(): Record<string, string> {
    const { TERM, COLORTERM } = process.env;
    const env: Record<string, string> = { TERM: TERM === undefined || TERM === "" ? "xterm-256color" : TERM };
    if (COLORTERM !== undefined && COLORTERM !== "") env["COLORTERM"] = COLORTERM;
    return env;
  }

  take(): void {
    this.#wasRaw = this.#input.isRaw === true;
    if (held.size === 0) listen();
    held.add(this);
    this.setRaw(true);
    this.measure();
  }

  release(): void {
    if (!held.has(this)) return;
    this.setRaw(false);
    held.delete(this);
    if (held.size === 0) unlisten();
  }

  setRaw(raw: boolean): void {
    try {
      this.#input.setRawMode?.(raw || this.#wasRaw);
      // Node leaves the translation of newlines on; switching its raw mode off puts all of it back.
      if (raw && this.#input.fd !== undefined) native().rawOutput(this.#input.fd);
    } catch {
      // The terminal is gone: there is nothing left to restore.
    }
  }

  /** The process was stopped, and the shell may have changed the terminal meanwhile, which Node does not know. */
  resume(): void {
    this.setRaw(false);
    this.setRaw(true);
    this.measure();
  }

  measure(): void {
    this.#output._refreshSize?.();
    const { size } = this;
    if (size.rows === this.#told.rows && size.columns === this.#told.columns) return;
    this.#told = size;
    this.#onSize(size);
  }
}
