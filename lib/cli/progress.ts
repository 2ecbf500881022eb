// SPDX-License-Identifier: Apache-2.0
// What is being waited for, in one line of a terminal's stderr with the time that it has taken; gone when the wait is over.
import { stripVTControlCharacters } from "node:util";
import type { LaneEvent } from "../events.js";
import { duration, lineOf, wordsOfEvent, type ReporterChoice } from "../reporter.js";
import { clip, columnsOf, errColours, plain, prose } from "./output.js";

const FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏";
const TICK_MS = 120;
// A line that is gone before it can be read is only a flicker.
const AFTER_MS = 1000;

/** Whether a line on stderr can be written over. */
export const livePossible = (stream: NodeJS.WriteStream = process.stderr): boolean =>
  stream.isTTY === true && process.env["TERM"] !== "dumb";

export class Waiting {
  readonly #stream: NodeJS.WriteStream;
  readonly #live: boolean;
  readonly #afterMs: number;
  #text = "";
  #since = 0;
  #frame = 0;
  #shown = false;
  #timer: NodeJS.Timeout | undefined;

  constructor({ live = livePossible(), afterMs = 0, stream = process.stderr }: { live?: boolean; afterMs?: number; stream?: NodeJS.WriteStream } = {}) {
    this.#live = live;
    this.#afterMs = afterMs;
    this.#stream = stream;
  }

  /** What is waited for now. `sinceMs`: how long that has taken already. */
  on(text: string, sinceMs?: number): void {
    if (text !== this.#text || sinceMs !== undefined) this.#since = performance.now() - (sinceMs ?? 0);
    this.#text = text;
    if (!this.#live) return;
    this.#draw();
    this.#timer ??= setInterval(() => this.#draw(), TICK_MS);
    this.#timer.unref();
  }

  /** The same wait in other words. */
  change(text: string): void {
    if (this.#timer !== undefined) this.#text = text;
  }

  /** Takes the line away. */
  off(): void {
    clearInterval(this.#timer);
    this.#timer = undefined;
    if (this.#shown) this.#stream.write("\r\x1b[K");
    this.#shown = false;
    this.#text = "";
  }

  /** A line that stays, above the one that does not. */
  say(text: string): void {
    if (this.#shown) this.#stream.write("\r\x1b[K");
    this.#shown = false;
    const columns = columnsOf(this.#stream);
    // What begins with blanks is a command to copy, or has columns of its own.
    const lines = text.split("\n").map((line) => (line.startsWith(" ") ? line : prose("", line, columns)));
    this.#stream.write(`${lines.join("\n")}\n`);
    if (this.#timer !== undefined) this.#draw();
  }

  #draw(): void {
    const ms = performance.now() - this.#since;
    if (ms < this.#afterMs) return;
    const frame = FRAMES[(this.#frame = (this.#frame + 1) % FRAMES.length)] ?? "";
    const time = duration(ms);
    // The last column stays free: a full line would wrap, and the next one could not write over it.
    const room = Math.max(1, (columnsOf(this.#stream) ?? 80) - time.length - 4);
    const short = clip(plain(this.#text), room);
    this.#stream.write(`\r\x1b[K${errColours.cyan(frame)} ${short} ${errColours.dim(time)}`);
    this.#shown = true;
  }
}

/** Waits for `work`; from a second on a terminal shows for what. */
export async function waited<T>(text: string, work: Promise<T>): Promise<T> {
  const waiting = new Waiting({ afterMs: AFTER_MS });
  waiting.on(text);
  try {
    return await work;
  } finally {
    waiting.off();
  }
}

/** Waits that belong to a lane's start and end: its events make the line, or, without a terminal that can, lines. */
export class LaneProgress {
  readonly waiting: Waiting;
  readonly #lines: boolean;
  readonly #quiet: boolean;
  #last = "";

  constructor(choice: ReporterChoice) {
    const live = livePossible();
    this.#quiet = choice === "off";
    this.#lines = choice === "on" && !live;
    this.waiting = new Waiting({ live: live && !this.#quiet });
  }

  /** For onEvent. */
  readonly event = (event: LaneEvent): void => {
    // What is likely to disappoint is said in every case.
    if (event.type === "warning" || event.type === "close-failed" || event.type === "stuck" || (event.type === "notice" && !this.#quiet))
      return this.#keep(wordsOfEvent(event));
    if (this.#lines) return this.#keep(lineOf(event));
    if (event.type === "ready" || event.type === "closed") return this.waiting.off();
    const lane = "lane" in event && event.lane !== undefined && event.type !== "preparing" ? "the lane " : "";
    this.waiting.on(`${lane}${wordsOfEvent(event)}`);
  };

  /** A step of the command's own. */
  step(text: string): void {
    if (this.#lines) this.#keep(text);
    else this.waiting.on(text);
  }

  /** A line that stays; "off" wants none. */
  note(text: string): void {
    if (!this.#quiet) this.waiting.say(text);
  }

  /** A line for those who watch: not for a log. */
  detail(text: string): void {
    if (this.#lines || (livePossible() && !this.#quiet)) this.waiting.say(text);
  }

  #keep(text: string): void {
    const line = stripVTControlCharacters(text);
    if (line === this.#last) return;
    this.#last = line;
    this.waiting.say(line);
  }
}
