// SPDX-License-Identifier: Apache-2.0
// `bench stdout-lines`: 1 GiB of 80-byte lines to onLine, against child_process with readline. Last line: one JSON object.
import { execFile } from "node:child_process";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { flow, withLane } from "./lib/local.mjs";
import { alternate, bytesOr, MiB, ratio, report, roundsOr } from "./lib/report.mjs";
import { now, rate } from "./lib/streams.mjs";
import { median, round } from "./lib/stats.mjs";

const bytes = Math.floor(bytesOr(1024 * MiB) / 80) * 80;
const elsewhere = fileURLToPath(new URL("lib/lines-child.mjs", import.meta.url));

async function child(way) {
  const { stdout } = await promisify(execFile)(process.execPath, [elsewhere, way, flow, String(bytes)]);
  return Number(stdout);
}

const growths = [];
await withLane(async ({ lane }) => {
  async function ours(size) {
    let lines = 0, text = 0, most = 0;
    const before = process.memoryUsage.rss(), started = now();
    const { exitCode } = await lane.exec(`exec '${flow}' lines ${size}`, {
      onLine: (line) => {
        text += line.length;
        if ((++lines & 0x3fff) === 0) most = Math.max(most, process.memoryUsage.rss());
      },
    });
    const ms = now() - started;
    if (exitCode !== 0 || text + lines !== size) throw new Error(`${lines} lines with ${text} bytes came of ${size}`);
    growths.push(round((most - before) / MiB));
    return rate(size, ms);
  }
  // V8 grows its young generation while it gets to know the program: that is not the volume's doing.
  await ours(Math.min(bytes, 64 * 80 * 16384));
  growths.length = 0;
  const samples = await alternate(roundsOr(3), {
    ours: () => ours(bytes),
    readline: () => child("readline"),
    relay: () => child("relay"),
    raw: () => child("raw"),
  });
  samples.growth = growths;
  report({
    bench: "stdout-lines",
    title: `${round(bytes / MiB)} MiB in lines of 80 bytes`,
    unit: "MiB/s",
    rows: {
      ours: "Agent Lane: onLine",
      readline: "child_process + readline",
      relay: "child_process + relay + readline",
      raw: "child_process, no lines",
    },
    samples,
    goals: [
      { text: "onLine / (child_process + readline)", value: ratio(samples.ours, samples.readline), bound: 2, least: true },
      { text: "onLine / (child_process + relay + readline)", value: ratio(samples.ours, samples.relay) },
      { text: "onLine / child_process without lines", value: ratio(samples.ours, samples.raw) },
      { text: "growth of RSS, MiB", value: median(growths), bound: 16 },
    ],
    more: { bytes },
  });
});
