// SPDX-License-Identifier: Apache-2.0
// The recipe of guest images (the package's folder image): run here where it can be, else inside a helper lane.
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { createLane } from "../create.js";
import { LaneError, OWN_ERRORS } from "../errors.js";
import { packageDir } from "../native.js";
import { firstHelper, type FirstImage } from "./first-helper.js";
import { HELPER_DISK_GIB, HELPER_MINUTES, helperCpus, lines, quote, type Helper } from "./helper.js";

export const recipeDir = join(packageDir, "image");

const GONE_STATUS = 3;
// A file of the result: a disk image may be as large as its guest sees it.
const LARGEST = 64 * 2 ** 30;

/** One run of a program of the recipe. */
export interface RecipeRun {
  /** The program in the folder image, and its arguments; `out` below is put after the program's name. */
  readonly program: "build" | "lock";
  readonly args: readonly string[];
  readonly signal: AbortSignal;
  /** What the recipe says, line by line. */
  readonly say: (line: string) => void;
}

export interface HelperOptions {
  readonly home?: string | undefined;
  readonly limactlPath?: string | undefined;
  /** The image that the helper lane starts from; undefined: the newest of the store. */
  readonly image?: string | undefined;
  readonly memoryGiB: number;
  /** Instead of an image of the store: a cloud image. */
  readonly first?: FirstImage | undefined;
}

/** Whether the recipe can run on this very machine: Debian, root, and its tools. */
export function runsHere(): boolean {
  return process.platform === "linux" && process.getuid?.() === 0 && existsSync("/etc/debian_version");
}

function failed(status: number | null, last: string): LaneError {
  const code = status === GONE_STATUS ? "INPUT_GONE" : "IMAGE_BUILD_FAILED";
  const words = last.replace(/^image: (INPUT_GONE: )?/, "");
  return new LaneError({
    code,
    message: words === "" ? `the recipe ended with status ${status ?? "unknown"}` : words,
    cure: OWN_ERRORS[code].cure,
  });
}

/** Runs the recipe here. Its own clean-up follows SIGTERM, and is waited for. */
export async function runHere({ program, args, signal, say }: RecipeRun, out: string | undefined): Promise<void> {
  const argv = out === undefined ? args : [out, ...args];
  let last = "";
  const child = spawn(join(recipeDir, program), argv, { stdio: ["ignore", "pipe", "pipe"] });
  const stop = (): void => void child.kill("SIGTERM");
  signal.addEventListener("abort", stop, { once: true });
  if (signal.aborted) stop();
  const heard = [child.stdout, child.stderr].map((stream) => {
    const cut = lines((line) => {
      if (line !== "") last = line;
      say(line);
    });
    stream.setEncoding("utf8").on("data", cut.feed).on("end", cut.end);
    return cut;
  });
  try {
    const status = await new Promise<number | null>((resolve, reject) => {
      child.on("error", reject).on("close", resolve);
    });
    if (status !== 0) throw failed(status, last);
  } finally {
    signal.removeEventListener("abort", stop);
    heard.length = 0;
  }
}

async function fetchImage(helper: Helper, out: string): Promise<void> {
  await mkdir(out, { recursive: true });
  const take = (name: string): Promise<void> => helper.take(`${helper.out}/${name}`, join(out, name));
  await take("manifest.json");
  // The names are the guest's words: none of them leads out of the folder, and the import checks every file.
  const manifest = JSON.parse(await readFile(join(out, "manifest.json"), "utf8")) as { files?: { name?: unknown }[] };
  for (const { name } of manifest.files ?? []) {
    if (typeof name !== "string" || !/^[A-Za-z0-9_+-][A-Za-z0-9._+-]{0,63}$/.test(name))
      throw new LaneError({
        code: "IMAGE_INVALID",
        message: "the manifest that the helper lane made names a file wrongly",
        cure: "Build again; if it stays, use another helper image.",
      });
    await take(name);
  }
}

/** What of this machine's environment the recipe follows there, too. */
function passed(): Record<string, string> {
  const mirror = process.env["AGENT_LANE_DEBIAN_MIRROR"];
  return mirror === undefined ? {} : { AGENT_LANE_DEBIAN_MIRROR: mirror };
}

/** Runs the recipe as root in the helper; `out` gets the image, or the one file that the program wrote. */
async function runIn(helper: Helper, run: RecipeRun, out: string, files: ReadonlyMap<string, string>): Promise<void> {
  const { program, args, say } = run;
  await helper.put(recipeDir, helper.recipe);
  for (const [from, to] of files) await helper.put(from, `${helper.recipe}/${to}`);
  // A network that looks into TLS has an authority of its own, which Node is told of by this variable.
  const authorities = process.env["NODE_EXTRA_CA_CERTS"];
  if (authorities !== undefined && existsSync(authorities)) await helper.put(authorities, `${helper.recipe}/extra-ca.pem`);
  const quoted = args.map(quote).join(" ");
  let last = "";
  const hear = (line: string): void => {
    if (line !== "") last = line;
    say(line);
  };
  const exitCode = await helper.run(`./in-lane ${program} ${program === "build" ? helper.out : ""} ${quoted} 2>&1`, passed(), hear);
  if (exitCode !== 0) throw failed(exitCode, last);
  if (program === "build") {
    say("image: taking the image out of the helper lane");
    await fetchImage(helper, out);
  } else await helper.take(`${helper.recipe}/updated.json`, out);
}

/** Where the store has no image yet, one can be built all the same. */
function withoutImage(error: unknown): unknown {
  if (!(error instanceof LaneError) || error.code !== "IMAGE_MISSING") return error;
  const { code, message, step } = error;
  const cure = "Without an image the recipe runs as root on Debian (image/build DIR), or in a cloud image: --helper FILE --sha256 DIGEST, see image/README.md.";
  return new LaneError({ code, message, step, cure, cause: error });
}

/** A lane of an image of the store. */
async function laneHelper(options: HelperOptions, signal: AbortSignal): Promise<Helper> {
  const lane = await createLane({
    cpus: helperCpus(),
    memoryGiB: options.memoryGiB,
    diskGiB: HELPER_DISK_GIB,
    timeoutMinutes: HELPER_MINUTES,
    startTimeoutSeconds: 600, // nobody waits for it but the build
    network: "open",
    guestSudo: true,
    maxCopyOutBytes: LARGEST,
    maxDiskGrowthGiB: 60,
    ...(options.image === undefined ? {} : { image: options.image }),
    ...(options.home === undefined ? {} : { home: options.home }),
    ...(options.limactlPath === undefined ? {} : { limactlPath: options.limactlPath }),
  }).catch((error: unknown) => {
    throw options.image === undefined ? withoutImage(error) : error;
  });
  return {
    recipe: "/home/agent/recipe",
    out: "/home/agent/out",
    put: async (from, to) => void (await lane.copyIn(from, to, { signal })),
    run: async (command, env, onLine) =>
      (await lane.exec(command, { sudo: true, cwd: "/home/agent/recipe", env, signal, onLine })).exitCode,
    take: async (from, to) => void (await lane.copyFileOut(from, to, { signal, maxBytes: LARGEST })),
    close: () => lane.close(),
  };
}

/** Runs the recipe in a VM of its own. */
export async function runInLane(run: RecipeRun, out: string, files: ReadonlyMap<string, string>, options: HelperOptions): Promise<void> {
  run.say("image: starting the helper lane");
  const helper = options.first === undefined ? await laneHelper(options, run.signal) : await firstHelper(options.first, options, run);
  try {
    await runIn(helper, run, out, files);
  } finally {
    await helper.close();
  }
}
