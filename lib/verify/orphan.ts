// SPDX-License-Identifier: Apache-2.0
// A process that owns a lane, for `agent-lane verify` to kill: orphan.js OPTIONS(JSON). Prints "lane NAME" once it has one.
import type { LaneEvent } from "../events.js";
import { openLane } from "../open.js";
import { resolveOptions } from "../options.js";
import { SIZE, type LaneChoice } from "./scene.js";

let said = false;
const onEvent = (event: LaneEvent): void => {
  if (said || event.type !== "booting") return;
  said = true;
  process.stdout.write(`lane ${event.lane}\n`);
};

const choice = JSON.parse(process.argv[2] ?? "{}") as LaneChoice;
const options = resolveOptions({ ...choice, ...SIZE, maxConcurrentVms: 32, startTimeoutSeconds: 180, onEvent });
await openLane({ ...options, image: choice.image });
// Nobody waits for this process for ever, should its parent be gone.
setTimeout(() => process.exit(1), 120_000);
