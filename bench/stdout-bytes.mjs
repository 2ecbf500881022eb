// SPDX-License-Identifier: Apache-2.0
// `bench stdout-bytes`: 4 GiB to spawn().stdout, against child_process through a relay. Last line: one JSON object.
import { flow, withLane } from "./lib/local.mjs";
import { alternate, bytesOr, MiB, ratio, report, roundsOr } from "./lib/report.mjs";
import { round } from "./lib/stats.mjs";
import { child, drain } from "./lib/streams.mjs";

const bytes = bytesOr(4096 * MiB);
const args = ["lines", String(bytes)];
await withLane(async ({ lane }) => {
  const samples = await alternate(roundsOr(3), {
    ours: () => drain(() => lane.spawn([flow, ...args]), bytes),
    relay: () => drain(() => child(flow, args, { through: flow }), bytes),
    raw: () => drain(() => child(flow, args), bytes),
  });
  report({
    bench: "stdout-bytes",
    title: `${round(bytes / MiB)} MiB of stdout`,
    unit: "MiB/s",
    rows: { ours: "Agent Lane: spawn().stdout", relay: "child_process + relay", raw: "child_process" },
    samples,
    goals: [
      { text: "spawn().stdout / relay", value: ratio(samples.ours, samples.relay), bound: 0.8, least: true },
      { text: "spawn().stdout / child_process", value: ratio(samples.ours, samples.raw) },
    ],
    more: { bytes },
  });
});
