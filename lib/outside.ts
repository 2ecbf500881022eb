// SPDX-License-Identifier: Apache-2.0
// Two dangers of a repository that no sandbox can stop, since what does them runs on the host: `git am` and `git bundle`.
import { execFile } from "node:child_process";
import { realpathSync } from "node:fs";
import { isAbsolute, relative, resolve, sep } from "node:path";

export interface OutsideDanger {
  readonly id: "git hooks" | "git bundle";
  /** Whether this repository has it, and what exactly. */
  readonly danger: boolean;
  readonly what: string;
  readonly cure: string;
}

const GIT_MS = 15_000;
const NAMES_SHOWN = 3;

/** Hooks off for every git that is started with these, which is how Sandcastle starts it. */
export const HOOKS_OFF = { GIT_CONFIG_COUNT: "1", GIT_CONFIG_KEY_0: "core.hooksPath", GIT_CONFIG_VALUE_0: "/dev/null" } as const;

export const HOOKS_CURE =
  `Start Sandcastle with hooks switched off for its git: ${Object.entries(HOOKS_OFF).map(([name, value]) => `${name}=${value}`).join(" ")}; ` +
  "and look at what the agent has committed before you run git there yourself.";
export const BUNDLE_CURE =
  "Run Sandcastle in a clone that has only what the task needs: git clone --single-branch --no-tags <repository> <directory>.";

/** What a git command prints; undefined when it fails, or there is no git. */
function git(cwd: string, args: readonly string[]): Promise<string | undefined> {
  const env = { ...process.env, GIT_OPTIONAL_LOCKS: "0", LC_ALL: "C" };
  return new Promise((done) => {
    execFile("git", [...args], { cwd, env, timeout: GIT_MS, maxBuffer: 8 << 20, encoding: "utf8" }, (error, stdout) =>
      done(error === null ? stdout.replace(/\n$/, "") : undefined),
    );
  });
}

function inside(path: string, dir: string): boolean {
  const way = relative(dir, path);
  return way === "" || (way !== ".." && !way.startsWith(`..${sep}`) && !isAbsolute(way));
}

/** The path with the links of those of its components resolved that are there. */
function real(path: string): string {
  try {
    return realpathSync(path);
  } catch {
    const parent = resolve(path, "..");
    return parent === path ? path : resolve(real(parent), path.slice(parent.length).replace(/^[/\\]+/, ""));
  }
}

/** A patch of the agent's can add or change a file where git looks for hooks, and `git am` runs it at once. */
async function hooks(cwd: string, top: string): Promise<OutsideDanger> {
  const path = await git(cwd, ["config", "--type=path", "--get", "core.hooksPath"]);
  const found = path === undefined || path === "" ? undefined : real(resolve(top, path));
  const gitDir = real(resolve(cwd, (await git(cwd, ["rev-parse", "--git-common-dir"])) ?? ".git"));
  const danger = found !== undefined && inside(found, real(top)) && !inside(found, gitDir);
  const what = danger
    ? `core.hooksPath is ${path ?? ""}, in the worktree: a hook that the agent's patch adds there runs on this machine when Sandcastle applies the patch with git am`
    : "git looks for hooks where no patch of the agent's can put one";
  return { id: "git hooks", danger, what, cure: danger ? HOOKS_CURE : "" };
}

/** Everything that has a name goes into the guest: Sandcastle sends `git bundle create --all`. */
async function bundle(cwd: string): Promise<OutsideDanger | undefined> {
  const refs = (await git(cwd, ["for-each-ref", "--format=%(refname)"]))?.split("\n").filter((ref) => ref !== "");
  if (refs === undefined) return undefined;
  const branch = await git(cwd, ["symbolic-ref", "--quiet", "HEAD"]);
  const own = branch?.replace(/^refs\/heads\//, "");
  // The task's own branch, also as a remote has it.
  const isOwn = (ref: string): boolean => {
    const ofRemote = /^refs\/remotes\/[^/]+\/(.+)$/.exec(ref)?.[1];
    return ref === branch || (own !== undefined && (ofRemote === own || ofRemote === "HEAD"));
  };
  const stash = refs.includes("refs/stash"), others = refs.filter((ref) => ref !== "refs/stash" && !isOwn(ref));
  const names = others.slice(0, NAMES_SHOWN).map((ref) => ref.replace(/^refs\/(?:heads|remotes|tags)\//, ""));
  const list = others.length > names.length ? `${names.join(", ")}, …` : names.join(", ");
  const many = `${others.length} other ${others.length === 1 ? "branch or tag" : "branches and tags"} (${list})`;
  const parts = [...(stash ? ["the newest stash"] : []), ...(others.length > 0 ? [many] : [])];
  const danger = parts.length > 0;
  const what = danger
    ? `${parts.join(" and ")} would go into the guest: Sandcastle sends git bundle --all`
    : "only the current branch would go into the guest";
  return { id: "git bundle", danger, what, cure: danger ? BUNDLE_CURE : "" };
}

/** The two dangers in the repository around `cwd`. Undefined: there is none, or no git. */
export async function outsideDangers(cwd: string): Promise<readonly OutsideDanger[] | undefined> {
  const top = await git(cwd, ["rev-parse", "--show-toplevel"]);
  if (top === undefined || top === "") return undefined;
  const found = [await hooks(cwd, top), await bundle(cwd)];
  return found.filter((danger) => danger !== undefined);
}
