// SPDX-License-Identifier: Apache-2.0
// LaneError: the one error class of the package, with a code to test, a sentence to read and a cure to try.
import { inspect } from "node:util";
import { tailText } from "./lines.js";

/** Codes of the core; the same table as AL_ERR_MAP in src/err.h (a test holds them equal). */
export const CORE_ERROR_CODES = [
  "BAD_OPTION",
  "UNKNOWN_OPTION",
  "HOME_UNSAFE",
  "HOME_TOO_LONG",
  "LIMA_MISSING",
  "LIMA_TOO_OLD",
  "LIMA_UNKNOWN_VERSION",
  "LIMA_ROOT",
  "LIMA_FAILED",
  "QEMU_MISSING",
  "IMAGE_MISSING",
  "IMAGE_CORRUPT",
  "IMAGE_INVALID",
  "BUSY",
  "CONFIG_REFUSED",
  "NETWORK_UNENFORCEABLE",
  "START_TIMEOUT",
  "START_FAILED",
  "PEER_UNPROVEN",
  "PEER_INCOMPATIBLE",
  "CHANNEL_CLOSED",
  "PROTOCOL_VIOLATION",
  "LANE_CLOSED",
  "LANE_EXPIRED",
  "EXEC_FAILED",
  "OUTPUT_LIMIT",
  "CALLBACK_THREW",
  "SOURCE_MISSING",
  "SOURCE_UNREADABLE",
  "SOURCE_UNSUPPORTED",
  "COPY_IN_FAILED",
  "GUEST_FILE_MISSING",
  "NOT_A_FILE",
  "IS_LINK",
  "FILE_TOO_LARGE",
  "GUEST_PATH_INVALID",
  "HOST_PATH_REFUSED",
  "HOST_PATH_INVALID",
  "HOST_PATH_GIT",
  "HOST_PATH_LINK",
  "HOST_PATH_DIRECTORY",
  "HOST_PATH_EXISTS",
  "HOST_DISK_FULL",
  "COPY_OUT_FAILED",
  "COPY_OUT_LIMIT",
  "NOT_A_DIRECTORY",
  "TREE_REFUSED",
  "TREE_TOO_LARGE",
  "RESOURCE_LIMIT",
  "REGISTRY_DAMAGED",
  "REGISTRY_NEWER",
  "REGISTRY_LOCKED",
  "INTERRUPTED",
  "DESTROY_FAILED",
  "NO_SUCH_LANE",
  "BAD_NAME",
  "PROGRAM_UNSAFE",
  "ABORTED",
  "IO_ERROR",
  "NO_MEMORY",
  "WARDEN_REFUSED",
  "TIMEOUT",
  "LIMIT_UNENFORCEABLE",
  "TRANSPORT_UNAVAILABLE",
  "KEEPER_FAILED",
  "IMAGE_FORMAT",
  "IMAGE_UNTRUSTED",
  "IMAGE_IN_USE",
  "DERIVE_FAILED",
  "MANIFEST_BROKEN",
  "NO_MANIFEST",
  "INTERNAL",
] as const;

/** Codes that the core cannot know, with what they mean and what helps. */
export const OWN_ERRORS = {
  INPUT_GONE: {
    meaning: "A file that the image's lock file names has left the package mirror, or has other bytes there.",
    cure: "Take today's versions into the lock file with `agent-lane image lock --update`, then build again.",
  },
  IMAGE_BUILD_FAILED: {
    meaning: "The recipe of a guest image ended with an error.",
    cure: "See the recipe's words above the error; what it had fetched is kept, so building again is quick.",
  },
  TIMER_FAILED: {
    meaning: "The timer of `agent-lane reap --install` could not be set up or removed.",
    cure: "See the message. Without a systemd of the user (`systemctl --user`) or launchd, run `agent-lane reap` from cron instead.",
  },
  SETUP_FAILED: {
    meaning: "The setup of a project image failed or took too long; nothing is left of it.",
    cure: "See the end of its output in the message; correct the setup, its inputs, image.network or image.timeoutMinutes.",
  },
  IMAGE_NOT_READY: {
    meaning: "The image of a project is not there yet, and a lane of Sandcastle's could not wait for it any longer.",
    cure: "Prepare it once before, which has no such limit: `await prepareImage(options)`, or `agent-lane image prepare FILE`.",
  },
  STDIN_FAILED: {
    meaning: "The stream that was given as a command's stdin failed, so the command was ended.",
    cure: "See the error's cause; the command has not seen the end of its input.",
  },
  COMMAND_FAILED: {
    meaning: "A command whose lines were read to the end had a status other than 0.",
    cure: "See the error's stderr and exitCode; with check: false the status is not looked at.",
  },
  NATIVE_LOAD_FAILED: {
    meaning: "The addon is not in the package, or Node could not load it.",
    cure: "Follow the error's own cure, which fits the cause; mostly: install the package again on this machine.",
  },
} as const;

/** Every value that `LaneError.code` can have. */
export type LaneErrorCode = (typeof CORE_ERROR_CODES)[number] | keyof typeof OWN_ERRORS;

export interface LaneErrorFields {
  readonly code: LaneErrorCode;
  /** What went wrong, as a sentence. */
  readonly message: string;
  /** What to do about it, as a sentence. */
  readonly cure: string;
  /** The step of create or close that failed, such as "boot". */
  readonly step?: string | undefined;
  /** The lane's name, once it has one. */
  readonly lane?: string | undefined;
  readonly cause?: unknown;
  /** Of a command that was ended: the last 64 KiB of what it had written. */
  readonly stdout?: string | undefined;
  readonly stderr?: string | undefined;
  /** Of a command that was ended: its status, when the guest could still tell; 128 + n after signal n. */
  readonly exitCode?: number | undefined;
  /** Of a command that was ended: the guest killed a process of it for want of memory. */
  readonly oom?: boolean | undefined;
}

/** An operation of Agent Lane failed. Test `code`; show `message` and `cure`. */
export class LaneError extends Error {
  /** Always "LaneError". */
  override readonly name = "LaneError";
  /** What programs test; docs/ERRORS.md has them all. */
  readonly code: LaneErrorCode;
  /** What to do about it, as a sentence. */
  readonly cure: string;
  /** The step of create or close that failed, such as "boot". */
  readonly step: string | undefined;
  /** The lane's name, once it has one. */
  readonly lane: string | undefined;
  /** Of a command that was ended: the last 64 KiB of what it had written. */
  readonly stdout: string | undefined;
  /** The same of stderr. */
  readonly stderr: string | undefined;
  /** Of a command that was ended: its status, when the guest could still tell; 128 + n after signal n. */
  readonly exitCode: number | undefined;
  /** Of a command that was ended: the guest killed a process of it for want of memory. */
  readonly oom: boolean | undefined;

  constructor(fields: LaneErrorFields) {
    super(fields.message, fields.cause === undefined ? undefined : { cause: fields.cause });
    this.code = fields.code;
    this.cure = fields.cure;
    this.step = fields.step;
    this.lane = fields.lane;
    this.stdout = fields.stdout;
    this.stderr = fields.stderr;
    this.exitCode = fields.exitCode;
    this.oom = fields.oom;
  }

  /** Code, message and cure. */
  override toString(): string {
    if (this.cure === "" || this.message.endsWith(this.cure)) return `${this.name} [${this.code}]: ${this.message}`;
    return `${this.name} [${this.code}]: ${this.message}\n  cure: ${this.cure}`;
  }

  [inspect.custom](): string {
    const frames = (this.stack ?? "").split("\n").filter((line) => /^\s+at /.test(line));
    const facts = [this.step && `step: ${this.step}`, this.lane && `lane: ${this.lane}`].filter(Boolean);
    const cause = this.cause === undefined ? [] : [`  cause: ${inspect(this.cause).replaceAll("\n", "\n  ")}`];
    return [this.toString(), ...facts.map((fact) => `  ${fact}`), ...frames, ...cause].join("\n");
  }
}

/** The error as the core reports it. */
export interface NativeError {
  readonly code: string;
  readonly message: string;
  readonly cure: string;
  readonly step?: string | undefined;
  readonly lane?: string | undefined;
}

/** What the core says beside an error of a command. */
interface NativeOutput {
  readonly stdout?: Buffer | null;
  readonly stderr?: Buffer | null;
  readonly stdoutDropped?: number;
  readonly stderrDropped?: number;
  readonly exitCode?: number;
  readonly oom?: boolean;
}

export function fromNative(error: NativeError, value?: unknown): LaneError {
  const fields = { ...error, code: error.code as LaneErrorCode };
  if (typeof value !== "object" || value === null) return new LaneError(fields);
  const { stdout, stderr, stdoutDropped = 0, stderrDropped = 0, exitCode = -1, oom } = value as NativeOutput;
  return new LaneError({
    ...fields,
    stdout: stdout ? tailText(stdout, stdoutDropped) : undefined,
    stderr: stderr ? tailText(stderr, stderrDropped) : undefined,
    exitCode: exitCode >= 0 ? exitCode : undefined,
    oom: oom === true ? true : undefined,
  });
}

// A message that goes into another one; what follows is in the error's cause.
const WORDS_MAX = 400;

/**
 * What was thrown, in words: of bounded length, without control characters, for anything at all. Callbacks and streams
 * of the caller's may throw what has no text, or throws again when asked for it.
 */
export function wordsOf(thrown: unknown): string {
  try {
    const message = typeof thrown === "object" && thrown !== null && "message" in thrown ? thrown.message : thrown;
    return String(message)
      .slice(0, WORDS_MAX)
      .replace(/[\x00-\x1f\x7f]+/g, " ");
  } catch {
    return "something that has no text";
  }
}

/** What was thrown, as a LaneError: TypeErrors of the binding are wrong arguments, anything else is a bug of ours. */
export function asLaneError(thrown: unknown): LaneError {
  if (thrown instanceof LaneError) return thrown;
  const message = wordsOf(thrown);
  if (thrown instanceof TypeError) return badOption(message, thrown);
  return new LaneError({
    code: "INTERNAL",
    message,
    cure: "This is a bug in Agent Lane; please report it with the message.",
    cause: thrown,
  });
}

/**
 * Errors come from the engine without a stack of their caller's. What this returns gives a LaneError the stack of the
 * call of `method`; it is only written out when somebody looks at it.
 */
export function whence(method: (...args: never[]) => unknown): (thrown: unknown) => unknown {
  const here: { stack?: string } = {};
  Error.captureStackTrace(here, method);
  return (thrown) => {
    if (thrown instanceof LaneError) {
      const frames = (here.stack ?? "").split("\n").filter((line) => /^\s+at /.test(line));
      thrown.stack = [`${thrown.name}: ${thrown.message}`, ...frames].join("\n");
    }
    return thrown;
  };
}

export function badOption(message: string, cause?: unknown): LaneError {
  return new LaneError({ code: "BAD_OPTION", message, cure: "Correct the option named in the message.", cause });
}

/** What a call rejects with that its caller's signal ended, or never let begin. */
export function aborted(what: string, lane: string, reason: unknown): LaneError {
  const message = `${what} was aborted by its signal`;
  return new LaneError({ code: "ABORTED", message, cure: "The caller cancelled the operation.", lane, cause: reason });
}

/**
 * The same error with code and cure inside the message. Sandcastle passes only `message` on to the user, so an error
 * that goes through it must carry all of it there.
 */
export function spoken(error: LaneError): LaneError {
  const where = error.step === undefined ? error.code : `${error.code}, step ${error.step}`;
  const { code, cure, step, lane, cause, stdout, stderr, exitCode, oom } = error;
  const message = `${error.message} [${where}] ${cure}`.trimEnd();
  const copy = new LaneError({ code, message, cure, step, lane, cause, stdout, stderr, exitCode, oom });
  if (error.stack !== undefined) copy.stack = error.stack.replace(error.message, copy.message);
  return copy;
}
