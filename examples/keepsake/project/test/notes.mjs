import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { test } from "node:test";
import { Notes } from "../src/notes.mjs";

test("keeps notes in their order", () => {
  const notes = new Notes();
  assert.deepEqual([notes.keep("one"), notes.keep(" two ")], [1, 2]);
  assert.equal(String(notes), "1. one\n2. two");
});

test("keeps no empty one", () => assert.throws(() => new Notes().keep("  "), RangeError));

test("has a command", () => {
  const main = new URL("../src/main.mjs", import.meta.url).pathname;
  assert.equal(execFileSync(process.execPath, [main, "milk", "bread"], { encoding: "utf8" }), "1. milk\n2. bread\n");
});
