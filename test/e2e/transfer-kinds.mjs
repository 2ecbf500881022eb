// SPDX-License-Identifier: Apache-2.0
// A tree with everything that a tree can have, into a real lane and out of it again; tests of transfer.test.mjs, which
// share one lane.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import {
  chmodSync,
  closeSync,
  linkSync,
  mkdirSync,
  openSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
  writeSync,
} from "node:fs";
import { randomBytes } from "node:crypto";
import { join } from "node:path";
import { it } from "node:test";
import { scratch } from "./lib/lanes.mjs";
import { differences, guestManifest, hostManifest } from "./lib/manifest.mjs";

/** Names that somebody's parser has stumbled over; bytes as Latin-1. */
export const NAMES = [
  "new\nline",
  "tab\there",
  "carriage\rreturn",
  "quote'single",
  'quote"double',
  "back\\slash",
  "\\n",
  "-rf",
  "--",
  " lead",
  "trail ",
  "$(touch pwned)",
  "`touch pwned`",
  "*",
  "?",
  "[a-z]",
  "~",
  "#",
  "!",
  "a;b",
  "a&b",
  "a|b",
  "a>b",
  ":",
  "C:",
  "%2e%2e%2f",
  "..%00",
  "...",
  "\xff\xfe",
  "caf\xe9",
  "\xc3",
  "\xf0\x28\x8c\xbc",
  "\x01\x1b[31m",
  "\x7f",
  "\u00e2\u0080\u00ae",
  "x".repeat(255),
  ".agent-lane-x",
];

const path = (dir, name) => Buffer.concat([Buffer.from(`${dir}/`), Buffer.from(name, "latin1")]);
const touch = (dir, when, ...names) =>
  execFileSync("touch", ["-h", "-d", when, "--", ...names], { cwd: dir, timeout: 10_000 });

function sparse(file, size, pieces) {
  const fd = openSync(file, "w");
  for (const at of pieces) writeSync(fd, randomBytes(65536), 0, 65536, at);
  closeSync(fd);
  truncateSync(file, size);
}

/** The tree; and the directories in it that must be made writable before it can be removed. */
export function makeKinds() {
  const dir = join(scratch("kinds"), "tree");
  for (const part of ["empty", "sub/deep", "names", "closed", "private", "links", "holes"])
    mkdirSync(join(dir, part), { recursive: true });
  writeFileSync(join(dir, "nothing"), "");
  writeFileSync(join(dir, "one"), "1");
  writeFileSync(join(dir, "sub/large"), randomBytes(3_000_001));
  for (const [i, size] of [511, 512, 513, 65535, 65536, 65537].entries())
    writeFileSync(join(dir, `sub/size-${i}`), randomBytes(size));
  for (const mode of [0o400, 0o444, 0o600, 0o640, 0o700, 0o755, 0o777]) {
    writeFileSync(join(dir, "sub/deep", mode.toString(8)), "mode");
    chmodSync(join(dir, "sub/deep", mode.toString(8)), mode);
  }
  for (const name of NAMES) writeFileSync(path(join(dir, "names"), name), `content of ${name}`);
  mkdirSync(path(join(dir, "names"), "dir\n\xff"));
  writeFileSync(path(join(dir, "names"), "dir\n\xff/f\\"), "in it");
  symlinkSync(Buffer.from("new\n\xfe'\"", "latin1"), path(join(dir, "names"), "link\n"));
  symlinkSync("../one", join(dir, "links/inside"));
  symlinkSync("/etc/passwd", join(dir, "links/absolute"));
  symlinkSync("../../../../../../etc/passwd", join(dir, "links/up"));
  symlinkSync("nowhere", join(dir, "links/dangling"));
  symlinkSync("loop", join(dir, "links/loop"));
  symlinkSync("../sub", join(dir, "links/directory"));
  symlinkSync("t/".repeat(2000), join(dir, "links/long"));
  linkSync(join(dir, "sub/large"), join(dir, "links/hard"));
  linkSync(join(dir, "one"), join(dir, "sub/hard-1"));
  linkSync(join(dir, "one"), join(dir, "sub/deep/hard-2"));
  sparse(join(dir, "holes/middle"), 8 << 20, [0, 4 << 20, (8 << 20) - 65536]);
  sparse(join(dir, "holes/end"), 6 << 20, [0]);
  sparse(join(dir, "holes/start"), 1 << 20, [(1 << 20) - 65536]);
  sparse(join(dir, "holes/only"), 5 << 20, []);
  let deep = join(dir, "sub");
  for (let i = 0; Buffer.byteLength(deep) < 3600; i++) deep = join(deep, `${"d".repeat(200)}-${i}`);
  mkdirSync(deep, { recursive: true });
  writeFileSync(join(deep, "at the end"), "deep");
  writeFileSync(join(dir, "closed/inside"), "in a directory that nobody may write");
  touch(dir, "2001-02-03 04:05:06.123456789", "one", "sub/large", "empty", "links/dangling");
  touch(dir, "1969-12-31 23:59:58 UTC", "nothing"); // of such times only whole seconds are kept
  touch(dir, "2105-01-01 00:00:00 UTC", "holes/only", "private");
  chmodSync(join(dir, "private"), 0o700);
  chmodSync(join(dir, "closed"), 0o555);
  touch(dir, "2010-10-10 10:10:10.101010101", "closed", "sub", ".");
  return { dir, open: () => chmodSync(join(dir, "closed"), 0o755) };
}

export function kindTests(lane) {
  it("in: every kind of file, by a manifest made in the guest", { timeout: 180_000 }, async () => {
    const tree = makeKinds();
    try {
      const r = await lane().copyIn(tree.dir, "/home/agent/kinds");
      const there = hostManifest(tree.dir),
        here = await guestManifest(lane(), "/home/agent/kinds");
      assert.deepEqual(differences(there, here, ["user"]), []);
      assert.deepEqual([...new Set([...here.values()].map((entry) => entry.user))], ["agent"]);
      assert.equal(r.changed, 0);
      // Again over itself: a merge that changes nothing.
      await lane().copyIn(tree.dir, "/home/agent/kinds");
      assert.deepEqual(differences(there, await guestManifest(lane(), "/home/agent/kinds"), ["user"]), []);
    } finally {
      tree.open();
    }
  });
}
