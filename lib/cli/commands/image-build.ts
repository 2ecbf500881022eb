// SPDX-License-Identifier: Apache-2.0
// agent-lane image build and image lock: images out of the package's recipe, and the versions that the recipe pins.
import { existsSync } from "node:fs";
import { copyFile, mkdir, mkdtemp, readdir, rename, rm, stat } from "node:fs/promises";
import { homedir } from "node:os";
import { join, resolve } from "node:path";
import { InvalidArgumentError, Option, type Command } from "commander";
import { engine } from "../../engine.js";
import { badOption } from "../../errors.js";
import { interruptible } from "../interrupt.js";
import { plain, print, printJson } from "../output.js";
import { recipeDir, runHere, runInLane, runsHere, type HelperOptions } from "../recipe.js";
import { addCommon, common, pathArgument, type CommonOptions } from "./common.js";

type Row = Readonly<Record<string, unknown>>;

const ARCHES = ["x86_64", "aarch64"] as const;
const FLAVOURS = ["base", "docker", "agents", "full"] as const;

interface RecipeOptions extends CommonOptions {
  readonly arch: string;
  readonly packages?: string;
  readonly inLane?: boolean;
  readonly helperImage?: string;
  readonly helper?: string;
  readonly sha256?: string;
}

interface BuildOptions extends RecipeOptions {
  readonly flavour: string;
  readonly name?: string;
  readonly lock?: string;
  readonly out?: string;
  readonly fresh?: boolean;
  readonly json?: boolean;
}

interface LockOptions extends RecipeOptions {
  readonly update?: boolean;
  readonly only?: string;
  readonly out?: string;
}

function hostArch(): string {
  return process.arch === "arm64" ? "aarch64" : "x86_64";
}

function nameArgument(value: string): string {
  if (/^[a-z0-9][a-z0-9-]{0,31}$/.test(value) && !value.startsWith("project-")) return value;
  throw new InvalidArgumentError("It must be at most 32 of a-z, 0-9 and -, and not begin with project-.");
}

function digestArgument(value: string): string {
  if (/^[0-9a-f]{64}$/.test(value)) return value;
  throw new InvalidArgumentError("It must be 64 lower-case hex digits.");
}

function say(line: string): void {
  process.stderr.write(`${plain(line)}\n`);
}

function addRecipe(command: Command): Command {
  return addCommon(command, { limactl: true })
    .addOption(new Option("--arch <arch>", "architecture of the image").choices(ARCHES).default(hostArch(), "this machine's"))
    .option("--packages <file>", "Debian packages to add, one a line; FILE.lock.json beside it pins them", pathArgument)
    .option("--in-lane", "run the recipe in a helper lane, also where this machine could run it itself")
    .option("--helper-image <image>", "image that the helper lane starts from (default: base, else the newest)")
    .option("--helper <file>", "where the store has no image yet: a cloud image (disk with cloud-init) to run the recipe in", pathArgument)
    .option("--sha256 <digest>", "what --helper's file must have (default: one that scripts/pin-helper has pinned)", digestArgument);
}

// Nothing that is still at work is as old: a helper lane lives eight hours at most.
const STALE_MS = 24 * 3600 * 1000;

/** Removes what builds that were killed have left. */
async function sweep(parent: string): Promise<void> {
  for (const name of await readdir(parent)) {
    const path = join(parent, name);
    const { mtimeMs } = await stat(path).catch(() => ({ mtimeMs: Infinity })); // gone meanwhile
    if (name.startsWith("image-") && Date.now() - mtimeMs > STALE_MS) await rm(path, { recursive: true, force: true });
  }
}

/** A folder of our own on the store's file system, gone at the end whatever happens. */
async function withScratch(options: CommonOptions, work: (directory: string) => Promise<void>): Promise<void> {
  const home = options.home ?? process.env["AGENT_LANE_HOME"] ?? join(homedir(), ".agent-lane");
  const parent = join(resolve(home.replace(/^~(?=\/|$)/, homedir())), "build");
  await mkdir(parent, { recursive: true, mode: 0o700 });
  await sweep(parent);
  const directory = await mkdtemp(join(parent, "image-"));
  try {
    await work(directory);
  } finally {
    await rm(directory, { recursive: true, force: true });
  }
}

function helperOf(options: RecipeOptions, memoryGiB: number): HelperOptions {
  const first = options.helper === undefined ? undefined : { path: options.helper, sha256: options.sha256 };
  return { home: options.home, limactlPath: options.limactl, image: options.helperImage, memoryGiB, first };
}

/** Whether the recipe runs on this machine itself. */
function here(options: RecipeOptions): boolean {
  if (options.sha256 !== undefined && options.helper === undefined) throw badOption("--sha256 is of a --helper");
  if (options.helper !== undefined && options.helperImage !== undefined) throw badOption("either --helper or --helper-image");
  return runsHere() && options.inLane !== true && options.helper === undefined;
}

/** The lock that pins FLAVOUR and the added packages: FILE.lock.json, made when it is not there. */
async function lockOf(options: RecipeOptions, scratch: string, signal: AbortSignal): Promise<string | undefined> {
  if (options.packages === undefined) return undefined;
  const lock = `${options.packages}.lock.json`;
  if (existsSync(lock)) return lock;
  say(`image: ${lock} is not there: pinning today's versions in it`);
  await updateLock({ ...options, only: "debs" }, join(scratch, "packages.lock.json"), signal);
  await copyFile(join(scratch, "packages.lock.json"), lock);
  return lock;
}

async function updateLock(options: LockOptions, out: string, signal: AbortSignal): Promise<void> {
  const args = ["--update", "--arch", options.arch];
  if (options.only !== undefined) args.push("--only", options.only);
  const files = new Map<string, string>();
  if (here(options)) {
    if (options.packages !== undefined) args.push("--packages", options.packages);
    args.push("--out", out);
    return runHere({ program: "lock", args, signal, say }, undefined);
  }
  if (options.packages !== undefined) {
    files.set(options.packages, "added.packages");
    args.push("--packages", "added.packages");
  }
  args.push("--out", "updated.json");
  return runInLane({ program: "lock", args, signal, say }, out, files, helperOf(options, 2));
}

async function build(options: BuildOptions): Promise<void> {
  await interruptible(({ signal, endsBySignal }) =>
    withScratch(options, async (scratch) => {
      const local = here(options);
      if (local) endsBySignal();
      const lock = options.lock ?? (await lockOf(options, scratch, signal));
      const args = ["--flavour", options.flavour, "--arch", options.arch];
      const name = options.name ?? (options.packages === undefined ? undefined : `${options.flavour}-more`);
      if (name !== undefined) args.push("--name", name);
      if (options.fresh === true) args.push("--fresh");
      const made = join(scratch, "image");
      if (local) {
        if (lock !== undefined) args.push("--lock", lock);
        await runHere({ program: "build", args, signal, say }, made);
      } else {
        const files = new Map<string, string>();
        if (lock !== undefined) {
          files.set(lock, "given.lock.json");
          args.push("--lock", "given.lock.json");
        }
        const go = ["docker", "full"].includes(options.flavour);
        await runInLane({ program: "build", args, signal, say }, made, files, helperOf(options, go ? 6 : 3));
      }
      signal.throwIfAborted();
      if (options.out !== undefined) await deliver(made, options.out);
      else await importImage(made, options);
    }),
  );
}

/** The manifest comes last, so that a reader never sees half an image. */
async function deliver(made: string, out: string): Promise<void> {
  await mkdir(out, { recursive: true });
  await rm(join(out, "manifest.json"), { force: true });
  const names = (await readdir(made)).filter((name) => name !== "manifest.json");
  for (const name of [...names, "manifest.json"]) {
    await copyFile(join(made, name), join(out, `.new-${name}`));
    await rename(join(out, `.new-${name}`), join(out, name));
  }
  print(`built ${out}`);
}

async function importImage(made: string, options: BuildOptions): Promise<void> {
  const row = await engine().request<Row>("imageImport", { ...common(options), from: made });
  if (options.json === true) return printJson(row);
  print(`imported ${plain(row["id"])}`);
}

export function addImageBuild(image: Command): void {
  addRecipe(image.command("build"))
    .description("build an image from the recipe and its lock file, and import it")
    .addOption(new Option("--flavour <flavour>", "what is in it").choices(FLAVOURS).default("base"))
    .option("--name <name>", "what the image is called (default: its flavour)", nameArgument)
    .option("--lock <file>", "another lock file than the package's", pathArgument)
    .option("--out <dir>", "put the image there instead of importing it", pathArgument)
    .option("--fresh", "build anew, whatever is cached")
    .option("--json", "print the imported image as a JSON object")
    .addHelpText(
      "after",
      `
As root on Debian the recipe runs on this machine; everywhere else in a helper lane, which starts from an image of the
store, or, where there is none yet, from a cloud image that a person has pinned: --helper FILE, with --sha256 or a pin.
A locked version that has left the mirror is INPUT_GONE: agent-lane image lock --update.

Example:
  agent-lane image build --flavour docker`,
    )
    .action(build);
  addRecipe(image.command("lock"))
    .description("write today's versions and digests into the recipe's lock file")
    .option("--update", "ask the mirror and the registries, and write")
    .addOption(new Option("--only <part>", "leave the rest as it is locked").choices(["debs"]))
    .option("--out <file>", "write there instead of the package's own lock file", pathArgument)
    .addHelpText("after", "\nExample:\n  agent-lane image lock --update")
    .action(async (options: LockOptions) => {
      if (options.update !== true) throw badOption("image lock needs --update: it has nothing else to do");
      await interruptible(({ signal, endsBySignal }) =>
        withScratch(options, async (scratch) => {
          if (here(options)) endsBySignal();
          const made = join(scratch, "lock.json");
          await updateLock(options, made, signal);
          const target =
            options.out ??
            (options.packages === undefined ? join(recipeDir, "locks", `${options.arch}.json`) : `${options.packages}.lock.json`);
          await copyFile(made, target);
          print(`locked ${target}`);
        }),
      );
    });
}
