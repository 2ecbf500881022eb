// SPDX-License-Identifier: Apache-2.0
// What onEvent is told: the course of a lane's life, and what went wrong beside the calls.
import { wordsOf, type LaneError } from "./errors.js";
import { onRejection } from "./lines.js";
import type { Reach } from "./reach.js";

/**
 * A lane has entered a state: `queued` (waiting for a place), `creating`, `booting`, `connecting`, `ready`, `closing`,
 * `closed`. `closing` and `closed` carry the reason in `message` where there is one. `queued` comes again, with the
 * position in the queue and with who has the places in `message`, whenever that changes.
 */
export interface LaneStateEvent {
  /** The state that it has entered. */
  readonly type: "queued" | "creating" | "booting" | "connecting" | "ready" | "closing" | "closed";
  /** The lane's name. */
  readonly lane: string;
  /** Milliseconds since `create` was called. */
  readonly timeMs: number;
  /** Why, or what it waits for, where there is something to say. */
  readonly message?: string;
  /** Of `queued`, once it is known: 1 is the next to get a place. */
  readonly position?: number;
  /** Of `queued`: how many wait, this lane included. */
  readonly of?: number;
  /** Of `ready` with `network: "open"`: what the guest reaches besides the internet. */
  readonly reach?: Reach;
}

/** Something worth knowing that stops nothing, such as KVM that does not work. */
export interface LaneNoticeEvent {
  /** Always "notice". */
  readonly type: "notice";
  /** The lane's name. */
  readonly lane: string;
  /** Milliseconds since `create` was called. */
  readonly timeMs: number;
  /** What is worth knowing, as a sentence. */
  readonly message: string;
}

/** The lane's end could not be proven; the next sweep, or `agent-lane reap`, tries again. */
export interface LaneStuckEvent {
  /** Always "stuck". */
  readonly type: "stuck";
  /** The lane's name. */
  readonly lane: string;
  /** Milliseconds since `create` was called. */
  readonly timeMs: number;
  /** What is left, and why it could not be ended. */
  readonly message: string;
}

/**
 * Options that work but are likely to disappoint; and, while the lane runs (then with `lane` and `timeMs`), what it takes
 * of the host: `minHostFreeGiB` (space on the host is low), `maxHostLogMiB` (logs were emptied); `manifest`: something
 * could not be written into the run manifest; or `handle`: the handle was dropped without a close, and the lane is closed now.
 */
export interface LaneWarningEvent {
  /** Always "warning". */
  readonly type: "warning";
  /** The option that it is about, or `manifest` or `handle`. */
  readonly option: string;
  /** What is likely to disappoint, as a sentence. */
  readonly message: string;
  /** The lane's name, when one runs. */
  readonly lane?: string;
  /** Milliseconds since `create` was called, when a lane runs. */
  readonly timeMs?: number;
}

/**
 * The image of a project is not there yet, and is being made: by another lane or process (`waiting`), or by this one, in a
 * lane of its own. Comes with each step, with the setup's output (at most once a second), and every few seconds in silence.
 */
export interface LanePreparingEvent {
  /** Always "preparing". */
  readonly type: "preparing";
  /** The project's name. */
  readonly project: string;
  /** What is being done. */
  readonly step: "waiting" | "lane" | "inputs" | "setup" | "saving" | "ready";
  /** Milliseconds since the image was asked for. */
  readonly timeMs: number;
  /** What is being done; during the setup, its last line of output. */
  readonly message: string;
  /** The lane in which the setup runs, once it has a name. */
  readonly lane?: string;
}

/** `close()` resolved (it always does), but the lane may be left; `error` says why. */
export interface LaneCloseFailedEvent {
  /** Always "close-failed". */
  readonly type: "close-failed";
  /** The lane's name. */
  readonly lane: string;
  /** Why its end could not be proven. */
  readonly error: LaneError;
}

/** What `onEvent` is told; `type` says which one it is. */
export type LaneEvent =
  | LaneStateEvent
  | LanePreparingEvent
  | LaneNoticeEvent
  | LaneStuckEvent
  | LaneWarningEvent
  | LaneCloseFailedEvent;

const shown = new Set<string>();

/**
 * Without a listener, what is likely to disappoint becomes a process warning, each text once: options that will,
 * software emulation, which is several times slower, and files that changed while they were copied. And that the image of a
 * project is being made: it may take minutes.
 */
function show(event: LaneEvent): void {
  if (event.type === "preparing") {
    const { step, project, message } = event;
    if (step === "lane" || step === "waiting") return warnOnce(`preparing the image of project ${project}`, message);
    return;
  }
  const told = event.type === "notice" && /emulation|changed while/.test(event.message);
  if (event.type !== "warning" && !told) return;
  warnOnce(event.message);
}

function warnOnce(text: string, more?: string): void {
  if (shown.has(text)) return;
  shown.add(text);
  process.emitWarning(more === undefined ? text : `${text}: ${more}`, "AgentLaneWarning");
}

/** Calls the user's listener; what it throws must not reach the caller, whose work is more important. */
export function tell(listener: ((event: LaneEvent) => void) | undefined, event: LaneEvent): void {
  if (listener === undefined) return show(event);
  const threw = (error: unknown): void =>
    process.emitWarning(`onEvent threw for "${event.type}": ${wordsOf(error)}`, "AgentLaneWarning");
  try {
    onRejection(listener(event), threw);
  } catch (error) {
    threw(error);
  }
}
