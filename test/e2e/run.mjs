#!/usr/bin/env node
// SPDX-License-Identifier: Apache-2.0
// Runs the real-VM tests one file after another: run.mjs [FILE... | --without FILE...].
// Last line: "e2e: N passed, N failed, N skipped".
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { run } from "node:test";
import { spec } from "node:test/reporters";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const args = process.argv.slice(2), without = args[0] === "--without" ? args.slice(1) : [];
const named = without.length > 0 ? [] : args;
const tests = readdirSync(here).filter((f) => f.endsWith(".test.mjs")).sort();
for (const file of without) if (!tests.includes(file)) throw new Error(`there is no ${file} to leave out`);
const files = (named.length ? named : tests.filter((f) => !without.includes(f))).map((f) => resolve(here, f));
const FILE_MINUTES = Number(process.env.E2E_FILE_MINUTES ?? 20);

// The files' scratch folders lie in here, and go with it.
const scratch = mkdtempSync(join(tmpdir(), "e2e-run-"));
process.env.TMPDIR = scratch;

const count = { passed: 0, failed: 0, skipped: 0 };
const isSuite = (event) => event.details?.type === "suite";
const stream = run({ files, concurrency: 1, timeout: FILE_MINUTES * 60_000 });
stream.on("test:pass", (event) => {
  if (isSuite(event)) return;
  // A file that ran to its end is not a test; only tests inside it count.
  if (event.nesting === 0 && files.includes(event.name)) return;
  if (event.skip !== undefined || event.todo !== undefined) count.skipped++;
  else count.passed++;
});
stream.on("test:fail", (event) => {
  const onlyChildren = event.details?.error?.failureType === "subtestsFailed";
  if (!onlyChildren) count.failed++;
});
stream.compose(new spec()).pipe(process.stdout);
stream.on("end", () => {
  setImmediate(() => {
    rmSync(scratch, { recursive: true, force: true });
    console.log(`e2e: ${count.passed} passed, ${count.failed} failed, ${count.skipped} skipped`);
    process.exitCode = count.failed > 0 ? 1 : 0;
  });
});
