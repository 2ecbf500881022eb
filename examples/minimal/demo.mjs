// SPDX-License-Identifier: Apache-2.0
// The product's main job in one script: an agent works in a VM of its own, its commits come back, the VM is gone.
//   node demo.mjs [REPOSITORY]        with ANTHROPIC_API_KEY set: the real Claude Code; without: a scripted agent, no network needed
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { claudeCode, createSandbox, run } from "@ai-hero/sandcastle";
import { lima } from "@agent-lane/provider-lima";

const git = (repo, ...args) => execFileSync("git", ["-C", repo, ...args], { encoding: "utf8" }).trim();
const started = performance.now();
const seconds = {};
let last = started;
const say = (text) => console.log(`${((performance.now() - started) / 1000).toFixed(1).padStart(6)} s  ${text}`);
const step = (name) => {
  seconds[name] = Number(((performance.now() - last) / 1000).toFixed(2));
  last = performance.now();
};

/** A small repository, made once; a second run goes on with it. */
function repository(dir) {
  const repo = resolve(dir ?? mkdtempSync(join(tmpdir(), "agent-lane-demo-")));
  if (existsSync(join(repo, ".git"))) return repo;
  mkdirSync(repo, { recursive: true });
  git(repo, "init", "-q", "-b", "main");
  git(repo, "config", "user.name", "Demo");
  git(repo, "config", "user.email", "demo@example.com");
  writeFileSync(join(repo, "README.md"), "# Demo\n\nAn agent edits this file in a virtual machine.\n");
  writeFileSync(join(repo, ".gitignore"), ".sandcastle/\n");
  git(repo, "add", "-A");
  git(repo, "commit", "-qm", "initial");
  return repo;
}

/** Any program can be an agent: this one is a shell script that edits and commits. */
const scripted = (line) => ({
  name: "scripted",
  env: {},
  captureSessions: false,
  buildPrintCommand: ({ prompt }) => ({
    command: `prompt=$(cat); echo "I am $(id -un) on $(hostname), kernel $(uname -r)"; echo "${line}: $prompt" >> README.md; git commit -qam "agent: $prompt" && echo "RESULT <promise>COMPLETE</promise>"`,
    stdin: prompt,
  }),
  parseStreamLine: (text) => {
    if (text.startsWith("RESULT ")) return [{ type: "result", result: text.slice(7) }];
    say(`  agent: ${text}`);
    return [{ type: "text", text: `${text}\n` }];
  },
});

const key = process.env.ANTHROPIC_API_KEY;
const agent = (line) => (key ? claudeCode(process.env.DEMO_MODEL ?? "claude-sonnet-4-5") : scripted(line));
const hooks = key
  ? {
      sandbox: {
        onSandboxReady: [
          { command: "command -v claude || npm install -g @anthropic-ai/claude-code", sudo: true, timeoutMs: 300_000 },
        ],
      },
    }
  : undefined;
const lanes = new Set();
const sandbox = () =>
  lima({
    onEvent: ({ lane }) => lane && lanes.add(lane),
    cpus: 2,
    memoryGiB: 2,
    timeoutMinutes: 20,
    network: key ? "open" : "none", // the scripted agent needs no network, so it gets none
    env: key ? { ANTHROPIC_API_KEY: key } : {},
  });

const repo = repository(process.argv[2]);
const before = git(repo, "rev-parse", "main");
const branch = `agent/demo-${Date.now().toString(36)}`;
const logging = { type: "file", path: join(repo, ".sandcastle", "demo.log") };
say(`repository ${repo}`);

say(`createSandbox(): a VM for branch ${branch}`);
const box = await createSandbox({ cwd: repo, branch, sandbox: sandbox(), hooks });
step("createSandbox");
say("the VM is up, the repository is in it");
try {
  const first = await box.run({ agent: agent("First"), prompt: "add a line to README.md", logging });
  step("sandbox.run");
  say(`sandbox.run(): ${first.commits.length} commit on ${branch}`);
} finally {
  await box.close();
}
step("close");
say("closed");

say("run(): a VM of its own for one task, merged to main");
const second = await run({
  cwd: repo,
  agent: agent("Second"),
  prompt: "add another line to README.md",
  sandbox: sandbox(),
  hooks,
  logging,
});
step("run");
say(`run(): ${second.commits.length} commit on ${second.branch}`);

const commits = git(repo, "log", "--format=%H %s", `${before}..${branch}`).split("\n").filter(Boolean);
const onMain = git(repo, "log", "--format=%H %s", `${before}..main`).split("\n").filter(Boolean);
for (const name of [branch, "main"])
  console.log(
    `\ncommits on ${name}:\n  ${git(repo, "log", "--format=%h %an: %s", "-3", name).replaceAll("\n", "\n  ")}`,
  );
console.log();
seconds.total = Number(((performance.now() - started) / 1000).toFixed(2));
const commit = (line) => ({ sha: line.slice(0, 40), subject: line.slice(41) });
const result = {
  ok: commits.length > 0 && onMain.length > 0,
  repo,
  branch,
  commits: commits.map(commit),
  merged: onMain.map(commit),
  seconds,
  lanes: [...lanes],
};
if (process.env.DEMO_RESULT) writeFileSync(process.env.DEMO_RESULT, JSON.stringify(result));
process.exitCode = result.ok ? 0 : 1;
