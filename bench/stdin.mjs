// SPDX-License-Identifier: Apache-2.0
// `bench stdin`: 1 GiB into spawn().stdin, against child_process through a relay. Last line: one JSON object.
import { flow, withLane } from "./lib/local.mjs";
import { alternate, bytesOr, MiB, ratio, report, roundsOr } from "./lib/report.mjs";
import { round } from "./lib/stats.mjs";
import { child, fill } from "./lib/streams.mjs";

const bytes = bytesOr(1024 * MiB);
await withLane(async ({ lane }) => {
  const samples = await alternate(roundsOr(3), {
    ours: () => fill(() => lane.spawn([flow, "sink"]), bytes),
    relay: () => fill(() => child(flow, ["sink"], { through: flow, input: true }), bytes),
    raw: () => fill(() => child(flow, ["sink"], { input: true }), bytes),
  });
  report({
    bench: "stdin",
    title: `${round(bytes / MiB)} MiB of stdin`,
    unit: "MiB/s",
    rows: { ours: "Agent Lane: spawn().stdin", relay: "child_process + relay", raw: "child_process" },
    samples,
    goals: [
      { text: "spawn().stdin / relay", value: ratio(samples.ours, samples.relay), bound: 0.8, least: true },
      { text: "spawn().stdin / child_process", value: ratio(samples.ours, samples.raw) },
    ],
    more: { bytes },
  });
});
