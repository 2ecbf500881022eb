// SPDX-License-Identifier: Apache-2.0
// createLane(): a lane for programs that do without Sandcastle, such as test suites.
import { badOption, whence } from "./errors.js";
import type { Lane } from "./lane.js";
import { OPTION_NAMES, resolveOptions, type LimaOptions } from "./options.js";
import { checkQueueTime } from "./rules.js";
import { startLane } from "./start.js";

/** Options of `createLane()`: those of `lima()`, without the one that is about Sandcastle's sync-in. */
export interface CreateLaneOptions extends Omit<LimaOptions, "syncInTimeoutSeconds"> {
  /**
   * How long to wait for a place, in seconds, before BUSY; `startTimeoutSeconds` then counts from the place taken.
   * Integer 1–86400. Default: waiting counts inside `startTimeoutSeconds`.
   */
  readonly queueTimeoutSeconds?: number | undefined;
}

const NAMES = [...OPTION_NAMES.filter((name) => name !== "syncInTimeoutSeconds"), "queueTimeoutSeconds"];

/**
 * Starts a lane and resolves when it can be used. Close it, or let `await using` do that.
 *
 * ```ts
 * await using lane = await createLane({ cpus: 2, memoryGiB: 2, queueTimeoutSeconds: 600 });
 * const { stdout } = await lane.exec("uname -r");
 * ```
 *
 * Rejects with a LaneError after everything of the lane has been removed again: BAD_OPTION, UNKNOWN_OPTION, LIMA_MISSING,
 * IMAGE_MISSING, NETWORK_UNENFORCEABLE, CONFIG_REFUSED, BUSY, START_TIMEOUT, START_FAILED and others, `step` saying where.
 */
export async function createLane(options: CreateLaneOptions = {}): Promise<Lane> {
  if (typeof options !== "object" || options === null || Array.isArray(options))
    throw badOption("the options of createLane() must be an object");
  const { queueTimeoutSeconds, ...rest } = options;
  checkQueueTime(queueTimeoutSeconds);
  if ("syncInTimeoutSeconds" in rest)
    throw badOption("option syncInTimeoutSeconds is about Sandcastle: createLane() has no sync-in to wait for");
  const told = whence(createLane);
  try {
    return await startLane(resolveOptions(rest, NAMES), { queueTimeoutSeconds });
  } catch (error) {
    throw told(error);
  }
}
