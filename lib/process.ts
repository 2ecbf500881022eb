// SPDX-License-Identifier: Apache-2.0
// A command of a lane with Node's streams, as child_process has it: both ends slow each other down, nothing piles up.
import { Readable, Writable } from "node:stream";
import { checkArgs, checkExec, checkKind, checkSize, checkText } from "./checks.js";
import type { Engine } from "./engine.js";
import { aborted, asLaneError } from "./errors.js";
import { namesLike, requestOf, type ExecOptions } from "./exec.js";
import type { NativeValue } from "./native.js";
import { checkNames, readOnce } from "./rules.js";
import { signalName, signalNumber } from "./signals.js";
import { Terminal, type Size } from "./terminal.js";

/** Options of `lane.spawn()`: those of `exec()` that fit, and `tty`. */
export interface SpawnOptions
  extends Omit<ExecOptions, "onLine" | "onStderrLine" | "stdin" | "maxOutputBytes"> {
  /**
   * Gives the command a terminal of this size (true: 24 x 80): its output is all on `stdout`, and the end of stdin is
   * Ctrl-D.
   */
  readonly tty?: boolean | Size | undefined;
}

const NAMES = namesLike(["onLine", "onStderrLine", "stdin", "maxOutputBytes"], ["tty"]);

/** How a command of `lane.spawn()` ended. */
export interface ProcessEnd {
  /** The exit status; 128 + n after signal n. */
  readonly exitCode: number;
  /** The signal that ended it, such as "SIGKILL", or null. */
  readonly signal: string | null;
  /** The guest killed a process of the command for want of memory. */
  readonly oom?: true;
}

interface NativeEnd {
  readonly exitCode: number;
  readonly signal: number;
  readonly oom: boolean;
}

/** What a command is to its lane. */
export interface Home {
  readonly name: string;
  readonly worktreePath: string;
}

// Bytes that wait in a stream here; with the channel's window of 256 KiB for each it is all that a slow reader costs.
const BUFFER = 64 * 1024;
// A write carries at most this much, and more waiting in the engine than that holds the writer up.
const CHUNK = 256 * 1024;

/** Output: the guest may send again what the reader has asked for. */
class Output extends Readable {
  readonly #taken: (n: number) => void;
  #held = 0;

  constructor(taken: (n: number) => void) {
    super({ highWaterMark: BUFFER });
    this.#taken = taken;
    // The command's end is told by `exited`; a stream that nobody listens to must not end the process.
    this.on("error", () => undefined);
  }

  arrived(data: Buffer): void {
    this.#held += data.length;
    if (this.destroyed || this.push(data)) this.#give();
  }

  override _read(): void {
    this.#give();
  }

  // Whoever destroys it wants no more of it, but the command goes on.
  override _destroy(error: Error | null, done: (error?: Error | null) => void): void {
    this.#give();
    done(error);
  }

  #give(): void {
    const n = this.#held;
    this.#held = 0;
    if (n > 0) this.#taken(n);
  }
}

/** Input: a write is done when the engine has room again. What nobody reads any more goes nowhere, as in EPIPE. */
class Input extends Writable {
  readonly #engine: Engine;
  #id = 0;
  #over = false;
  #wake: (() => void) | undefined;

  constructor(engine: Engine) {
    super({ highWaterMark: CHUNK, decodeStrings: true });
    this.#engine = engine;
  }

  start(id: number): void {
    this.#id = id;
  }

  drain(): void {
    this.#wake?.();
    this.#wake = undefined;
  }

  /** The command has ended. */
  over(): void {
    this.#over = true;
    this.drain();
    this.destroy();
  }

  override _write(data: Buffer, _encoding: string, done: () => void): void {
    void this.#send(data).then(done);
  }

  // What was written while a write was under way goes as one.
  override _writev(parts: { chunk: Buffer }[], done: () => void): void {
    void this.#send(...parts.map(({ chunk }) => chunk)).then(done);
  }

  override _final(done: () => void): void {
    void this.#write([], true).then(done);
  }

  override _destroy(error: Error | null, done: (error?: Error | null) => void): void {
    if (!this.#over && !this.writableFinished) void this.#write([], true);
    done(error);
  }

  async #send(...parts: Buffer[]): Promise<void> {
    let some: Buffer[] = [];
    let size = 0;
    for (const part of parts) {
      for (let at = 0; at < part.length; at += CHUNK) {
        const piece = part.subarray(at, at + CHUNK);
        if (size + piece.length > CHUNK) {
          await this.#write(some, false);
          some = [];
          size = 0;
        }
        some.push(piece);
        size += piece.length;
      }
    }
    await this.#write(some, false);
  }

  async #write(data: readonly Buffer[], end: boolean): Promise<void> {
    if (this.#over) return;
    const room = new Promise<void>((resolve) => (this.#wake = resolve));
    try {
      const { queued } = await this.#engine.request<{ queued: number }>("write", { exec: this.#id, data, end });
      if (queued === 0 && data.length > 0) this.#over = true; // it has closed its stdin
      if (queued > CHUNK && !end && !this.#over) await room; // behind the end nobody asks for more
    } catch {
      this.#over = true;
    }
  }
}

function sizeOf(tty: boolean | Size | undefined): Record<string, NativeValue> {
  if (tty === undefined || tty === false) return {};
  return tty === true ? { tty, rows: 24, columns: 80 } : { tty: true, ...checkSize("tty", tty) };
}

function commandOf(command: string | readonly string[]): { command?: string; argv?: string[] } {
  if (Array.isArray(command)) return { argv: checkArgs("command", command) };
  checkText("command", command);
  return { command };
}

/** A running command. Not reading its output stops it sooner or later, as with any pipe. */
export class LaneProcess {
  /** What is written after the command has stopped reading goes nowhere. */
  readonly stdin: Writable;
  /** Ends when the command has; is destroyed with the reason when its outcome is unknown. */
  readonly stdout: Readable;
  /** The same for stderr; with `tty` it has nothing. */
  readonly stderr: Readable;
  /**
   * Resolves whatever the status is; rejects with a LaneError when it could not be started, was ended by us, or its
   * outcome is unknown. A rejection that nobody waits for does not end the process. Output may still be unread then,
   * and is read after it as before; but a command that waits for its reader has not ended.
   */
  readonly exited: Promise<ProcessEnd>;
  readonly #engine: Engine;
  readonly #id: number;
  #running = true;

  /** @internal Use lane.spawn. */
  constructor(engine: Engine, home: Home, command: string | readonly string[], options: SpawnOptions) {
    checkNames("spawn()", options, NAMES);
    const { tty, ...rest } = readOnce(options, NAMES as readonly (keyof SpawnOptions)[]);
    const what = commandOf(command);
    checkExec(rest);
    const size = sizeOf(tty);
    if (rest.signal?.aborted === true) throw aborted("spawn", home.name, rest.signal.reason);
    this.#engine = engine;
    let id = 0;
    const outputs = {
      1: new Output((n) => engine.taken(id, 1, n)),
      2: new Output((n) => engine.taken(id, 2, n)),
    };
    const input = new Input(engine);
    const env = size["tty"] === true ? { ...Terminal.environment(), ...rest.env } : rest.env;
    const params = requestOf(home, "", { ...rest, env });
    const { signal } = rest;
    const onAbort = (): void => this.#cancel("the command was ended by its caller's signal");
    // Before the command: a signal that cannot be listened to must not leave one running.
    signal?.addEventListener("abort", onAbort, { once: true });
    const request = engine.start<NativeEnd>(
      "exec",
      { ...params, command: undefined, ...what, ...size, mode: "stream", inputOpen: true },
      { onBytes: (sub, data) => outputs[sub].arrived(data), onDrain: () => input.drain() },
    );
    this.#id = id = request.id;
    input.start(id);
    this.stdin = input;
    this.stdout = outputs[1];
    this.stderr = outputs[2];
    this.exited = request.done.then(
      (end) => this.#ended(input, end),
      (thrown: unknown) => {
        const error = asLaneError(thrown);
        this.#running = false;
        input.over();
        for (const output of Object.values(outputs)) output.destroy(error);
        throw signal?.aborted === true && error.code === "ABORTED" ? aborted("spawn", home.name, signal.reason) : error;
      },
    );
    this.exited.catch(() => undefined).then(() => signal?.removeEventListener("abort", onAbort));
  }

  /** The process id is the guest's business; this tells whether the command has ended. */
  get running(): boolean {
    return this.#running;
  }

  /**
   * Sends a signal to the command's process group, with `tree` to every process it has started. False when it has
   * ended.
   */
  kill(signal: string | number = "SIGTERM", options: { readonly tree?: boolean } = {}): boolean {
    checkNames("kill()", options, ["tree"]);
    const { tree = false } = options;
    checkKind("tree", tree, "boolean");
    const number = signalNumber(signal);
    if (!this.#running) return false;
    this.#engine.request("signal", { exec: this.#id, signal: number, tree }).catch(() => undefined);
    return true;
  }

  /** The size of its terminal; without one nothing happens. */
  resize(size: Size): void {
    const checked = checkSize("size", size);
    if (this.#running) this.#engine.request("resize", { exec: this.#id, ...checked }).catch(() => undefined);
  }

  /** Ends the command and everything it started, and waits until it is gone. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#cancel("the command was disposed of");
    await this.exited.catch(() => undefined);
  }

  #cancel(message: string): void {
    if (!this.#running) return;
    this.#engine.request("cancel", { exec: this.#id, code: "ABORTED", message }).catch(() => undefined);
  }

  #ended(input: Input, { exitCode, signal, oom }: NativeEnd): ProcessEnd {
    this.#running = false;
    input.over();
    this.stdout.push(null);
    this.stderr.push(null);
    return { exitCode, signal: signalName(signal), ...(oom ? { oom: true as const } : {}) };
  }
}

