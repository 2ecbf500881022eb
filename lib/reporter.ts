// SPDX-License-Identifier: Apache-2.0
// What a lane's events are in words, and the reporter that writes them to stderr: one line each, so that the lanes of one
// process, and whatever else writes there, do not overwrite each other.
import type { LaneEvent } from "./events.js";
import { reachText } from "./reach.js";

/** When the reporter speaks: `"auto"`: where stderr is a terminal. */
export type ReporterChoice = "off" | "auto" | "on";

type Listener = (event: LaneEvent) => unknown;

/** Control characters, and what turns the writing direction around: a guest's words must not drive the terminal. */
const UNSAFE = /[\0-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]+/g;
const safe = (text: string): string => text.replace(UNSAFE, " ").trim();

const DOING: Readonly<Record<string, string>> = {
  queued: "waits for a place",
  creating: "is being created",
  booting: "boots",
  connecting: "is up, connecting",
  ready: "is ready",
  closing: "is being closed",
  closed: "is closed",
  stuck: "is stuck",
};

/** "0.3 s", "2 min 5 s". */
export function duration(ms: number): string {
  const seconds = ms / 1000;
  if (seconds < 99.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  return `${Math.floor(whole / 60)} min ${whole % 60} s`;
}

/** What an event says, without the lane's name and time. */
export function wordsOfEvent(event: LaneEvent): string {
  switch (event.type) {
    case "queued": {
      const place = event.position === undefined || event.of === undefined ? "" : `, ${event.position} of ${event.of}`;
      return safe(`waits for a place${place}${event.message === undefined ? "" : `: ${event.message}`}`);
    }
    case "preparing":
      return safe(`image of project ${event.project}, ${event.step}: ${event.message}`);
    case "ready":
      return `${DOING["ready"]}${event.reach === undefined ? "" : `; network "open" reaches ${safe(reachText(event.reach))}`}`;
    case "warning":
    case "notice":
      return safe(`${event.type}: ${event.message}`);
    case "close-failed":
      return safe(`could not be closed: ${event.error.message} ${event.error.cure}`);
    default:
      return safe(`${DOING[event.type] ?? event.type}${event.message === undefined ? "" : `: ${event.message}`}`);
  }
}

/** One line for an event: `  6.2 s  agent-lane-… is ready`. */
export function lineOf(event: LaneEvent): string {
  const time = "timeMs" in event && event.timeMs !== undefined ? duration(event.timeMs) : "";
  const lane = "lane" in event && event.lane !== undefined ? `${event.lane} ` : "";
  const what = event.type === "warning" || event.type === "notice" || event.type === "preparing" ? `${lane.trim()}${lane === "" ? "" : ": "}` : lane;
  return `${time.padStart(9)}  ${what}${wordsOfEvent(event)}`;
}

/** The listener that reports and then tells the user's own, whose result it gives back. */
export function reporting(choice: ReporterChoice, onEvent: Listener | undefined, stream: NodeJS.WriteStream = process.stderr): Listener | undefined {
  const speaks = choice === "on" || (choice === "auto" && stream.isTTY === true);
  if (!speaks) return onEvent;
  let last = "";
  return (event) => {
    const line = lineOf(event);
    // A queue that moves is told again and again; the same words are not.
    if (line !== last) stream.write(`${line}\n`);
    last = line;
    return onEvent?.(event);
  };
}
