// SPDX-License-Identifier: Apache-2.0
// How far a copy is, in one line of stderr that is gone when the copy has ended. Without a terminal there is none.
import cliProgress from "cli-progress";
import type { CopyProgress } from "../copy.js";
import { bytes } from "./output.js";

function line(options: cliProgress.Options, params: cliProgress.Params, payload: { readonly files?: number }): string {
  const seconds = (Date.now() - params.startTime) / 1000;
  const rate = seconds < 1 ? "" : `, ${bytes(Math.round(params.value / seconds))}/s`;
  if (params.total === 0) return `${bytes(params.value)}, ${payload.files ?? 0} files${rate}`;
  const done = `${String(Math.floor(params.progress * 100)).padStart(3)}% of ${bytes(params.total)}`;
  return `[${cliProgress.Format.BarFormat(params.progress, options)}] ${done}${rate}`;
}

export class Bar {
  readonly #bar = new cliProgress.SingleBar({
    stream: process.stderr,
    format: line,
    barsize: 30,
    clearOnComplete: true,
    // What would have to be restored after a SIGKILL is better not changed.
    linewrap: true,
  });
  #started = false;
  #expected = 0;

  /** Whether somebody would see it. */
  static get seen(): boolean {
    return process.stderr.isTTY === true && process.env["TERM"] !== "dumb";
  }

  /** Bytes in all, should the copy itself not know. */
  expect(totalBytes: number): void {
    this.#expected = totalBytes;
  }

  update({ bytes: done, files, totalBytes = this.#expected }: CopyProgress): void {
    if (!this.#started) this.#bar.start(totalBytes, done, { files });
    this.#started = true;
    this.#bar.setTotal(totalBytes);
    this.#bar.update(done, { files });
  }

  /** Takes it off the screen. */
  stop(): void {
    if (this.#started) this.#bar.stop();
  }
}
