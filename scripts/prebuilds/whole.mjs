// SPDX-License-Identifier: Apache-2.0
// Before `npm publish` of a directory: refuses one that has not the checked files of every target. What is published is the tarball of
// scripts/build-package, of which npm asks nothing.
import { createHash } from "node:crypto";
import { existsSync, readFileSync } from "node:fs";
import { checkTarget, filesOf, GUEST, TARGETS } from "./rules.mjs";

const all = [...TARGETS, GUEST];
const faults = all.flatMap((target) => checkTarget("prebuilds", target));
const list = existsSync("prebuilds/prebuilds.json") ? JSON.parse(readFileSync("prebuilds/prebuilds.json", "utf8")).files : {};
for (const name of all.flatMap(filesOf)) {
  if (!existsSync(`prebuilds/${name}`)) continue;
  const digest = createHash("sha256").update(readFileSync(`prebuilds/${name}`)).digest("hex");
  if (list[name]?.sha256 !== digest) faults.push(`${name} is not the one that scripts/build-prebuilds has checked`);
}
if (faults.length > 0) {
  console.error(`publish: prebuilds/ is not that of a package:\n${faults.map((f) => `  ${f}`).join("\n")}\nPublish the tarball of scripts/build-package.`);
  process.exit(1);
}
