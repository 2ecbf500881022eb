// SPDX-License-Identifier: Apache-2.0
// Writes the tables of docs/RELIABILITY.md from the kept results: page.mjs RESULTS PAGE. What people wrote around the two marks
// stays.
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { EDGES, GUESTS, VICTIMS } from "./edges.mjs";
import { FAULTS } from "./fault.mjs";
import { isBad } from "./results.mjs";

const [file, page] = process.argv.slice(2);
const BEGIN = "<!-- results: written by scripts/chaos --page -->", END = "<!-- end of results -->";
const lines = existsSync(file) ? readFileSync(file, "utf8").split("\n").filter(Boolean).map((l) => JSON.parse(l)) : [];
const results = lines.filter((r) => r.edge !== undefined);
const killed = results.filter((r) => !r.absent);

const sum = (list, key) => list.reduce((n, r) => n + r[key].length, 0);
const quantile = (list, q) => [...list].sort((a, b) => a - b)[Math.min(list.length - 1, Math.floor(list.length * q))];

function line(title, list) {
  const ms = list.map((r) => r.ms), recycled = list.filter((r) => r.recycled).length;
  const times = list.length === 0 ? "| | |" : `| ${quantile(ms, 0.5)} | ${quantile(ms, 0.99)} | ${Math.max(...ms)} |`;
  return `| ${title} | ${list.length} | ${sum(list, "survivors")} | ${sum(list, "leftovers")} | ${sum(list, "foreign")} | ${recycled} ${times}`;
}

/** Rounds at one edge with one victim; those that went badly are told apart. */
function cell(edge, victim) {
  const all = results.filter((r) => r.edge === edge && r.victim === victim);
  const hit = all.filter((r) => !r.absent), wrong = hit.filter(isBad).length;
  if (hit.length === 0) return all.length > 0 ? "–" : "";
  return wrong > 0 ? `**${hit.length - wrong} of ${hit.length}**` : String(hit.length);
}

const totals = [
  "| rounds | number | processes after 10 s | left after one sweep | foreign things touched | with a recycled pid | gone after ms, median | 99 % | most |",
  "|---|---|---|---|---|---|---|---|---|",
  line("**all**", killed),
  line("at an edge", killed.filter((r) => r.edge !== "random" && r.edge !== "fault")),
  line("other faults", killed.filter((r) => r.edge === "fault")),
  line("at a random instant", killed.filter((r) => r.edge === "random")),
  ...GUESTS.map((g) => line(`${g} guest`, killed.filter((r) => r.guest === g))),
  ...VICTIMS.map((v) => line(`victim: ${v}`, killed.filter((r) => r.victim === v))),
];
const matrix = [
  `| edge | | ${VICTIMS.join(" | ")} |`,
  `|---|---|${VICTIMS.map(() => "---|").join("")}`,
  ...EDGES.map((e) => `| \`${e.name}\` | ${e.text} | ${VICTIMS.map((v) => cell(e.name, v)).join(" | ")} |`),
  `| \`random\` | an instant of the product build | ${VICTIMS.map((v) => cell("random", v)).join(" | ")} |`,
];
const faults = [
  `| fault | | rounds |`,
  "|---|---|---|",
  ...Object.entries(FAULTS).map(([name, { text }]) => `| \`${name}\` | ${text} | ${cell("fault", name)} |`),
];
const wrong = killed.filter(isBad);
const failures = wrong.length === 0 ? ["None."] : [
  "| edge | victim | guest | seed | commit | survivors | leftovers | foreign |", "|---|---|---|---|---|---|---|---|",
  ...wrong.map((r) => `| ${r.edge} | ${r.victim} | ${r.guest} | ${r.seed} | ${r.commit} | ${r.survivors} | ${[...r.leftovers, r.sweep ?? "", r.wrong ?? ""].join(" ")} | ${r.foreign} |`),
];

/** The last of each kind that scripts/chaos --simulation has measured. */
const last = (kind) => lines.findLast((l) => l[kind] !== undefined)?.[kind];
const sim = last("simulation"), sweep = last("sweep"), memory = last("memory");
const simulated = sim === undefined || sweep === undefined || memory === undefined ? ["Not run yet."] : [
  `- ${sim.lanes} lanes of ${sim.owners} owner processes at a time, at most ${sim.mostAtOnce} at once, seed ${sim.seed}, in ${(sim.ms / 1000).toFixed(1)} s; ${sim.killed} processes killed, ${sim.failures} errors seen by ` +
    `those that were not. After one more sweep (${(sim.sweepMs / 1000).toFixed(1)} s): ${sim.processes} processes, ${sim.directories} directories, ${sim.openRows} open rows.`,
  `- A sweep of ${sweep.rows} dead rows with their directories: ${(sweep.ms / 1000).toFixed(1)} s; ${sweep.openRows} open rows and ${sweep.directories} directories left.`,
  `- Memory of its own that an owner has for each lane: ${memory.kibPerLane} KiB, over ${memory.lanes} lanes.`,
];
const lifetime = lines.findLast((l) => l.name === "lifetime");
const lifetimes = lifetime === undefined ? ["Not run yet."] : [
  "| a lifetime of one minute is over while | QEMU is gone after s |", "|---|---|",
  ...lifetime.rows.map((r) => `| ${r.what} | ${r.overrunSeconds} |`),
];
const versions = [...new Set(killed.map((r) => r.version))], commits = [...new Set(killed.map((r) => r.commit))];
const text = `
Version ${versions.join(", ") || "none yet"}, commits ${commits.join(", ") || "none yet"}; seeds are in each line of the results.

${totals.join("\n")}

Rounds by edge and victim; – : the victim was not there when the edge came.

${matrix.join("\n")}

${faults.join("\n")}

Rounds that went badly:

${failures.join("\n")}

Lifetimes on real VMs (\`scripts/chaos --lifetime\`):

${lifetimes.join("\n")}

Without VMs (\`scripts/chaos --simulation\`, limactl scripted):

${simulated.join("\n")}
`;

const old = readFileSync(page, "utf8");
const [head] = old.split(BEGIN), tail = old.split(END)[1];
if (tail === undefined) throw new Error(`${page} lacks its marks`);
writeFileSync(page, `${head}${BEGIN}\n${text}\n${END}${tail}`);
