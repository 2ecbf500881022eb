// SPDX-License-Identifier: Apache-2.0
// Load on a real lane: commands that overlap, hundreds after another; tests of lane.test.mjs, which share one lane.
// E2E_ROUNDS: how often 25 commands run at once (2, and 400 after another; all 40, and 1000, take some minutes where the guest is emulated).
import assert from "node:assert/strict";
import { it } from "node:test";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { growth, many, overlap } from "../ts/support/load.mjs";

const rounds = Number(process.env.E2E_ROUNDS ?? 2);
const execs = rounds > 2 ? 1000 : 400;
const seconds = (since) => ((Date.now() - since) / 1000).toFixed(1);

export function loadTests(lane, name) {
  it(`25 commands at once, ${rounds} times over: no byte is mixed or lost`, async (t) => {
    const { engine } = await import(new URL("./engine.js", import.meta.resolve("@agent-lane/provider-lima")));
    const started = Date.now();
    const seen = await overlap(lane(), { name: name(), engine: engine(), rounds });
    assert.deepEqual(seen.faults, []);
    assert.equal(seen.came, seen.should);
    assert.equal(seen.execs, 25 * rounds);
    t.diagnostic(`${seen.execs} commands, ${(seen.bytes / 1e6).toFixed(0)} MB compared, ${seconds(started)} s`);
  });

  it(`${execs} commands: descriptors, threads and memory stay, here and in the guest's agent`, async (t) => {
    setFlagsFromString("--expose-gc");
    const gc = runInNewContext("gc");
    const seen = await many(lane(), { total: execs, first: execs / 2, sudo: true, gc });
    t.diagnostic(JSON.stringify(seen));
    assert.deepEqual([seen.wrong, seen.total], [0, execs]);
    assert.deepEqual(growth(seen), []);
  });
}
