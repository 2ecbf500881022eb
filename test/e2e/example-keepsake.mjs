// SPDX-License-Identifier: Apache-2.0
// The example keepsake end to end, scaled down. Run by name (run.mjs example-keepsake.mjs) with E2E_DOCKER_IMAGE, a built image of the
// flavour docker: pnpm and Docker's daemon take their time in an emulated guest.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { runExample } from "./lib/example.mjs";
import { agentLane } from "./lib/lanes.mjs";
import { openRegistry } from "./lib/registry.mjs";
import { nothingLeft } from "./lib/world.mjs";

const image = process.env.E2E_DOCKER_IMAGE;
const MINUTES = 60_000;
const options = { cpus: 2, memoryGiB: 2, diskGiB: 12, timeoutMinutes: 60 };
const pnpm = JSON.parse(
  readFileSync(fileURLToPath(new URL("../examples/keepsake/project/pnpm/package.json", import.meta.url)), "utf8"),
).dependencies.pnpm;

describe("the example keepsake", { concurrency: false, skip: image ? false : "E2E_DOCKER_IMAGE is not set" }, () => {
  let registry, first;
  before(async () => {
    registry = await openRegistry(["commander@12.1.0", "picocolors@1.1.1", `pnpm@${pnpm}`]);
  }, { timeout: 3 * MINUTES });
  after(() => {
    registry?.close();
    if (first) agentLane(["image", "rm", first.image.image]);
  });
  const example = (args) => runExample("keepsake", { registry: registry.url, image, options, args, minutes: 30 });

  it("installs once; its preflight builds and runs a container in the lane", { timeout: 35 * MINUTES }, async () => {
    first = await example();
    assert.equal(first.image.made, true);
    assert.equal(first.commits, 1, first.out);
    assert.equal(first.out.match(/agent: containers: keepsake is here/g)?.length, 2, first.out);
    await nothingLeft();
  });

  it("installs nothing the second time", { timeout: 35 * MINUTES }, async () => {
    registry.asked.length = 0;
    const second = await example([first.repo]);
    assert.deepEqual([second.image.made, second.image.image], [false, first.image.image]);
    assert.deepEqual(registry.asked, []);
    console.log(`     image made in ${first.image.seconds.toFixed(1)} s; runs ${first.seconds.toFixed(1)} s and ${second.seconds.toFixed(1)} s`);
    await nothingLeft();
  });
});
