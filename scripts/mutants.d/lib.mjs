// SPDX-License-Identifier: Apache-2.0
// Faults in the TypeScript face.
export default [
  { name: "lines after close", file: "lib/lines.ts", test: "ts:lane", from: `if (this.thrown !== undefined || this.#stopped()) return;`,
    to: `if (this.thrown !== undefined || (this.#stopped() && text === "")) return;` },
  { name: "a tail begins inside a character", file: "lib/lines.ts", test: "ts:lane", from: `from < bytes.length && (`, to: `from < 0 && (` },
  { name: "lines are not given back", file: "lib/exec.ts", test: "ts:lane", from: `core.taken(id, sub, data.length);`, to: `` },
  { name: "close is asked for again", file: "lib/lane.ts", test: "ts:lane", from: `this.#closing ??= this.#close();`, to: `this.#closing = this.#close();` },
  { name: "a failed sync-in counts", file: "lib/lane.ts", test: "ts:lane", from: `result.exitCode !== 0 ||`, to: `result.exitCode < 0 ||` },
  { name: "fractions of a CPU", file: "lib/rules.ts", test: "ts:options", from: `&& Number.isInteger(v)`, to: `&& !Number.isNaN(v)` },
  { name: "a lane is let go of twice", file: "lib/exit.ts", test: "ts:exit", from: `if (!held) return;`, to: `if (!held && this.#holds < 0) return;` },
  { name: "open requests are forgotten at the end", file: "lib/engine.ts", test: "ts:engine", from: `pending.reject(interrupted());`, to: `void pending;` },
];
