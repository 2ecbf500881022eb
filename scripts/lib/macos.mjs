#!/usr/bin/env node
// SPDX-License-Identifier: Apache-2.0
// scripts/check --macos [--dry-run] [STEP...]: what a person runs on a Mac to prove what could not be proven without one. The steps
// and what each proves are the table of docs/MACOS.md. Last line: "macos: N passed, N failed, N skipped".
import { spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { homedir, tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("../..", import.meta.url));
const cli = join(root, "dist", "cli", "main.js");
const IMAGE = process.env.MACOS_IMAGE ?? join(homedir(), "agent-lane-image");
const MINUTE = 60_000;

class Failure extends Error {}

/** Runs a program to its end: what it wrote. Throws when it fails, unless `may`. */
function sh(command, args, { minutes = 2, may = false, env = {}, cwd = root } = {}) {
  const r = spawnSync(command, args, { cwd, encoding: "utf8", timeout: minutes * MINUTE, killSignal: "SIGKILL", env: { ...process.env, ...env }, maxBuffer: 64 << 20 });
  const out = `${r.stdout ?? ""}${r.stderr ?? ""}`;
  if (r.error || (!may && r.status !== 0))
    throw new Failure(`${[command, ...args].join(" ")}: ${r.error?.message ?? `exit ${r.status ?? r.signal}`}\n${out.split("\n").slice(-25).join("\n")}`);
  return out;
}
const lane = (...args) => sh(process.execPath, [cli, ...args], { minutes: 10 });
function need(what, fact) {
  if (!fact) throw new Failure(what);
}

/** The version of macOS is one that vz of Lima runs on. */
export const macosServes = (text) => Number(/^(\d+)/.exec(text.trim())?.[1] ?? 0) >= 13;
/** `codesign -d --entitlements - limactl` shows the one without which no VM starts. */
export const signedForVms = (text) => /com\.apple\.security\.virtualization/.test(text);
/** `limactl info` names vz among its drivers. */
export const hasVz = (text) => {
  const info = JSON.parse(text.slice(text.indexOf("{")));
  return [info.vmTypes ?? [], Object.keys(info.vmTypesEx ?? {})].flat().includes("vz");
};
/** Virtual machines of Virtualization.framework that run now, by `ps -axo pid=,comm=`. */
export const machines = (text) => text.split("\n").filter((line) => line.includes("com.apple.Virtualization.VirtualMachine")).length;

const vms = () => machines(sh("ps", ["-axo", "pid=,comm="]));

/** A process that opens a lane, says its name and waits. */
function owner(dir) {
  const script = `import { createLane } from ${JSON.stringify(join(root, "dist", "index.js"))};
    const lane = await createLane({ cpus: 2, memoryGiB: 2, timeoutMinutes: 10 });
    console.log(lane.name); setInterval(() => {}, 1000);`;
  const file = join(dir, "owner.mjs"), log = join(dir, "owner.log");
  writeFileSync(file, script);
  sh("sh", ["-c", `"$0" "$1" >"$2" 2>&1 & echo $! >"$2.pid"`, process.execPath, file, log]);
  return { log, pid: Number(readFileSync(`${log}.pid`, "utf8")) };
}
async function until(what, test, seconds) {
  for (const end = Date.now() + seconds * 1000; Date.now() < end; await sleep(500)) if (test()) return;
  throw new Failure(`waited ${seconds} s in vain: ${what}`);
}
async function opened(run) {
  await until("the lane to open", () => /^agent-lane-/m.test(readFileSync(run.log, "utf8")), 150);
  return /^agent-lane-\S+/m.exec(readFileSync(run.log, "utf8"))[0];
}
const dirOf = (name) => join(process.env.AGENT_LANE_HOME ?? join(homedir(), ".agent-lane"), "lima", name);

/** In this order. `by` is what is run, for people; `proves` goes into docs/MACOS.md. */
export const STEPS = [
  {
    name: "machine",
    by: "`sw_vers`, `uname -m`, `codesign -d --entitlements - limactl`, `limactl info`",
    proves: "macOS 13 or newer on Apple Silicon; limactl is signed for virtualization and has the driver vz",
    run() {
      need("this macOS is older than 13", macosServes(sh("sw_vers", ["-productVersion"])));
      need("this is no Apple Silicon", sh("uname", ["-m"]).trim() === "arm64");
      const limactl = sh("sh", ["-c", "command -v limactl"]).trim();
      need(`${limactl} is not signed for virtualization`, signedForVms(sh("codesign", ["-d", "--entitlements", "-", limactl])));
      need("limactl has no driver vz", hasVz(sh("limactl", ["info"])));
    },
  },
  {
    name: "build",
    by: "`npm ci --ignore-scripts`, `npm run build`",
    proves: "the addon and the keeper build here, and Node loads the addon; the lane agents, which are Linux programs, come from `scripts/build-prebuilds`",
    run() {
      sh("npm", ["ci", "--ignore-scripts"], { minutes: 10 });
      sh("npm", ["run", "build"], { minutes: 15 });
      need("the addon does not load", /^\d+\.\d+/m.test(lane("--version")));
    },
  },
  {
    name: "c",
    by: "`make check-c`",
    proves: "`src/platform_darwin.c` and `src/platform_darwin_proc.c`: identities, clocks, cloning, listeners, command lines; the keeper's watch",
    run: () => void sh("make", ["check-c"], { minutes: 20 }),
  },
  {
    name: "doctor",
    by: "`agent-lane doctor`",
    proves: "what a lane needs is found where Homebrew puts it, and a directory that the group admin may write to is no fault",
    run: () => void lane("doctor"),
  },
  {
    name: "image",
    by: "`image/add-raw DIR`, `agent-lane image import DIR`",
    proves: "the raw disk is made and stored; cloning on APFS keeps it from taking its size again",
    run() {
      need(`there is no aarch64 image in ${IMAGE} (set MACOS_IMAGE)`, existsSync(join(IMAGE, "manifest.json")));
      sh(join(root, "image", "add-raw"), [IMAGE], { minutes: 10 });
      lane("image", "import", IMAGE);
      lane("image", "verify", "--all");
    },
  },
  {
    name: "lane",
    by: "`createLane`, `exec`, `copyIn`, `copyOut`, `close`",
    proves: "Lima accepts our directory, vz boots it, the ssh port is the host agent's, the guest proves itself, and after close no VM of Virtualization.framework is left",
    run(dir) {
      const before = vms();
      const script = `import { createLane } from ${JSON.stringify(join(root, "dist", "index.js"))};
        const lane = await createLane({ cpus: 2, memoryGiB: 2, onEvent: (e) => console.error(e.type, e.timeMs) });
        const { stdout } = await lane.exec("uname -sm; cat", { stdin: "x".repeat(300000) });
        if (stdout !== "Linux aarch64\\n" + "x".repeat(300000)) throw new Error(stdout.slice(0, 200));
        await lane.copyIn(${JSON.stringify(join(root, "docs"))}, lane.worktreePath + "/docs");
        await lane.copyOut(lane.worktreePath + "/docs", ${JSON.stringify(join(dir, "docs"))});`;
      sh(process.execPath, ["--input-type=module", "-e", `${script}\nawait lane.close();`], { minutes: 5 });
      sh("diff", ["-r", join(root, "docs"), join(dir, "docs")]);
      need("a VM is left after close", vms() <= before);
    },
  },
  {
    name: "owner",
    by: "SIGKILL of the process that opened a lane",
    proves: "the keeper notices by kqueue and destroys the lane in seconds, the VM with it",
    async run(dir) {
      const before = vms(), run = owner(dir), name = await opened(run);
      process.kill(run.pid, "SIGKILL");
      await until(`${name} to be destroyed`, () => !existsSync(dirOf(name)) && vms() <= before, 60);
    },
  },
  {
    name: "sweep",
    by: "SIGKILL of the owner and its keeper, then `agent-lane reap`",
    proves: "what both leave behind is found and destroyed: no host agent, no VM, no directory",
    async run(dir) {
      const before = vms(), run = owner(dir), name = await opened(run);
      for (const pid of sh("pgrep", ["-f", `agent-lane-keeper .*${run.pid}:`], { may: true }).split("\n").filter(Boolean)) process.kill(Number(pid), "SIGKILL");
      process.kill(run.pid, "SIGKILL");
      await sleep(2000);
      lane("reap");
      await until(`${name} to be destroyed`, () => !existsSync(dirOf(name)) && vms() <= before, 60);
    },
  },
  {
    name: "launchd",
    by: "`agent-lane reap --install`, `launchctl list`, `--uninstall`",
    proves: "launchd takes the agent, runs it, and forgets it",
    run() {
      lane("reap", "--install");
      lane("reap", "--install"); // anew, in place of the older one
      const list = sh("launchctl", ["list"]);
      need("launchd does not know the agent", /com\.agent-lane\.reap-/.test(list));
      lane("reap", "--uninstall");
      need("launchd still knows the agent", !/com\.agent-lane\.reap-/.test(sh("launchctl", ["list"])));
    },
  },
  {
    name: "verify",
    by: "`agent-lane verify --network open`",
    proves: "the boundary on vz, from inside: no shared directory, socket, key or other lane; what macOS does not show says \"not run\"",
    run: () => void lane("verify", "--network", "open"),
  },
  {
    name: "sandcastle",
    by: "`scripts/demo`",
    proves: "Sandcastle's run with a scripted agent: branch, commits, patch, nothing left",
    run: () => void sh(join(root, "scripts", "demo"), [], { minutes: 20 }),
  },
  {
    name: "sleep",
    by: "by hand: open a lane with `timeoutMinutes: 30`, run `sleep 600`, close the lid for ten minutes, open it",
    proves: "the command goes on or ends by itself, the guest's clock is right again, and the time asleep counts for the lane's life",
    manual: true,
  },
  {
    name: "logout",
    by: "by hand: log out and in with a lane open, then `agent-lane ls`",
    proves: "the keeper, or at the latest the launchd agent, has ended the lane",
    manual: true,
  },
];

async function main(args) {
  const dry = args.includes("--dry-run"), wanted = args.filter((arg) => arg !== "--dry-run");
  const unknown = wanted.filter((name) => !STEPS.some((step) => step.name === name));
  if (unknown.length > 0) {
    console.error(`usage: scripts/check --macos [--dry-run] [STEP...]     steps: ${STEPS.map((step) => step.name).join(" ")}`);
    return 2;
  }
  const steps = STEPS.filter((step) => wanted.length === 0 || wanted.includes(step.name));
  const count = { passed: 0, failed: 0, skipped: 0 };
  if (!dry && process.platform !== "darwin") {
    console.error("check --macos: this is not macOS, so nothing of it can run here; --dry-run lists the steps");
    return 1;
  }
  for (const step of steps) {
    if (dry || step.manual) {
      console.log(`${step.name}\n  ${step.by}\n  proves: ${step.proves}`);
      count.skipped++;
      continue;
    }
    const dir = mkdtempSync(join(tmpdir(), "agent-lane-macos-")), began = Date.now();
    try {
      await step.run(dir);
      count.passed++;
      console.log(`ok      ${step.name} (${Math.round((Date.now() - began) / 1000)} s)`);
    } catch (error) {
      count.failed++;
      console.log(`FAILED  ${step.name}: ${error instanceof Failure ? error.message : error.stack}`);
    } finally {
      rmSync(dir, { recursive: true, force: true });
    }
  }
  console.log(`macos: ${count.passed} passed, ${count.failed} failed, ${count.skipped} skipped`);
  return count.failed > 0 ? 1 : 0;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) process.exitCode = await main(process.argv.slice(2));
