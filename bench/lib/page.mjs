// SPDX-License-Identifier: Apache-2.0
// Writes the figures of docs/BENCHMARKS.md from the kept last lines of the benchmarks: page.mjs KEPT PAGE. What people
// wrote around the two marks stays, and so do the figures of benchmarks of which nothing newer is kept.
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { median, round } from "./stats.mjs";

const [kept, page] = process.argv.slice(2);
const BEGIN = "<!-- figures: written by scripts/bench --page -->", END = "<!-- end of figures -->";
const ORDER = [
  "exec", "cold", "lanes", "bulk", "exec-parallel", "stdout-lines", "stdout-bytes", "stdin", "fairness",
  "copyin-large", "copyin-small", "copyout", "bundle",
];

/** The place of a name among the benchmarks; those of one kind by name. */
function place(name) {
  const at = ORDER.findLastIndex((kind) => name === kind || name.startsWith(`${kind}-`));
  return `${at < 0 ? ORDER.length : at} ${name}`.padStart(40, "0");
}

/** Medians with their labels: of `rows`, or of all samples where a benchmark has none. */
function rowsOf({ rows, samples = {} }) {
  const labels = rows ?? Object.fromEntries(Object.keys(samples).map((key) => [key, key.replaceAll("_", " ")]));
  return Object.entries(labels).filter(([key]) => Array.isArray(samples[key]) && samples[key].length > 0).map(
    ([key, label]) => {
      const all = samples[key].map(Number), digits = Math.abs(median(all)) < 10 ? 3 : 1;
      const cells = [median(all), Math.min(...all), Math.max(...all)].map((n) => round(n, digits));
      return `| ${label} | ${cells.join(" | ")} | ${all.length} |`;
    },
  );
}

const goalOf = ({ text, value, goal, met }) =>
  `- ${text}: **${value}**${goal === undefined ? "" : `; goal: ${goal}, ${met ? "met" : "**missed**"}`}`;

/** How busy the machine was; a benchmark without that says nothing about it. */
function circumstances({ machine: m }) {
  if (m === undefined) return "";
  const busy = m.load > m.cores / 2 ? " The machine was busy with other work: only the ratios mean something." : "";
  const disk = m.files === "disk" ? " Files of transfers lay on a disk, not in memory." : "";
  return `Load average before the run: ${m.load}, on ${m.day}.${busy}${disk}\n\n`;
}

function section(name, result) {
  const rows = rowsOf(result), goals = (result.goals ?? []).map(goalOf);
  const unit = result.unit === undefined ? "" : ` (${result.unit})`;
  return [
    `### ${titleOf(name)}${unit}\n\n`,
    circumstances(result),
    "| | median | least | most | samples |\n|---|---|---|---|---|\n",
    rows.join("\n"),
    `\n${goals.length > 0 ? `\n${goals.join("\n")}\n` : ""}`,
  ].join("");
}

const titleOf = (name) => name.replaceAll("-vm-transport-", " --vm --transport ").replaceAll("-transport-", " --transport ");

/** The sections that the page has already, by title without the unit. */
function sectionsOf(text) {
  const sections = text.split(/^(?=### )/m).filter((part) => part.startsWith("### "));
  return new Map(sections.map((part) => [/^### (.*?)(?: \([^)]*\))?\n/.exec(part)[1], part.trimEnd() + "\n"]));
}

const text = readFileSync(page, "utf8");
const begin = text.indexOf(BEGIN), end = text.indexOf(END);
if (begin < 0 || end < begin) throw new Error(`${page} lacks the marks between which the figures belong`);
const results = readdirSync(kept)
  .filter((file) => file.endsWith(".json"))
  .map((file) => [file.slice(0, -".json".length), JSON.parse(readFileSync(join(kept, file), "utf8"))]);
const sections = sectionsOf(text.slice(begin, end));
for (const [name, result] of results) sections.set(titleOf(name), section(name, result));
const order = ([title]) => place(title.replaceAll(" --", "-").replaceAll(" ", "-"));
const sorted = [...sections].sort((a, b) => (order(a) < order(b) ? -1 : 1));
const missed = sorted.filter(([, part]) => part.includes("**missed**")).map(([title]) => title);
const m = results.find(([, result]) => result.machine?.memoryGiB !== undefined)?.[1].machine;
const figures = [
  m ? `Machine: ${m.cores} cores, ${m.memoryGiB} GiB of memory, ${m.kernel}; Node ${m.node}.` : /^Machine: .*$/m.exec(text)?.[0],
  missed.length > 0 ? `Goals missed: ${missed.join(", ")}.` : "No goal was missed.",
  ...sorted.map(([, part]) => part),
].filter(Boolean);
writeFileSync(page, `${text.slice(0, begin + BEGIN.length)}\n${figures.join("\n\n")}\n${text.slice(end)}`);
console.log(`${page}: ${results.length} benchmarks are new, ${sections.size} in all`);
