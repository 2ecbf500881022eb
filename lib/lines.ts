// SPDX-License-Identifier: Apache-2.0
// From bytes to the caller's lines: whole lines in, one call each, and an end to it when the callback fails.

import { isAscii } from "node:buffer";

const NEWLINE = 10;
// Text above 128 KiB gets memory of its own from the system each time, which costs more than what is done with it.
const PIECE = 64 * 1024;

/** A tail may begin inside a character; the rest of that character is dropped. */
export function tailText(bytes: Buffer, dropped: number): string {
  let from = 0;
  while (dropped > 0 && from < 3 && from < bytes.length && ((bytes[from] ?? 0) & 0xc0) === 0x80) from++;
  return bytes.toString("utf8", from);
}

/** Most output is ASCII; then bytes are characters and need no decoding. */
export function textOf(data: Buffer): string {
  return data.toString(isAscii(data) ? "latin1" : "utf8");
}

/**
 * An async callback is not awaited, but its rejection must not end the process. Also of a promise of another kind or
 * another context. Throws what looking at it throws.
 */
export function onRejection(returned: unknown, threw: (error: unknown) => void): void {
  if (typeof returned !== "object" || returned === null) return;
  const { then } = returned as { then?: unknown };
  if (typeof then === "function") Promise.resolve(returned).catch(threw);
}

/** Delivers lines to the caller's function until it throws or the lane closes. */
export class LineSink {
  thrown: { readonly error: unknown } | undefined;
  readonly #onLine: (line: string) => unknown;
  readonly #stopped: () => boolean;
  readonly #onThrow: (error: unknown) => void;

  constructor(onLine: (line: string) => void, stopped: () => boolean, onThrow: (error: unknown) => void) {
    this.#onLine = onLine;
    this.#stopped = stopped;
    this.#onThrow = onThrow;
  }

  /** Whole lines, each ended by a newline. */
  deliver(data: Buffer): void {
    for (let from = 0; from < data.length;) {
      let end = data.length;
      if (end - from > PIECE) {
        end = data.lastIndexOf(NEWLINE, from + PIECE - 1) + 1;
        if (end <= from) end = data.indexOf(NEWLINE, from + PIECE) + 1;
        if (end <= from) end = data.length;
      }
      this.#deliver(textOf(data.subarray(from, end)));
      from = end;
    }
  }

  #deliver(text: string): void {
    for (let from = 0; from < text.length;) {
      if (this.thrown !== undefined || this.#stopped()) return;
      let end = text.indexOf("\n", from);
      if (end < 0) end = text.length;
      try {
        const returned = this.#onLine(text.slice(from, end));
        if (returned !== undefined) onRejection(returned, (error) => this.#fail(error));
      } catch (error) {
        this.#fail(error);
      }
      from = end + 1;
    }
  }

  #fail(error: unknown): void {
    if (this.thrown !== undefined) return;
    this.thrown = { error };
    this.#onThrow(error);
  }
}
