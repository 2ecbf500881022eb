// SPDX-License-Identifier: Apache-2.0
// limactl and ssh as a person would run them, with a deadline for each child.
import { spawn } from "node:child_process";

/** The environment of the bare tools: Lima's home, and nothing that changes their behaviour. */
export const bareEnv = (limaHome, more = {}) => ({
  PATH: "/usr/local/bin:/usr/bin:/bin",
  HOME: process.env.HOME,
  LIMA_HOME: limaHome,
  ...more,
});

/** Runs to the end; rejects on a non-zero exit or after `seconds`. Gives stdout. */
export function runChild(program, args, { env, input, seconds = 60 } = {}) {
  return new Promise((resolve, reject) => {
    const child = spawn(program, args, { env, stdio: [input === undefined ? "ignore" : "pipe", "pipe", "pipe"] });
    const timer = setTimeout(() => child.kill("SIGKILL"), seconds * 1000);
    let out = "", errors = "";
    child.stdout.on("data", (d) => { out += d; });
    child.stderr.on("data", (d) => { errors += d; });
    if (input !== undefined) child.stdin.end(input);
    child.on("error", reject);
    child.on("close", (code, signal) => {
      clearTimeout(timer);
      if (code === 0) resolve(out);
      else reject(new Error(`${program} ${args.join(" ")}: ${signal ?? `exit ${code}`}: ${errors.slice(-400)}`));
    });
  });
}
