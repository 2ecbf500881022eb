// SPDX-License-Identifier: Apache-2.0
// The flavour agents in a lane. Run by name (run.mjs agents.mjs) with E2E_AGENTS_IMAGE, the directory of a built image.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { openOwnLane } from "./lib/lanes.mjs";

const image = process.env.E2E_AGENTS_IMAGE;
const MINUTES = 60_000;
const AGENTS = ["claude", "codex", "opencode"];

describe("coding agents in a lane", { concurrency: false, skip: image ? false : "E2E_AGENTS_IMAGE is not set" }, () => {
  let lane, locked;
  before(async () => {
    const packages = JSON.parse(readFileSync(join(image, "packages.json"), "utf8"));
    locked = new Map(packages.map(({ name, version }) => [name, version]));
    lane = await openOwnLane({ image, memoryGiB: 4 });
  }, { timeout: 5 * MINUTES });
  after(() => lane?.close(), { timeout: 2 * MINUTES });

  for (const agent of AGENTS)
    it(`${agent} has the version of the lock file and is a native program`, { timeout: 10 * MINUTES }, async () => {
      const r = await lane.exec(`head -c 4 "$(readlink -f "$(command -v ${agent})")" | od -An -c | tr -d ' ' && ${agent} --version`, {
        timeoutMs: 8 * MINUTES,
      });
      assert.equal(r.exitCode, 0, r.stderr);
      const [magic, ...said] = r.stdout.trim().split("\n");
      assert.equal(magic, "177ELF");
      assert.ok(locked.get(agent), `${agent} is in packages.json`);
      assert.ok(said.join(" ").split(/[\s()]+/).includes(locked.get(agent)), `${said.join(" ")} is not ${locked.get(agent)}`);
    });
});
