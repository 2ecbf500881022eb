// SPDX-License-Identifier: Apache-2.0
// What every benchmark ends with: a table for people, its goals, and one JSON object with medians and all samples.
import { cpus, loadavg, release, totalmem, type } from "node:os";
import { inMemory } from "./place.mjs";
import { median, round, table } from "./stats.mjs";

// Before anything of ours runs: what others are doing here.
const load = loadavg()[0];

/** Where and when: without the machine's name; `files`: where transfers have theirs. */
export const machine = () => ({
  cores: cpus().length,
  memoryGiB: Math.round(totalmem() / 2 ** 30),
  kernel: `${type()} ${release().split(".").slice(0, 2).join(".")}`,
  node: process.version,
  load: round(load, 1),
  day: new Date().toISOString().slice(0, 10),
  files: inMemory ? "memory" : "disk",
});

/** Bytes of one run: a goal's size, or BENCH_BYTES for a quick trial. */
export const bytesOr = (size) => Number(process.env.BENCH_BYTES ?? size);
export const roundsOr = (n) => Number(process.env.BENCH_ROUNDS ?? n);
export const MiB = 2 ** 20;

export const percentile = (values, p) => {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.ceil((sorted.length * p) / 100) - 1)];
};

/**
 * Runs `ways` ({name: work}) one after the other, `rounds` times; `work` gives a number. Gives {name: numbers}. Each
 * round begins with another: what one leaves behind (caches, pages to be written) is not always the same one's burden.
 */
export async function alternate(rounds, ways) {
  const samples = Object.fromEntries(Object.keys(ways).map((name) => [name, []]));
  const all = Object.entries(ways);
  for (let i = 0; i < rounds; i++)
    for (let k = 0; k < all.length; k++) {
      const [name, work] = all[(i + k) % all.length];
      samples[name].push(round(await work(), 3));
      console.log(`round ${i + 1} of ${rounds}: ${name} ${samples[name].at(-1)}`);
    }
  return samples;
}

/** The median of a / b, round by round: what the machine did meanwhile slows both. */
export const ratio = (a, b) => median(a.map((value, i) => value / b[i]));

/**
 * rows: {key: label} of `samples`; goals: [{text, value, bound, least}], met when value <= bound, with `least` >= bound;
 * a goal without a bound is only reported.
 */
export function report({ bench, title, unit, rows, samples, goals, more = {} }) {
  table(title, unit, Object.entries(rows).map(([key, label]) => [label, samples[key]]));
  const told = goals.map(({ text, value, bound, least = false }) => {
    const goal = { text, value: round(value, 3) };
    if (bound === undefined) return goal;
    const met = least ? value >= bound : value <= bound;
    return { ...goal, goal: `${least ? "at least" : "at most"} ${bound}`, met };
  });
  for (const { text, value, goal, met } of told)
    console.log(`${text}: ${value}${goal ? ` (goal: ${goal}; ${met ? "met" : "MISSED"})` : ""}`);
  const medians = Object.fromEntries(Object.keys(rows).map((key) => [key, round(median(samples[key]), 3)]));
  console.log(`\n${JSON.stringify({ bench, unit, rows, medians, goals: told, machine: machine(), ...more, samples })}`);
}
