#!/usr/bin/env node
// SPDX-License-Identifier: Apache-2.0
// Runs scenarios on the trivial local provider and on lima() and compares: same calls, same outcome.
//   compare.mjs [--json] [--providers local,lima] [SCENARIO...]
// Last line: "oracle: N passed, N failed, N skipped".
import { isDeepStrictEqual, parseArgs } from "node:util";
import { runScenario } from "./run-oracle.mjs";

/** Differences that are right, each pinned down on both sides: anything else is a failure. */
const expected = [
  {
    why: "sudo: the local provider has no root to give, a lane has",
    matches: (path, local, lima, call) => path.endsWith("outcome.stdout") && call?.options?.sudo === true && /^hook2\n\d+\n$/.test(local) && lima === "hook2\n0\n",
  },
];

/** Lists {path, local, lima} wherever the two values differ. */
function differences(local, lima, path = "") {
  if (isDeepStrictEqual(local, lima)) return [];
  const nested = (v) => v !== null && typeof v === "object";
  if (!nested(local) || !nested(lima) || Array.isArray(local) !== Array.isArray(lima)) return [{ path, local, lima }];
  const keys = new Set([...Object.keys(local), ...Object.keys(lima)]);
  return [...keys].flatMap((key) => differences(local[key], lima[key], path ? `${path}.${key}` : key));
}

function compare(local, lima) {
  const all = [
    ...differences(local.calls, lima.calls, "calls"),
    ...differences(local.notes, lima.notes, "notes"),
    ...differences(local.end, lima.end, "end"),
  ];
  const callOf = (path) => local.calls[Number(/^calls\.(\d+)/.exec(path)?.[1])];
  const right = [], wrong = [];
  for (const d of all) {
    const rule = expected.find((r) => r.matches(d.path, d.local, d.lima, callOf(d.path)));
    if (rule) right.push({ ...d, why: rule.why });
    else wrong.push(d);
  }
  return { right, wrong };
}

const { values, positionals } = parseArgs({ allowPositionals: true, options: { json: { type: "boolean" }, providers: { type: "string", default: "local,lima" } } });
const [yardstick, product] = values.providers.split(",");
const names = positionals.length ? positionals : ["demo", "run-claude"];
let failed = 0;
for (const name of names) {
  const local = await runScenario(yardstick, name);
  const lima = await runScenario(product, name);
  const { right, wrong } = compare(local, lima);
  const ok = wrong.length === 0 && local.calls.length + local.notes.length > 0;
  if (!ok) failed++;
  const seconds = `${yardstick} ${local.seconds.toFixed(1)} s, ${product} ${lima.seconds.toFixed(1)} s`;
  console.log(`${ok ? "ok  " : "FAIL"} ${name}: ${local.calls.length} and ${lima.calls.length} calls, ${ok ? "same calls, same outcome" : `${wrong.length} differences`} (${seconds})`);
  for (const d of right) console.log(`     expected: ${d.path}: ${d.why}`);
  for (const d of wrong.slice(0, 20)) console.log(`     ${d.path}\n       local ${JSON.stringify(d.local)}\n       lima  ${JSON.stringify(d.lima)}`);
  if (!ok) console.log(`--- printed by the lima run:\n${lima.output}`);
  if (values.json) console.log(JSON.stringify({ scenario: name, ok, local, lima }));
}
console.log(`oracle: ${names.length - failed} passed, ${failed} failed, 0 skipped`);
process.exit(failed ? 1 : 0);
