// SPDX-License-Identifier: Apache-2.0
// The documentation says what the source says: generated parts are current, and every file that is named is there.
import { readdirSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { describe, expect, it } from "vitest";
import { exportsOf } from "../../scripts/lib/api.mjs";
import { errorTable, pages, stateDiagram } from "../../scripts/lib/docs.mjs";
import { troublePage } from "../../scripts/lib/trouble.mjs";
import { cliPage, manPage } from "../../lib/cli/pages.js";
import { makeProgram } from "../../lib/cli/program.js";
import { treeOf } from "../../lib/cli/tree.js";
import { asLaneError, badOption, CORE_ERROR_CODES, OWN_ERRORS } from "../../lib/errors.js";
import { OPTION_NAMES, optionTable } from "../../lib/options.js";

const root = join(import.meta.dirname, "..", "..");
const read = (path: string) => readFileSync(join(root, path), "utf8");
const header = read("src/err.h");

describe("generated text", () => {
  const tree = treeOf(makeProgram("node_modules/@agent-lane/provider-lima"));
  const made = pages({ optionTable: optionTable(), ownErrors: OWN_ERRORS, manPage: manPage(tree), cliPage: cliPage(tree) });

  it.each(Object.keys(made))("%s is current (else: scripts/generate-docs)", (path) => {
    expect(read(path)).toBe(made[path]);
  });

  it("lists every code once", () => {
    const listed = [...made["docs/ERRORS.md"]!.matchAll(/^\| `(\w+)`/gm)].map((m) => m[1]);
    expect(listed).toEqual([...CORE_ERROR_CODES, ...Object.keys(OWN_ERRORS)].sort());
  });

  it("is not made of a table that cannot be read whole", () => {
    expect(() => stateDiagram(read("src/lane.c").replace("TO(CREATING, CREATED,", "TO(CREATING, next_of(CREATED),"))).toThrow(/cannot be read/);
    expect(() => errorTable(header.replace("X(BUSY, -20014,", "X(BUSY, AL_BUSY,"))).toThrow(/of which/);
    expect(() => errorTable("")).toThrow(/0 entries/);
  });
});

describe("docs/API.md", () => {
  const all = exportsOf();

  it("has every export of lib/index.ts, each with its docstring", () => {
    const source = read("lib/index.ts").replace(/\/\/.*/g, "");
    const exported = [...source.matchAll(/export (?:type )?\{([^}]*)\}/g)].flatMap((m) => m[1]!.split(",").map((name) => name.replace("type ", "").trim()).filter(Boolean));
    expect(all.map((one) => one.name).sort()).toEqual(exported.sort());
    expect(all.filter((one) => one.doc === "").map((one) => one.name)).toEqual([]);
  });

  it("says of every member what it is", () => {
    expect(all.flatMap((one) => one.members.filter((member) => member.doc === "").map((member) => `${one.name}.${member.name}`))).toEqual([]);
  });
});

it("docs/TROUBLESHOOTING.md has every code in one group, with its cause", () => {
  const page = read("docs/TROUBLESHOOTING.md");
  const listed = [...page.matchAll(/^\| `(\w+)` \| .+ \| .+ \| .+ \|$/gm)].map((m) => m[1]);
  expect(listed.sort()).toEqual([...CORE_ERROR_CODES, ...Object.keys(OWN_ERRORS)].sort());
  expect(() => troublePage({ BUSY: { meaning: "", cure: "" } })).toThrow(/unknown or twice/);
  expect(() => troublePage({ ...Object.fromEntries(listed.map((code) => [code!, { meaning: "", cure: "" }])), NEW: { meaning: "", cure: "" } })).toThrow(/no cause for NEW/);
});

/** Options of lima() and createLane() in the code of a document, by name. */
function optionsIn(markdown: string): string[] {
  const calls = [...markdown.matchAll(/\b(?:lima|createLane)\(\{([^()]*?)\}\)/g)].map((m) => m[1]!.replace(/\{[^{}]*\}|\[[^\]]*\]|"[^"]*"/g, "x"));
  return calls.flatMap((text) => text.split(",").map((part) => /^\s*([A-Za-z]\w*)\s*(?::|$)/.exec(part)?.[1] ?? "")).filter(Boolean);
}

it("the examples of documents have no option that does not exist", () => {
  expect(optionsIn('lima({ cpus: 4, nope: { a: 1 }, env }) createLane({ image: "a, b: c" })')).toEqual(["cpus", "nope", "env", "image"]);
  const documents = ["README.md", "SECURITY.md", ...readdirSync(join(root, "docs")).filter((file) => file.endsWith(".md")).map((file) => `docs/${file}`)];
  const known = [...OPTION_NAMES, "queueTimeoutSeconds"];
  const named = documents.flatMap((path) => optionsIn(read(path)).map((option) => `${path}: ${option}`));
  expect(named.length).toBeGreaterThan(5);
  expect(named.filter((each) => !known.includes(each.split(": ")[1]!))).toEqual([]);
});

it("cures that lib/ gives itself are those of the table", () => {
  const cures = new Map(errorTable(header).map((row) => [row.code, row.cure]));
  for (const error of [badOption("x"), asLaneError(new Error("x"))]) expect(error.cure).toBe(cures.get(error.code));
});

describe("names of files in the documentation", () => {
  const made = /^(?:\.git|build|dist|node_modules|prebuilds)(?:\/|$)/;
  const walk = (dir: string): string[] =>
    readdirSync(join(root, dir), { withFileTypes: true }).flatMap((entry) => {
      const path = join(dir, entry.name);
      if (made.test(path)) return [];
      return entry.isDirectory() ? walk(path) : [path];
    });
  const files = walk("");
  const documents = files.filter((path) => path.endsWith(".md"));

  it.each(documents)("%s names files that are there", (path) => {
    const named = [...read(path).matchAll(/`([\w./-]+\.(?:c|h|cc|ts|mjs|cjs|py|sh|md|gyp))`|\]\(([\w./-]+)\)/g)].map(
      (m) => (m[2] === undefined ? m[1]! : join(dirname(path), m[2])),
    );
    const there = (name: string) => files.some((path) => path === name || path.endsWith(`/${name}`));
    expect(named.filter((name) => !there(name))).toEqual([]);
  });
});
