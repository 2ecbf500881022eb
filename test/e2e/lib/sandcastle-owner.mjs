// SPDX-License-Identifier: Apache-2.0
// A process that uses Sandcastle and ends badly: sandcastle-owner.mjs OPTIONS(JSON) with `how` and `plain` among them.
// With `plain` the provider is a directory of this machine: what Sandcastle does by itself is then seen.
import { execFile, spawn } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { createIsolatedSandboxProvider, createSandbox, run } from "@ai-hero/sandcastle";
import { lima } from "@agent-lane/provider-lima";
import { makeRepo, scriptedAgent, sh } from "./lanes.mjs";

const { how, plain, ...options } = JSON.parse(process.argv[2]);

function directory() {
  const root = mkdtempSync(join(tmpdir(), "plain-")), worktreePath = join(root, "workspace");
  mkdirSync(worktreePath);
  const copy = async (from, to) => {
    mkdirSync(dirname(to), { recursive: true });
    cpSync(from, to, { recursive: true });
  };
  return {
    worktreePath,
    exec: (command, { cwd = worktreePath, onLine } = {}) =>
      new Promise((resolve) => {
        const child = execFile("sh", ["-c", command], { cwd, maxBuffer: 2 ** 28 }, (error, stdout, stderr) =>
          resolve({ stdout, stderr, exitCode: error === null ? 0 : (error.code ?? 1) }),
        );
        child.stdout.on("data", (text) => text.split("\n").filter(Boolean).forEach((line) => onLine?.(line)));
        child.stdin.end();
      }),
    interactiveExec: async (args, { cwd = worktreePath } = {}) =>
      new Promise((resolve) => spawn(args[0], args.slice(1), { cwd, stdio: "inherit" }).on("close", (exitCode) => resolve({ exitCode }))),
    copyIn: copy,
    copyFileOut: copy,
    close: async () => rmSync(root, { recursive: true, force: true }),
  };
}

/** Printed once the sandbox is there, or is being made; the test acts on it. */
const say = (text) => console.log(text);
const onEvent = (event) => (event.type === "booting" ? say("booting") : undefined);
const sandbox = plain
  ? createIsolatedSandboxProvider({ name: "plain", env: {}, create: async () => (say("booting"), directory()) })
  : lima({ ...options, onEvent });
const hook = (command) => ({ hooks: { sandbox: { onSandboxReady: [{ command }] } } });
const agent = scriptedAgent("echo started; sleep 60");
agent.parseStreamLine = (line) => (say("agent"), [{ type: "text", text: line }]);
const repo = makeRepo();
const logging = { type: "file", path: join(repo, ".sandcastle/e2e.log") };
const common = { cwd: repo, sandbox, logging };

const ways = {
  /** A signal, sent from outside while the agent works. */
  run: () => run({ ...common, agent, prompt: "x" }),
  createSandbox: async () => {
    await createSandbox({ cwd: repo, branch: "b", sandbox });
    say("agent");
    await new Promise((resolve) => setTimeout(resolve, 60_000));
  },
  /** The same while the sandbox is still being made. */
  create: () => createSandbox({ cwd: repo, branch: "b", sandbox, ...hook("sleep 60") }),
  abort: () => {
    const controller = new AbortController();
    setTimeout(() => controller.abort(new Error("aborted by the user")), 1500);
    return run({ ...common, agent, prompt: "x", signal: controller.signal });
  },
  /** The caller's own code leaves, in the middle of a run. */
  exit: () => {
    const leaving = scriptedAgent("echo started; sleep 60");
    leaving.parseStreamLine = () => process.exit(1);
    return run({ ...common, agent: leaving, prompt: "x" });
  },
  throws: () => {
    const throwing = scriptedAgent("echo started; sleep 60");
    throwing.parseStreamLine = () => (setImmediate(() => { throw new Error("a bug of the caller"); }), []);
    return run({ ...common, agent: throwing, prompt: "x" });
  },
  /** A clone without its history: Sandcastle's sync-in fails, and it forgets the sandbox without closing it. */
  shallow: async () => {
    sh("for i in 1 2 3; do echo $i >> a.txt; git commit -qam c$i; done", repo);
    const clone = `${repo}-shallow`;
    sh(`git clone -q --depth 1 file://${repo} ${clone} && cd ${clone} && git config user.email x@y && git config user.name x`, repo);
    await createSandbox({ cwd: clone, branch: "b", sandbox });
  },
};

try {
  await ways[how]();
  say("done");
} catch (error) {
  say(`error ${error.name}: ${String(error.message).split("\n")[0].replaceAll(repo, "REPO")}`);
  process.exitCode = 9;
}
