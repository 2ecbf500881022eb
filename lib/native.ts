// SPDX-License-Identifier: Apache-2.0
// Finds and loads the addon, and types its surface. The only file that touches it.
import { existsSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { LaneError, wordsOf, type NativeError } from "./errors.js";

/** A value that can cross the border; a Buffer is bytes. */
export type NativeValue =
  | null
  | undefined
  | boolean
  | number
  | string
  | Uint8Array
  | readonly NativeValue[]
  | { readonly [key: string]: NativeValue };

export interface NativeEvent {
  readonly type: "done" | "error" | "lines" | "bytes" | "drain" | "progress" | "lane";
  readonly id: number;
  /** Only with "bytes" and "lines": 1 stdout, 2 stderr. */
  readonly sub?: number;
  readonly value?: unknown;
  readonly error?: NativeError;
}

export interface NativeEngine {
  /** One request; answered by exactly one "done" or "error" event. Throws a TypeError that names the wrong argument. */
  post(id: number, op: string, params: { readonly [key: string]: NativeValue }): void;
  /** Gives `n` bytes of a stream back after they have been handled. */
  taken(id: number, sub: number, n: number): void;
  /** Ends all lanes, blocking for at most `timeoutMs`. Returns the number of lanes that are left. */
  close(timeoutMs: number): number;
}

interface Native {
  open(packageDir: string, onEvents: (events: readonly NativeEvent[]) => void): NativeEngine;
  /** Switches off what the terminal at `fd` does to output. False when it cannot: the terminal is gone. */
  rawOutput(fd: number): boolean;
  /**
   * For the end of the process: engines with work stop where they are. Blocks for at most `timeoutMs`; false when one
   * had not stopped by then.
   */
  leave(timeoutMs: number): boolean;
}

/** The package's root: this file lies in `dist/`, or in `lib/` during development. */
export const packageDir = dirname(dirname(fileURLToPath(import.meta.url)));

function candidates(): string[] {
  const fromEnv = process.env["AL_BINDING"];
  if (fromEnv !== undefined && fromEnv !== "") return [resolve(fromEnv)];
  return [
    join(packageDir, "build", "Release", "agent_lane.node"),
    join(packageDir, "prebuilds", `${process.platform}-${process.arch}`, "agent_lane.node"),
  ];
}

interface Failure {
  readonly path: string;
  readonly error: unknown;
}

function text(error: unknown): string {
  return error instanceof Error ? (error.message.split("\n", 1)[0] ?? "") : wordsOf(error);
}

/** Advice by cause: what failed decides what helps. */
export function adviceFor(
  failures: readonly Failure[],
  platform = `${process.platform}-${process.arch}`,
): { message: string; cure: string } {
  const rebuild = "Run `npm run build:native` in a checkout of Agent Lane on this machine.";
  if (failures.length === 0) {
    const supported = /^(linux|darwin)-(x64|arm64)$/.test(platform);
    return {
      message: `there is no Agent Lane addon for ${platform} in the package`,
      cure: supported ? rebuild : "Agent Lane runs on Linux (x64, arm64) and on macOS (arm64).",
    };
  }
  const all = failures.map((f) => `${f.path}: ${text(f.error)}`).join("; ");
  const message = `the Agent Lane addon could not be loaded (${all})`;
  const codes = failures.map((f) => (f.error as NodeJS.ErrnoException | undefined)?.code);
  if (codes.includes("ERR_DLOPEN_DISABLED")) return { message, cure: "Start Node without --no-addons." };
  const library = /lib(archive|sqlite3)[^:\s]*/.exec(all)?.[0];
  if (library !== undefined && /cannot open shared object|Library not loaded/.test(all)) {
    return {
      message,
      cure: `Install ${library} (Debian: apt-get install libarchive13 libsqlite3-0; macOS: brew install libarchive sqlite).`,
    };
  }
  const glibc = /version `(GLIBC(?:XX)?_[\d.]+)' not found/.exec(all)?.[1];
  if (glibc !== undefined)
    return {
      message,
      cure: `This system's C library is older than ${glibc}. Use a newer distribution, or: ${rebuild}`,
    };
  if (/musl|ld-linux|__\w+_chk: symbol not found/.test(all))
    return { message, cure: `The addon is for glibc and this Node is for musl. ${rebuild}` };
  if (/invalid ELF header|wrong architecture|incompatible architecture|mach-o|Exec format/i.test(all))
    return {
      message,
      cure: `The addon is for another platform than ${platform}: node_modules was copied from elsewhere. Install it again on this machine.`,
    };
  if (codes.includes("EACCES")) return { message, cure: "Make the file readable for this user." };
  return { message, cure: rebuild };
}

/**
 * Other runtimes load addons too, but ours takes libuv from Node, and they have none: Bun and Deno end the process then, without
 * a word to the caller. So it is not tried.
 */
function refuseOtherRuntimes(versions: Readonly<Record<string, string | undefined>>): void {
  const name = ["bun", "deno"].find((each) => versions[each] !== undefined);
  if (name === undefined) return;
  throw new LaneError({
    code: "NATIVE_LOAD_FAILED",
    message: `the Agent Lane addon needs Node's libuv, which ${name} ${versions[name]} does not have`,
    cure: "Run the script with Node 20.19 or newer.",
  });
}

let loaded: Native | undefined;

/** Loads the addon once per JavaScript environment. Throws LaneError NATIVE_LOAD_FAILED. */
export function native(): Native {
  if (loaded !== undefined) return loaded;
  refuseOtherRuntimes(process.versions);
  const require = createRequire(import.meta.url);
  const failures: Failure[] = [];
  const explicit = (process.env["AL_BINDING"] ?? "") !== "";
  for (const path of candidates()) {
    if (!explicit && !existsSync(path)) continue;
    try {
      loaded = require(path) as Native;
      return loaded;
    } catch (error) {
      failures.push({ path, error });
    }
  }
  const { message, cure } = adviceFor(failures);
  throw new LaneError({ code: "NATIVE_LOAD_FAILED", message, cure, cause: failures[0]?.error });
}
