// SPDX-License-Identifier: Apache-2.0
// Finds and loads the addon, and types its surface. The only file that touches it.
import { existsSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { adviceFor, refuseCutFile, type LoadFailure } from "./advice.js";
import { LaneError, type NativeError } from "./errors.js";

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

/** This machine's target: platform, processor, and on Linux the C library that this Node was linked with. */
export function hostTarget(): string {
  const target = `${process.platform}-${process.arch}`;
  return process.platform === "linux" && !usesGlibc() ? `${target}-musl` : target;
}

/** Node's report names the version of glibc it runs with; with another library there is none to name. */
function usesGlibc(): boolean {
  const { report } = process as { report?: { excludeNetwork?: boolean; getReport(): object } };
  // Not every runtime that calls itself Node has reports, and those that have none are for glibc first.
  if (typeof report?.getReport !== "function") return true;
  const before = report.excludeNetwork;
  // Else it looks up the name of every peer of every open socket.
  report.excludeNetwork = true;
  try {
    const { header } = report.getReport() as { header?: { glibcVersionRuntime?: string } };
    return header === undefined || header.glibcVersionRuntime !== undefined;
  } finally {
    if (before !== undefined) report.excludeNetwork = before;
  }
}

function candidates(target: string): string[] {
  const fromEnv = process.env["AL_BINDING"];
  if (fromEnv !== undefined && fromEnv !== "") return [resolve(fromEnv)];
  return [
    join(packageDir, "build", "Release", "agent_lane.node"),
    join(packageDir, "prebuilds", target, "agent_lane.node"),
  ];
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
  const failures: LoadFailure[] = [];
  const explicit = (process.env["AL_BINDING"] ?? "") !== "";
  const target = hostTarget();
  for (const path of candidates(target)) {
    if (!explicit && !existsSync(path)) continue;
    try {
      refuseCutFile(path);
      loaded = require(path) as Native;
      return loaded;
    } catch (error) {
      failures.push({ path, error });
    }
  }
  const { message, cure } = adviceFor(failures, target);
  throw new LaneError({ code: "NATIVE_LOAD_FAILED", message, cure, cause: failures[0]?.error });
}
