// SPDX-License-Identifier: Apache-2.0
// A limactl whose guests are this machine: the real lane agent, as the product delivered it, runs as a local process of
// this user. Everything else is the scripted limactl of the tests. <home>/run/oracle.json: {disk, start?, delete?};
// what a guest keeps is below `disk`; a verb may fail or hang.
import { spawn } from "node:child_process";
import { appendFileSync, existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { processesOf } from "./processes.mjs";

const LIFE_MS = 600_000; // a scenario that forgets a process does not leave it for ever
const self = fileURLToPath(import.meta.url);
const lima = process.env.LIMA_HOME ?? "/nonexistent";
const words = process.argv.slice(2).filter((a) => a !== "--tty=false");
if (words[0] === "--log-format") words.splice(0, 2);
const [verb] = words, last = words.at(-1);
const read = (...path) => (existsSync(join(...path)) ? readFileSync(join(...path), "utf8") : undefined);
const wanted = JSON.parse(read(lima, "..", "run", "oracle.json") ?? "{}");

function powerOff(name) {
  try {
    process.kill(Number(read(lima, name, "qemu.pid")), "SIGKILL");
  } catch {
    // it never ran
  }
}

const isAlive = (pid) => existsSync(`/proc/${pid}`) && !/^\d+ \(.*\) Z/.test(readFileSync(`/proc/${pid}/stat`, "utf8"));

/**
 * What a VM does by itself: when QEMU or the guest's agent is gone, everything in the guest is. Of a session of its
 * own, so that nobody's kill reaches it.
 */
function watch(disk, agent, pidfile) {
  const qemu = Number(readFileSync(pidfile, "utf8"));
  const poll = setInterval(() => {
    try {
      if (isAlive(agent) && isAlive(qemu)) return;
    } catch {
      // it has ended this very moment
    }
    clearInterval(poll);
    for (const pid of processesOf(disk)) process.kill(pid, "SIGKILL");
    try {
      process.kill(qemu, "SIGKILL");
    } catch {
      // it ended first
    }
  }, 50);
}

/** Listens as the lane's QEMU does, for whoever looks at its command line, until the lane's directory is gone. */
function qemu(dir) {
  const server = createServer((socket) => socket.on("error", () => undefined).end("SSH-2.0-scripted\r\n"));
  server.listen(0, "127.0.0.1", () => {
    writeFileSync(join(dir, "qemu.pid"), String(process.pid));
    const status = { sshLocalPort: server.address().port };
    appendFileSync(join(dir, "ha.stdout.log"), `${JSON.stringify({ time: "2026-01-01T00:00:00Z", status })}\n`);
  });
  setInterval(() => existsSync(dir) || process.exit(0), 1000);
  setTimeout(() => process.exit(0), LIFE_MS);
}

const actions = {
  start: (name) =>
    spawn(process.execPath, [self, "qemu", "-pidfile", join(lima, name, "qemu.pid")], {
      detached: true,
      stdio: "ignore",
    }).unref(),
  qemu: (pidfile) => qemu(join(pidfile, "..")),
  watch: (pidfile) => watch(words[1], Number(words[2]), pidfile),
  /** The guest's /run is a directory. */
  shell(script) {
    const name = words[3],
      run = join(wanted.disk, "run");
    mkdirSync(join(run, "agent-lane"), { recursive: true });
    writeFileSync(
      join(run, "agent-lane", "proof"),
      JSON.parse(/content: (".*")/.exec(read(lima, name, "lima.yaml"))[1]),
    );
    writeFileSync(join(lima, name, "oracle-disk"), wanted.disk);
    const guest = spawn("/bin/sh", ["-c", `${script.replaceAll("/run", run)} --local`], { stdio: "inherit" });
    spawn(process.execPath, [self, "watch", wanted.disk, String(guest.pid), join(lima, name, "qemu.pid")], {
      detached: true,
      stdio: "ignore",
    }).unref();
  },
  delete(name) {
    powerOff(name);
    const disk = read(lima, name, "oracle-disk");
    if (disk) rmSync(disk, { recursive: true, force: true });
    rmSync(join(lima, name), { recursive: true, force: true });
  },
};

if (wanted[verb] === "hang") setTimeout(() => undefined, LIFE_MS);
else if (wanted[verb] === "fail") {
  process.stderr.write(
    `${JSON.stringify({ level: "fatal", msg: `the scenario wants ${verb} to fail`, time: "2026-01-01T00:00:00Z" })}\n`,
  );
  process.exitCode = 1;
} else if (Object.hasOwn(actions, verb)) actions[verb](last);
else await import("../../ts/support/limactl.mjs");
