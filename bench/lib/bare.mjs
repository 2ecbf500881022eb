// SPDX-License-Identifier: Apache-2.0
// One VM with nothing but limactl: create, start in the background, wait for the ssh banner, first command, delete.
// The yardstick of `bench cold`: the same image, the same QEMU policy, no product.
import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { createConnection } from "node:net";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { bareEnv, runChild } from "./children.mjs";

const DEADLINE_SECONDS = 120;

/** The secure plain template, by hand. JSON is YAML. */
function template(imageDir, { cpus, memoryGiB }) {
  const { boot, arch } = JSON.parse(readFileSync(join(imageDir, "manifest.json"), "utf8"));
  const { kernel, initrd, cmdline, disk } = boot.qemu;
  return JSON.stringify({
    minimumLimaVersion: "2.2.0",
    vmType: "qemu",
    arch,
    cpus,
    memory: `${memoryGiB * 1024}MiB`,
    disk: "30GiB",
    plain: true,
    mounts: [],
    images: [
      {
        location: join(imageDir, disk),
        arch,
        kernel: { location: join(imageDir, kernel), cmdline },
        initrd: { location: join(imageDir, initrd) },
      },
    ],
    containerd: { system: false, user: false },
    portForwards: [
      { guestIP: "0.0.0.0", guestIPMustBeZero: false, guestPortRange: [1, 65535], proto: "any", ignore: true },
    ],
    ssh: {
      localPort: 0,
      loadDotSSHPubKeys: false,
      forwardAgent: false,
      forwardX11: false,
      forwardX11Trusted: false,
      overVsock: false,
    },
    hostResolver: { enabled: false },
    propagateProxyEnv: false,
    upgradePackages: false,
    timezone: "",
    firmware: { legacyBIOS: true },
    video: { display: "none" },
    user: { name: "lane", uid: 1000, home: "/home/lane", comment: "", shell: "/bin/bash" },
    vmOpts: { qemu: { cpuType: { x86_64: "max" } } },
  });
}

async function poll(what, check) {
  const end = Date.now() + DEADLINE_SECONDS * 1000;
  for (;;) {
    const value = await check();
    if (value) return value;
    if (Date.now() > end) throw new Error(`bare path: no ${what} within ${DEADLINE_SECONDS} s`);
    await sleep(20);
  }
}

function sshPort(file) {
  try {
    for (const line of readFileSync(file, "utf8").split("\n")) {
      const port = line && JSON.parse(line).status?.sshLocalPort;
      if (port) return port;
    }
  } catch { /* not there yet, or a line half written */ }
  return undefined;
}

/**
 * QEMU's user network accepts before the guest listens: only the banner proves anything. On a busy machine sshd needs
 * longer.
 */
const bannerAt = (port, patience) => new Promise((resolve) => {
  const socket = createConnection({ port, host: "127.0.0.1", timeout: patience });
  const finish = (seen) => { socket.destroy(); resolve(seen); };
  socket.once("data", (d) => finish(d.toString("latin1").startsWith("SSH-")));
  for (const event of ["error", "timeout", "close"]) socket.once(event, () => finish(false));
});

/** Gives {seconds, steps}: from nothing to the end of the first command. */
export async function bareLane({ limactl, limaHome, imageDir, cpus, memoryGiB, network, accelerator }) {
  const name = `bare-${process.pid}-${Math.floor(Math.random() * 1e6)}`;
  const wrapper = fileURLToPath(new URL("../qemu-policy", import.meta.url));
  const env = bareEnv(limaHome, { QEMU_SYSTEM_X86_64: wrapper, BENCH_ACCEL: accelerator, BENCH_NETWORK: network });
  const quiet = ["--tty=false", "--log-level", "error"], steps = {};
  const started = performance.now(), mark = (step) => { steps[step] = (performance.now() - started) / 1000; };
  try {
    await runChild(limactl, [...quiet, "create", `--name=${name}`, "-"], {
      env,
      input: template(imageDir, { cpus, memoryGiB }),
    });
    mark("created");
    spawn(limactl, [...quiet, "start", "--timeout", "10m", name], { env, stdio: "ignore", detached: true }).unref();
    const port = await poll("ssh port", () => sshPort(join(limaHome, name, "ha.stdout.log")));
    const first = performance.now();
    await poll("ssh banner", () => bannerAt(port, Math.max(500, (performance.now() - first) / 6)));
    mark("banner");
    await runChild(limactl, [...quiet, "shell", "--workdir", "/", name, "true"], { env, seconds: 60 });
    mark("first command");
    return { seconds: (performance.now() - started) / 1000, steps };
  } finally {
    await runChild(limactl, [...quiet, "delete", "-f", name], { env });
  }
}
