// SPDX-License-Identifier: Apache-2.0
// Descriptors, threads, resources and memory stay what they are over addons loaded and unloaded, and over lanes.
import { beforeAll, describe, expect, it, vi } from "vitest";
import type { Stage } from "./support/stage.js";
import { stages } from "./support/stages.js";
import { KIT, type Held } from "./support/threads.js";

// Many processes after another, on machines that are busy.
vi.setConfig({ testTimeout: 60_000 });

// Nightly, the whole of it. A round that kept an addon would cost more than a megabyte, so that a few show it.
const long = process.env["AL_LONG"] === "1";
const ROUNDS = long ? 50 : 25, LANES = long ? 4 : 2;
const stage = stages();
let s: Stage;
beforeAll(() => {
  s = stage();
});

describe("nothing grows", () => {
  it(`over ${ROUNDS} rounds of loading and unloading the addon, however a worker ends`, async () => {
    const r = await s.run(`${KIT}
      const engine = PACKAGE.replace("index.js", "engine.js");
      const body = \`const { engine } = await import("\${engine}"); const e = engine();\`;
      const ends = [
        body + "say((await e.request('errors')).length > 10);",
        body + "await e.request('errors'); say(true); e.close(500);",
        body + "for (let i = 0; i < 20; i++) e.request('errors').catch(() => {}); say(true); process.exit(0);",
        body + "for (let i = 0; i < 20; i++) e.request('errors').catch(() => {}); say(true); await new Promise((ok) => setTimeout(ok, 60000));",
        body + "say(true); setTimeout(() => { throw new Error('expected'); });",
      ];
      let rounds = 0, first;
      for (; rounds < ${ROUNDS}; rounds++) {
        if (rounds === 10) first = await settled();
        const thread = new Thread(ends[rounds % ends.length]);
        const expected = (e) => { if (e.message !== "expected") throw e; };
        const over = thread.ended.catch(expected);
        await thread.hears(true).catch(expected); // its end may come before its word
        if (rounds % ends.length === 3) await thread.worker.terminate();
        await over;
      }
      report("rounds", rounds); report("first", first); report("last", await settled());`);
    expect(r.err).toBe("");
    expect(r.said["rounds"]).toBe(ROUNDS);
    const { first, last } = r.said as unknown as Record<"first" | "last", Held>;
    expect(last).toMatchObject({ descriptors: first.descriptors, threads: first.threads, resources: first.resources });
    // Node itself keeps some of each worker; a core engine and its buffers would be more than a megabyte per round.
    expect(last.resident - first.resident).toBeLessThan(12 * 1024);
  });

  it(`over ${2 * LANES} lanes in one process and ${LANES} in workers`, async () => {
    const r = await s.run(`${KIT}
      const one = async () => { const lane = await create(); await lane.exec("head -c 1000000 /dev/zero"); await lane.exec("seq 1 1000", { onLine() {} }); await lane.close(); };
      const two = async () => { const t = new Thread("const lane = await create(); await lane.exec('seq 1 1000'); say('ok'); process.exit(0)"); await t.hears("ok"); await t.ended; };
      await one(); await two(); await one();
      const first = await settled();
      for (let i = 0; i < ${LANES}; i++) await Promise.all([one(), two(), one()]);
      report("first", first); report("last", await settled());`);
    expect(r.err).toBe("");
    const { first, last } = r.said as unknown as Record<"first" | "last", Held>;
    expect(last).toMatchObject({ descriptors: first.descriptors, threads: first.threads, resources: first.resources });
    expect(last.resident - first.resident).toBeLessThan(16 * 1024);
    expect(s.left()).toEqual([]);
  });
});
