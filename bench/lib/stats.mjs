// SPDX-License-Identifier: Apache-2.0
// Medians and a table for people.
export const median = (values) => {
  const sorted = [...values].sort((a, b) => a - b), half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
};
export const round = (value, digits = 2) => Number(value.toFixed(digits));

/** Milliseconds that `work` takes. */
export async function timed(work) {
  const started = process.hrtime.bigint();
  await work();
  return Number(process.hrtime.bigint() - started) / 1e6;
}

/** rows: [[name, samples]]. */
export function table(title, unit, rows) {
  const width = Math.max(...rows.map(([name]) => name.length));
  const cell = (value) => value.toFixed(2).padStart(10);
  console.log(`\n${title} (${unit})`);
  console.log(`${"".padEnd(width)} ${["median", "min", "max"].map((h) => h.padStart(10)).join("")}  samples`);
  for (const [name, samples] of rows)
    console.log(
      `${name.padEnd(width)} ${cell(median(samples))}${cell(Math.min(...samples))}${cell(Math.max(...samples))}  ${samples.length}`,
    );
}
