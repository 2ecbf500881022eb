// SPDX-License-Identifier: Apache-2.0
// Copies into and out of a lane: their options are checked, their progress told, and they end when the caller says so.
import { checkKind, checkNumber, checkSignal, checkText, hostPathOf } from "./checks.js";
import type { Engine } from "./engine.js";
import { badOption, wordsOf } from "./errors.js";
import { onRejection } from "./lines.js";
import type { NativeValue } from "./native.js";
import { COPY_OUT_MOST, type ResolvedOptions } from "./options.js";
import { checkNames, kindOf, readOnce } from "./rules.js";
import { Running } from "./running.js";

/** How far a copy is. */
export interface CopyProgress {
  /** Bytes of contents so far. */
  readonly bytes: number;
  /** Files, directories and links so far. */
  readonly files: number;
  /** Bytes in all, where that is known: of what goes in, unless it takes long to count. */
  readonly totalBytes?: number;
}

/** What every copy takes. */
export interface CopyOptions {
  /**
   * Told how far the copy is: at most ten times a second, never after the promise has settled, never once the copy is
   * being ended, and perhaps never for a short one. What it throws ends the copy, which rejects with CALLBACK_THREW.
   */
  readonly onProgress?: ((progress: CopyProgress) => void) | undefined;
  /** Ends the copy, which rejects with ABORTED, whose `cause` is the signal's reason, when both ends are cleaned up. */
  readonly signal?: AbortSignal | undefined;
}

/** Options of `lane.copyIn()`. */
export interface CopyInOptions extends CopyOptions {
  /**
   * What to leave out of a directory: up to 1024 patterns, as in a .gitignore that lies in it (`node_modules`, `/build/`,
   * `*.log`, `!keep.log`). Default: none.
   */
  readonly ignore?: readonly string[] | undefined;
}

/** Options of `lane.copyFileOut()`. */
export interface CopyFileOutOptions extends CopyOptions {
  /** Largest size of the file, in bytes. Integer 1–1099511627776 (1 TiB), default: the lane's `maxCopyOutBytes`. */
  readonly maxBytes?: number | undefined;
}

/** Options of `lane.copyOut()`. */
export interface CopyOutOptions extends CopyFileOutOptions {
  /** Largest size of all files together, in bytes. Integer 1–1099511627776 (1 TiB), default: the lane's `maxCopyOutBytes`. */
  readonly maxBytes?: number | undefined;
  /** Most files, directories and links. Integer 1–10000000, default 100000. */
  readonly maxEntries?: number | undefined;
  /** Most directories one inside the other. Integer 1–128, default 64. */
  readonly maxDepth?: number | undefined;
  /** Whether files that are executable in the guest are so on the host. Default false: none is. */
  readonly executables?: boolean | undefined;
}

/** What a copy has brought. */
export interface CopyResult {
  /** Bytes of contents that were copied. */
  readonly bytes: number;
  /** Files, directories and links that were copied. */
  readonly files: number;
}

/** What `lane.copyIn()` has brought. */
export interface CopyInResult extends CopyResult {
  /** Files that grew or shrank while they were read: they were cut, or filled up with zeros, to the size they had. */
  readonly changed: number;
  /** The first of them, when there is one. */
  readonly changedPath?: string;
}

/** What `lane.copyOut()` has brought. */
export interface CopyOutResult extends CopyInResult {
  /** Links that would have led out of the directory: they were left out. */
  readonly skipped: number;
  /** The first of them, when there is one. */
  readonly skippedPath?: string;
}

const IGNORE_MAX = 1024;
const PATTERN_MAX = 4096;
const ENTRIES_MOST = 10_000_000;
const DEPTH_MOST = 128;
const RATE = 10;
const SECOND = 1000;

const COMMON = { onProgress: true, signal: true } as const;
const IN_NAMES: Readonly<Record<keyof CopyInOptions, true>> = { ...COMMON, ignore: true };
const FILE_OUT_NAMES: Readonly<Record<keyof CopyFileOutOptions, true>> = { ...COMMON, maxBytes: true };
const OUT_NAMES: Readonly<Record<keyof CopyOutOptions, true>> = {
  ...FILE_OUT_NAMES,
  maxEntries: true,
  maxDepth: true,
  executables: true,
};

/** What the lane's options say of copies out of it. */
export type OutBounds = Partial<Pick<ResolvedOptions, "maxCopyOutBytes" | "copyOutRoot">>;

/** Who copies: the engine of an open lane, or LANE_CLOSED; and whether the lane is being closed. */
export interface CopyHome {
  readonly name: string;
  engine(): Engine;
  closing(): boolean;
}

/** The options of one call, each read once; what all copies share is checked. */
function given<T extends CopyOptions>(call: string, options: T, known: Readonly<Record<keyof T, true>>): T {
  const names = Object.keys(known) as (keyof T & string)[];
  checkNames(`${call}()`, options, names);
  const read = readOnce(options, names);
  checkKind("onProgress", read.onProgress, "function");
  checkSignal(read.signal);
  return read;
}

function checkIgnore(ignore: unknown): string[] | undefined {
  if (ignore === undefined) return undefined;
  if (!Array.isArray(ignore)) throw badOption(`ignore must be an array of patterns, not ${kindOf(ignore)}`);
  if (ignore.length > IGNORE_MAX)
    throw badOption(`ignore must be an array of at most ${IGNORE_MAX} patterns, not of ${ignore.length}`);
  const patterns = Array.from(ignore as unknown[], (pattern, i) => {
    checkText(`ignore[${i}]`, pattern);
    if (pattern === "" || pattern.length > PATTERN_MAX)
      throw badOption(`ignore[${i}] must be a pattern of 1 to ${PATTERN_MAX} characters, not of ${pattern.length}`);
    return pattern;
  });
  return patterns.length === 0 ? undefined : patterns;
}

/** Tells the caller how far it is. The core keeps the pace too, but events that were held up come close together. */
class Meter {
  readonly #onProgress: (progress: CopyProgress) => unknown;
  readonly #threw: (error: unknown) => void;
  readonly #told: number[] = [];

  constructor(onProgress: (progress: CopyProgress) => void, threw: (error: unknown) => void) {
    this.#onProgress = onProgress;
    this.#threw = threw;
  }

  tell(progress: CopyProgress): void {
    const now = performance.now();
    if (now - (this.#told.at(-RATE) ?? -SECOND) < SECOND) return;
    this.#told.push(now);
    if (this.#told.length > RATE) this.#told.shift();
    try {
      onRejection(this.#onProgress(progress), this.#threw);
    } catch (error) {
      this.#threw(error);
    }
  }
}

/** One copy, from its request to its result; `call` is what the caller knows it as. */
export async function runCopy<T extends CopyResult>(
  home: CopyHome,
  call: string,
  op: "copyIn" | "copyOut" | "copyTreeOut",
  params: Readonly<Record<string, NativeValue>>,
  { onProgress, signal }: CopyOptions,
): Promise<T> {
  const engine = home.engine();
  const running = new Running(engine, home.name);
  const threw = (cause: unknown): void => {
    const message = `onProgress threw, and the copy was cancelled: ${wordsOf(cause)}`;
    running.end({ code: "CALLBACK_THREW", message, cure: "Catch errors inside the callback.", cause });
  };
  const meter = onProgress === undefined ? undefined : new Meter(onProgress, threw);
  return running.until(call, signal, () => {
    const request = engine.start<T>(
      op,
      { lane: home.name, ...params, progress: meter === undefined ? undefined : true },
      {
        onProgress: (progress) => {
          if (!running.ending && !home.closing()) meter?.tell(progress);
        },
      },
    );
    running.id = request.id;
    return request.done;
  });
}

export async function copyIn(
  home: CopyHome,
  hostPath: string,
  guestPath: string,
  options: CopyInOptions,
): Promise<CopyInResult> {
  const from = hostPathOf("hostPath", hostPath);
  checkText("sandboxPath", guestPath);
  const { ignore, ...rest } = given("copyIn", options, IN_NAMES);
  const params = { hostPath: from, guestPath, ignore: checkIgnore(ignore) };
  return runCopy<CopyInResult>(home, "copyIn", "copyIn", params, rest);
}

export async function copyFileOut(
  home: CopyHome,
  guestPath: string,
  hostPath: string,
  options: CopyFileOutOptions,
  { maxCopyOutBytes, copyOutRoot: root }: OutBounds,
): Promise<CopyResult> {
  checkText("sandboxPath", guestPath);
  const to = hostPathOf("hostPath", hostPath);
  const { maxBytes, ...rest } = given("copyFileOut", options, FILE_OUT_NAMES);
  checkNumber("maxBytes", maxBytes, 1, COPY_OUT_MOST);
  // A slash at the end says that it is a directory, which is not for a path to lose on the way: the core refuses it.
  const target = hostPath.endsWith("/") ? `${to}/` : to;
  const params = { guestPath, hostPath: target, maxBytes: maxBytes ?? maxCopyOutBytes, root };
  return runCopy<CopyResult>(home, "copyFileOut", "copyOut", params, rest);
}

export async function copyOut(
  home: CopyHome,
  guestPath: string,
  hostPath: string,
  options: CopyOutOptions,
  { maxCopyOutBytes, copyOutRoot: root }: OutBounds,
): Promise<CopyOutResult> {
  checkText("sandboxPath", guestPath);
  const to = hostPathOf("hostPath", hostPath);
  const { onProgress, signal, maxBytes, ...rest } = given("copyOut", options, OUT_NAMES);
  checkNumber("maxBytes", maxBytes, 1, COPY_OUT_MOST);
  checkNumber("maxEntries", rest.maxEntries, 1, ENTRIES_MOST);
  checkNumber("maxDepth", rest.maxDepth, 1, DEPTH_MOST);
  checkKind("executables", rest.executables, "boolean");
  const params = { guestPath, hostPath: to, maxBytes: maxBytes ?? maxCopyOutBytes, ...rest, root };
  return runCopy<CopyOutResult>(home, "copyOut", "copyTreeOut", params, { onProgress, signal });
}
