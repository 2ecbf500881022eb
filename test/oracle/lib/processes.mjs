// SPDX-License-Identifier: Apache-2.0
// Finds this user's processes by what they were started with. For Linux.
import { readdirSync, readFileSync, readlinkSync } from "node:fs";

export const commandLine = (pid) => readFileSync(`/proc/${pid}/cmdline`, "latin1");

/** Pids for which `wanted(pid)` holds, without our own. */
export function processes(wanted) {
  return readdirSync("/proc").filter((name) => /^\d+$/.test(name)).map(Number).filter((pid) => {
    try {
      return pid !== process.pid && !/^\d+ \(.*\) Z/.test(readFileSync(`/proc/${pid}/stat`, "utf8")) && wanted(pid);
    } catch {
      return false; // it has ended meanwhile, or is another user's
    }
  });
}

/**
 * What runs in `dir`: its program is there, or its environment names it. The watcher only has it among its arguments.
 */
export const processesOf = (dir) =>
  processes(
    (pid) =>
      readlinkSync(`/proc/${pid}/exe`).startsWith(`${dir}/`) ||
      readFileSync(`/proc/${pid}/environ`, "latin1").includes(dir),
  );
