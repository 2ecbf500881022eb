// SPDX-License-Identifier: Apache-2.0
// One real lane under whatever Node runs this: commands, lines, both copies, close, nothing left. For the matrix of
// Nodes.
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { openLane, scratch, sha256 } from "./lib/lanes.mjs";
import { leftovers } from "./lib/world.mjs";

if (process.env.E2E_NODE) assert.equal(process.version, process.env.E2E_NODE, "the Node that was asked for");
const started = Date.now();
let name;
const lane = await openLane({ onEvent: (event) => { name = event.lane ?? name; } });
const ready = Date.now();
try {
  assert.deepEqual(await lane.exec("cat; echo err >&2; exit 3", { stdin: "é\n" }), {
    stdout: "é\n",
    stderr: "err\n",
    exitCode: 3,
  });
  const lines = [];
  const r = await lane.exec("seq 1 20000", { onLine: (line) => lines.push(line) });
  assert.deepEqual([lines.length, lines[0], lines.at(-1), r.stdout.endsWith("\n20000")], [20000, "1", "20000", true]);
  const all = await Promise.all(Array.from({ length: 10 }, (_, i) => lane.exec(`sleep 0.2; echo ${i}`)));
  assert.deepEqual(all.map((x) => x.stdout), Array.from({ length: 10 }, (_, i) => `${i}\n`));
  const dir = scratch("one-lane");
  const data = Buffer.alloc(3_000_000, "agent lane ");
  writeFileSync(join(dir, "there"), data);
  await lane.copyIn(join(dir, "there"), "/home/agent/there");
  await lane.copyFileOut("/home/agent/there", join(dir, "back"));
  assert.equal(sha256(readFileSync(join(dir, "back"))), sha256(data));
} finally {
  await lane.close();
}
// Only of this lane: on a developer's machine others may be running.
const left = leftovers();
assert.match(name, /^agent-lane-/);
assert.deepEqual(
  [...left.processes.map((p) => p.args), ...left.directories, ...left.rows].filter((what) => what.includes(name)),
  [],
);
console.log(
  `node ${process.version}: one lane, ready after ${((ready - started) / 1000).toFixed(1)} s, closed after ${((Date.now() - started) / 1000).toFixed(1)} s`,
);
