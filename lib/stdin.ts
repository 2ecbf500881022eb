// SPDX-License-Identifier: Apache-2.0
// A command's stdin from memory or from a stream: no more is read than the guest takes, and the end is exact.
import { types } from "node:util";
import type { Engine } from "./engine.js";
import { LaneError } from "./errors.js";
import { kindOf } from "./rules.js";

/** What a command may be given as stdin. Text is sent as UTF-8. */
export type Stdin = string | Uint8Array | NodeJS.ReadableStream;

// A write carries at most this much, and more waiting in the engine than that holds the source up.
const CHUNK = 256 * 1024;
// Errors of a write after which the command would wait for ever.
const LOST: ReadonlySet<string> = new Set(["NO_MEMORY", "IO_ERROR", "INTERNAL"]);
// Up to here input goes along with the request.
const WITH_REQUEST = 1024 * 1024;

/** The input that fits into the request itself; undefined: none, or it needs a Feed. */
export function atOnce(stdin: Stdin | undefined): Uint8Array | undefined {
  const bytes = typeof stdin === "string" ? Buffer.from(stdin, "utf8") : stdin;
  return types.isUint8Array(bytes) && bytes.length <= WITH_REQUEST ? bytes : undefined;
}

/** Writes the input piece by piece, until it ends or the command does. The caller's stream is never destroyed. */
export class Feed {
  readonly #engine: Engine;
  readonly #source: Stdin;
  readonly #onError: (error: unknown) => void;
  #id = 0;
  #stopped = false;
  #failed: { readonly error: unknown } | undefined;
  #ended = false;
  // Resolvers of what is waited for: room in the engine, or news of the source.
  #room: (() => void) | undefined;
  #news: (() => void) | undefined;
  readonly #onEvent = (): void => this.#news?.();
  readonly #onEnd = (): void => {
    this.#ended = true;
    this.#news?.();
  };
  readonly #onFailure = (error: unknown): void => {
    this.#failed ??= { error };
    this.#room?.(); // a command that takes nothing must not keep the failure waiting
    this.#news?.();
  };
  readonly #onClose = (): void => {
    if (!this.#ended) this.#onFailure(new Error("it was closed before its end"));
  };

  constructor(engine: Engine, source: Stdin, onError: (error: unknown) => void) {
    this.#engine = engine;
    this.#source = source;
    this.#onError = onError;
  }

  start(id: number): void {
    this.#id = id;
    void this.#run();
  }

  /** More input is welcome. */
  drain(): void {
    this.#room?.();
  }

  stop(): void {
    this.#stopped = true;
    this.#room?.();
    this.#news?.();
  }

  async #run(): Promise<void> {
    try {
      const source = this.#source;
      if (typeof source === "string") await this.#send(Buffer.from(source, "utf8"));
      else if (types.isUint8Array(source)) await this.#send(source);
      else await this.#read(source);
      if (!this.#stopped) await this.#write(new Uint8Array(), true);
    } catch (error) {
      if (!this.#stopped) this.#onError(error);
    }
  }

  async #read(stream: NodeJS.ReadableStream): Promise<void> {
    const { readableEnded, destroyed, errored } = stream as NodeJS.ReadableStream & {
      readableEnded?: boolean;
      destroyed?: boolean;
      errored?: unknown;
    };
    if (readableEnded === true) return;
    if (destroyed === true) throw errored ?? new Error("it was closed before its end");
    const listeners = { readable: this.#onEvent, end: this.#onEnd, error: this.#onFailure, close: this.#onClose };
    for (const [name, listener] of Object.entries(listeners)) stream.on(name, listener);
    try {
      while (!this.#stopped) {
        const news = new Promise<void>((resolve) => (this.#news = resolve));
        const chunk = stream.read() as unknown;
        if (chunk !== null) await this.#send(bytesOf(chunk));
        else if (this.#failed !== undefined) throw this.#failed.error;
        else if (this.#ended) return;
        else await news;
      }
    } finally {
      for (const [name, listener] of Object.entries(listeners)) stream.off(name, listener);
    }
  }

  async #send(data: Uint8Array): Promise<void> {
    for (let at = 0; at < data.length && !this.#stopped; at += CHUNK) {
      await this.#write(data.subarray(at, at + CHUNK), false);
      if (this.#failed !== undefined) throw this.#failed.error;
    }
  }

  async #write(data: Uint8Array, end: boolean): Promise<void> {
    const room = new Promise<void>((resolve) => (this.#room = resolve));
    try {
      const { queued } = await this.#engine.request<{ queued: number }>("write", { exec: this.#id, data, end });
      // Nothing of what was just written is queued: the command has closed its stdin, as in EPIPE.
      if (queued === 0 && data.length > 0) this.#stopped = true;
      if (queued > CHUNK && !this.#stopped && this.#failed === undefined) await room;
    } catch (error) {
      // The command has ended: what is left goes nowhere, as with a local program. Anything else would leave it waiting.
      if (!(error instanceof LaneError) || LOST.has(error.code)) throw error;
      this.#stopped = true;
    }
  }
}

/** What a stream gave, as bytes. Throws for what is neither bytes nor text. */
export function bytesOf(chunk: unknown): Uint8Array {
  if (typeof chunk === "string") return Buffer.from(chunk, "utf8");
  if (types.isUint8Array(chunk)) return chunk;
  throw new TypeError(`it gave ${kindOf(chunk)} instead of bytes or text`);
}
