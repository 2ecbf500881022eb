// SPDX-License-Identifier: Apache-2.0
// exec: hooks, agents that fail, environment, parallel commands, lines, retries, interactive sessions.
import { createSandbox, claudeCode, interactive, run } from "@ai-hero/sandcastle";
import { mkdirSync, writeFileSync } from "node:fs";
import { dirname } from "node:path";
import { gitThat, okAgent, scriptedAgent } from "../lib/kit.mjs";

const usual = (t, options, more = {}) =>
  run({ cwd: t.repo, agent: okAgent, prompt: "x", logging: t.logging, sandbox: t.provider(options), ...more });
const sandboxOf = (t, options, more = {}) =>
  createSandbox({ cwd: t.repo, branch: "b", sandbox: t.provider(options), ...more });
const failingHook = { hooks: { sandbox: { onSandboxReady: [{ command: "echo nope >&2; exit 3" }] } } };
const isInteractive = (c) => c.call === "interactiveExec";
const talk = (t, options, more = {}) =>
  interactive({ cwd: t.repo, agent: claudeCode("m"), prompt: "hi", sandbox: t.provider(options), ...more });
const sessionThat = (action) => ({
  interactive: true,
  prepare: (guest) => guest.install("claude", `#!/bin/sh\n${action}\n`),
});
const withClaude = (t) => ({ prepare: (guest) => guest.install("claude", t.claude) });

export default {
  hookFail_createSandbox: {
    about: "a failing sandbox hook is ignored by createSandbox()",
    async run(t) {
      const sandbox = await t.show("createSandbox", sandboxOf(t, {}, failingHook));
      await t.show("close", sandbox.close());
    },
  },
  hookFail_run: { about: "a failing sandbox hook fails run()", run: (t) => t.show("run", usual(t, {}, failingHook)) },
  hookTimeout_run: {
    about: "a sandbox hook past its limit",
    run: (t) =>
      t.show("run", usual(t, {}, { hooks: { sandbox: { onSandboxReady: [{ command: "sleep 5", timeoutMs: 500 }] } } })),
  },
  agentExit: {
    about: "agent exits with 7",
    run: (t) => t.show("run", usual(t, {}, { agent: scriptedAgent("echo out1; echo err1 >&2; exit 7") })),
  },
  agentExecThrows: {
    about: "the transport is lost in the agent's exec",
    run(t) {
      const inAgent = (fault) => ({ hooks: { exec: (c) => (c.startsWith("echo change") ? fault() : undefined) } });
      return t.show(
        "run",
        usual(t, {
          ...inAgent(() => {
            throw new Error("transport lost");
          }),
          own: inAgent(t.killGuest),
        }),
      );
    },
  },
  iterations: {
    about: "two iterations of run(): a new guest for each",
    run: (t) =>
      t.show(
        "run",
        usual(t, {}, { agent: scriptedAgent("echo change >> a.txt; git commit -qam c; echo nope"), maxIterations: 2 }),
      ),
  },
  transient: {
    about: "git setup that is killed (137) is tried again",
    run: (t) =>
      t.show(
        "run",
        usual(t, {
          prepare: gitThat(
            "*safe.directory*",
            'n=$(cat "$HOME/n" 2>/dev/null || echo 0); [ "$n" -ge 2 ] || { echo $((n + 1)) > "$HOME/n"; kill -9 $$; }',
          ),
        }),
      ),
  },
  gitSetupHang: {
    about: "git setup hangs past its limit",
    run: (t) =>
      t.show(
        "run",
        usual(t, { prepare: gitThat("*safe.directory*", "exec sleep 60") }, { timeouts: { gitSetupMs: 700 } }),
      ),
  },
  parallel: {
    about: "three commands at once, one with 5 MB of input",
    async run(t) {
      const sandbox = await sandboxOf(t);
      const ended = await Promise.allSettled([
        sandbox.exec("sleep 0.3; echo 1"),
        sandbox.exec("echo 2", { sudo: true, stdin: "", onLine: () => {} }),
        sandbox.exec("cat | wc -c", { stdin: "x".repeat(5_000_000) }),
      ]);
      t.note("exec", ended);
      await sandbox.close();
    },
  },
  stderrOnLine: {
    about: "onLine gets stdout only, and the last line without a newline",
    async run(t) {
      const sandbox = await sandboxOf(t),
        lines = [];
      const result = await sandbox.exec("echo o1; echo e1 >&2; printf tail", { onLine: (l) => lines.push(l) });
      t.note("exec", { lines, result });
      await sandbox.close();
    },
  },
  onLineThrows: {
    about: "the agent's parser throws inside onLine",
    async run(t) {
      const sandbox = await sandboxOf(t);
      await t.show(
        "run",
        sandbox.run({
          agent: scriptedAgent("echo a", {
            parseStreamLine: () => {
              throw new Error("parser bug");
            },
          }),
          prompt: "x",
          logging: t.logging,
        }),
      );
      await sandbox.close();
    },
  },
  agentEnv: {
    about: "the agent's environment does not reach createSandbox()",
    async run(t) {
      const sandbox = await sandboxOf(t);
      await t.show(
        "run",
        sandbox.run({ agent: scriptedAgent("true", { env: { AGENT_KEY: "1" } }), prompt: "x", logging: t.logging }),
      );
      await t.show("env", sandbox.exec("echo AGENT_KEY=$AGENT_KEY"));
      await sandbox.close();
    },
  },
  overlapEnv: {
    about: "agent and provider name the same variable",
    run: (t) => t.show("run", usual(t, { env: { A: "2" } }, { agent: scriptedAgent("true", { env: { A: "1" } }) })),
  },
  quotedName: {
    about: "a host user name with $() runs in the guest",
    async run(t) {
      t.sh(`git config user.name 'A $(touch /tmp/oracle-pwned) \`id >/dev/null\` B'`, t.repo);
      const sandbox = await sandboxOf(t);
      await t.show(
        "run",
        sandbox.run({ agent: scriptedAgent("git config --global user.name; true"), prompt: "x", logging: t.logging }),
      );
      await t.show("pwned in the guest", sandbox.exec("ls /tmp/oracle-pwned && rm /tmp/oracle-pwned"));
      await sandbox.close();
    },
  },
  resumeSandbox: {
    about: "resume() of a Sandbox.run rejects: no session file on the host",
    async run(t) {
      const sandbox = await sandboxOf(t, withClaude(t));
      const first = await t.show("run", sandbox.run({ agent: claudeCode("m"), prompt: "x", logging: t.logging }));
      if (first) await t.show("resume", (async () => first.resume("again"))());
      await sandbox.close();
    },
  },
  resumeStub: {
    about: "resume() works once an empty session file is on the host",
    async run(t) {
      const { claudeHostSessionPath } = await import("@ai-hero/sandcastle");
      const sandbox = await sandboxOf(t, withClaude(t));
      const first = await t.show("run", sandbox.run({ agent: claudeCode("m"), prompt: "x", logging: t.logging }));
      const file = claudeHostSessionPath(t.repo, first.iterations[0].sessionId);
      mkdirSync(dirname(file), { recursive: true });
      writeFileSync(file, "");
      await t.show("resume", (async () => first.resume("again"))());
      await sandbox.close();
    },
  },
  interactive: {
    about: "interactive() gives the session's exit code",
    run: (t) => t.show("interactive", talk(t, sessionThat("exit 5"))),
  },
  interactiveMissing: { about: "a handle without interactiveExec", run: (t) => t.show("interactive", talk(t, {})) },
  interactiveAbort: {
    about: "abort of an interactive session: close() with the session in flight",
    run: (t) =>
      t.show("interactive", talk(t, sessionThat("exec sleep 60"), { signal: t.abortAfter(2500, isInteractive) })),
  },
  interactiveSandbox: {
    about: "Sandbox.interactive()",
    async run(t) {
      const sandbox = await sandboxOf(t, sessionThat("exit 0"));
      await t.show("interactive", sandbox.interactive({ agent: claudeCode("m"), prompt: "hi" }));
      await t.show("close", sandbox.close());
    },
  },
};
