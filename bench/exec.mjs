// SPDX-License-Identifier: Apache-2.0
// `bench exec`: what one command costs on one lane, five ways, interleaved. Last line: one JSON object.
import { readdirSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import { lima } from "@agent-lane/provider-lima";
import { bareEnv, runChild, startEcho } from "./lib/children.mjs";
import { median, round, table, timed } from "./lib/stats.mjs";

const ROUNDS = 10;
const PER_ROUND = { ours: 20, shell: 2, ssh: 4, echo: 40, spawn: 5 };
const limactl = process.env.BENCH_LIMACTL;
const limaHome = join(process.env.AGENT_LANE_HOME ?? join(homedir(), ".agent-lane"), "lima");
const lanes = () => readdirSync(limaHome).filter((entry) => /^agent-lane-/.test(entry));

// Only the answer of the engine itself carries the guest's own spawn time; the handle does not show it.
const { engine } = await import(new URL("./engine.js", import.meta.resolve("@agent-lane/provider-lima")).href);

async function fill(samples, key, n, one) {
  for (let i = 0; i < n; i++) samples[key].push(round(await one(), 3));
}

const before = new Set(lanes());
const handle = await lima({
  cpus: 2,
  memoryGiB: 2,
  network: "none",
  limactlPath: limactl,
  accelerator: process.env.BENCH_ACCELERATOR ?? "tcg",
}).create({ env: {} });
const samples = { ours_ms: [], limactl_shell_ms: [], ssh_mux_ms: [], raw_echo_ms: [], guest_spawn_ms: [] };
const name = lanes().find((entry) => !before.has(entry));
const env = bareEnv(limaHome);
const shell = ["--tty=false", "--log-level", "error", "shell", "--workdir", "/", name];
const ssh = ["-F", join(limaHome, name, "ssh.config"), `lima-${name}`];
let echo;
try {
  const ours = () => timed(() => handle.exec("true"));
  const bySsh = () => timed(() => runChild("ssh", [...ssh, "true"], { env }));
  const byShell = () => timed(() => runChild(limactl, [...shell, "true"], { env }));
  const spawnOnly = async () =>
    (await engine().request("exec", { lane: name, command: "true", cwd: "/", mode: "whole" })).spawnNs / 1e6;
  echo = startEcho(limactl, [...shell, "cat"], { env });
  // Everything once before it counts: first login, page cache, mux.
  for (const warm of [ours, bySsh, byShell, () => echo.echo(64), spawnOnly]) await warm();
  for (let i = 0; i < ROUNDS; i++) {
    await fill(samples, "ours_ms", PER_ROUND.ours, ours);
    await fill(samples, "limactl_shell_ms", PER_ROUND.shell, byShell);
    await fill(samples, "ssh_mux_ms", PER_ROUND.ssh, bySsh);
    await fill(samples, "raw_echo_ms", PER_ROUND.echo, () => echo.echo(64));
    await fill(samples, "guest_spawn_ms", PER_ROUND.spawn, spawnOnly);
  }
} finally {
  echo?.end();
  await handle.close();
}

table("one `true` in the guest", "ms", [
  ['Agent Lane: exec("true")', samples.ours_ms],
  ["limactl shell NAME true", samples.limactl_shell_ms],
  ["ssh -F ssh.config (mux)", samples.ssh_mux_ms],
  ["guest: spawning sh -c true", samples.guest_spawn_ms],
  ["64-byte echo, limactl shell cat", samples.raw_echo_ms],
]);
const result = { bench: "exec", lane: name };
for (const [key, values] of Object.entries(samples)) result[key] = round(median(values), 3);
const bound = result.guest_spawn_ms + 3 * result.raw_echo_ms + 5;
console.log(
  `ours is ${(result.limactl_shell_ms / result.ours_ms).toFixed(1)} x faster than limactl shell (goal: at least 5)`,
);
console.log(
  `ours adds ${(result.ours_ms - result.guest_spawn_ms).toFixed(2)} ms to the guest's own spawn (bound: spawn + 3 echoes + 5 ms = ${bound.toFixed(2)} ms)\n`,
);
console.log(JSON.stringify({ ...result, samples }));
