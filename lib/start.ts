// SPDX-License-Identifier: Apache-2.0
// A lane from the options as they were given: the image of a project is found or made first.
import { performance } from "node:perf_hooks";
import { LaneError, OWN_ERRORS } from "./errors.js";
import type { Lane } from "./lane.js";
import { openLane, type OpenOptions } from "./open.js";
import type { ResolvedOptions } from "./options.js";
import { projectImage } from "./prepare.js";
import { checkEnv } from "./rules.js";

// Of a start that Sandcastle waits for: what is kept for the lane itself.
const LANE_SECONDS = 20;

/**
 * Starts a lane. Sandcastle gives up on one that takes too long, so for it all of this has `startTimeoutSeconds`; others wait
 * for the image as long as that takes, and the start timeout is the lane's alone.
 */
export async function startLane(options: ResolvedOptions, how: OpenOptions = {}): Promise<Lane> {
  const { image, ...rest } = options;
  if (typeof image !== "object") return openLane({ ...rest, image }, how);
  checkEnv(how.env ?? {}, "env"); // before a setup that takes minutes
  const { syncInWatchdog = false, queueTimeoutSeconds } = how;
  const begun = performance.now();
  const whole = options.startTimeoutSeconds;
  const seconds = syncInWatchdog ? whole - Math.min(LANE_SECONDS, Math.ceil(whole / 2)) : undefined;
  const found = await projectImage({ ...options, image }, { seconds, queueTimeoutSeconds });
  const left = syncInWatchdog ? whole - Math.floor((performance.now() - begun) / 1000) : whole;
  if (left < 5)
    throw new LaneError({
      code: "IMAGE_NOT_READY",
      message: `image ${found.image} was made, and no time is left of startTimeoutSeconds (${whole}) to start a lane`,
      cure: `Start again: the image is there now. ${OWN_ERRORS.IMAGE_NOT_READY.cure}`,
    });
  return openLane({ ...rest, image: found.image, startTimeoutSeconds: left }, how);
}
