// SPDX-License-Identifier: Apache-2.0
// Writes docs/FAILURES.md from what the last run of test/matrix left in build/check/matrix-rows.json; run by
// generate-failures.
import { readFileSync, writeFileSync } from "node:fs";
import { release } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("../..", import.meta.url));

export const cell = (text) => text.replaceAll("|", "\\|");

function page(rows, about) {
  const longest = (list) => Math.max(...list.map((r) => r.seconds)).toFixed(1);
  const late = (list) =>
    Math.max(0, ...list.filter((r) => r.code === "START_TIMEOUT").map((r) => r.seconds - (r.limit - 10)));
  const left = (list) => list.reduce((n, r) => n + r.left, 0);
  const steps = [...new Set(rows.map((r) => r.step))];
  const summary = steps.map((step) => {
    const own = rows.filter((r) => r.step === step);
    return `| ${step} | ${own.length} | ${own.filter((r) => r.code === "ready").length} | ${longest(own)} | ${left(own)} |`;
  });
  const lines = rows.map(
    (r) => `| ${r.step} | ${cell(r.failure)} | \`${r.code}\` | ${r.at || "-"} | ${r.seconds.toFixed(1)} | ${r.left} |`,
  );
  return `# What happens when create fails

Each line is a create through \`lima()\` and the whole core, on a scripted \`limactl\` (\`test/ts/support/limactl.mjs\`) that starts the real warden. It must
settle within \`startTimeoutSeconds\` + 10 s, tell the first error (its code, the step it happened in, a cure), and leave nothing: processes (by their
command lines, from outside), directories and open rows of the registry are counted at the moment in which the caller is told. \`ready\` is
a fault that must not stop a lane; what is left is then counted after its \`close\`. A hung program is waited for until its own deadline
or the start's, whichever ends first; a timeout was told at most ${late(rows).toFixed(1)} s after it, since what hangs is ended first.

${about}. ${rows.length} cases, the longest settled after ${longest(rows)} s, left over: ${left(rows)}.

| step | cases | of them \`ready\` | longest, s | left over |
|---|---|---|---|---|
${summary.join("\n")}

| step | failure | code | told step | settled after, s | left over |
|---|---|---|---|---|---|
${lines.join("\n")}

Made by \`scripts/generate-failures\` from a run of \`test/matrix\`; change \`test/matrix/cases.ts\` and run it again.
`;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const rows = JSON.parse(readFileSync(join(root, "build/check/matrix-rows.json"), "utf8"));
  const unfinished = rows.filter((r) => r.code === undefined).map((r) => `${r.step}: ${r.failure}`);
  if (unfinished.length > 0) throw new Error(`not run: ${unfinished.join("; ")}`);
  const { version } = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));
  const about = `Run of ${new Date().toISOString().slice(0, 10)}: Agent Lane ${version}, Node ${process.versions.node}, Linux ${release()}`;
  writeFileSync(join(root, "docs/FAILURES.md"), page(rows, about));
}
