// SPDX-License-Identifier: Apache-2.0
// Faults in the TypeScript face.
export default [
  { name: "lines after close", file: "lib/lines.ts", test: "ts:lane", from: `if (this.thrown !== undefined || this.#stopped()) return;`,
    to: `if (this.thrown !== undefined || (this.#stopped() && text === "")) return;` },
  { name: "a tail begins inside a character", file: "lib/lines.ts", test: "ts:lane", from: `from < bytes.length && (`, to: `from < 0 && (` },
  { name: "lines are not given back", file: "lib/exec.ts", test: "ts:lane", from: `core.taken(running.id, sub, data.length);`, to: `` },
  { name: "close is asked for again", file: "lib/lane.ts", test: "ts:lane", from: `this.#closing ??= this.#close();`, to: `this.#closing = this.#close();` },
  { name: "a failed sync-in counts", file: "lib/lane.ts", test: "ts:lane", from: `result.exitCode !== 0 ||`, to: `result.exitCode < 0 ||` },
  { name: "fractions of a CPU", file: "lib/rules.ts", test: "ts:options", from: `&& Number.isInteger(v)`, to: `&& !Number.isNaN(v)` },
  { name: "nobody leaves at the process's end", file: "lib/exit.ts", test: "ts:exit", only: "no abort",
    from: `void native().leave(LEAVE_MS)`, to: `void (native() && LEAVE_MS)` },
  { name: "engines work on while the process ends", file: "src/engine_end.c", test: "c:test_engine_end",
    from: `e->stopped = e->lanes || e->busy || e->inbox || e->refuse;`, to: `e->stopped = false;` },
  { name: "open requests are forgotten at the end", file: "lib/engine.ts", test: "ts:engine", from: `pending.reject(interrupted());`, to: `void pending;` },
];
