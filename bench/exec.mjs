// SPDX-License-Identifier: Apache-2.0
// `bench exec`: what one command costs on a lane of each transport, beside the ways it would be done without us and
// beside a bare echo of the same transport, interleaved. Last line: one JSON object.
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { createLane } from "@agent-lane/provider-lima";
import { bareEnv, runChild } from "./lib/children.mjs";
import { echoOn, limaHome, rawTransport, shellArgs } from "./lib/raw.mjs";
import { report, roundsOr } from "./lib/report.mjs";
import { median, round, timed } from "./lib/stats.mjs";

const rounds = roundsOr(10);
const PER_ROUND = { sh: 40, argv: 40, limactl_shell: 3, ssh_mux: 6, echo: 40, paced: 40 };
// A login has its end in the guest too, and whatever is measured next must not pay for it.
const SETTLE_MS = 700;
// A command's answer comes after milliseconds in which everybody between it and us has gone to sleep; so does this echo's.
const PACE_MS = 5;
const limactl = process.env.BENCH_LIMACTL;
const samples = {};

// Only the answer of the engine itself carries the guest's own spawn time.
const { engine } = await import(new URL("./engine.js", import.meta.resolve("@agent-lane/provider-lima")).href);

async function measure(transport, lane) {
  const env = bareEnv(limaHome);
  const ssh = ["-F", join(limaHome, lane.name, "ssh.config"), `lima-${lane.name}`, "true"];
  const program = join(lane.worktreePath, "true"); // static: dynamic linking is what costs in an emulated guest
  await lane.copyIn(process.env.BENCH_TRUE, program);
  await lane.exec(`chmod 755 ${program}`);
  await lane.exec("until [ -e /run/lima-boot-done ]; do sleep 0.2; done"); // sshd comes after a port
  const raw = await rawTransport(lane, transport);
  const echo = echoOn(raw.run("cat"));
  const spawns = { sh: [], argv: [] }, rests = { sh: [], argv: [] };
  const command = (kind, what) => async () => {
    let answer;
    const ms = await timed(async () => {
      answer = await engine().request("exec", { lane: lane.name, cwd: "/", mode: "whole", ...what });
    });
    if (answer.exitCode !== 0) throw new Error(`exit status ${answer.exitCode}`);
    spawns[kind].push(round(answer.spawnNs / 1e6, 3));
    rests[kind].push(round(ms - answer.spawnNs / 1e6, 3));
    return ms;
  };
  const ways = {
    sh: command("sh", { command: "true" }),
    argv: command("argv", { argv: [program] }),
    limactl_shell: () => timed(() => runChild(limactl, [...shellArgs(lane.name), "true"], { env })),
    ssh_mux: () => timed(() => runChild("ssh", ssh, { env })),
    echo: () => echo(64),
    paced: async () => (await sleep(PACE_MS), timed(() => echo(64))),
  };
  for (const way of Object.values(ways)) await way(); // first login, page cache, mux
  for (const list of [...Object.values(spawns), ...Object.values(rests)]) list.length = 0;
  for (let i = 0; i < rounds; i++) {
    for (const [name, way] of Object.entries(ways)) {
      await sleep(SETTLE_MS);
      for (let n = 0; n < PER_ROUND[name]; n++) (samples[`${transport}_${name}`] ??= []).push(round(await way(), 3));
    }
    console.log(`${transport}: round ${i + 1} of ${rounds}`);
  }
  for (const [kind, list] of Object.entries(spawns)) samples[`${transport}_${kind}_spawn`] = list;
  for (const [kind, list] of Object.entries(rests)) samples[`${transport}_${kind}_rest`] = list;
  raw.end();
}

for (const transport of ["port", "shell"]) {
  const lane = await createLane({
    cpus: 2, memoryGiB: 2, network: "none", limactlPath: limactl, transport,
    accelerator: process.env.BENCH_ACCELERATOR ?? "tcg",
  });
  try {
    await measure(transport, lane);
  } finally {
    await lane.close();
  }
}

const rows = {}, goals = [];
for (const transport of ["port", "shell"]) {
  const of = (name) => median(samples[`${transport}_${name}`]);
  const label = {
    sh: "sh -c true",
    sh_spawn: "sh -c true, the guest's own part",
    sh_rest: "sh -c true, the rest",
    argv: "a static true",
    argv_spawn: "a static true, the guest's own part",
    argv_rest: "a static true, the rest",
    echo: "64-byte echo, bare, one after the other",
    paced: `64-byte echo, bare, one each ${PACE_MS} ms`,
    limactl_shell: "limactl shell NAME true",
    ssh_mux: "ssh -F ssh.config NAME true (mux)",
  };
  for (const [name, text] of Object.entries(label)) rows[`${transport}_${name}`] = `${transport}: ${text}`;
  const over = (kind) => of(`${kind}_rest`) - of("paced"); // each command less its own part: a slow moment is in both
  const bound = transport === "port" ? 1 : 2;
  for (const kind of ["sh", "argv"])
    goals.push({ text: `${transport}: ${label[kind]} over guest's part and echo, ms`, value: over(kind), bound });
  const few = { text: `${transport}: limactl shell / sh -c true`, value: of("limactl_shell") / of("sh") };
  goals.push({ ...few, bound: 6, least: true });
  const many = { text: `${transport}: limactl shell / ${label.argv}`, value: of("limactl_shell") / of("argv") };
  goals.push(transport === "port" ? { ...many, bound: 30, least: true } : many);
  const least = of("argv_spawn") + of("paced"); // what a product that costs nothing would take
  goals.push({ text: `${transport}: limactl shell / (the guest's own part + a bare echo)`, value: of("limactl_shell") / least });
}
report({ bench: "exec", title: "one command in the guest", unit: "ms", rows, samples, goals });
