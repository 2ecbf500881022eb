// SPDX-License-Identifier: Apache-2.0
// Handles that nobody can reach any more: their lanes are closed by the garbage collector, and no others.
import { expect, it, vi } from "vitest";
import { stages } from "./support/stages.js";

// Each starts processes and some a few lanes, on a machine that may be busy.
vi.setConfig({ testTimeout: 100_000 });

const stage = stages();

const KIT = `
  import { setFlagsFromString } from "node:v8";
  import { runInNewContext } from "node:vm";
  import { setTimeout as sleep } from "node:timers/promises";
  import { readdirSync } from "node:fs";
  setFlagsFromString("--expose-gc");
  const gc = runInNewContext("gc");
  const { createLane } = await import(PACKAGE);
  const lanes = () => readdirSync(OPTIONS.home + "/lima").filter((n) => n.startsWith("agent-lane-"));
  const events = [];
  const onEvent = (e) => events.push([e.type, e.option ?? e.message ?? ""]);
  /** Collects until it is so, at most a minute. */
  async function collect(check) {
    for (const end = Date.now() + 60_000; Date.now() < end; await sleep(50)) { gc(); if (check()) return true; }
    return false;
  }
`;

async function run(script: string): Promise<Record<string, never>> {
  const s = stage({ guest: "agent" });
  const r = await s.run(KIT + script, {}, 80_000);
  expect(r.err).toBe("");
  expect(r.status).toBe(0);
  expect(s.left()).toEqual([]);
  return r.said;
}

it("a lane whose handle was dropped is closed, and that is said", async () => {
  const said = await run(`
    const kept = await createLane(OPTIONS);
    await (async () => { await (await createLane({ ...OPTIONS, onEvent })).exec("true"); })();
    report("two", lanes().length);
    report("gone", await collect(() => lanes().length === 1 && events.some(([type]) => type === "closed")));
    report("events", events.slice(-3));
    report("kept", (await kept.exec("echo fine")).stdout);
    await kept.close();
  `);
  expect(said).toMatchObject({ two: 2, gone: true, kept: "fine\n" });
  expect(said["events"]).toEqual([["warning", "handle"], ["closing", expect.anything()], ["closed", expect.anything()]]);
});

it("so is a provider's, long before the sync-in watchdog", async () => {
  const said = await run(`
    await (async () => { await create({ onEvent, syncInTimeoutSeconds: 3600 }); })();
    report("gone", await collect(() => lanes().length === 0));
  `);
  expect(said["gone"]).toBe(true);
});

it("a command, a process and a loop over lines keep theirs", async () => {
  const said = await run(`
    const go = OPTIONS.worktreePath + "/go";
    const wait = "while [ ! -e " + go + " ]; do sleep 0.05; done; echo done";
    const exec = (async () => (await createLane({ ...OPTIONS, onEvent })).exec(wait))();
    const spawned = (async () => (await createLane({ ...OPTIONS, onEvent })).spawn(wait))();
    const lines = (async () => { const l = (await createLane({ ...OPTIONS, onEvent })).lines("echo first; " + wait); await l.next(); return l; })();
    const running = await spawned, loop = await lines;
    report("begun", lanes().length);
    for (let i = 0; i < 40; i++) { gc(); await sleep(50); }
    report("three", lanes().length);
    (await import("node:fs")).writeFileSync(go, "");
    report("exec", (await exec).stdout);
    let out = ""; for await (const d of running.stdout) out += d;
    report("spawn", [out, (await running.exited).exitCode]);
    report("lines", (await loop.next()).value);
    await loop.return();
  `);
  expect(said).toMatchObject({ three: 3, exec: "done\n", spawn: ["done\n", 0], lines: "done" });
});

it("one that was closed is not warned of", async () => {
  const said = await run(`
    await (async () => { const lane = await createLane({ ...OPTIONS, onEvent }); await lane.close(); })();
    let collected = false;
    const registry = new FinalizationRegistry(() => (collected = true));
    registry.register({}, 0);
    await collect(() => collected);
    for (let i = 0; i < 10; i++) { gc(); await sleep(20); }
    report("collected", [collected, typeof registry]);
    report("warned", events.filter(([type]) => type === "warning"));
  `);
  expect(said).toEqual({ collected: [true, "object"], warned: [] });
});
