// SPDX-License-Identifier: Apache-2.0
// Several processes of one user: four lanes of two at once, places for VMs in order, BUSY with the holders' names.
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { Stage, type Outcome } from "./support/stage.js";
import { write } from "./support/image.mjs";

// Many processes after another, on machines that are busy.
vi.setConfig({ testTimeout: 120_000 });

const ROUNDS = Number(process.env["AL_ROUNDS"] ?? 2);

let s: Stage;
const children: Owner[] = [];
beforeEach(() => {
  s = new Stage();
  s.scenario({ guest: "agent" });
});
afterEach(async () => {
  for (const { child } of children) child.kill("SIGKILL");
  await Promise.all(children.splice(0).map((c) => c.ended));
  s.remove();
});

async function until(what: string, check: () => boolean): Promise<void> {
  for (const end = Date.now() + 60_000; !check(); await sleep(50))
    if (Date.now() > end) throw new Error(`${what}: not within 60 s`);
}

/** A process; what it reports is heard while it runs. */
class Owner {
  readonly child;
  readonly ended: Promise<Outcome>;
  #out = "";

  constructor(script: string, timeout?: number) {
    ({ child: this.child, ended: this.ended } = s.start(script, {}, timeout));
    this.child.stdout?.on("data", (data: Buffer) => (this.#out += data.toString()));
    children.push(this);
  }

  get pid(): string {
    return String(this.child.pid);
  }

  get ends(): boolean {
    return this.child.exitCode !== null || this.child.signalCode !== null;
  }

  /** Values of the reports of that name, as they came. */
  heard(name: string): unknown[] {
    const reports = this.#out.split("\n").filter((l) => l.startsWith("[\"") && l.endsWith("]"));
    return reports
      .map((l) => JSON.parse(l) as [string, unknown])
      .filter(([n]) => n === name)
      .map(([, value]) => value);
  }

  async hears(name: string): Promise<unknown> {
    await until(`"${name}" of process ${this.pid}`, () => this.heard(name).length > 0 || this.ends);
    expect(this.heard(name), this.#out).not.toEqual([]);
    return this.heard(name)[0];
  }
}

/** A process with one lane, closed when asked; reports lane events, "in" with the lane's name, "out", "error". */
class Holder extends Owner {
  static #count = 0;
  readonly #file: string;

  constructor(options: object) {
    const file = join(s.work, `close-${++Holder.#count}`);
    super(`
      import { existsSync } from "node:fs";
      let name;
      const error = await failure(async () => {
        const onEvent = (e) => { name = e.lane; report(e.type); };
        const lane = await create({ ...${JSON.stringify(options)}, onEvent });
        report("in", name);
        while (!existsSync(${JSON.stringify(file)})) await new Promise((ok) => setTimeout(ok, 50));
        await lane.close();
        report("out");
      });
      if (error !== "it succeeded") report("error", error);`);
    this.#file = file;
  }

  async close(): Promise<void> {
    write(this.#file, "");
    await this.hears("out");
    expect((await this.ended).status).toBe(0);
  }

  /** It stands in the queue, not only about to. */
  async waits(): Promise<void> {
    await this.hears("queued");
    await until(`a ticket of process ${this.pid}`, () => waiting().includes(this.pid));
  }
}

const waiting = (): string[] => s.sql("SELECT pid FROM waiters ORDER BY ticket");
/** Processes in the order in which they were given places, which is that of the transactions. */
const admitted = (): string[] => s.sql("SELECT owner_pid FROM lanes ORDER BY id");
const open = (): string[] => s.sql("SELECT name FROM lanes WHERE state <> 'closed'");

describe("four lanes of two processes", () => {
  it("run at the same time, each with its own bytes, and are all gone afterwards", async () => {
    const go = join(s.work, "go");
    const script = `
      import { existsSync } from "node:fs";
      const { engine } = await import(new URL("engine.js", PACKAGE));
      const { oneOfSeveral } = await import(LOAD);
      report("faults", await oneOfSeveral((o) => create({ ...o, maxConcurrentVms: 4 }), {
        count: 2,
        engine: engine(),
        say: (name) => report("here", name),
        go: () => existsSync(${JSON.stringify(go)}),
      }));`;
    const both = [new Owner(script), new Owner(script)];
    const here = (): unknown[] => both.flatMap((o) => o.heard("here"));
    await until("a command in each of four lanes", () => here().length === 4 || both.some((o) => o.ends));
    expect(s.left().sort()).toEqual(here().sort());
    expect(open()).toHaveLength(4);
    write(go, "");
    for (const o of both) {
      const r = await o.ended;
      expect(r.err).toBe("");
      expect(r.said["faults"]).toEqual([]);
      expect(r.status).toBe(0);
    }
    expect(new Set(admitted()).size).toBe(2);
    expect(open()).toEqual([]);
    expect(s.left()).toEqual([]);
    await until(`the end of ${s.processes()}`, () => s.processes().length === 0);
  });
});

describe("admission across processes", () => {
  it("BUSY names every holder and its process, once the time left is too short for a boot", async () => {
    const a = new Holder({}), b = new Holder({});
    const names = [await a.hears("in"), await b.hears("in")];
    const late = new Holder({ maxConcurrentVms: 2, startTimeoutSeconds: 8 });
    const error = (await late.hears("error")) as { code: string; message: string; cure: string; step: string };
    expect(error).toMatchObject({ code: "BUSY", step: "admission" });
    expect(error.message).toContain(`${String(names[0])} (ready, process ${a.pid})`);
    expect(error.message).toContain(`${String(names[1])} (ready, process ${b.pid})`);
    expect(error.message).toContain("maxConcurrentVms is 2");
    expect(error.message).toContain("within 4 s (startTimeoutSeconds is 8, of which 4 s are kept for the start itself)");
    expect(error.cure).toMatch(/\w+ \w+/);
    expect((await late.ended).status).toBe(0);
    await until("that it has left the queue", () => waiting().length === 0);
    expect(admitted().sort()).toEqual([a.pid, b.pid].sort());
    await Promise.all([a.close(), b.close()]);
    expect(s.left()).toEqual([]);
  });

  it("first come, first served, though a later one has the larger number", async () => {
    const a = new Holder({ maxConcurrentVms: 1 });
    await a.hears("in");
    const b = new Holder({ maxConcurrentVms: 1 });
    await b.waits();
    const c = new Holder({ maxConcurrentVms: 8 });
    await c.waits();
    const d = new Holder({ maxConcurrentVms: 1 });
    await d.waits();
    await sleep(1500); // each of them asks some times
    expect(waiting()).toEqual([b.pid, c.pid, d.pid]);
    expect(admitted()).toEqual([a.pid]);
    await a.close();
    await b.hears("in");
    await c.hears("in");
    expect(waiting()).toEqual([d.pid]);
    await b.close();
    await c.close();
    await d.hears("in");
    await d.close();
    expect(admitted()).toEqual([a, b, c, d].map((o) => o.pid));
    expect(s.left()).toEqual([]);
  });

  // AL_ROUNDS: lanes of each of six that want one at the same time, two in each process.
  it("three processes never have more than two VMs, seen from outside", async () => {
    const census = join(s.home, "run", "census");
    write(census, "", 0o666);
    const script = `
      const one = async () => {
        for (let i = 0; i < ${ROUNDS}; i++) {
          const lane = await create({ maxConcurrentVms: 2, startTimeoutSeconds: 600 });
          await lane.exec("true");
          await lane.close();
        }
      };
      report("error", await failure(() => Promise.all([one(), one()])));`;
    const owners = [1, 2, 3].map(() => new Owner(script, 100_000 + ROUNDS * 30_000));
    let most = 0, looks = 0;
    while (!owners.every((o) => o.ends)) {
      most = Math.max(most, s.processes().filter((line) => line.includes("limactl.mjs qemu ")).length);
      looks++;
      await sleep(20);
    }
    for (const o of owners) expect((await o.ended).said).toEqual({ error: "it succeeded" });
    const counts = readFileSync(census, "utf8").split("\n").filter(Boolean).map(Number);
    console.log(`${counts.length} VMs of three processes; at most ${Math.max(...counts)} at a start, ${most} in ${looks} looks`);
    expect(counts).toHaveLength(6 * ROUNDS);
    expect(Math.max(...counts)).toBe(2);
    expect(most).toBeGreaterThan(0);
    expect(most).toBeLessThanOrEqual(2);
    expect(open()).toEqual([]);
    expect(s.left()).toEqual([]);
  }, 120_000 + ROUNDS * 40_000);

  it("nobody waits behind a process that was killed in the queue, or for the lane of one", async () => {
    const a = new Holder({ maxConcurrentVms: 1 });
    const name = await a.hears("in");
    const b = new Holder({ maxConcurrentVms: 1 });
    await b.waits();
    const c = new Holder({ maxConcurrentVms: 1 });
    await c.waits();
    b.child.kill("SIGKILL");
    await b.ended;
    a.child.kill("SIGKILL");
    await a.ended;
    await c.hears("in");
    expect(s.left()).not.toContain(name);
    await c.close();
    expect(admitted()).toEqual([a.pid, c.pid]);
    expect(existsSync(join(s.home, "lima", String(name)))).toBe(false);
    expect(s.left()).toEqual([]);
  });
});
