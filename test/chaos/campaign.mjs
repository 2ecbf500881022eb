#!/usr/bin/env node
// SPDX-License-Identifier: Apache-2.0
// Many rounds, two at a time, each one line in the results file: see scripts/chaos. Environment: CHAOS_HOMES (one for each
// slot), CHAOS_HOOKS (the test build's addon), CHAOS_RESULTS, CHAOS_VERSION, CHAOS_COMMIT, CHAOS_RECYCLER.
// Last line: "chaos: N passed, N failed, N skipped".
import { appendFileSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { plan } from "./plan.mjs";
import { runFault } from "./fault.mjs";
import { runRound } from "./round.mjs";
import { Missed } from "./scene.mjs";
import { isBad } from "./results.mjs";
import { rng } from "./seed.mjs";

const { values: args } = parseArgs({
  options: {
    rounds: { type: "string" },
    seed: { type: "string" },
    resume: { type: "boolean", default: false },
    edge: { type: "string" },
    victim: { type: "string" },
    guest: { type: "string" },
    seconds: { type: "string" },
  },
});
const seed = Number(args.seed ?? Date.now() % 1_000_000);
const env = process.env;
const file = env.CHAOS_RESULTS;
const read = () => (existsSync(file) ? readFileSync(file, "utf8").split("\n").filter(Boolean).map((l) => JSON.parse(l)) : []);
const version = env.CHAOS_VERSION;
const keeper = existsSync(env.CHAOS_KEEPER ?? "");
const done = args.resume ? read().filter((r) => r.version === version) : [];
const { rounds, skipped } = plan({ ...args, seed, done, keeper });
for (const [pair, why] of skipped) console.log(`chaos: ${pair} is skipped: ${why}`);
console.log(`chaos: seed ${seed}, ${rounds.length} rounds`);

const scratch = mkdtempSync(join(tmpdir(), "chaos-"));
const counts = { passed: 0, failed: 0, absent: 0, missed: 0, late: 0 };
const slowest = {}; // how long it took to an edge: a lifetime must be longer
const missing = new Set(); // victims that were not there when their edge came
let until = args.seconds === undefined ? Infinity : Date.now() + Number(args.seconds) * 1000;

// Interrupted, it ends the rounds that have begun: what they have found counts, and nothing of theirs stays.
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(signal, () => (until = 0));

async function one(slot, round) {
  const what = `${round.edge} ${round.victim} ${round.guest}${round.instant === undefined ? "" : ` at ${round.instant} ms`}`;
  const began = Date.now();
  for (let attempt = 0; ; attempt++) {
    try {
      const result = await (round.edge === "fault" ? runFault : runRound)(slot, { ...round, random: rng(round.seed), lifeMs: Math.max(round.lifeMs, 1.5 * (slowest[round.edge] ?? 0)) * (1 + attempt) });
      const bad = !result.absent && isBad(result);
      slowest[round.edge] = Math.max(slowest[round.edge] ?? 0, result.reached ?? 0);
      if (result.absent && round.edge !== "random") missing.add(`${round.edge} ${round.victim}`);
      counts[result.absent ? "absent" : bad ? "failed" : "passed"]++;
      appendFileSync(file, `${JSON.stringify({ version, commit: env.CHAOS_COMMIT, ...result })}\n`);
      const took = `${((Date.now() - began) / 1000).toFixed(1)} s`;
      if (result.absent) console.log(`absent  ${what}, ${took}`);
      else
        console.log(`${bad ? "FAILED" : "ok"}\t${what}${round.victim === "any" ? `, the ${result.victim}` : ""}: ${result.outcome}, gone after ${result.ms} ms, ${took}` +
            (bad ? ` ${JSON.stringify({ seed: round.seed, survivors: result.survivors, leftovers: result.leftovers, foreign: result.foreign, sweep: result.sweep, wrong: result.wrong })}` : ""));
      return;
    } catch (error) {
      if (!(error instanceof Missed)) throw error;
      console.log(`missed  ${what}, seed ${round.seed}: ${error.message}`);
      if (attempt === 2 || Date.now() > until) {
        counts.missed++;
        return;
      }
    }
  }
}

async function work(home, index) {
  const slot = { home, dir: join(scratch, String(index)) };
  mkdirSync(slot.dir);
  for (let round; (round = rounds.shift()) !== undefined; ) {
    if (Date.now() > until) counts.late++;
    else if (args.resume && missing.has(`${round.edge} ${round.victim}`)) continue;
    else await one(slot, round);
  }
}

await Promise.all(env.CHAOS_HOMES.split(":").map(work));
rmSync(scratch, { recursive: true, force: true });
console.log(`chaos: ${counts.absent} victims were not there, ${counts.missed} edges were not reached, ${counts.late} rounds are left for another time`);
console.log(`chaos: ${counts.passed} passed, ${counts.failed + counts.missed} failed, ${skipped.length} skipped`);
process.exitCode = counts.failed + counts.missed > 0 ? 1 : 0;
