// SPDX-License-Identifier: Apache-2.0
// One command of a lane: its options are checked, its lines delivered, its input fed, and it is ended when the caller
// or its time says so.
import { checkExec, checkText } from "./checks.js";
import type { Engine } from "./engine.js";
import { OWN_ERRORS, wordsOf } from "./errors.js";
import { LineSink, tailText } from "./lines.js";
import type { NativeValue } from "./native.js";
import { checkNames, readOnce } from "./rules.js";
import { Running } from "./running.js";
import { atOnce, Feed, type Stdin } from "./stdin.js";

/**
 * What the guest enforces for one command and all its children, by cgroup. What it cannot enforce is
 * LIMIT_UNENFORCEABLE. They are meant against accidents: root in the guest can leave its cgroup. The VM is the
 * boundary.
 */
export interface ExecLimits {
  /** Processes and threads at one time; above it a fork fails in the guest. Default: no limit of the command's own. */
  readonly processes?: number | undefined;
  /** Bytes of memory; above it the whole command is killed, and its result says `oom: true`. At least 1 MiB. */
  readonly memoryBytes?: number | undefined;
  /** CPUs' worth of time, such as 0.5 or 2. */
  readonly cpus?: number | undefined;
}

/** Options of `lane.exec()`. All are optional. */
export interface ExecOptions {
  /**
   * Called with each line of stdout, without its end, before the promise resolves. The result's stdout is then a tail.
   * Lines end at "\n"; one "\r" before it is dropped; bytes that are no UTF-8 become U+FFFD; a line above 16 MiB comes
   * in pieces, and the result's `cutLines` says so. Once the command is being ended (signal, timeout, limit, close) no
   * more lines come.
   */
  readonly onLine?: ((line: string) => void) | undefined;
  /** The same for stderr, whose result is then a tail too. */
  readonly onStderrLine?: ((line: string) => void) | undefined;
  /** Absolute working directory in the guest. Default: the worktree. */
  readonly cwd?: string | undefined;
  /** Runs the whole command as root. Default false. */
  readonly sudo?: boolean | undefined;
  /**
   * Written to the command's stdin, then closed. A stream is read no faster than the command takes it; when it fails,
   * the command is ended and the call rejects with STDIN_FAILED. `undefined`: stdin is empty (/dev/null).
   */
  readonly stdin?: Stdin | undefined;
  /** Variables of this command, over those of the run. */
  readonly env?: Readonly<Record<string, string>> | undefined;
  /**
   * Ends the command and everything it started; the call rejects with ABORTED, whose `cause` is the signal's reason.
   */
  readonly signal?: AbortSignal | undefined;
  /** Ends it after this many milliseconds, likewise; the call rejects with TIMEOUT. Counted from the call. Default: never. */
  readonly timeoutMs?: number | undefined;
  /** When it is ended: milliseconds from SIGTERM to SIGKILL. Default 2000; 0 kills at once. */
  readonly killGraceMs?: number | undefined;
  /**
   * How long a process that outlives the command and holds its stdout or stderr may delay the result, counted anew with
   * each byte it writes. Default 2000.
   */
  readonly holdGraceMs?: number | undefined;
  /**
   * Whether processes that the command left behind live on. Default true; false ends them when the command has ended.
   */
  readonly leaveDaemons?: boolean | undefined;
  /**
   * Bytes of stdout, and of stderr, that are kept without onLine. A command that writes more is killed: OUTPUT_LIMIT.
   * Default 256 MiB.
   */
  readonly maxOutputBytes?: number | undefined;
  /** What the command may use in the guest at most. Default: what the VM has. */
  readonly limits?: ExecLimits | undefined;
}

/** How a command ended, and what it wrote. */
export interface ExecResult {
  /**
   * Whole and untrimmed; with `onLine` the last 64 KiB, without the final newline. Bytes that are no UTF-8 become
   * U+FFFD.
   */
  readonly stdout: string;
  /** The same of stderr; a tail with `onStderrLine`. */
  readonly stderr: string;
  /** The exit status; 128 + n after signal n. */
  readonly exitCode: number;
  /** The guest killed a process of the command for want of memory. */
  readonly oom?: true;
  /** How often a line above 16 MiB was cut, when one was. */
  readonly cutLines?: number;
}

interface NativeExecResult {
  readonly exitCode: number;
  readonly signal: number;
  readonly stdout: Buffer;
  readonly stderr: Buffer;
  readonly stdoutDropped: number;
  readonly stderrDropped: number;
  readonly cutLines: number;
  readonly oom: boolean;
  readonly spawnNs: number;
}

// A record, so that the compiler finds a name that is missing here.
const NAMES: Readonly<Record<keyof ExecOptions, true>> = {
  onLine: true,
  onStderrLine: true,
  cwd: true,
  sudo: true,
  stdin: true,
  env: true,
  signal: true,
  timeoutMs: true,
  killGraceMs: true,
  holdGraceMs: true,
  leaveDaemons: true,
  maxOutputBytes: true,
  limits: true,
};

/** The names of `exec`'s options. */
export const EXEC_NAMES = Object.keys(NAMES) as readonly (keyof ExecOptions)[];

/** The names of a call that has those of `exec` without some, and some of its own. */
export function namesLike(without: readonly string[], more: readonly string[]): readonly string[] {
  return [...EXEC_NAMES.filter((name) => !without.includes(name)), ...more];
}

/** One running command. */
class Command extends Running {
  readonly #closing: () => boolean;

  constructor(engine: Engine, lane: string, closing: () => boolean) {
    super(engine, lane);
    this.#closing = closing;
  }

  sink(name: string, onLine: ((line: string) => void) | undefined): LineSink | undefined {
    if (onLine === undefined) return undefined;
    const threw = (error: unknown): void => {
      this.end({
        code: "CALLBACK_THREW",
        message: `${name} threw, and the command was cancelled: ${wordsOf(error)}`,
        cure: "Catch errors inside the callback.",
        cause: error,
      });
    };
    return new LineSink(onLine, () => this.ending || this.#closing(), threw);
  }

  feed(stdin: Stdin | undefined): Feed | undefined {
    if (stdin === undefined || atOnce(stdin) !== undefined) return undefined;
    return new Feed(this.engine, stdin, (error) => {
      const message = `the stream given as stdin failed, and the command was ended: ${wordsOf(error)}`;
      this.end({ code: "STDIN_FAILED", message, cure: OWN_ERRORS.STDIN_FAILED.cure, cause: error });
    });
  }
}

export function requestOf(
  lane: { readonly name: string; readonly worktreePath: string },
  command: string,
  o: ExecOptions,
): Record<string, NativeValue> {
  return {
    lane: lane.name,
    command,
    cwd: o.cwd ?? lane.worktreePath,
    sudo: o.sudo ?? false,
    mode: o.onLine === undefined ? "whole" : "lines",
    errLines: o.onStderrLine === undefined ? undefined : true,
    stdin: atOnce(o.stdin),
    inputOpen: o.stdin !== undefined && atOnce(o.stdin) === undefined ? true : undefined,
    env: o.env === undefined ? undefined : { ...o.env },
    timeoutMs: o.timeoutMs,
    killGraceMs: o.killGraceMs,
    holdGraceMs: o.holdGraceMs,
    leaveDaemons: o.leaveDaemons,
    maxOutputBytes: o.maxOutputBytes,
    maxProcesses: o.limits?.processes,
    maxMemoryBytes: o.limits?.memoryBytes,
    maxCpus: o.limits?.cpus,
  };
}

function resultOf(r: NativeExecResult, o: ExecOptions): ExecResult {
  const joined = (text: string): string => text.replace(/\r?\n$/, "");
  const stdout = tailText(r.stdout, r.stdoutDropped);
  const stderr = tailText(r.stderr, r.stderrDropped);
  return {
    stdout: o.onLine === undefined ? stdout : joined(stdout),
    stderr: o.onStderrLine === undefined ? stderr : joined(stderr),
    exitCode: r.exitCode,
    ...(r.oom ? { oom: true as const } : {}),
    ...(r.cutLines > 0 ? { cutLines: r.cutLines } : {}),
  };
}

/** Runs one command. `closing` tells whether the lane is being closed: then no line is delivered any more. */
export async function runExec(
  engine: () => Engine,
  lane: { readonly name: string; readonly worktreePath: string },
  command: string,
  options: ExecOptions,
  closing: () => boolean,
): Promise<ExecResult> {
  checkNames("exec()", options, EXEC_NAMES);
  checkText("command", command);
  const given = readOnce(options, EXEC_NAMES);
  checkExec(given);
  const core = engine();
  const running = new Command(core, lane.name, closing);
  const sinks = {
    1: running.sink("onLine", given.onLine),
    2: running.sink("onStderrLine", given.onStderrLine),
  };
  const feed = running.feed(given.stdin);
  const work = (): Promise<NativeExecResult> => {
    const request = core.start<NativeExecResult>("exec", requestOf(lane, command, given), {
      onLines: (data, sub = 1) => {
        sinks[sub]?.deliver(data);
        core.taken(running.id, sub, data.length);
      },
      onDrain: () => feed?.drain(),
    });
    running.id = request.id;
    feed?.start(request.id);
    return request.done;
  };
  try {
    return resultOf(await running.until("exec", given.signal, work), given);
  } finally {
    feed?.stop();
  }
}
