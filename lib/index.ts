// SPDX-License-Identifier: Apache-2.0
// What the package exports, and nothing else.
export { createLane, type CreateLaneOptions } from "./create.js";
export { lima } from "./provider.js";
export { prepareImage, type PreparedImage } from "./prepare.js";
export { LaneError, type LaneErrorCode } from "./errors.js";
export type {
  CopyFileOutOptions,
  CopyInOptions,
  CopyInResult,
  CopyOptions,
  CopyOutOptions,
  CopyOutResult,
  CopyProgress,
  CopyResult,
} from "./copy.js";
export type { ExecLimits, ExecOptions, ExecResult } from "./exec.js";
export type { InteractiveOptions } from "./interactive.js";
export type { LinesOptions } from "./iterate.js";
export type { Lane } from "./lane.js";
export type { LimaOptions } from "./options.js";
export type { ProjectImage } from "./project.js";
export type { Reach } from "./reach.js";
export type { ReporterChoice } from "./reporter.js";
export type { LaneProcess, ProcessEnd, SpawnOptions } from "./process.js";
export type {
  LaneCloseFailedEvent,
  LaneEvent,
  LaneNoticeEvent,
  LanePreparingEvent,
  LaneStateEvent,
  LaneStuckEvent,
  LaneWarningEvent,
} from "./events.js";
