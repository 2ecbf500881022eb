// SPDX-License-Identifier: Apache-2.0
// Rounds in which nobody is simply killed: a reboot, a clock that is set, a limactl that does not obey, a QEMU that stands still, a
// guest that goes off by itself.
import { spawnSync } from "node:child_process";
import { mkdirSync, readlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { Missed, REACH_MS, Scene, until } from "./scene.mjs";
import { keepers, kill, sql } from "./world.mjs";

const bin = fileURLToPath(new URL("../node_modules/.bin/agent-lane", import.meta.url));
const TEN_YEARS = 315_360_000;

/** The end is asked for, or the owner dies, or owner and keeper do: by the round's seed. */
async function endSomehow(scene, ways = ["close", "owner", "both"]) {
  const way = ways[Math.floor(scene.random() * ways.length)];
  const from = Date.now();
  if (way === "close") scene.owner.say("close");
  else for (const p of [scene.owner.id, ...(way === "both" ? keepers(scene.home) : [])]) kill(p);
  if (way === "close") await until(REACH_MS, () => scene.owner.find("closed", "ended"));
  return { outcome: way, from, without: way !== "close" };
}

async function inUse(scene) {
  scene.owner.say("go");
  const word = await until(REACH_MS, () => scene.owner.find("went-on", "ended"));
  if (word?.what !== "went-on") throw new Missed(`not used: ${JSON.stringify(word)}`);
}

/** Everything stops at once; then there is another boot id, and strangers have the old pids, the start times included. */
async function reboot(scene) {
  const { owner, home, name } = scene;
  scene.eve();
  const from = Date.now();
  for (const p of [...keepers(home), owner.id, ...scene.procs()]) kill(p);
  await owner.ended;
  const [a, b] = scene.strangers();
  const exe = readlinkSync(`/proc/${a.pid}/exe`);
  const boot = "11111111-2222-3333-4444-555555555555";
  const who = (role, p) => `${role}_pid = ${p.pid}, ${role}_start = '${p.start}', ${role}_exe = '${exe}', ${role}_boot = '${boot}'`;
  sql(home, `UPDATE lanes SET ${who("owner", a)}, ${who("keeper", b)} WHERE name = '${name}'`, true);
  for (const [file, p] of [["qemu.pid", a], ["ha.pid", b]]) writeFileSync(join(home, "lima", name, file), `${p.pid}\n`);
  return { outcome: "reboot", from, without: true };
}

/** Neither the lane nor a sweep by another process may go by the wall clock. */
async function clock(scene, seconds) {
  const sets = (n) => writeFileSync(join(scene.dir, "clock"), String(n));
  const library = process.env.CHAOS_CLOCK_LIBRARY;
  await scene.begin({ env: { LD_PRELOAD: library, CHAOS_CLOCK: join(scene.dir, "clock") } });
  await scene.ready();
  sets(seconds);
  await inUse(scene);
  writeFileSync(join(scene.dir, "other-clock"), String(-seconds));
  const env = { ...process.env, AGENT_LANE_HOME: scene.home, LD_PRELOAD: library, CHAOS_CLOCK: join(scene.dir, "other-clock") };
  const kept = JSON.parse(spawnSync(bin, ["reap", "--json"], { env, encoding: "utf8", timeout: 60_000 }).stdout).kept;
  await sleep(3000); // two looks of the lane's own clock
  const lost = scene.owner.said.find((s) => s.type === "closing" || s.type === "closed" || s.what === "ended");
  scene.eve();
  const seen = await scene.watched(() => endSomehow(scene));
  const wrong = lost !== undefined ? `the lane ended: ${lost.message}` : kept.some((k) => k.name === scene.name) ? undefined : "the sweep did not keep it";
  return { ...(await scene.count(seen, { LD_PRELOAD: library, CHAOS_CLOCK: join(scene.dir, "clock") })), ...(wrong && { wrong }) };
}

/** limactl as it is, but `delete` hangs and ignores SIGTERM. */
function deaf(scene) {
  mkdirSync(join(scene.dir, "bin"));
  const path = join(scene.dir, "bin", "limactl");
  const real = process.env.AGENT_LANE_LIMACTL;
  const script = `#!/bin/bash\ncase " $* " in *' delete '*) trap '' TERM INT HUP; sleep 60 & wait; sleep 60 ;; esac\nexec '${real}' "$@"\n`;
  writeFileSync(path, script, { mode: 0o755 });
  return path;
}

const plain = (work, options) => async (scene) => {
  await scene.begin({ options: options?.(scene) });
  await scene.ready();
  return scene.count(await scene.watched(() => work(scene)));
};

export const FAULTS = {
  reboot: { text: "everything stops, another boot id, strangers with the old pids in row and pid files", run: plain(reboot) },
  "clock-forward": { text: "the wall clock jumps ten years ahead, that of a sweep back", run: (s) => clock(s, TEN_YEARS) },
  "clock-back": { text: "the wall clock jumps ten years back, that of a sweep ahead", run: (s) => clock(s, -TEN_YEARS) },
  "deaf-limactl": {
    text: "`limactl delete` hangs and ignores SIGTERM",
    run: plain(async (scene) => {
      scene.eve();
      return endSomehow(scene);
    }, (scene) => ({ limactlPath: deaf(scene) })),
  },
  "qemu-stopped": {
    text: "QEMU has been stopped by SIGSTOP",
    run: plain(async (scene) => {
      await inUse(scene); // before that the owner hears of no close
      scene.eve();
      for (const p of scene.present.filter((q) => q.kind === "qemu")) kill(p, "SIGSTOP");
      return endSomehow(scene);
    }),
  },
  poweroff: {
    text: "the guest goes off by itself while it is in use",
    run: plain(async (scene) => {
      await sleep(scene.random() * 1500);
      scene.eve();
      const from = Date.now();
      scene.owner.say("root echo o >/proc/sysrq-trigger");
      scene.owner.say("go");
      const word = await until(REACH_MS, () => scene.owner.find("ended", "closed"));
      return { outcome: `${word?.what ?? "silent"} ${word?.code ?? ""}`.trim(), from };
    }),
  },
};

export async function runFault(slot, { seed, random, victim }) {
  const scene = new Scene(slot, seed, random);
  try {
    return { seed, edge: "fault", victim, guest: "honest", ...(await FAULTS[victim].run(scene)) };
  } finally {
    await scene.end();
  }
}
