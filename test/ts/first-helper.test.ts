// SPDX-License-Identifier: Apache-2.0
// image build and lock --helper: which cloud image is started, and how; the pins. limactl is a script here; a real one:
// test/image/nightly/first-helper.
import { execFile, spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { chmodSync, copyFileSync, cpSync, existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, beforeEach, describe, expect, it, vi } from "vitest";

vi.setConfig({ testTimeout: 60_000 });

const root = join(import.meta.dirname, "..", "..");
const scratch = mkdtempSync(join(tmpdir(), "al-first-helper-"));
afterAll(() => rmSync(scratch, { recursive: true, force: true }));

const DISK = "a disk with cloud-init";
const SHA256 = createHash("sha256").update(DISK).digest("hex");
const disk = join(scratch, "cloud.qcow2");
const log = join(scratch, "log");
const limactl = join(scratch, "limactl");
const out = join(scratch, "lock.json");
const pins = join(scratch, "package", "image", "helper-pins.json");
const arch = process.arch === "arm64" ? "aarch64" : "x86_64";
// Another run of this file, or a real one, may have one of its own.
let others: ReadonlySet<string> = new Set();
const helpers = (): string[] => readdirSync("/tmp").filter((name) => name.startsWith("agent-lane-helper-") && !others.has(name));

interface Run {
  readonly status: number | null;
  readonly err: string;
}

function run(...args: string[]): Promise<Run> {
  const argv = [join(scratch, "package", "dist", "cli", "main.js"), "image", ...args, "--home", join(scratch, "home"), "--limactl", limactl];
  const child = spawn(process.execPath, argv, { stdio: ["ignore", "ignore", "pipe"], env: { ...process.env, NO_COLOR: "1", FORCE_COLOR: undefined, NODE_EXTRA_CA_CERTS: undefined, AGENT_LANE_DEBIAN_MIRROR: "http://mirror.invalid/it's" } });
  let err = "";
  child.stderr.on("data", (data) => (err += String(data)));
  return new Promise((resolve) => child.on("close", (status) => resolve({ status, err })));
}
const lock = (...args: string[]): Promise<Run> => run("lock", "--update", "--only", "debs", "--arch", "x86_64", "--out", out, "--helper", disk, ...args);
const calls = (): string[] => (existsSync(log) ? readFileSync(log, "utf8").trim().split("\n") : []);

/** A limactl that says what it was asked; `status`: of the recipe; `deleted`: of delete. */
function script(status = 0, deleted = 0): void {
  writeFileSync(limactl, `#!/bin/sh
shift 3
case $1 in
  create) cat >'${scratch}/template'; cp "$LIMA_HOME/disk" '${scratch}/started'; env >'${scratch}/environment' ;;
  copy) case $2 in first-helper:*) echo '{"made":"there"}' >"$3" ;; esac ;;
  delete) status=${deleted} ;;
  shell) case $* in *in-lane*) echo 'image: INPUT_GONE: a file has left'; status=${status} ;; esac ;;
esac
echo "$*" >>'${log}'
exit \${status:-0}
`);
  chmodSync(limactl, 0o755);
}

beforeAll(() => {
  writeFileSync(disk, DISK);
  // A package of its own, whose pin file may be written.
  mkdirSync(join(scratch, "package"));
  for (const name of ["dist", "prebuilds", "node_modules"]) symlinkSync(join(root, name), join(scratch, "package", name));
  rmSync(join(scratch, "package", "dist"));
  cpSync(join(root, "dist"), join(scratch, "package", "dist"), { recursive: true });
  cpSync(join(root, "image"), join(scratch, "package", "image"), { recursive: true, filter: (path) => !path.endsWith("/out") });
  copyFileSync(join(root, "package.json"), join(scratch, "package", "package.json"));
});
beforeEach(() => {
  others = new Set([...others, ...helpers()]);
  for (const path of [log, out, join(scratch, "template")]) rmSync(path, { force: true });
  writeFileSync(pins, "{}\n");
  script();
});

describe("--helper", () => {
  it("that cannot be deleted stays where limactl finds it, and says so", async () => {
    script(0, 1);
    const { status, err } = await lock("--sha256", SHA256);
    expect(status).toBe(0);
    const [left, ...more] = helpers();
    expect(more).toEqual([]);
    expect(err).toContain(`LIMA_HOME=/tmp/${left} ${limactl} delete --force first-helper`);
    rmSync(join("/tmp", left!), { recursive: true });
  });

  it("ships without a pin", () => {
    expect(JSON.parse(readFileSync(join(root, "image", "helper-pins.json"), "utf8"))).toEqual({});
  });

  it("starts nothing that nobody has pinned", async () => {
    const { status, err } = await lock();
    expect(status).toBe(1);
    expect(err).toMatch(/BAD_OPTION: --helper needs --sha256, or a pin .*scripts\/pin-helper/);
    expect(calls().filter((call) => !call.startsWith("delete"))).toEqual([]);
    expect(helpers()).toEqual([]);
  });

  it.each([["--sha256", createHash("sha256").update("another").digest("hex")], ["a pin", ""]])("starts nothing with another digest than that of %s", async (_by, sha256) => {
    if (sha256 === "") writeFileSync(pins, JSON.stringify({ [arch]: [{ sha256: "0".repeat(64) }] }));
    const { status, err } = await lock(...(sha256 === "" ? [] : ["--sha256", sha256]));
    expect(status).toBe(1);
    expect(err).toContain(`IMAGE_CORRUPT: ${disk} has sha256 ${SHA256}, not `);
    expect(calls().filter((call) => !call.startsWith("delete"))).toEqual([]);
  });

  it.each([["--sha256"], ["a pin"]])("runs the recipe in a VM of it by %s, with no way to the host", async (by) => {
    if (by === "a pin") writeFileSync(pins, JSON.stringify({ [arch]: [{ sha256: "0".repeat(64) }, { sha256: SHA256 }] }));
    const { status, err } = await lock(...(by === "a pin" ? [] : ["--sha256", SHA256]));
    expect(err).not.toContain("error");
    expect(status).toBe(0);
    expect(JSON.parse(readFileSync(out, "utf8"))).toEqual({ made: "there" });
    const said = calls();
    expect(said.map((call) => call.split(" ")[0])).toEqual(["create", "start", "shell", "copy", "shell", "copy", "delete"]);
    expect(said[4]).toContain("exec env AGENT_LANE_DEBIAN_MIRROR='http://mirror.invalid/it'\\''s' ./in-lane lock  '--update' '--arch' 'x86_64' '--only' 'debs' '--out' 'updated.json' 2>&1");
    expect(said[6]).toBe("delete --force first-helper");
    expect(JSON.parse(readFileSync(join(scratch, "template"), "utf8"))).toMatchObject({
      plain: true, mounts: [], arch, propagateProxyEnv: false, portForwards: [{ ignore: true }],
      ssh: { loadDotSSHPubKeys: false, forwardAgent: false, forwardX11: false },
      provision: [{ mode: "system", script: "#!/bin/sh\nexec shutdown -P +480\n" }],
    });
    // What was hashed is what is started, and limactl gets nothing of the environment that it does not need.
    expect(readFileSync(join(scratch, "started"), "utf8")).toBe(DISK);
    expect(readFileSync(join(scratch, "environment"), "utf8")).not.toContain("AGENT_LANE_");
    expect(helpers()).toEqual([]);
  });

  it("ends the VM when the recipe fails, and says why", async () => {
    script(3);
    const { status, err } = await lock("--sha256", SHA256);
    expect(status).toBe(1);
    expect(err).toContain("INPUT_GONE: a file has left");
    expect(calls().at(-1)).toBe("delete --force first-helper");
    expect(helpers()).toEqual([]);
  });

  it.each([
    [["--sha256", SHA256], /--sha256 is of a --helper/],
    [["--helper", disk, "--helper-image", "base"], /either --helper or --helper-image/],
    [["--helper", disk, "--sha256", "abc"], /64 lower-case hex digits/],
  ])("%j is refused", async (args, why) => {
    const { status, err } = await run("build", ...args);
    expect(status).not.toBe(0);
    expect(err).toMatch(why);
    expect(calls()).toEqual([]);
  });
});

describe("scripts/pin-helper", () => {
  let mirror: Server;
  let list = "";
  beforeAll(async () => {
    mirror = createServer((request, response) => {
      if (request.url?.endsWith("/SHA512SUMS") === true) return void response.end(list);
      if (request.url?.endsWith("/debian-12-genericcloud-arm64.qcow2") === true) return void response.end(DISK);
      response.writeHead(404).end();
    });
    await new Promise<void>((resolve) => mirror.listen(0, "127.0.0.1", resolve));
  });
  afterAll(() => mirror.close());
  const pin = (...args: string[]): Promise<number> =>
    new Promise((resolve) => {
      const env = { ...process.env, AGENT_LANE_PINS: pins, AGENT_LANE_CLOUD_MIRROR: `http://127.0.0.1:${(mirror.address() as AddressInfo).port}/cloud` };
      execFile(join(root, "scripts", "pin-helper"), args, { env }, (error) => resolve(error === null ? 0 : Number(error.code)));
    });
  const read = (): unknown => JSON.parse(readFileSync(pins, "utf8"));

  it("pins a file for its architecture, once, before those that were there", async () => {
    writeFileSync(pins, JSON.stringify({ aarch64: [{ sha256: "0".repeat(64), from: "old" }] }));
    expect(await pin(disk, "aarch64")).toBe(0);
    expect(await pin(disk, "aarch64")).toBe(0);
    expect(await pin(disk)).toBe(0);
    const entry = { sha256: SHA256, from: "cloud.qcow2" };
    const old = { sha256: "0".repeat(64), from: "old" };
    expect(read()).toEqual(arch === "aarch64" ? { aarch64: [entry, old] } : { aarch64: [entry, old], x86_64: [entry] });
  });

  it("fetches one, and pins it only when the list of digests has it", async () => {
    list = `${createHash("sha512").update("another").digest("hex")}  debian-12-genericcloud-arm64.qcow2\n`;
    expect(await pin("--fetch", "aarch64", join(scratch, "got"))).toBe(1);
    list = "nothing\n";
    expect(await pin("--fetch", "aarch64", join(scratch, "got"))).toBe(1);
    expect(read()).toEqual({});
    expect(readdirSync(join(scratch, "got"))).toEqual(["SHA512SUMS"]);
    list = `${createHash("sha512").update(DISK).digest("hex")}  debian-12-genericcloud-arm64.qcow2\n`;
    expect(await pin("--fetch", "aarch64", join(scratch, "got"))).toBe(0);
    expect(read()).toMatchObject({ aarch64: [{ sha256: SHA256 }] });
  });

  it.each([[[]], [["--nonsense"]], [["/nowhere"]], [["--fetch", "vax"]]])("%j is refused", async (args) => {
    expect(await pin(...args)).not.toBe(0);
    expect(read()).toEqual({});
  });
});
