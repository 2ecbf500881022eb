#!/usr/bin/env node
// SPDX-License-Identifier: Apache-2.0
// Runs scenarios on the plain local provider and on the product, and says for each whether the outcome is the expected
// one (expected.mjs).
//   compare.mjs [--provider lima|agent] [--all [--nightly]] [--log FILE [--resume]] [--page FILE] [SCENARIO...]
// --provider: lima = real VMs, one at a time (default); agent = the lane agent as a local process, two scenarios at a
// time.
// --all: every scenario but the long ones, which --nightly adds. --page: writes the conformance page, of a complete run
// on real VMs only.
// --log: keeps both logs of every scenario, as JSON lines; --resume judges what is there already instead of running it
// again.
// Last line: "oracle: N passed, N failed, N skipped".
import { appendFileSync, existsSync, readFileSync, writeFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { expected, rules } from "./expected.mjs";
import { judge } from "./lib/judge.mjs";
import { page, versions } from "./lib/page.mjs";
import { runScenario } from "./run-oracle.mjs";
import { scenarios } from "./scenarios/index.mjs";

/** On a VM these differ most from a local process: what scripts/check runs there every time. */
export const NAMED = [
  "demo",
  "run-claude",
  "closeDuringRun",
  "agentExecThrows",
  "dirty",
  "nonAscii",
  "traversal",
  "symlinkThrough",
  "symlinkEscape",
  "symlinkUntracked",
  "bigBundleSymlink",
  "syncInWatchdog",
];
const DIFFERENCES_SHOWN = 20;

const { values: args, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    provider: { type: "string", default: "lima" },
    all: { type: "boolean" },
    nightly: { type: "boolean" },
    log: { type: "string" },
    resume: { type: "boolean" },
    page: { type: "string" },
  },
});
if (!["lima", "agent"].includes(args.provider))
  throw new Error(`--provider must be lima or agent, not ${args.provider}`);
if (args.page && !(args.provider === "lima" && args.all && args.nightly))
  throw new Error("the page is of a complete run on real VMs: --provider lima --all --nightly");
const names = args.all ? Object.keys(scenarios) : positionals.length ? positionals : NAMED;

const why = (entry) => rules[entry?.rule] ?? entry?.reason ?? "";

function show({ name, verdict, explained, unexplained, unmet, plain, product, seconds }) {
  const entry = expected[name];
  console.log(
    `${verdict.padEnd(11)} ${name}: ${entry?.kind === "equal" ? (entry.note ?? "same calls, same outcome") : why(entry)} (${seconds.toFixed(0)} s)`,
  );
  if (verdict !== "UNEXPLAINED") return;
  for (const text of unmet) console.log(`     ${text}`);
  for (const d of unexplained.slice(0, DIFFERENCES_SHOWN))
    console.log(
      `     ${d.path}\n       plain   ${JSON.stringify(d.plain)}\n       product ${JSON.stringify(d.product)}`,
    );
  if (unexplained.length > DIFFERENCES_SHOWN)
    console.log(`     and ${unexplained.length - DIFFERENCES_SHOWN} more differences`);
  for (const d of explained) console.log(`     (explained: ${d.path}: ${d.why})`);
  console.log(
    `--- printed by the plain provider's run:\n${plain.output.slice(-1500)}\n--- printed by the product's run:\n${product.output.slice(-3000)}`,
  );
}

/** {NAME: {plain, product, seconds}} of an earlier run, and the facts of its first line. */
function earlier() {
  if (!args.resume || !args.log || !existsSync(args.log))
    return { facts: { started: new Date().toISOString(), ...versions() }, runs: {} };
  const [facts, ...runs] = readFileSync(args.log, "utf8").trim().split("\n").map((line) => JSON.parse(line));
  return { facts, runs: Object.fromEntries(runs.map((r) => [r.name, r])) };
}

const { facts, runs } = earlier();
const keep = (value) => args.log && appendFileSync(args.log, `${JSON.stringify(value)}\n`);

/** Both runs of a scenario. What waits most of its time may wait beside its twin. */
async function runBoth(name) {
  const started = Date.now();
  const runPlain = () => runScenario("local", name, { faultless: expected[name]?.faultless });
  const runProduct = () => runScenario(args.provider, name);
  const together = args.provider === "lima" || scenarios[name]?.long;
  const [plain, product] = together
    ? await Promise.all([runPlain(), runProduct()])
    : [await runPlain(), await runProduct()];
  const both = { name, plain, product, seconds: (Date.now() - started) / 1000 };
  keep(both);
  return both;
}

/** Whether the guest did not come up though the scenario did not ask for that. */
const hungBoot = ({ name, product }) =>
  !expected[name]?.codes?.includes("START_TIMEOUT") &&
  JSON.stringify(product.calls?.[0]?.outcome ?? "").includes("START_TIMEOUT, step boot");

async function one(name) {
  const entry = expected[name];
  if (entry?.kind === "n-a" && !entry.faultless) return { name, verdict: "n-a", skipped: true, seconds: 0 };
  if (args.all && scenarios[name]?.long && !args.nightly) return { name, verdict: "later", skipped: true, seconds: 0 };
  let both = runs[name] ?? (await runBoth(name));
  if (args.provider === "lima" && hungBoot(both)) {
    // One emulated guest in a hundred and more has been seen to hang in its boot; a scenario is not about that.
    console.log(`            ${name}: the guest did not come up, trying once more`);
    both = await runBoth(name);
  }
  return { ...both, ...judge(name, both.plain, both.product) };
}

if (Object.keys(runs).length === 0) keep(facts);
const begun = Date.now(), results = [];
const queue = [...names].sort((a, b) => Number(scenarios[b]?.long ?? false) - Number(scenarios[a]?.long ?? false));
async function worker() {
  for (let name; (name = queue.shift()) !== undefined; ) {
    const r = await one(name);
    results.push(r);
    if (r.skipped)
      console.log(
        `${r.verdict.padEnd(11)} ${name}: ${r.verdict === "n-a" ? why(expected[name]) : "takes minutes: only with --nightly"}`,
      );
    else show(r);
  }
}
await Promise.all(Array.from({ length: args.provider === "agent" ? 2 : 1 }, worker));

const skipped = results.filter((r) => r.skipped).length,
  failed = results.filter((r) => r.verdict === "UNEXPLAINED").length;
const kinds = ["equal", "safer", "n-a"].map((kind) => `${results.filter((r) => r.verdict === kind).length} ${kind}`);
console.log(`${kinds.join(", ")}, ${failed} UNEXPLAINED in ${((Date.now() - begun) / 1000).toFixed(0)} s`);
if (args.page) writeFileSync(args.page, page(facts, results));
console.log(`oracle: ${results.length - skipped - failed} passed, ${failed} failed, ${skipped} skipped`);
process.exit(failed ? 1 : 0);
