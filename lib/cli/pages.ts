// SPDX-License-Identifier: Apache-2.0
// The man page and docs/CLI.md, made of the tree of commands; scripts/generate-docs writes them, a test compares them.
import { DESCRIPTION, EXITS, VARIABLES, version } from "./program.js";
import { flat, type CommandNode, type OptionNode } from "./tree.js";

const title = (node: CommandNode): string => ["agent-lane", ...node.path].join(" ");
const flagsOf = (o: OptionNode): string => [o.short, o.long].filter((f) => f !== undefined && f !== "").join(", ") + (o.value === "" ? "" : ` ${o.value}`);
const leaves = (tree: CommandNode): readonly CommandNode[] => flat(tree).filter((n) => n.path.length > 0 && n.commands.length === 0);

// ---- man ----

/** A text for roff: nothing in it is a request or an escape. Hyphens stay what can be copied. */
function roff(text: string): string {
  return text
    .replaceAll("\\", "\\e")
    .replaceAll("-", "\\-")
    .replace(/^([.'])/gm, "\\&$1")
    .replaceAll("…", "...")
    .replaceAll("–", "\\(en");
}

const literal = (text: string): string => `.PP\n.nf\n.RS\n${roff(text)}\n.RE\n.fi`;

/** Help text as it is written: paragraphs that stand alone, and examples in their own lines. */
function moreRoff(more: string): string {
  return more
    .split(/\n{2,}/)
    .filter((part) => part.trim() !== "")
    .map((part) => (/^Examples?:\n/.test(part) ? `.PP\nExamples:\n${literal(part.replace(/^Examples?:\n/, "").replace(/^ {2}/gm, ""))}` : /\n {2}/.test(part) ? literal(part) : `.PP\n${roff(part)}`))
    .join("\n");
}

function optionsRoff(node: CommandNode): string {
  return node.options.map((o) => `.TP\n.B ${roff(flagsOf(o))}\n${roff(o.doc)}`).join("\n");
}

const tp = (rows: readonly (readonly [string, string])[]): string => rows.map(([name, doc]) => `.TP\n.B ${roff(name)}\n${roff(doc)}`).join("\n");

/** man/agent-lane.1 */
export function manPage(tree: CommandNode): string {
  const commands = leaves(tree).map((n) => `.SS "${roff(n.usage)}"\n${roff(`${n.doc[0]?.toUpperCase() ?? ""}${n.doc.slice(1)}.`)}\n${optionsRoff(n)}\n${moreRoff(n.more)}`);
  return `.\\" SPDX-License-Identifier: Apache-2.0
.\\" Made by scripts/generate-docs from lib/cli; change that.
.TH AGENT\\-LANE 1 "" "agent\\-lane ${roff(version())}" "User Commands"
.SH NAME
agent\\-lane \\- disposable Linux VMs for coding agents
.SH SYNOPSIS
.B agent\\-lane
.I command
[\\fIoptions\\fR] [\\fIarguments\\fR]
.SH DESCRIPTION
${roff(DESCRIPTION)}
A lane is one disposable virtual machine, run by Lima; it ends with the process that owns it. Every command has
.B \\-\\-help
with examples, and most have
.B \\-\\-json
for programs.
.SH COMMANDS
${tp(leaves(tree).map((n) => [title(n).replace(/^agent-lane /, ""), n.doc] as const))}
.SH EXIT STATUS
${tp(EXITS)}
.SH ENVIRONMENT
${tp(VARIABLES)}
.SH DETAILS
${commands.join("\n")}
.SH FILES
.TP
.B ~/.agent\\-lane
registry of lanes, store of images, run manifests, and Lima's directory for lanes
.SH SEE ALSO
.BR limactl (1),
.BR git\\-apply (1)
`
    .replace(/[ \t]+$/gm, "")
    .replace(/\n{2,}/g, "\n");
}

// ---- docs/CLI.md ----

const cell = (text: string): string => text.replaceAll("|", "\\|").replaceAll("\n", " ").replaceAll("<", "&lt;");
const code = (text: string): string => `\`${text.replaceAll("|", "\\|")}\``;
const rows = (list: readonly (readonly string[])[]): string => list.map((row) => `| ${row.join(" | ")} |`).join("\n");

function commandMarkdown(node: CommandNode): string {
  const args = node.args.filter((a) => a.doc !== "").map((a) => [code(a.variadic ? `${a.name}...` : a.name), cell(a.doc)]);
  const options = node.options.filter((o) => o.long !== "--help").map((o) => [code(flagsOf(o)), cell(o.doc)]);
  const table = [...args, ...options];
  const what = `${node.doc[0]?.toUpperCase() ?? ""}${node.doc.slice(1)}.`;
  return `### ${title(node)}

${cell(what)}

\`\`\`
${node.usage}
\`\`\`
${table.length === 0 ? "" : `\n| argument, option | what it is |\n|---|---|\n${rows(table)}\n`}${node.more === "" ? "" : `\n\`\`\`text\n${node.more}\n\`\`\`\n`}`;
}

/** docs/CLI.md */
export function cliPage(tree: CommandNode): string {
  const json = leaves(tree).filter((n) => !n.options.some((o) => o.long === "--json")).map((n) => code(n.path.join(" ")));
  return `# The command

${DESCRIPTION} The same is in \`man agent-lane\` and, with examples, in \`--help\` of each command; \`agent-lane completion\` makes a shell complete it.
What the screens look like is in [SCREENS.md](SCREENS.md).

| command | what it does |
|---|---|
${rows(leaves(tree).map((n) => [`[${title(n)}](#${title(n).replaceAll(" ", "-")})`, cell(n.doc)]))}

## Exit status

| status | meaning |
|---|---|
${rows(EXITS.map(([status, meaning]) => [status, cell(meaning)]))}

An error is two lines on stderr, \`error CODE: what happened\` and \`cure: what to do\`; [ERRORS.md](ERRORS.md) lists the codes. Wrong usage is
said with the nearest command or option. No error of a user's shows a stack trace.

## Output

Results are on stdout, everything else on stderr. \`--json\` prints what a program can read and nothing else; all commands have it but ${json.slice(0, -1).join(", ")} and ${json.at(-1) ?? ""}.
Colours, and lines that are written over while something is waited for, are for terminals only. What comes from a guest or a log is shown without control characters.

| variable | meaning |
|---|---|
${rows(VARIABLES.map(([name, meaning]) => [code(name), cell(meaning)]))}

## Commands

${leaves(tree).map(commandMarkdown).join("\n")}
Made by \`scripts/generate-docs\` from \`lib/cli\`; change that.
`;
}
