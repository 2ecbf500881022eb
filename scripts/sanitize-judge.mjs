// SPDX-License-Identifier: Apache-2.0
// Counts tests and reports of a sanitizer's run: sanitize-judge.mjs VARIANT VITEST.json REPORTS SUITES. What Node does
// by itself is not ours to mend: a report counts when one of its stacks has a frame of the addon. Prints what counts,
// whole.
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

const [variant, json, dir, suites] = process.argv.slice(2);
const tests = existsSync(json)
  ? JSON.parse(readFileSync(json, "utf8"))
  : { numPassedTests: 0, numFailedTests: 1, numPendingTests: 0, testResults: [] };
let failed =
  tests.numFailedTests +
  tests.testResults.filter((f) => f.status === "failed" && f.assertionResults.length === 0).length;
if (tests.testResults.length !== Number(suites)) failed++;

const OURS = /agent_lane\.node| (src|binding)\/\w+\.cc?:\d/; // uv's are ../deps/uv/src/…
/** V8 and Node allocate on our behalf (a class, an object's shape) and give it back when they like. */
function nodesOwn(block) {
  const lines = block.split("\n");
  const first = lines.findIndex((line) => OURS.test(line));
  return /leak of/.test(block) && lines.slice(0, first).some((line) => / (v8|v8impl|node)::| napi_/.test(line));
}
// libuv closes descriptors by a bare system call, which TSan does not see: the next owner of the number, in another
// thread, looks to it like one who races with libuv's last read. A descriptor that we made ourselves is judged as
// everything else.
const NUMBER_OF_UV = /Location is file descriptor \d+ created by [^\n]*\n +#0 [^\n]*\n +#1 uv_/;
// One block per finding: the sanitizers separate them by blank lines (leaks) or by rows of = (races).
let foreign = 0, processes = 0;
const ours = new Map();
for (const file of readdirSync(dir)) {
  processes++;
  const text = readFileSync(join(dir, file), "utf8");
  const blocks =
    variant === "tsan" ? text.split(/^={10,}$/m) : /LeakSanitizer/.test(text) ? text.split(/\n\n+/) : [text];
  for (const block of blocks) {
    if (
      !/(Direct|Indirect) leak of|ERROR: |WARNING: |runtime error/.test(block) ||
      (/ERROR: LeakSanitizer/.test(block.split("\n", 2)[1] ?? "") && !/leak of/.test(block))
    )
      continue;
    if (!OURS.test(block) || NUMBER_OF_UV.test(block) || nodesOwn(block)) {
      foreign++;
      continue;
    }
    // The same place is told once.
    const place = block
      .split("\n")
      .filter((line) => OURS.test(line))
      .map((line) => line.replace(/^.* in /, ""))
      .slice(0, 4)
      .join("\n");
    ours.set(place, { block, times: (ours.get(place)?.times ?? 0) + 1 });
  }
}
for (const { block, times } of ours.values()) console.log(`--- ${times} times\n${block.trim()}`);
console.log(
  `${variant}: ${processes} processes reported, ${ours.size} places of ours, ${foreign} findings of Node alone`,
);
failed += ours.size;
console.log(`${variant}: ${tests.numPassedTests} passed, ${failed} failed, ${tests.numPendingTests} skipped`);
process.exitCode = failed > 0 ? 1 : 0;
