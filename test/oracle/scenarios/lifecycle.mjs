// SPDX-License-Identifier: Apache-2.0
// create, sync-in and close that fail, hang or come late; who calls close() and who does not.
import { existsSync } from "node:fs";
import { createSandbox, createWorktree, interactive, run } from "@ai-hero/sandcastle";
import { gitThat, okAgent, scriptedAgent } from "../lib/kit.mjs";

const diskFull = { prepare: gitThat("clone*", "echo disk full >&2; exit 128") };
// What breaks in the plain provider's own code, and what can break in its place in the product: the guest, or limactl.
const copyBreaks = (t) => ({
  hooks: {
    copyIn: () => {
      throw new Error("copy broke");
    },
  },
  own: { hooks: { copyIn: t.killGuest } },
});
const copyHangs = (t) => ({ hooks: { copyIn: () => t.sleep(130_000) }, own: { hooks: { copyIn: t.freezeGuest } } });
const createBreaks = { hooks: { create: () => { throw new Error("no kvm"); } }, own: { faults: { start: "fail" } } };
const createHangs = (t) => ({ hooks: { create: () => t.sleep(130_000) }, own: { faults: { start: "hang" } } });
const closeBreaks = {
  hooks: {
    close: () => {
      throw new Error("close broke");
    },
  },
  own: { faults: { delete: "fail" } },
};
const closeHangs = (t) => ({ hooks: { close: () => t.sleep(600_000) }, own: { faults: { delete: "hang" } } });
const usual = (t, options) =>
  run({ cwd: t.repo, agent: okAgent, prompt: "x", logging: t.logging, sandbox: t.provider(options) });
const sandboxOf = (t, options) => createSandbox({ cwd: t.repo, branch: "b", sandbox: t.provider(options) });

/** A clone of depth 1 of the host repository: what continuous integration checks out. */
function shallowClone(t) {
  t.sh("for i in 1 2 3; do echo $i >> a.txt; git commit -qam c$i; done", t.repo);
  const clone = `${t.repo}-shallow`;
  t.recorder.scrub(clone, "$SHALLOW");
  t.sh(
    `git clone -q --depth 1 file://${t.repo} ${clone} && cd ${clone} && git config user.email x@y && git config user.name x`,
    t.repo,
  );
  return clone;
}

export default {
  syncInFail_run: {
    about: "sync-in fails in run(): close() is never called",
    run: (t) => t.show("run", usual(t, diskFull)),
  },
  syncInFail_createSandbox: {
    about: "sync-in fails in createSandbox()",
    run: (t) => t.show("createSandbox", sandboxOf(t, copyBreaks(t))),
  },
  syncInFail_interactive: {
    about: "sync-in fails in interactive()",
    run: (t) =>
      t.show(
        "interactive",
        interactive({
          cwd: t.repo,
          agent: okAgent,
          prompt: "x",
          sandbox: t.provider({ ...copyBreaks(t), interactive: true }),
        }),
      ),
  },
  shallow: {
    about: "a depth-1 clone cannot be synced in",
    async run(t) {
      const clone = shallowClone(t);
      await t.show("run", run({ cwd: clone, agent: okAgent, prompt: "x", logging: t.logging, sandbox: t.provider() }));
      t.note("log", t.sh("git log --format=%s", clone));
    },
  },
  syncInWatchdog: {
    about: "after a sync-in that failed, a process that lives on: is the guest still there?",
    async run(t) {
      const clone = shallowClone(t);
      await t.show(
        "run",
        run({
          cwd: clone,
          agent: okAgent,
          prompt: "x",
          logging: t.logging,
          sandbox: t.provider({ product: { syncInTimeoutSeconds: 10 } }),
        }),
      );
      await t.sleep(14_000);
      await t.show("guest", t.handle().exec("echo alive"));
    },
  },
  syncInGood: {
    about: "a sandbox that synced in is used again after a long pause",
    async run(t) {
      const sandbox = await sandboxOf(t, { product: { syncInTimeoutSeconds: 20 } });
      await t.sleep(22_000);
      await t.show("run", sandbox.run({ agent: okAgent, prompt: "x", logging: t.logging }));
      await t.show("close", sandbox.close());
    },
  },
  createThrows: { about: "create() rejects", run: (t) => t.show("run", usual(t, createBreaks)) },
  createHang_run: {
    about: "create() hangs in run()",
    deadlineSeconds: 240,
    long: true,
    run: (t) => t.show("run", usual(t, createHangs(t))),
  },
  createHang_createSandbox: {
    about: "create() hangs in createSandbox(): the late handle is lost",
    deadlineSeconds: 240,
    long: true,
    async run(t) {
      await t.show("createSandbox", sandboxOf(t, createHangs(t)));
      await t.sleep(15_000);
    },
  },
  syncHang_run: {
    about: "copyIn hangs in run()",
    deadlineSeconds: 240,
    long: true,
    run: (t) => t.show("run", usual(t, copyHangs(t))),
  },
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
  closeHang_run: {
    about: "close() hangs: run() hangs with it",
    deadlineSeconds: 40,
    run: (t) => t.show("run", usual(t, closeHangs(t))),
  },
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
      const closed = new Promise((resolve) => t.afterAgentStarts(1500, () => resolve(sandbox.close())));
      await t.show("run", sandbox.run({ agent: scriptedAgent("echo a; sleep 10"), prompt: "x", logging: t.logging }));
      await t.show("close", closed);
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
      await t.show(
        "worktree.run",
        worktree.run({ agent: okAgent, prompt: "x", sandbox: t.provider(), logging: t.logging }),
      );
      const sandbox = await worktree.createSandbox({ sandbox: t.provider() });
      await t.show("sandbox.close", sandbox.close());
      await t.show("worktree.close", worktree.close());
    },
  },
};
