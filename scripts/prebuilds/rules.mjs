// SPDX-License-Identifier: Apache-2.0
// The targets of the package, their files, and what each file may ask of the machine that loads it.
import { existsSync, readFileSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import { inspect } from "./inspect.mjs";

export const TARGETS = ["linux-x64", "linux-arm64", "linux-x64-musl", "linux-arm64-musl", "darwin-arm64"];
/** What every host needs: a guest is Linux, of its host's processor or of another one. */
export const GUEST = "guest";
/** Keeper and warden are static on Linux, so glibc's directory has those of musl too. */
export const filesOf = (target) =>
  target === GUEST
    ? ["guest/agent-x86_64", "guest/agent-aarch64"]
    : [`${target}/agent_lane.node`, ...(target.endsWith("-musl") ? [] : [`${target}/keeper`, `${target}/warden`])];

const GLIBC = 28;
const EXPORTS = ["napi_register_module_v1", "node_api_module_get_api_version_v1"];
const OF_NODE = /^(napi|node_api|uv)_/;
const LIBRARIES = /^(lib(c|m|dl|pthread|rt)\.so\.\d|ld-linux-(x86-64|aarch64)\.so\.\d)$/;

function addonOnLinux(r, musl) {
  const wrong = [];
  const versions = r.versions.map((v) => /^GLIBC_2\.(\d+)/.exec(v)?.[1]).filter((v) => v !== undefined);
  const strange = r.needed.filter((n) => (musl ? n !== "libc.so" : !LIBRARIES.test(n)));
  if (strange.length > 0) wrong.push(`needs ${strange.join(", ")}`);
  if (musl && r.versions.length > 0) wrong.push(`asks for ${r.versions.join(", ")}`);
  if (!musl && versions.length === 0) wrong.push("asks for no version of glibc at all");
  const newer = versions.filter((v) => Number(v) > GLIBC);
  if (newer.length > 0) wrong.push(`needs glibc 2.${Math.max(...newer)}, which is newer than 2.${GLIBC}`);
  for (const flag of ["RELRO", "NOW", "NODELETE"]) if (!r.flags.includes(flag)) wrong.push(`is linked without ${flag}`);
  if (r.exports.toSorted().join() !== EXPORTS.join()) wrong.push(`exports ${r.exports.join(", ")}`);
  return wrong;
}

function addon(r, target) {
  const wrong = target.startsWith("darwin") ? [] : addonOnLinux(r, target.endsWith("-musl"));
  const own = r.wanted.filter((w) => /^_*(al_|archive_|sqlite3_)/.test(w));
  if (own.length > 0) wrong.push(`lacks ${own.slice(0, 5).join(", ")}${own.length > 5 ? " and others" : ""}`);
  if (!r.wanted.some((w) => OF_NODE.test(w))) wrong.push("asks nothing of Node");
  if (target.startsWith("darwin")) {
    const strange = r.wanted.filter((w) => !OF_NODE.test(w));
    if (strange.length > 0) wrong.push(`expects of whoever loads it: ${strange.join(", ")}`);
    for (const name of EXPORTS) if (!r.exports.includes(name)) wrong.push(`does not export ${name}`);
  }
  return wrong;
}

/** What is wrong with the file at `path` as `name` of `target`; nothing when all is well. */
export function faultsOf(path, target, name) {
  if (!existsSync(path)) return ["is not there"];
  let r;
  try {
    r = inspect(path);
  } catch (error) {
    return [error.message];
  }
  const guest = target === GUEST;
  const cpu = guest ? { "guest/agent-x86_64": "x64", "guest/agent-aarch64": "arm64" }[name] : target.split("-")[1];
  const darwin = !guest && target.startsWith("darwin");
  const wrong = [];
  if (r.format !== (darwin ? "mach-o" : "elf")) return [`is ${r.format}`];
  if (r.cpu !== cpu) wrong.push(`is for ${r.cpu}`);
  for (const flag of r.flags ?? []) if (["EXECUTABLE_STACK", "WRITABLE_CODE", "RPATH"].includes(flag)) wrong.push(`has ${flag}`);
  if (darwin) {
    if (r.system !== "macOS 13.0") wrong.push(`is for ${r.system}`);
    if (!r.signed) wrong.push("has no signature, and arm64 runs nothing without one");
    if (r.needed.join() !== "/usr/lib/libSystem.B.dylib") wrong.push(`needs ${r.needed.join(", ")}`);
  }
  if (name.endsWith(".node")) wrong.push(...addon(r, target));
  else if (!darwin && (r.interpreter !== undefined || r.needed.length > 0)) wrong.push("is not static");
  // A path of the machine that built it: other bytes on another one.
  const content = readFileSync(path).toString("latin1");
  for (const place of [process.cwd(), join(homedir(), ".cache")]) if (content.includes(place)) wrong.push(`holds the path ${place}`);
  return wrong;
}

export function checkTarget(dir, target) {
  return filesOf(target).flatMap((name) => faultsOf(join(dir, name), target, name).map((fault) => `${name} ${fault}`));
}
