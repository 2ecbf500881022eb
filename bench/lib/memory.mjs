// SPDX-License-Identifier: Apache-2.0
// How far this process's memory grows while it works: all threads, ours included.
import { readFileSync, writeFileSync } from "node:fs";

const SAMPLE_MS = 20;
const resident = () => process.memoryUsage.rss() / 2 ** 20;

/** The kernel's own peak from now on, in MiB, where it can be had (Linux). */
function peakOfKernel() {
  try {
    writeFileSync("/proc/self/clear_refs", "5");
    return () => Number(/^VmHWM:\s+(\d+) kB/m.exec(readFileSync("/proc/self/status", "utf8"))[1]) / 1024;
  } catch {
    return () => 0;
  }
}

/** {during(work), grown()}: by how many MiB the resident set in any `work` was larger than before the first. */
export function memoryWatch() {
  let first, most = 0;
  return {
    async during(work) {
      first ??= resident();
      const peak = peakOfKernel();
      const timer = setInterval(() => { most = Math.max(most, resident()); }, SAMPLE_MS);
      try {
        return await work();
      } finally {
        clearInterval(timer);
        most = Math.max(most, peak(), resident());
      }
    },
    grown: () => Number(Math.max(0, most - first).toFixed(1)),
  };
}
