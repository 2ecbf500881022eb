// SPDX-License-Identifier: Apache-2.0
// A process that owns one lane and then runs no JavaScript any more: held-owner.mjs OPTIONS(JSON). Prints "ready NAME" before.
import { writeSync } from "node:fs";
import { createLane } from "@agent-lane/provider-lima";

const { blocked, ...options } = JSON.parse(process.argv[2]);
try {
  const lane = await createLane(options);
  writeSync(1, `ready ${lane.name}\n`);
  if (blocked) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0); // for ever, and without using a CPU
  setInterval(() => {}, 1000);
} catch (error) {
  writeSync(1, `error ${error.code} ${error.message}\n`);
  process.exit(3);
}
