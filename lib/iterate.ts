// SPDX-License-Identifier: Apache-2.0
// The lines of a command as an async iterator: the command goes on only as fast as the loop does, and ends with it.
import { checkExec, checkKind, checkText } from "./checks.js";
import type { Engine } from "./engine.js";
import { aborted, LaneError, OWN_ERRORS, wordsOf } from "./errors.js";
import { namesLike, requestOf, type ExecOptions } from "./exec.js";
import { tailText, textOf } from "./lines.js";
import type { Home } from "./process.js";
import { checkNames, readOnce } from "./rules.js";
import { atOnce, Feed } from "./stdin.js";

/** Options of `lane.lines()`: those of `exec()` that fit, and `check`. */
export interface LinesOptions extends Omit<ExecOptions, "onLine" | "onStderrLine" | "maxOutputBytes"> {
  /** Whether a status other than 0 makes the iterator throw COMMAND_FAILED after the last line. Default true. */
  readonly check?: boolean | undefined;
}

const NAMES = namesLike(["onLine", "onStderrLine", "maxOutputBytes"], ["check"]);

interface NativeEnd {
  readonly exitCode: number;
  readonly stderr: Buffer;
  readonly stderrDropped: number;
}

function failure(home: Home, command: string, end: NativeEnd): LaneError {
  const stderr = tailText(end.stderr, end.stderrDropped);
  const last = stderr.trimEnd().split("\n").at(-1) ?? "";
  const message = `the command ended with status ${end.exitCode}: ${last === "" ? command : last}`.slice(0, 500);
  return new LaneError({
    code: "COMMAND_FAILED",
    message,
    cure: OWN_ERRORS.COMMAND_FAILED.cure,
    lane: home.name,
    stderr,
    exitCode: end.exitCode,
  });
}

/** Batches of whole lines that wait for the loop. They are given back one by one, as it has gone through them. */
class Batches {
  readonly #waiting: Buffer[] = [];
  #wake: (() => void) | undefined;

  add(data: Buffer): void {
    this.#waiting.push(data);
    this.wake();
  }

  wake(): void {
    this.#wake?.();
    this.#wake = undefined;
  }

  /** The next one; undefined once `over` says that none comes any more. */
  async next(over: () => boolean): Promise<Buffer | undefined> {
    while (this.#waiting.length === 0 && !over()) await new Promise<void>((resolve) => (this.#wake = resolve));
    return this.#waiting.shift();
  }
}

function* linesOf(data: Buffer): Generator<string> {
  const text = textOf(data);
  for (let from = 0, end; from < text.length; from = end + 1) {
    end = text.indexOf("\n", from);
    if (end < 0) end = text.length;
    yield text.slice(from, end);
  }
}

/** Runs `sh -c command` and gives its lines. Leaving the loop ends the command and everything it started. */
export async function* iterateLines(
  engine: Engine,
  home: Home,
  command: string,
  given: LinesOptions,
): AsyncGenerator<string, void, undefined> {
  checkNames("lines()", given, NAMES);
  const { check = true, ...options } = readOnce(given, NAMES as readonly (keyof LinesOptions)[]);
  checkText("command", command);
  checkKind("check", check, "boolean");
  checkExec(options);
  const { signal, stdin } = options;
  if (signal?.aborted === true) throw aborted("lines", home.name, signal.reason);
  const batches = new Batches();
  const state: { end?: NativeEnd; error?: unknown; over: boolean } = { over: false };
  let id = 0;
  let why: LaneError | undefined;
  const cancel = (message: string): void => {
    engine.request("cancel", { exec: id, code: "ABORTED", message }).catch(() => undefined);
  };
  const feed =
    stdin === undefined || atOnce(stdin) !== undefined
      ? undefined
      : new Feed(engine, stdin, (cause) => {
          const message = `the stream given as stdin failed, and the command was ended: ${wordsOf(cause)}`;
          why ??= new LaneError({ code: "STDIN_FAILED", message, cure: OWN_ERRORS.STDIN_FAILED.cure, cause });
          cancel(message);
        });
  const onAbort = (): void => {
    why ??= aborted("lines", home.name, signal?.reason);
    cancel(why.message);
  };
  // Before the command: a signal that cannot be listened to must not leave one running.
  signal?.addEventListener("abort", onAbort, { once: true });
  const request = engine.start<NativeEnd>(
    "exec",
    { ...requestOf(home, command, options), mode: "lines" },
    { onLines: (data) => batches.add(data), onDrain: () => feed?.drain() },
  );
  id = request.id;
  const settled = request.done
    .then(
      (end) => (state.end = end),
      (error: unknown) => (state.error = error),
    )
    .then(() => {
      state.over = true;
      batches.wake();
    });
  feed?.start(id);
  try {
    for (let data; (data = await batches.next(() => state.over)) !== undefined; engine.taken(id, 1, data.length))
      yield* linesOf(data);
    if (state.end === undefined) throw why ?? state.error;
    if (check && state.end.exitCode !== 0) throw failure(home, command, state.end);
  } finally {
    signal?.removeEventListener("abort", onAbort);
    feed?.stop();
    if (!state.over) {
      cancel("the loop over its lines was left");
      await settled;
    }
  }
}
