// SPDX-License-Identifier: Apache-2.0
// For scripts of a Stage: worker threads with lanes, and what the process holds.

// For scripts: workers whose body has `lima`, `create`, `say`; counts of what a process holds; lane directories that
// are there.
export const KIT = `
  import { Worker } from "node:worker_threads";
  import { readdirSync, readFileSync } from "node:fs";
  import { setTimeout as sleep } from "node:timers/promises";
  import { setFlagsFromString } from "node:v8";
  import { runInNewContext } from "node:vm";
  setFlagsFromString("--expose-gc");
  const gc = runInNewContext("gc");
  const HEAD = \`import { parentPort, workerData } from "node:worker_threads";
    const say = (what) => parentPort.postMessage(what);
    (async () => {
      const { lima } = await import(workerData.url);
      const create = (o = {}) => lima({ ...workerData.options, ...o }).create({ env: {} });\`;
  class Thread {
    constructor(body) {
      this.heard = [];
      this.waiting = [];
      this.worker = new Worker(HEAD + body + "})().catch((e) => say(String(e.code ?? e.stack)));", { eval: true, workerData: { url: PACKAGE, options: OPTIONS } });
      this.worker.on("message", (m) => { this.heard.push(m); for (const w of this.waiting) w(); });
      this.ended = new Promise((ok, no) => { this.worker.on("exit", ok); this.worker.on("error", no); });
      this.ended.catch(() => {}); // whoever awaits it hears of it
    }
    async hears(what) {
      while (!this.heard.includes(what)) await Promise.race([new Promise((ok) => this.waiting.push(ok)), this.ended.then((c) => { if (!this.heard.includes(what)) throw new Error("ended with " + c + " after " + this.heard); })]);
    }
  }
  const lanes = () => { try { return readdirSync(OPTIONS.home + "/lima").filter((n) => !n.startsWith("_config")); } catch { return []; } };
  const until = async (check) => { const end = Date.now() + 10000; while (!check() && Date.now() < end) await sleep(20); return check(); };
  const held = () => {
    for (let i = 0; i < 3; i++) gc();
    return {
      descriptors: readdirSync("/proc/self/fd").length,
      threads: readdirSync("/proc/self/task").length,
      resident: Number(/VmRSS:\\s+(\\d+)/.exec(readFileSync("/proc/self/status", "utf8"))[1]),
      resources: process.getActiveResourcesInfo().filter((r) => r !== "Timeout").sort().join(),
    };
  };
  const settled = async () => { let a = held(); for (let i = 0; i < 100; i++) { await sleep(50); const b = held(); if (b.descriptors === a.descriptors && b.threads === a.threads) return b; a = b; } return a; };
`;

/** What `held` and `settled` give. */
export interface Held {
  readonly descriptors: number;
  readonly threads: number;
  readonly resident: number;
  readonly resources: string;
}
