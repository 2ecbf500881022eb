// SPDX-License-Identifier: Apache-2.0
// Somebody else in the guest's place, under a real Sandcastle run: PEER_UNPROVEN, and of the run's environment, prompt
// and repository no byte leaves the host. The impostors keep every byte that they get.
import { execFileSync, spawn, type ChildProcess } from "node:child_process";
import { cpSync, existsSync, mkdirSync, readFileSync } from "node:fs";
import { arch } from "node:os";
import { dirname, join } from "node:path";
import { pathToFileURL } from "node:url";
import { afterAll, describe, expect, it } from "vitest";
import { Stage } from "../ts/support/stage.js";

const root = join(import.meta.dirname, "..", "..");
const uid = process.getuid?.() === 0 ? { uid: 65534, gid: 65534 } : {};
const agentFile = join(root, "prebuilds", "guest", `agent-${arch() === "arm64" ? "aarch64" : "x86_64"}`);
const CANARY = "canary-7d1f0c";
const HELLO = Buffer.from([0, 0, 0, 0, 1, 0, 0, 0, 40, 0, 0, 0]);
const stages: Stage[] = [];
const children: ChildProcess[] = [];
afterAll(() => {
  children.forEach((c) => c.kill("SIGKILL"));
  stages.forEach((s) => s.remove());
});

/** Sandcastle with what it needs, where the unprivileged user can read it. */
function installSandcastle(to: string): string {
  const done = new Set<string>();
  const add = (name: string): void => {
    if (done.has(name)) return;
    done.add(name);
    const from = join(root, "node_modules", name);
    mkdirSync(dirname(join(to, name)), { recursive: true });
    cpSync(from, join(to, name), { recursive: true });
    const about = JSON.parse(readFileSync(join(from, "package.json"), "utf8")) as {
      dependencies?: Record<string, string>;
    };
    Object.keys(about.dependencies ?? {}).forEach(add);
  };
  add("@ai-hero/sandcastle");
  const about = JSON.parse(readFileSync(join(to, "@ai-hero/sandcastle/package.json"), "utf8")) as {
    exports: Record<string, { import?: string; default?: string }>;
  };
  const entry = about.exports["."]?.import ?? about.exports["."]?.default ?? "dist/index.js";
  return pathToFileURL(join(to, "@ai-hero/sandcastle", entry)).href;
}

/** A Sandcastle run whose prompt, repository, branch, agent and environment all carry the canary. */
async function attempt(scenario: object): Promise<{ error: { message: string }; record: Buffer; left: string[] }> {
  const stage = new Stage();
  stages.push(stage);
  stage.scenario(scenario);
  const sandcastle = installSandcastle(join(stage.dir, "sandcastle", "node_modules"));
  const repo = join(stage.work, "repo");
  const git = `mkdir ${repo} && cd ${repo} && git init -q -b main && git config user.email ${CANARY}@example.com && git config user.name Dev &&
    echo ${CANARY} > ${CANARY}.txt && git add -A && git commit -qm ${CANARY}`;
  execFileSync("sh", ["-c", git], { ...uid, env: { PATH: process.env["PATH"], HOME: stage.work } });
  const r = await stage.run(
    `
    const { run } = await import(${JSON.stringify(sandcastle)});
    const c = ${JSON.stringify(CANARY)};
    const agent = { name: "scripted", env: { AGENT_TOKEN: c }, captureSessions: false,
      buildPrintCommand: ({ prompt }) => ({ command: "cat; echo " + c, stdin: prompt }), parseStreamLine: () => [] };
    const sandbox = make({ env: { API_KEY: c }, worktreePath: "/tmp/" + c });
    report("error", await failure(() => run({ cwd: ${JSON.stringify(repo)}, agent, sandbox, prompt: c + " do this", branchStrategy: { type: "branch", branch: "agent/" + c },
      logging: { type: "file", path: ${JSON.stringify(join(stage.work, "log"))} } })));`,
    { CANARY },
  );
  expect(r.said["error"], r.err).toBeDefined();
  const file = join(stage.home, "run", "record");
  return {
    error: r.said["error"],
    record: existsSync(file) ? readFileSync(file) : Buffer.alloc(0),
    left: stage.left(),
  };
}

describe.concurrent("an impostor", () => {
  it.each([
    ["that has another secret", { impostor: true }],
    ["that returns the host's challenge", { hello: "replay" }],
    ["that begins to work without a proof", { hello: "config" }],
    ["that talks nonsense", { hello: "garbage" }],
  ])("%s gets the agent and HELLO, nothing else", { timeout: 120_000 }, async (_what, guest) => {
    const { error, record, left } = await attempt({ guest: { ...guest, record: true } });
    expect(error.message).toContain("PEER_UNPROVEN");
    const agent = readFileSync(agentFile);
    expect(record.subarray(0, agent.length).equals(agent), "the public agent").toBe(true);
    expect(record.subarray(agent.length, agent.length + HELLO.length)).toEqual(HELLO);
    expect(record.length, "and HELLO's 40 bytes").toBe(agent.length + HELLO.length + 40);
    expect(record.includes(CANARY)).toBe(false);
    expect(left).toEqual([]);
  });

  it("is what the honest guest is told apart from: that one gets the canary", { timeout: 120_000 }, async () => {
    const { record } = await attempt({ guest: { record: true, config: "die" } });
    expect(record.includes(CANARY)).toBe(true);
  });

  it.each([
    ["of the same user", uid],
    ["of another user", process.getuid?.() === 0 ? {} : undefined],
  ])("%s that has taken the ssh port gets not one byte", { timeout: 120_000 }, async (_who, ids) => {
    if (ids === undefined) return; // an ordinary user has no second one to be attacked by
    const text = `const s = require("net").createServer((c) => { console.log("connected"); c.on("data", (d) => console.log(d.toString("hex"))); c.write("SSH-2.0-OpenSSH_9.2\\r\\n"); });
      s.listen(0, "127.0.0.1", () => console.log(s.address().port)); setTimeout(() => process.exit(), 120000);`;
    const child = spawn(process.execPath, ["-e", text], { stdio: ["ignore", "pipe", "inherit"], cwd: "/", ...ids });
    children.push(child);
    let heard = "";
    const port = await new Promise<number>((ok) => {
      child.stdout.on("data", (d: Buffer) => {
        heard += d.toString();
        ok(parseInt(heard, 10));
      });
    });
    const { error, record, left } = await attempt({ port, at: { "qemu.listen": "hang" } });
    expect(error.message).toContain("PEER_UNPROVEN");
    expect(heard).toBe(`${port}\n`);
    expect(record.length).toBe(0);
    expect(left).toEqual([]);
  });
});
