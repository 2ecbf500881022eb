// SPDX-License-Identifier: Apache-2.0
// What is left of lanes, counted from outside the product: ps, the file system and sqlite3 only.
import { execFileSync } from "node:child_process";
import { existsSync, readdirSync, readFileSync, realpathSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";

const LANE_NAME = /agent-lane-[a-z0-9]{8}-[a-z0-9]{8}/, LANE_PATH = /\/lima\/agent-lane-[a-z0-9]{8}-[a-z0-9]{8}/;

export const productHome = () => {
  const home = process.env.AGENT_LANE_HOME ?? join(homedir(), ".agent-lane");
  return existsSync(home) ? realpathSync(home) : home;
};

/** `limactl shell NAME` names no directory; its environment says whose lane it is. Unreadable counts as ours. */
function limaHomeOf(pid) {
  try {
    const entry = readFileSync(`/proc/${pid}/environ`, "utf8").split("\0").find((e) => e.startsWith("LIMA_HOME="));
    return entry?.slice("LIMA_HOME=".length);
  } catch {
    return undefined;
  }
}

/**
 * Our user's processes whose command line names a lane of `home` (hostagent, warden, QEMU, ssh master, shell, limactl).
 */
export function laneProcesses(home = productHome(), name = "") {
  const table = execFileSync("ps", ["-wweo", "pid=,uid=,stat=,args="], {
    encoding: "utf8",
    maxBuffer: 16 << 20,
    timeout: 20_000,
  });
  const found = [];
  for (const line of table.split("\n")) {
    const [, pid, uid, state, args] = /^\s*(\d+)\s+(\d+)\s+(\S+)\s+(.*)$/.exec(line) ?? [];
    if (!pid || Number(uid) !== process.getuid() || Number(pid) === process.pid || state.startsWith("Z")) continue;
    const ours = args.includes(`${home}/lima/`);
    const named =
      LANE_NAME.test(args) && !LANE_PATH.test(args) && (limaHomeOf(pid) ?? `${home}/lima`) === `${home}/lima`;
    if ((ours || named) && args.includes(name)) found.push({ pid: Number(pid), args });
  }
  return found;
}

/** Lane directories: everything in <home>/lima that is not Lima's own (`_config`, …). */
export function laneDirectories(home = productHome()) {
  const lima = join(home, "lima");
  return existsSync(lima) ? readdirSync(lima).filter((entry) => !entry.startsWith("_")) : [];
}

/** Half-built directories (`_tmp.NAME`) count too: they are lanes that never got their name. */
export function halfBuilt(home = productHome()) {
  const lima = join(home, "lima");
  return existsSync(lima) ? readdirSync(lima).filter((entry) => entry.startsWith("_tmp")) : [];
}

/** Rows that are not closed, read by sqlite3. */
export function openRows(home = productHome()) {
  const file = join(home, "registry.db");
  if (!existsSync(file)) return [];
  const sql = "SELECT name || ' ' || state FROM lanes WHERE state <> 'closed' ORDER BY id;";
  const out = execFileSync("sqlite3", ["-readonly", "-cmd", ".timeout 5000", file, sql], {
    encoding: "utf8",
    timeout: 20_000,
  });
  return out.split("\n").filter(Boolean);
}

export const leftovers = (home = productHome()) => ({
  processes: laneProcesses(home), directories: [...laneDirectories(home), ...halfBuilt(home)], rows: openRows(home),
});

export const isEmpty = (left) => left.processes.length + left.directories.length + left.rows.length === 0;

/** Waits until `check` gives something true; throws with `what` after `seconds`. */
export async function until(what, seconds, check) {
  const end = Date.now() + seconds * 1000;
  for (;;) {
    const value = await check();
    if (value) return value;
    if (Date.now() > end) throw new Error(`${what}: not within ${seconds} s`);
    await sleep(100);
  }
}

/** Waits until nothing is left of any lane of `home`; says what is, otherwise. */
export async function nothingLeft(seconds = 60, home = productHome()) {
  let left;
  const end = Date.now() + seconds * 1000;
  while (!isEmpty((left = leftovers(home)))) {
    if (Date.now() > end) throw new Error(`left after ${seconds} s: ${JSON.stringify(left, null, 1)}`);
    await sleep(100);
  }
}

export const alive = (pid) => {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
};

// As a program: prints the counts as one JSON object; of all lanes, or of those that E2E_LANES names (an argument would
// count itself).
if (process.argv[1] && realpathSync(process.argv[1]) === fileURLToPath(import.meta.url)) {
  const names = (process.env.E2E_LANES ?? "").split(" ").filter(Boolean), left = leftovers();
  const wanted = (text) => names.length === 0 || names.some((name) => text.includes(name));
  const count = (list) => list.filter((entry) => wanted(entry.args ?? entry)).length;
  console.log(
    JSON.stringify({ processes: count(left.processes), directories: count(left.directories), rows: count(left.rows) }),
  );
}
