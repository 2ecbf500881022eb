// SPDX-License-Identifier: Apache-2.0
// How far a process's memory grows while it works: all threads, ours included.
import { readFileSync, writeFileSync } from "node:fs";

const SAMPLE_MS = 20;
const status = (key) => Number(new RegExp(`^${key}:\\s+(\\d+) kB`, "m").exec(readFileSync("/proc/self/status", "utf8"))[1]) / 1024;

/** The kernel's own peak, from now on, where it can be had (Linux). */
function peakOfKernel() {
  try {
    writeFileSync("/proc/self/clear_refs", "5");
    return () => status("VmHWM");
  } catch {
    return () => 0;
  }
}

/** Runs `work`; gives {value, grown}: what it gives, and by how many MiB the resident set was larger than before. */
export async function grown(work) {
  globalThis.gc?.();
  const before = process.memoryUsage.rss() / 2 ** 20, peak = peakOfKernel();
  let most = 0;
  const timer = setInterval(() => { most = Math.max(most, process.memoryUsage.rss() / 2 ** 20); }, SAMPLE_MS);
  try {
    const value = await work();
    return { value, grown: Math.max(most, peak(), process.memoryUsage.rss() / 2 ** 20) - before };
  } finally {
    clearInterval(timer);
  }
}
