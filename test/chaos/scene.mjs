// SPDX-License-Identifier: Apache-2.0
// What every round is made of: an owner with a lane, decoys beside it, and the count of what is left in the end.
import { execFileSync, spawn, spawnSync } from "node:child_process";
import { closeSync, mkdirSync, openSync, renameSync, rmSync, writeFileSync, writeSync } from "node:fs";
import { Socket } from "node:net";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { plantDecoys, Recycler } from "./decoys.mjs";
import { alive, entries, keepers, kill, laneProcesses, openRows, startOf } from "./world.mjs";

export const GONE_MS = 10_000; // no process of the lane after that
export const REACH_MS = 90_000; // what has not come by then never will
const QUIET_MS = 700;
const here = (file) => fileURLToPath(new URL(file, import.meta.url));
const bin = here("../node_modules/.bin/agent-lane");
const recycler = new Recycler();

/** The round has not come to what it is about, and so says nothing. */
export class Missed extends Error {}

/** Waits for `check`, at most `ms`; gives what it gave. */
export async function until(ms, check, pause = 25) {
  for (const end = Date.now() + ms; ; await sleep(pause)) {
    const value = check();
    if (value || Date.now() > end) return value;
  }
}

/** The two fifos of src/hook.h's test build. */
export class Hook {
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

/** One sweep; what went wrong with it, or undefined. That decoys are directories without a row is not wrong. */
function reap(home, name, env) {
  const options = { env: { ...process.env, AGENT_LANE_HOME: home, ...env }, encoding: "utf8", timeout: 60_000 };
  const r = spawnSync(bin, ["reap", "--json"], options);
  try {
    const failed = JSON.parse(r.stdout).reaped.find((lane) => !lane.ok && lane.name === name);
    return failed === undefined ? undefined : `${failed.reason}: ${failed.message}`;
  } catch {
    return `exit status ${r.status}: ${r.stdout}${r.stderr}`.slice(0, 500);
  }
}

/** One round's stage in a slot {home, dir}: from the owner's start to the count of what is left. */
export class Scene {
  #before;
  #decoys;
  #stranger;

  constructor(slot, seed, random) {
    this.home = slot.home;
    this.random = random;
    this.outside = join(slot.dir, "outside");
    this.dir = join(slot.dir, `round-${seed}`);
    rmSync(this.dir, { recursive: true, force: true });
    mkdirSync(join(this.dir, "tree"), { recursive: true });
    for (let i = 0; i < 200; i++) writeFileSync(join(this.dir, "tree", `f${i}`), Buffer.alloc(5000, i));
    this.#before = new Set(entries(this.home));
    this.hook = new Hook(join(this.dir, "hook"));
  }

  /** Starts the owner and plants the decoys as soon as the lane has a name. */
  async begin({ env = {}, options = {}, guest = "honest", alone = false }) {
    const all = { cpus: 1, memoryGiB: 1, network: "none", maxConcurrentVms: 32, startTimeoutSeconds: 80, home: this.home, ...options };
    this.owner = new Owner({ options: all, guest, tree: join(this.dir, "tree"), alone }, { ...process.env, AGENT_LANE_HOME: this.home, ...env });
    await until(30_000, () => this.owner.name ?? this.owner.over);
    this.name = this.owner.name;
    if (this.name === undefined) throw new Missed(`no lane: ${this.owner.errors} ${JSON.stringify(this.owner.said)}`);
    this.#decoys = plantDecoys(this.home, this.outside, this.name);
  }

  /** Until the lane can be used. */
  async ready() {
    const first = await until(REACH_MS, () => this.owner.find("ready", "ended"));
    if (first?.what !== "ready") throw new Missed(`not ready: ${JSON.stringify(this.owner.said.at(-1))}`);
  }

  procs() {
    return laneProcesses(this.home, this.name, [this.owner.id.pid, ...this.#decoys.processes.map((p) => p.pid)]);
  }

  /** Living processes that have nothing to do with the lane. */
  strangers() {
    return this.#decoys.processes;
  }

  /** Now somebody is about to die: whose pids a stranger may get, and where a link leads out. */
  eve() {
    this.#decoys.link();
    this.present = this.procs();
  }

  /** Looks from now on; `over` gives { outcome, from } once no process may be left 10 s after `from`. */
  async watched(over) {
    const watch = new Watch(() => [...this.procs(), ...(this.owner.over ? keepers(this.home) : [])]);
    try {
      const { outcome, from, without = false } = await over();
      await until(GONE_MS, () => Date.now() > from + GONE_MS || (watch.quiet && (without || this.owner.over)));
      return { outcome, ...watch.since(from), without };
    } finally {
      watch.stop();
    }
  }

  /** The rest of the round after watched(): owner and keeper end, a stranger comes, one sweep, the count. */
  async count({ outcome, ms, survivors, without }, env = {}) {
    const { owner, home, name } = this;
    if (!without && !(await until(GONE_MS, () => owner.over))) survivors.push("owner");
    kill(owner.id);
    await owner.ended;
    if (!(await until(GONE_MS, () => keepers(home).length === 0, 50))) survivors.push("keeper");
    const dead = [...this.present.filter((p) => p.kind === "qemu" || p.kind === "hostagent"), owner.id].filter((p) => !alive(p));
    if (dead.length > 0) this.#stranger = await recycler.take(dead[Math.floor(this.random() * dead.length)].pid);
    const sweep = reap(home, name, env);
    const leftovers = entries(home).filter((e) => !this.#before.has(e) && !this.#decoys.planted.includes(e));
    leftovers.push(...openRows(home).filter((row) => row.startsWith(name)));
    const foreign = this.#decoys.touched();
    if (this.#stranger?.touched()) foreign.push(`stranger ${this.#stranger.pid}`);
    for (const p of this.procs()) {
      survivors.push(`${p.kind} after the sweep`);
      kill(p);
    }
    return { outcome, ms, survivors, leftovers, foreign, recycled: this.#stranger !== undefined, ...(sweep && { sweep }) };
  }

  async end() {
    if (this.owner !== undefined) kill(this.owner.id);
    this.hook.close();
    this.#decoys?.remove();
    await this.#stranger?.release();
    rmSync(this.dir, { recursive: true, force: true });
  }
}
