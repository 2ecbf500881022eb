// SPDX-License-Identifier: Apache-2.0
// What can go wrong in each step of create, as scenarios of the scripted limactl (test/ts/support/limactl.mjs), and
// what the caller is told.
import { appendFileSync, chmodSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";

export interface Place {
  readonly home: string;
  /** A copy of the image that this case may break. */
  readonly image: string;
  /** A process of the same user that has nothing to do with any lane. */
  stranger(): number;
  /** Somebody else's server on a port of this machine. */
  server(sameUser: boolean): Promise<number>;
}

export interface Case {
  readonly step: string;
  readonly failure: string;
  readonly scenario?: object;
  readonly options?: object;
  /** The code that create rejects with; "ready" when it must not fail. */
  readonly code: string;
  /** As good, when two see the end and either may be first. */
  readonly or?: string;
  /** What must be in the message. */
  readonly says?: RegExp;
  /**
   * startTimeoutSeconds; a failure that does not wait for it gets a long one, so that a slow machine changes nothing.
   */
  readonly timeout?: number;
  /** With an image that has the port, and the port as transport. */
  readonly port?: boolean;
  /** Without a prepared _config: keys and networks.yaml are still to be made. */
  readonly fresh?: boolean;
  /**
   * The home's path has a space in it, as the path of everything below: of the warden, too, which Lima splits like a
   * shell.
   */
  readonly space?: boolean;
  /** Runs before create; what it gives is merged into scenario and options. */
  readonly before?: (place: Place) => void | Promise<{ scenario?: object; options?: object } | void> | { scenario?: object; options?: object };
  /** Runs in the owner's process right before create, after a first lane was opened. */
  readonly while?: "held" | "locked";
}

const at = (line: string, ...actions: unknown[]) => ({ at: { [line]: actions } });
const fatal = (text: string) => ({ fatal: text });
const LOG = '{"level":"info","msg":"half a li';

/** A program that dies, hangs, ignores SIGTERM, or says nonsense. */
const broken = (what: string, says?: RegExp): Omit<Case, "step" | "code">[] => [
  { failure: "exit code 1 without a word", scenario: at(what, "exit"), ...(says && { says }) },
  { failure: "killed by SIGKILL", scenario: at(what, "kill") },
];

const version: Omit<Case, "step">[] = [
  ...broken("version.print").map((c) => ({ ...c, code: "LIMA_FAILED" })),
  { failure: "the root user's refusal", scenario: at("version.print", { say: "limactl: must not run as the root user\n" }), code: "LIMA_FAILED", says: /must not run as the root user/ },
  { failure: "hangs", scenario: at("version.print", "hang"), code: "LIMA_FAILED", says: /did not end in time/ },
  { failure: "hangs and ignores SIGTERM", scenario: at("version.print", "deaf"), code: "LIMA_FAILED", says: /did not end in time/ },
  { failure: "garbage", scenario: at("version.print", { print: "\x7fELF\0\xff\xfe\n" }), code: "LIMA_UNKNOWN_VERSION" },
  { failure: "nothing, exit code 0", scenario: at("version.print", { print: "" }), code: "LIMA_UNKNOWN_VERSION" },
  { failure: "a version without a number", scenario: { version: "limactl version <unknown>" }, code: "LIMA_UNKNOWN_VERSION", says: /<unknown>/ },
  { failure: "too old", scenario: { version: "limactl version 2.1.4" }, code: "LIMA_TOO_OLD", says: /2\.1\.4/ },
  { failure: "slow", scenario: at("version.print", { slow: 1500 }), code: "ready" },
];

const prepare: Omit<Case, "step">[] = [
  ...["override", "base", "default"].map((name) => ({
    failure: `${name}.yaml in _config`,
    before: ({ home }: Place) => writeFileSync(join(home, "lima", "_config", `${name}.yaml`), 'mounts: [{location: "/"}]\n'),
    code: "CONFIG_REFUSED",
    says: new RegExp(`${name}\\.yaml`),
  })),
  { failure: "ssh-keygen fails", fresh: true, before: ({ home }) => writeFileSync(join(home, "run", "ssh-keygen.sh"), "echo no entropy >&2; exit 1\n"), code: "LIMA_FAILED", says: /ssh-keygen.*no entropy/ },
  { failure: "ssh-keygen hangs", fresh: true, before: ({ home }) => writeFileSync(join(home, "run", "ssh-keygen.sh"), "exec sleep 90\n"), timeout: 5, code: "START_TIMEOUT" },
  { failure: "ssh-keygen makes nothing", fresh: true, before: ({ home }) => writeFileSync(join(home, "run", "ssh-keygen.sh"), "exit 0\n"), code: "IO_ERROR", says: /_config\/user/ },
  { failure: "network list fails", fresh: true, scenario: at("network.write", fatal("open networks.yaml: no space left on device")), code: "LIMA_FAILED", says: /network list.*no space left/ },
  { failure: "network list killed by SIGKILL", fresh: true, scenario: at("network.write", "kill"), code: "LIMA_FAILED", says: /network list/ },
  { failure: "network list hangs and ignores SIGTERM", fresh: true, scenario: at("network.write", "deaf"), timeout: 5, code: "START_TIMEOUT" },
  { failure: "slow", fresh: true, scenario: at("network.write", { slow: 1500 }), code: "ready" },
];

const image: Omit<Case, "step">[] = [
  { failure: "no such image", options: { image: "nothing" }, code: "IMAGE_MISSING", says: /image/ },
  { failure: "no manifest", before: ({ image }) => rmSync(join(image, "manifest.json")), code: "SOURCE_MISSING", says: /manifest\.json/ },
  { failure: "half a manifest", before: ({ image }) => writeFileSync(join(image, "manifest.json"), '{"format":"agent-lane-image/1",'), code: "IMAGE_INVALID" },
  { failure: "the kernel is missing", before: ({ image }) => rmSync(join(image, "vmlinuz")), code: "SOURCE_MISSING", says: /vmlinuz/ },
  { failure: "the disk was changed", before: ({ image }) => appendFileSync(join(image, "disk.qcow2"), "x"), code: "IMAGE_INVALID", says: /disk\.qcow2/ },
  { failure: "the initrd cannot be read", before: ({ image }) => chmodSync(join(image, "initrd.img"), 0), code: "SOURCE_UNREADABLE", says: /initrd\.img/ },
  { failure: "larger than the disk that is asked for", options: { diskGiB: 7 }, code: "BAD_OPTION", says: /diskGiB must be at least 8/ },
];

const admission: Omit<Case, "step">[] = [
  { failure: "every place is taken", while: "held", options: { maxConcurrentVms: 1 }, timeout: 5, code: "BUSY", says: /agent-lane-/ },
  { failure: "the registry is locked", while: "locked", code: "REGISTRY_LOCKED" },
  { failure: "the registry is garbage", before: ({ home }) => writeFileSync(join(home, "registry.db"), "x".repeat(8192), { mode: 0o600 }), code: "ready" },
];

const qemuImg = (body: string) => ({ home }: Place) => writeFileSync(join(home, "run", "qemu-img.sh"), body);
const build: Omit<Case, "step">[] = [
  { failure: "qemu-img: no space", before: qemuImg("echo 'qemu-img: No space left on device' >&2; exit 1\n"), code: "LIMA_FAILED", says: /No space left/ },
  { failure: "qemu-img: disk shrinking is not supported", before: qemuImg("echo 'disk shrinking is not supported' >&2; exit 1\n"), code: "LIMA_FAILED", says: /shrinking/ },
  { failure: "qemu-img killed by SIGKILL", before: qemuImg("kill -9 $$\n"), code: "LIMA_FAILED", says: /qemu-img/ },
  { failure: "qemu-img leaves half a disk", before: qemuImg("shift $(($# - 2)); echo half >$1; kill -9 $$\n"), code: "LIMA_FAILED", says: /qemu-img/ },
  { failure: "qemu-img hangs", before: qemuImg("exec sleep 90\n"), timeout: 5, code: "START_TIMEOUT", says: /step create/ },
  { failure: "qemu-img hangs and ignores SIGTERM", before: qemuImg("trap '' TERM; while :; do sleep 1; done\n"), timeout: 5, code: "START_TIMEOUT", says: /step create/ },
  { failure: "slow", before: qemuImg("sleep 1.5\n"), code: "ready" },
];

const refusedBy = (failure: string, scenario: object, says: RegExp): Omit<Case, "step"> => ({ failure, scenario, code: "CONFIG_REFUSED", says });
const texts = (line: string, code: string, list: Record<string, string>): Omit<Case, "step">[] =>
  Object.entries(list).map(([failure, text]) => ({ failure, scenario: at(line, fatal(text)), code, says: new RegExp(text.split(/[`"(\\[]|NAME|DIR/)[0]?.trim().slice(0, 40).replace(/[.*+?^${}()|[\]\\]/g, "\\$&") ?? "") }));
const verify: Omit<Case, "step">[] = [
  ...texts("list.print", "LIMA_FAILED", {
    "the instance is missing": "unmatched instances",
    "the name is too long": "instance name `NAME` too long: `DIR/ssh.sock.1234567890123456` must be less than UNIX_PATH_MAX=108 characters, but is 120",
    "the name is no identifier": "instance name `NAME` is not a valid identifier: must match",
    "_config is read by another Lima": "failed to load _config: yaml: unmarshal errors",
  }),
  ...broken("list.print").map((c) => ({ ...c, code: "LIMA_FAILED", says: /limactl list/ })),
  { failure: "hangs and ignores SIGTERM", scenario: at("list.print", "deaf"), timeout: 5, code: "START_TIMEOUT", says: /step verify/ },
  refusedBy("nothing, exit code 0", at("list.print", { print: "" }), /one record/),
  refusedBy("half a record", at("list.print", { print: '{"name":"x","dir":' }), /not JSON/),
  refusedBy("two records", at("list.print", { print: "{}\n{}\n" }), /one record/),
  refusedBy("garbage", at("list.print", { print: "\x7fELF\0\xff\xfe" }), /not JSON|one record/),
  { failure: "megabytes", scenario: at("list.print", { print: "x".repeat(1 << 21) }), code: "LIMA_FAILED", says: /limactl list/ },
  { failure: "the directory is gone", scenario: at("list.read", { drop: ["."] }), code: "LIMA_FAILED", says: /unmatched instances/ },
  refusedBy("the lane runs already", { record: { status: "Running" } }, /status/),
  refusedBy("the lane is broken", { record: { status: "Broken", errors: [{}], hostAgentPID: 1 } }, /status/),
  refusedBy("the lane is protected", { record: { protected: true } }, /protected/),
  ...["override", "base", "default"].map((name) => refusedBy(`${name}.yaml appears in _config`, at("list.print", { plant: { [`_config/${name}.yaml`]: "mounts: []\n" } }), new RegExp(`${name}\\.yaml`))),
  refusedBy("a mount", { list: { mounts: [{ location: "/", writable: true }] } }, /`mounts`/),
  refusedBy("a port forward", { list: { portForwards: [{ guestPort: 80, hostPort: 80 }] } }, /`portForwards`/),
  refusedBy("a provision script", { list: { provision: [{ mode: "system", script: "id" }] } }, /`provision/),
  refusedBy("an unknown key with a value", { list: { teleport: { to: "host" } } }, /`teleport`/),
  refusedBy("a known key with another value", { list: { propagateProxyEnv: true } }, /`propagateProxyEnv`/),
  refusedBy("a known key says nothing", { list: { plain: null } }, /`plain`/),
  { failure: "an unknown key that says nothing", scenario: { list: { teleport: { to: "", ports: [], on: false } } }, code: "ready" },
  { failure: "slow", scenario: at("list.print", { slow: 1500 }), code: "ready" },
];

const startTexts = {
  "exists already": "instance `NAME` already exists (`DIR`)",
  "seems running": "instance `NAME` seems running (hint: remove `DIR/ha.pid` if the instance is not actually running)",
  "errors inspecting": "errors inspecting instance: [failed to get Info from `DIR/ha.sock`]",
  "configuration errors": "instance `NAME` has configuration errors: field `images` must be set",
  "no event in time": "did not receive an event with the `running` status",
  degraded: 'degraded, status={Running:true Degraded:true Exiting:false Errors:["boot scripts must have finished"] SSHLocalPort:0}',
  exiting: "exiting, status={Running:false Degraded:false Exiting:true Errors:[] SSHLocalPort:0} (hint: see `DIR/ha.stderr.log`)",
  "the host agent ended": "host agent process has exited: exit status 1",
  "no ha.pid in 5 s": "hostagent (`DIR/ha.pid`) did not start up in 5s (hint: see `DIR/ha.stderr.log`)",
};
const startLines = ["start.read", "start.logs", "start.hostagent", "hostagent.pid", "hostagent.files", "hostagent.qemu", "qemu.pid", "qemu.listen"];
const boot: Omit<Case, "step">[] = [
  ...texts("start.logs", "START_FAILED", startTexts),
  ...texts("start.wait", "START_FAILED", { "degraded once the VM runs": startTexts.degraded }),
  ...startLines.flatMap((line) => ["exit", "kill"].map((how) => ({
    failure: `dies before ${line} (${how === "exit" ? "exit code 1" : "SIGKILL"})`,
    scenario: at(line, how),
    code: "START_FAILED",
  }))),
  // `limactl start` is not needed for the lane to run: only its failure before the banner counts.
  { failure: "hangs", scenario: at("start.logs", "hang"), timeout: 5, code: "START_TIMEOUT", says: /step boot/ },
  { failure: "hangs and ignores SIGTERM", scenario: at("start.logs", "deaf"), timeout: 5, code: "START_TIMEOUT", says: /step boot/ },
  { failure: "the host agent hangs and ignores SIGTERM", scenario: at("hostagent.pid", "deaf"), timeout: 5, code: "START_TIMEOUT", says: /step boot/ },
  { failure: "“already running” and nothing else, exit code 0", scenario: at("start.logs", { say: '{"level":"info","msg":"The instance is already running"}\n', exit: 0 }), timeout: 5, code: "START_TIMEOUT", says: /step boot/ },
  { failure: "half a directory: lima.yaml and disk vanish", scenario: at("start.read", { drop: ["lima.yaml", "disk"] }), code: "START_FAILED", says: /configuration errors/ },
  { failure: "half a directory: our record vanishes", scenario: at("start.logs", { drop: ["agent-lane.json"] }, "exit"), code: "START_FAILED" },
  { failure: "pid files name a stranger", before: (p) => {
    const pid = `${p.stranger()}\n`;
    return { scenario: at("start.logs", { plant: { "NAME/ha.pid": pid, "NAME/qemu.pid": pid, "NAME/vz.pid": pid } }, "exit") };
  }, code: "START_FAILED" },
  { failure: "a stranger's ha.pid before the start", before: (p) => ({ scenario: at("start.read", { plant: { "NAME/ha.pid": `${p.stranger()}\n` } }) }), code: "START_FAILED", says: /seems running/ },
  { failure: "garbage in pid files", scenario: at("start.logs", { plant: { "NAME/ha.pid": "-1\n", "NAME/qemu.pid": "1 2 3", "NAME/x.pid": "\0\xff" } }, "exit"), code: "START_FAILED" },
  { failure: "an argument that the warden does not know", scenario: { qemuArgs: ["-virtfs", "local,path=/,mount_tag=x,security_model=none"] }, code: "WARDEN_REFUSED", says: /virtfs/ },
  { failure: "a second network", scenario: { qemuArgs: ["-nic", "user"] }, code: "WARDEN_REFUSED", says: /-nic/ },
  { failure: "override.yaml appears in _config", scenario: at("hostagent.port", { plant: { "_config/override.yaml": "mounts: []\n" } }), code: "CONFIG_REFUSED", says: /override\.yaml/ },
  { failure: "a space in the home's path", space: true, code: "ready" },
  { failure: "never running", scenario: at("hostagent.running", "hang"), code: "ready" },
  { failure: "slow", scenario: { at: { "start.logs": [{ slow: 700 }], "hostagent.qemu": [{ slow: 700 }], "qemu.listen": [{ slow: 700 }] } }, code: "ready" },
];

const port: Omit<Case, "step">[] = [
  { failure: "no event", scenario: at("hostagent.port", "hang"), timeout: 8, code: "START_TIMEOUT", says: /ssh port|step boot/ },
  { failure: "Running too early, without a port", scenario: at("hostagent.pid", { event: { running: true } }, "hang"), timeout: 8, code: "START_TIMEOUT", says: /step boot/ },
  { failure: "port 0 and running", scenario: at("hostagent.port", { event: { running: true, sshLocalPort: 0 } }, "hang"), code: "START_FAILED", says: /port that is none/ },
  { failure: "port 70000", scenario: at("hostagent.port", { event: { sshLocalPort: 70000 } }, "hang"), code: "START_FAILED", says: /port that is none/ },
  { failure: "a port that is text", scenario: at("hostagent.port", { event: { sshLocalPort: "22" } }, "hang"), code: "START_FAILED", says: /port that is none/ },
  { failure: "exiting, with an error", scenario: at("hostagent.port", { event: { errors: ["could not set up host forwarding rule"] } }, { event: { exiting: true } }, "hang"), code: "START_FAILED", says: /gave up.*forwarding rule/ },
  { failure: "garbage between the events", scenario: at("hostagent.port", { event: `\0\xff\n${LOG}\n{"time":1,"status":[]}\n{}\n[]\n` }), code: "ready" },
  { failure: "half an event, then the host agent dies", scenario: at("hostagent.port", { event: '{"time":"2026-01-01T00:00:00Z","status":{"sshLocalPo' }, "kill"), code: "START_FAILED" },
  { failure: "QEMU never listens", scenario: at("qemu.listen", "hang"), timeout: 8, code: "START_TIMEOUT", says: /the VM to listen|step boot/ },
  { failure: "another process of this user has it", before: async (p) => ({ scenario: { port: await p.server(true), ...at("qemu.listen", "hang") } }), code: "PEER_UNPROVEN", says: /held by process/ },
  { failure: "another user has it", before: async (p) => ({ scenario: { port: await p.server(false), ...at("qemu.listen", "hang") } }), code: "PEER_UNPROVEN", says: /another user/ },
];

const banner: Omit<Case, "step">[] = [
  { failure: "silence", scenario: { banner: "mute" }, timeout: 8, code: "START_TIMEOUT", says: /ssh in the guest|step boot/ },
  { failure: "another protocol", scenario: { banner: "HTTP/1.1 400 Bad Request\r\n\r\n" }, timeout: 8, code: "START_TIMEOUT", says: /ssh in the guest|step boot/ },
  { failure: "closed at once, always", scenario: { banner: "close" }, timeout: 8, code: "START_TIMEOUT", says: /ssh in the guest|step boot/ },
  { failure: "QEMU dies", scenario: { banner: "mute", qemuLivesMs: 1000 }, code: "START_FAILED", says: /gave up|exited/ },
];

const shellTexts = {
  "the instance is missing": "instance `NAME` does not exist, run `limactl create NAME` to create a new instance",
  "the instance is stopped": "instance `NAME` is stopped, run `limactl start NAME` to start the instance",
};
const shell: Omit<Case, "step">[] = [
  ...texts("shell.login", "START_FAILED", shellTexts),
  { failure: "ssh to port 0, exit code 255", scenario: at("shell.login", { say: "Bad port '0'\r\n", exit: 255 }), code: "START_FAILED", says: /Bad port/ },
  { failure: "permission denied, exit code 255", scenario: at("shell.login", { say: "lane@127.0.0.1: Permission denied (publickey).\r\n", exit: 255 }), code: "START_FAILED", says: /Permission denied/ },
  { failure: "sudo wants a password", scenario: at("shell.take", { say: "sudo: a password is required\n" }), code: "START_FAILED", says: /password is required/ },
  ...broken("shell.login").map((c) => ({ ...c, code: "START_FAILED" })),
  { failure: "hangs and ignores SIGTERM", scenario: at("shell.login", "deaf"), timeout: 8, code: "START_TIMEOUT", says: /step connect/ },
  { failure: "never takes the agent", scenario: at("shell.take", "hang"), timeout: 8, code: "START_TIMEOUT", says: /step connect/ },
  { failure: "a login that prints without end", scenario: at("shell.take", { print: "x".repeat(1 << 18) }), code: "START_FAILED", says: /16 KiB/ },
];

const marker: Omit<Case, "step">[] = [
  ...broken("shell.marker").map((c) => ({ ...c, code: "START_FAILED" })),
  { failure: "never", scenario: at("shell.marker", "hang"), timeout: 8, code: "START_TIMEOUT", says: /step connect/ },
  { failure: "another token", scenario: { marker: `agent-lane-${"0".repeat(32)}` }, timeout: 8, code: "START_TIMEOUT", says: /step connect/ },
  { failure: "bytes behind it", scenario: { guest: { early: "ALCH" } }, code: "PROTOCOL_VIOLATION", says: /before it was asked/ },
];

const guest = (failure: string, guest: object, code: string, more: Partial<Case> = {}): Omit<Case, "step"> => ({ failure, scenario: { guest }, code, ...more });
const handshake = [
  guest("silence", { mute: true }, "START_TIMEOUT", { timeout: 8 }),
  guest("dies", { hello: "die" }, "CHANNEL_CLOSED"),
  guest("garbage", { hello: "garbage" }, "PEER_UNPROVEN"),
  guest("a frame of 2 GiB", { hello: "huge" }, "PEER_UNPROVEN"),
  guest("another version of the protocol", { hello: "old" }, "PEER_INCOMPATIBLE"),
];
const proof = [
  guest("another secret", { impostor: true }, "PEER_UNPROVEN", { says: /secret/ }),
  guest("the host's own challenge", { hello: "replay" }, "PEER_UNPROVEN", { says: /secret/ }),
  guest("half a proof", { hello: "short" }, "PEER_UNPROVEN"),
  guest("none, straight to work", { hello: "config" }, "PEER_UNPROVEN"),
];
const config = [
  guest("silence", { config: "mute" }, "START_TIMEOUT", { timeout: 8 }),
  guest("dies", { config: "die" }, "CHANNEL_CLOSED"),
  guest("garbage", { config: "garbage" }, "PROTOCOL_VIOLATION"),
  guest("refuses", { config: "refuse" }, "START_FAILED", { says: /worktree is a file/ }),
];

const onPort = (list: Omit<Case, "step" | "port">[]): Omit<Case, "step">[] => list.map((c) => ({ port: true, ...c }));
const virtio: Omit<Case, "step">[] = [
  { failure: "asked for with an image without it", options: { transport: "port" }, code: "TRANSPORT_UNAVAILABLE", says: /is older than that/ },
  ...onPort([
    { failure: "a file in the socket's place", scenario: at("start.logs", { plant: { "NAME/lane.sock": "" } }), code: "PEER_UNPROVEN", says: /not a socket of ours/ },
    { failure: "QEMU dies before the guest opens it", scenario: at("qemu.port", "kill"), code: "START_FAILED", says: /gave up|exited|VM ended/ },
    { failure: "an argument that the warden does not know", scenario: { qemuArgs: ["-mon", "chardev=char-qmp"] }, code: "WARDEN_REFUSED", says: /-mon/ },
    { failure: "limactl start fails while the guest boots", scenario: { at: { "start.wait": [{ slow: 700 }, fatal("no event in time")], "qemu.port": ["hang"] } }, code: "START_FAILED", says: /no event in time/ },
    { failure: "the guest never opens it", scenario: at("qemu.port", "hang"), timeout: 8, code: "START_TIMEOUT", says: /lane agent to start|step connect/ },
    { failure: "the guest takes nothing", scenario: at("port.header", "hang"), timeout: 8, code: "START_TIMEOUT", says: /lane agent to start|step connect/ },
    { failure: "the guest takes half", scenario: at("port.take", "hang"), timeout: 8, code: "START_TIMEOUT", says: /lane agent to start|step connect/ },
    { failure: "the VM ends before the marker", scenario: at("port.marker", "kill"), code: "START_FAILED", says: /gave up|exited|VM ended/ },
    { failure: "no marker", scenario: at("port.marker", "hang"), timeout: 8, code: "START_TIMEOUT", says: /lane agent to start|step connect/ },
    { failure: "another token", scenario: { marker: `agent-lane-${"0".repeat(32)}` }, timeout: 8, code: "START_TIMEOUT", says: /lane agent to start|step connect/ },
    { failure: "bytes behind the marker", scenario: { guest: { early: "ALCH" } }, code: "PROTOCOL_VIOLATION", says: /before it was asked/ },
    { failure: "noise without end", scenario: { noise: "x".repeat(1 << 18) }, code: "START_FAILED", says: /16 KiB/ },
    { failure: "noise before the marker", scenario: { noise: `\nagent-lane-${"0".repeat(32)}\nlogin: ` }, code: "ready" },
    { failure: "silence after the marker", scenario: { guest: { mute: true } }, timeout: 8, code: "START_TIMEOUT" },
    { failure: "the guest dies at the handshake", scenario: { guest: { hello: "die" } }, code: "CHANNEL_CLOSED", or: "START_FAILED" },
    { failure: "another secret", scenario: { guest: { impostor: true } }, code: "PEER_UNPROVEN", says: /secret/ },
    { failure: "sshd never answers", scenario: { banner: "mute" }, code: "ready" },
    { failure: "limactl start hangs", scenario: at("start.wait", "hang"), code: "ready" },
    { failure: "slow", scenario: { at: { "hostagent.qemu": [{ slow: 700 }], "qemu.port": [{ slow: 700 }], "port.marker": [{ slow: 700 }] } }, code: "ready" },
  ]),
];

// A create that fails while its own clean-up does, too: the first error is told, and our sweep does what limactl did
// not.
const failing = (more: object) => ({ at: { "start.wait": ["exit"], "hostagent.port": ["hang"], ...more } });
const cleanup: Omit<Case, "step">[] = [
  ...["exit", "kill", "hang", "deaf"].map((how) => ({ failure: `start fails; delete: ${how}`, scenario: failing({ "delete.read": [how] }), code: "START_FAILED" })),
  { failure: "start fails; delete: protected", scenario: failing({ "delete.read": [fatal("failed to delete instance `NAME`: instance is protected to prohibit accidental removal (Hint: use `limactl unprotect`)")] }), code: "START_FAILED" },
  { failure: "start fails; delete: half a directory", scenario: failing({ "start.wait": [{ drop: ["lima.yaml"] }, "exit"] }), code: "START_FAILED" },
  { failure: "start fails; delete says “non-existent”, exit code 0", scenario: failing({ "delete.read": [{ say: "Ignoring non-existent instance\n", exit: 0 }] }), code: "START_FAILED" },
  ...["delete.kill", "delete.yaml", "delete.rest"].map((line) => ({ failure: `start fails; delete dies before ${line}`, scenario: failing({ [line]: ["kill"] }), code: "START_FAILED" })),
  { failure: "start in vain; delete ignores SIGTERM", scenario: { at: { "hostagent.port": ["hang"], "delete.read": ["deaf"] } }, timeout: 8, code: "START_TIMEOUT" },
];

const steps = { version, prepare, image, admission, build, verify, boot, port, banner, shell, marker, virtio, handshake, proof, config, cleanup };
export const cases: readonly Case[] = Object.entries(steps).flatMap(([step, list]) => list.map((c) => ({ step, ...c })));
