// SPDX-License-Identifier: Apache-2.0
// A program in the guest on the caller's own streams, on a terminal of the guest's exactly when stdin is one: one write
// in flight at a time, output given back once it is written.
import { checkCwd, checkReadable, checkSignal, checkWritable } from "./checks.js";
import type { Engine } from "./engine.js";
import { aborted, LaneError, OWN_ERRORS, wordsOf } from "./errors.js";
import type { NativeValue } from "./native.js";
import { checkNames, readOnce } from "./rules.js";
import { bytesOf } from "./stdin.js";
import { isTerminal, Terminal, type Size } from "./terminal.js";

/** Options of `lane.interactiveExec()`. The three streams are required. */
export interface InteractiveOptions {
  /** What the program reads. When it is a terminal, the program gets one too. */
  readonly stdin: NodeJS.ReadableStream;
  /** Where its output goes; on a terminal all of it. */
  readonly stdout: NodeJS.WritableStream;
  /** Where its stderr goes; nothing on a terminal. */
  readonly stderr: NodeJS.WritableStream;
  /** Absolute working directory in the guest. Default: the worktree. */
  readonly cwd?: string | undefined;
  /** Ends the program; the call rejects with ABORTED. */
  readonly signal?: AbortSignal | undefined;
}

const NAMES: Readonly<Record<keyof InteractiveOptions, true>> = {
  stdin: true,
  stdout: true,
  stderr: true,
  cwd: true,
  signal: true,
};
/** The names of `interactiveExec`'s options. */
export const INTERACTIVE_NAMES = Object.keys(NAMES) as readonly (keyof InteractiveOptions)[];

/** The options of one call, each read once, or BAD_OPTION. */
export function checkInteractive(options: InteractiveOptions): InteractiveOptions {
  checkNames("interactiveExec()", options, INTERACTIVE_NAMES);
  const given = readOnce(options, INTERACTIVE_NAMES);
  checkReadable("stdin", given.stdin);
  checkWritable("stdout", given.stdout);
  checkWritable("stderr", given.stderr);
  checkCwd(given.cwd);
  checkSignal(given.signal);
  return given;
}

/** Whether a lane is going away; and for those who wait for something else, the moment in which it does. */
export class Departure {
  readonly #waiting = new Set<() => void>();
  #begun = false;

  get begun(): boolean {
    return this.#begun;
  }

  begin(): void {
    this.#begun = true;
    for (const leave of this.#waiting) leave();
  }

  on(leave: () => void): void {
    this.#waiting.add(leave);
  }

  off(leave: () => void): void {
    this.#waiting.delete(leave);
  }
}

interface Command {
  readonly lane: string;
  readonly argv: readonly string[];
  /** Default, for an attached lane only: its worktree. */
  readonly cwd: string | undefined;
  readonly sudo?: boolean;
  /** Names of the run's variables: they are not replaced by the terminal's. */
  readonly env: Readonly<Record<string, string>>;
}

// More input than this waiting in the engine pauses the caller's stream until the guest has read it.
const QUEUE_HIGH = 256 * 1024;
// One write request carries at most this much; a larger chunk is cut.
const WRITE_MAX = 256 * 1024;

/** Feeds a readable into the command, one write at a time; ends the command's stdin when the readable ends. */
class Input {
  readonly #engine: Engine;
  readonly #stream: NodeJS.ReadableStream;
  #id = 0;
  #stopped = false;
  #ended = false;
  #drained: (() => void) | undefined;
  // What was taken from the stream goes out in order; `end` may be told while the last chunk is still on its way.
  #sent: Promise<void> = Promise.resolve();
  readonly #onData = (chunk: unknown): void => {
    this.#stream.pause();
    try {
      const data = bytesOf(chunk);
      this.#sent = this.#sent.then(() => this.#send(data));
    } catch (error) {
      this.#onFailure(error);
    }
  };
  readonly #onEnd = (): void => {
    if (this.#ended || this.#stopped) return;
    this.#ended = true;
    this.#sent = this.#sent.then(() => this.#write(Buffer.alloc(0), true));
  };

  readonly #onFailure: (error: unknown) => void;

  constructor(engine: Engine, stream: NodeJS.ReadableStream, onFailure: (error: unknown) => void) {
    this.#engine = engine;
    this.#stream = stream;
    this.#onFailure = onFailure;
  }

  start(id: number): void {
    this.#id = id;
    const { readableEnded, destroyed } = this.#stream as { readableEnded?: boolean; destroyed?: boolean };
    if (readableEnded === true || destroyed === true) return this.#onEnd();
    this.#stream.on("data", this.#onData).on("end", this.#onEnd).on("close", this.#onEnd).on("error", this.#onEnd);
    this.#stream.resume();
  }

  /** More input is welcome. */
  drain(): void {
    this.#drained?.();
    this.#drained = undefined;
  }

  /** Leaves the stream alone, paused, as it was given. */
  stop(): void {
    this.#stopped = true;
    this.drain();
    this.#stream.off("data", this.#onData).off("end", this.#onEnd).off("close", this.#onEnd).off("error", this.#onEnd);
    this.#stream.pause();
  }

  async #send(data: Uint8Array): Promise<void> {
    for (let at = 0; at < data.length && !this.#stopped; at += WRITE_MAX)
      await this.#write(data.subarray(at, at + WRITE_MAX), false);
    if (!this.#stopped && !this.#ended) this.#stream.resume();
  }

  async #write(data: Uint8Array, end: boolean): Promise<void> {
    if (this.#stopped) return;
    const drained = new Promise<void>((resolve) => (this.#drained = resolve));
    try {
      const { queued } = await this.#engine.request<{ queued: number }>("write", { exec: this.#id, data, end });
      if (queued > QUEUE_HIGH && !this.#stopped) await drained;
    } catch {
      // The command has ended or closed its stdin: what is still typed goes nowhere, as with a local program.
    }
  }
}

/** Writes to the caller's stream; credit returns when the stream has taken the bytes, so a slow reader slows the guest. */
class Output {
  readonly #stream: NodeJS.WritableStream;
  readonly #onBroken: () => void;
  #waiting = 0;
  #flushed: (() => void) | undefined;
  #broken = false;
  readonly #onError = (): void => {
    if (this.#broken) return;
    this.#broken = true;
    this.#flushed?.(); // it may never say that it took the rest
    this.#onBroken();
  };

  constructor(stream: NodeJS.WritableStream, onBroken: () => void) {
    this.#stream = stream;
    this.#onBroken = onBroken;
    stream.on("error", this.#onError);
  }

  write(data: Buffer, taken: () => void): void {
    if (this.#broken) return taken();
    this.#waiting++;
    try {
      this.#stream.write(data, () => {
        taken();
        if (--this.#waiting === 0) this.#flushed?.();
      });
    } catch {
      this.#onError();
      taken();
    }
  }

  /** Resolves when all that was written has been taken, or nothing is taken any more. */
  flushed(): Promise<void> {
    return this.#waiting === 0 || this.#broken ? Promise.resolve() : new Promise((resolve) => (this.#flushed = resolve));
  }

  stop(): void {
    this.#flushed?.();
    this.#stream.off("error", this.#onError);
  }
}

/** The engine's parameters of a program on the caller's terminal. */
function onTerminal(terminal: Terminal, env: Readonly<Record<string, string>>): Record<string, NativeValue> {
  const own = Object.entries(Terminal.environment()).filter(([name]) => env[name] === undefined);
  return { tty: true, ...terminal.size, env: Object.fromEntries(own) };
}

/** Runs the command on the caller's streams. When the lane departs, nothing waits for slow readers any more. */
export async function interact(
  engine: Engine,
  { env, ...command }: Command,
  streams: InteractiveOptions,
  departure: Departure,
): Promise<{ exitCode: number }> {
  const { signal } = streams;
  if (signal?.aborted === true) throw aborted("interactiveExec", command.lane, signal.reason);
  let id = 0;
  const cancel = (message: string): void => {
    engine.request("cancel", { exec: id, code: "ABORTED", message }).catch(() => undefined);
  };
  const broken = (): void => cancel("the stream that received the program's output was closed");
  // Once the program has ended: nobody need wait for what its receivers have not taken.
  let leave = (): void => undefined;
  const left = new Promise<void>((resolve) => (leave = resolve));
  let gaveUp = false;
  const onAbort = (): void => {
    gaveUp = true;
    cancel("interactiveExec was aborted by its signal");
    leave();
  };
  const resized = (size: Size): void => {
    engine.request("resize", { exec: id, ...size }).catch(() => undefined);
  };
  const terminal = isTerminal(streams.stdin) ? new Terminal(streams.stdin, streams.stdout, resized) : undefined;
  let failed: LaneError | undefined;
  const input = new Input(engine, streams.stdin, (cause) => {
    const message = `the stream given as stdin failed, and the command was ended: ${wordsOf(cause)}`;
    const { cure } = OWN_ERRORS.STDIN_FAILED;
    failed ??= new LaneError({ code: "STDIN_FAILED", message, cure, lane: command.lane, cause });
    cancel(message);
  });
  const outputs = { 1: new Output(streams.stdout, broken), 2: new Output(streams.stderr, broken) };
  try {
    // Before the command: a signal that cannot be listened to must not leave one running.
    signal?.addEventListener("abort", onAbort, { once: true });
    const request = engine.start<{ exitCode: number }>(
      "exec",
      { ...command, mode: "stream", inputOpen: true, ...(terminal && onTerminal(terminal, env)) },
      {
        onBytes: (sub, data) => {
          if (departure.begun) engine.taken(id, sub, data.length);
          else outputs[sub].write(data, () => engine.taken(id, sub, data.length));
        },
        onDrain: () => input.drain(),
      },
    );
    id = request.id;
    terminal?.take();
    input.start(id);
    const { exitCode } = await request.done;
    departure.on(leave);
    let flushed = departure.begun;
    const both = Promise.all([outputs[1].flushed(), outputs[2].flushed()]).then(() => (flushed = true));
    if (!flushed) await Promise.race([both, left]);
    if (gaveUp && !flushed) throw aborted("interactiveExec", command.lane, signal?.reason);
    return { exitCode };
  } catch (error) {
    throw failed ?? error;
  } finally {
    departure.off(leave);
    signal?.removeEventListener("abort", onAbort);
    terminal?.release();
    input.stop();
    outputs[1].stop();
    outputs[2].stop();
  }
}
