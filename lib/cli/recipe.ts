// SPDX-License-Identifier: Apache-2.0
// The recipe of guest images (the package's folder image): run here where it can be, else inside a helper lane.
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdir, readFile } from "node:fs/promises";
import { cpus } from "node:os";
import { join } from "node:path";
import { createLane } from "../create.js";
import { LaneError, OWN_ERRORS } from "../errors.js";
import type { Lane } from "../lane.js";
import { packageDir } from "../native.js";

export const recipeDir = join(packageDir, "image");

const GONE_STATUS = 3;
const IN_LANE = "/home/agent/recipe";
const OUT_IN_LANE = "/home/agent/out";
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

/** Splits what comes in pieces into lines. */
function lines(say: (line: string) => void): { feed: (piece: string) => void; end: () => void } {
  let rest = "";
  return {
    feed: (piece) => {
      const parts = (rest + piece).split("\n");
      rest = parts.pop() ?? "";
      parts.forEach(say);
    },
    end: () => {
      if (rest !== "") say(rest);
    },
  };
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

async function fetchImage(lane: Lane, out: string, signal: AbortSignal): Promise<void> {
  await mkdir(out, { recursive: true });
  const take = (name: string): Promise<unknown> =>
    lane.copyFileOut(`${OUT_IN_LANE}/${name}`, join(out, name), { signal, maxBytes: LARGEST });
  await take("manifest.json");
  // The names are the guest's words: copyFileOut takes no path out of the folder, and the import checks every file.
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

/** Runs the recipe as root inside a lane of its own; `out` gets the image, or the one file that the program wrote. */
export async function runInLane(run: RecipeRun, out: string, files: ReadonlyMap<string, string>, helper: HelperOptions): Promise<void> {
  const { program, args, signal, say } = run;
  say("image: starting the helper lane");
  const lane = await createLane({
    cpus: Math.max(1, Math.min(8, cpus().length)),
    memoryGiB: helper.memoryGiB,
    diskGiB: 40,
    timeoutMinutes: 480,
    network: "open",
    guestSudo: true,
    maxCopyOutBytes: LARGEST,
    maxDiskGrowthGiB: 60,
    ...(helper.image === undefined ? {} : { image: helper.image }),
    ...(helper.home === undefined ? {} : { home: helper.home }),
    ...(helper.limactlPath === undefined ? {} : { limactlPath: helper.limactlPath }),
  });
  try {
    await lane.copyIn(recipeDir, IN_LANE, { signal });
    for (const [from, to] of files) await lane.copyIn(from, `${IN_LANE}/${to}`, { signal });
    const quoted = args.map((word) => `'${word.replaceAll("'", "'\\''")}'`).join(" ");
    const target = program === "build" ? OUT_IN_LANE : "";
    let last = "";
    const hear = (line: string): void => {
      if (line !== "") last = line;
      say(line);
    };
    const { exitCode } = await lane.exec(`exec ./in-lane ${program} ${target} ${quoted} 2>&1`, {
      sudo: true,
      cwd: IN_LANE,
      signal,
      onLine: hear,
    });
    if (exitCode !== 0) throw failed(exitCode, last);
    if (program === "build") {
      say("image: taking the image out of the helper lane");
      await fetchImage(lane, out, signal);
    } else await lane.copyFileOut(`${IN_LANE}/updated.json`, out, { signal });
  } finally {
    await lane.close();
  }
}
