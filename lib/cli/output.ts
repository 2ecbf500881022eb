// SPDX-License-Identifier: Apache-2.0
// How the command speaks: tables, colours where a terminal can show them, errors as two lines.
import pc from "picocolors";
import stringWidth from "string-width";
import { asLaneError } from "../errors.js";

/**
 * NO_COLOR (any text) means none, whatever else is set; FORCE_COLOR (any text but 0 and false) means colours also without a
 * terminal; otherwise a terminal gets them that can show them.
 */
export function wantsColour(terminal: boolean, env: NodeJS.ProcessEnv = process.env): boolean {
  if ((env["NO_COLOR"] ?? "") !== "") return false;
  const force = env["FORCE_COLOR"] ?? "";
  if (force !== "") return force !== "0" && force !== "false";
  return terminal && env["TERM"] !== "dumb";
}

const out = pc.createColors(wantsColour(process.stdout.isTTY === true));
const err = pc.createColors(wantsColour(process.stderr.isTTY === true));

export const colours = out;
/** Those of stderr. */
export const errColours = err;

export function print(text: string): void {
  process.stdout.write(`${text}\n`);
}

/** What JSON leaves as it is and a terminal does not: C1 controls, and what turns the writing direction around. */
const UNSEEN = /[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;

const escaped = (c: string): string => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`;

export function printJson(value: unknown): void {
  print(JSON.stringify(value, null, 2).replace(UNSEEN, escaped));
}

/** One JSON object in one line. */
export function printLine(value: unknown): void {
  print(JSON.stringify(value).replace(UNSEEN, escaped));
}

/** Columns that a text takes: characters may take two or none, and colours none. */
const width = (text: string): number => stringWidth(text);

/** How wide a terminal is; undefined where the stream is none. */
export function columnsOf(stream: NodeJS.WriteStream): number | undefined {
  return stream.isTTY === true ? stream.columns || 80 : undefined;
}

const characters = new Intl.Segmenter();

/** At most so many columns of a text from its beginning. */
function front(text: string, room: number): string {
  let end = 0, used = 0;
  for (const { segment } of characters.segment(text)) {
    used += width(segment);
    if (used > room) break;
    end += segment.length;
  }
  return text.slice(0, end);
}

/** A text without colours in one line of at most so many columns. */
export const clip = (text: string, room: number): string => (width(text) <= room ? text : `${front(text, room - 1)}…`);

/** Control characters from elsewhere (a limactl's output, a row of the registry) must not drive the terminal. */
export function plain(value: unknown): string {
  if (value === null || value === undefined) return "";
  const text = typeof value === "object" ? JSON.stringify(value) : String(value as string | number | boolean);
  return text.replace(/[\x00-\x1f]/g, (c) => (c === "\n" ? " " : "?")).replace(UNSEEN, "?");
}

/** Lines of at most `room` columns, broken at blanks. A word that is longer than that stays whole, unless `hard`. */
export function wrap(text: string, room: number, { hard = false } = {}): string[] {
  const lines: string[] = [];
  for (let word of text.split(" ")) {
    const last = lines.at(-1);
    if (last !== undefined && width(last) + 1 + width(word) <= room) {
      lines[lines.length - 1] = `${last} ${word}`;
      continue;
    }
    while (hard && width(word) > room) {
      const part = front(word, room);
      if (part === "") break;
      lines.push(part);
      word = word.slice(part.length);
    }
    lines.push(word);
  }
  return lines;
}

// With less than this a sentence is better broken by the terminal.
const PROSE_LEAST = 16;

/** Sentences for a terminal of so many columns: broken at blanks, below each other after what stands before them. Elsewhere as they are. */
export function prose(before: string, text: string, columns: number | undefined): string {
  const room = (columns ?? Infinity) - width(before);
  if (width(text) <= room || room < PROSE_LEAST) return before + text;
  return before + wrap(text, room).join(`\n${" ".repeat(width(before))}`);
}

// With less than this the last column would be a tower of single words.
const LAST_LEAST = 24;

/** A row that has no place beside the others: its first cell, and below it what the others are. */
function block(header: readonly string[], row: readonly string[], columns: number): string {
  const facts = header.flatMap((name, i) => (i === 0 || (row[i] ?? "") === "" ? [] : [`${out.dim(name)} ${row[i] ?? ""}`]));
  return [out.bold(row[0] ?? ""), ...wrap(facts.join(", "), columns - 2).map((line) => `  ${line}`)].join("\n");
}

/**
 * Left-aligned columns, two blanks apart, a bold header. On a terminal the last column is broken within itself, and where that
 * has no room each row is a block of its own; elsewhere a row is a line.
 */
export function table(
  header: readonly string[],
  rows: readonly (readonly string[])[],
  columns = columnsOf(process.stdout),
): string {
  const widths = header.map((name, i) => Math.max(width(name), ...rows.map((row) => width(row[i] ?? ""))));
  const last = widths.length - 1;
  const before = widths.slice(0, last).reduce((sum, n) => sum + n + 2, 0);
  const needed = before + (widths[last] ?? 0);
  const room = columns === undefined || needed <= columns ? Infinity : columns - before;
  if (room < LAST_LEAST && rows.length > 0) return rows.map((row) => block(header, row, columns ?? 80)).join("\n");
  const line = (cells: readonly string[]): string => {
    const front = cells.slice(0, last).map((cell, i) => cell + " ".repeat(Math.max(0, (widths[i] ?? 0) - width(cell)) + 2)).join("");
    const text = cells[last] ?? "";
    const [first = "", ...more] = room === Infinity ? [text] : wrap(text, room, { hard: true });
    return [`${front}${first}`.trimEnd(), ...more.map((part) => " ".repeat(before) + part)].join("\n");
  };
  return [out.bold(line(header)), ...rows.map(line)].join("\n");
}

/** "in 12 min", "3 h ago": seconds since the epoch, against now. */
export function when(seconds: number, now = Date.now() / 1000): string {
  const delta = Math.round(seconds - now);
  const n = Math.abs(delta);
  const text =
    n < 90
      ? `${n} s`
      : n < 5400
        ? `${Math.round(n / 60)} min`
        : n < 129600
          ? `${Math.round(n / 3600)} h`
          : `${Math.round(n / 86400)} d`;
  return delta >= 0 ? `in ${text}` : `${text} ago`;
}

/** "3 min", "2 h": a length of time. */
export function span(seconds: number): string {
  return when(Math.max(0, seconds), 0).replace(/^in /, "");
}

export function bytes(n: number): string {
  if (n >= 2 ** 30) return `${(n / 2 ** 30).toFixed(1)} GiB`;
  if (n >= 2 ** 20) return `${(n / 2 ** 20).toFixed(0)} MiB`;
  if (n >= 10_000) return `${(n / 2 ** 10).toFixed(0)} KiB`;
  return `${n} B`;
}

/** `error CODE: sentence` and `cure: …` on stderr; never a stack trace. */
export function complain(thrown: unknown): void {
  const error = asLaneError(thrown);
  const lane = error.lane !== undefined && error.message.includes(error.lane) ? undefined : error.lane;
  const where = [lane, error.step && `step ${error.step}`].filter(Boolean).join(", ");
  const columns = columnsOf(process.stderr);
  const what = `${err.red("error")} ${err.bold(error.code)}: ${plain(error.message)}${where === "" ? "" : ` (${where})`}`;
  process.stderr.write(`${prose("", what, columns)}\n`);
  if (error.cure !== "") process.stderr.write(`${prose("", `cure: ${plain(error.cure)}`, columns)}\n`);
}
