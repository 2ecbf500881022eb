#!/usr/bin/env node
// SPDX-License-Identifier: Apache-2.0
// Runs one scenario against one provider and prints its normalised call log and outcome as JSON:
//   run-oracle.mjs --provider local|lima|agent --scenario NAME [--raw] [--faultless]        run-oracle.mjs --list
// local: the plain provider. lima: the product on real VMs. agent: the product with the lane agent as a local process,
// without a VM.
import { spawn } from "node:child_process";
import { closeSync, existsSync, mkdirSync, mkdtempSync, openSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { whatIsLeft } from "./lib/left.mjs";
import { normalise } from "./lib/normalise.mjs";
import { makePlace } from "./lib/place.mjs";
import { scenarios } from "./scenarios/index.mjs";

const DEADLINE_SECONDS = 60, BOOT_SECONDS = 120, LINGER_SECONDS = 8;
const child = fileURLToPath(new URL("./child.mjs", import.meta.url));

/**
 * HOME and TMPDIR are scratch folders, so that a scenario cannot touch yours; the product's home on real VMs stays the
 * real one.
 */
function environment(provider, scratch, faultless) {
  for (const name of ["home", "tmp"]) mkdirSync(join(scratch, name));
  return {
    ...process.env,
    HOME: join(scratch, "home"),
    TMPDIR: join(scratch, "tmp"),
    GIT_CONFIG_NOSYSTEM: "1",
    GIT_TERMINAL_PROMPT: "0",
    // The host commits in another second than the guest, always: whether two object names are equal must not depend on
    // speed.
    GIT_COMMITTER_DATE: "2001-01-01T00:00:00Z",
    ...(faultless ? { ORACLE_FAULTLESS: "1" } : {}),
    ...makePlace(provider, scratch),
  };
}

/** Ends a process that has not ended by itself at its deadline, or some seconds after its scenario is done. */
function waitFor(running, seconds, log) {
  return new Promise((resolve) => {
    let last = Date.now() + seconds * 1000, done = false;
    const timer = setInterval(() => {
      if (!done && existsSync(log) && readFileSync(log, "utf8").includes('"scenario done"')) {
        done = true;
        last = Math.min(last, Date.now() + LINGER_SECONDS * 1000);
      }
      if (Date.now() > last) running.kill("SIGKILL");
    }, 250);
    running.on("close", (code, signal) => {
      clearInterval(timer);
      resolve(Date.now() > last ? { staysAfterwards: done } : { code, signal });
    });
  });
}

/**
 * Gives {scenario, provider, calls, notes, end, left, seconds}; `raw` keeps the entries as recorded, `output` is what
 * the process printed. `faultless`: faults that are the plain provider's own are left out.
 */
export async function runScenario(provider, name, { raw = false, faultless = false } = {}) {
  const scenario = scenarios[name];
  if (!scenario) throw new Error(`unknown scenario ${name}; run-oracle.mjs --list names them`);
  const scratch = mkdtempSync(join(tmpdir(), "oracle-"));
  const log = join(scratch, "log.jsonl"), printed = join(scratch, "printed");
  const started = Date.now();
  try {
    const out = openSync(printed, "w");
    const env = environment(provider, scratch, faultless);
    const running = spawn(process.execPath, [child, provider, name, log], {
      env,
      stdio: ["ignore", out, out],
      cwd: scratch,
    });
    closeSync(out);
    const end = await waitFor(
      running,
      (scenario.deadlineSeconds ?? DEADLINE_SECONDS) + (provider === "lima" ? BOOT_SECONDS : 0),
      log,
    );
    const seconds = (Date.now() - started) / 1000;
    const entries = existsSync(log) ? readFileSync(log, "utf8").trim().split("\n").map((line) => JSON.parse(line)) : [];
    const lanes = entries.filter((e) => e.kind === "lane").map((e) => e.name);
    const left = await whatIsLeft(provider, scratch, lanes, env);
    const result = normalise(
      raw ? entries.filter((e) => e.kind !== "scrub") : entries,
      raw ? [] : [{ text: scratch, name: "$SCRATCH" }],
    );
    return {
      scenario: name,
      provider,
      ...result,
      end,
      left,
      lanes: lanes.length,
      seconds,
      output: readFileSync(printed, "utf8").slice(-8000),
    };
  } finally {
    rmSync(scratch, { recursive: true, force: true });
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { values } = parseArgs({
    options: {
      provider: { type: "string", default: "local" },
      scenario: { type: "string" },
      raw: { type: "boolean" },
      faultless: { type: "boolean" },
      list: { type: "boolean" },
    },
  });
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
