// SPDX-License-Identifier: Apache-2.0
// What a scenario leaves behind once its process is gone: guests and processes. Looked at for a while, since the
// product ends a lane from outside.
import { execFileSync } from "node:child_process";
import { existsSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { commandLine, processes, processesOf } from "./processes.mjs";

const SETTLE_SECONDS = 10;
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const alive = (pid) => existsSync(`/proc/${pid}`);

/** The command `agent-lane reap`, as a user would run it after a crash. */
function reap(env) {
  const main = fileURLToPath(new URL("./cli/main.js", import.meta.resolve("@agent-lane/provider-lima")));
  try {
    execFileSync(process.execPath, [main, "reap"], {
      env,
      encoding: "utf8",
      timeout: 120_000,
      stdio: ["ignore", "pipe", "pipe"],
    });
  } catch (error) {
    return String(error.stderr || error.message).slice(-1000);
  }
  return undefined;
}

/**
 * Gives {guests, processes, reaped?}: how many are left. Kills what is left of `scratch` afterwards, so that a scenario
 * never disturbs the next. Of the product only processes count at first: what ends a VM when its owner is killed leaves
 * the directory to the next sweep, which runs here.
 */
export async function whatIsLeft(provider, scratch, lanes, env) {
  const named = (pid) => lanes.some((lane) => commandLine(pid).includes(lane));
  const running = () =>
    provider === "lima" ? [...new Set([...processes(named), ...processesOf(scratch)])] : processesOf(scratch);
  const until = Date.now() + (provider === "local" ? 500 : SETTLE_SECONDS * 1000);
  let left = running();
  while (left.length > 0 && Date.now() < until) {
    await sleep(100);
    left = running();
  }
  const told = provider === "local" ? undefined : reap(env);
  const dir = provider === "local" ? join(scratch, "tmp") : join(env.AGENT_LANE_HOME, "lima");
  const isGuest = (name) => (provider === "local" ? name.startsWith("guest-") : lanes.includes(name));
  const guests = existsSync(dir) ? readdirSync(dir).filter(isGuest).length : 0;
  for (const pid of left) if (alive(pid)) try { process.kill(pid, "SIGKILL"); } catch { /* it has just ended */ }
  return { guests, processes: left.length, ...(told === undefined ? {} : { reap: told }) };
}
