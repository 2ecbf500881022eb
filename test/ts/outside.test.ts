// SPDX-License-Identifier: Apache-2.0
// The two dangers outside the VM: reproduced with git alone, found in a repository that has them, and gone with the cure.
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeEach, describe, expect, it, vi } from "vitest";
import { HOOKS_OFF, outsideDangers } from "../../lib/outside.js";
import { bundled, clone, git, hookRuns } from "../../lib/verify/checks/outside.js";

vi.setConfig({ testTimeout: 100_000 });
const root = mkdtempSync(join(tmpdir(), "al-outside-"));
afterAll(() => rmSync(root, { recursive: true, force: true }));
let dir = root, n = 0;
beforeEach(() => mkdirSync((dir = join(root, String(n++)))));

describe("git am", () => {
  it("runs a hook on the host that the agent's patch has added below core.hooksPath", () => {
    expect(hookRuns(dir)).toBe(true);
  });
  it("does not with the cure", () => {
    expect(hookRuns(dir, HOOKS_OFF)).toBe(false);
  });
});

describe("git bundle --all", () => {
  it("carries the stash and another task's branch", () => {
    expect(bundled(dir)).toEqual(expect.arrayContaining(["refs/stash", "refs/heads/another-task", "refs/heads/main"]));
  });
  it("carries neither from the clone of the cure", () => {
    bundled(dir);
    expect(bundled(dir, clone(dir)).filter((ref) => !/\/(?:main|HEAD)$/.test(ref))).toEqual([]);
  });
});

describe("a repository's dangers", () => {
  const make = (name: string): string => {
    const repo = join(dir, name);
    mkdirSync(repo);
    git(repo, ["init", "-q", "-b", "main"]);
    writeFileSync(join(repo, "a.txt"), "a\n");
    git(repo, ["add", "a.txt"]);
    git(repo, ["commit", "-q", "-m", "initial"]);
    return repo;
  };
  const found = async (repo: string) => Object.fromEntries(((await outsideDangers(repo)) ?? []).map((d) => [d.id, d]));

  it("are none outside of a repository, and none in a plain one", async () => {
    expect(await outsideDangers(dir)).toBeUndefined();
    const plain = await found(make("plain"));
    expect([plain["git hooks"]!.danger, plain["git bundle"]!.danger]).toEqual([false, false]);
  });

  it.each([
    [".husky/_", true],
    ["sub/../hooks", true],
    ["WORKTREE/.githooks", true],
    [".git/my-hooks", false],
    ["/nonexistent/hooks", false],
    ["../elsewhere", false],
  ])("core.hooksPath %s: %s", async (path, danger) => {
    const repo = make("repo");
    git(repo, ["config", "core.hooksPath", path.replace("WORKTREE", repo)]);
    const one = (await found(repo))["git hooks"]!;
    expect(one.danger).toBe(danger);
    if (danger) expect(one.cure).toContain("GIT_CONFIG_KEY_0=core.hooksPath");
  });

  it("are seen from a directory below, and from a worktree", async () => {
    const repo = make("repo");
    git(repo, ["config", "core.hooksPath", ".husky/_"]);
    mkdirSync(join(repo, "deep", "er"), { recursive: true });
    expect((await found(join(repo, "deep", "er")))["git hooks"]!.danger).toBe(true);
    git(repo, ["worktree", "add", "-q", join(dir, "tree"), "-b", "task"]);
    const tree = await found(join(dir, "tree"));
    expect(tree["git hooks"]!.danger).toBe(true);
    expect(tree["git bundle"]!.what).toMatch(/1 other branch or tag \(main\)/);
  });

  it("name what would go into the guest", async () => {
    const repo = make("repo");
    for (const b of ["one", "two", "three", "four"]) git(repo, ["branch", b]);
    git(repo, ["tag", "v1"]);
    writeFileSync(join(repo, "a.txt"), "b\n");
    git(repo, ["stash", "-q"]);
    const one = (await found(repo))["git bundle"]!;
    expect(one.what).toMatch(/^the newest stash and 5 other branches and tags \(four, one, three, …\) would go into the guest/);
    git(dir, ["clone", "-q", "--single-branch", "--no-tags", repo, "task"]);
    expect((await found(join(dir, "task")))["git bundle"]!.danger).toBe(false);
  });
});

it("doctor warns in such a repository, and does not fail for it", () => {
  const repo = join(dir, "r");
  mkdirSync(repo);
  git(repo, ["init", "-q"]);
  git(repo, ["config", "core.hooksPath", ".husky/_"]);
  const main = join(import.meta.dirname, "../../dist/cli/main.js");
  let out = "";
  try {
    out = execFileSync(process.execPath, [main, "doctor", "--json", "--home", join(dir, "home")], { cwd: repo, encoding: "utf8", timeout: 90_000 });
  } catch (error) {
    out = (error as { stdout: string }).stdout; // this machine may lack what a lane needs
  }
  const report = JSON.parse(out) as { ok: boolean; checks: { name: string; status: string; cure?: string | null }[] };
  expect(report.checks.find((c) => c.name === "git hooks")).toMatchObject({ status: "warning", cure: expect.stringContaining("GIT_CONFIG_COUNT=1") });
  expect(report.checks.find((c) => c.name === "git bundle")).toMatchObject({ status: "found" });
  expect(report.ok).toBe(!report.checks.some((c) => !["found", "skipped", "warning"].includes(c.status)));
});
