// SPDX-License-Identifier: Apache-2.0
// Transfers on a real lane: every kind of file there and back, what a hostile guest and a hostile host tree may try,
// and what is left when somebody dies in between.
import assert from "node:assert/strict";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { after, before, describe, it } from "node:test";
import { agentLane, fails, openOwnLane, sha256, startOwner } from "./lib/lanes.mjs";
import { laneProcesses, nothingLeft, productHome, until } from "./lib/world.mjs";
import { makeWorld, temporaries } from "./lib/world-of-files.mjs";
import { inTests } from "./transfer-in.mjs";
import { killTests } from "./transfer-kills.mjs";
import { kindTests } from "./transfer-kinds.mjs";
import { lieTests } from "./transfer-lies.mjs";
import { outTests } from "./transfer-out.mjs";
import { raceTests } from "./transfer-races.mjs";
import { treeTests } from "./transfer-tree.mjs";

const maxCopyOutBytes = 20_000_000;
const KILLS = Number(process.env.E2E_KILLS ?? 4);

describe("transfers on one lane", { concurrency: false }, () => {
  let handle;
  const lane = () => handle;
  before(
    async () => {
      handle = await openOwnLane({ maxCopyOutBytes, maxCopyOutTotalBytes: 2 ** 40 });
    },
    { timeout: 300_000 },
  );
  after(() => handle?.close(), { timeout: 60_000 });

  kindTests(lane);
  treeTests(lane);
  outTests(lane, { maxCopyOutBytes });
  inTests(lane);
  raceTests(lane);
  lieTests(lane);
  killTests(lane);

  it("a copy out whose VM dies leaves the target as it was", { timeout: 120_000 }, async () => {
    const world = makeWorld(),
      target = join(world.repo, "target");
    writeFileSync(target, "before");
    await lane().exec("head -c 19000000 /dev/urandom >big", { cwd: "/home/agent" });
    // It is cut off by the VM's death wherever it is then.
    const call = fails("CHANNEL_CLOSED", async () => {
      for (;;) await lane().copyFileOut("/home/agent/big", join(world.repo, "other"));
    });
    await until("bytes that come", 20, () => temporaries(world.repo).length > 0);
    const vm = laneProcesses(productHome(), handle.name).filter((p) => /^\S*qemu-system/.test(p.args));
    assert.equal(vm.length, 1);
    process.kill(vm[0].pid, "SIGKILL");
    await call;
    assert.equal(readFileSync(target, "utf8"), "before");
    assert.deepEqual(temporaries(world.repo), []);
    world.untouched();
    await handle.close();
    await nothingLeft();
  });
});

describe("an owner that is killed while it copies out", { concurrency: false }, () => {
  const bytes = 8_000_000;
  const world = makeWorld(),
    target = join(world.repo, "sub/target"),
    dir = join(world.repo, "sub");
  const hashes = new Set();

  for (let n = 0; n < KILLS; n++)
    it(`kill ${n + 1}: the target is old or new`, { timeout: 300_000 }, async (t) => {
      const had = existsSync(target) ? sha256(readFileSync(target)) : undefined;
      const owner = startOwner({ target, bytes }, { file: "./copier.mjs" });
      const copied = () => owner.lines.filter((line) => line === "copied").length;
      await until("its first copy", 280, () => copied() > 0 || owner.child.exitCode !== null);
      const ms = Math.floor(Math.random() * 1500);
      await sleep(ms);
      owner.child.kill("SIGKILL");
      const { lines } = await owner.ended;
      assert.deepEqual(
        lines.filter((line) => line.startsWith("error")),
        [],
      );
      const [, a, b] = lines.find((line) => line.startsWith("hashes")).split(" ");
      for (const hash of [a, b]) hashes.add(hash);
      assert.ok([a, b].includes(sha256(readFileSync(target))), "whole, and one of this owner's");
      assert.notEqual(sha256(readFileSync(target)), had);
      t.diagnostic(
        `${copied()} copies, killed ${ms} ms after the first; left beside the target: ${temporaries(dir).length}`,
      );
      assert.ok(temporaries(dir).length <= 1, String(temporaries(dir)));
      await until("the VM's end", 30, () => laneProcesses().every((p) => !/qemu-system/.test(p.args)));
    });

  it("no temporary file is left after the next use", { timeout: 300_000 }, async () => {
    // What a kill in the midst of it leaves, in case that none of those above hit it.
    writeFileSync(join(dir, ".agent-lane-0123456789abcdef.tmp"), "half");
    const lane = await openOwnLane();
    try {
      await lane.exec("echo next >next", { cwd: "/home/agent" });
      await lane.copyFileOut("/home/agent/next", join(dir, "next"));
      assert.deepEqual(temporaries(dir), []);
      assert.ok(hashes.has(sha256(readFileSync(target))));
      world.untouched();
    } finally {
      await lane.close();
    }
    // A row whose keeper was still at work when that lane was made is the next sweep's.
    const reap = agentLane(["reap"]);
    assert.equal(reap.code, 0, `${reap.out} ${reap.errors}`);
    await nothingLeft();
  });
});
