// SPDX-License-Identifier: Apache-2.0
// `bench lanes`: ten lanes of one image: what each adds to the disk until it is ready, and what the preparation of its disk
// takes. Last line: one JSON object.
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { join } from "node:path";
import { createLane } from "@agent-lane/provider-lima";
import { report, roundsOr } from "./lib/report.mjs";
import { timed } from "./lib/stats.mjs";

const LANES = roundsOr(10);
const shape = { cpus: 1, memoryGiB: 1, network: "none", accelerator: process.env.BENCH_ACCELERATOR ?? "tcg", maxConcurrentVms: LANES, startTimeoutSeconds: 120 };
const disk = join(process.env.BENCH_IMAGE_DIR, "disk.qcow2");
const samples = { disk: [], prepared: [] };

/** What is allocated, not what the files are long. */
const allocated = (path) => Number(execFileSync("du", ["-s", "-B", "1", path], { encoding: "utf8" }).split("\t")[0]) / 2 ** 20;

const place = mkdtempSync("/tmp/bench-lanes-");
try {
  for (let i = 0; i < LANES; i++) {
    // The command that makes a lane's disk, with the arguments that a lane gives it.
    const overlay = join(place, `${i}.qcow2`);
    const ms = await timed(() => execFileSync("qemu-img", ["create", "-q", "-f", "qcow2", "-b", disk, "-F", "qcow2", overlay, "30G"]));
    samples.prepared.push(ms / 1000);
  }
} finally {
  rmSync(place, { recursive: true, force: true });
}

const lanes = [];
try {
  for (let i = 0; i < LANES; i++) {
    const lane = await createLane({ ...shape, limactlPath: process.env.BENCH_LIMACTL });
    lanes.push(lane);
    await lane.exec("true");
    samples.disk.push(allocated(lane.facts.dir));
    console.log(`lane ${i + 1} of ${LANES}: ${samples.disk.at(-1).toFixed(1)} MiB`);
  }
  // All of them are running: what they have come to meanwhile.
  samples.later = lanes.map((lane) => allocated(lane.facts.dir));
} finally {
  await Promise.all(lanes.map((lane) => lane.close()));
}
const sum = (values) => values.reduce((a, b) => a + b, 0);
report({
  bench: "lanes",
  title: `${LANES} lanes of one image`,
  unit: "MiB; s",
  rows: {
    disk: "a lane's directory after its first command, MiB",
    later: "the same when the last lane is ready, MiB",
    prepared: "making a lane's disk, s",
  },
  samples,
  goals: [
    { text: `all ${LANES} together, MiB`, value: sum(samples.later), bound: LANES * 64 },
    { text: "making a lane's disk, the longest, s", value: Math.max(...samples.prepared), bound: 0.1 },
  ],
});
