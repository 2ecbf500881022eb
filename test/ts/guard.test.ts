// SPDX-License-Identifier: Apache-2.0
// What a lane may take of the host: growth of its files, Lima's logs, space that stays free.
import { expect, it, vi } from "vitest";
import { canMount, stages } from "./support/stages.js";

// Each starts processes and some a few lanes, on a machine that may be busy.
vi.setConfig({ testTimeout: 120_000 });

const stage = stages();

const KIT = `
  import { appendFileSync, statSync, writeFileSync } from "node:fs";
  import { setTimeout as sleep } from "node:timers/promises";
  const { createLane } = await import(PACKAGE);
  const dir = (lane) => OPTIONS.home + "/lima/" + lane.name + "/";
  const until = async (check) => {
    for (const end = Date.now() + 60_000; Date.now() < end; await sleep(100)) if (check()) return true;
    return false;
  };
  const watched = async (o) => {
    const events = [];
    const lane = await createLane({ ...OPTIONS, ...o, onEvent: (e) => events.push(e) });
    return { lane, events, of: (type) => events.filter((e) => e.type === type) };
  };
`;

async function run(script: string, disk?: string): Promise<Record<string, never>> {
  const s = stage({ guest: "agent" }, disk);
  const r = await s.run(KIT + script);
  expect(r.err).toBe("");
  expect(r.status).toBe(0);
  expect(s.left()).toEqual([]);
  return r.said;
}

it("a lane whose files grow too much is closed with RESOURCE_LIMIT, and no other", async () => {
  const said = await run(`
    const a = await watched({ maxDiskGrowthGiB: 0.01 }), b = await watched({});
    await sleep(6000); // both have been looked at
    const busy = failure(() => a.lane.exec("sleep 100"));
    for (const { lane } of [a, b]) writeFileSync(dir(lane) + "more", Buffer.alloc(30e6, "x"));
    report("busy", await busy);
    report("closed", await until(() => a.of("closed").length === 1));
    report("other", (await b.lane.exec("echo fine")).stdout);
    await b.lane.close();
  `);
  expect(said["busy"]).toMatchObject({ code: "RESOURCE_LIMIT", message: expect.stringMatching(/maxDiskGrowthGiB is 0\.01/), cure: expect.stringMatching(/Raise/) });
  expect(said).toMatchObject({ closed: true, other: "fine\n" });
});

it("logs of Lima's host agent are emptied, once said, and the lane goes on", async () => {
  const said = await run(`
    const a = await watched({ maxHostLogMiB: 1 });
    writeFileSync(dir(a.lane) + "ha.stderr.log", Buffer.alloc(3e6, "x"));
    const size = () => statSync(dir(a.lane) + "ha.stderr.log").blocks * 512;
    report("emptied", await until(() => size() < 1e6));
    report("told", await until(() => a.of("warning").length === 1));
    writeFileSync(dir(a.lane) + "ha.stderr.log", Buffer.alloc(3e6, "x"));
    report("again", await until(() => size() < 1e6));
    report("warnings", a.of("warning").map((e) => [e.option, e.lane === a.lane.name]));
    report("fine", (await a.lane.exec("echo fine")).stdout);
    await a.lane.close();
  `);
  expect(said).toMatchObject({ emptied: true, told: true, again: true, fine: "fine\n", warnings: [["maxHostLogMiB", true]] });
});

it("without space on the host no lane is made", async () => {
  const said = await run(`report("r", await failure(() => createLane({ ...OPTIONS, minHostFreeGiB: 60000 })));`);
  expect(said["r"]).toMatchObject({
    code: "HOST_DISK_FULL",
    message: expect.stringMatching(/GiB are free in .*minHostFreeGiB keeps 60000\.00 GiB/),
    cure: expect.stringMatching(/agent-lane ls/),
  });
});

// The bound lies a little below what is free at first, and a file beside the lanes takes that: on a file system of its
// own, for what others on the machine write and remove meanwhile moves gigabytes.
it.runIf(canMount).each(["close", "event"])("space that becomes low during a run: onLowSpace %s", async (policy) => {
  const said = await run(`
    import { statfsSync } from "node:fs";
    const { bavail, bsize } = statfsSync(OPTIONS.home);
    const free = (bavail * bsize) / 2 ** 30;
    // Just below what is free now; then files take it.
    const o = { minHostFreeGiB: free - 0.05, onLowSpace: ${JSON.stringify(policy)} };
    const small = await watched(o), big = await watched(o);
    const fill = OPTIONS.home + "/filler";
    // Both are worth closing; one takes more.
    for (const [lane, bytes] of [[small.lane, 20e6], [big.lane, 60e6]]) writeFileSync(dir(lane) + "more", Buffer.alloc(bytes, "x"));
    for (let i = 0; i < 4; i++) appendFileSync(fill, Buffer.alloc(50e6, "x"));
    report("told", await until(() => small.of("warning").length === 1 && big.of("warning").length === 1));
    report("what", big.of("warning").map((e) => e.option));
    if (o.onLowSpace === "close") await until(() => big.of("closing").length === 1);
    else await sleep(12_000);
    report("why", big.of("closing").map((e) => e.message));
    (await import("node:fs")).rmSync(fill); // before it is the other's turn
    report("closed", o.onLowSpace === "close" && (await until(() => big.of("closed").length === 1)));
    report("small", (await small.lane.exec("echo fine")).stdout);
    for (const { lane } of [small, big]) await lane.close();
  `, "600m");
  expect(said).toMatchObject({ told: true, what: ["minHostFreeGiB"], small: "fine\n", closed: policy === "close" });
  expect(said["why"]).toEqual(policy === "close" ? [expect.stringMatching(/this lane takes most of it/)] : []);
});
