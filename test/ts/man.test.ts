// SPDX-License-Identifier: Apache-2.0
// The man page: renders without a warning, has every command and option, and package.json names it. That it is current, docs.test.ts says.
import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { makeProgram } from "../../lib/cli/program.js";
import { flat, treeOf } from "../../lib/cli/tree.js";

const root = join(import.meta.dirname, "..", "..");
const { man, files } = JSON.parse(readFileSync(join(root, "package.json"), "utf8")) as { man: string; files: string[] };
const page = join(root, man);
const has = (program: string) => spawnSync(program, ["--version"]).error === undefined;
const nodes = flat(treeOf(makeProgram("node_modules/@agent-lane/provider-lima")));

it("is in the package", () => {
  expect(man).toBe("./man/agent-lane.1");
  expect(files).toContain("man");
});

// Each says that it was skipped where its program is not.
describe.each([
  ["groff", ["-man", "-Tutf8", "-ww", "-rLL=200n"]],
  ["mandoc", ["-Tutf8", "-Wwarning", "-Owidth=200"]],
])("%s", (program, args) => {
  it.skipIf(!has(program))("renders it without a warning, and nothing is lost", () => {
    const r = spawnSync(program, [...args, page], { encoding: "utf8", timeout: 60_000, env: { ...process.env, GROFF_NO_SGR: "1" } });
    // The page has no date, since it is made anew from the sources on any day: the one warning that mandoc may have, for which it exits 2.
    const warnings = r.stderr.split("\n").filter((line) => !/WARNING: missing date, using ""|^mandoc: see above the output/.test(line)).join("\n");
    expect([r.status === 2 && r.stderr.includes("missing date") ? 0 : r.status, warnings]).toEqual([0, ""]);
    const text = r.stdout.replace(/.\x08/g, "").replace(/\x1b\[[0-9;]*m/g, "").replace(/\u2010|\u2212/g, "-").replace(/-\n\s+/g, "-").replace(/\s+/g, " ");
    for (const node of nodes) {
      if (node.path.length > 0 && node.commands.length === 0) expect(text).toContain(`agent-lane ${node.path.join(" ")}`);
      for (const o of node.path.length > 0 && node.commands.length === 0 ? node.options : []) expect(text).toContain(o.value === "" ? o.long : `${o.long} ${o.value}`);
    }
    for (const words of ["agent-lane run -- npm test", "EXIT STATUS", "AGENT_LANE_HOME", 'claude -p "fix the failing test"', "sh -c 'make && make check'"]) expect(text).toContain(words);
  });
});
