// SPDX-License-Identifier: Apache-2.0
// Checks what was built for each target against what may be promised of it, and writes the list of files with their digests and the
// licences of what is linked in.
//   finish.mjs DIR SOURCES NAME=VERSION... -- LICENCE-FILE... -- TARGET...
import { createHash } from "node:crypto";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { checkTarget, filesOf } from "./rules.mjs";

const [dir, sources, ...rest] = process.argv.slice(2);
const parts = [[], [], []];
let at = 0;
for (const word of rest) {
  if (word === "--") at++;
  else parts[at].push(word);
}
const [versions, licences, targets] = parts;

const faults = targets.flatMap((target) => checkTarget(dir, target));
if (faults.length > 0) {
  console.error(`build-prebuilds: not as it must be:\n${faults.map((f) => `  ${f}`).join("\n")}`);
  process.exit(1);
}

const list = join(dir, "prebuilds.json");
const old = existsSync(list) ? JSON.parse(readFileSync(list, "utf8")) : undefined;
// What was built from other sources is not of this list.
const files = old?.sources === sources ? old.files : {};
for (const name of targets.flatMap(filesOf)) {
  const bytes = readFileSync(join(dir, name));
  files[name] = { bytes: bytes.length, sha256: createHash("sha256").update(bytes).digest("hex") };
}
const sorted = Object.fromEntries(Object.entries(files).sort(([a], [b]) => (a < b ? -1 : 1)));
const builtWith = Object.fromEntries(versions.map((v) => v.split("=")));
writeFileSync(list, `${JSON.stringify({ schema: 1, sources, builtWith, files: sorted }, undefined, 2)}\n`);

const title = (file) => ({ COPYING: `libarchive ${builtWith.libarchive}`, COPYRIGHT: "musl (in keeper, warden and lane agents for Linux)" })[basename(file)] ?? `${basename(dirname(file))} and LLVM's runtime (in the addon)`;
const notices = licences.map((file) => `${title(file)}\n${"=".repeat(title(file).length)}\n\n${readFileSync(file, "utf8").trim()}\n`);
writeFileSync(
  join(dir, "NOTICE.txt"),
  `The compiled files in this directory contain, besides Agent Lane itself (Apache-2.0), the following. SQLite ${builtWith.sqlite} is in the public domain.\n\n\n${notices.join("\n\n")}`,
);
