// SPDX-License-Identifier: Apache-2.0
// The process's end, which no lane holds up: engines with work stop where they are, and their lanes are their keepers'.
import { isMainThread } from "node:worker_threads";
import { native } from "./native.js";

// Far more than one turn of a loop takes. A signal that nobody listens for, a crash and `kill -9` come without this.
const LEAVE_MS = 1000;

let listening = false;

/** Once per process. In a worker the environment's clean-up hook in the addon closes what the worker had. */
export function leaveAtExit(): void {
  if (listening || !isMainThread) return;
  listening = true;
  process.on("exit", () => void native().leave(LEAVE_MS));
}
