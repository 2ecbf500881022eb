// SPDX-License-Identifier: Apache-2.0
// A new user's first minutes: npm install of the tarball with install scripts off, from a cache and without a network, with no compiler in
// PATH; doctor; a first lane in a real VM; nothing left. As root the user is one that is made for this and removed again, since
// limactl refuses root; else it is the caller, in a home of the test's own.
import { execFileSync, spawnSync } from "node:child_process";
import { chmodSync, cpSync, existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, realpathSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, expect, it } from "vitest";
import { ended, root, tarball } from "./support.js";

const USER = "agent-lane-scratch";
const asRoot = process.getuid?.() === 0;
const image = process.env["E2E_IMAGE_DIR"] ?? "";
const limactl = process.env["AGENT_LANE_LIMACTL"] ?? "";
const home = asRoot ? `/home/${USER}` : mkdtempSync(join(tmpdir(), "al-home-"));
const bin = mkdtempSync(join(asRoot ? "/opt" : tmpdir(), "al-bin-"));
const project = join(home, "project");
const sandcastle = (JSON.parse(readFileSync(join(root, "package.json"), "utf8")) as { devDependencies: Record<string, string> }).devDependencies["@ai-hero/sandcastle"]!;

// Everything that the package says it needs, npm's own needs, and nothing that could compile.
const TOOLS = ["sh", "bash", "env", "node", "npm", "npx", "ssh", "ssh-keygen", "git", "qemu-img", "qemu-system-x86_64", "qemu-system-aarch64"];
const COMPILERS = ["cc", "gcc", "g++", "clang", "make", "cmake", "pkg-config", "python", "python3", "node-gyp", "zig"];

// What tells our user from one of the same name that somebody else has made.
const MARK = "made by the package test of Agent Lane";

function removeUser(): void {
  if (!asRoot) return;
  const entry = spawnSync("getent", ["passwd", USER], { encoding: "utf8", timeout: 10_000 }).stdout.trim();
  if (entry === "") return;
  if (entry.split(":")[4] !== MARK) throw new Error(`there is a user ${USER} whom this test has not made; rename or remove that user first`);
  spawnSync("pkill", ["-KILL", "-u", USER]);
  execFileSync("userdel", ["--remove", USER], { stdio: "ignore" });
}

/** Runs a command as the new user, with an environment of its own. */
async function user(command: string[], { timeout = 120_000, cwd = project } = {}): Promise<{ status: number | null; out: string; err: string }> {
  const env = { HOME: home, USER, LOGNAME: USER, LANG: "C.UTF-8", PATH: bin, NO_COLOR: "1", AGENT_LANE_LIMACTL: limactl, npm_config_update_notifier: "false" };
  const [program, ...args] = asRoot ? ["runuser", "-u", USER, "--", ...command] : command;
  const r = await ended(asRoot ? "/sbin/runuser" : join(bin, program!), args, { cwd, env, timeout });
  return { status: r.status, out: r.stdout, err: r.stderr };
}

beforeAll(async () => {
  if (!existsSync(join(image, "manifest.json")) || !existsSync(limactl)) throw new Error("E2E_IMAGE_DIR and AGENT_LANE_LIMACTL must name the guest image and limactl: scripts/check package");
  removeUser();
  if (asRoot) {
    execFileSync("useradd", ["--create-home", "--home-dir", home, "--comment", MARK, "--shell", "/bin/bash", USER]);
    if (spawnSync("getent", ["group", "kvm"]).status === 0) execFileSync("usermod", ["-a", "-G", "kvm", USER]);
  }
  chmodSync(bin, 0o755);
  for (const name of TOOLS) {
    const found = spawnSync("sh", ["-c", `command -v ${name}`], { encoding: "utf8" }).stdout.trim();
    if (found !== "") symlinkSync(realpathSync(found), join(bin, name));
  }
  mkdirSync(project);
  cpSync(tarball(), join(project, basename(tarball())));
  writeFileSync(join(project, "package.json"), '{"name":"scratch","version":"1.0.0","private":true,"type":"module"}');
  // The cache is filled with what the installation will ask for, by an installation of the same.
  const filler = mkdtempSync(join(tmpdir(), "al-filler-"));
  const filled = await ended("npm", ["install", "--cache", join(home, ".npm"), "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error", tarball(), `@ai-hero/sandcastle@${sandcastle}`], {
    cwd: filler,
    timeout: 300_000,
  });
  if (filled.status !== 0) throw new Error(filled.stdout + filled.stderr);
  rmSync(filler, { recursive: true, force: true });
  if (asRoot) execFileSync("chown", ["-R", `${USER}:`, home]);
}, 400_000);

afterAll(() => {
  removeUser();
  for (const dir of asRoot ? [bin] : [bin, home]) rmSync(dir, { recursive: true, force: true });
}, 60_000);

it("has no compiler at hand", async () => {
  const r = await user(["sh", "-c", `for name in ${COMPILERS.join(" ")}; do command -v "$name"; done; command -v node`]);
  expect([r.status, r.out]).toEqual([0, `${join(bin, "node")}\n`]);
});

it("is installed without a network, and nothing is built or run", async () => {
  const r = await user(["npm", "install", "--offline", "--ignore-scripts", "--no-audit", "--no-fund", `./${basename(tarball())}`, `@ai-hero/sandcastle@${sandcastle}`], { timeout: 300_000 });
  expect([r.status, r.err]).toEqual([0, ""]);
  const pkg = join(project, "node_modules", "@agent-lane", "provider-lima");
  expect(readdirSync(pkg)).not.toContain("build");
  expect(readdirSync(join(pkg, "prebuilds"))).toContain(`${process.platform}-${process.arch}`);
});

it("says by doctor what is missing, and the cure", async () => {
  const r = await user(["npx", "--no-install", "agent-lane", "doctor"]);
  expect(r.status).not.toBe(0);
  expect(r.out + r.err).toMatch(/image/i);
  expect(r.out + r.err).not.toMatch(/^\s+at /m);
});

it("takes the guest image, and then doctor is content", async () => {
  const imported = await user(["npx", "--no-install", "agent-lane", "image", "import", image], { timeout: 300_000 });
  expect([imported.status, imported.err]).toEqual([0, ""]);
  const r = await user(["npx", "--no-install", "agent-lane", "doctor"], { timeout: 200_000 });
  expect([r.status, r.out + r.err]).toEqual([0, r.out + r.err]);
}, 600_000);

it("runs a first lane, and leaves nothing", async () => {
  writeFileSync(
    join(project, "first.mjs"),
    `import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
    import { resolve } from "node:path";
    import { createLane } from "@agent-lane/provider-lima";
    mkdirSync("in/deep", { recursive: true });
    writeFileSync("in/deep/file", "from the host\\n");
    const lane = await createLane({ cpus: 2, memoryGiB: 1, network: "none" });
    try {
      await lane.copyIn("in", lane.worktreePath);
      const { stdout, exitCode } = await lane.exec("cat deep/file; uname -s; echo back >result");
      await lane.copyFileOut(lane.worktreePath + "/result", resolve("result"));
      console.log(JSON.stringify({ stdout, exitCode, back: readFileSync("result", "utf8") }));
    } finally { await lane.close(); }`,
  );
  const r = await user(["node", "first.mjs"], { timeout: 300_000 });
  expect([r.status, r.out.trim().split("\n").at(-1), r.err.replace(/^\(.*AgentLaneWarning[^]*/m, "")]).toEqual([
    0,
    JSON.stringify({ stdout: "from the host\nLinux\n", exitCode: 0, back: "back\n" }),
    "",
  ]);
  const left = await user(["npx", "--no-install", "agent-lane", "ls", "--json"]);
  expect([left.status, JSON.parse(left.out)]).toEqual([0, []]);
  // The keeper goes some seconds after its owner.
  const own = (): string => (asRoot ? spawnSync("ps", ["-u", USER, "-o", "args="], { encoding: "utf8" }).stdout.trim() : "");
  for (const end = Date.now() + 60_000; own() !== "" && Date.now() < end; ) await sleep(200);
  expect(own()).toBe("");
}, 400_000);
