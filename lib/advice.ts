// SPDX-License-Identifier: Apache-2.0
// Why an addon could not be loaded, and what helps.
import { createHash } from "node:crypto";
import { readFileSync, statSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { wordsOf } from "./errors.js";

/** What the package has compiled files for, named as its directories are. A test compares it with what is built. */
export const TARGETS = ["linux-x64", "linux-arm64", "linux-x64-musl", "linux-arm64-musl", "darwin-arm64"] as const;
const SERVED = "Linux (x64 or arm64, with glibc 2.28 or newer or with musl) and macOS 13 or newer (arm64)";

export interface LoadFailure {
  readonly path: string;
  readonly error: unknown;
}

function text(error: unknown): string {
  return error instanceof Error ? (error.message.split("\n", 1)[0] ?? "") : wordsOf(error);
}

const REBUILD = "run `npm run build:native` in a checkout of Agent Lane on this machine";
const REINSTALL = "Install the package again on this machine (`npm ci`, or remove node_modules first)";

/** The causes that the loader's own words tell apart, the most certain first. */
const CAUSES: readonly { readonly when: RegExp; readonly cure: (match: RegExpExecArray, target: string) => string }[] = [
  {
    when: /symbol.*\b_?(?:napi|node_api|uv)_|\b(?:napi|node_api|uv)_\w+: symbol not found/,
    cure: () => `This Node lacks what the addon needs. Use Node 20.19 or newer; this is ${process.version}.`,
  },
  {
    when: /was compiled against a different Node\.js version|did not self-register/,
    cure: () => `The addon is for another Node than ${process.version}. ${REINSTALL}, or ${REBUILD}.`,
  },
  {
    when: /version `GLIBC_([\d.]+)' not found/,
    cure: ([, version]) =>
      `This system's C library is older than glibc ${version}. The package needs 2.28 (Debian 10, RHEL 8, Ubuntu 18.10); on an older system ${REBUILD}.`,
  },
  {
    when: /^(?=.*(?:cannot open shared object|shared library|Library not loaded)).*?\b(lib(?:archive|sqlite3)\.[\w.]+)/,
    cure: ([, library]) =>
      `This addon was built on a system that had ${library}. Install it (Debian: apt-get install libarchive13 libsqlite3-0; macOS: brew install libarchive sqlite), or use the package's own addon: remove build/Release.`,
  },
  {
    when: /ld-linux|libc\.so\.6|__\w+_chk: symbol not found/,
    cure: () =>
      `The addon is for glibc and this Node is for musl. ${REINSTALL}: the package holds an addon for musl too.`,
  },
  {
    when: /libc\.musl|ld-musl|\blibc\.so: (?:invalid ELF header|cannot open shared object)/,
    cure: () =>
      `The addon is for musl and this Node is for glibc. ${REINSTALL}: the package holds an addon for glibc too.`,
  },
  {
    when: /(lib[\w+.-]+\.so[\w.]*).*cannot open shared object|shared library (lib[\w+.-]+\.so[\w.]*)|Library not loaded: (\S+)/,
    cure: ([, a, b, c]) =>
      `The shared library ${a ?? b ?? c} is missing. Install the package of this system that holds it, or ${REBUILD}.`,
  },
  {
    when: /failed to map segment|Operation not permitted/,
    cure: () =>
      "The file lies on a file system that allows no programs (mounted with noexec), or a policy forbids it. Install the package elsewhere.",
  },
  {
    // glibc's words for a file of another processor, too.
    when: /agent_lane\.node: cannot open shared object file|file too short|invalid ELF header|wrong ELF class|not a mach-o|incompatible architecture|wrong architecture|Exec format/i,
    cure: (_match, target) =>
      `The file is damaged, or of another platform than ${target}: node_modules was copied from elsewhere. ${REINSTALL}.`,
  },
];

/** Advice by cause: what failed decides what helps. */
export function adviceFor(failures: readonly LoadFailure[], target: string): { message: string; cure: string } {
  if (failures.length === 0) {
    const served = (TARGETS as readonly string[]).includes(target);
    return {
      message: `there is no Agent Lane addon for ${target} in the package`,
      cure: served ? `${REINSTALL}; in a checkout, ${REBUILD}.` : `Agent Lane runs on ${SERVED}.`,
    };
  }
  const all = failures.map((f) => `${f.path}: ${text(f.error)}`).join("; ");
  const message = `the Agent Lane addon could not be loaded (${all})`;
  const codes = failures.map((f) => (f.error as NodeJS.ErrnoException | undefined)?.code);
  if (codes.includes("ERR_DLOPEN_DISABLED")) return { message, cure: "Start Node without --no-addons." };
  const damaged = failures.map((f) => damageOf(f.path)).find((words) => words !== undefined);
  if (damaged !== undefined)
    return {
      message: message.includes(damaged) ? message : `${message}; ${damaged}`,
      cure: `The file is damaged. ${REINSTALL}.`,
    };
  for (const { when, cure } of CAUSES) {
    const match = when.exec(all);
    if (match !== null) return { message, cure: cure(match, target) };
  }
  if (codes.includes("EACCES") || /permission denied/i.test(all))
    return { message, cure: "Make the file readable for this user." };
  return { message, cure: `${REINSTALL}, or ${REBUILD}.` };
}

interface Packed {
  readonly bytes: number;
  readonly sha256: string;
}

/** What was packed under the name of this file; nothing in a checkout, where files are built and not packed. */
function packedAs(path: string): Packed | undefined {
  try {
    const list = readFileSync(join(dirname(dirname(path)), "prebuilds.json"), "utf8");
    return (JSON.parse(list) as { files: Record<string, Packed | undefined> }).files[
      `${basename(dirname(path))}/${basename(path)}`
    ];
  } catch {
    return undefined;
  }
}

/**
 * Throws for a file that was cut short or has grown. To be asked before it is loaded: the loader maps what the file's
 * header promises, and the process dies of SIGBUS where there is nothing behind it.
 */
export function refuseCutFile(path: string): void {
  const packed = packedAs(path);
  if (packed === undefined) return;
  const { size } = statSync(path);
  if (size !== packed.bytes) throw new Error(`it has ${size} bytes instead of ${packed.bytes}`);
}

/** How a file that does not load differs from what was packed; nothing when it does not, or when nobody knows. */
function damageOf(path: string): string | undefined {
  const packed = packedAs(path);
  if (packed === undefined) return undefined;
  try {
    refuseCutFile(path);
    const digest = createHash("sha256").update(readFileSync(path)).digest("hex");
    return digest === packed.sha256 ? undefined : "its contents have changed";
  } catch (error) {
    return text(error);
  }
}
