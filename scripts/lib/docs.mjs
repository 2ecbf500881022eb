// SPDX-License-Identifier: Apache-2.0
// The generated parts of the documentation, made of src/err.h and lib/: tables, docs/CLI.md and the man page; run by generate-docs, compared by
// test/ts/docs.test.ts.
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { apiPage } from "./api.mjs";
import { STEPS } from "./macos.mjs";
import { troublePage } from "./trouble.mjs";

const root = fileURLToPath(new URL("../..", import.meta.url));
const read = (path) => readFileSync(join(root, path), "utf8");

/** The rows of AL_ERR_MAP. Throws when one cannot be read, so that none is left out in silence. */
export function errorTable(header) {
  const piece = /"(?:[^"\\]|\\.)*"/;
  const text = String.raw`${piece.source}(?: \\\n +${piece.source})*`; // pieces that C puts together
  const joined = (pieces) => pieces.match(new RegExp(piece, "g")).map((each) => JSON.parse(each)).join("");
  const row = new RegExp(String.raw`^  X\((\w+), (-\d+), (${text}), \\\n    (${text})\)(?: \\)?$`, "gm");
  const rows = [...header.matchAll(row)].map(([, code, number, meaning, cure]) => ({
    code,
    number: Number(number),
    meaning: joined(meaning),
    cure: joined(cure),
  }));
  const entries = header.match(/^  X\(/gm)?.length ?? 0;
  if (rows.length === 0 || rows.length !== entries)
    throw new Error(`src/err.h: ${entries} entries of AL_ERR_MAP, of which ${rows.length} can be read`);
  return rows;
}

function errorsPage(rows, own) {
  const cell = (text) => text.replaceAll("|", "\\|");
  const line = (r) => `| \`${r.code}\` | ${cell(r.meaning)} | ${cell(r.cure)} |`;
  return `# Errors

Every error of this package is a \`LaneError\`: \`code\` is one of these and is what programs test, \`message\` says what happened, \`cure\` what to do
about it; \`step\` and \`lane\` are there when they are known. The cure of an error may say more than the one below. Sandcastle passes
only the message on, so the errors of a provider's calls carry code and cure in it as well.

| code | what happened | what to do |
|---|---|---|
${[...rows, ...Object.entries(own).map(([code, r]) => ({ code, ...r }))]
  .sort((a, b) => (a.code < b.code ? -1 : 1))
  .map(line)
  .join("\n")}

Made by \`scripts/generate-docs\` from \`src/err.h\` and \`lib/errors.ts\`; change those.
`;
}

function withOptions(readme, table) {
  const section = readme.indexOf("## Options of `lima()`");
  const old = /(?:^\|.*\n)+/m.exec(readme.slice(section))?.[0];
  if (section < 0 || old === undefined) throw new Error("README.md has no option table");
  return readme.slice(0, section) + readme.slice(section).replace(old, () => `${table}\n`);
}

/** The table below the last heading of docs/MACOS.md: what `scripts/check --macos` does. */
function withSteps(page) {
  const head = "| step | what is run | what it proves |\n|---|---|---|\n";
  const at = page.indexOf(head);
  if (at < 0) throw new Error("docs/MACOS.md has no table of steps");
  const rows = STEPS.map((step) => `| ${step.name} | ${step.by} | ${step.proves} |\n`).join("");
  return `${page.slice(0, at)}${head}${rows}${page.slice(at + head.length).replace(/^(?:\|.*\n)*/, "")}`;
}

const BEGIN = "<!-- made by scripts/generate-docs -->\n", END = "<!-- end -->\n";

/** A diagram of a lane's states out of the table in src/lane.c. Throws when a rule cannot be read. */
export function stateDiagram(source) {
  const body = /static const rule_t rules\[\] = \{\n([^]*?)\n\};/.exec(source)?.[1] ?? "";
  const lines = body.split("\n").filter((line) => !/^\s*\/\*/.test(line));
  const rules = lines.map((line) => /^  (?:TO\((\w+), (\w+), (\w+), (\w+)\)|ENDS\((\w+)\)),$/.exec(line));
  if (rules.length === 0 || rules.includes(null)) throw new Error("src/lane.c: the table of states cannot be read");
  const word = (name) => name.toLowerCase();
  const arrows = rules.flatMap(([, state, event, next, action, open]) => {
    if (open) return [`  ${word(open)} --> closing: fail, close, expire, lost / destroy`];
    return action === "NONE" ? [] : [`  ${word(state)} --> ${word(next)}: ${word(event)} / ${word(action)}`];
  });
  return ["```mermaid", "stateDiagram-v2", "  [*] --> registered", ...arrows, "  closed --> [*]", "```", ""].join("\n");
}

function withStates(page) {
  const at = page.indexOf(BEGIN), end = page.indexOf(END, at);
  if (at < 0 || end < 0) throw new Error("docs/ARCHITECTURE.md has no place for the states");
  return page.slice(0, at + BEGIN.length) + stateDiagram(read("src/lane.c")) + page.slice(end);
}

/** The text that each file should have, by path. */
export function pages({ optionTable, ownErrors, manPage, cliPage }) {
  const rows = errorTable(read("src/err.h"));
  const errors = { ...Object.fromEntries(rows.map((row) => [row.code, row])), ...ownErrors };
  return {
    "man/agent-lane.1": manPage,
    "docs/CLI.md": cliPage,
    "docs/API.md": apiPage(),
    "docs/ARCHITECTURE.md": withStates(read("docs/ARCHITECTURE.md")),
    "docs/MACOS.md": withSteps(read("docs/MACOS.md")),
    "docs/TROUBLESHOOTING.md": troublePage(errors),
    "README.md": withOptions(read("README.md"), optionTable),
    "docs/ERRORS.md": errorsPage(rows, ownErrors),
  };
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { optionTable } = await import("../../dist/options.js");
  const { OWN_ERRORS } = await import("../../dist/errors.js");
  const { makeProgram } = await import("../../dist/cli/program.js");
  const { cliPage, manPage } = await import("../../dist/cli/pages.js");
  const { treeOf } = await import("../../dist/cli/tree.js");
  // Where the package is on a user's machine, not on this one.
  const tree = treeOf(makeProgram("node_modules/@agent-lane/provider-lima"));
  const made = pages({ optionTable: optionTable(), ownErrors: OWN_ERRORS, manPage: manPage(tree), cliPage: cliPage(tree) });
  mkdirSync(join(root, "man"), { recursive: true });
  for (const [path, text] of Object.entries(made)) writeFileSync(join(root, path), text);
}
