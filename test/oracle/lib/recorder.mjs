// SPDX-License-Identifier: Apache-2.0
// The call log of one scenario: what Sandcastle asked of a provider, in the order of asking, and what became of each
// call.
import { appendFileSync } from "node:fs";

const TEXT_KEPT = 2000;
const short = (text) => (text.length <= TEXT_KEPT ? text : `${text.slice(0, TEXT_KEPT)}…(${text.length} chars)`);

export class Recorder {
  #file;
  #next = 0;
  #watchers = [];
  #inFlight = new Map();

  /** Entries go to `file` as JSON lines at once, so that a scenario that kills its own process still leaves its log. */
  constructor(file) {
    this.#file = file;
  }

  #write(entry) {
    appendFileSync(this.#file, JSON.stringify(entry) + "\n");
  }

  /**
   * A call begins. The returned function ends it with an outcome; a call that never ends stays "pending" in the log.
   */
  begin(call, details, lane) {
    const n = ++this.#next;
    this.#write({ kind: "call", n, lane, call, ...details });
    this.#inFlight.set(n, call);
    for (const watcher of [...this.#watchers]) watcher({ call, ...details });
    return (outcome) => {
      this.#inFlight.delete(n);
      this.#write({ kind: "end", n, outcome });
    };
  }

  /** Numbers of the calls that are in flight now, apart from `call` itself. */
  inFlight(call) {
    return [...this.#inFlight].filter(([, name]) => name !== call).map(([n]) => n);
  }

  note(label, value) {
    this.#write({ kind: "note", label, value: typeof value === "string" ? short(value) : value });
  }

  /** Text that differs between two runs of the same scenario: replaced in the whole log afterwards. */
  scrub(text, name) {
    this.#write({ kind: "scrub", text, name });
  }

  /** A lane of the product has begun. */
  lane(name) {
    this.#write({ kind: "lane", name });
    this.scrub(name, "$LANE");
  }

  /** Runs `action` once, `ms` after a call that satisfies `wanted` began. */
  after(wanted, ms, action) {
    const watcher = (call) => {
      if (!wanted(call)) return;
      this.#watchers = this.#watchers.filter((w) => w !== watcher);
      setTimeout(action, ms);
    };
    this.#watchers.push(watcher);
  }
}

export const result = (r) => ({ exitCode: r.exitCode, stdout: short(r.stdout ?? ""), stderr: short(r.stderr ?? "") });
export const failure = (e) => ({ rejected: String(e?.message ?? e).slice(0, 500), code: e?.code });
export { short };
