// SPDX-License-Identifier: Apache-2.0
// A lane never outlives its owner: SIGINT during create, SIGKILL of a process that owns a running lane.
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { agentLane, startOwner } from "./lib/lanes.mjs";
import { alive, laneDirectories, laneProcesses, nothingLeft, openRows, productHome, until } from "./lib/world.mjs";

const qemu = () => laneProcesses().filter((p) => /qemu-system/.test(p.args));

describe("death of the owner", { concurrency: false, timeout: 900_000 }, () => {
  for (const signal of ["SIGINT", "SIGTERM"])
    it(`${signal} during create ends the process and leaves nothing`, async () => {
      const owner = startOwner();
      try {
        await until("QEMU of the new lane", 60, () => qemu().length > 0 || owner.child.exitCode !== null);
        assert.equal(owner.child.exitCode, null, `the owner ended early: ${owner.lines} ${owner.errors()}`);
        owner.child.kill(signal);
        const end = await Promise.race([owner.ended, new Promise((resolve) => setTimeout(resolve, 20_000, "late"))]);
        assert.notEqual(end, "late", "the process ends within 20 s");
        assert.ok(end.signal === signal || end.code > 0, JSON.stringify(end));
        assert.ok(!end.lines.some((l) => l.startsWith("ready")));
        await until("the end of processes and directory", 10, () => laneProcesses().length + laneDirectories().length === 0);
        const reap = agentLane(["reap"]); // closes the row
        assert.equal(reap.code, 0, `${reap.out} ${reap.errors}`);
        await nothingLeft(10);
      } finally {
        owner.child.kill("SIGKILL");
      }
    });

  it("SIGKILL of the owner ends QEMU within 10 s, and the next reap leaves nothing", async () => {
    const owner = startOwner();
    try {
      await until("the owner's lane", 260, () => owner.lines.some((l) => /^(ready|error)/.test(l)));
      assert.ok(owner.lines.includes("ready hello"), `${owner.lines} ${owner.errors()}`);
      const running = qemu().map((p) => p.pid);
      assert.ok(running.length > 0);
      const dry = agentLane(["reap", "--dry-run"]);
      assert.equal(dry.code, 0, dry.errors);
      assert.equal(laneDirectories().length, 1, "an owned lane is not reaped");
      owner.child.kill("SIGKILL");
      await until("QEMU's end", 10, () => !running.some(alive));
      assert.ok(openRows().length > 0 || laneDirectories().length > 0, "the rest waits for the reaper");
      const reap = agentLane(["reap"]);
      assert.equal(reap.code, 0, `${reap.out} ${reap.errors}`);
      await nothingLeft(10);
      assert.deepEqual(laneProcesses(productHome()), []);
    } finally {
      owner.child.kill("SIGKILL");
    }
  });
});
