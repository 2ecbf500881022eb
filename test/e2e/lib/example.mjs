// SPDX-License-Identifier: Apache-2.0
// Runs an example as a person does, with options for a small machine, and gives what it reports.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { scratch } from "./lanes.mjs";

export async function runExample(name, { registry, image, options, minutes = 10, args = [] }) {
  const script = fileURLToPath(new URL(`../../examples/${name}/run.mjs`, import.meta.url));
  const file = join(scratch("example"), "result.json");
  const { ANTHROPIC_API_KEY: _, ...env } = process.env; // the scripted agent
  const child = spawn(process.execPath, [script, ...args], {
    env: { ...env, npm_config_registry: registry, EXAMPLE_IMAGE: image, EXAMPLE_OPTIONS: JSON.stringify(options), EXAMPLE_RESULT: file },
    stdio: ["ignore", "pipe", "pipe"],
  });
  let out = "";
  for (const stream of [child.stdout, child.stderr]) stream.setEncoding("utf8").on("data", (text) => (out += text));
  const late = setTimeout(() => child.kill("SIGKILL"), minutes * 60_000);
  const code = await new Promise((resolve) => child.on("close", resolve));
  clearTimeout(late);
  assert.equal(code, 0, out);
  return { out, ...JSON.parse(readFileSync(file, "utf8")) };
}
