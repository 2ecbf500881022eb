// SPDX-License-Identifier: Apache-2.0
// What there is of a lane, seen from outside the product: /proc, the file system and the sqlite3 command.
import { execFileSync } from "node:child_process";
import { existsSync, lstatSync, readFileSync, readdirSync, readlinkSync } from "node:fs";
import { join } from "node:path";

const read = (path) => {
  try {
    return readFileSync(path, "latin1");
  } catch {
    return "";
  }
};

/** Field 22 of /proc/PID/stat, counted after the last ')': the name before it may hold anything. "" when it is gone. */
export function startOf(pid) {
  const stat = read(`/proc/${pid}/stat`);
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  return fields[0] === "Z" || fields[0] === "X" ? "" : (fields[19] ?? "");
}

/** What one process is to the lane `name` of `home`: a word, or undefined. */
function kindOf(args, pid, home, name) {
  const dir = `${home}/lima/${name}`;
  const after = (word) => args[args.indexOf(word) + 1];
  if (args.includes("-pidfile") && after("-pidfile") === `${dir}/qemu.pid`) return args[1] === "--agent-lane-policy" ? "warden" : "qemu";
  if (args.includes("hostagent") && after("--pidfile") === `${dir}/ha.pid`) return "hostagent";
  if (args[0].startsWith(`ssh: ${dir}/ssh.sock`)) return "ssh";
  if (/(^|\/)limactl$/.test(args[0]) && args.includes(name)) return "limactl";
  // Anything else that names the lane or its directory: no decoy does, their names only begin the same way.
  const text = args.join(" ");
  return new RegExp(`(^|[^a-z0-9])(${name}|lima-${name})($|[^a-z0-9-])`).test(text) ? "other" : undefined;
}

/** [{pid, start, kind, args}] of the lane: our user's processes that name it, whoever started them, but not `except`. */
export function laneProcesses(home, name, except = []) {
  const found = [];
  for (const pid of readdirSync("/proc")) {
    if (!/^\d+$/.test(pid) || Number(pid) === process.pid || except.includes(Number(pid))) continue;
    const line = read(`/proc/${pid}/cmdline`);
    if (!line.includes(name)) continue;
    try {
      if (lstatSync(`/proc/${pid}`).uid !== process.getuid()) continue;
    } catch {
      continue;
    }
    const start = startOf(pid), args = line.split("\0");
    const kind = start === "" ? undefined : kindOf(args, pid, home, name);
    if (kind !== undefined) found.push({ pid: Number(pid), start, kind, args: args.filter(Boolean) });
  }
  return found;
}

/** The keepers of this home: the program's copies live below it. */
export function keepers(home) {
  const found = [];
  for (const pid of readdirSync("/proc")) {
    if (!/^\d+$/.test(pid)) continue;
    let exe;
    try {
      exe = readlinkSync(`/proc/${pid}/exe`);
    } catch {
      continue;
    }
    if (!exe.startsWith(`${home}/`) || !/\/keeper( \(deleted\))?$/.test(exe)) continue;
    const start = startOf(pid);
    if (start !== "") found.push({ pid: Number(pid), start, kind: "keeper" });
  }
  return found;
}

export const alive = ({ pid, start }) => startOf(pid) === start;

export function kill(target, signal = "SIGKILL") {
  if (!alive(target)) return false;
  try {
    process.kill(target.pid, signal);
    return true;
  } catch {
    return false;
  }
}

/** Everything below <home>/lima and <home>/run that a lane may leave: names, without Lima's own. */
export function entries(home) {
  const list = (dir, but) =>
    existsSync(join(home, dir)) ? readdirSync(join(home, dir)).filter((f) => !but.test(f)).map((f) => `${dir}/${f}`) : [];
  return [...list("lima", /^_(config|networks|cache)$/), ...list("run", /^(config\.lock|kvm-probe|.*\.lock)$/)];
}

export function sql(home, text, write = false) {
  const file = join(home, "registry.db");
  if (!existsSync(file)) return [];
  const args = [...(write ? [] : ["-readonly"]), "-cmd", ".timeout 10000", file, text];
  return execFileSync("sqlite3", args, { encoding: "utf8", timeout: 30_000 }).split("\n").filter(Boolean);
}

export const openRows = (home) => sql(home, "SELECT name || ' ' || state || ' ' || reason FROM lanes WHERE state <> 'closed' ORDER BY id");
