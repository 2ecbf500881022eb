// SPDX-License-Identifier: Apache-2.0
// agent-lane cp: a file or a directory into a lane that another process owns, or out of it.
import { statSync } from "node:fs";
import { basename, join, posix } from "node:path";
import type { Command } from "commander";
import {
  copyFileOut,
  copyIn,
  copyOut,
  type CopyHome,
  type CopyOptions,
  type CopyOutResult,
  type CopyResult,
} from "../../copy.js";
import { engine, type Engine } from "../../engine.js";
import { LaneError } from "../../errors.js";
import { Bar } from "../bar.js";
import { interruptible, type Interrupt } from "../interrupt.js";
import { plain, printJson } from "../output.js";
import { attached } from "./attached.js";
import { addCommon, countArgument, pathArgument, sizeArgument, type CommonOptions } from "./common.js";

/** One end of a copy. */
export interface Place {
  /** The lane's name, "" for the only one; undefined: this machine. */
  readonly lane: string | undefined;
  readonly path: string;
}

/** `LANE:PATH`, `:PATH`, or a path of this machine, which has a slash before its first colon or no colon at all. */
export function placeOf(text: string): Place {
  const at = text.indexOf(":");
  const slash = text.indexOf("/");
  if (at >= 0 && (slash < 0 || at < slash)) return { lane: text.slice(0, at), path: text.slice(at + 1) };
  pathArgument(text); // it must not be empty
  return { lane: undefined, path: text };
}

/** What the copy is called in a directory; undefined for `.`, `..` and `/`: those are their contents. */
function nameIn(path: string): string | undefined {
  const name = basename(path);
  return ["", ".", ".."].includes(name) ? undefined : name;
}

function isDirectory(path: string): boolean {
  try {
    return statSync(path).isDirectory();
  } catch {
    return false; // the copy says what is wrong with it
  }
}

interface Looked {
  /** Absolute and normal. */
  readonly path: string;
  readonly directory: boolean;
  /** Of a file, in bytes. */
  readonly size: number;
}

const LOOK = 'pwd -P || exit; if [ -d "$1" ]; then echo d; elif [ -f "$1" ]; then stat -Lc %s -- "$1"; fi 2>&-; exit 0';

/** Where a path of the guest is, from the worktree, and what is there now. The guest may lie: nothing relies on it. */
async function look(lane: string, path: string): Promise<Looked> {
  const { exitCode, stdout } = await engine().request<{ exitCode: number; stdout: Buffer }>("exec", {
    lane,
    argv: ["/bin/sh", "-c", LOOK, "cp", path === "" ? "." : path],
    cwd: path.startsWith("/") ? "/" : undefined,
    mode: "whole",
    maxOutputBytes: 65536,
  });
  const [, directory, there] = /^(\/[^\0]*?)\n(?:(d|\d{1,15})\n)?$/.exec(stdout.toString()) ?? [];
  if (exitCode !== 0 || directory === undefined)
    throw new LaneError({
      code: "EXEC_FAILED",
      message: "the guest did not say where its worktree is",
      cure: "Use an absolute path of the guest.",
      lane,
    });
  const whole = posix.join(directory, path.startsWith("/") ? posix.relative("/", path) : path);
  return { path: whole.replace(/(?<=.)\/+$/, ""), directory: there === "d", size: Number(there) || 0 };
}

interface CpOptions extends CommonOptions {
  readonly ignore?: readonly string[];
  readonly executables?: boolean;
  readonly maxBytes?: number;
  readonly maxEntries?: number;
  readonly maxDepth?: number;
  readonly json?: boolean;
}

/** What every copy takes, and where it is shown. */
interface Calls {
  readonly bar: Bar | undefined;
  readonly options: CopyOptions;
}

type Report = CopyResult & Partial<CopyOutResult> & { readonly from: string; readonly to: string };

async function putIn(home: CopyHome, from: string, to: Place, options: CpOptions, calls: Calls): Promise<Report> {
  const source = pathArgument(from);
  const target = await look(home.name, to.path);
  const name = nameIn(from);
  const inside = target.directory || (to.path.endsWith("/") && !isDirectory(source));
  const path = inside && name !== undefined ? posix.join(target.path, name) : target.path;
  const result = await copyIn(home, source, path, { ...calls.options, ignore: options.ignore });
  return { from: source, to: `${home.name}:${path}`, ...result };
}

async function takeOut(home: CopyHome, from: Place, to: string, options: CpOptions, calls: Calls): Promise<Report> {
  const source = await look(home.name, from.path);
  calls.bar?.expect(source.size);
  const name = nameIn(from.path);
  const inside = isDirectory(pathArgument(to)) || (to.endsWith("/") && !source.directory);
  const path = inside && name !== undefined ? join(pathArgument(to), name) : pathArgument(to);
  const { maxBytes, maxEntries, maxDepth, executables } = options;
  const result = source.directory
    ? await copyOut(home, source.path, path, { ...calls.options, maxBytes, maxEntries, maxDepth, executables }, {})
    : await copyFileOut(home, source.path, path, { ...calls.options, maxBytes }, {});
  return { from: `${home.name}:${source.path}`, to: path, ...result };
}

/** The cure of an error in the words of this command. */
function inOurWords(error: unknown): unknown {
  const cures: Readonly<Record<string, string>> = {
    FILE_TOO_LARGE: "Say how large it may be: --max-bytes 2GiB.",
    TREE_TOO_LARGE: "Say how large it may be: --max-bytes 2GiB, --max-entries 1000000, --max-depth 128.",
  };
  const cure = error instanceof LaneError ? cures[error.code] : undefined;
  if (!(error instanceof LaneError) || cure === undefined) return error;
  const { code, message, lane } = error;
  return new LaneError({ code, message, cure, lane });
}

const hint = (name: string): string => `A path of this machine that has a colon is written ./${name}:…`;

async function copy(from: Place, to: Place, options: CpOptions, interrupt: Interrupt): Promise<Report> {
  const bar = Bar.seen ? new Bar() : undefined;
  const calls: Calls = { bar, options: { signal: interrupt.signal, onProgress: bar && ((p) => bar.update(p)) } };
  const named = from.lane ?? to.lane;
  try {
    return await attached(named === "" ? undefined : named, options, hint, async (name) => {
      // It is asked for when the copy begins: from then on the signal ends it, both ends cleaned up.
      const ours = (): Engine => {
        interrupt.endsBySignal();
        return engine();
      };
      const home = { name, engine: ours, closing: () => false };
      return from.lane === undefined
        ? await putIn(home, from.path, to, options, calls)
        : await takeOut(home, from, to.path, options, calls);
    });
  } catch (error) {
    throw inOurWords(error);
  } finally {
    bar?.stop();
  }
}

function checkUsage(self: Command, from: Place, to: Place, options: CpOptions): void {
  if ((from.lane === undefined) === (to.lane === undefined))
    self.error("error: exactly one of SRC and DST is in a lane (LANE:PATH, or :PATH for the only lane)");
  const into = from.lane === undefined;
  const wrong = into ? (["executables", "maxBytes", "maxEntries", "maxDepth"] as const) : (["ignore"] as const);
  const given = wrong.find((name) => options[name] !== undefined);
  const flag = given?.replace(/[A-Z]/g, (c) => `-${c.toLowerCase()}`);
  if (flag !== undefined) self.error(`error: --${flag} is for copies ${into ? "out of" : "into"} a lane`);
}

const HELP = `
LANE:PATH is in a lane, :PATH in the only one that is ready; a relative PATH starts at the worktree. Everything else is of
this machine; write ./a:b for a name with a colon. Directories are copied whole, without a flag.

As with cp, the copy goes inside DST when that is a directory (or, for a file, ends in a slash), and becomes DST otherwise;
missing parents are made. SRC that ends in /. stands for what is in it. A directory that goes into a lane is merged into
one that is there; one that comes out needs a place where nothing is, or an empty directory. A file replaces a file. What
comes out does so whole or not at all, without links that lead out of the directory; a directory with a .git, a socket, a
FIFO or a device anywhere in it does not come out.

On a terminal a bar shows how far it is. Ctrl-C ends the copy and cleans up on both ends (exit status 130).

Examples:
  agent-lane cp notes.txt :                           into the worktree of the only lane
  agent-lane cp --ignore node_modules . :src          the current directory as src of the worktree
  agent-lane cp agent-lane-0000abcd-0000wxyz:/var/log/syslog ./logs/`;

function warn(count: number | undefined, one: string, more: string, first: string | undefined): void {
  if (count === 1) process.stderr.write(`warning: 1 ${one}: ${plain(first)}\n`);
  else if (count !== undefined && count > 0) process.stderr.write(`warning: ${count} ${more}, first ${plain(first)}\n`);
}

const collect = (pattern: string, all: readonly string[] = []): string[] => [...all, pattern];

export function addCp(program: Command): void {
  const place = (text: string): Place => placeOf(text);
  addCommon(program.command("cp"), { limactl: true })
    .description("copy a file or a directory into an open lane, or out of it")
    .argument("<src>", "what to copy: a path, LANE:PATH or :PATH", place)
    .argument("<dst>", "where to: a path, LANE:PATH or :PATH", place)
    .option("--ignore <pattern>", "leave out what matches, as in a .gitignore (into a lane; repeatable)", collect)
    .option("--executables", "let files of a directory stay executable (out of a lane)")
    .option("--max-bytes <size>", "most that may come out of a lane, such as 2GiB (default: 256MiB)", sizeArgument)
    .option("--max-entries <n>", "most files, directories and links out of a lane (default: 100000)", countArgument)
    .option("--max-depth <n>", "most directories one inside the other out of a lane (default: 64)", countArgument)
    .option("--json", "print the result as a JSON object")
    .addHelpText("after", HELP)
    .action(async (from: Place, to: Place, options: CpOptions, self: Command) => {
      checkUsage(self, from, to, options);
      await interruptible(async (interrupt) => {
        const report = await copy(from, to, options, interrupt);
        if (options.json === true) printJson(report);
        const cut = "changed while being read: cut, or filled up with zeros";
        warn(report.changed, `file ${cut}`, `files ${cut}`, report.changedPath);
        const [one, more] = ["link that leads out was left out", "links that lead out were left out"];
        warn(report.skipped, one, more, report.skippedPath);
      });
    });
}
