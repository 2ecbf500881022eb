// SPDX-License-Identifier: Apache-2.0
// The example 1920s-outfit end to end: `npm ci` in the project's image, then agents whose lanes need neither it nor a network.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { after, before, describe, it } from "node:test";
import { runExample } from "./lib/example.mjs";
import { agentLane } from "./lib/lanes.mjs";
import { openRegistry } from "./lib/registry.mjs";
import { nothingLeft } from "./lib/world.mjs";

const MINUTES = 60_000;
const options = { cpus: 2, memoryGiB: 1.5, diskGiB: 9 };

describe("the example 1920s-outfit", { concurrency: false }, () => {
  let registry, first;
  before(async () => {
    registry = await openRegistry(["commander@12.1.0", "picocolors@1.1.1"]);
  }, { timeout: 3 * MINUTES });
  after(() => {
    registry?.close();
    if (first) agentLane(["image", "rm", first.image.image]);
  });
  const example = (args) => runExample("1920s-outfit", { registry: registry.url, image: "base", options, args });

  it("installs once, and its agent's commit comes back", { timeout: 10 * MINUTES }, async () => {
    first = await example();
    assert.equal(first.image.made, true);
    assert.equal(first.commits, 1, first.out);
    assert.match(first.out, /agent: - sunglasses/);
    assert.ok(registry.asked.some((path) => path.endsWith(".tgz")), "the packages came from the registry of npm's configuration");
    assert.match(execFileSync("git", ["-C", first.repo, "log", "-1", "--format=%s", "main"], { encoding: "utf8" }), /^agent: add sunglasses/);
    assert.equal(execFileSync("git", ["-C", first.repo, "status", "--porcelain"], { encoding: "utf8" }), "");
    await nothingLeft();
  });

  it("installs nothing the second time", { timeout: 10 * MINUTES }, async () => {
    registry.asked.length = 0;
    const second = await example([first.repo]);
    assert.equal(second.image.made, false);
    assert.equal(second.image.image, first.image.image);
    assert.deepEqual(registry.asked, []);
    console.log(
      `     image made in ${first.image.seconds.toFixed(1)} s, found in ${(second.image.seconds * 1000).toFixed(0)} ms; ` +
        `runs ${first.seconds.toFixed(1)} s and ${second.seconds.toFixed(1)} s`,
    );
    await nothingLeft();
  });
});
