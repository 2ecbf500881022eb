// SPDX-License-Identifier: Apache-2.0
// Load on a lane whose guest is the real lane agent as a local process: commands that overlap, thousands of commands.
import { expect, it } from "vitest";
import type { Stage } from "./support/stage.js";
import { stages } from "./support/stages.js";
import { KIT } from "./support/threads.js";

// Nightly, the whole of it.
const long = process.env["AL_LONG"] === "1";
const ROUNDS = long ? 40 : 8, COMMANDS = long ? 12_000 : 3_000;
const MINUTES = 60_000;
const make = stages();
const stage = (): Stage => make({ guest: "agent", lifeMs: 10 * MINUTES });

it(`25 commands at once, ${ROUNDS} times over: no byte is mixed or lost`, async () => {
  const s = stage();
  const r = await s.run(
    `
    const { engine } = await import(new URL("engine.js", PACKAGE));
    const { overlap } = await import(LOAD);
    let name;
    const lane = await create({ onEvent: (e) => (name = e.lane) });
    report("seen", await overlap(lane, { name, engine: engine(), rounds: ${ROUNDS} }));
    await lane.close();`,
    {},
    5 * MINUTES,
  );
  expect(r.err).toBe("");
  const { faults, came, should, ...rest } = r.said["seen"] as Record<string, unknown>;
  expect(faults).toEqual([]);
  expect(came).toBe(should);
  expect(rest["execs"]).toBe(25 * ROUNDS);
  expect(r.status).toBe(0);
  expect(s.left()).toEqual([]);
}, 5 * MINUTES);

it(`${COMMANDS} commands on one lane: descriptors, threads and memory stay, here and in the agent`, async () => {
  const s = stage();
  const r = await s.run(
    `${KIT}
    const { growth, many } = await import(LOAD);
    const lane = await create();
    const seen = await many(lane, { total: ${COMMANDS}, first: ${COMMANDS / 4}, gc });
    report("seen", seen); report("grown", growth(seen));
    await lane.close();`,
    { MALLOC_ARENA_MAX: "1" },
    10 * MINUTES,
  );
  expect(r.err).toBe("");
  expect(r.said["seen"]).toMatchObject({ wrong: 0, total: COMMANDS });
  expect(r.said["grown"]).toEqual([]);
  expect(r.status).toBe(0);
  expect(s.left()).toEqual([]);
}, 10 * MINUTES);
