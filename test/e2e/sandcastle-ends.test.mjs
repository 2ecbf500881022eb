// SPDX-License-Identifier: Apache-2.0
// Sandcastle's process ends badly, in every way that people meet: no lane is left, and the process's status and signal are
// those that Sandcastle has with a provider that is only a directory; so are its last words.
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { agentLane, startOwner } from "./lib/lanes.mjs";
import { laneDirectories, laneProcesses, nothingLeft, until } from "./lib/world.mjs";

const FILE = { file: "./sandcastle-owner.mjs" };

/** Starts it, does `act` once it has said `at`, and gives its end. */
async function end(options, at, act) {
  const owner = startOwner(options, FILE);
  try {
    if (at !== undefined) {
      await until(`"${at}" of ${options.how}`, 260, () => owner.lines.includes(at) || owner.child.exitCode !== null);
      assert.equal(owner.child.exitCode, null, `it ended early: ${owner.lines} ${owner.errors()}`);
      await act(owner.child);
    }
    const { code, signal, lines } = await Promise.race([
      owner.ended,
      new Promise((_, reject) => setTimeout(() => reject(new Error(`${options.how}: it does not end`)), 300_000).unref()),
    ]);
    return { code, signal, said: lines.filter((l) => /^(error|done)/.test(l)) };
  } finally {
    owner.child.kill("SIGKILL");
  }
}

/** The processes and directories go without anybody's doing; the rows with the next sweep. */
async function gone(seconds) {
  await until("processes and directories of the lane", seconds, () => laneProcesses().length + laneDirectories().length === 0);
  const reap = agentLane(["reap"]);
  assert.equal(reap.code, 0, `${reap.out} ${reap.errors}`);
  await nothingLeft();
}

const signals = [
  ["run", "agent", "SIGINT"],
  ["run", "agent", "SIGTERM"],
  ["createSandbox", "agent", "SIGINT"],
  ["create", "booting", "SIGINT"],
];

describe("Sandcastle ends", { concurrency: false, timeout: 1_800_000 }, () => {
  for (const [how, at, signal] of signals)
    it(`${signal} in ${how} while ${at === "agent" ? "it is in use" : "it is being made"}`, async () => {
      const plain = await end({ how, plain: true }, at, (child) => child.kill(signal));
      const lane = await end({ how }, at, (child) => child.kill(signal));
      await gone(10);
      assert.deepEqual([lane.code, lane.signal, lane.said], [plain.code, plain.signal, plain.said]);
    });

  for (const how of ["exit", "throws"])
    it(`process.exit(1) or an exception of the caller's during a run: ${how}`, async () => {
      const plain = await end({ how, plain: true });
      const lane = await end({ how });
      await gone(10);
      assert.deepEqual([lane.code, lane.signal, lane.said], [plain.code, plain.signal, plain.said]);
      assert.equal(lane.code, 1);
    });

  it("an abort while the sandbox is being made", async () => {
    const plain = await end({ how: "abort", plain: true });
    const lane = await end({ how: "abort" });
    await gone(15);
    assert.deepEqual([lane.code, lane.said], [plain.code, plain.said]);
  });

  it("a sync-in that fails: Sandcastle's own words, and the lane goes with the process", async () => {
    const plain = await end({ how: "shallow", plain: true });
    const lane = await end({ how: "shallow", syncInTimeoutSeconds: 3600 });
    await gone(10);
    assert.equal(lane.code, plain.code);
    assert.equal(lane.said[0].split(":")[0], plain.said[0].split(":")[0]);
  });
});
