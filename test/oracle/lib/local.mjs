// SPDX-License-Identifier: Apache-2.0
// The trivial isolated provider: a temporary folder and child processes. It is the yardstick, so it must stay obvious.
import { spawn } from "node:child_process";
import { copyFile, cp, mkdir, mkdtemp, rm, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";

function runCommand(command, options, { worktreePath, env, running }) {
  return new Promise((resolve, reject) => {
    const withInput = options?.stdin !== undefined;
    const child = spawn("sh", ["-c", command], {
      cwd: options?.cwd ?? worktreePath, env, detached: true, stdio: [withInput ? "pipe" : "ignore", "pipe", "pipe"],
    });
    running.add(child);
    if (withInput) {
      child.stdin.on("error", () => {});
      child.stdin.end(options.stdin);
    }
    let stdout = "", stderr = "", rest = "";
    child.stdout.setEncoding("utf8").on("data", (text) => {
      stdout += text;
      if (!options?.onLine) return;
      const lines = (rest + text).split("\n");
      rest = lines.pop();
      lines.forEach((line) => options.onLine(line));
    });
    child.stderr.setEncoding("utf8").on("data", (text) => { stderr += text; });
    child.on("error", reject);
    child.on("close", (code) => {
      running.delete(child);
      if (rest && options?.onLine) options.onLine(rest);
      // With onLine the built-in providers give the lines joined, without the final newline.
      resolve({ stdout: options?.onLine ? stdout.replace(/\n$/, "") : stdout, stderr, exitCode: code ?? 137 });
    });
  });
}

async function create(guestEnv, createOptions) {
  const root = await mkdtemp(join(tmpdir(), "guest-"));
  const worktreePath = join(root, "workspace"), home = join(root, "home");
  await mkdir(worktreePath);
  await mkdir(home);
  const env = {
    PATH: `${home}/.local/bin:/usr/local/bin:/usr/bin:/bin`,
    HOME: home,
    TMPDIR: root,
    LANG: "C.UTF-8",
    ...guestEnv,
    ...createOptions.env,
  };
  const running = new Set();
  return {
    worktreePath,
    exec: (command, options) => runCommand(command, options, { worktreePath, env, running }),
    interactiveExec: (args, options) =>
      new Promise((resolve, reject) => {
        const child = spawn(args[0], args.slice(1), {
          cwd: options.cwd ?? worktreePath,
          env,
          detached: true,
          stdio: ["ignore", "inherit", "inherit"],
        });
        running.add(child);
        child.on("error", reject);
        child.on("close", (code) => {
          running.delete(child);
          resolve({ exitCode: code ?? 137 });
        });
      }),
    copyIn: async (hostPath, sandboxPath) => {
      if ((await stat(hostPath)).isDirectory()) return cp(hostPath, sandboxPath, { recursive: true });
      await mkdir(dirname(sandboxPath), { recursive: true });
      await copyFile(hostPath, sandboxPath);
    },
    copyFileOut: async (sandboxPath, hostPath) => {
      await mkdir(dirname(hostPath), { recursive: true });
      await copyFile(sandboxPath, hostPath);
    },
    close: async () => {
      for (const child of running) try { process.kill(-child.pid, "SIGKILL"); } catch { /* it has just ended */ }
      await rm(root, { recursive: true, force: true });
    },
  };
}

export const localProvider = ({ env, guestEnv } = {}) => ({
  tag: "isolated",
  name: "local",
  env: env ?? {},
  create: (options) => create(guestEnv, options),
});
