// SPDX-License-Identifier: Apache-2.0
// A scripted limactl with a whole lane behind it: reads our lima.yaml back, plays QEMU's port and the guest's lane agent. What it
// does wrong is chosen by <home>/run/scenario.json: {version?, list?, start?, delete?, guest?}. For tests that need no VM.
import { spawn } from "node:child_process";
import { appendFileSync, existsSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { serve } from "./guest.mjs";

const run = process.env.TMPDIR ?? "/nonexistent";
const lima = process.env.LIMA_HOME ?? "/nonexistent";
const scenario = existsSync(join(run, "scenario.json"))
  ? JSON.parse(readFileSync(join(run, "scenario.json"), "utf8"))
  : {};
const self = fileURLToPath(import.meta.url);

function fatal(msg) {
  process.stderr.write(`${JSON.stringify({ level: "fatal", msg, time: "2026-01-01T00:00:00Z" })}\n`);
  process.exit(1);
}

const yamlOf = (name) => readFileSync(join(lima, name, "lima.yaml"), "utf8");
const values = (yaml, key) => [...yaml.matchAll(new RegExp(`^[ -]*${key}: (.*)$`, "gm"))].map((m) => JSON.parse(m[1]));
const proofOf = (name) => values(yamlOf(name), "content")[0];

/** The effective configuration that Lima 2.2 makes of our file. */
function effective(name) {
  const yaml = yamlOf(name);
  const [disk, kernel, initrd] = values(yaml, "location");
  const [vmArch] = values(yaml, "arch");
  const [login] = values(yaml, "name");
  return {
    vmType: "qemu",
    os: "Linux",
    arch: vmArch,
    minimumLimaVersion: "2.2.0",
    images: [
      {
        location: disk,
        arch: vmArch,
        kernel: { location: kernel, arch: vmArch, cmdline: values(yaml, "cmdline")[0] },
        initrd: { location: initrd, arch: vmArch },
      },
    ],
    cpus: values(yaml, "cpus")[0],
    memory: values(yaml, "memory")[0],
    disk: values(yaml, "disk")[0],
    plain: true,
    provision: [
      {
        mode: "data",
        path: "/run/agent-lane/proof",
        owner: "root:root",
        permissions: "600",
        overwrite: true,
        content: proofOf(name),
      },
    ],
    ssh: {
      localPort: 0,
      loadDotSSHPubKeys: false,
      forwardAgent: false,
      forwardX11: false,
      forwardX11Trusted: false,
      overVsock: false,
    },
    user: { name: login, comment: "", home: `/home/${login}`, shell: "/bin/bash", uid: 1000, passwordlessSudo: true },
    containerd: { system: false, user: false },
    hostResolver: { enabled: false, ipv6: false },
    video: { display: "none" },
    propagateProxyEnv: false,
    upgradePackages: false,
    timezone: "",
    nestedVirtualization: false,
    caCerts: { removeDefaults: false },
    firmware: { legacyBIOS: vmArch === "x86_64" },
    vmOpts: { qemu: { cpuType: { [vmArch]: "max" } } },
    mounts: [],
    networks: [],
    ...scenario.list,
  };
}

function list(name) {
  const config = effective(name);
  process.stdout.write(
    `${JSON.stringify({ name, dir: join(lima, name), vmType: "qemu", arch: config.arch, status: "Stopped", config })}\n`,
  );
}

/** Listens as the lane's QEMU does, for whoever looks at its command line. */
function qemu(dir) {
  const server = createServer((socket) => socket.on("error", () => undefined).end("SSH-2.0-scripted\r\n"));
  server.listen(0, "127.0.0.1", () => {
    writeFileSync(join(dir, "qemu.pid"), String(process.pid));
    appendFileSync(
      join(dir, "ha.stdout.log"),
      `${JSON.stringify({ time: "2026-01-01T00:00:00Z", status: { sshLocalPort: server.address().port } })}\n`,
    );
  });
  setTimeout(() => process.exit(0), 60_000);
}

function start(name) {
  if (scenario.start === "fail") fatal("the scenario wants start to fail");
  if (scenario.start === "hang") return setTimeout(() => undefined, 60_000);
  spawn(process.execPath, [self, "qemu", "-pidfile", join(lima, name, "qemu.pid")], {
    detached: true,
    stdio: "ignore",
  }).unref();
}

/** Takes the agent as the bootstrap says, then is the guest. */
function shell(name, script) {
  const size = Number(/head -c (\d+)/.exec(script)[1]);
  const token = /agent-lane-[0-9a-f]{32}/.exec(script)[0];
  let got = 0;
  process.stdin.on("readable", function taking() {
    for (
      let chunk;
      got < size && (chunk = process.stdin.read(Math.min(size - got, process.stdin.readableLength || 1)));
    )
      got += chunk.length;
    if (got < size) return;
    process.stdin.off("readable", taking);
    process.stdout.write(`Welcome to the scripted guest\n\n${token}\n`);
    serve(process.stdin, process.stdout, Buffer.from(proofOf(name), "hex"), scenario.guest ?? {});
  });
}

function remove(name) {
  if (scenario.delete === "fail") fatal("the scenario wants delete to fail");
  const dir = join(lima, name);
  try {
    process.kill(Number(readFileSync(join(dir, "qemu.pid"), "utf8")), "SIGKILL");
  } catch {
    // it never ran
  }
  rmSync(dir, { recursive: true, force: true });
}

const args = process.argv.slice(2).filter((a) => a !== "--tty=false");
if (args[0] === "--log-format") args.splice(0, 2);
if (existsSync(run)) appendFileSync(join(run, "calls"), `${args[0]}\n`);
switch (args[0]) {
  case "--version":
    console.log(scenario.version ?? "limactl version 2.2.0");
    break;
  case "list":
    list(args[2]);
    break;
  case "network":
    writeFileSync(join(lima, "_config", "networks.yaml"), "networks: {}\n");
    break;
  case "start":
    start(args[args.length - 1]);
    break;
  case "qemu":
    qemu(args[2].replace(/\/qemu\.pid$/, ""));
    break;
  case "shell":
    shell(args[3], args[args.length - 1]);
    break;
  case "delete":
    remove(args[args.length - 1]);
    break;
  default:
    fatal(`unknown command ${args[0]}`);
}
