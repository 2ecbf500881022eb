// SPDX-License-Identifier: Apache-2.0
// The example of docs/LANES.md is the file in examples/, and it runs, on the real lane agent.
import { chmodSync, chownSync, cpSync, mkdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, it } from "vitest";
import { stages } from "./support/stages.js";

const root = join(import.meta.dirname, "..", "..");
const example = readFileSync(join(root, "examples/without-sandcastle/suite.mjs"), "utf8");
const body = /\/\/ LANES: from here\n([^]*)\/\/ LANES: to here/.exec(example)?.[1] ?? "no marks";
const stage = stages();

it("docs/LANES.md shows the example as it is", () => {
  expect(readFileSync(join(root, "docs", "LANES.md"), "utf8")).toContain(body);
});

it("runs", async () => {
  const s = stage({ guest: "agent" });
  cpSync(join(root, "examples/without-sandcastle"), join(s.dir, "tree"), { recursive: true });
  mkdirSync(join(s.dir, "tree", "out"));
  chmodSync(join(s.dir, "tree", "out"), 0o777);
  if (process.getuid?.() === 0) chownSync(join(s.dir, "tree", "out"), 65534, 65534);
  const code = body.replace("network: \"none\", ", "").replace("createLane({", "createLane({ ...OPTIONS,");
  const r = await s.run(`
    import { rm } from "node:fs/promises";
    import { resolve } from "node:path";
    const { createLane } = await import(PACKAGE);
    process.chdir(${JSON.stringify(join(s.dir, "tree"))});
    const said = [];
    console.log = (...words) => said.push(words.join(" "));
    ${code}
    process.stdout.write(JSON.stringify(["said", said]) + "\\n");`);
  expect(r.err).toBe("");
  expect(r.said["said"]).toEqual([
    "0 Linux run-tests.sh service.sh",
    "service: pong to ping",
    "suite: 1 ok",
    "suite: 2 not ok",
    "COMMAND_FAILED 1 one failed",
    "results: 2 files of 10 bytes",
  ]);
  expect(readFileSync(join(s.dir, "tree", "out", "results", "2"), "utf8")).toBe("not ok\n");
  expect(readFileSync(join(s.dir, "tree", "out", "report.txt"), "utf8")).toBe("all of it\n");
  expect(s.left()).toEqual([]);
});
