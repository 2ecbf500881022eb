// SPDX-License-Identifier: Apache-2.0
// Checks: what Lima would really start, and what a greedy guest gets of the machine.
import { execFile } from "node:child_process";
import { openSync, closeSync, readSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { promisify } from "node:util";
import { LaneError } from "../../errors.js";
import { notRun, unless, type Verdict } from "../answers.js";
import { GREED, GREED_SHAPE, type Greed } from "../attacks.js";
import type { Check } from "../check.js";
import { attack } from "../guest.js";
import { argvOf, canLook } from "../host.js";
import { SIZE, type Scene } from "../scene.js";
import type { Lane } from "../../lane.js";

const run = promisify(execFile);

type Json = Readonly<Record<string, unknown>>;
const map = (v: unknown): Json => (typeof v === "object" && v !== null && !Array.isArray(v) ? (v as Json) : {});
const list = (v: unknown): readonly unknown[] => (Array.isArray(v) ? v : []);
const empty = (v: unknown): boolean => v === undefined || v === null || v === false || v === "" || (Array.isArray(v) && v.length === 0);

/** The configuration as Lima itself has it, with whatever it has merged in. */
async function effective(scene: Scene, lane: Lane): Promise<Json> {
  const agent = (await scene.inspect(lane.name)).processes.find((p) => p.kind === "hostagent");
  const limactl = scene.choice.limactlPath ?? process.env["AGENT_LANE_LIMACTL"] ?? agent?.program;
  if (limactl === undefined || limactl === "") throw new Error("limactl was not found");
  const env = { PATH: process.env["PATH"], HOME: process.env["HOME"], LIMA_HOME: join(String(lane.facts["home"]), "lima") };
  const { stdout } = await run(limactl, ["--tty=false", "list", "--json", lane.name], { env, timeout: 60_000, maxBuffer: 16 << 20, encoding: "utf8" });
  return map(JSON.parse(stdout));
}

/** What of an effective configuration would open the boundary, in words. */
export function openings(instance: Json): string[] {
  const config = map(instance["config"]);
  const ssh = map(config["ssh"]), wrong: string[] = [];
  const say = (is: boolean, what: string): void => void (is && wrong.push(what));
  say(Object.keys(config).length === 0, "there is no configuration");
  say(!empty(config["mounts"]), "it has mounts");
  say(config["plain"] !== true, "Lima's own services in the guest are on");
  say(list(config["portForwards"]).some((p) => map(p)["ignore"] !== true), "it forwards ports");
  say(["forwardAgent", "forwardX11", "forwardX11Trusted", "loadDotSSHPubKeys"].some((key) => ssh[key] !== false), "ssh forwards something, or takes the user's keys");
  say(!empty(config["networks"]), "it has more networks");
  say(!empty(config["additionalDisks"]), "it has more disks");
  say(!empty(config["copyToHost"]), "it copies to the host");
  say(config["propagateProxyEnv"] !== false || !empty(config["env"]), "it hands variables on");
  say(map(config["hostResolver"])["enabled"] !== false, "the host resolves names for the guest");
  const provision = list(config["provision"]).map(map);
  say(provision.length !== 1 || provision[0]?.["mode"] !== "data", "it has scripts of its own for the guest");
  const { system, user } = map(config["containerd"]) as { system?: unknown; user?: unknown };
  say(system !== false || user !== false, "containerd is on");
  return wrong;
}

/** What of QEMU's arguments would open it, or says otherwise than the lane's network. */
export function qemuOpenings(argv: readonly string[], network: "open" | "none"): string[] {
  const values = (option: string): string[] => argv.flatMap((word, i) => (word === option ? [argv[i + 1] ?? ""] : []));
  const netdev = values("-netdev"), wrong: string[] = [];
  const forwards = netdev.join(",").match(/hostfwd=[^,]*/g) ?? [];
  const say = (is: boolean, what: string): void => void (is && wrong.push(what));
  say(netdev.length !== 1 || values("-nic").length + values("-net").length > 0, "QEMU has another network device than the one");
  say(forwards.length !== 1 || !/^hostfwd=tcp:127\.0\.0\.1:\d+-:22$/.test(forwards[0] ?? ""), "QEMU forwards another port than ssh's of the loopback");
  say(/guestfwd=|smb=|tftp=/.test(netdev.join()), "QEMU's network offers services of the host");
  say(network === "none" && !/(?:^|,)restrict=on(?:,|$)/.test(netdev.join()), "QEMU's network is not restricted");
  say(network === "none" && !/(?:^|,)ipv6=off(?:,|$)/.test(netdev.join()), "QEMU's network has IPv6");
  say(!values("-sandbox").join().startsWith("on"), "QEMU's system calls are not filtered");
  say(values("-monitor").some((m) => m !== "none"), "QEMU has a monitor");
  return wrong;
}

async function configuration(scene: Scene): Promise<Verdict> {
  const lane = await scene.attacker();
  const instance = await effective(scene, lane);
  const wrong = openings(instance);
  const report = await scene.inspect(lane.name);
  const qemu = await scene.hypervisor(lane);
  if (qemu !== undefined) wrong.push(...qemuOpenings(argvOf(qemu), scene.network));
  else if (canLook) return notRun("the lane's QEMU could not be looked at");
  // What the product says of itself must agree with what was seen.
  const promised = ["host files", ...(scene.network === "none" ? ["network"] : [])];
  for (const what of promised)
    if (report.enforced.find((e) => e.what === what)?.enforced !== true) wrong.push(`inspect does not say that "${what}" is enforced`);
  const keys = Object.keys(map(instance["config"])).length;
  return unless(
    wrong.map((what) => [true, what] as const),
    `of ${keys} keys of Lima's effective configuration none opens anything${qemu === undefined ? "" : `, nor does one of QEMU's ${argvOf(qemu).length} words`}; inspect says the same`,
    wrong,
  );
}

/** The size that a qcow2 disk claims to be; its header is ours, not the guest's. */
function virtualBytes(path: string): number {
  const fd = openSync(path, "r");
  try {
    const head = Buffer.alloc(32);
    readSync(fd, head, 0, 32, 0);
    return head.toString("latin1", 0, 4) === "QFI\xfb" ? Number(head.readBigUInt64BE(24)) : 0;
  } finally {
    closeSync(fd);
  }
}

const GIB = 2 ** 30;
// QEMU's own needs beside the guest's memory: with emulation it keeps up to 512 MiB of translated code.
const BESIDE = 0.9 * GIB;

async function limits(scene: Scene): Promise<Verdict> {
  const lane = await scene.attacker();
  const row = (await scene.inspect(lane.name)).lane;
  const diskGiB = Number(row["diskGiB"]);
  const r = await attack<Greed>(lane, GREED, { seconds: 45, diskBytes: (diskGiB + 1) * GIB }, GREED_SHAPE);
  if (!r.ok) return notRun(r.why, r.details);
  const { cpus, memory, hogged, got, disk } = r.value;
  const qemu = await scene.hypervisor(lane);
  const argv = qemu === undefined ? [] : argvOf(qemu);
  const after = (option: string): string => argv[argv.indexOf(option) + 1] ?? "";
  const peak = qemu === undefined ? 0 : Number(/^VmHWM:\s+(\d+) kB/m.exec(readFileSync(`/proc/${qemu}/status`, "utf8"))?.[1] ?? 0) * 1024;
  if (canLook && peak === 0) return notRun("the memory of the lane's QEMU could not be read");
  if (Number(got) * 2 ** 20 < 0.5 * memory) return notRun(`the guest's hog had only ${got} MiB`);
  const claimed = virtualBytes(join(String(lane.facts["dir"]), "disk"));
  return unless(
    [
      [cpus !== SIZE.cpus || memory > SIZE.memoryGiB * GIB, "the guest has more CPUs or memory than asked for"],
      [argv.length > 0 && (parseInt(after("-m"), 10) !== SIZE.memoryGiB * 1024 || parseInt(after("-smp"), 10) !== SIZE.cpus), "QEMU was started with another size"],
      [peak > SIZE.memoryGiB * GIB + BESIDE, "QEMU took more memory of the host than its guest may have"],
      [claimed > 0 && claimed !== diskGiB * GIB, "the disk is of another size than asked for"],
      [disk === "got it", "the guest could have more disk than asked for"],
      [!hogged.startsWith("ended by"), "nothing ended what took all of the guest's memory"],
    ],
    "a hog of all memory was killed in the guest, a file larger than the disk was refused; QEMU's peak on the host stayed below the lane's memory and its own needs",
    [`hog: ${hogged} after ${got} MiB`, `disk: ${disk}`, `peak: ${Math.round(peak / 2 ** 20)} MiB`],
  );
}

async function places(scene: Scene): Promise<Verdict> {
  const lane = await scene.attacker();
  const error = await scene.open({ maxConcurrentVms: 1, startTimeoutSeconds: 10 }).then((extra) => extra.close().then(() => undefined), (e: unknown) => e);
  if (error === undefined) return unless([[true, "a second VM was started where one is the most"]], "");
  if (!(error instanceof LaneError)) return notRun("the start failed with another error than ours");
  return unless(
    [
      [error.code !== "BUSY", `the start failed with ${error.code}, not BUSY`],
      [!error.message.includes(lane.name), "the error does not name who has the place"],
    ],
    "a lane beyond the most was refused with BUSY, which names who has the place; no VM was started",
  );
}

export const configurations: readonly Check[] = [
  {
    id: "configuration",
    point: "effective configuration",
    tried: "the configuration is read from Lima as it has it in the end, and QEMU's arguments from the running process; both are searched for whatever opens something",
    by: "compared key by key before the start: a key that we do not know must say nothing; the warden lets only arguments of its list through",
    run: configuration,
  },
  {
    id: "limits",
    point: "resource limits",
    tried: "the guest takes all the memory and more disk than there is; QEMU's size and peak are read on the host",
    by: "QEMU's -m and -smp, and the size of the disk overlay",
    run: limits,
  },
  {
    id: "places",
    point: "resource limits",
    tried: "one lane more is started than `maxConcurrentVms` allows",
    by: "places are given out in the registry, before anything is started",
    run: places,
  },
];
