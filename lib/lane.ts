// SPDX-License-Identifier: Apache-2.0
// The handle of one lane: its calls become requests to the engine, bytes become texts, and nothing is delivered after
// close.
import { posix, resolve } from "node:path";
import type { Engine } from "./engine.js";
import { asLaneError, badOption, LaneError } from "./errors.js";
import { tell } from "./events.js";
import { interact, type InteractiveOptions } from "./interactive.js";
import { LineSink, tailText } from "./lines.js";
import type { ResolvedOptions } from "./options.js";

export interface ExecOptions {
  /** Called with each line of stdout, without its end, before the promise resolves. The result's stdout is then a tail. */
  readonly onLine?: ((line: string) => void) | undefined;
  /** Absolute working directory in the guest. Default: the worktree. */
  readonly cwd?: string | undefined;
  /** Runs the whole command as root. Default false. */
  readonly sudo?: boolean | undefined;
  /** Written to the command's stdin as UTF-8, then closed. `undefined`: stdin is empty (/dev/null). */
  readonly stdin?: string | undefined;
}

export interface ExecResult {
  /** Whole and untrimmed; with `onLine` the last 64 KiB, without the final newline. Bytes that are no UTF-8 become U+FFFD. */
  readonly stdout: string;
  readonly stderr: string;
  /** The exit status; 128 + n after signal n. */
  readonly exitCode: number;
}

interface NativeExecResult {
  readonly exitCode: number;
  readonly signal: number;
  readonly stdout: Buffer;
  readonly stderr: Buffer;
  readonly stdoutDropped: number;
  readonly stderrDropped: number;
  readonly spawnNs: number;
}

/** The engine's answer to a create. */
export interface NativeLane {
  readonly lane: string;
  readonly worktreePath: string;
  readonly [fact: string]: unknown;
}

function checkText(name: string, value: unknown): asserts value is string {
  if (typeof value !== "string")
    throw badOption(`${name} must be a string, not ${value === null ? "null" : typeof value}`);
  if (value.includes("\0")) throw badOption(`${name} contains a NUL character`);
}

export function checkCwd(cwd: unknown): void {
  if (cwd === undefined) return;
  checkText("cwd", cwd);
  if (!posix.isAbsolute(cwd)) throw badOption(`cwd must be an absolute path in the guest, not "${cwd.slice(0, 80)}"`);
}

function checkExec(command: unknown, options: ExecOptions): void {
  checkText("command", command);
  checkCwd(options.cwd);
  if (options.stdin !== undefined && typeof options.stdin !== "string")
    throw badOption(`stdin must be a string, not ${typeof options.stdin}`);
  if (options.onLine !== undefined && typeof options.onLine !== "function")
    throw badOption(`onLine must be a function, not ${typeof options.onLine}`);
  if (options.sudo !== undefined && typeof options.sudo !== "boolean")
    throw badOption(`sudo must be true or false, not ${typeof options.sudo}`);
}

export class Lane {
  /** The lane's name. */
  readonly name: string;
  /** Absolute path of the worktree in the guest. */
  readonly worktreePath: string;
  /** What the engine said about the lane when it was ready. */
  readonly facts: Readonly<Record<string, unknown>>;

  readonly #engine: Engine;
  readonly #options: ResolvedOptions;
  readonly #release: () => void;
  #closing: Promise<void> | undefined;
  #ended: string | undefined;
  #syncedIn = false;

  /** @internal Use openLane. */
  constructor(engine: Engine, options: ResolvedOptions, native: NativeLane, release: () => void) {
    this.#engine = engine;
    this.#options = options;
    this.#release = release;
    this.name = native.lane;
    this.worktreePath = native.worktreePath;
    this.facts = native;
  }

  /** Whether close has begun, or the lane has ended by itself. */
  get closed(): boolean {
    return this.#closing !== undefined || this.#ended !== undefined;
  }

  /**
   * Runs `sh -c command` in the guest. Resolves whatever the exit status is; rejects with a LaneError when the command
   * could not be run or its outcome is unknown (LANE_CLOSED, CHANNEL_CLOSED, EXEC_FAILED, OUTPUT_LIMIT, CALLBACK_THREW, …).
   */
  async exec(command: string, options: ExecOptions = {}): Promise<ExecResult> {
    checkExec(command, options);
    const engine = this.#open("exec");
    const { onLine } = options;
    let id = 0;
    const sink =
      onLine &&
      new LineSink(
        onLine,
        () => this.#closing !== undefined,
        () =>
          void engine
            .request("cancel", { exec: id, code: "CALLBACK_THREW", message: "onLine threw" })
            .catch(() => undefined),
      );
    const request = engine.start<NativeExecResult>(
      "exec",
      {
        lane: this.name,
        command,
        cwd: options.cwd ?? this.worktreePath,
        sudo: options.sudo ?? false,
        mode: sink === undefined ? "whole" : "lines",
        stdin: options.stdin === undefined ? undefined : Buffer.from(options.stdin, "utf8"),
      },
      sink && {
        onLines: (data) => {
          sink.deliver(data);
          engine.taken(id, 1, data.length);
        },
      },
    );
    id = request.id;
    const result = await request.done.catch((error: LaneError) => {
      throw this.#threw(sink) ?? error;
    });
    const threw = this.#threw(sink);
    if (threw !== undefined) throw threw;
    this.#watchSyncIn(command, options, result);
    if (sink === undefined)
      return {
        stdout: result.stdout.toString("utf8"),
        stderr: tailText(result.stderr, result.stderrDropped),
        exitCode: result.exitCode,
      };
    const stdout = tailText(result.stdout, result.stdoutDropped).replace(/\r?\n$/, "");
    return { stdout, stderr: tailText(result.stderr, result.stderrDropped), exitCode: result.exitCode };
  }

  /**
   * Runs a program with the caller's streams for as long as it takes; back-pressure goes through in all three directions.
   * Rejects with TTY_UNSUPPORTED when stdin is a terminal.
   */
  async interactiveExec(args: string[], options: InteractiveOptions): Promise<{ exitCode: number }> {
    if (!Array.isArray(args) || args.length === 0)
      throw badOption("args must be an array with the program's name first");
    args.forEach((arg, i) => checkText(`args[${i}]`, arg));
    checkCwd(options.cwd);
    const engine = this.#open("interactiveExec");
    return interact(
      engine,
      { lane: this.name, argv: args, cwd: options.cwd ?? this.worktreePath },
      options,
      () => this.closed,
    );
  }

  /** Copies a host file, or the contents of a host directory, *as* `sandboxPath` (absolute); parents are made, directories merged. */
  async copyIn(hostPath: string, sandboxPath: string): Promise<void> {
    checkText("hostPath", hostPath);
    checkText("sandboxPath", sandboxPath);
    await this.#open("copyIn").request("copyIn", {
      lane: this.name,
      hostPath: resolve(hostPath),
      guestPath: sandboxPath,
    });
  }

  /** Copies one regular file of the guest to the host: whole or not at all, at most `maxCopyOutBytes`, through no link. */
  async copyFileOut(sandboxPath: string, hostPath: string): Promise<void> {
    checkText("sandboxPath", sandboxPath);
    checkText("hostPath", hostPath);
    const { maxCopyOutBytes: maxBytes, copyOutRoot: root } = this.#options;
    await this.#open("copyFileOut").request("copyOut", {
      lane: this.name,
      guestPath: sandboxPath,
      hostPath: resolve(hostPath),
      maxBytes,
      root,
    });
  }

  /** Round trip to the guest's lane agent, in nanoseconds. */
  async ping(): Promise<number> {
    const { ns } = await this.#open("ping").request<{ ns: number }>("ping", { lane: this.name });
    return ns;
  }

  /** Destroys the lane. Idempotent; calls share one promise; never rejects: a failure is told by onEvent and a process warning, and left to the reaper. */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  async #close(): Promise<void> {
    try {
      if (!this.#engine.closed) await this.#engine.request("close", { lane: this.name });
    } catch (thrown) {
      const error = asLaneError(thrown);
      // Interrupted: the whole process ends, and the engine's own close has this lane in its hands.
      if (error.code !== "INTERRUPTED" && error.code !== "NO_SUCH_LANE") {
        tell(this.#options.onEvent, { type: "close-failed", lane: this.name, error });
        process.emitWarning(`${this.name}: ${error.message} ${error.cure}`, {
          type: "AgentLaneWarning",
          code: error.code,
        });
      }
    } finally {
      this.#release();
    }
  }

  /** @internal The lane is gone without close: lifetime over, guest lost, sync-in never came. */
  ended(reason: string): void {
    this.#ended ??= reason;
    this.#release();
  }

  #open(what: string): Engine {
    if (this.#closing !== undefined || this.#ended !== undefined) {
      const why = this.#ended === undefined || this.#closing !== undefined ? "" : ` (${this.#ended})`;
      throw new LaneError({
        code: "LANE_CLOSED",
        message: `${what}: ${this.name} is closed${why}`,
        cure: "Create a new lane; a closed one cannot be used again.",
        lane: this.name,
      });
    }
    return this.#engine;
  }

  #threw(sink: LineSink | undefined): LaneError | undefined {
    if (sink?.thrown === undefined) return undefined;
    const { error } = sink.thrown;
    return new LaneError({
      code: "CALLBACK_THREW",
      message: `onLine threw, and the command was cancelled: ${error instanceof Error ? error.message : String(error)}`,
      cure: "Catch errors inside the callback.",
      lane: this.name,
      cause: error,
    });
  }

  // Sandcastle forgets a handle whose sync-in fails, without close. Its last step there is this command, so its success
  // is the sign of life.
  #watchSyncIn(command: string, options: ExecOptions, result: NativeExecResult): void {
    if (this.#syncedIn || result.exitCode !== 0 || command.trim() !== "git rev-parse HEAD") return;
    if (options.cwd !== undefined && options.cwd !== this.worktreePath) return;
    this.#syncedIn = true;
    this.#engine.request("syncedIn", { lane: this.name }).catch(() => undefined);
  }
}
