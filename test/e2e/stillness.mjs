// SPDX-License-Identifier: Apache-2.0
// What stands still for longer than a silence is borne: a machine that sleeps, whose lane goes on, and a guest that freezes,
// whose calls all end. Minutes of waiting, so it is run at night: run.mjs stillness.mjs.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { after, before, describe, it } from "node:test";
import { fails, openLane } from "./lib/lanes.mjs";
import { laneDirectories, laneProcesses, productHome, until } from "./lib/world.mjs";

describe("what stands still", { concurrency: false }, () => {
  let lane, name;

  before(async () => {
    const others = new Set(laneDirectories());
    lane = await openLane();
    name = laneDirectories().find((d) => !others.has(d));
  }, { timeout: 300_000 });
  after(() => lane?.close(), { timeout: 60_000 });

  it("survives that this machine sleeps: everything stopped for longer than a guest may be silent", { timeout: 300_000 }, async () => {
    const calls = [lane.exec("sleep 5; echo slept"), lane.exec("seq 1 200000 | tail -1"), lane.exec("sleep 2; cat", { stdin: "x".repeat(2_000_000) })];
    const pids = [process.pid, ...laneProcesses(productHome(), name).map((p) => p.pid)].join(" ");
    assert.ok(pids.split(" ").length > 4, pids);
    const asleep = Date.now();
    const helper = spawn("sh", ["-c", `kill -STOP ${pids}; sleep 65; kill -CONT ${pids}`], { stdio: "ignore", detached: true });
    await new Promise((resolve) => helper.on("exit", resolve));
    assert.ok(Date.now() - asleep > 60_000);
    assert.deepEqual((await Promise.all(calls)).map((r) => r.stdout.length), [6, 7, 2_000_000]);
    assert.equal((await lane.exec("echo well")).stdout, "well\n");
    // The guest has missed a minute; its clock is set within seconds. One that somebody in the guest has set stays as it is.
    const off = async () => Number((await lane.exec("date +%s")).stdout) - Date.now() / 1000;
    await until("the guest's clock is right", 40, async () => Math.abs(await off()) < 5);
    await lane.exec("date -s @1000000000", { sudo: true });
    await new Promise((resolve) => setTimeout(resolve, 13_000));
    assert.ok((await off()) < -1e8, "a clock that was set by hand");
  });

  it("settles everything when the guest freezes", { timeout: 180_000 }, async () => {
    const qemu = laneProcesses(productHome(), name).find((p) => /^\S*qemu-system/.test(p.args));
    const open = [lane.exec("sleep 300"), lane.exec("yes", { onLine: () => undefined }), lane.exec("sleep 300; cat", { stdin: "x".repeat(3_000_000) })];
    await new Promise((resolve) => setTimeout(resolve, 2000));
    process.kill(qemu.pid, "SIGSTOP");
    const t = Date.now();
    // Emulated guests have 60 s (docs/adr), others 15 s; the lane is destroyed after that.
    for (const call of open) {
      const error = await fails("CHANNEL_CLOSED", () => call);
      assert.match(error.message, /has not (answered|read) for/);
    }
    assert.ok(Date.now() - t < 100_000);
    await fails("CHANNEL_CLOSED", () => lane.exec("true"));
    console.log(JSON.stringify({ name: "frozen guest", settled_ms: Date.now() - t }));
  });
});
