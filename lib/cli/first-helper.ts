// SPDX-License-Identifier: Apache-2.0
// The first helper, where the store has no image yet and the recipe does not run here: a VM of an upstream's cloud image,
// which a person has pinned, with nothing but limactl. No lane: no mounts, no port forwards, but no keeper either, so it
// powers itself off after HELPER_MINUTES whatever happens here.
import { spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { accessSync, constants, createReadStream, createWriteStream } from "node:fs";
import { mkdtemp, readFile, rm, stat } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { Transform } from "node:stream";
import { pipeline } from "node:stream/promises";
import { badOption, LaneError } from "../errors.js";
import { packageDir } from "../native.js";
import { HELPER_DISK_GIB, HELPER_MINUTES, helperCpus, lines, quote, type Helper } from "./helper.js";

/** A disk with cloud-init, for this machine's architecture. */
export interface FirstImage {
  readonly path: string;
  /** What it must have; undefined: the pin file has it. */
  readonly sha256: string | undefined;
}

interface Place {
  readonly limactlPath?: string | undefined;
  readonly memoryGiB: number;
}

interface Work {
  readonly signal: AbortSignal;
  readonly say: (line: string) => void;
}

export const PINS = join(packageDir, "image", "helper-pins.json");
const NAME = "first-helper";
const RECIPE = "/var/tmp/agent-lane-recipe";
const START_MINUTES = 30; // an emulated guest with systemd and cloud-init, on a busy machine

const arch = (): string => (process.arch === "arm64" ? "aarch64" : "x86_64");

/** The digests that a person has put into the pin file for this architecture. */
async function pinned(): Promise<readonly string[]> {
  const pins = JSON.parse(await readFile(PINS, "utf8")) as Record<string, { sha256?: unknown }[] | undefined>;
  return (pins[arch()] ?? []).flatMap(({ sha256 }) => (typeof sha256 === "string" ? [sha256] : []));
}

/** Copies the disk and hashes what is copied, so that what is started is what was checked. */
async function copyChecked({ path, sha256 }: FirstImage, to: string, signal: AbortSignal): Promise<void> {
  const wanted = sha256 === undefined ? await pinned() : [sha256];
  if (wanted.length === 0)
    throw badOption(`--helper needs --sha256, or a pin for ${arch()} in ${PINS}: scripts/pin-helper writes one`);
  if (!(await stat(path)).isFile()) throw badOption(`--helper: ${path} is not a file`);
  const sum = createHash("sha256");
  const through = new Transform({
    transform(chunk: Buffer, _encoding, done) {
      sum.update(chunk);
      done(null, chunk);
    },
  });
  await pipeline(createReadStream(path), through, createWriteStream(to, { mode: 0o600, flags: "wx" }), { signal });
  const got = sum.digest("hex");
  if (wanted.includes(got)) return;
  throw new LaneError({
    code: "IMAGE_CORRUPT",
    message: `${path} has sha256 ${got}, not ${wanted.join(" or ")}`,
    cure: "Fetch the cloud image again, or pin the one that you mean: --sha256, or scripts/pin-helper.",
  });
}

/** Lima takes KVM wherever its device is, whether or not this user may open it. */
function emulated(): boolean {
  if (process.platform !== "linux") return false;
  try {
    accessSync("/dev/kvm", constants.R_OK | constants.W_OK);
    return false;
  } catch {
    return true;
  }
}

/** Lima adds no -machine of its own where QEMU's command has one. */
function emulation(): Record<string, string> {
  if (!emulated()) return {};
  const machine = arch() === "x86_64" ? "q35,vmport=off,accel=tcg" : "virt,accel=tcg";
  return { [`QEMU_SYSTEM_${arch().toUpperCase()}`]: `qemu-system-${arch()} -machine ${machine}` };
}

function template(disk: string, memoryGiB: number): string {
  // JSON is YAML. Everything that would open a way from the guest to this machine is off.
  return JSON.stringify({
    minimumLimaVersion: "2.2.0",
    vmType: process.platform === "darwin" ? "vz" : "qemu",
    arch: arch(),
    cpus: helperCpus(),
    memory: `${memoryGiB}GiB`,
    disk: `${HELPER_DISK_GIB}GiB`,
    plain: true,
    mounts: [],
    images: [{ location: disk, arch: arch() }],
    containerd: { system: false, user: false },
    portForwards: [{ guestIP: "0.0.0.0", guestIPMustBeZero: false, guestPortRange: [1, 65535], proto: "any", ignore: true }],
    ssh: { localPort: 0, loadDotSSHPubKeys: false, forwardAgent: false, forwardX11: false, forwardX11Trusted: false, overVsock: false },
    hostResolver: { enabled: false },
    propagateProxyEnv: false,
    upgradePackages: false,
    timezone: "",
    video: { display: "none" },
    user: { name: "lane", uid: 1000, home: "/home/lane", comment: "", shell: "/bin/bash" },
    ...(process.platform === "linux" && arch() === "x86_64" ? { firmware: { legacyBIOS: true } } : {}),
    ...(emulated() ? { vmOpts: { qemu: { cpuType: { [arch()]: "max" } } } } : {}),
    provision: [{ mode: "system", script: `#!/bin/sh\nexec shutdown -P +${HELPER_MINUTES}\n` }],
  });
}

interface Call {
  readonly input?: string;
  readonly onLine?: (line: string) => void;
  readonly signal?: AbortSignal;
  /** After these it is ended; at the latest when the VM has powered itself off. */
  readonly seconds?: number;
}

/** limactl with a home of its own; its exit code. */
function limactl(program: string, home: string, args: readonly string[], { input, onLine, signal, seconds = HELPER_MINUTES * 60 }: Call = {}): Promise<number> {
  return new Promise((resolve, reject) => {
    const { PATH, HOME, TMPDIR } = process.env;
    const child = spawn(program, ["--tty=false", "--log-level", "warn", ...args], {
      env: { PATH, HOME, TMPDIR, LIMA_HOME: home, ...emulation() },
      stdio: ["pipe", "pipe", "pipe"],
      signal,
      timeout: seconds * 1000,
      killSignal: "SIGKILL",
    });
    for (const stream of [child.stdout, child.stderr]) {
      const cut = lines(onLine ?? (() => undefined));
      stream.setEncoding("utf8").on("data", cut.feed).on("end", cut.end);
    }
    child.stdin.on("error", () => undefined); // it has ended without reading
    child.stdin.end(input);
    child.on("error", reject);
    child.on("close", (code) => resolve(code ?? 1));
  });
}

/** Starts it. `say` hears what limactl has to say. */
export async function firstHelper(image: FirstImage, { limactlPath, memoryGiB }: Place, { signal, say }: Work): Promise<Helper> {
  // Short: the names of Lima's sockets must fit.
  const home = await mkdtemp("/tmp/agent-lane-helper-");
  const program = limactlPath ?? process.env["AGENT_LANE_LIMACTL"] ?? "limactl";
  const call = (args: readonly string[], more: Call = {}): Promise<number> => limactl(program, home, args, { onLine: say, signal, ...more });
  const must = async (what: string, args: readonly string[], more: Call = {}): Promise<void> => {
    const code = await call(args, more);
    if (code === 0) return;
    throw new LaneError({
      code: "IMAGE_BUILD_FAILED",
      message: `the first helper: ${what} ended with status ${code}`,
      cure: "See limactl's words above the error. The image must have cloud-init and be for this machine's architecture.",
    });
  };
  const shell = (command: string): string[] => ["shell", "--workdir", "/", NAME, "sudo", "sh", "-c", command];
  let started = false;
  const close = async (): Promise<void> => {
    const code = started ? await limactl(program, home, ["delete", "--force", NAME], { onLine: say, seconds: 120 }).catch(() => 1) : 0;
    // What limactl needs to end the VM must not go before the VM.
    if (code === 0) await rm(home, { recursive: true, force: true });
    else say(`image: the first helper could not be deleted and may still run. Delete it: LIMA_HOME=${home} ${program} delete --force ${NAME}; rm -r ${home}`);
  };
  try {
    const disk = join(home, "disk");
    await copyChecked(image, disk, signal);
    await must("limactl create", ["create", `--name=${NAME}`, "-"], { input: template(disk, memoryGiB), seconds: 300 });
    say("image: waiting for the first helper, a cloud image, to boot");
    started = true;
    await must("limactl start", ["start", "--timeout", `${START_MINUTES}m`, NAME], { seconds: (START_MINUTES + 1) * 60 });
    await must("a first command", shell(`mkdir -p ${RECIPE} && chown lane ${RECIPE}`), { seconds: 300 });
  } catch (error) {
    await close();
    throw error;
  }
  return {
    recipe: RECIPE,
    out: "/var/tmp/agent-lane-out",
    put: async (from, to) => {
      const there = (await stat(from)).isDirectory();
      if (there) await must("limactl copy", ["copy", "-r", `${from}/.`, `${NAME}:${to}/`]);
      else await must("limactl copy", ["copy", from, `${NAME}:${dirname(to)}/${basename(to)}`]);
    },
    run: (command, env, onLine) => {
      const set = Object.entries(env).map(([name, value]) => `${name}=${quote(value)} `).join("");
      return call(shell(`cd ${RECIPE} && exec env ${set}${command}`), { onLine });
    },
    take: (from, to) => must("limactl copy", ["copy", `${NAME}:${from}`, to]),
    close,
  };
}
