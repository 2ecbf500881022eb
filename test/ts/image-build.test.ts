// SPDX-License-Identifier: Apache-2.0
// agent-lane image build and image lock: usage, and what the recipe's failures become. No image is built here.
import { spawn, spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { stages } from "./support/stages.js";

const root = join(import.meta.dirname, "..", "..");
const main = join(root, "dist", "cli", "main.js");
const scratch = mkdtempSync(join(tmpdir(), "al-image-build-"));
const home = join(scratch, "home");
afterAll(() => rmSync(scratch, { recursive: true, force: true }));

interface Run {
  readonly status: number | null;
  readonly out: string;
  readonly err: string;
}

const environment = (env: NodeJS.ProcessEnv = {}): NodeJS.ProcessEnv => ({
  ...process.env,
  AGENT_LANE_HOME: home,
  AGENT_LANE_LIMACTL: "",
  XDG_CACHE_HOME: join(scratch, "cache"),
  FORCE_COLOR: undefined,
  NO_COLOR: "1",
  ...env,
});

/** Not spawnSync: the mirror of these tests is served by this process. */
async function run(args: string[], env: NodeJS.ProcessEnv = {}): Promise<Run> {
  const child = spawn(process.execPath, [main, "image", ...args], { env: environment(env), stdio: ["ignore", "pipe", "pipe"] });
  let out = "";
  let err = "";
  child.stdout.on("data", (data) => (out += String(data)));
  child.stderr.on("data", (data) => (err += String(data)));
  const status = await new Promise<number | null>((resolve) => child.on("close", resolve));
  return { status, out, err };
}

// The recipe itself runs on Debian as root only, and only where its tools are.
const tools = ["mmdebstrap", "musl-gcc", "qemu-img", "autoreconf", "lz4", "jq"];
const recipeRuns =
  process.getuid?.() === 0 && existsSync("/etc/debian_version") && spawnSync("sh", ["-c", tools.map((t) => `command -v ${t}`).join(" && ")]).status === 0;

describe("usage", () => {
  it.each([["build"], ["lock"]])("%s --help has an example", async (command) => {
    const { status, out } = await run([command, "--help"]);
    expect(status).toBe(0);
    expect(out).toMatch(/Examples?:\n +agent-lane image /);
  });

  it.each([
    ["build", "--flavour", "nonsense"],
    ["build", "--arch", "vax"],
    ["build", "--name", "../x"],
    ["build", "--name", "project-mine"],
    ["lock", "--update", "--only", "nonsense"],
  ])("%s %s %s is wrong usage", async (...args) => {
    const { status, err } = await run(args.filter((a): a is string => typeof a === "string"));
    expect(status).toBe(2);
    expect(err).toMatch(/--help|Usage/);
  });

  it("lock without --update changes nothing and says what it can do", async () => {
    const { status, err } = await run(["lock"]);
    expect(status).toBe(1);
    expect(err).toContain("--update");
  });
});

const stage = stages();

it("where the store has no image, the cure says how the first one is made", { timeout: 100_000 }, async () => {
  const s = stage();
  s.addCommand();
  const { said, err } = await s.run(`
    import { spawnSync } from "node:child_process";
    const argv = [new URL("cli/main.js", PACKAGE).pathname, "image", "build", "--in-lane", "--home", OPTIONS.home, "--limactl", OPTIONS.limactlPath];
    const of = (...more) => { const r = spawnSync(process.execPath, [...argv, ...more], { encoding: "utf8" }); return [r.status, r.stderr]; };
    report("none", of());
    report("named", of("--helper-image", "mine"));`);
  expect(said["none"], err).toEqual([1, expect.stringMatching(/\nerror IMAGE_MISSING: .*\ncure: Without an image .* --helper FILE /)]);
  expect(said["named"], err).toEqual([1, expect.stringMatching(/\nerror IMAGE_MISSING: .*\ncure: `agent-lane image import DIR`/)]);
});

describe.skipIf(!recipeRuns)("the recipe on this machine", () => {
  let mirror: Server;
  let url = "";
  let asked = 0;
  beforeAll(async () => {
    mirror = createServer((request, response) => {
      asked++;
      request.resume();
      response.writeHead(404).end();
    });
    await new Promise<void>((resolve) => mirror.listen(0, "127.0.0.1", resolve));
    url = `http://127.0.0.1:${(mirror.address() as AddressInfo).port}`;
  });
  afterAll(() => mirror.close());

  it("a locked file that has left the mirror is INPUT_GONE with its cure, and nothing is left", async () => {
    const { status, out, err } = await run(["build"], { AGENT_LANE_DEBIAN_MIRROR: url });
    expect(asked).toBeGreaterThan(0);
    expect(status).toBe(1);
    expect(out).toBe("");
    expect(err).toContain("INPUT_GONE");
    expect(err).toContain("agent-lane image lock --update");
    expect(readdirSync(join(home, "build"))).toEqual([]);
    expect((await run(["ls", "--json"])).out.trim()).toBe("[]");
  });

  it("a lock that is none is another error", async () => {
    const lock = join(scratch, "lock.json");
    writeFileSync(lock, JSON.stringify({ schema: 1, arch: "x86_64", epoch: 1, suite: "bookworm", debs: [{ name: "x" }] }));
    const { status, err } = await run(["build", "--lock", lock], { AGENT_LANE_DEBIAN_MIRROR: url });
    expect(status).toBe(1);
    expect(err).toContain("IMAGE_BUILD_FAILED");
    expect(err).not.toContain("INPUT_GONE");
  });

  it("interrupted, it ends its recipe and says so by its status", async () => {
    const hanging = createServer(() => undefined);
    await new Promise<void>((resolve) => hanging.listen(0, "127.0.0.1", resolve));
    const reached = new Promise<void>((resolve) => hanging.once("connection", () => resolve()));
    const child = spawn(process.execPath, [main, "image", "build"], {
      env: environment({ AGENT_LANE_DEBIAN_MIRROR: `http://127.0.0.1:${(hanging.address() as AddressInfo).port}` }),
      stdio: "ignore",
      detached: true,
    });
    const ended = new Promise<number | null>((resolve) => child.on("close", resolve));
    await reached;
    process.kill(-child.pid!, "SIGINT");
    expect(await ended).toBe(130);
    hanging.closeAllConnections();
    hanging.close();
    expect(readdirSync(join(home, "build"))).toEqual([]);
    expect(readdirSync(join(scratch, "cache", "agent-lane", "image")).filter((name) => name.startsWith("work."))).toEqual([]);
  });
});

describe("the package's recipe", () => {
  it("is whole: what build names is in the folder image", () => {
    for (const name of ["parts/common.sh", "parts/debian.sh", "parts/disk.sh", "parts/docker.sh", "parts/npm.sh", "parts/root.sh", "locks/x86_64.json", "locks/aarch64.json"])
      expect(existsSync(join(root, "image", name)), name).toBe(true);
    expect(readFileSync(join(root, "package.json"), "utf8")).toContain('"image"');
  });
});
