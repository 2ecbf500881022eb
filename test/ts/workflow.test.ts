// SPDX-License-Identifier: Apache-2.0
// The workflow asks for no more than it needs, and names what is there.
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { TARGETS } from "../../lib/advice.js";

const root = join(import.meta.dirname, "..", "..");
const dir = join(root, ".github", "workflows");

describe.each(readdirSync(dir))("%s", (name) => {
  const text = readFileSync(join(dir, name), "utf8");
  const jobs = new Map(
    text
      .slice(text.indexOf("\njobs:\n") + 7)
      .split(/^(?= {2}[\w-]+:$)/m)
      .map((job) => [/^ *([\w-]+):/m.exec(job)![1]!, job] as const),
  );

  it("takes actions by commit, with the version beside it", () => {
    const uses = [...text.matchAll(/uses: (.*)/g)].map((m) => m[1]!);
    expect(uses.length).toBeGreaterThan(5);
    expect(uses.filter((u) => !/^actions\/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$/.test(u))).toEqual([]);
  });

  it("gives jobs what they need and nothing more", () => {
    expect(text).toMatch(/^permissions: \{\}$/m);
    for (const [job, body] of jobs) {
      const permissions = [...body.slice(body.indexOf("permissions:")).matchAll(/^ {6}([\w-]+: (?:read|write))$/gm)].map((m) => m[1]);
      expect([job, permissions]).toEqual([job, [job === "publish" ? "id-token: write" : "contents: read"]]);
      expect([job, /timeout-minutes: \d+/.test(body)]).toEqual([job, true]);
    }
    expect(text).not.toMatch(/secrets\.|pull_request_target|persist-credentials: true/);
    expect(text.match(/actions\/checkout@/g)?.length).toBe(text.match(/persist-credentials: false/g)?.length);
    // What others can name, such as a branch, is never part of a script.
    expect([...text.matchAll(/run: .*\$\{\{|^ {10}.*\$\{\{ *github\.(?:head_ref|ref_name|event)(?!.*$)/gm)]).toEqual([]);
  });

  it("loads every target, and publishes only what has passed everywhere", () => {
    for (const target of TARGETS) expect(jobs.get("load")).toContain(`target: ${target},`);
    const needs = /needs: \[(.*)\]/.exec(jobs.get("publish")!)![1]!.split(", ");
    expect([...needs].sort()).toEqual([...jobs.keys()].filter((job) => job !== "publish").sort());
    expect(jobs.get("publish")).toMatch(/npm publish .*--provenance/);
  });

  it("names scripts that are there", () => {
    const named = [...text.matchAll(/(?:^|[\s(])((?:scripts|test)\/[\w./-]+)/gm)].map((m) => m[1]!);
    expect(named.length).toBeGreaterThan(3);
    expect(named.filter((path) => !existsSync(join(root, path)))).toEqual([]);
  });
});
