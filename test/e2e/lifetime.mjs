// SPDX-License-Identifier: Apache-2.0
// A lane's lifetime on real VMs, one minute, which is the shortest there is: its owner's JavaScript is blocked, its owner is stopped, its
// owner is killed. Nightly; prints by how many seconds each VM outlived its time.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, it } from "node:test";
import { agentLane, startOwner } from "./lib/lanes.mjs";
import { laneProcesses, nothingLeft, productHome, until } from "./lib/world.mjs";

const bootSeconds = () => Number(readFileSync("/proc/uptime", "utf8").split(" ")[0]);
const qemu = (name) => laneProcesses(productHome(), name).filter((p) => /^\S*qemu-system/.test(p.args)).map((p) => p.pid);

/** One that has ended and that nobody has asked about yet (a zombie) runs no more. */
function runs(pid) {
  try {
    return !/^\d+ \(.*\) Z /s.test(readFileSync(`/proc/${pid}/stat`, "utf8"));
  } catch {
    return false;
  }
}

/** When the lane's time is over, in seconds of boot time, as its row says. */
function expiry(name) {
  const sql = `SELECT expires_boot_ms FROM lanes WHERE name = '${name}';`;
  const args = ["-readonly", "-cmd", ".timeout 5000", join(productHome(), "registry.db"), sql];
  return Number(execFileSync("sqlite3", args, { encoding: "utf8", timeout: 20_000 })) / 1000;
}

describe("a lifetime of one minute", { concurrency: false, timeout: 900_000 }, () => {
  const rows = [];
  const cases = [
    ["its owner's JavaScript is blocked", { blocked: true }, () => undefined],
    ["its owner is stopped", {}, (owner) => owner.child.kill("SIGSTOP")],
    ["its owner is killed", {}, (owner) => owner.child.kill("SIGKILL")],
  ];
  for (const [what, options, befall] of cases)
    it(`is no longer when ${what}`, async () => {
      const owner = startOwner({ ...options, timeoutMinutes: 1, startTimeoutSeconds: 120 }, { file: "./held-owner.mjs" });
      try {
        await until("the owner's lane", 150, () => owner.lines.some((l) => /^(ready|error)/.test(l)));
        const name = /^ready (\S+)$/.exec(owner.lines[0])?.[1];
        assert.ok(name, `${owner.lines} ${owner.errors()}`);
        const [over, pids] = [expiry(name), qemu(name)];
        assert.ok(over > bootSeconds() && pids.length > 0, `${over} ${pids}`);
        befall(owner);
        const since = bootSeconds();
        await until("QEMU's end", over - since + 60, () => !pids.some(runs));
        const end = bootSeconds();
        rows.push({ what, overrunSeconds: Number((end - over).toFixed(2)), secondsAfterItBefell: Number((end - since).toFixed(2)) });
        await until("its processes' end", 60, () => laneProcesses(productHome(), name).length === 0);
      } finally {
        owner.child.kill("SIGKILL");
        await owner.ended;
      }
      await until("nothing left after a sweep", 60, () => agentLane(["reap"]).code === 0);
      await nothingLeft();
    });
  it("says by how much", () => {
    console.log(JSON.stringify({ name: "lifetime", rows }));
    assert.equal(rows.length, cases.length);
  });
});
