// SPDX-License-Identifier: Apache-2.0
// An agent in a lane that has the project's dependencies already: `npm ci` ran once, in the project's image. See README.md.
import { execFileSync } from "node:child_process";
import { cpSync, mkdtempSync, renameSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { claudeCode, run } from "@ai-hero/sandcastle";
import { lima, prepareImage } from "@agent-lane/provider-lima";

const git = (repo, ...args) => execFileSync("git", ["-C", repo, ...args], { encoding: "utf8" }).trim();
const key = process.env.ANTHROPIC_API_KEY;

/** A copy of project/ as a repository of its own. */
function copyOfProject() {
  const repo = join(mkdtempSync(join(tmpdir(), "1920s-outfit-")), "1920s-outfit");
  cpSync(join(import.meta.dirname, "project"), repo, { recursive: true });
  renameSync(join(repo, "gitignore"), join(repo, ".gitignore")); // a package cannot hold one
  git(repo, "init", "-q", "-b", "main");
  git(repo, "config", "user.name", "Example");
  git(repo, "config", "user.email", "example@example.com");
  git(repo, "add", "-A");
  git(repo, "commit", "-qm", "initial");
  return repo;
}

/** Where npm gets its packages here, as the guest reaches it. What goes into an image stays there: no password in it. */
function registry() {
  const url = new URL(execFileSync("npm", ["config", "get", "registry"], { encoding: "utf8" }).trim());
  if (url.username || url.password) throw new Error("npm's registry has a password in its address, which would stay in the image");
  if (["localhost", "127.0.0.1"].includes(url.hostname)) url.hostname = "192.168.5.2";
  return url.href;
}

/** Any program can be an agent: this one tests the project, adds a piece to wear, tests again and commits. */
const scripted = {
  name: "scripted",
  env: {},
  captureSessions: false,
  buildPrintCommand: ({ prompt }) => ({
    command: `set -e; prompt=$(cat); npm test 2>&1; sed -i 's/"straw boater"/"straw boater", "sunglasses"/' outfit/__init__.py; npm test 2>&1; node outfit.mjs --plain
      git commit -qam "agent: $prompt"; echo "RESULT <promise>COMPLETE</promise>"`,
    stdin: prompt,
  }),
  parseStreamLine: (line) => {
    if (line.startsWith("RESULT ")) return [{ type: "result", result: line.slice(7) }];
    console.log(`  agent: ${line}`);
    return [{ type: "text", text: `${line}\n` }];
  },
};

const repo = process.argv[2] === undefined ? copyOfProject() : resolve(process.argv[2]);
const lanes = new Set();
const options = {
  cpus: 6,
  memoryGiB: 12,
  diskGiB: 30,
  timeoutMinutes: 90,
  network: key ? "open" : "none",
  env: key ? { ANTHROPIC_API_KEY: key } : {},
  image: {
    extends: process.env.EXAMPLE_IMAGE ?? (key ? "agents" : "base"),
    project: "1920s-outfit",
    directory: repo,
    setup: "npm ci --no-audit --no-fund",
    inputs: ["package.json", "package-lock.json"],
    network: "open",
    env: { npm_config_registry: registry() },
  },
  onEvent: (event) => {
    if (event.lane) lanes.add(event.lane);
    if (event.type === "preparing") console.log(`  ${event.step}: ${event.message}`);
  },
  ...JSON.parse(process.env.EXAMPLE_OPTIONS ?? "{}"),
};

const image = await prepareImage(options);
console.log(`image ${image.image}: ${image.made ? `made in ${image.seconds.toFixed(0)} s` : `there already, found in ${(image.seconds * 1000).toFixed(0)} ms`}`);

const begun = performance.now();
const result = await run({
  cwd: repo,
  agent: key ? claudeCode(process.env.DEMO_MODEL ?? "claude-sonnet-4-5") : scripted,
  sandbox: lima(options),
  // The worktree is made anew in every lane; what `npm ci` made lies beside it.
  hooks: { sandbox: { onSandboxReady: [{ command: "mv ~/setup/node_modules ." }] } },
  prompt: "add sunglasses to the outfit for a sunny day, with the tests green",
  logging: { type: "file", path: join(repo, ".sandcastle", "run.log") },
});
const seconds = (performance.now() - begun) / 1000;
console.log(`${result.commits.length} commit on ${result.branch} after ${seconds.toFixed(0)} s\n${git(repo, "log", "--oneline", "main")}`);
if (process.env.EXAMPLE_RESULT)
  writeFileSync(process.env.EXAMPLE_RESULT, JSON.stringify({ repo, image, seconds, commits: result.commits.length, lanes: [...lanes] }));
process.exitCode = result.commits.length > 0 ? 0 : 1;
