// SPDX-License-Identifier: Apache-2.0
// docs/CONTAINMENT.md from docs/containment-results.jsonl, which keeps the last whole run of each network and of the weakened builds.
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import list from "../mutants.d/containment.mjs";

const root = fileURLToPath(new URL("../..", import.meta.url));
const kept = join(root, "docs", "containment-results.jsonl");

/** The results that are kept, by what they are of: none, open, weakened. */
export function results() {
  if (!existsSync(kept)) return new Map();
  return new Map(readFileSync(kept, "utf8").split("\n").filter(Boolean).map((line) => JSON.parse(line)).map((r) => [r.network ?? "weakened", r]));
}

/** What is kept of a report: nothing that belongs to one machine. Throws when it is no whole run, or one that failed. */
export function keepable(report) {
  if (Array.isArray(report.weakened)) {
    const missed = report.weakened.filter((w) => !w.caught).map((w) => w.name);
    if (missed.length > 0) throw new Error(`scripts/weakened has not caught ${missed.join(", ")}`);
    return { weakened: report.weakened, at: report.at };
  }
  if (report.version !== 1 || report.chosen !== "all") throw new Error("only a whole run of `agent-lane verify --json` is kept");
  if (!report.summary.ok) throw new Error("a run in which a check failed, or was not run, is not kept");
  const findings = report.findings.map(({ id, point, tried, by, answer, seen, excused, seconds }) => ({ id, point, tried, by, answer, seen, ...(excused && { excused }), seconds }));
  const { versions, network, accelerator, image, at, seconds, summary } = report;
  return { network, at, versions, accelerator, image, seconds, summary, findings };
}

const cell = (text) => String(text).replaceAll("|", "\\|").replaceAll("\n", " ");
const row = (...cells) => `| ${cells.map(cell).join(" | ")} |`;
const checkOf = (test) => test.replace(/^vm:/, "");
const counts = (r) => `${r.summary.held} held, ${r.summary.open} open, ${r.summary.broken} broken, ${r.summary.notRun} not run`;

function about(r) {
  const versions = Object.entries(r.versions).map(([name, v]) => `${name} ${v}`).join("; ");
  return `\`network: "${r.network}"\`, ${r.at.slice(0, 10)}: ${counts(r)}, in ${r.seconds} s. ${versions}; accelerator ${r.accelerator}; image \`${r.image}\`.`;
}

export function page(all) {
  const none = all.get("none"), open = all.get("open"), weakened = all.get("weakened");
  const other = new Map((open?.findings ?? []).map((f) => [f.id, f]));
  const table = none.findings.map((f) => row(f.point, `\`${f.id}\``, f.answer, other.get(f.id)?.answer ?? "-"));
  const details = none.findings.map((f) => {
    const o = other.get(f.id);
    const differs = o !== undefined && (o.answer !== f.answer || o.by !== f.by);
    return `### \`${f.id}\`\n` + [
      `Tried: ${f.tried}.`,
      `By: ${f.by}.`,
      `Seen: **${f.answer}**: ${f.seen}.`,
      ...(differs ? [`With \`network: "open"\`: **${o.answer}**: ${o.seen}. By: ${o.by}.`] : []),
    ].join("\\\n");
  });
  const ran = new Map((weakened?.weakened ?? []).map((w) => [w.name, w]));
  const builds = list.map(({ name, test }) => {
    const { answer, seen } = ran.get(name) ?? { answer: "not run yet", seen: "" };
    return row(name, `\`${checkOf(test)}\``, answer, seen);
  });
  const fails = new Set([...ran.values()].map((w) => w.check));
  const never = none.findings.filter((f) => f.answer === "held" && !fails.has(f.id) && other.get(f.id)?.answer !== "open");
  return `# What the boundary holds

The results of \`agent-lane verify\`: it starts a fresh lane, attacks the boundary from inside and beside, and says what was tried and what was seen. Anybody
can run it on their own machine; it takes two or three minutes where the guest is emulated.

- *A canary* is planted on the host for each thing that must not be reachable: listeners on the loopback and on all addresses, decoys of Docker's socket and of
  an ssh agent, files, variables, another lane, another worktree, directories and processes with nearly a lane's name. Each canary is shown to work, before and after.
- *What counts* is what the canaries saw on the host, and what \`/proc\` shows of QEMU: its arguments, open files and sockets. The guest's word proves nothing but that
  an attack was made: each has a control of its own, and an answer that is not exactly what was asked for is no answer.
- *Answers*: **held**: attacked, and it stood. **open**: reachable, and this configuration does not promise otherwise. **broken**: a promise did not hold.
  **not run**: nothing can be said. A run with the last two fails (exit status 1), but for what a machine cannot have at all, which is then said.
- \`scripts/check\` runs both networks on real VMs and fails when an answer is another than here (\`test/e2e/containment.mjs\`).

## Runs
- ${about(none)}
${open === undefined ? "" : `- ${about(open)}\n`}
| point | check | network "none" | network "open" |
|---|---|---|---|
${table.join("\n")}

With \`"open"\` the rows of the network are reached, which also shows that the attacks work. Then a guest reaches what the host reaches: its loopback services, a Docker
that listens on TCP, the local network, a cloud's metadata. The last two rows are not about the VM: see SECURITY.md.

## Each check
${details.join("\n\n")}

## Weakened builds
A check that cannot fail proves nothing. Each of these builds is weakened on purpose (\`scripts/mutants.d/containment.mjs\`), and the check must say so on a real VM: \`scripts/weakened\`, which
first shows that the same checks hold with nothing changed. That the checks of the network can fail is also seen with \`network: "open"\`.${
    never.length === 0 ? "" : ` Neither has been seen of ${never.map((f) => `\`${f.id}\``).join(", ")}.`}

| build | check | its answer | seen |
|---|---|---|---|
${builds.join("\n")}

## What is not in here
- What a hostile guest can send over the channel: \`docs/HOSTILE.md\`, \`docs/FUZZING.md\`. Who is killed when: \`docs/RELIABILITY.md\`. Failures of \`create\`: \`docs/FAILURES.md\`.
- Faults of QEMU, of Linux and of the processor. QEMU runs with its system calls filtered and without a right that its user does not have; nobody here has searched it for faults.
- Egress by domain, and credentials that the guest never sees: there is neither yet. \`agent-lane explain\` says so for each configuration.
- macOS: these results are of Linux and QEMU, and nothing has been run on a Mac yet (\`docs/MACOS.md\`). On vz there is no \`network: "none"\`, and macOS does not show a process's open files and sockets, so that some checks say "not run" there, with the reason.

Made by \`scripts/generate-containment\` from \`docs/containment-results.jsonl\`.
`;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const all = results();
  for (const file of process.argv.slice(2)) {
    const r = keepable(JSON.parse(readFileSync(file, "utf8")));
    all.set(r.network ?? "weakened", r);
  }
  if (!all.has("none")) throw new Error("there is no run with network none to write about");
  writeFileSync(kept, [...all.values()].map((r) => `${JSON.stringify(r)}\n`).join(""));
  writeFileSync(join(root, "docs", "CONTAINMENT.md"), page(all));
}
