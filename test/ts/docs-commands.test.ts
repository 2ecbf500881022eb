// SPDX-License-Identifier: Apache-2.0
// No document, comment of an example or cure names a command or an option of agent-lane that does not exist.
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { makeProgram } from "../../lib/cli/program.js";
import { flat, treeOf, type CommandNode } from "../../lib/cli/tree.js";
import { OWN_ERRORS } from "../../lib/errors.js";
import { errorTable } from "../../scripts/lib/docs.mjs";

const root = join(import.meta.dirname, "..", "..");
const read = (path: string) => readFileSync(join(root, path), "utf8");
const tree = treeOf(makeProgram());

/** What is wrong with "agent-lane WORDS...", in words. */
function wrong(snippet: string): string[] {
  // `doctor|ls|image` names several; what follows a pipe, or a program's own --, is not ours.
  const words = snippet.split(/\s(?:\||&&|;|#|--)(?:\s|$)|\s{2,}|[`"'”)]/)[0]!.trim().split(/\s+/).slice(1);
  let nodes: readonly CommandNode[] = [tree];
  const problems: string[] = [];
  for (const [i, raw] of words.entries()) {
    const word = raw.replace(/^\[|[\],.:;…)]+$/g, "");
    const flag = /^(--[a-z][a-z-]*)/.exec(word)?.[1];
    if (flag !== undefined) {
      if (!nodes.some((n) => n.options.some((o) => o.long === flag))) problems.push(`${nodes.map((n) => n.name).join("|")} has no ${flag}`);
      continue;
    }
    if (!/^[a-z][a-z-]*(?:\|[a-z-]+)*$/.test(word) || nodes.every((n) => n.commands.length === 0)) continue;
    const below = nodes.flatMap((n) => n.commands);
    const named = word.split("|").map((name) => below.find((c) => c.name === name) ?? name);
    const missing = named.filter((n) => typeof n === "string");
    if (missing.length > 0) {
      problems.push(`${i === 0 ? "" : `${words[0]}: `}there is no command ${missing.join(", ")}`);
      break;
    }
    nodes = named as CommandNode[];
  }
  return problems;
}

/** Commands in a text: in code spans and fences, where a sentence cannot be taken for one. */
function snippets(markdown: string): string[] {
  const fenced = [...markdown.matchAll(/```[^\n]*\n([^]*?)```/g)].flatMap((m) => m[1]!.split("\n"));
  const spans = [...markdown.replace(/```[^]*?```/g, "").matchAll(/`([^`\n]+)`/g)].map((m) => m[1]!.replaceAll("\\|", "|"));
  return [...fenced, ...spans].flatMap((text) => /(?:^|[\s/(])(agent-lane\s(?!proof 1).+)/.exec(text)?.[1] ?? []); // "agent-lane proof 1" is a label of the protocol's
}

it.each([
  ["agent-lane ls --all", []],
  ["agent-lane doctor|ls|image", []],
  ["agent-lane doctor|lss|image", ["there is no command lss"]],
  ["agent-lane image ls --nope", ["ls has no --nope"]],
  ["agent-lane image shrink ID", ["image: there is no command shrink"]],
  ["agent-lane run -- npm --nope", []],
  ["agent-lane reap --install`, `--uninstall", []],
  ["agent-lane close NAME…", []],
])("%s: %j", (snippet, problems) => expect(wrong(snippet)).toEqual(problems));

const documents = ["README.md", "SECURITY.md", "CHANGELOG.md", ...readdirSync(join(root, "docs")).filter((f) => f.endsWith(".md") && f !== "SCREENS.md").map((f) => `docs/${f}`),
  ...readdirSync(join(root, "docs", "adr")).map((f) => `docs/adr/${f}`), "image/README.md", ...["keepsake", "1920s-outfit"].map((e) => `examples/${e}/README.md`)];

describe("documents", () => {
  it.each(documents)("%s", (path) => {
    expect(snippets(read(path)).flatMap((s) => wrong(s).map((w) => `${s}: ${w}`))).toEqual([]);
  });
  it("are looked at", () => expect(snippets(read("README.md")).length).toBeGreaterThan(20));
});

it("cures and messages of errors", () => {
  const texts = [...errorTable(read("src/err.h")).flatMap((r) => [r.meaning, r.cure]), ...Object.values(OWN_ERRORS).flatMap((r) => [r.meaning, r.cure])];
  expect(texts.flatMap(snippets).flatMap(wrong)).toEqual([]);
});

it("each command is in the README", () => {
  const readme = read("README.md");
  for (const { path, commands } of flat(tree)) if (commands.length === 0) expect(readme, path.join(" ")).toMatch(new RegExp(`\\b${path.at(-1)}\\b`));
});
