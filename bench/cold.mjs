// SPDX-License-Identifier: Apache-2.0
// `bench cold [--flavour NAME]`: from nothing to the end of the first command, the product on each transport against
// plain limactl, alternating. With a flavour the product starts that image, plain limactl the flavour base as ever.
// Last line: one JSON object.
import { mkdtempSync, rmSync } from "node:fs";
import { lima } from "@agent-lane/provider-lima";
import { bareLane } from "./lib/bare.mjs";
import { importImage } from "./lib/images.mjs";
import { alternate, ratio, report, roundsOr } from "./lib/report.mjs";

const runs = roundsOr(Number(process.env.BENCH_RUNS ?? 5));
const shape = { cpus: 2, memoryGiB: 2, network: "none", accelerator: process.env.BENCH_ACCELERATOR ?? "tcg" };
const limactl = process.env.BENCH_LIMACTL, imageDir = process.env.BENCH_IMAGE_DIR;
const flavour = process.argv.includes("--flavour") ? process.argv[process.argv.indexOf("--flavour") + 1] : "base";
const image = flavour === "base" ? undefined : importImage(process.env.BENCH_FLAVOUR_DIR);
const bounds = flavour === "base" ? { port: 0.75, shell: 1.15 } : { port: 1.25, shell: 1.25 };
const limaHome = mkdtempSync("/tmp/bench-lima-"); // short: Lima's socket names must fit

async function ours(transport) {
  const started = performance.now();
  const lane = await lima({ ...shape, limactlPath: limactl, transport, image }).create({ env: {} });
  try {
    await lane.exec("true");
    return (performance.now() - started) / 1000;
  } finally {
    await lane.close();
  }
}

let samples;
try {
  samples = await alternate(runs, {
    port: () => ours("port"),
    bare: async () => (await bareLane({ limactl, limaHome, imageDir, ...shape })).seconds,
    shell: () => ours("shell"),
  });
} finally {
  rmSync(limaHome, { recursive: true, force: true });
}
report({
  bench: "cold",
  title: `from nothing to the end of the first command${flavour === "base" ? "" : `, flavour ${flavour}`}`,
  unit: "s",
  rows: { bare: "plain limactl", port: "Agent Lane, port", shell: "Agent Lane, shell" },
  samples,
  goals: [
    { text: "port / plain limactl", value: ratio(samples.port, samples.bare), bound: bounds.port },
    { text: "shell / plain limactl", value: ratio(samples.shell, samples.bare), bound: bounds.shell },
  ],
});
