// SPDX-License-Identifier: Apache-2.0
// Checks: the two dangers outside the VM, each reproduced with git alone, since no sandbox holds them.
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { BUNDLE_CURE, HOOKS_CURE, HOOKS_OFF } from "../../outside.js";
import { notRun, open, type Verdict } from "../answers.js";
import { token } from "../canary.js";
import type { Check } from "../check.js";
import type { Scene } from "../scene.js";

/** Git without this user's own settings, so that the answer is git's and not theirs. */
export function git(cwd: string, args: readonly string[], env: Readonly<Record<string, string>> = {}): string {
  const own = { GIT_CONFIG_NOSYSTEM: "1", GIT_CONFIG_GLOBAL: "/dev/null", GIT_AUTHOR_NAME: "A", GIT_AUTHOR_EMAIL: "a@example.com", GIT_COMMITTER_NAME: "A", GIT_COMMITTER_EMAIL: "a@example.com" };
  const all = { PATH: process.env["PATH"], HOME: cwd, LC_ALL: "C", ...own, ...env };
  return execFileSync("git", [...args], { cwd, env: all, encoding: "utf8", timeout: 30_000, stdio: ["ignore", "pipe", "pipe"] });
}

function repository(dir: string): string {
  mkdirSync(dir, { recursive: true });
  git(dir, ["init", "-q", "-b", "main"]);
  writeFileSync(join(dir, "a.txt"), "hello\n");
  git(dir, ["add", "a.txt"]);
  git(dir, ["commit", "-q", "-m", "initial"]);
  return dir;
}

/** The patch of an agent that adds a hook, applied as Sandcastle does it. True: the hook ran, here on the host. */
export function hookRuns(dir: string, env: Readonly<Record<string, string>> = {}): boolean {
  const host = repository(join(dir, "host"));
  git(host, ["config", "core.hooksPath", ".husky/_"]);
  const guest = join(dir, "guest");
  git(dir, ["clone", "-q", host, guest]);
  const marker = join(dir, "ran");
  mkdirSync(join(guest, ".husky", "_"), { recursive: true });
  writeFileSync(join(guest, ".husky", "_", "post-applypatch"), `#!/bin/sh\n: >'${marker}'\n`, { mode: 0o755 });
  git(guest, ["add", "-f", ".husky"]);
  git(guest, ["commit", "-q", "-m", "harmless"]);
  git(guest, ["format-patch", "-q", "-1", "-o", join(dir, "patches")]);
  git(host, ["am", "-q", "--3way", join(dir, "patches", "0001-harmless.patch")], env);
  return existsSync(marker);
}

/** What a bundle of everything holds beside the branch of the task: names of refs. */
export function bundled(dir: string, source?: string): string[] {
  const host = source ?? repository(join(dir, "host"));
  if (source === undefined) {
    git(host, ["branch", "another-task"]);
    writeFileSync(join(host, "a.txt"), "not to be shown\n");
    git(host, ["stash", "-q"]);
  }
  const file = join(dir, `${token()}.bundle`);
  git(host, ["bundle", "create", "-q", file, "--all"]);
  return git(host, ["bundle", "list-heads", file]).split("\n").map((line) => line.split(" ")[1] ?? "").filter((ref) => ref !== "" && ref !== "HEAD");
}

/** The clone that the cure speaks of. */
export function clone(dir: string): string {
  git(dir, ["clone", "-q", "--single-branch", "--no-tags", join(dir, "host"), join(dir, "task")]);
  return join(dir, "task");
}

async function hooks(scene: Scene): Promise<Verdict> {
  const ran = hookRuns(await scene.scratch("hooks"));
  const cured = !hookRuns(await scene.scratch("hooks-off"), HOOKS_OFF);
  if (!ran || !cured) return notRun(`the hook ${ran ? "" : "did not run"}${ran ? "ran with the cure, too" : ""}: this git does otherwise than is written here`);
  return open("git am ran the hook that the patch had added, on the host; with the cure it did not", [HOOKS_CURE]);
}

async function bundles(scene: Scene): Promise<Verdict> {
  const dir = await scene.scratch("bundle");
  const all = bundled(dir);
  const cured = bundled(dir, clone(dir));
  const more = all.filter((ref) => ref !== "refs/heads/main");
  if (!more.includes("refs/stash") || !more.includes("refs/heads/another-task") || cured.some((ref) => !ref.endsWith("/main") && !ref.endsWith("/HEAD")))
    return notRun("this git bundles otherwise than is written here", [...all, ...cured]);
  return open("the bundle held the stash and the branch of another task; a bundle of the clone that the cure makes did not", [BUNDLE_CURE]);
}

const BY = "nothing: Sandcastle does it on the host. `doctor` and `explain` warn in a repository that has it, with the cure";

export const outside: readonly Check[] = [
  { id: "git-hooks", point: "outside the VM", tried: "core.hooksPath points into the worktree (as husky has it), and the agent's patch adds a hook; it is applied with git am, as Sandcastle does", by: BY, run: hooks },
  { id: "git-bundle", point: "outside the VM", tried: "a repository with a stash and another task's branch is bundled with git bundle --all, as Sandcastle does", by: BY, run: bundles },
];
