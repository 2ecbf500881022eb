// SPDX-License-Identifier: Apache-2.0
// The handle of one lane: its calls become requests to the engine, and nothing is delivered after close.
import { checkArgs } from "./checks.js";
import {
  copyFileOut,
  copyIn,
  copyOut,
  type CopyFileOutOptions,
  type CopyHome,
  type CopyInOptions,
  type CopyInResult,
  type CopyOutOptions,
  type CopyOutResult,
  type CopyResult,
} from "./copy.js";
import type { Engine } from "./engine.js";
import { asLaneError, LaneError, whence } from "./errors.js";
import { tell } from "./events.js";
import { runExec, type ExecOptions, type ExecResult } from "./exec.js";
import { checkInteractive, Departure, interact, type InteractiveOptions } from "./interactive.js";
import { iterateLines, type LinesOptions } from "./iterate.js";
import type { ResolvedOptions } from "./options.js";
import { LaneProcess, type SpawnOptions } from "./process.js";

/** The engine's answer to a create. */
export interface NativeLane {
  readonly lane: string;
  readonly worktreePath: string;
  readonly [fact: string]: unknown;
}

/**
 * An open lane: one VM, from `createLane()`. Its calls reject with LANE_CLOSED once it is closing or has ended, and with
 * CHANNEL_CLOSED, PROTOCOL_VIOLATION or LANE_EXPIRED when it ends under them; BAD_OPTION says which argument is wrong.
 */
export class Lane {
  /** The lane's name. */
  readonly name: string;
  /** Absolute path of the worktree in the guest. */
  readonly worktreePath: string;
  /** What was known of the lane when it was ready: `image` (its id), `accelerator`, `network`, `home`, `manifest` (path of its run manifest) and more. */
  readonly facts: Readonly<Record<string, unknown>>;

  readonly #engine: Engine;
  readonly #options: ResolvedOptions;
  readonly #release: () => void;
  readonly #departure = new Departure();
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
   * could not be run, was ended by us, or its outcome is unknown (EXEC_FAILED, ABORTED, TIMEOUT, OUTPUT_LIMIT,
   * CALLBACK_THREW, STDIN_FAILED, LANE_CLOSED, CHANNEL_CLOSED, …); the error's `stdout` and `stderr` are the last of
   * what it had written. Ended means: everything that it started is gone when the promise settles, also what has left
   * its session or was orphaned (root could leave its cgroup; that ends with the lane).
   */
  async exec(command: string, options: ExecOptions = {}): Promise<ExecResult> {
    const told = whence(this.exec);
    try {
      const result = await runExec(() => this.#open("exec"), this, command, options, () => this.#closing !== undefined);
      this.#watchSyncIn(command, options, result);
      return result;
    } catch (error) {
      throw told(error);
    }
  }

  /**
   * Runs a program with the caller's streams for as long as it takes; back-pressure goes through in all three
   * directions. When stdin is a terminal the program gets one too: raw, in its size, with what follows of it; the
   * caller's own is given back however the call ends.
   */
  async interactiveExec(args: string[], options: InteractiveOptions): Promise<{ exitCode: number }> {
    const argv = checkArgs("args", args);
    const streams = checkInteractive(options);
    const engine = this.#open("interactiveExec");
    return interact(
      engine,
      { lane: this.name, argv, cwd: streams.cwd ?? this.worktreePath, env: this.#options.env },
      streams,
      this.#departure,
    );
  }

  /**
   * Starts a program (an array: its name and arguments) or `sh -c` (a text), with Node's streams. Throws what is wrong
   * with the arguments, and LANE_CLOSED.
   */
  spawn(command: string | readonly string[], options: SpawnOptions = {}): LaneProcess {
    return new LaneProcess(this.#open("spawn"), this, command, options);
  }

  /**
   * The lines of stdout of `sh -c command`, one by one: the command goes on only as fast as the loop. Leaving the loop
   * ends the command and everything it started. A status other than 0 is thrown after the last line, as COMMAND_FAILED
   * with `exitCode` and `stderr`, unless `check: false`.
   */
  lines(command: string, options: LinesOptions = {}): AsyncGenerator<string, void, undefined> {
    return iterateLines(this.#open("lines"), this, command, options);
  }

  /**
   * Copies a host file, or the contents of a host directory, *as* `sandboxPath` (absolute), for the user `agent`, all of
   * it at once or nothing. Missing parents are made, a file replaces a file, a directory is merged into one that is
   * there, or that `sandboxPath` is a link to; what would replace a directory by something else, or something else by a
   * directory, is COPY_IN_FAILED. Modes, times, links (as links), hard links and holes are kept; owners, extended
   * attributes and ACLs are not. Rejects with SOURCE_MISSING, SOURCE_UNREADABLE or SOURCE_UNSUPPORTED (a socket, FIFO or
   * device, more than 1 PiB, a path of more than 4,096 bytes), which name the path, COPY_IN_FAILED with the guest's reason, GUEST_PATH_INVALID, ABORTED, CALLBACK_THREW,
   * LANE_CLOSED, CHANNEL_CLOSED.
   */
  async copyIn(hostPath: string, sandboxPath: string, options: CopyInOptions = {}): Promise<CopyInResult> {
    const told = whence(this.copyIn);
    try {
      return await copyIn(this.#copier("copyIn"), hostPath, sandboxPath, options);
    } catch (error) {
      throw told(error);
    }
  }

  /**
   * Copies one regular file of the guest to the host: whole or not at all, at most `maxBytes`, through no link on
   * either side, never into `.git`. Missing parents are made. Rejects with GUEST_FILE_MISSING, NOT_A_FILE, IS_LINK,
   * FILE_TOO_LARGE, COPY_OUT_LIMIT (`maxCopyOutTotalBytes` of the lane), GUEST_PATH_INVALID, HOST_PATH_* (what is wrong
   * with the target), HOST_DISK_FULL, COPY_OUT_FAILED, ABORTED, CALLBACK_THREW, LANE_CLOSED, CHANNEL_CLOSED. A copy that
   * is ended so late that the file is in place all the same rejects too.
   */
  async copyFileOut(sandboxPath: string, hostPath: string, options: CopyFileOutOptions = {}): Promise<CopyResult> {
    const told = whence(this.copyFileOut);
    try {
      return await copyFileOut(this.#copier("copyFileOut"), sandboxPath, hostPath, options, this.#options);
    } catch (error) {
      throw told(error);
    }
  }

  /**
   * Copies a directory of the guest to the host, *as* `hostPath`, which must not be there yet or be an empty directory:
   * all of it at once or nothing, through no link on either side, never into `.git`. Files, directories and links come
   * with their modes (less the umask, no setuid, no setgid) and times; files are not executable unless `executables`
   * says so, links that lead out of the directory are left out and counted in the result. Missing parents are made.
   * Rejects with GUEST_FILE_MISSING, NOT_A_DIRECTORY, IS_LINK, TREE_REFUSED (a socket, FIFO, device, or anything called
   * `.git`), TREE_TOO_LARGE, and otherwise as copyFileOut does.
   */
  async copyOut(sandboxPath: string, hostPath: string, options: CopyOutOptions = {}): Promise<CopyOutResult> {
    const told = whence(this.copyOut);
    try {
      return await copyOut(this.#copier("copyOut"), sandboxPath, hostPath, options, this.#options);
    } catch (error) {
      throw told(error);
    }
  }

  /** Round trip to the guest's lane agent, in nanoseconds. Rejects with LANE_CLOSED or CHANNEL_CLOSED. */
  async ping(): Promise<number> {
    const { ns } = await this.#open("ping").request<{ ns: number }>("ping", { lane: this.name });
    return ns;
  }

  /**
   * Destroys the lane. Idempotent; calls share one promise; never rejects: a failure is told by onEvent and a process
   * warning, and left to the reaper.
   */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    this.#departure.begin();
    return this.#closing;
  }

  /** `close()`, for `await using`. */
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
    this.#departure.begin();
    this.#release();
  }

  #copier(what: string): CopyHome {
    return { name: this.name, engine: () => this.#open(what), closing: () => this.#closing !== undefined };
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

  // Sandcastle forgets a handle whose sync-in fails, without close. Its last step there is this command, so its success
  // is the sign of life.
  #watchSyncIn(command: string, options: ExecOptions, result: ExecResult): void {
    if (this.#syncedIn || result.exitCode !== 0 || command.trim() !== "git rev-parse HEAD") return;
    if (options.cwd !== undefined && options.cwd !== this.worktreePath) return;
    this.#syncedIn = true;
    this.#engine.request("syncedIn", { lane: this.name }).catch(() => undefined);
  }
}
