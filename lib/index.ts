// SPDX-License-Identifier: Apache-2.0
// What the package exports, and nothing else.
export { lima } from "./provider.js";
export { LaneError, type LaneErrorCode } from "./errors.js";
export type { LimaOptions } from "./options.js";
export type {
  LaneCloseFailedEvent,
  LaneEvent,
  LaneNoticeEvent,
  LaneStateEvent,
  LaneStuckEvent,
  LaneWarningEvent,
} from "./events.js";
