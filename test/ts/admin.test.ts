// SPDX-License-Identifier: Apache-2.0
// The commands that look after lanes, from another process than the owner's: ls, inspect, logs, events, close.
import { expect, it, vi } from "vitest";
import { argumentLines } from "../../lib/cli/commands/inspect.js";
import { stages } from "./support/stages.js";

// Each starts processes and some a few lanes, on a machine that may be busy.
vi.setConfig({ testTimeout: 100_000 });

const stage = stages();

const KIT = `
  import { spawn } from "node:child_process";
  import { appendFileSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
  import { setTimeout as sleep } from "node:timers/promises";
  const { createLane } = await import(PACKAGE);
  const CLI = new URL("cli/main.js", PACKAGE).pathname;
  function start(...args) {
    const where = ["--home", OPTIONS.home, ...(["close", "reap"].includes(args[0]) ? ["--limactl", OPTIONS.limactlPath] : [])];
    const child = spawn(process.execPath, [CLI, ...args, ...where], { stdio: ["ignore", "pipe", "pipe"] });
    let out = "", err = "";
    child.stdout.on("data", (d) => (out += d));
    child.stderr.on("data", (d) => (err += d));
    const ended = new Promise((ok) => child.on("close", (code, signal) => ok({ code: code ?? signal, out, err })));
    return Object.assign(child, { ended, said: () => out });
  }
  const cli = (...args) => start(...args).ended;
  const json = async (...args) => JSON.parse((await cli(...args, "--json")).out);
  const until = async (what, check) => {
    for (const end = Date.now() + 60_000; !check(); await sleep(50)) if (Date.now() > end) throw new Error(what + ": not within 60 s");
    return true;
  };
`;

async function run(script: string, scenario: object = {}): Promise<Record<string, never>> {
  const s = stage({ guest: "agent", ...scenario });
  s.addCommand();
  const r = await s.run(`${KIT}${script}`);
  expect(r.err).toBe("");
  expect(r.status).toBe(0);
  expect(s.left()).toEqual([]);
  return r.said;
}

it("ls and inspect say what a lane takes and what holds its limits up", async () => {
  const said = await run(`
    const lane = await createLane({ ...OPTIONS, network: "none", cpus: 4 });
    writeFileSync(OPTIONS.home + "/lima/" + lane.name + "/disk", Buffer.alloc(3_000_000, "x"));
    mkdirSync(OPTIONS.home + "/lima/somebody-elses");
    report("rows", await json("ls"));
    report("table", (await cli("ls")).out);
    report("one", await json("inspect", lane.name));
    report("secret", /content: "([0-9a-f]{64})"/.exec(readFileSync(OPTIONS.home + "/lima/" + lane.name + "/lima.yaml", "utf8"))[1]);
    report("text", (await cli("inspect", lane.name)).out);
    await lane.close();
    (await import("node:fs")).rmdirSync(OPTIONS.home + "/lima/somebody-elses");
    report("closed", await json("inspect", lane.name));
    report("pid", process.pid);
  `);
  const [row, ...more] = said["rows"] as Record<string, unknown>[];
  expect(more).toEqual([]); // the other instance of Lima is not ours
  expect(row).toMatchObject({ state: "ready", ownerAlive: true, ownerPid: said["pid"], network: "none", cpus: 4, memoryMiB: 1024 });
  expect(row!["diskBytes"]).toBeGreaterThan(3_000_000);
  expect(row!["memoryBytes"]).toBeGreaterThan(1_000_000);
  expect(row!["leftSeconds"]).toBeGreaterThan(3000);
  expect(said["table"]).toMatch(/^name +state +age +left +memory +disk +network +owner\nagent-lane-\S+ +ready +\d+ s +60 min +\d+ MiB of 1\.0 GiB +\d+ MiB +none +node \d+\n$/);

  const one = said["one"] as Record<string, never>;
  expect(one["lane"]).toMatchObject({ name: row!["name"], state: "ready" });
  expect((one["history"] as { to: string }[]).map((h) => h.to)).toEqual(["registered", "creating", "booting", "connecting", "ready"]);
  expect(one["settings"]).toMatchObject({ cpus: "4", mounts: "[]", "provision.path": "/run/agent-lane/proof" });
  expect(JSON.stringify(one) + (said["text"] as string)).not.toContain(said["secret"]);
  expect((one["processes"] as { kind: string }[]).map((p) => p.kind)).toEqual(expect.arrayContaining(["qemu", "warden", "hostagent"]));
  const enforced = Object.fromEntries((one["enforced"] as { what: string; enforced: boolean | null }[]).map((e) => [e.what, e.enforced]));
  expect(enforced).toMatchObject({ network: true, "host files": true, memory: true, cpus: true, "end with its owner": true, lifetime: true });
  expect(one["arguments"]).toEqual(expect.arrayContaining(["-netdev"]));
  expect(said["text"]).toMatch(/\nEnforced\nwhat +enforced +by\nnetwork +yes +QEMU runs with -netdev .*restrict=on/);
  expect(said["text"]).toMatch(/\nHistory\n[\s\S]* ready/);

  const closed = said["closed"] as Record<string, never>;
  expect(closed["lane"]).toMatchObject({ state: "closed", memoryBytes: null, diskBytes: null });
  expect(closed).toMatchObject({ settings: null, arguments: null, processes: [] });
});

it("what was not asked for is not said to be enforced", async () => {
  const said = await run(`
    const lane = await createLane(OPTIONS);
    report("one", await json("inspect", lane.name));
    await lane.close();
  `);
  const network = (said["one"]!["enforced"] as { what: string; enforced: boolean; by: string }[]).find((e) => e.what === "network");
  expect(network).toMatchObject({ enforced: false, by: expect.stringContaining("open") });
});

it("logs shows hostile bytes harmlessly, the last lines only, and follows no link", async () => {
  const said = await run(`
    const lane = await createLane(OPTIONS), dir = OPTIONS.home + "/lima/" + lane.name + "/";
    writeFileSync(dir + "serial.log", "one\\ntwo\\n\\x1b[2J\\x1b]0;owned\\x07 \\u202e\\n");
    writeFileSync(OPTIONS.home + "/precious", "host secret\\n");
    symlinkSync(OPTIONS.home + "/precious", dir + "serialp.log");
    report("all", await cli("logs", lane.name));
    report("guest", await cli("logs", lane.name, "--only", "guest", "-n", "2"));
    report("json", await json("logs", lane.name));
    await lane.close();
    report("closed", (await cli("logs", lane.name)).out);
  `);
  const all = said["all"] as { code: number; out: string };
  expect(all.code).toBe(0);
  expect(all.out).toContain("==> ha.stderr.log <==");
  expect(all.out).toContain('{"warden":');
  expect(all.out + JSON.stringify(said["json"])).not.toContain("host secret");
  expect(all.out).not.toMatch(/[\x1b\x07\u202e]/);
  expect((said["guest"] as { out: string }).out).toBe("==> serial.log (the last 2 lines) <==\ntwo\n\\x1b[2J\\x1b]0;owned\\x07 \\xe2\\x80\\xae\n");
  expect(said["closed"]).toMatch(/no such logs/);
});

it("close ends another process's lane: its calls hear why, and it is gone", async () => {
  const said = await run(`
    const events = [];
    const lane = await createLane({ ...OPTIONS, onEvent: (e) => events.push([e.type, e.message]) });
    const busy = failure(() => lane.exec("sleep 100"));
    await sleep(300);
    report("closed", await cli("close", lane.name));
    report("busy", await busy);
    report("later", await failure(() => lane.exec("true")));
    await until("the end", () => lane.closed);
    report("events", events.filter(([type]) => type.startsWith("clos")));
    report("rows", await json("ls"));
    report("again", await cli("close", lane.name));
    await lane.close();
  `);
  expect(said["closed"]).toMatchObject({ code: 0, err: "", out: expect.stringMatching(/^agent-lane-\S+ closed\n$/) });
  for (const call of ["busy", "later"])
    expect(said[call]).toMatchObject({ code: "LANE_CLOSED", message: expect.stringMatching(/agent-lane close/) });
  expect(said["events"]).toEqual([["closing", expect.stringMatching(/agent-lane close` by process \d+/)], ["closed", expect.anything()]]);
  expect(said["rows"]).toEqual([]);
  expect(said["again"]).toMatchObject({ code: 0, out: expect.stringMatching(/ closed already\n$/) });
});

it("reap --force tells a living owner first: its calls hear why", async () => {
  const said = await run(`
    const events = [];
    const lane = await createLane({ ...OPTIONS, onEvent: (e) => events.push([e.type, e.message]) });
    const busy = failure(() => lane.exec("sleep 100"));
    await sleep(300);
    report("kept", JSON.parse((await cli("reap", "--json")).out));
    report("reaped", JSON.parse((await cli("reap", "--force", "--json")).out));
    report("busy", await busy);
    report("later", await failure(() => lane.exec("true")));
    await until("the end", () => lane.closed);
    report("events", events.filter(([type]) => type.startsWith("clos")));
    report("rows", await json("ls"));
    report("name", lane.name);
  `);
  expect(said["kept"]).toMatchObject({ reaped: [], kept: [{ reason: "in use by a living process" }] });
  expect(said["reaped"]).toMatchObject({ reaped: [{ name: said["name"], ok: true, reason: "asked for with --force" }] });
  for (const call of ["busy", "later"])
    expect(said[call]).toMatchObject({ code: "LANE_CLOSED", message: expect.stringMatching(/--force/) });
  expect(said["events"]).toEqual([["closing", expect.stringMatching(/--force/)], ["closed", expect.anything()]]);
  expect(said["rows"]).toEqual([]);
});

it("close does not wait for an owner that is stopped", async () => {
  const said = await run(`
    const owner = spawn(process.execPath, ["--input-type=module", "-e", \`
      const { createLane } = await import(\${JSON.stringify(PACKAGE)});
      const lane = await createLane(\${JSON.stringify(OPTIONS)});
      console.log(lane.name);
      setInterval(() => undefined, 1000);\`], { stdio: ["ignore", "pipe", "inherit"] });
    let name = "";
    owner.stdout.on("data", (d) => (name += d));
    await until("the other's lane", () => name.endsWith("\\n"));
    owner.kill("SIGSTOP");
    const [one] = await json("close", name.trim());
    report("one", one);
    report("rows", await json("ls"));
    report("history", (await json("inspect", name.trim())).history.at(-1));
    owner.kill("SIGKILL");
  `);
  expect(said["one"]).toMatchObject({ ok: true, by: "this command" });
  expect(said["rows"]).toEqual([]);
  expect(said["history"]).toMatchObject({ to: "closed", reason: expect.stringMatching(/agent-lane close/) });
});

it("names are checked, and what is not in the registry does not exist", async () => {
  const said = await run(`
    const out = {};
    for (const command of ["inspect", "logs", "close"])
      for (const name of ["agent-lane-00000000-00000000", "../registry.db", "default"]) out[command + " " + name] = await cli(command, name);
    report("out", out);
  `);
  for (const [what, r] of Object.entries(said["out"] as Record<string, { code: number; err: string; out: string }>)) {
    expect(r).toMatchObject({ code: 1, out: "" });
    expect(r.err).toMatch(what.endsWith("0") ? /^error NO_SUCH_LANE: / : /^error BAD_NAME: /);
  }
});

it("events follows every lane's states, one JSON object a line", async () => {
  const said = await run(`
    const follower = start("events", "--follow");
    await sleep(1500);
    const lane = await createLane(OPTIONS);
    await lane.close();
    await until("the last event", () => follower.said().includes('"to":"closed"'));
    follower.kill("SIGINT");
    const { code, out, err } = await follower.ended;
    report("end", [code, err]);
    const lines = out.trim().split("\\n").map((l) => JSON.parse(l));
    report("lines", lines);
    report("name", lane.name);
    const since = (await cli("events", "--since", String(lines[2].number))).out;
    report("since", since.trim().split("\\n").length === lines.length - 3);
  `);
  expect(said["end"]).toEqual([130, ""]);
  const lines = said["lines"] as Record<string, unknown>[];
  expect(lines.map((l) => l["to"])).toEqual(["registered", "creating", "booting", "connecting", "ready", "closing", "closed"]);
  expect(lines.map((l) => l["from"])).toEqual([null, "registered", "creating", "booting", "connecting", "ready", "closing"]);
  expect(new Set(lines.map((l) => l["lane"]))).toEqual(new Set([said["name"]]));
  for (const l of lines) expect(l["time"]).toMatch(/^\d{4}-\d\d-\d\dT[\d:.]+Z$/);
  expect(said["since"]).toBe(true);
});

it("arguments are shown as options with their values", () => {
  expect(argumentLines(["qemu", "-m", "1024", "-nodefaults", "-smp", "4", "file.img"])).toEqual(["qemu", "-m 1024", "-nodefaults", "-smp 4", "file.img"]);
});
