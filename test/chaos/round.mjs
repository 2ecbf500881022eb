// SPDX-License-Identifier: Apache-2.0
// One round: an owner creates a lane, somebody is killed at an edge or at an instant, and what is left is counted from
// outside.
import { execFileSync, spawn, spawnSync } from "node:child_process";
import { closeSync, mkdirSync, openSync, readFileSync, renameSync, rmSync, writeFileSync, writeSync } from "node:fs";
import { Socket } from "node:net";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { plantDecoys, Recycler } from "./decoys.mjs";
import { EDGES, VICTIMS } from "./edges.mjs";
import { alive, entries, keepers, kill, laneProcesses, openRows, sql, startOf } from "./world.mjs";

const GONE_MS = 10_000; // no process of the lane after that
const QUIET_MS = 700;
const REACH_MS = 90_000; // an edge that has not been reached by then never will be
const here = (file) => fileURLToPath(new URL(file, import.meta.url));
const bin = fileURLToPath(new URL("../node_modules/.bin/agent-lane", import.meta.url));
const recycler = new Recycler();

export class Missed extends Error {}

/** Waits for `check`, at most `ms`; gives what it gave. */
async function until(ms, check, pause = 25) {
  for (const end = Date.now() + ms; ; await sleep(pause)) {
    const value = check();
    if (value || Date.now() > end) return value;
  }
}

/** The two fifos of src/hook.h's test build. */
class Hook {
  reached = false;

  constructor(path) {
    this.path = path;
  }

  arm() {
    for (const p of [`${this.path}.new`, `${this.path}.go`]) {
      rmSync(p, { force: true });
      execFileSync("mkfifo", ["-m", "600", p]);
    }
    this.go = openSync(`${this.path}.go`, "r+");
    this.socket = new Socket({ fd: openSync(`${this.path}.new`, "r+"), readable: true, writable: false });
    this.socket.on("error", () => undefined).on("data", () => (this.reached = true));
    renameSync(`${this.path}.new`, this.path); // both are there and open before the owner can see the first
  }

  release() {
    if (this.go !== undefined) writeSync(this.go, "go\n");
  }

  close() {
    if (this.go !== undefined) closeSync(this.go);
    this.socket?.destroy();
    for (const p of [this.path, `${this.path}.new`, `${this.path}.go`]) rmSync(p, { force: true });
  }
}

class Owner {
  said = [];

  constructor(args, env) {
    this.child = spawn(process.execPath, [here("owner.mjs"), JSON.stringify(args)], { env, stdio: ["pipe", "pipe", "pipe"] });
    this.id = { pid: this.child.pid, start: startOf(this.child.pid), kind: "owner" };
    this.errors = "";
    let rest = "";
    this.child.stdin.on("error", () => undefined);
    this.child.stderr.setEncoding("utf8").on("data", (text) => (this.errors += text));
    this.child.stdout.setEncoding("utf8").on("data", (text) => {
      const lines = (rest + text).split("\n");
      rest = lines.pop();
      for (const line of lines) this.said.push({ at: Date.now(), ...JSON.parse(line) });
    });
    this.ended = new Promise((done) => this.child.on("close", done));
    this.child.on("exit", () => (this.over = true));
  }

  find = (...what) => this.said.find((s) => what.includes(s.what));
  get name() {
    return this.said.find((s) => s.lane !== undefined)?.lane;
  }
  say(line) {
    if (!this.over) this.child.stdin.write(`${line}\n`);
  }
}

/** Who there is to kill now, for a round that takes anybody. */
function anybody(owner, home, random) {
  const there = new Set(laneProcesses(home, owner.name, [owner.id.pid]).map((p) => p.kind));
  if (!owner.over) there.add("owner");
  if (keepers(home).length > 0) there.add("keeper").add("both");
  const can = VICTIMS.filter((v) => there.has(v));
  return can[Math.floor(random() * can.length)] ?? "owner";
}

/** The processes that are `victim` now. */
function targets(victim, owner, home) {
  if (victim === "owner" || victim === "owner-stop") return [owner.id];
  const keeper = keepers(home);
  if (victim === "keeper") return keeper;
  if (victim === "both") return keeper.length > 0 ? [owner.id, ...keeper] : [];
  return laneProcesses(home, owner.name, [owner.id.pid]).filter((p) => p.kind === victim);
}

/** Looks again and again for processes of the lane; when the last were seen is what counts. */
class Watch {
  #timer;
  #last = { at: 0, kinds: [] };
  #empty = 0;

  constructor(look) {
    const once = () => {
      const kinds = look().map((p) => p.kind);
      if (kinds.length > 0) this.#last = { at: Date.now(), kinds };
      this.#empty = kinds.length > 0 ? 0 : this.#empty || Date.now();
    };
    once();
    this.#timer = setInterval(once, 50);
  }

  /** Nothing for a while: one who has just been forked, or is about to be, has no name of ours yet. */
  get quiet() {
    return this.#empty > 0 && Date.now() - this.#empty > QUIET_MS;
  }

  stop() {
    clearInterval(this.#timer);
  }

  /** How long after `from` the last one was seen; those that were seen too long after it. */
  since(from) {
    const ms = Math.max(0, this.#last.at - from);
    return { ms, survivors: ms > GONE_MS - 100 ? this.#last.kinds : [] };
  }
}

const bootMs = () => Number(readFileSync("/proc/uptime", "utf8").split(" ")[0]) * 1000;

/** One sweep; what went wrong with it, or undefined. That decoys are directories without a row is not wrong. */
function reap(home, name) {
  const options = { env: { ...process.env, AGENT_LANE_HOME: home }, encoding: "utf8", timeout: 60_000 };
  const r = spawnSync(bin, ["reap", "--json"], options);
  try {
    const failed = JSON.parse(r.stdout).reaped.find((lane) => !lane.ok && lane.name === name);
    return failed === undefined ? undefined : `${failed.reason}: ${failed.message}`;
  } catch {
    return `exit status ${r.status}: ${r.stdout}${r.stderr}`.slice(0, 500);
  }
}

/** Waits until the lane's time is over, by the clock that counts it. */
async function lifetimeOver(home, name) {
  const [expires] = sql(home, `SELECT expires_boot_ms FROM lanes WHERE name = '${name}'`);
  if (expires === undefined) throw new Missed("no row");
  const left = Number(expires) - bootMs();
  if (left < 0) throw new Missed("its life was over before the edge");
  await sleep(left);
  return Date.now();
}

/**
 * The owner lives on; when its lane does, too, the lane's end is asked for, or the owner dies after all. Gives what became
 * of it, and from when on nothing more of the lane may be there.
 */
async function goOn(owner, hook, round, from) {
  hook.release();
  const end = () => owner.find("ended", "closed") ?? (owner.over ? { what: "over" } : undefined);
  owner.say("go"); // where it has not had it yet
  const word = await until(REACH_MS, () => end() ?? (round.asked ? undefined : owner.find("went-on")));
  if (word === undefined) return { outcome: "silent", from };
  if (word.what === "went-on") {
    const close = round.random() < 0.5;
    if (close) owner.say("close");
    else kill(owner.id);
    return { outcome: close ? "went-on, closed" : "went-on, owner", from: Date.now() };
  }
  const closing = owner.said.find((s) => s.type === "closing")?.at ?? from;
  return word.what === "closed" ? { outcome: "closed", from: Math.max(from, closing) } : { outcome: `${word.what} ${word.code ?? ""}`.trim(), from };
}

/**
 * Runs one round in a slot {home, dir}. `round`: { seed, random(), edge, victim, guest, instant, lifeMs }. Returns what
 * was found; throws Missed when the edge was not reached, which says nothing.
 */
export async function runRound(slot, round) {
  const { home } = slot, { edge, guest } = round;
  let { victim } = round;
  const phase = EDGES.find((e) => e.name === edge)?.phase;
  const late = phase === "ready" || phase === "end";
  const dir = join(slot.dir, `round-${round.seed}`);
  rmSync(dir, { recursive: true, force: true });
  mkdirSync(join(dir, "tree"), { recursive: true });
  for (let i = 0; i < 200; i++) writeFileSync(join(dir, "tree", `f${i}`), Buffer.alloc(5000, i));
  const before = new Set(entries(home));
  const hook = new Hook(join(dir, "hook"));
  const stopped = victim === "owner-stop";
  const env = {
    ...process.env,
    AGENT_LANE_HOME: home,
    ...(edge !== "random" && { AL_BINDING: process.env.CHAOS_HOOKS, AGENT_LANE_HOOK: `${edge}:${hook.path}` }),
    ...(stopped && { AL_BINDING: process.env.CHAOS_HOOKS, AGENT_LANE_HOOK_LIFE_MS: String(round.lifeMs) }),
  };
  if (edge !== "random" && !late) hook.arm();
  const options = { cpus: 1, memoryGiB: 1, network: "none", maxConcurrentVms: 32, startTimeoutSeconds: 80, home };
  if (victim === "ssh") options.transport = "shell"; // over the port nobody needs ssh, and it comes late
  const owner = new Owner({ options, guest, tree: join(dir, "tree"), alone: edge === "random" }, env);
  const started = Date.now();
  let decoys, stranger;
  try {
    if (!(await until(30_000, () => owner.name ?? owner.over)) || owner.name === undefined)
      throw new Missed(`no lane: ${owner.errors} ${JSON.stringify(owner.said)}`);
    const name = owner.name;
    decoys = plantDecoys(home, join(slot.dir, "outside"), name);
    const procs = () => laneProcesses(home, name, [owner.id.pid, ...decoys.processes.map((p) => p.pid)]);

    // To the edge, or the instant.
    if (edge === "random") {
      round.asked = true;
      await sleep(Math.max(0, started + round.instant - Date.now()));
    } else {
      if (late) {
        const first = await until(REACH_MS, () => owner.find("ready", "ended"));
        if (first?.what !== "ready") throw new Missed(`not ready: ${JSON.stringify(owner.said.at(-1))}`);
        const inUse = edge === "exec" || edge === "copy-in";
        if (inUse) hook.arm();
        owner.say("go");
        if (!inUse) {
          await until(REACH_MS, () => owner.find("went-on", "ended"));
          hook.arm();
          round.asked = true; // its end has been
          owner.say("close");
        }
      }
      await until(REACH_MS, () => hook.reached || owner.over);
      if (!hook.reached) throw new Missed(`edge not reached: ${JSON.stringify(owner.said.at(-1))} ${owner.errors}`);
    }
    decoys.link();
    const present = procs();
    if (victim === "any") victim = anybody(owner, home, round.random);
    const killed = targets(victim, owner, home).filter((t) => kill(t, stopped ? "SIGSTOP" : "SIGKILL"));
    let from = Date.now();
    const turned = guest === "hostile" && owner.find("ready") !== undefined; // else it had no time to
    const result = { seed: round.seed, edge, victim, guest: turned ? guest : "honest", ...(edge === "random" && { instant: round.instant }) };
    if (killed.length === 0) {
      kill(owner.id);
      await owner.ended;
      return { ...result, absent: true };
    }

    const watch = new Watch(() => [...procs(), ...(owner.over ? keepers(home) : [])]);
    let outcome = killed.length > 1 ? "owner and keeper" : "owner";
    try {
      if (stopped) from = await lifetimeOver(home, name);
      else if (killed[0] !== owner.id) ({ outcome, from } = await goOn(owner, hook, round, from));
      await until(GONE_MS, () => Date.now() > from + GONE_MS || (watch.quiet && (killed[0] === owner.id || owner.over)));
    } finally {
      watch.stop();
    }
    const { ms, survivors } = watch.since(from);
    if (killed[0] !== owner.id && !(await until(GONE_MS, () => owner.over))) survivors.push("owner");
    kill(owner.id);
    await owner.ended;
    if (!(await until(GONE_MS, () => keepers(home).length === 0, 50))) survivors.push("keeper");

    // A stranger gets the pid of one who has died; then the sweep.
    const dead = [...present.filter((p) => p.kind === "qemu" || p.kind === "hostagent"), owner.id].filter((p) => !alive(p));
    if (dead.length > 0) stranger = await recycler.take(dead[Math.floor(round.random() * dead.length)].pid);
    const sweep = reap(home, name);
    const leftovers = entries(home).filter((e) => !before.has(e) && !decoys.planted.includes(e));
    leftovers.push(...openRows(home).filter((row) => row.startsWith(name)));
    const foreign = decoys.touched();
    if (stranger?.touched()) foreign.push(`stranger ${stranger.pid}`);
    for (const p of procs()) {
      survivors.push(`${p.kind} after the sweep`);
      kill(p);
    }
    return { ...result, outcome, ms, survivors, leftovers, foreign, recycled: stranger !== undefined, ...(sweep && { sweep }) };
  } finally {
    kill(owner.id);
    hook.close();
    decoys?.remove();
    await stranger?.release();
    rmSync(dir, { recursive: true, force: true });
  }
}
