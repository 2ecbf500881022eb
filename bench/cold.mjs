// SPDX-License-Identifier: Apache-2.0
// `bench cold`: from nothing to the end of the first command, the product against plain limactl, alternating. Last
// line: one JSON object.
import { mkdtempSync, rmSync } from "node:fs";
import { lima } from "@agent-lane/provider-lima";
import { bareLane } from "./lib/bare.mjs";
import { median, round, table } from "./lib/stats.mjs";

const runs = Number(process.env.BENCH_RUNS ?? 5);
const shape = { cpus: 2, memoryGiB: 2, network: "none", accelerator: process.env.BENCH_ACCELERATOR ?? "tcg" };
const limactl = process.env.BENCH_LIMACTL, imageDir = process.env.BENCH_IMAGE_DIR;
const limaHome = mkdtempSync("/tmp/bench-lima-"); // short: Lima's socket names must fit

async function ours() {
  const started = performance.now();
  const lane = await lima({ ...shape, limactlPath: limactl }).create({ env: {} });
  try {
    await lane.exec("true");
    return (performance.now() - started) / 1000;
  } finally {
    await lane.close();
  }
}

const samples = { ours_s: [], bare_s: [] };
try {
  for (let i = 0; i < runs; i++) {
    const bare = await bareLane({ limactl, limaHome, imageDir, ...shape });
    samples.bare_s.push(round(bare.seconds));
    samples.ours_s.push(round(await ours()));
    const steps = Object.entries(bare.steps).map(([step, s]) => `${step} ${s.toFixed(2)}`).join(", ");
    console.log(
      `round ${i + 1} of ${runs}: bare ${samples.bare_s.at(-1).toFixed(2)} s (${steps}), ours ${samples.ours_s.at(-1).toFixed(2)} s`,
    );
  }
} finally {
  rmSync(limaHome, { recursive: true, force: true });
}
table("from nothing to the end of the first command", "s", [
  ["plain limactl", samples.bare_s],
  ["Agent Lane", samples.ours_s],
]);
const result = { bench: "cold", ours_s: median(samples.ours_s), bare_s: median(samples.bare_s) };
console.log(`ours is ${(result.ours_s / result.bare_s).toFixed(2)} x the bare path (goal: at most 1.15)\n`);
console.log(JSON.stringify({ ...result, samples }));
