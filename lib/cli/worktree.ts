// SPDX-License-Identifier: Apache-2.0
// The files of the git work tree around a directory, as git lists them, and the stream that carries exactly those into a guest.
// Nothing else of a repository goes along: no .git with its remotes' passwords, no other branch, no stash, nothing ignored.
import { execFile, spawn } from "node:child_process";
import { lstat } from "node:fs/promises";
import { basename } from "node:path";
import { Transform, type Readable } from "node:stream";
import { LaneError, wordsOf } from "../errors.js";

export interface Worktree {
  /** The root of the work tree. */
  readonly top: string;
  /** From there to the directory that was asked for: "" or "sub/dir". */
  readonly prefix: string;
  /** Relative to the root; bytes, since names need not be UTF-8. */
  readonly files: readonly Buffer[];
  readonly bytes: number;
}

const LIST_MAX = 512 << 20;
const GIT_MS = 120_000;
const STAT_AT_ONCE = 256;
const STDERR_MAX = 4096;
/** Our own patches, which would only add up. */
export const PATCH_NAME = "agent-lane-*.patch";

/** git on the host only ever lists: no hook, no filter and no monitor of the repository's is started. */
function git(cwd: string, args: readonly string[]): Promise<Buffer> {
  const env = { ...process.env, GIT_OPTIONAL_LOCKS: "0", LC_ALL: "C" };
  const options = { cwd, env, timeout: GIT_MS, maxBuffer: LIST_MAX, encoding: "buffer" } as const;
  return new Promise((done, fail) => {
    execFile("git", ["-c", "core.fsmonitor=false", ...args], options, (error, stdout, stderr) => {
      if (error === null) done(stdout);
      else fail(new Error(stderr.toString().trim().split("\n")[0] || wordsOf(error)));
    });
  });
}

const line = (out: Buffer): string => out.toString().replace(/\n$/, "");

async function place(dir: string): Promise<{ readonly top: string; readonly prefix: string }> {
  try {
    const [top, prefix] = await Promise.all([git(dir, ["rev-parse", "--show-toplevel"]), git(dir, ["rev-parse", "--show-prefix"])]);
    if (line(top) === "") throw new Error("it is a bare repository");
    return { top: line(top), prefix: line(prefix).replace(/\/$/, "") };
  } catch (error) {
    throw new LaneError({
      code: "SOURCE_UNREADABLE",
      message: `${dir} is in no git work tree whose files could be listed: ${wordsOf(error)}`,
      cure: "Run it in a repository, name one with --dir, or say --no-copy for an empty directory.",
      cause: error,
    });
  }
}

const names = (list: Buffer): Buffer[] => {
  const found: Buffer[] = [];
  for (let from = 0, to; from < list.length; from = to + 1) {
    to = list.indexOf(0, from);
    if (to < 0) to = list.length;
    found.push(list.subarray(from, to));
  }
  return found;
};

/** Of a file or link its size; undefined for what is gone, and for another repository inside this one. */
async function sizeOf(path: Buffer): Promise<number | undefined> {
  try {
    const st = await lstat(path);
    if (st.isSymbolicLink()) return 0;
    return st.isFile() ? st.size : undefined;
  } catch {
    return undefined; // deleted, and not committed yet
  }
}

/** What a run takes along: tracked files as they are now, those of submodules too, and untracked ones that are not ignored. */
export async function worktreeOf(dir: string): Promise<Worktree> {
  const { top, prefix } = await place(dir);
  let lists: Buffer[];
  try {
    lists = await Promise.all([
      git(top, ["ls-files", "-z", "--cached", "--recurse-submodules"]),
      git(top, ["ls-files", "-z", "--others", "--exclude-standard", `--exclude=${PATCH_NAME}`]),
    ]);
  } catch (error) {
    throw new LaneError({
      code: "SOURCE_UNREADABLE",
      message: `git could not list the files of ${top}: ${wordsOf(error)}`,
      cure: "See git's words; `git status` there should say the same.",
      cause: error,
    });
  }
  // During a merge a path is listed once for each of its versions.
  const all = [...new Map(lists.flatMap(names).map((name) => [name.toString("latin1"), name])).values()];
  const files: Buffer[] = [];
  let bytes = 0;
  for (let at = 0; at < all.length; at += STAT_AT_ONCE) {
    const some = all.slice(at, at + STAT_AT_ONCE);
    const sizes = await Promise.all(some.map((name) => sizeOf(Buffer.concat([Buffer.from(`${top}/`), name]))));
    for (const [i, size] of sizes.entries()) {
      if (size === undefined) continue;
      files.push(some[i] as Buffer);
      bytes += size;
    }
  }
  return { top, prefix, files, bytes };
}

export interface Packed {
  readonly stream: Readable;
  /** Bytes that have left so far. */
  readonly sent: () => number;
  /** Rejects when something could not be packed: the stream is then no whole tree. */
  readonly done: Promise<void>;
  readonly stop: () => void;
}

/** The files as a tar stream, made by the system's tar from exactly this list. */
export function pack({ top, files }: Worktree): Packed {
  const { TAR_OPTIONS: _options, ...env } = process.env;
  const args = ["-c", "-f", "-", "-C", top, "--no-recursion", "--null", "-T", "-"];
  // COPYFILE_DISABLE: macOS would add a file of attributes beside each.
  const tar = spawn("tar", args, { env: { ...env, COPYFILE_DISABLE: "1", LC_ALL: "C" }, stdio: ["pipe", "pipe", "pipe"] });
  let said = "", sent = 0, stopped = false;
  tar.stderr.on("data", (data: Buffer) => (said = (said + data.toString()).slice(0, STDERR_MAX)));
  tar.stdin.on("error", () => undefined); // its end says more
  // "./" before each: a name that begins with a dash is no option.
  tar.stdin.end(Buffer.concat(files.flatMap((name) => [Buffer.from("./"), name, Buffer.from([0])])));
  const counted = new Transform({
    transform(chunk: Buffer, _encoding, next) {
      sent += chunk.length;
      next(null, chunk);
    },
  });
  tar.stdout.pipe(counted);
  const done = new Promise<void>((resolve, reject) => {
    const failed = (why: string, cause?: unknown): void =>
      reject(new LaneError({
        code: "SOURCE_UNREADABLE",
        message: `the files of ${basename(top)} could not be packed: ${why}`,
        cure: "See tar's words; it takes GNU tar or bsdtar.",
        cause,
      }));
    tar.on("error", (error) => {
      counted.destroy(error); // there is no tar: whoever reads the stream must not wait for it
      failed(wordsOf(error), error);
    });
    // 1: a file changed while it was read. What arrived is what was read.
    tar.on("close", (code) => (code === 0 || code === 1 || (code === null && stopped) ? resolve() : failed(said.trim().split("\n")[0] || `status ${code}`)));
  });
  done.catch(() => undefined); // whoever waits for it hears of it
  const stop = (): void => {
    stopped = true;
    tar.kill("SIGKILL");
  };
  return { stream: counted, sent: () => sent, done, stop };
}
