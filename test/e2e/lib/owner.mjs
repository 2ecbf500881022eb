// SPDX-License-Identifier: Apache-2.0
// A process that owns one lane and waits: owner.mjs OPTIONS(JSON). Prints "creating", then "ready" or "error CODE
// MESSAGE".
import { lima } from "@agent-lane/provider-lima";

const options = JSON.parse(process.argv[2]);
console.log("creating");
try {
  const lane = await lima(options).create({ env: {} });
  const r = await lane.exec("echo hello");
  console.log(`ready ${r.stdout.trim()}`);
  setInterval(() => {}, 1000);
} catch (error) {
  console.log(`error ${error.code} ${error.message}`);
  process.exit(3);
}
