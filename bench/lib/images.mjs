// SPDX-License-Identifier: Apache-2.0
// Images for the benchmarks.
import { execFileSync } from "node:child_process";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("../..", import.meta.url));

/** Imports the image of a directory by the installed command; its id. */
export function importImage(dir) {
  const out = execFileSync(join(root, "node_modules/.bin/agent-lane"), ["image", "import", dir, "--json"], { encoding: "utf8", timeout: 300_000 });
  return JSON.parse(out).id;
}
