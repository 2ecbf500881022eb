// SPDX-License-Identifier: Apache-2.0
// The way out of `agent-lane run`: the guest makes a patch with its own git, and the host takes it as a file of bounded size. The
// host never applies it and gives it to no program; it only counts its lines, and names what it would be good to look at.
import { createReadStream } from "node:fs";
import { posix } from "node:path";
import { LaneError } from "../errors.js";
import type { ExecOptions } from "../exec.js";
import type { Lane } from "../lane.js";

/** No configuration of the guest's, and none of the worktree's, decides how the patch is made. */
const GIT_ENV = {
  GIT_CONFIG_GLOBAL: "/dev/null",
  GIT_CONFIG_SYSTEM: "/dev/null",
  GIT_CONFIG_COUNT: "3",
  GIT_CONFIG_KEY_0: "safe.directory",
  GIT_CONFIG_VALUE_0: "*",
  GIT_CONFIG_KEY_1: "core.hooksPath",
  GIT_CONFIG_VALUE_1: "/dev/null",
  GIT_CONFIG_KEY_2: "gc.auto",
  GIT_CONFIG_VALUE_2: "0",
} as const;

const STEP_MS = 600_000;
const WORDS_MAX = 65_536;

/** Unpacks stdin, as `agent`, and gives the worktree a repository of its own with one commit. */
const UNPACK = `set -e
command -v git >/dev/null || { echo "there is no git in this image" >&2; exit 1; }
tar -xpf -
mkdir -p "./$RUN_PREFIX"
git init -q -b main .
git config user.name agent
git config user.email agent@localhost
git add -A -f .
git commit -q --allow-empty --no-verify -m "the work tree as it was copied in"
`;
/** As root: that commit once more, beside the worktree, whatever the command does to the worktree's own .git. Prints where. */
const KEEP = `set -e
kept=$(mktemp -d "$RUN_BESIDE/.agent-lane-run.XXXXXXXX")
cp -R .git "$kept/git"
echo "$kept"
`;
/** As root, since what a command made with sudo is part of its work too. Prints the patch's size. */
const DIFF = `set -e
export GIT_DIR="$RUN_KEPT/git" GIT_WORK_TREE="$PWD" GIT_INDEX_FILE="$RUN_KEPT/index"
git read-tree HEAD
git add -A --ignore-errors . || true
tree=$(git write-tree)
git diff-tree -p --binary --full-index --no-ext-diff --no-textconv --no-color HEAD "$tree" >"$RUN_KEPT/patch"
chmod 755 "$RUN_KEPT"
chmod 644 "$RUN_KEPT/patch"
wc -c <"$RUN_KEPT/patch"
`;
const KEPT = /^\.agent-lane-run\.\w{8}$/;

type Step = Pick<ExecOptions, "sudo" | "stdin" | "signal" | "env">;

async function step(lane: Lane, what: string, script: string, options: Step): Promise<string> {
  const { exitCode, stdout, stderr } = await lane.exec(script, {
    ...options,
    env: { ...GIT_ENV, ...options.env },
    timeoutMs: STEP_MS,
    maxOutputBytes: WORDS_MAX,
  });
  if (exitCode === 0) return stdout.trim();
  throw new LaneError({
    code: "COMMAND_FAILED",
    message: `${what} failed in the guest: ${stderr.trim().split("\n").at(-1) || `status ${exitCode}`}`,
    cure: "See the guest's words in the message; the image needs git and tar.",
    lane: lane.name,
    stderr,
    exitCode,
  });
}

/** Puts the packed files into the worktree, and remembers what they were: gives the place for takePatch. */
export async function unpack(lane: Lane, stream: NodeJS.ReadableStream, prefix: string, signal?: AbortSignal): Promise<string> {
  await step(lane, "unpacking the work tree", UNPACK, { stdin: stream, env: { RUN_PREFIX: prefix }, signal });
  const beside = posix.dirname(lane.worktreePath);
  const kept = await step(lane, "keeping the first state", KEEP, { sudo: true, env: { RUN_BESIDE: beside === "/" ? "" : beside }, signal });
  if (posix.dirname(kept) === beside && KEPT.test(posix.basename(kept))) return kept;
  throw new LaneError({ code: "EXEC_FAILED", message: "the guest did not say where it keeps the first state", cure: "Use an image of this package's recipe.", lane: lane.name });
}

/** Brings the changes home as `path`. Undefined: there are none. The guest is hostile: its file is only bytes. */
export async function takePatch(lane: Lane, kept: string, path: string, signal?: AbortSignal): Promise<{ readonly bytes: number } | undefined> {
  const size = await step(lane, "making the patch", DIFF, { sudo: true, env: { RUN_KEPT: kept }, signal });
  if (size === "0") return undefined;
  const { bytes } = await lane.copyFileOut(`${kept}/patch`, path, { signal });
  return { bytes };
}

/** What a patch says that it does. A guest wrote it: counts may be wrong, names may be anything. */
export interface PatchSummary {
  readonly files: number;
  readonly added: number;
  readonly removed: number;
  /** Paths of which programs on the host may take orders. */
  readonly look: readonly string[];
}

/** What is run, or decides what is run, without anybody naming it: hooks, editors, shells, builds, CI; and links. */
const ORDERS =
  /(?:^|\/)(?:\.git(?:hub|lab|modules|attributes|-hooks|hooks)|\.husky|\.vscode|\.idea|\.devcontainer|\.envrc|\.npmrc|\.yarnrc[^/]*|\.pre-commit-config\.yaml|\.claude|\.cursor|\.mcp\.json|lefthook\.yml|package\.json|Makefile|CMakeLists\.txt|conftest\.py|setup\.py|build\.rs|[^/]+\.(?:bashrc|zshrc))(?:$|\/)/;
const LOOK_MAX = 20;
const NAME_MAX = 300;
/** Of a line more than this says nothing to us, and a guest may have made one of the whole file. */
const LINE_MAX = 16_384;

/** "a/x b/x" of a header: the same path twice, or two that differ, which git quotes when it must. */
function pathOf(header: string): string {
  const half = (header.length - 1) / 2;
  const left = header.slice(2, half), right = header.slice(half + 3);
  return (left === right ? left : header).slice(0, NAME_MAX);
}

/** The file's lines, without their ends and cut when they are long; only "\n" ends one. */
async function* linesOf(path: string): AsyncGenerator<string, void, undefined> {
  let rest = "";
  for await (const chunk of createReadStream(path, { encoding: "latin1", highWaterMark: 1 << 20 })) {
    const lines = (rest + (chunk as string)).split("\n");
    rest = (lines.pop() ?? "").slice(0, LINE_MAX);
    yield* lines;
  }
  if (rest !== "") yield rest;
}

/** Counts; reads the file line by line, never as a whole. */
export async function summarise(path: string): Promise<PatchSummary> {
  let files = 0, added = 0, removed = 0, oldLeft = 0, newLeft = 0, current = "";
  const look = new Set<string>();
  const mind = (what: string): void => void (look.size < LOOK_MAX && look.add(what));
  for await (const text of linesOf(path)) {
    if (oldLeft > 0 || newLeft > 0) {
      if (text.startsWith("+")) added++, newLeft--;
      else if (text.startsWith("-")) removed++, oldLeft--;
      else if (!text.startsWith("\\")) oldLeft--, newLeft--;
      continue;
    }
    const [hunk, old, next] = /^@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@/.exec(text) ?? [];
    if (hunk !== undefined) [oldLeft, newLeft] = [Number(old ?? 1), Number(next ?? 1)];
    else if (text.startsWith("diff --git ")) {
      files++;
      current = Buffer.from(pathOf(text.slice("diff --git ".length)), "latin1").toString();
      if (ORDERS.test(current)) mind(current);
    } else if (/^(?:new file mode|new mode) 120000$/.test(text)) mind(`${current} (a link)`);
    else if (/^(?:new file mode|new mode) 100755$/.test(text)) mind(`${current} (executable)`);
  }
  return { files, added, removed, look: [...look] };
}
