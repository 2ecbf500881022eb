// SPDX-License-Identifier: Apache-2.0
// close() in the midst of everything that a lane can do at once. AL_ROUNDS: lanes, each closed at another moment.
import { expect, it } from "vitest";
import { stages } from "./support/stages.js";

const ROUNDS = Number(process.env["AL_ROUNDS"] ?? 2);
const make = stages();

it(
  "close of a busy lane never rejects, and everything that was at work hears why",
  async () => {
    const s = make({ guest: "agent" });
    const r = await s.run(
      `
      import { existsSync, mkdirSync, writeFileSync } from "node:fs";
      import { setTimeout as sleep } from "node:timers/promises";
      const { createLane } = await import(PACKAGE);
      writeFileSync(WT + "/big", Buffer.alloc(150e6, "x"));
      mkdirSync(WT + "/out");
      const closes = [], codes = [], settled = [], ms = [];
      for (let round = 0; round < ${ROUNDS}; round++) {
        const lane = await createLane({ ...OPTIONS, maxCopyOutBytes: 2 ** 30 });
        let lines = 0;
        const noise = "i=0; while :; do i=$((i + 1)); echo line $i of some length; done";
        const calls = [
          lane.exec(noise, { onLine: () => { lines++; } }),
          lane.exec(noise, { onLine: async () => sleep(1) }), // a slow reader
          lane.exec("trap '' TERM; for i in $(seq 100); do sleep 1; done"), // ends by itself: no VM's end ends it here
          lane.exec("cat >/dev/null; sleep 100", { stdin: "x".repeat(1e6) }),
          lane.exec("sleep 100"),
          lane.copyIn(WT + "/big", WT + "/in-" + round),
          lane.copyFileOut(WT + "/big", WT + "/out/back-" + round),
        ].map((p) => p.then(() => "done", (e) => e.code));
        for (let i = 0; i < 500 && lines === 0; i++) await sleep(10);
        await sleep(round * 120 % 700);
        const began = performance.now();
        const twice = Promise.allSettled([lane.close(), lane.close()]);
        const done = await Promise.allSettled([twice, ...calls]);
        ms.push(Math.round(performance.now() - began));
        closes.push(...(await twice).map((c) => c.status));
        codes.push(...done.slice(1).map((d) => d.value));
        closes.push(...(await Promise.allSettled([lane.close()])).map((c) => c.status));
        settled.push(existsSync(OPTIONS.home + "/lima/" + lane.name));
      }
      report("closes", [...new Set(closes)]);
      report("count", closes.length);
      report("codes", [...new Set(codes)].sort());
      report("left", [...new Set(settled)]);
      report("ms", ms);`,
      {},
      100_000 + ROUNDS * 30_000,
    );
    expect(r.err).toBe("");
    console.log(`close of ${ROUNDS} busy lanes, and all calls at work settled after ms: ${String(r.said["ms"])}`);
    expect(r.said["closes"]).toEqual(["fulfilled"]);
    expect(r.said["count"]).toBe(3 * ROUNDS);
    expect(r.said["left"]).toEqual([false]);
    // A copy may have been over before, and nothing else.
    expect(["LANE_CLOSED", "done"]).toEqual(expect.arrayContaining(r.said["codes"] as string[]));
    expect(r.said["codes"]).toContain("LANE_CLOSED");
    expect(r.status).toBe(0);
    expect(s.left()).toEqual([]);
  },
  120_000 + ROUNDS * 30_000,
);
