// SPDX-License-Identifier: Apache-2.0
// One end of a copy is killed at random instants, of each direction: the process that copies, and what does the work in
// the guest. It is `agent-lane cp` beside the lane's owner, so that one VM outlives them all. Tests of transfer.test.mjs.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { it } from "node:test";
import { fileURLToPath } from "node:url";
import { scratch, sha256 } from "./lib/lanes.mjs";
import { until } from "./lib/world.mjs";
import { makeWorld, temporaries } from "./lib/world-of-files.mjs";

const KILLS = Number(process.env.E2E_KILLS ?? 4);
const BYTES = 8_000_000;
const FILES = 300;
const bin = fileURLToPath(new URL("../node_modules/.bin/agent-lane", import.meta.url));
const DIR = "/home/agent/killed";

export function killTests(lane) {
  const guest = async (script) => {
    const r = await lane().exec(script, { cwd: "/home/agent" });
    assert.equal(r.exitCode, 0, `${script}: ${r.stderr}`);
    return r.stdout.trim();
  };
  const leftInGuest = () => guest(`find ${DIR} -name '.agent-lane-*' | wc -l`).then(Number);
  const cp = (...args) => {
    const child = spawn(bin, ["cp", ...args], { stdio: ["ignore", "ignore", "pipe"] });
    let errors = "";
    child.stderr.on("data", (data) => (errors += data));
    const ended = new Promise((resolve) => child.on("close", (code, signal) => resolve({ code, signal, errors })));
    return { child, ended, over: () => child.exitCode !== null || child.signalCode !== null };
  };
  const ways = {
    "the process": (run) => run.child.kill("SIGKILL"),
    // The pattern does not find the shell that looks for it.
    "the guest's end": () => guest("sudo pkill -KILL -f -- '--attac[h] ' || true"),
  };
  /** Strikes some time after the copy has begun, as long as a whole one takes at most. */
  async function struck(run, begun, takes, strike) {
    await until("the copy's beginning", 120, async () => run.over() || (await begun()));
    const ms = Math.random() < 0.3 ? 0 : Math.floor(Math.random() * takes);
    await sleep(ms);
    const late = run.over();
    await strike(run);
    return { ...(await run.ended), ms, late };
  }
  const timeout = (60 + KILLS * 60) * 1000;

  for (const [what, strike] of Object.entries(ways))
    it(`kill: ${what}, of copies out: the target is old or new`, { timeout }, async (t) => {
      const world = makeWorld(),
        dir = join(world.repo, "sub"),
        target = join(dir, "target");
      mkdirSync(dir);
      await guest(`mkdir -p ${DIR} && for n in a b; do head -c ${BYTES} /dev/urandom >${DIR}/$n; done`);
      const hashes = (await guest(`cd ${DIR} && sha256sum a b | cut -d' ' -f1`)).split("\n");
      const began = Date.now();
      await lane().copyFileOut(`${DIR}/b`, target);
      const takes = Math.max(500, (Date.now() - began) * 4); // beside its owner it goes another, slower way
      const seen = { old: 0, new: 0, late: 0, left: 0 };
      for (let i = 0, at = 1; i < KILLS; i++) {
        const to = 1 - at;
        const run = cp(`${lane().name}:${DIR}/${"ab"[to]}`, target);
        const { late } = await struck(run, () => temporaries(dir).length > 0, takes, strike);
        const now = hashes.indexOf(sha256(readFileSync(target)));
        assert.ok(now >= 0, "whole, and one of the two");
        seen[now === at ? "old" : "new"]++;
        seen.late += late;
        at = now;
        const left = temporaries(dir).length;
        seen.left += left;
        assert.ok(left <= (what === "the process" ? 1 : 0), `${left} left`);
        await lane().copyFileOut(`${DIR}/a`, join(dir, "other"));
        assert.deepEqual(temporaries(dir), [], "gone with the next use");
      }
      t.diagnostic(`${KILLS} kills: ${JSON.stringify(seen)}`);
      assert.ok(seen.old > 0);
      world.untouched();
    });

  for (const [what, strike] of Object.entries(ways))
    it(`kill: ${what}, of copies in: the target is old or new, the guest is clean`, { timeout }, async (t) => {
      const dir = scratch("kills");
      for (const name of ["a", "b"]) writeFileSync(join(dir, name), randomBytes(BYTES));
      mkdirSync(join(dir, "tree"));
      for (let i = 0; i < FILES; i++) writeFileSync(join(dir, "tree", `f${i}`), randomBytes(20_000));
      const hashes = ["a", "b"].map((name) => sha256(readFileSync(join(dir, name))));
      await guest(`rm -rf ${DIR} && mkdir -p ${DIR}`);
      const began = Date.now();
      await lane().copyIn(join(dir, "b"), `${DIR}/target`);
      const takes = Math.max(500, (Date.now() - began) * 4);
      const seen = { old: 0, new: 0, late: 0, left: 0 };
      for (let i = 0, at = 1; i < KILLS; i++) {
        const tree = i % 2 === 1,
          to = 1 - at;
        const run = tree
          ? cp(join(dir, "tree"), `${lane().name}:${DIR}/tree`)
          : cp(join(dir, "ab"[to]), `${lane().name}:${DIR}/target`);
        const { late } = await struck(run, async () => (await leftInGuest()) > 0, takes, strike);
        // Who unpacks is told by the end of its channel, and removes what is not in place; unless it was killed itself.
        if (what === "the process") await until("a clean guest", 30, async () => (await leftInGuest()) === 0);
        await guest("! pgrep -f -- '--unpac[k] ' || sleep 2");
        const now = hashes.indexOf(await guest(`sha256sum ${DIR}/target | cut -d' ' -f1`));
        assert.ok(now >= 0, "whole, and one of the two");
        const files = Number(await guest(`ls ${DIR}/tree 2>/dev/null | wc -l`));
        assert.ok(files === 0 || files === FILES, `${files} of ${FILES} files`);
        seen[(tree ? files === 0 : now === at) ? "old" : "new"]++;
        seen.late += late;
        at = now;
        const left = await leftInGuest();
        seen.left += left;
        assert.ok(left <= 1, `${left} left`);
        await guest(`rm -rf ${DIR}/tree`);
        await lane().copyIn(join(dir, "tree", "f0"), `${DIR}/other`);
        assert.equal(await leftInGuest(), 0, "gone with the next use");
      }
      t.diagnostic(`${KILLS} kills: ${JSON.stringify(seen)}`);
      assert.ok(seen.old > 0);
      await guest(`rm -rf ${DIR}`);
    });
}
