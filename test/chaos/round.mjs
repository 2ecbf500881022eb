// SPDX-License-Identifier: Apache-2.0
// One round: an owner creates a lane, somebody is killed at an edge or at an instant, and what is left is counted from
// outside.
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { EDGES, VICTIMS } from "./edges.mjs";
import { Missed, REACH_MS, Scene, until } from "./scene.mjs";
import { keepers, kill, laneProcesses, sql } from "./world.mjs";

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

const bootMs = () => Number(readFileSync("/proc/uptime", "utf8").split(" ")[0]) * 1000;

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

/** To the edge. */
async function reach(scene, round) {
  const { owner, hook } = scene, { edge, phase } = round;
  if (phase === "ready" || phase === "end") {
    await scene.ready();
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

function environment(scene, { edge, victim, lifeMs }) {
  const hooks = { AL_BINDING: process.env.CHAOS_HOOKS };
  return {
    ...(edge !== "random" && { ...hooks, AGENT_LANE_HOOK: `${edge}:${scene.hook.path}` }),
    ...(victim === "owner-stop" && { ...hooks, AGENT_LANE_HOOK_LIFE_MS: String(lifeMs) }),
  };
}

/**
 * Runs one round in a slot {home, dir}. `round`: { seed, random(), edge, victim, guest, instant, lifeMs }. Returns what
 * was found; throws Missed when the edge was not reached, which says nothing.
 */
export async function runRound(slot, round) {
  const { seed, edge, guest, random } = round;
  round.phase = EDGES.find((e) => e.name === edge)?.phase;
  const scene = new Scene(slot, seed, random);
  try {
    const began = Date.now();
    if (edge !== "random" && round.phase !== "ready" && round.phase !== "end") scene.hook.arm();
    await scene.begin({
      env: environment(scene, round),
      options: round.victim === "ssh" ? { transport: "shell" } : {}, // over the port nobody needs ssh, and it comes late
      guest,
      alone: edge === "random",
    });
    const { owner, home, name } = scene;
    round.asked = edge === "random";
    if (edge === "random") await sleep(Math.max(0, began + round.instant - Date.now()));
    else await reach(scene, round);

    scene.eve();
    const victim = round.victim === "any" ? anybody(owner, home, random) : round.victim;
    const stopped = victim === "owner-stop", from = Date.now();
    const killed = targets(victim, owner, home).filter((t) => kill(t, stopped ? "SIGSTOP" : "SIGKILL"));
    const turned = guest === "hostile" && owner.find("ready") !== undefined; // else it had no time to
    const facts = { seed, edge, victim, guest: turned ? guest : "honest", reached: from - began, ...(edge === "random" && { instant: round.instant }) };
    if (killed.length === 0) {
      kill(owner.id);
      await owner.ended;
      return { ...facts, absent: true };
    }
    const seen = await scene.watched(async () => {
      if (killed[0] !== owner.id) return goOn(owner, scene.hook, round, from);
      return { outcome: killed.length > 1 ? "owner and keeper" : "owner", from: stopped ? await lifetimeOver(home, name) : from, without: true };
    });
    return { ...facts, ...(await scene.count(seen)) };
  } finally {
    await scene.end();
  }
}
