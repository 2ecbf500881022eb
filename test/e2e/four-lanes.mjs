// SPDX-License-Identifier: Apache-2.0
// Four lanes of two processes at once. Run by name (run.mjs four-lanes.mjs): four emulated guests take minutes to boot.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { existsSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { it } from "node:test";
import { fileURLToPath } from "node:url";
import { oneOfSeveral } from "../ts/support/load.mjs";
import { provider, scratch } from "./lib/lanes.mjs";
import { laneDirectories, nothingLeft, openRows, until } from "./lib/world.mjs";

const self = fileURLToPath(import.meta.url);

/** One of the two processes: two lanes; says the name of each in which a command runs, then its faults. */
async function work(go) {
  const { engine } = await import(new URL("./engine.js", import.meta.resolve("@agent-lane/provider-lima")));
  const options = { cpus: 1, memoryGiB: 1, maxConcurrentVms: 4, startTimeoutSeconds: 400, syncInTimeoutSeconds: 3600 };
  const create = (more) => provider({ ...options, ...more }).create({ env: {} });
  const say = (name) => console.log(`here ${name}`);
  const faults = await oneOfSeveral(create, { count: 2, engine: engine(), say, go: () => existsSync(go) });
  console.log(`faults ${JSON.stringify(faults)}`);
}

if (process.env.E2E_GO) await work(process.env.E2E_GO);
else
  it("four lanes of two processes run at once, each with its own bytes, and are all gone afterwards", async () => {
    const go = join(scratch("four"), "go");
    const lines = [];
    const children = [0, 1].map(() => {
      const env = { ...process.env, E2E_GO: go, NODE_TEST_CONTEXT: "" };
      const child = spawn(process.execPath, [self], { env, stdio: ["ignore", "pipe", "inherit"] });
      child.stdout.setEncoding("utf8").on("data", (text) => lines.push(...text.split("\n").filter(Boolean)));
      child.ended = new Promise((ok) => child.on("close", ok));
      return child;
    });
    const here = () => lines.filter((l) => l.startsWith("here ")).map((l) => l.slice(5)).sort();
    try {
      const ends = () => children.some((c) => c.exitCode !== null);
      await until("a command in each of four lanes", 600, () => here().length === 4 || ends());
      assert.deepEqual(here(), laneDirectories().sort());
      assert.equal(openRows().length, 4);
      writeFileSync(go, "");
      for (const child of children) assert.equal(await child.ended, 0, lines.join("\n"));
      assert.deepEqual(lines.filter((l) => l.startsWith("faults")), ["faults []", "faults []"]);
      await nothingLeft();
    } finally {
      for (const child of children) child.kill("SIGTERM");
    }
  });
