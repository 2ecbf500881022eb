// SPDX-License-Identifier: Apache-2.0
// What comes back: diffs, untracked files, awkward names, damaged output, patches that do not apply, a guest that lies
// about names.
import { createSandbox, run } from "@ai-hero/sandcastle";
import { existsSync, mkdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { okAgent, scriptedAgent } from "../lib/kit.mjs";

const usual = (t, options, more = {}) =>
  run({ cwd: t.repo, agent: okAgent, prompt: "x", logging: t.logging, sandbox: t.provider(options), ...more });

/** One Sandbox.run per script, then `after` with the host worktree, then close. */
const scripts = (about, list, after = "git status --porcelain", options = {}) => ({
  about,
  async run(t) {
    const sandbox = await createSandbox({ cwd: t.repo, branch: "b", sandbox: t.provider(options) });
    for (const [i, script] of list.entries())
      await t.show(`run ${i + 1}`, sandbox.run({ agent: scriptedAgent(script), prompt: "x", logging: t.logging }));
    t.note("host worktree", t.sh(after, sandbox.worktreePath));
    await t.show("close", sandbox.close());
  },
});
const commit = "echo c >> a.txt; git commit -qam c";
const mapped = (change) => ({ own: {}, hooks: { mapResult: (c, r) => ({ ...r, stdout: change(r.stdout) }) } });
const patches = "git worktree list; find .sandcastle -name '*.patch' | sort; git branch -a; git log --format=%s -3";
const lie = (names) => (c) =>
  c.startsWith("git ls-files --others") ? { stdout: names, stderr: "", exitCode: 0 } : undefined;

export default {
  dirty: scripts(
    "uncommitted changes and untracked files, binary, executable, with a space",
    [
      `echo mod >> a.txt; mkdir -p d/e; printf '\\000\\377\\001bin' > d/e/bin.dat; printf '#!/bin/sh\\n' > x.sh; chmod +x x.sh; echo s > 'sp ace.txt'; echo done`,
    ],
    "git status --porcelain; git diff; ls x.sh 'sp ace.txt'; od -c d/e/bin.dat",
  ),
  dirtyTwice: scripts(
    "the same diff comes twice",
    ["echo mod >> a.txt; echo done", "echo mod >> a.txt; echo done"],
    "git diff; ls .sandcastle/patches | wc -l",
  ),
  nonAscii: scripts(
    "an untracked name that is not ASCII",
    [`${commit}; echo x > 'é.txt'; echo done`],
    "git log --format=%s",
  ),
  nonAsciiQuotepathOff: scripts(
    "the same with core.quotePath off in the guest",
    [`${commit}; echo x > 'é.txt'; echo done`],
    "git -c core.quotePath=false status --porcelain",
    {
      guestEnv: { GIT_CONFIG_COUNT: "1", GIT_CONFIG_KEY_0: "core.quotePath", GIT_CONFIG_VALUE_0: "false" },
    },
  ),
  symlinkUntracked: scripts("an untracked dangling link", [`${commit}; ln -s /nonexistent dangling; echo done`]),
  nestedRepo: scripts("an untracked nested repository", [
    `${commit}; git init -q nested; echo n > nested/n.txt; git -C nested add -A; git -C nested commit -qm n; echo done`,
  ]),
  binaryDiff: scripts("an uncommitted change of a tracked binary", [
    "printf '\\000\\001' > bin; git add bin; git commit -qm bin; echo done",
    "printf '\\000\\002' > bin; echo u > untr.txt; echo done",
  ]),
  latin1Diff: scripts("a diff that is not UTF-8", ["printf 'caf\\351\\n' >> a.txt; echo done"], "od -c a.txt"),
  trimmedDiff: scripts(
    "a provider that trims stdout",
    ["echo mod >> a.txt; echo done"],
    undefined,
    mapped((s) => s.trim()),
  ),
  tailedDiff: scripts(
    "a provider that keeps the tail of stdout",
    ["seq 1 40000 >> a.txt; echo done"],
    undefined,
    mapped((s) => s.slice(-65536)),
  ),
  crlf: scripts(
    "a provider with CRLF",
    [`echo change >> a.txt; git commit -qam c; echo "RESULT <promise>COMPLETE</promise>"`],
    undefined,
    mapped((s) => s.replaceAll("\n", "\r\n")),
  ),
  corruptPatch: {
    about: "copyFileOut delivers garbage: commits are lost silently",
    async run(t) {
      const spoil = (path, host, guest) => guest.exec(`printf garbage > '${path}'`);
      await t.show("run", usual(t, { hooks: { copyFileOut: spoil } }));
      t.note("host", t.sh(patches, t.repo));
    },
  },
  amConflict: {
    about: "a patch that does not apply to a clean worktree goes with it",
    async run(t) {
      const spoil = (path, host, guest) =>
        path.endsWith(".patch") ? guest.exec(`sed -i s/hello/hallo/ '${path}'`) : undefined;
      await t.show("run", usual(t, { hooks: { copyFileOut: spoil } }));
      t.note("host", t.sh(patches, t.repo));
    },
  },
  amFailClean: {
    about: "the host has committed something else meanwhile",
    async run(t) {
      await t.show(
        "run",
        usual(
          t,
          {},
          { hooks: { host: { onSandboxReady: [{ command: "echo host > a.txt && git commit -qam hostside" }] } } },
        ),
      );
      t.note("host", t.sh(patches, t.repo));
    },
  },
  detachedWorktree: {
    about: "the host is on a detached HEAD",
    async run(t) {
      t.sh("git checkout -q --detach", t.repo);
      await t.show("run", usual(t, {}));
      t.note("host", t.sh("git log --format=%s -3; git branch -a", t.repo));
    },
  },
  bigBundleSymlink: {
    about: "copyToWorktree with links and modes",
    run(t) {
      t.sh(
        "mkdir -p real && echo r > real/f && ln -s real link && git add -A && git commit -qm l && mkdir -p extra && echo hi > extra/e && ln -s e extra/l && ln -s /nonexistent extra/dang && chmod 755 extra/e",
        t.repo,
      );
      return t.show(
        "run",
        usual(
          t,
          {},
          {
            hooks: { host: { onWorktreeReady: [{ command: `cp -a ${t.repo}/extra .` }] } },
            copyToWorktree: ["extra", "link"],
          },
        ),
      );
    },
  },
  traversal: {
    about: "the guest names ../../../escaped.txt among its untracked files",
    async run(t) {
      const options = {
        hooks: {
          exec: lie("../../../escaped.txt\n"),
          copyFileOut: (path, host, guest) => guest.exec(`echo pwn > '${path}'`),
        },
      };
      const sandbox = await createSandbox({ cwd: t.repo, branch: "b", sandbox: t.provider(options) });
      await t.show("run", sandbox.run({ agent: scriptedAgent("echo done"), prompt: "x", logging: t.logging }));
      t.note("escaped into the main checkout", existsSync(join(t.repo, "escaped.txt")));
      await sandbox.close();
    },
  },
  symlinkThrough: {
    about: "a committed link, and a file named through it while the link is there",
    async run(t) {
      const sandbox = await createSandbox({
        cwd: t.repo,
        branch: "b",
        sandbox: t.provider({ hooks: { exec: lie("d/x\n") } }),
      });
      const outside = join(dirname(sandbox.worktreePath), "elsewhere");
      mkdirSync(outside);
      const script = `ln -s ../elsewhere d; git add d; git commit -qm link; mkdir -p ../elsewhere; echo pwn > ../elsewhere/x; echo done`;
      await t.show("run", sandbox.run({ agent: scriptedAgent(script), prompt: "x", logging: t.logging }));
      t.note("written outside through the link", existsSync(join(outside, "x")));
      await sandbox.close();
    },
  },
  symlinkEscape: {
    about: "a committed link to the outside that becomes a directory in the guest, then a file named below it",
    async run(t) {
      const outside = `${t.repo}-outside`;
      mkdirSync(outside);
      t.recorder.scrub(outside, "$OUTSIDE");
      const exec = async (c, o, { guest }) => {
        const answer = lie("d/x\n")(c);
        if (answer) await guest.exec("rm d && mkdir d && echo pwn > d/x", { cwd: o.cwd });
        return answer;
      };
      const sandbox = await createSandbox({ cwd: t.repo, branch: "b", sandbox: t.provider({ hooks: { exec } }) });
      await t.show(
        "run",
        sandbox.run({
          agent: scriptedAgent(`ln -s ${outside} d; git add d; git commit -qm link; echo done`),
          prompt: "x",
          logging: t.logging,
        }),
      );
      t.note("written outside through the link", existsSync(join(outside, "x")));
      await sandbox.close();
    },
  },
};
