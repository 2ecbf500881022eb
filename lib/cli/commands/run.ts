// SPDX-License-Identifier: Apache-2.0
// agent-lane run: a lane for one command. The git work tree goes in, the command runs in it, its changes come out as a patch.
import { existsSync, statSync } from "node:fs";
import { join, posix, relative } from "node:path";
import { PassThrough } from "node:stream";
import { InvalidArgumentError, Option, type Command } from "commander";
import { createLane, type CreateLaneOptions } from "../../create.js";
import { asLaneError, badOption, LaneError } from "../../errors.js";
import type { LaneEvent } from "../../events.js";
import type { Lane } from "../../lane.js";
import { resolveOptions, type OptionName } from "../../options.js";
import { reachText, type Reach } from "../../reach.js";
import { duration, type ReporterChoice } from "../../reporter.js";
import { heldOpen, interruptible, type Interrupt } from "../interrupt.js";
import { bytes, complain, errColours, plain } from "../output.js";
import { summarise, takePatch, unpack } from "../patch.js";
import { LaneProgress } from "../progress.js";
import { pack, worktreeOf, type Worktree } from "../worktree.js";
import { addCommon, durationArgument, pathArgument, type CommonOptions } from "./common.js";
import { addLaneOptions, laneOptionsOf } from "./lane-options.js";

/** What a failure of the lane's exits with, as docker run and env have it: no status that the command would have. */
export const OWN_FAILURE = 125;
const TIMED_OUT = 124;
const NOT_RUNNABLE = 126;
const NOT_FOUND = 127;

// The lifetime of the lane is more than the command's, for the copies.
const MARGIN_SECONDS = 600;
const LIFE_MINUTES_MOST = 1440;
const KEEP_MINUTES = 60;
const PATCH_MS = 3_600_000;
const LAST_PATCH_MS = 30_000;
const BEAT_MS = 250;
/** About Sandcastle's way, or with a flag of its own here. */
const WITHOUT: readonly OptionName[] = ["syncInTimeoutSeconds"];

interface RunOptions extends CommonOptions {
  readonly dir?: string;
  readonly copy: boolean;
  readonly patch?: string | boolean;
  readonly env?: Readonly<Record<string, string>>;
  readonly timeout?: number;
  readonly queue?: number;
  readonly reporter: ReporterChoice;
  readonly keep?: boolean;
}

/** `NAME=VALUE`, or `NAME` for what it is here: so that a secret need not be on the command line. */
function envArgument(value: string, all: Readonly<Record<string, string>> = {}): Record<string, string> {
  const at = value.indexOf("=");
  const name = at < 0 ? value : value.slice(0, at);
  if (!/^[A-Za-z_][A-Za-z0-9_]*$/.test(name)) throw new InvalidArgumentError("It must be NAME or NAME=VALUE, the name of letters, digits and _.");
  const text = at < 0 ? process.env[name] : value.slice(at + 1);
  if (text === undefined) throw new InvalidArgumentError(`There is no variable ${name} here; NAME=VALUE gives it a value.`);
  return { ...all, [name]: text };
}

/** The command ended by its time, a signal, or itself. */
interface Ended {
  readonly status: number;
  /** No time for more. */
  readonly hurry: boolean;
}

class Run {
  readonly #options: RunOptions;
  readonly #lane: CreateLaneOptions;
  readonly #command: readonly string[];
  readonly #interrupt: Interrupt;
  readonly #progress: LaneProgress;
  readonly #begun = performance.now();
  #kept: string | undefined;
  #reach: Reach | undefined;

  constructor(options: RunOptions, lane: CreateLaneOptions, command: readonly string[], interrupt: Interrupt) {
    this.#options = options;
    this.#lane = lane;
    this.#command = command;
    this.#interrupt = interrupt;
    this.#progress = new LaneProgress(options.reporter);
  }

  async all(): Promise<void> {
    const tree = this.#options.copy ? await worktreeOf(this.#options.dir ?? process.cwd()) : undefined;
    const patch = this.#patchPath(tree);
    let lane: Lane | undefined;
    try {
      lane = await createLane({ ...this.#lane, onEvent: (event) => this.#event(event) });
      this.#interrupt.endsBySignal();
      if (this.#interrupt.signal.aborted) return;
      this.#ready(lane);
      if (tree !== undefined) await this.#copy(lane, tree);
      const { status, hurry } = await this.#run(lane, tree);
      process.exitCode = status;
      if (this.#options.keep === true && !hurry) await this.#wait(lane);
      if (patch !== undefined && !hurry) await this.#take(lane, patch, tree);
    } finally {
      if (lane !== undefined) {
        this.#progress.step("closing the lane");
        await lane.close();
      }
      this.#progress.waiting.off();
    }
  }

  #event(event: LaneEvent): void {
    if (event.type === "ready") this.#reach = event.reach;
    this.#progress.event(event);
  }

  /** Where the patch will lie, checked before anything is started. */
  #patchPath(tree: Worktree | undefined): string | undefined {
    const { patch } = this.#options;
    if (patch === false) return undefined;
    if (tree === undefined) {
      if (typeof patch === "string") throw badOption("--patch needs the files that it is against: it does not go with --no-copy");
      return undefined;
    }
    if (typeof patch !== "string") return "";
    // What the copy would refuse is better known before an hour's work.
    if (isDirectory(patch)) throw badOption(`--patch: ${patch} is a directory`);
    if (/(?:^|\/)\.git(?:\/|$)/i.test(patch)) throw badOption(`--patch: ${patch} is in .git, into which nothing of a guest's is written`);
    return patch;
  }

  #ready(lane: Lane): void {
    const { image, accelerator } = lane.facts;
    const { cpus, memoryGiB, network } = resolveOptions(withoutQueue(this.#lane));
    const facts = [plain(image), `${cpus} CPUs`, `${memoryGiB} GiB`, plain(accelerator), `network "${network}"`].filter((fact) => fact !== "");
    this.#progress.detail(errColours.dim(`${lane.name} is ready after ${duration(performance.now() - this.#begun)}: ${facts.join(", ")}`));
    if (this.#reach !== undefined) this.#progress.detail(errColours.dim(`network "open" reaches ${plain(reachText(this.#reach))}`));
  }

  async #copy(lane: Lane, tree: Worktree): Promise<void> {
    const what = `copying ${tree.files.length} files (${bytes(tree.bytes)}) in`;
    this.#progress.step(what);
    const packed = pack(tree);
    const part = (): string => `${what}, ${Math.min(99, Math.floor((100 * packed.sent()) / Math.max(1, tree.bytes)))} %`;
    const beat = setInterval(() => this.#progress.waiting.change(part()), BEAT_MS);
    beat.unref();
    try {
      this.#kept = await unpack(lane, packed.stream, tree.prefix, this.#interrupt.signal);
      await packed.done;
    } catch (error) {
      packed.stop();
      await packed.done; // what could not be packed is the reason for what the guest then says
      throw error;
    } finally {
      clearInterval(beat);
      this.#progress.waiting.off();
    }
  }

  async #run(lane: Lane, tree: Worktree | undefined): Promise<Ended> {
    const { timeout } = this.#options;
    this.#progress.waiting.off();
    const ending = new AbortController();
    const stop = (): void => ending.abort();
    this.#interrupt.signal.addEventListener("abort", stop, { once: true });
    if (this.#interrupt.signal.aborted) stop();
    let late = false;
    const timer = timeout === undefined ? undefined : setTimeout(() => ((late = true), stop()), timeout * 1000);
    const cwd = tree === undefined ? lane.worktreePath : posix.join(lane.worktreePath, tree.prefix);
    const { stdin, leave } = stdinOf();
    try {
      const { exitCode } = await lane.interactiveExec([...this.#command], { stdin, stdout: process.stdout, stderr: process.stderr, cwd, signal: ending.signal });
      return { status: exitCode, hurry: false };
    } catch (thrown) {
      const error = asLaneError(thrown);
      if (error.code === "ABORTED" && late) {
        this.#progress.note(`agent-lane: the command was ended after --timeout ${timeout ?? 0} s`);
        return { status: TIMED_OUT, hurry: false };
      }
      if (error.code === "ABORTED") return { status: OWN_FAILURE, hurry: this.#interrupt.by() !== "SIGINT" };
      if (error.code !== "EXEC_FAILED") throw error;
      complain(error);
      return { status: /No such file|not found/i.test(error.message) ? NOT_FOUND : NOT_RUNNABLE, hurry: false };
    } finally {
      clearTimeout(timer);
      this.#interrupt.signal.removeEventListener("abort", stop);
      leave();
    }
  }

  async #wait(lane: Lane): Promise<void> {
    process.stderr.write(`agent-lane: ${lane.name} is kept until Ctrl-C or an hour has gone: agent-lane shell ${lane.name}\n`);
    await heldOpen(lane, this.#interrupt.signal, KEEP_MINUTES * 60_000);
  }

  async #take(lane: Lane, given: string, tree: Worktree | undefined): Promise<void> {
    if (this.#kept === undefined || tree === undefined) return;
    const path = given === "" ? join(process.cwd(), `${lane.name}.patch`) : given;
    this.#progress.step("bringing the changes out");
    // After Ctrl-C the signal has come already; a second one ends everything at once.
    const { signal } = this.#interrupt, ending = new AbortController();
    const stop = (): void => void setTimeout(() => ending.abort(), LAST_PATCH_MS).unref();
    signal.addEventListener("abort", stop, { once: true });
    if (signal.aborted) stop();
    const taken = await takePatch(lane, this.#kept, path, AbortSignal.any([ending.signal, AbortSignal.timeout(PATCH_MS)])).catch((error: unknown) => {
      throw inOurWords(error);
    });
    signal.removeEventListener("abort", stop);
    this.#progress.waiting.off();
    if (taken === undefined) return this.#progress.note("agent-lane: the command changed nothing that git would keep");
    const { files, added, removed, look } = await summarise(path);
    const name = shellWord(relative(process.cwd(), path).startsWith("..") ? path : relative(process.cwd(), path));
    const stat = `${files} ${files === 1 ? "file" : "files"} changed, +${added} -${removed}, ${bytes(taken.bytes)}`;
    this.#progress.note(`agent-lane: ${plain(name)}: ${stat}`);
    if (look.length > 0) this.#progress.note(`agent-lane: ${errColours.yellow("look at")} ${look.map(plain).join(", ")}: programs of this machine may run it, or what it says`);
    const where = relative(process.cwd(), tree.top) === "" ? "" : `-C ${shellWord(tree.top)} `;
    const from = where === "" ? name : shellWord(path);
    this.#progress.note(`agent-lane: nothing here was changed. To see it, then to have it:\n  git ${where}apply --stat ${plain(from)}\n  git ${where}apply ${plain(from)}`);
  }
}

function withoutQueue(options: CreateLaneOptions): Omit<CreateLaneOptions, "queueTimeoutSeconds"> {
  const { queueTimeoutSeconds: _queue, ...rest } = options;
  return rest;
}

const isDirectory = (path: string): boolean => statSync(path, { throwIfNoEntry: false })?.isDirectory() === true;

/** The lane ends with the run, so what was not taken is gone: how to have it the next time. */
function inOurWords(error: unknown): unknown {
  if (!(error instanceof LaneError) || error.code !== "FILE_TOO_LARGE") return error;
  const { code, message, lane } = error;
  return new LaneError({ code, message: `the patch was not taken: ${message}`, cure: "Run it again with --max-copy-out-bytes 1GiB; with --keep, agent-lane cp brings parts of it out meanwhile.", lane });
}

const shellWord = (text: string): string => (/^[\w./:@%+=,-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** A terminal of the guest's is for when both ends are one: output that goes elsewhere must arrive as it is. */
function stdinOf(): { readonly stdin: NodeJS.ReadableStream; readonly leave: () => void } {
  if (process.stdin.isTTY !== true || process.stdout.isTTY === true) return { stdin: process.stdin, leave: () => void process.stdin.pause() };
  const stdin = process.stdin.pipe(new PassThrough());
  return { stdin, leave: () => void process.stdin.unpipe(stdin).pause() };
}

/** The lane's options, with a lifetime that the command's time fits into. */
function laneOf(self: Command, { env, timeout, queue }: RunOptions): CreateLaneOptions {
  const given = laneOptionsOf(self);
  const { timeoutMinutes = 60 } = given;
  const needed = timeout === undefined ? 0 : Math.min(LIFE_MINUTES_MOST, Math.ceil((timeout + MARGIN_SECONDS) / 60));
  const lane = { ...given, env, timeoutMinutes: Math.max(timeoutMinutes, needed) };
  resolveOptions(lane); // before anything is looked at
  return { ...lane, queueTimeoutSeconds: queue };
}

async function run(command: readonly string[], options: RunOptions, self: Command): Promise<void> {
  try {
    const lane = laneOf(self, options);
    if (options.dir !== undefined && !existsSync(options.dir))
      throw new LaneError({ code: "SOURCE_MISSING", message: `--dir: ${options.dir} is not there`, cure: "Name a directory in a git work tree." });
    await interruptible((interrupt) => new Run(options, lane, command, interrupt).all());
  } catch (error) {
    complain(error);
    process.exitCode = OWN_FAILURE;
  }
}

export function addRun(program: Command): void {
  const command = program.command("run").description("run one command in a lane of its own: the work tree goes in, its changes come out as a patch");
  command
    .argument("<command...>", "the program and its arguments: everything from its name on, or after --")
    .passThroughOptions()
    .option("-C, --dir <dir>", "the repository to take along (default: the one of the current directory)", pathArgument)
    .option("--no-copy", "take no files along: the command runs in an empty directory, and no patch is made")
    .option("--patch <file>", "where the changes go, as a patch for git apply (default: LANE.patch in the current directory)", pathArgument)
    .option("--no-patch", "leave the changes in the lane, which is destroyed")
    .option("-e, --env <name[=value]>", "a variable of the command; NAME alone takes the value from here (repeatable)", envArgument)
    .option("--timeout <time>", "end the command after so long, such as 90s, 10m or 2h, and exit 124", durationArgument)
    .option("--queue <time>", "wait so long for a place while other lanes run (default: within --start-timeout-seconds)", durationArgument)
    .addOption(new Option("--reporter <when>", "what is being waited for, on stderr: auto: where that is a terminal").choices(["auto", "on", "off"]).default("auto"))
    .option("--keep", "keep the lane until Ctrl-C when the command has ended, for agent-lane shell; then make the patch");
  addLaneOptions(addCommon(command, { limactl: true }), WITHOUT)
    .addHelpText("after", HELP)
    .action((words: string[], options: RunOptions, self: Command) => run(words, options, self));
}

const HELP = `
What goes in: the files of the git work tree as they are now, tracked ones (submodules' too) and untracked ones that are
not ignored. In the guest they are a repository with one commit. Nothing else goes in: no .git with its remotes, no other
branch, no stash, no history, no ignored file such as .env or node_modules, no variable but those of --env.

What comes out: what the command changed, also in commits of its own, as a patch that its git made; ignored files do not.
Nothing is ever applied here: look at the patch first, it is code. git apply refuses what leads out of the work tree.

The command runs in the directory that corresponds to the current one, with this terminal when stdin and stdout are one, else
with three pipes. Ctrl-C then ends the command, and what it had changed comes out all the same; a second one ends everything.

Exit status: that of the command; 124 --timeout ended it; 125 the lane failed (the reason and a cure are on stderr); 126 the
command cannot be run; 127 there is no such command; 130, 143, 129 ended by SIGINT, SIGTERM, SIGHUP; 2 wrong usage.

Examples:
  agent-lane run -- npm test
  agent-lane run --network none --cpus 2 --memory-gib 2 -- sh -c 'make && make check'
  agent-lane run --image agents -e ANTHROPIC_API_KEY --timeout 30m -- claude -p "fix the failing test"
  agent-lane run --no-copy -- bash
  git diff main | agent-lane run -- wc -l`;
