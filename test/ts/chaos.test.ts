// SPDX-License-Identifier: Apache-2.0
// scripts/chaos can fail: it sees a process that is left, a directory, a decoy that was touched; and it plans what it says.
import { spawn, type ChildProcess } from "node:child_process";
import { appendFileSync, mkdirSync, mkdtempSync, renameSync, rmSync, utimesSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { plantDecoys } from "../chaos/decoys.mjs";
import { EDGES, VICTIMS } from "../chaos/edges.mjs";
import { FAULTS } from "../chaos/fault.mjs";
import { plan, RANDOM, TIMES } from "../chaos/plan.mjs";
import { isBad } from "../chaos/results.mjs";
import { entries, laneProcesses, startOf } from "../chaos/world.mjs";

const NAME = "agent-lane-00tpbejj-z81vmpbp";
interface Round { seed: number; edge: string; victim: string; guest: string; instant?: number }

describe.runIf(process.platform === "linux")("the look from outside", () => {
  let home: string;
  const children: ChildProcess[] = [];
  beforeEach(() => {
    home = mkdtempSync(join(tmpdir(), "chaos-home-"));
    for (const dir of ["lima", "run"]) mkdirSync(join(home, dir));
  });
  afterEach(() => {
    for (const c of children.splice(0)) c.kill("SIGKILL");
    rmSync(home, { recursive: true, force: true });
  });
  const pretend = async (argv0: string, ...args: string[]): Promise<number> => {
    const child = spawn("/bin/sh", ["-c", "read -r x", "sh", ...args], { argv0, stdio: ["pipe", "ignore", "ignore"] });
    children.push(child);
    await new Promise((ok) => child.once("spawn", ok));
    return child.pid!;
  };

  it("finds each kind of a lane's process, and nobody else's", async () => {
    const dir = `${home}/lima/${NAME}`, other = `${dir.slice(0, -1)}q`;
    const pids = {
      qemu: await pretend("qemu-system-x86_64", "-name", `lima-${NAME}`, "-pidfile", `${dir}/qemu.pid`),
      hostagent: await pretend("limactl", "hostagent", "--pidfile", `${dir}/ha.pid`, NAME),
      ssh: await pretend(`ssh: ${dir}/ssh.sock [mux]`),
      limactl: await pretend("/usr/bin/limactl", "start", NAME),
      other: await pretend("sleep", `${dir}/x`),
    };
    await pretend("qemu-system-x86_64", "-name", `lima-${NAME}x`, "-pidfile", `${other}/qemu.pid`);
    await pretend("limactl", "start", `${NAME}-2`);
    const found = laneProcesses(home, NAME) as { pid: number; kind: string }[];
    expect(Object.fromEntries(found.map((p) => [p.kind, p.pid]))).toEqual(pids);
    expect(found).toHaveLength(5);
    expect(laneProcesses(home, NAME, [pids.ssh])).toHaveLength(4);
  });

  it("finds what a lane leaves below the home", () => {
    mkdirSync(join(home, "lima", "_config"));
    expect(entries(home)).toEqual([]);
    mkdirSync(join(home, "lima", `_tmp.${NAME}`));
    writeFileSync(join(home, "run", "x.sock"), "");
    expect(entries(home)).toEqual([`lima/_tmp.${NAME}`, "run/x.sock"]);
  });

  const touches: [string, (decoys: ReturnType<typeof plantDecoys>) => void][] = [
    ["a file that was changed", () => appendFileSync(join(home, "lima", `${NAME}x`, "disk"), "!")],
    ["a directory that is gone", () => rmSync(join(home, "lima", `_tmp.${NAME.slice(0, -1)}a`), { recursive: true })],
    ["a directory that was moved and made again", () => {
      renameSync(join(home, "lima", `${NAME}x`), join(home, "aside"));
      mkdirSync(join(home, "lima", `${NAME}x`));
    }],
    ["a file outside", () => utimesSync(join(home, "outside", NAME, "precious"), 1, 1)],
    ["a process that was killed", (d) => process.kill(d.processes[0]!.pid!, "SIGKILL")],
  ];
  it.each(touches)("sees %s", async (_, touch) => {
    const decoys = plantDecoys(home, join(home, "outside"), NAME);
    try {
      expect(decoys.touched()).toEqual([]);
      touch(decoys);
      for (let i = 0; i < 100 && decoys.touched().length === 0; i++) await new Promise((ok) => setTimeout(ok, 20));
      expect(decoys.touched()).toHaveLength(1);
    } finally {
      decoys.remove();
    }
  });

  it("does not take a dead process for a living one", () => {
    expect(startOf(process.pid)).toMatch(/^\d+$/);
    expect(startOf(2 ** 22 + 1)).toBe("");
  });
});

describe("the plan", () => {
  const all = (options: object): Round[] => plan({ seed: 7, done: [], keeper: true, resume: false, ...options }).rounds;
  const result = (r: Round, more = {}) => ({ ...r, survivors: [], leftovers: [], foreign: [], ...more });

  it("has every edge and victim three times, and then nothing more", () => {
    const rounds = all({ resume: true });
    const times = (edge: string, victim: string) => rounds.filter((r) => r.edge === edge && r.victim === victim).length;
    for (const e of EDGES) for (const v of VICTIMS) expect([e.name, v, times(e.name, v)]).toEqual([e.name, v, TIMES]);
    for (const f of Object.keys(FAULTS)) expect(times("fault", f)).toBe(TIMES);
    expect(rounds.filter((r) => r.edge === "random")).toHaveLength(RANDOM);
    expect(rounds.some((r) => r.guest === "hostile" && r.edge === "exec")).toBe(true);
    expect(all({ resume: true, done: rounds.map((r) => result(r)) })).toEqual([]);
    expect(all({ resume: true, done: rounds.slice(5).map((r) => result(r)) })).toHaveLength(5);
  });

  it("does not ask again for a victim that does not exist at an edge", () => {
    const done = [{ ...all({ edge: "registered", victim: "qemu" })[0]!, absent: true }];
    expect(all({ resume: true, done }).filter((r) => r.edge === "registered" && r.victim === "qemu")).toEqual([]);
  });

  it("comes again with its seed, and skips with words what needs a keeper", () => {
    expect(all({ resume: true })).toEqual(all({ resume: true }));
    expect(all({ edge: "random", seed: 99, rounds: "1" })[0]!.seed).toBe(99);
    const none = plan({ seed: 7, done: [], keeper: false, resume: true });
    expect(none.skipped.map(([what]: [string, string]) => what)).toEqual(["victim keeper", "victim both", "victim owner-stop"]);
    expect(new Set(all({}).map((r) => r.edge)).size).toBe(EDGES.length);
  });

  it("calls bad whatever is left, touched or wrong", () => {
    const fine = result(all({})[0]!);
    expect(isBad(fine)).toBe(false);
    for (const more of [{ survivors: ["qemu"] }, { leftovers: ["x"] }, { foreign: ["y"] }, { sweep: "no" }, { wrong: "z" }])
      expect(isBad({ ...fine, ...more })).toBe(true);
  });
});
