// SPDX-License-Identifier: Apache-2.0
// The lifetime of a lane, in real time: a minute is the shortest there is.
import { afterAll, expect, it } from "vitest";
import { Stage } from "./support/stage.js";

const s = new Stage();
s.scenario({});
afterAll(() => s.remove());

it("a lane is destroyed when timeoutMinutes are over, whatever runs in it", async () => {
  const r = await s.run(`
    const events = [];
    const lane = await create({ timeoutMinutes: 1, onEvent: (e) => events.push(e.type) });
    const t0 = Date.now();
    const running = failure(() => lane.exec("sleep 100"));
    report("running", await Promise.race([running, new Promise((ok) => setTimeout(ok, 75000, "nothing happened"))]));
    report("seconds", Math.round((Date.now() - t0) / 1000));
    report("after", await failure(() => lane.exec("true")));
    for (let i = 0; i < 500 && !events.includes("closed"); i++) await new Promise((ok) => setTimeout(ok, 10));
    report("closed", events.includes("closed"));`);
  expect(r.said).toMatchObject({ running: { code: "LANE_EXPIRED" }, closed: true });
  expect((r.said["after"] as { code: string }).code).toMatch(/^LANE_(EXPIRED|CLOSED)$/);
  expect(r.said["seconds"]).toBeLessThanOrEqual(70);
  expect(r.status).toBe(0);
  expect(s.left()).toEqual([]);
}, 120_000);
