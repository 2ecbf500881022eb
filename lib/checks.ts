// SPDX-License-Identifier: Apache-2.0
// What the arguments of a lane's calls may be. Each error names its argument; nothing of what is wrong is used first.
import { posix, resolve } from "node:path";
import { types } from "node:util";
import { badOption } from "./errors.js";
import type { ExecLimits, ExecOptions } from "./exec.js";
import { checkEnv, checkNames, kindOf } from "./rules.js";

const HOUR_MS = 3_600_000;
// What one request may have; the core counts the program's name among them.
const ARGS_MAX = 1023;

const LIMIT_NAMES: Readonly<Record<keyof ExecLimits, true>> = { processes: true, memoryBytes: true, cpus: true };

export function checkText(name: string, value: unknown): asserts value is string {
  if (typeof value !== "string") throw badOption(`${name} must be a string, not ${kindOf(value)}`);
  if (value.includes("\0")) throw badOption(`${name} contains a NUL character`);
}

/** A program's name and its arguments, as a copy: what the caller changes afterwards has no effect. */
export function checkArgs(name: string, value: unknown): string[] {
  if (!Array.isArray(value) || value.length === 0)
    throw badOption(`${name} must be an array with the program's name first, not ${emptyOr(value)}`);
  if (value.length > ARGS_MAX)
    throw badOption(`${name} must be an array of at most ${ARGS_MAX} texts, not of ${value.length}`);
  return Array.from(value as unknown[], (arg, i) => {
    checkText(`${name}[${i}]`, arg);
    return arg;
  });
}

function emptyOr(value: unknown): string {
  return Array.isArray(value) ? "an empty one" : kindOf(value);
}

export function checkCwd(cwd: unknown): void {
  if (cwd === undefined) return;
  checkText("cwd", cwd);
  if (!posix.isAbsolute(cwd)) throw badOption(`cwd must be an absolute path in the guest, not "${cwd.slice(0, 80)}"`);
}

/**
 * A path of the host, absolute. An empty one would be the current directory: a variable that was never set must not
 * send all of that to a guest.
 */
export function hostPathOf(name: string, value: unknown): string {
  checkText(name, value);
  if (value === "") throw badOption(`${name} must be a path, not an empty text`);
  try {
    return resolve(value);
  } catch (error) {
    throw badOption(`${name} is a relative path, and there is no current directory any more`, error);
  }
}

export function checkKind(name: string, value: unknown, kind: "function" | "boolean"): void {
  const wanted = kind === "function" ? "a function" : "true or false";
  if (value !== undefined && typeof value !== kind) throw badOption(`${name} must be ${wanted}, not ${kindOf(value)}`);
}

export function checkNumber(name: string, value: unknown, least: number, most: number, whole = true): void {
  if (value === undefined) return;
  if (typeof value !== "number" || !(value >= least && value <= most) || (whole && !Number.isInteger(value)))
    throw badOption(`${name} must be a${whole ? " whole" : ""} number from ${least} to ${most}, not ${kindOf(value)}`);
}

function hasMethods(value: unknown, ...names: readonly string[]): boolean {
  if (value === null || (typeof value !== "object" && typeof value !== "function")) return false;
  return names.every((name) => typeof (value as Record<string, unknown>)[name] === "function");
}

export function checkReadable(name: string, value: unknown, wanted = "a readable stream"): void {
  if (!hasMethods(value, "read", "on", "off", "pause", "resume"))
    throw badOption(`${name} must be ${wanted} of Node's, not ${kindOf(value)}`);
}

export function checkWritable(name: string, value: unknown): void {
  if (!hasMethods(value, "write", "on", "off"))
    throw badOption(`${name} must be a writable stream of Node's, not ${kindOf(value)}`);
}

export function checkSignal(signal: unknown): void {
  if (signal === undefined) return;
  if (!hasMethods(signal, "addEventListener", "removeEventListener") || typeof (signal as AbortSignal).aborted !== "boolean")
    throw badOption(`signal must be an AbortSignal, not ${kindOf(signal)}`);
}

/** The size of a terminal; `name` is what the caller gave it as. */
export function checkSize(name: string, value: unknown): { rows: number; columns: number } {
  if (typeof value !== "object" || value === null)
    throw badOption(`${name} must be an object with rows and columns, not ${kindOf(value)}`);
  const { rows, columns } = value as { readonly rows?: unknown; readonly columns?: unknown };
  for (const [side, n] of Object.entries({ rows, columns })) {
    if (n === undefined) throw badOption(`${side} must be a whole number from 1 to 65535, not undefined`);
    checkNumber(side, n, 1, 65535);
  }
  return { rows, columns } as { rows: number; columns: number };
}

function checkInput(stdin: unknown): void {
  if (stdin === undefined || typeof stdin === "string" || types.isUint8Array(stdin)) return;
  checkReadable("stdin", stdin, "a string, a Buffer or a readable stream");
}

function checkLimits(limits: unknown): void {
  if (limits === undefined) return;
  checkNames("limits", limits, Object.keys(LIMIT_NAMES), "limits");
  const { processes, memoryBytes, cpus } = limits as ExecLimits;
  checkNumber("limits.processes", processes, 1, 2 ** 22);
  checkNumber("limits.memoryBytes", memoryBytes, 2 ** 20, 2 ** 50);
  checkNumber("limits.cpus", cpus, 0.01, 1024, false);
}

/** The options of a command, whose names are known already. */
export function checkExec(o: ExecOptions): void {
  checkCwd(o.cwd);
  checkInput(o.stdin);
  checkSignal(o.signal);
  if (o.env !== undefined) checkEnv(o.env, "env");
  checkKind("onLine", o.onLine, "function");
  checkKind("onStderrLine", o.onStderrLine, "function");
  checkKind("sudo", o.sudo, "boolean");
  checkKind("leaveDaemons", o.leaveDaemons, "boolean");
  checkNumber("timeoutMs", o.timeoutMs, 1, 2 ** 31 - 1);
  checkNumber("killGraceMs", o.killGraceMs, 0, HOUR_MS);
  checkNumber("holdGraceMs", o.holdGraceMs, 0, HOUR_MS);
  checkNumber("maxOutputBytes", o.maxOutputBytes, 1, 512 * 2 ** 20);
  checkLimits(o.limits);
}
