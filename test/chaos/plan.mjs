// SPDX-License-Identifier: Apache-2.0
// Which rounds a campaign consists of: every edge and victim three times, and random instants.
import { EDGES, VICTIMS } from "./edges.mjs";
import { FAULTS } from "./fault.mjs";
import { rng } from "./seed.mjs";

export const TIMES = 3; // each edge and victim
export const RANDOM = 100; // rounds at random instants
const NEEDS_KEEPER = ["keeper", "both", "owner-stop"];
/** A lifetime that is over soon after the edge; a round that comes too late for it is tried again with a longer one. */
const LIFE_MS = { row: 2500, directory: 3500, boot: 4000, guest: 14_000, ready: 18_000, end: 20_000 };
const LAST_INSTANT_MS = 12_000; // by then most lanes have been closed

/** How often a pair has been tried, and in vain. */
function tally(done) {
  const counts = new Map();
  for (const r of done) {
    const key = `${r.edge} ${r.victim}`;
    const c = counts.get(key) ?? { killed: 0, absent: 0 };
    c[r.absent ? "absent" : "killed"]++;
    counts.set(key, c);
  }
  return counts;
}

/** Whether a pair has not had its round of this turn: what has had none comes first. Who never was there has nothing to show. */
const due = (c, turn) => c === undefined || (c.killed === 0 ? c.absent === 0 : turn >= c.killed);

/** { rounds, skipped: [[pair, why]] } for scripts/chaos's options; `done` are the results that count. */
export function plan({ rounds: limit, seed, edge, victim, guest, resume, done, keeper }) {
  const random = rng(seed);
  let first = true;
  // The first round has the campaign's own seed, so one that failed can be run again by its own.
  const nextSeed = () => (first ? ((first = false), seed) : Math.floor(random() * 2 ** 31));
  const skipped = [];
  const edges = EDGES.filter((e) => edge === undefined || e.name === edge);
  const victims = VICTIMS.filter((v) => victim === undefined || v === victim).filter((v) => {
    if (keeper || !NEEDS_KEEPER.includes(v)) return true;
    skipped.push([`victim ${v}`, "this build has no keeper"]);
    return false;
  });
  const counts = tally(done);
  const next = (e, v, turn) => ({
    seed: nextSeed(),
    edge: e.name,
    victim: v,
    // A guest can be made hostile only once it can be used.
    guest: guest ?? (["ready", "end"].includes(e.phase) && turn % 2 === 1 ? "hostile" : "honest"),
    lifeMs: LIFE_MS[e.phase],
  });
  const rounds = [];
  if (edge !== "random" && edge !== "fault") {
    // Without --resume each edge once, the victims in turn; --victim, --edge: all of them.
    const all = resume || edge !== undefined || victim !== undefined;
    if (!all) edges.forEach((e, i) => rounds.push(next(e, likely(e, victims, i + seed), i)));
    for (let turn = 0; all && turn < (resume ? TIMES : 1); turn++)
      for (const e of edges)
        for (const v of victims) {
          const c = counts.get(`${e.name} ${v}`);
          if (!resume || due(c, turn)) rounds.push(next(e, v, turn));
        }
  }
  for (let turn = 0; (resume && edge === undefined) || edge === "fault" ? turn < (resume ? TIMES : 1) : false; turn++)
    for (const name of Object.keys(FAULTS))
      if ((victim ?? name) === name && (!resume || due(counts.get(`fault ${name}`), turn)))
        rounds.push({ seed: nextSeed(), edge: "fault", victim: name, guest: "honest" });
  const had = done.filter((r) => r.edge === "random" && !r.absent).length;
  const want = edge === "random" ? Number(limit ?? 1) : resume && edge === undefined ? Math.max(0, RANDOM - had) : 0;
  for (let i = 0; i < want; i++) {
    const own = nextSeed(), draw = rng(own ^ 0x5eed);
    const instant = Math.floor(draw() * LAST_INSTANT_MS), kind = guest ?? (draw() < 0.3 ? "hostile" : "honest");
    rounds.push({ seed: own, edge: "random", victim: victim ?? "any", guest: kind, instant });
  }
  return { rounds: limit === undefined ? rounds : rounds.slice(0, Number(limit)), skipped };
}

const BEFORE = ["row", "directory"];
/** The victim in turn, of those that can be there. */
function likely(e, victims, turn) {
  const can = BEFORE.includes(e.phase) || e.phase === "end" ? victims.filter((v) => ["owner", "keeper", "both"].includes(v))
    : e.phase === "boot" ? victims.filter((v) => ["owner", "keeper", "both", "limactl"].includes(v))
    : victims.filter((v) => !["owner-stop", "ssh", "limactl"].includes(v));
  return can[turn % can.length] ?? victims[0];
}
