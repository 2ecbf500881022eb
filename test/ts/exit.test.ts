// SPDX-License-Identifier: Apache-2.0
// The process's end, in processes of their own on a scripted limactl: nothing holds it up or changes it, and lanes are gone.
import { setTimeout as sleep } from "node:timers/promises";
import { afterEach, describe, expect, it } from "vitest";
import { Stage } from "./support/stage.js";

const stages: Stage[] = [];
afterEach(() => stages.splice(0).forEach((s) => s.remove()));

function stage(scenario: object = {}): Stage {
  const s = new Stage();
  stages.push(s);
  s.scenario(scenario);
  return s;
}

/** What is left of lanes once ten seconds have passed, or nothing is: a limactl that was at work ends by itself. */
async function left(s: Stage): Promise<string[]> {
  const now = (): string[] => [...s.left(), ...s.processes()];
  for (const end = Date.now() + 10_000; now().length > 0 && Date.now() < end; ) await sleep(50);
  return now();
}

const SIGNALS = ["SIGINT", "SIGTERM", "SIGHUP"] as const;
const watched = `{ onEvent: (e) => report(e.type) }`;

/** Sends it a signal once it has said `at`. */
async function killed(script: string, at: string, signal: NodeJS.Signals, scenario: object = {}) {
  const s = stage(scenario);
  const { child, ended } = s.start(script);
  child.stdout?.on("data", (data: Buffer) => {
    if (data.toString().includes(`"${at}"`)) child.kill(signal);
  });
  return { ...(await ended), left: await left(s) };
}

describe("a signal", () => {
  it("is nobody's of ours to listen for, whatever we are at", async () => {
    const s = stage();
    const count = `${JSON.stringify(SIGNALS)}.map((name) => process.listenerCount(name))`;
    const r = await s.run(
      `const making = create(); report("making", ${count}); const lane = await making; report("open", ${count}); await lane.close(); report("closed", ${count});`,
    );
    expect(r.said).toEqual({ making: [0, 0, 0], open: [0, 0, 0], closed: [0, 0, 0] });
  });

  it.each(SIGNALS)("%s ends the process as always, and the lane goes with it", async (signal) => {
    const script = `const lane = await create(${watched}); lane.exec("sleep 100").catch((e) => report("error", e.message)); await new Promise(() => setTimeout(() => report("late"), 90_000));`;
    const r = await killed(script, "ready", signal);
    expect(r.signal).toBe(signal);
    // Whoever gets a signal says nothing more: nor do the calls that were in flight.
    expect(Object.keys(r.said)).not.toContain("error");
    expect(r.left).toEqual([]);
  });

  it("during a create ends the process, and what was made of the lane goes with it", async () => {
    const r = await killed(`report("error", await failure(() => create(${watched})));`, "booting", "SIGINT", { start: "hang" });
    expect(r.signal).toBe("SIGINT");
    expect(r.left).toEqual([]);
  });

  it("that somebody else handles is theirs, with the lane still there", async () => {
    const script = `const lane = await create();
      process.once("SIGINT", async () => { report("said", (await lane.exec("echo still")).stdout); process.exit(5); });
      report("up"); setTimeout(() => undefined, 90_000);`;
    const r = await killed(script, "up", "SIGINT");
    expect(r).toMatchObject({ status: 5, said: { said: "still\n" }, left: [] });
  });
});

describe("process.exit", () => {
  it("keeps its status, tells no call in flight, and the lane goes", async () => {
    const s = stage();
    const r = await s.run(
      `const lane = await create(); lane.exec("sleep 100").catch((e) => report("error", e.message)); setTimeout(() => process.exit(3), 100);`,
    );
    expect(r).toMatchObject({ status: 3, said: {} });
    expect(await left(s)).toEqual([]);
  });

  it("after an uncaught exception too", async () => {
    const s = stage();
    const r = await s.run(
      `await create(); process.on("uncaughtException", (e) => { report("caught", e.message); process.exit(4); }); setTimeout(() => { throw new Error("bug"); }, 50);`,
    );
    expect(r).toMatchObject({ status: 4, said: { caught: "bug" } });
    expect(await left(s)).toEqual([]);
  });

  // libuv is taken down inside exit(); a loop that then starts a child or hears of one's end would abort the process.
  it("at any moment of a create is no abort", async () => {
    const s = stage();
    const ends = [];
    for (let ms = 0; ms < 400; ms += 20) {
      const r = await s.run(
        `for (let i = 0; i < 3; i++) create().catch((e) => report("error", e.message)); setTimeout(() => process.exit(6), ${ms});`,
      );
      ends.push([r.status, r.signal, r.said]);
    }
    expect(ends).toEqual(ends.map(() => [6, null, {}]));
    expect(await left(s)).toEqual([]);
  });

  it("in the midst of a close is no abort, and the close is done", async () => {
    const s = stage();
    const ends = [];
    for (let ms = 0; ms < 100; ms += 20) {
      const r = await s.run(`const lane = await create(); lane.close(); setTimeout(() => process.exit(6), ${ms});`);
      ends.push([r.status, r.signal]);
    }
    expect(ends).toEqual(ends.map(() => [6, null]));
    expect(await left(s)).toEqual([]);
  });

  it("of the process ends workers' lanes as well", async () => {
    const s = stage({ start: "hang" });
    const r = await s.run(`
      import { Worker } from "node:worker_threads";
      create().catch((e) => report("error", e.message));
      new Worker(\`
        import { workerData, parentPort } from "node:worker_threads";
        const { lima } = await import(workerData.url);
        lima({ ...workerData.options, onEvent: (e) => parentPort.postMessage(e.type) }).create({ env: {} });\`,
        { eval: true, workerData: { url: PACKAGE, options: OPTIONS } }).on("message", (type) => { if (type === "booting") process.exit(8); });`);
    expect(r).toMatchObject({ status: 8, signal: null, said: {} });
    expect(await left(s)).toEqual([]);
  });
});

it("an idle lane does not hold the process, and is destroyed", async () => {
  const s = stage();
  const r = await s.run(`await create(); report("end", true);`);
  expect(r).toMatchObject({ status: 0, said: { end: true } });
  expect(await left(s)).toEqual([]);
});
