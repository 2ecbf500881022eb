// SPDX-License-Identifier: Apache-2.0
// `bench fairness [--vm]`: how long a ping of the channel takes while eight streams are saturated and twenty are
// stalled, and while nothing happens. Last line: one JSON object.
import { setTimeout as sleep } from "node:timers/promises";
import { transport, vm, withLane } from "./lib/local.mjs";
import { percentile, report, roundsOr } from "./lib/report.mjs";
import { median, round } from "./lib/stats.mjs";

const SATURATED = 8, STALLED = 20, PINGS = Number(process.env.BENCH_PINGS ?? 200);
const rounds = roundsOr(5);
const samples = { idle: [], loaded: [] };
let moved = 0;

async function pings(lane, into) {
  for (let i = 0; i < PINGS; i++) {
    into.push(round((await lane.ping()) / 1e6, 4));
    await sleep(2);
  }
}

/** Both kinds write for ever; nobody reads the stalled ones. */
async function loaded(lane, flow) {
  const processes = Array.from({ length: SATURATED + STALLED }, () => lane.spawn([flow, "lines", "0"]));
  for (const { stdout } of processes.slice(0, SATURATED)) stdout.on("data", (data) => (moved += data.length));
  await sleep(vm ? 5000 : 1000);
  const before = moved;
  await pings(lane, samples.loaded);
  if (moved === before) throw new Error("nothing moved while the pings were counted");
  await Promise.all(processes.map((p) => p[Symbol.asyncDispose]()));
}

await withLane(async ({ lane, flow }) => {
  for (let i = 0; i < rounds; i++) {
    await pings(lane, samples.idle);
    await loaded(lane, flow);
    console.log(`round ${i + 1} of ${rounds}: medians ${median(samples.idle)} and ${median(samples.loaded)} ms`);
  }
});
const p99 = { idle: percentile(samples.idle, 99), loaded: percentile(samples.loaded, 99) };
report({
  bench: vm ? `fairness-vm-${transport}` : "fairness",
  title: `one ping of the channel; under load ${round(moved / 2 ** 20)} MiB were moved`,
  unit: "ms",
  rows: { idle: "idle", loaded: `${SATURATED} streams saturated, ${STALLED} stalled` },
  samples,
  goals: [
    vm
      ? { text: "p99 under load - p99 idle, ms", value: p99.loaded - p99.idle, bound: 20 }
      : { text: "p99 under load / p99 idle", value: p99.loaded / p99.idle, bound: 5 },
    { text: "p99 under load, ms", value: p99.loaded },
    { text: "p99 idle, ms", value: p99.idle },
  ],
});
