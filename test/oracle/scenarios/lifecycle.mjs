// SPDX-License-Identifier: Apache-2.0
// create, sync-in and close that fail, hang or come late; who calls close() and who does not.
import { existsSync } from "node:fs";
import { createSandbox, createWorktree, interactive, run } from "@ai-hero/sandcastle";
import { okAgent, scriptedAgent } from "../lib/kit.mjs";

const diskFull = { hooks: { exec: (c) => (c.startsWith("git clone") ? { stdout: "", stderr: "disk full", exitCode: 128 } : undefined) } };
const copyBreaks = { hooks: { copyIn: () => { throw new Error("copy broke"); } } };
const closeBreaks = { hooks: { close: () => { throw new Error("close broke"); } } };
const usual = (t, options) => run({ cwd: t.repo, agent: okAgent, prompt: "x", logging: t.logging, sandbox: t.provider(options) });
const sandboxOf = (t, options) => createSandbox({ cwd: t.repo, branch: "b", sandbox: t.provider(options) });

export default {
  syncInFail_run: { about: "sync-in fails in run(): close() is never called", run: (t) => t.show("run", usual(t, diskFull)) },
  syncInFail_createSandbox: { about: "sync-in fails in createSandbox()", run: (t) => t.show("createSandbox", sandboxOf(t, copyBreaks)) },
  syncInFail_interactive: {
    about: "sync-in fails in interactive()",
    run: (t) => t.show("interactive", interactive({ cwd: t.repo, agent: okAgent, prompt: "x", sandbox: t.provider({ ...copyBreaks, interactive: async () => ({ exitCode: 0 }) }) })),
  },
  shallow: {
    about: "a depth-1 clone cannot be synced in",
    async run(t) {
      t.sh("for i in 1 2 3; do echo $i >> a.txt; git commit -qam c$i; done", t.repo);
      const clone = `${t.repo}-shallow`;
      t.recorder.scrub(clone, "$SHALLOW");
      t.sh(`git clone -q --depth 1 file://${t.repo} ${clone} && cd ${clone} && git config user.email x@y && git config user.name x`, t.repo);
      await t.show("run", run({ cwd: clone, agent: okAgent, prompt: "x", logging: t.logging, sandbox: t.provider() }));
      t.note("log", t.sh("git log --format=%s", clone));
    },
  },
  createThrows: { about: "create() rejects", run: (t) => t.show("run", usual(t, { hooks: { create: () => { throw new Error("no kvm"); } } })) },
  createHang_run: { about: "create() takes 130 s in run()", deadlineSeconds: 240, run: (t) => t.show("run", usual(t, { hooks: { create: () => t.sleep(130_000) } })) },
  createHang_createSandbox: {
    about: "create() takes 130 s in createSandbox(): the late handle is lost",
    deadlineSeconds: 240,
    async run(t) {
      await t.show("createSandbox", sandboxOf(t, { hooks: { create: () => t.sleep(130_000) } }));
      await t.sleep(15_000);
    },
  },
  syncHang_run: { about: "copyIn takes 130 s in run()", deadlineSeconds: 240, run: (t) => t.show("run", usual(t, { hooks: { copyIn: () => t.sleep(130_000) } })) },
  closeRejects_run: { about: "close() rejects in run()", run: (t) => t.show("run", usual(t, closeBreaks)) },
  closeRejects_sandbox: {
    about: "close() rejects in createSandbox()",
    async run(t) {
      const sandbox = await sandboxOf(t, closeBreaks);
      await t.show("close", sandbox.close());
      await t.show("close again", sandbox.close());
      t.note("worktree exists", existsSync(sandbox.worktreePath));
    },
  },
  closeHang_run: { about: "close() hangs: run() hangs with it", deadlineSeconds: 90, run: (t) => t.show("run", usual(t, { hooks: { close: () => t.sleep(600_000) } })) },
  useAfterClose: {
    about: "exec after close is passed on to the handle",
    async run(t) {
      const sandbox = await sandboxOf(t);
      await sandbox.close();
      await t.show("exec", sandbox.exec("echo hi"));
    },
  },
  closeDuringRun: {
    about: "Sandbox.close() while an agent works",
    async run(t) {
      const sandbox = await sandboxOf(t);
      const closed = new Promise((resolve) => t.afterAgentStarts(1500, () => resolve(t.show("close", sandbox.close()))));
      await t.show("run", sandbox.run({ agent: scriptedAgent("echo a; sleep 10"), prompt: "x", logging: t.logging }));
      await closed;
    },
  },
  usingDispose: {
    about: "Symbol.asyncDispose closes",
    async run(t) {
      const sandbox = await sandboxOf(t);
      await sandbox.exec("true");
      await sandbox[Symbol.asyncDispose]();
    },
  },
  worktree: {
    about: "createWorktree(): run, then a sandbox on the same worktree",
    async run(t) {
      const worktree = await createWorktree({ cwd: t.repo, branchStrategy: { type: "branch", branch: "wtb" } });
      await t.show("worktree.run", worktree.run({ agent: okAgent, prompt: "x", sandbox: t.provider(), logging: t.logging }));
      const sandbox = await worktree.createSandbox({ sandbox: t.provider() });
      await t.show("sandbox.close", sandbox.close());
      await t.show("worktree.close", worktree.close());
    },
  },
};
