// SPDX-License-Identifier: Apache-2.0
// An agent in a lane with Docker, pnpm and the project's dependencies: they were installed once, in the project's image. See README.md.
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
  const repo = join(mkdtempSync(join(tmpdir(), "keepsake-")), "keepsake");
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

/** Any program can be an agent: this one runs the preflight, adds a note to the README, and commits when it is green again. */
const scripted = {
  name: "scripted",
  env: {},
  captureSessions: false,
  buildPrintCommand: ({ prompt }) => ({
    command: `set -e; prompt=$(cat); pnpm preflight 2>&1; echo "Checked in a lane." >>README.md; pnpm preflight 2>&1
      git commit -qam "agent: $prompt"; echo "RESULT <promise>COMPLETE</promise>"`,
    stdin: prompt,
  }),
  parseStreamLine: (line) => {
    if (line.startsWith("RESULT ")) return [{ type: "result", result: line.slice(7) }];
    console.log(`  agent: ${line}`);
    return [{ type: "text", text: `${line}\n` }];
  },
};

/** Runs once: pnpm as its lock file pins it, the dependencies, and the base of the container in Docker's store. */
const setup = `
npm ci --prefix pnpm --no-audit --no-fund
sudo ln -s ~/setup/pnpm/node_modules/.bin/pnpm /usr/local/bin/pnpm
pnpm install --frozen-lockfile
container/base.sh
`;

const repo = process.argv[2] === undefined ? copyOfProject() : resolve(process.argv[2]);
const lanes = new Set();
const options = {
  cpus: 8,
  memoryGiB: 16,
  diskGiB: 50,
  timeoutMinutes: 120,
  network: key ? "open" : "none",
  env: key ? { ANTHROPIC_API_KEY: key } : {},
  image: {
    extends: process.env.EXAMPLE_IMAGE ?? (key ? "full" : "docker"),
    project: "keepsake",
    directory: repo,
    setup,
    inputs: ["package.json", "pnpm-lock.yaml", "pnpm", "container/base.sh"],
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
  // The worktree is made anew in every lane; what the setup installed lies beside it. pnpm finds that nothing is missing.
  hooks: { sandbox: { onSandboxReady: [{ command: "mv ~/setup/node_modules . && pnpm install --frozen-lockfile --offline", timeoutMs: 300_000 }] } },
  prompt: "say in README.md that the project was checked in a lane, with the preflight green",
  logging: { type: "file", path: join(repo, ".sandcastle", "run.log") },
});
const seconds = (performance.now() - begun) / 1000;
console.log(`${result.commits.length} commit on ${result.branch} after ${seconds.toFixed(0)} s\n${git(repo, "log", "--oneline", "main")}`);
if (process.env.EXAMPLE_RESULT)
  writeFileSync(process.env.EXAMPLE_RESULT, JSON.stringify({ repo, image, seconds, commits: result.commits.length, lanes: [...lanes] }));
process.exitCode = result.commits.length > 0 ? 0 : 1;
