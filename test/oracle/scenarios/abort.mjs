// SPDX-License-Identifier: Apache-2.0
// What a handle sees of aborts, idle and completion limits: mostly nothing, or close() with an exec in flight.
import { createSandbox, run } from "@ai-hero/sandcastle";
import { okAgent, scriptedAgent } from "../lib/kit.mjs";

const ticking = "for i in 1 2 3 4 5 6; do echo tick $i; sleep 1; done";
const isCreate = (c) => c.call === "create";

export default {
  abortRun: {
    about: "abort of run() while the agent works",
    run: (t) =>
      t.show(
        "run",
        run({
          cwd: t.repo,
          agent: scriptedAgent(ticking),
          sandbox: t.provider(),
          prompt: "x",
          signal: t.abortAfter(2500),
          logging: t.logging,
        }),
      ),
  },
  abortSandboxRun: {
    about: "abort of Sandbox.run(): the handle hears nothing, the next run sees the late file",
    async run(t) {
      const sandbox = await createSandbox({ cwd: t.repo, branch: "b", sandbox: t.provider() });
      await t.show(
        "run",
        sandbox.run({
          agent: scriptedAgent(`${ticking}; echo late-end > late.txt`),
          prompt: "x",
          signal: t.abortAfter(2500),
          logging: t.logging,
        }),
      );
      await t.sleep(7000);
      await t.show("run 2", sandbox.run({ agent: okAgent, prompt: "x", logging: t.logging }));
      await t.show("close", sandbox.close());
    },
  },
  abortDuringCreate: {
    about: "abort while create() is slow: create and sync-in run on, then close()",
    run: (t) =>
      t.show(
        "run",
        run({
          cwd: t.repo,
          agent: okAgent,
          prompt: "x",
          logging: t.logging,
          signal: t.abortAfter(1200, isCreate),
          sandbox: t.provider({ hooks: { create: () => t.sleep(3000) } }),
        }),
      ),
  },
  idle: {
    about: "idle limit of one second",
    run: (t) =>
      t.show(
        "run",
        run({
          cwd: t.repo,
          agent: scriptedAgent("echo a; sleep 30"),
          prompt: "x",
          idleTimeoutSeconds: 1,
          logging: t.logging,
          sandbox: t.provider(),
        }),
      ),
  },
  hang: {
    about: "agent that is complete but does not end: the completion limit abandons it",
    run: (t) =>
      t.show(
        "run",
        run({
          cwd: t.repo,
          prompt: "x",
          completionTimeoutSeconds: 1,
          logging: t.logging,
          sandbox: t.provider(),
          agent: scriptedAgent(
            `echo change >> a.txt; git commit -qam c; echo "RESULT <promise>COMPLETE</promise>"; sleep 30`,
          ),
        }),
      ),
  },
  bufferedOnLine: {
    about: "lines that are only delivered at the end look idle",
    run: (t) =>
      t.show(
        "run",
        run({
          cwd: t.repo,
          agent: scriptedAgent("echo a; sleep 1.3; echo b; sleep 1.3; echo c; sleep 1.3; echo d"),
          prompt: "x",
          idleTimeoutSeconds: 3,
          logging: t.logging,
          sandbox: t.provider({ bufferLines: true, own: {} }),
        }),
      ),
  },
  lateLines: {
    about: "lines after an abort of Sandbox.run restart an endless idle warning: the process does not end by itself",
    async run(t) {
      const sandbox = await createSandbox({ cwd: t.repo, branch: "b", sandbox: t.provider() });
      await t.show(
        "run",
        sandbox.run({
          agent: scriptedAgent(ticking),
          prompt: "x",
          signal: t.abortAfter(2500),
          idleTimeoutSeconds: 2,
          logging: t.logging,
        }),
      );
      await t.sleep(6000);
      await t.show("close", sandbox.close());
    },
  },
  noLateLines: {
    about: "without late lines the process ends at once",
    async run(t) {
      const sandbox = await createSandbox({ cwd: t.repo, branch: "b", sandbox: t.provider() });
      await t.show(
        "run",
        sandbox.run({
          agent: scriptedAgent("echo a; sleep 4"),
          prompt: "x",
          signal: t.abortAfter(2500),
          idleTimeoutSeconds: 600,
          logging: t.logging,
        }),
      );
      await t.sleep(4000);
      await t.show("close", sandbox.close());
    },
  },
  sigintRun: {
    about: "SIGINT during run(): no handler, the process dies without an exit event",
    run(t) {
      t.afterAgentStarts(1000, () => process.kill(process.pid, "SIGINT"));
      return t.show(
        "run",
        run({
          cwd: t.repo,
          agent: scriptedAgent("echo a; sleep 20"),
          prompt: "x",
          logging: t.logging,
          sandbox: t.provider(),
        }),
      );
    },
  },
  sigintSandbox: {
    about: "SIGINT during Sandbox.run(): Sandcastle's handler exits with 1, close() is not called",
    async run(t) {
      t.afterAgentStarts(1000, () => process.kill(process.pid, "SIGINT"));
      const sandbox = await createSandbox({ cwd: t.repo, branch: "b", sandbox: t.provider() });
      await t.show("run", sandbox.run({ agent: scriptedAgent("echo a; sleep 20"), prompt: "x", logging: t.logging }));
    },
  },
};
