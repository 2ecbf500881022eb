// SPDX-License-Identifier: Apache-2.0
// A scripted limactl with a whole lane behind it: reads our lima.yaml back, starts a host agent, which starts the real warden, which
// starts a scripted QEMU; `shell` is the guest. It plays <home>/run/scenario.json, see below. For tests that need no VM.
//
//   { version, list, record, guest, start, delete, lifeMs, at: { LINE: ACTION | [ACTION...] } }
//
// `start` and `delete` may be "fail" or "hang". `version` is what --version prints, `list` is laid over the effective configuration, `record` over the record around it, `guest` says
// what the lane agent does wrong (guest.mjs); with "agent" the guest is this machine: the real lane agent, as the product delivered it, is a process of this user.
// Each command is a few named lines; an action of `at` is taken before its line:
//   "exit" "kill"      ends at once, by exit code 1 or by SIGKILL       {fatal: TEXT}         says so as Lima does, exit code 1
//   "hang" "deaf"      goes no further; deaf ignores SIGTERM as well    {print: TEXT, exit}   prints it and ends
//   {slow: MS}         waits, then goes on                              {plant: {PATH: TEXT}} writes files below LIMA_HOME, then goes on
//   "skip"             leaves the line out                              {drop: [PATH]}        removes them below the lane, then goes on
//   {say: TEXT, exit}  says it on stderr and ends                       {event: STATUS}       adds an event to ha.stdout.log, then goes on
import { spawn } from "node:child_process";
import {
  appendFileSync,
  existsSync,
  mkdirSync,
  openSync,
  readFileSync,
  readdirSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { createServer } from "node:net";
import { dirname, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { serve } from "./guest.mjs";

const self = fileURLToPath(import.meta.url);
const args = process.argv.slice(2).filter((a) => a !== "--tty=false");
if (args[0] === "--log-format") args.splice(0, 2);
const [command] = args;
// The warden passes no environment on, so QEMU finds its home by its pid file.
const lima = command === "qemu" ? dirname(dirname(after("-pidfile"))) : (process.env.LIMA_HOME ?? "/nonexistent");
const run = join(lima, "..", "run");
const script = join(run, "scenario.json");
const scenario = existsSync(script) ? JSON.parse(readFileSync(script, "utf8")) : {};
const at = {
  ...(scenario.start && { "start.read": scenario.start === "fail" ? { fatal: "the scenario wants start to fail" } : "hang" }),
  ...(scenario.delete && { "delete.read": scenario.delete === "fail" ? { fatal: "the scenario wants delete to fail" } : "hang" }),
  ...scenario.at,
};
const LIFE_MS = scenario.lifeMs ?? 90_000; // a test that forgets a process does not leave it for ever

function after(word) {
  return args[args.indexOf(word) + 1];
}

function die(text, code) {
  if (text) process.stderr.write(text);
  process.exit(code);
}

const fatal = (msg) => die(`${JSON.stringify({ level: "fatal", msg, time: "2026-01-01T00:00:00Z" })}\n`, 1);

function stay(deaf = false) {
  if (deaf) for (const signal of ["SIGTERM", "SIGINT", "SIGHUP"]) process.on(signal, () => undefined);
  return sleep(LIFE_MS).then(() => process.exit(1));
}

function event(name, status) {
  appendFileSync(
    join(lima, name, "ha.stdout.log"),
    typeof status === "string" ? status : `${JSON.stringify({ time: "2026-01-01T00:00:00Z", status })}\n`,
  );
}

/** Takes one action; true when the line is to be left out. */
async function act(action, name) {
  switch (action) {
    case "exit":
      return process.exit(1);
    case "kill":
      process.kill(process.pid, "SIGKILL");
      return stay();
    case "hang":
      return stay();
    case "deaf":
      return stay(true);
    case "skip":
      return true;
  }
  if (action.fatal !== undefined) fatal(action.fatal.replaceAll("NAME", name).replaceAll("DIR", join(lima, name)));
  if (action.say !== undefined) die(action.say, action.exit ?? 1);
  if (action.print !== undefined) {
    await new Promise((done) => process.stdout.write(Buffer.from(action.print, "latin1"), done));
    process.exit(action.exit ?? 0);
  }
  if (action.slow !== undefined) await sleep(action.slow);
  if (action.event !== undefined) event(name, action.event);
  for (const path of action.drop ?? []) rmSync(join(lima, name, path), { recursive: true, force: true });
  for (const [path, text] of Object.entries(action.plant ?? {})) {
    const file = join(lima, path.replace("NAME", name));
    mkdirSync(dirname(file), { recursive: true });
    writeFileSync(file, text);
  }
  return false;
}

/** One line of a command: what the scenario wants before it, then the line itself. */
async function line(where, name, work) {
  let skip = false;
  for (const action of [at[where] ?? []].flat()) skip = (await act(action, name)) || skip;
  return skip ? undefined : await work();
}

const yamlOf = (name) => readFileSync(join(lima, name, "lima.yaml"), "utf8");
const values = (yaml, key) => [...yaml.matchAll(new RegExp(`^[ -]*${key}: (.*)$`, "gm"))].map((m) => JSON.parse(m[1]));
// vz is played after Lima's source, not after what was seen on a Mac.
const isVz = (name) => values(yamlOf(name), "vmType")[0] === "vz";
const proofOf = (name) => values(yamlOf(name), "content")[0];

/** The effective configuration that Lima 2.2 makes of our file. */
function effective(name) {
  const yaml = yamlOf(name);
  const [disk, kernel, initrd] = values(yaml, "location");
  const [vmArch] = values(yaml, "arch");
  const [login] = values(yaml, "name");
  const vz = isVz(name);
  return {
    vmType: vz ? "vz" : "qemu",
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
    firmware: { legacyBIOS: !vz && vmArch === "x86_64" },
    ...(vz
      ? { mountType: "virtiofs", rosetta: {}, vmOpts: { vz: { rosetta: { enabled: false, binfmt: false }, diskImageFormat: "raw" } } }
      : { vmOpts: { qemu: { cpuType: { [vmArch]: "max" } } } }),
    mounts: [],
    networks: [],
    ...scenario.list,
  };
}

async function list(name) {
  await line("list.read", name, () => {
    if (!existsSync(join(lima, name))) fatal("unmatched instances");
  });
  const config = effective(name);
  const dir = join(lima, name);
  const record = { name, dir, vmType: config.vmType, arch: config.arch, status: "Stopped", config, ...scenario.record };
  await line("list.print", name, () => process.stdout.write(`${JSON.stringify(record)}\n`));
}

/** `start`: a host agent in its own process group, then waiting for its events, as Lima does. */
async function start(name) {
  const dir = join(lima, name);
  const file = (log) => openSync(join(dir, log), "a", 0o600);
  await line("start.read", name, () => {
    if (!existsSync(join(dir, "lima.yaml"))) fatal(`instance \`${name}\` has configuration errors: open lima.yaml`);
    if (existsSync(join(dir, "ha.pid"))) fatal(`instance \`${name}\` seems running (hint: remove ${dir}/ha.pid if the instance is not actually running)`);
  });
  await line("start.logs", name, () => ["ha.stdout.log", "ha.stderr.log"].forEach((log) => writeFileSync(join(dir, log), "", { mode: 0o600 })));
  let ended;
  await line("start.hostagent", name, () => {
    const child = spawn(process.execPath, [self, "hostagent", "--pidfile", join(dir, "ha.pid"), name], {
      detached: true,
      stdio: ["ignore", file("ha.stdout.log"), file("ha.stderr.log")],
    });
    child.on("exit", (code) => (ended = code ?? 255));
    child.unref();
  });
  await line("start.wait", name, async () => {
    for (const end = Date.now() + LIFE_MS; Date.now() < end; await sleep(100)) {
      const log = existsSync(join(dir, "ha.stdout.log")) ? readFileSync(join(dir, "ha.stdout.log"), "latin1") : "";
      if (log.includes('"degraded":true')) fatal('degraded, status={Running:true Degraded:true Errors:["boot scripts"]}');
      if (log.includes('"running":true')) process.exit(0);
      if (ended !== undefined) fatal(`host agent process has exited: exit status ${ended}`);
    }
  });
}

/** A shell-like splitter, as Lima has one for QEMU_SYSTEM_*: quotes, double quotes, backslash. */
function words(text) {
  const out = [];
  for (const m of text.matchAll(/(?:'[^']*'|"(?:[^"\\]|\\.)*"|\\.|[^\s'"\\])+/gs))
    out.push(m[0].replace(/'([^']*)'|"((?:[^"\\]|\\.)*)"|\\(.)/gs, (_, a, b, c) => a ?? b?.replace(/\\(.)/gs, "$1") ?? c));
  return out;
}

/** What Lima 2.2 passes on a machine where it means to use KVM. */
function qemuArgs(name, port) {
  const dir = join(lima, name);
  const arm = values(yamlOf(name), "arch")[0] === "aarch64";
  const socket = (id, file, log = "") => `socket,id=${id},path=${dir}/${file},server=on,wait=off${log && `,logfile=${dir}/${log}`}`;
  return [
    ["-m", "1024", "-cpu", "max", "-machine", arm ? "virt,accel=tcg" : "q35,vmport=off", "-smp", "4,sockets=1,cores=4,threads=1"],
    ["-drive", `file=${dir}/disk,if=none,discard=on,id=boot-disk`, "-device", "virtio-blk-pci,drive=boot-disk,bootindex=1"],
    ["-drive", `id=cdrom0,if=none,format=raw,readonly=on,file=${dir}/cidata.iso`, "-device", "virtio-scsi,id=scsi0"],
    ["-device", "scsi-cd,bus=scsi0.0,drive=cdrom0", "-kernel", `${dir}/kernel`, "-append", values(yamlOf(name), "cmdline")[0], "-initrd", `${dir}/initrd`],
    ["-netdev", `user,id=net0,net=192.168.5.0/24,dhcpstart=192.168.5.15,hostfwd=tcp:127.0.0.1:${port}-:22`],
    ["-device", "virtio-net-pci,netdev=net0,mac=52:55:55:df:ed:e6", "-device", "virtio-rng-pci", "-display", "none", "-vga", "none"],
    ["-chardev", socket("char-serial", "serial.sock", "serial.log"), "-serial", "chardev:char-serial"],
    ["-chardev", socket("char-qmp", "qmp.sock"), "-qmp", "chardev:char-qmp", "-name", `lima-${name}`, "-pidfile", `${dir}/qemu.pid`],
  ].flat();
}

/** A port that was free a moment ago, which is all that Lima does. */
async function freePort() {
  const server = createServer();
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  const { port } = server.address();
  await new Promise((done) => server.close(done));
  return port;
}

/** With vz the VM and its network are the host agent's own: it listens once the guest has an address, and its pid is the VM's. */
function vz(name, port) {
  const dir = join(lima, name);
  for (const file of ["disk", "vz-identifier", "kernel", "initrd", "kernel.cmdline"]) if (!existsSync(join(dir, file))) fatal(`there is no ${file}`);
  if (existsSync(join(dir, "vz.pid"))) fatal("pidfile already exists");
  writeFileSync(join(dir, "vz.pid"), `${process.pid}\n`);
  writeFileSync(join(dir, "serialv.log"), "lane-init 1.00 start\n");
  const server = createServer((socket) => {
    socket.on("error", () => undefined);
    socket.end(scenario.banner ?? "SSH-2.0-scripted\r\n");
  });
  setTimeout(() => server.listen(port, "127.0.0.1"), 300);
}

async function hostagent(name) {
  const dir = join(lima, name);
  const port = scenario.port ?? (await freePort());
  await line("hostagent.pid", name, () => writeFileSync(after("--pidfile"), `${process.pid}\n`));
  await line("hostagent.files", name, () => ["cidata.iso", "ssh.config"].forEach((f) => writeFileSync(join(dir, f), "x", { mode: 0o600 })));
  if (isVz(name)) await line("hostagent.vz", name, () => vz(name, port));
  else await line("hostagent.qemu", name, () => {
    const [program, ...policy] = words(process.env.QEMU_SYSTEM_X86_64 ?? process.env.QEMU_SYSTEM_AARCH64);
    const child = spawn(program, [...policy, ...qemuArgs(name, scenario.qemuPort ?? port), ...(scenario.qemuArgs ?? [])], { stdio: ["ignore", "ignore", "inherit"] });
    const gone = (why) => {
      process.stderr.write(`${JSON.stringify({ level: "error", msg: `Driver stopped: ${why}` })}\n`);
      event(name, { exiting: true });
      process.exit(1);
    };
    child.on("error", (e) => gone(e.message));
    child.on("exit", (code, signal) => gone(`exit status ${code ?? signal}`));
  });
  await line("hostagent.port", name, () => event(name, { sshLocalPort: port }));
  // The ssh master that outlives `delete -f`.
  await line("hostagent.master", name, () =>
    spawn("/bin/sleep", ["90"], { argv0: `ssh: ${dir}/ssh.sock [mux]`, detached: true, stdio: "ignore" }).unref(),
  );
  await sleep(200);
  await line("hostagent.running", name, () => event(name, { running: true, sshLocalPort: port }));
  await stay();
}

/** Scripted QEMUs of this place that are there now, this one included. */
function census() {
  const mine = (pid) => {
    try {
      const words = readFileSync(join("/proc", pid, "cmdline"), "utf8").split("\0");
      return words[1] === self && words[2] === "qemu";
    } catch {
      return false; // it has ended meanwhile
    }
  };
  return readdirSync("/proc").filter((pid) => /^\d+$/.test(pid) && mine(pid)).length;
}

/** Listens where its -netdev says, with a banner, as QEMU does for a guest's sshd. */
async function qemu() {
  const name = after("-pidfile").split("/").at(-2);
  // Each start is the only moment at which there can be one more than before.
  if (existsSync(join(run, "census"))) appendFileSync(join(run, "census"), `${census()}\n`);
  const port = Number(/hostfwd=tcp:127\.0\.0\.1:(\d+)-:22/.exec(after("-netdev"))[1]);
  await line("qemu.pid", name, () => writeFileSync(after("-pidfile"), `${process.pid}\n`, { mode: 0o600 }));
  const banner = scenario.banner ?? "SSH-2.0-scripted\r\n";
  const server = createServer((socket) => {
    socket.on("error", () => undefined);
    if (banner !== "mute") socket.end(banner === "close" ? "" : banner);
  });
  await line("qemu.listen", name, () => server.listen(port, "127.0.0.1"));
  const fd = /id=agent-lane,fd=(\d+),server=on/.exec(args.join(" "))?.[1];
  if (fd !== undefined) await line("qemu.port", name, () => portGuest(name, Number(fd)));
  if (scenario.qemuLivesMs) await sleep(scenario.qemuLivesMs).then(() => process.exit(1));
  await stay();
}

/** The next `size` bytes of the stream; what follows stays there. */
function take(size, keep, from = process.stdin) {
  let got = 0;
  return new Promise((done) => {
    from.on("end", () => process.exit(0));
    from.on("readable", function taking() {
      for (let chunk; got < size && (chunk = from.read(Math.min(size - got, from.readableLength || 1)));) {
        got += chunk.length;
        keep(chunk);
      }
      if (got < size) return;
      from.off("readable", taking);
      done();
    });
  });
}

/**
 * The guest behind the virtio port, whose host end is the socket `fd`: takes the agent as the image's init does, then is
 * the guest. Its end, or the host's, is QEMU's end.
 */
function portGuest(name, fd) {
  const server = createServer(async (socket) => {
    socket.on("error", () => process.exit(0));
    const { guest = {} } = scenario;
    const keep = (chunk) => guest.record && appendFileSync(join(run, "record"), chunk);
    const console = (text) => writeFileSync(join(lima, name, "serial.log"), text);
    await line("port.header", name, () => console("lane-init 1.00 start\n"));
    let header = "";
    while (!header.endsWith("\n")) await take(1, (byte) => (header += byte.toString("latin1")), socket);
    const [, size, token] = /^agent-lane-port 1 (\d+) ([0-9a-f]{32})\n$/.exec(header);
    const agent = [];
    await line("port.take", name, () => take(Number(size), (chunk) => agent.push(chunk) && keep(chunk), socket));
    await line("port.noise", name, () => socket.write(scenario.noise ?? ""));
    await line("port.marker", name, () => socket.write(`\n${scenario.marker ?? `agent-lane-${token}`}\n${guest.early ?? ""}`));
    if (guest === "agent") return realAgentOn(name, socket, Buffer.concat(agent));
    socket.on("data", keep);
    serve(socket, socket, Buffer.from(proofOf(name), "hex"), guest);
  });
  server.listen({ fd });
}

/** The real lane agent, as it came over the port, on the port. */
function realAgentOn(name, socket, agent) {
  const dir = join(lima, name, "guest", "agent-lane");
  mkdirSync(dir, { recursive: true });
  writeFileSync(join(dir, "proof"), proofOf(name), { mode: 0o600 });
  writeFileSync(join(dir, "agent"), agent, { mode: 0o700 });
  const child = spawn(join(dir, "agent"), ["--secret", join(dir, "proof"), "--local"], { stdio: [socket, socket, "ignore"] });
  child.on("exit", (code) => process.exit(code ?? 1));
}

/** Takes the agent as the bootstrap says, then is the guest. With guest.record every byte that the host sends is kept. */
async function shell(name, text) {
  const size = Number(/head -c (\d+)/.exec(text)?.[1]); // none when somebody attaches
  const token = /agent-lane-[0-9a-f]{32}/.exec(text)[0];
  const { guest = {} } = scenario;
  if (guest === "agent") return realAgent(name, text);
  const record = join(run, "record");
  const keep = (chunk) => guest.record && appendFileSync(record, chunk);
  await line("shell.login", name, () => process.stdout.write("Welcome to the scripted guest\n"));
  await line("shell.take", name, () => take(size, keep));
  await line("shell.marker", name, () => process.stdout.write(`\n${scenario.marker ?? token}\n${guest.early ?? ""}`));
  process.stdin.on("data", keep);
  serve(process.stdin, process.stdout, Buffer.from(proofOf(name), "hex"), guest);
}

/** The bootstrap as it is, with a directory of the lane for the guest's /run; the agent ends with our stdin, as in a
 *  guest. The secret is written once, as in a guest: again would empty it under others who attach at that moment. */
function realAgent(name, text) {
  const run = join(lima, name, "guest");
  mkdirSync(join(run, "agent-lane"), { recursive: true });
  if (!text.includes("--attach")) writeFileSync(join(run, "agent-lane", "proof"), proofOf(name), { mode: 0o600 });
  const child = spawn("/bin/sh", ["-c", `${text.replaceAll("/run", run)} --local`], { stdio: "inherit" });
  child.on("exit", (code) => process.exit(code ?? 1));
}

/** `delete -f`: kills whatever the pid files name, and refuses what it cannot read, as Lima does. */
async function remove(name) {
  const dir = join(lima, name);
  await line("delete.read", name, () => {
    if (!existsSync(join(dir, "lima.yaml")))
      fatal(`instance \`${name}\` directory ${dir} exists but its lima.yaml could not be read; it was NOT deleted, remove it manually`);
  });
  await line("delete.kill", name, () => {
    for (const file of readdirSync(dir).filter((f) => f.endsWith(".pid"))) {
      try {
        process.kill(Number(readFileSync(join(dir, file), "utf8")), "SIGKILL");
      } catch {
        // it is gone
      }
    }
  });
  await line("delete.yaml", name, () => rmSync(join(dir, "lima.yaml")));
  await line("delete.rest", name, () => rmSync(dir, { recursive: true, force: true }));
}

if (existsSync(run)) appendFileSync(join(run, "calls"), `${command}\n`);
const last = args.at(-1);
switch (command) {
  case "--version":
    await line("version.print", "", () => console.log(scenario.version ?? "limactl version 2.2.0"));
    break;
  case "list":
    await list(args[2]);
    break;
  case "network":
    await line("network.write", "", () => writeFileSync(join(lima, "_config", "networks.yaml"), "networks: {}\n"));
    break;
  case "start":
    await start(last);
    break;
  case "hostagent":
    await hostagent(last);
    break;
  case "qemu":
    await qemu();
    break;
  case "shell":
    await shell(args[3], last);
    break;
  case "delete":
    await remove(last);
    break;
  default:
    fatal(`unknown command ${command}`);
}
