// SPDX-License-Identifier: Apache-2.0
// What a tree is, by the same programs on the host and in the guest: find, sha256sum and lseek. Names are any bytes,
// here as Latin-1 texts.
import { execFileSync } from "node:child_process";

const SEGMENTS =
  'chomp; open(F, "<", $_) or die "$_: $!"; $end = -s F; @data = (); ' +
  "for ($at = 0; $at < $end; $at = $hole) { last unless defined($from = sysseek(F, $at, 3)); " +
  "$hole = sysseek(F, $from, 4) + 0; " +
  'push @data, ($from + 0) . "-$hole" } print join(",", @data), "\\0$_\\0"';

const SCRIPT = `set -e
find . -printf '%y %m %u %T@ %n %i %s\\0%P\\0%l\\0' | base64 -w0; echo
find . -type f -print0 | xargs -0r sha256sum -z | base64 -w0; echo
find . -type f -print0 | perl -0ne '${SEGMENTS}' | base64 -w0; echo`;

function parse(output) {
  const [entries, hashes, data] = output
    .split("\n")
    .map((line) => Buffer.from(line, "base64").toString("latin1").split("\0"));
  const found = new Map(),
    inodes = new Map();
  for (let i = 0; i + 2 < entries.length; i += 3) {
    const [facts, name, target] = entries.slice(i, i + 3);
    const [type, mode, user, mtime, links, inode, size] = facts.split(" ");
    found.set(name, { type, mode, user, mtime, ...(type !== "d" && { links, size }), ...(type === "l" && { target }) });
    if (type !== "d") inodes.set(inode, [...(inodes.get(inode) ?? []), name].sort());
  }
  for (const names of inodes.values())
    if (names.length > 1) for (const name of names) found.get(name).same = names.join(" = ");
  for (const line of hashes.filter(Boolean)) found.get(line.slice(68)).hash = line.slice(0, 64);
  for (let i = 0; i + 1 < data.length; i += 2) found.get(data[i + 1].slice(2)).data = data[i];
  return found;
}

/** {name: {type, mode, user, mtime, links, size, target, same: its hard links, hash, data: where it has no holes}}. */
export const hostManifest = (dir) =>
  parse(execFileSync("sh", ["-c", SCRIPT], { cwd: dir, encoding: "latin1", timeout: 60_000, maxBuffer: 64 << 20 }));

export async function guestManifest(lane, dir) {
  const r = await lane.exec(SCRIPT, { cwd: dir, timeoutMs: 120_000, maxOutputBytes: 64 << 20 });
  if (r.exitCode !== 0) throw new Error(`manifest of ${dir}: ${r.stderr}`);
  return parse(r.stdout);
}

/** What is not the same in both, one text each; `but` are facts that may differ. */
export function differences(a, b, but = []) {
  const list = [];
  const text = (entry) =>
    JSON.stringify(Object.fromEntries(Object.entries(entry ?? {}).filter(([key]) => !but.includes(key))));
  for (const name of new Set([...a.keys(), ...b.keys()]))
    if (text(a.get(name)) !== text(b.get(name)) || a.has(name) !== b.has(name))
      list.push(
        `${JSON.stringify(name)}: ${a.has(name) ? text(a.get(name)) : "nothing"} / ${b.has(name) ? text(b.get(name)) : "nothing"}`,
      );
  return list;
}
