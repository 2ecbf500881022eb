// SPDX-License-Identifier: Apache-2.0
// agent-lane explain: the options of lima() as words, and the table that inspect and the run manifest have too.
import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, it, vi } from "vitest";
import { OPTION_NAMES } from "../../lib/options.js";
import { git } from "../../lib/verify/checks/outside.js";

vi.setConfig({ testTimeout: 100_000 });
const dir = mkdtempSync(join(tmpdir(), "al-explain-"));
afterAll(() => rmSync(dir, { recursive: true, force: true }));
const main = join(import.meta.dirname, "../../dist/cli/main.js");
const explain = (args: string[], cwd = dir) => {
  const r = spawnSync(process.execPath, [main, "explain", ...args], { cwd, encoding: "utf8", timeout: 90_000 });
  return { code: r.status, out: r.stdout, err: r.stderr };
};
interface Row { what: string; enforced: boolean | null; by: string }
const table = (...args: string[]) => {
  const r = explain([...args, "--json"]);
  expect(r.err).toBe("");
  const { enforced } = JSON.parse(r.out) as { enforced: Row[] };
  return Object.fromEntries(enforced.map((row) => [row.what, row]));
};

it("says what is enforced, what is not, and by what", () => {
  const open = table(), none = table("--network", "none", "--memory-gib", "1.5", "--cpus", "1", "--timeout-minutes", "90");
  expect(Object.keys(none)).toEqual(Object.keys(open));
  expect(open["network"]).toMatchObject({ enforced: false, by: expect.stringContaining("loopback") });
  for (const what of ["egress by domain", "credentials out of the guest", "git on the host"]) expect(none[what]).toMatchObject({ enforced: false });
  for (const what of ["host files", "host sockets and keys", "memory", "cpus", "lifetime", "copies out"]) expect(none[what]).toMatchObject({ enforced: true });
  expect(none["memory"]!.by).toContain("1536 MiB");
  expect(none["lifetime"]!.by).toContain("90 minutes");
  if (process.platform === "linux") expect(none["network"]).toMatchObject({ enforced: true, by: expect.stringContaining("restrict=on") });
  const text = explain(["--network", "none"]);
  expect(text.out).toMatch(/^what +enforced +by\nnetwork +(?:yes|no) /);
  expect(text.code).toBe(0);
});

it("takes the options of lima(), and none that it does not have", () => {
  const help = explain(["--help"]).out;
  const words = OPTION_NAMES.filter((name) => !["env", "onEvent", "reporter", "home", "limactlPath"].includes(name));
  const kebab = (name: string) => name.replace(/GiB|MiB/g, (u) => `-${u.toLowerCase()}`).replace(/[A-Z]/g, (c) => `-${c.toLowerCase()}`);
  expect(words.filter((name) => !help.includes(`--${kebab(name)} <value>`))).toEqual([]);
  expect(explain(["--memory-gib", "300"])).toMatchObject({ code: 2, err: expect.stringMatching(/'--memory-gib <value>' argument '300' is invalid\. It must be a number from 1 to 256/) });
  expect(explain(["--guest-sudo", "maybe"])).toMatchObject({ code: 2, err: expect.stringContaining("It must be true or false") });
  expect(explain(["--guest-sudo", "false"]).code).toBe(0);
  expect(explain(["--max-copy-out-bytes", "2GiB"]).code).toBe(0);
  expect(explain(["--max-copy-out-bytes", "2GB"])).toMatchObject({ code: 2, err: expect.stringContaining("such as 4096, 512MiB or 2GiB") });
  expect(explain(["--max-copy-out-bytes", "2TiB"]).code).toBe(2);
  expect(explain(["--image-keys", "x"])).toMatchObject({ code: 2, err: expect.stringContaining('"x" is no public key') });
  expect(explain(["--no-such"]).code).toBe(2);
});

it("warns in a repository that has a danger, with the cure", () => {
  expect(JSON.parse(explain(["--json"]).out)).toMatchObject({ repository: null });
  const repo = join(dir, "repo");
  mkdirSync(repo);
  git(repo, ["init", "-q"]);
  git(repo, ["config", "core.hooksPath", ".husky/_"]);
  expect(explain([], repo).out).toMatch(/\nIn this repository\ngit hooks: core\.hooksPath is \.husky\/_, in the worktree[^\n]*\n {2}cure: [^\n]*GIT_CONFIG_KEY_0=core\.hooksPath/);
});
