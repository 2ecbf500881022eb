#!/usr/bin/env node
// SPDX-License-Identifier: Apache-2.0
// Runs one scenario against one provider and prints its normalised call log and outcome as JSON:
//   run-oracle.mjs --provider local|lima --scenario NAME [--raw]        run-oracle.mjs --list
import { spawn } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, openSync, readFileSync, rmSync } from "node:fs";
import { homedir, tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { normalise } from "./lib/normalise.mjs";
import { scenarios } from "./scenarios/index.mjs";

const DEADLINE_SECONDS = 60, BOOT_SECONDS = 120;
const child = fileURLToPath(new URL("./child.mjs", import.meta.url));

/** HOME and TMPDIR are scratch folders, so that a scenario cannot touch yours; the product's home stays the real one. */
function environment(scratch) {
  for (const name of ["home", "tmp"]) mkdirSync(join(scratch, name));
  return {
    ...process.env, HOME: join(scratch, "home"), TMPDIR: join(scratch, "tmp"), GIT_CONFIG_NOSYSTEM: "1", GIT_TERMINAL_PROMPT: "0",
    // The host commits in another second than the guest, always: whether two object names are equal must not depend on speed.
    GIT_COMMITTER_DATE: "2001-01-01T00:00:00Z",
    AGENT_LANE_HOME: process.env.AGENT_LANE_HOME ?? join(homedir(), ".agent-lane"),
  };
}

function waitFor(processHandle, seconds) {
  return new Promise((resolve) => {
    let late = false;
    const timer = setTimeout(() => {
      late = true;
      processHandle.kill("SIGKILL");
    }, seconds * 1000);
    processHandle.on("close", (code, signal) => {
      clearTimeout(timer);
      resolve(late ? { deadline: true } : { code, signal });
    });
  });
}

/** Gives {scenario, provider, calls, notes, end, seconds}; `raw` keeps the entries as recorded, `output` is what the process printed. */
export async function runScenario(provider, name, { raw = false } = {}) {
  const scenario = scenarios[name];
  if (!scenario) throw new Error(`unknown scenario ${name}; run-oracle.mjs --list names them`);
  const scratch = mkdtempSync(join(tmpdir(), "oracle-"));
  const log = join(scratch, "log.jsonl"), printed = join(scratch, "printed");
  const started = Date.now();
  try {
    const out = openSync(printed, "w");
    const running = spawn(process.execPath, [child, provider, name, log], { env: environment(scratch), stdio: ["ignore", out, out], cwd: scratch });
    const end = await waitFor(running, (scenario.deadlineSeconds ?? DEADLINE_SECONDS) + (provider === "lima" ? BOOT_SECONDS : 0));
    const entries = existsSync(log) ? readFileSync(log, "utf8").trim().split("\n").map((line) => JSON.parse(line)) : [];
    const result = normalise(raw ? entries.filter((e) => e.kind !== "scrub") : entries, raw ? [] : [{ text: scratch, name: "$SCRATCH" }]);
    return { scenario: name, provider, ...result, end, seconds: (Date.now() - started) / 1000, output: readFileSync(printed, "utf8").slice(-8000) };
  } finally {
    rmSync(scratch, { recursive: true, force: true });
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { values } = parseArgs({ options: { provider: { type: "string", default: "local" }, scenario: { type: "string" }, raw: { type: "boolean" }, list: { type: "boolean" } } });
  if (values.list || !values.scenario) {
    for (const [name, { about }] of Object.entries(scenarios)) console.log(`${name.padEnd(26)} ${about}`);
    process.exit(values.list ? 0 : 2);
  }
  const result = await runScenario(values.provider, values.scenario, values);
  const said = result.calls.length + result.notes.length > 0;
  if (!said) process.stderr.write(result.output);
  console.log(JSON.stringify(result, null, 1));
  process.exit(said ? 0 : 1);
}
