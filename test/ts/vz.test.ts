// SPDX-License-Identifier: Apache-2.0
// A lane as on a Mac: the core is told that the system is Darwin (uname alone; files, processes and sockets stay this system's), so
// it takes vz, and the scripted limactl plays vz after the source of Lima 2.2.0. Nothing here was recorded on a Mac.
import { execFileSync, spawnSync } from "node:child_process";
import { chmodSync, copyFileSync, existsSync, symlinkSync, writeFileSync } from "node:fs";
import { createServer, type AddressInfo } from "node:net";
import { join } from "node:path";
import { expect, it, vi } from "vitest";
import { makeImage } from "./support/image.mjs";
import { stages } from "./support/stages.js";

vi.setConfig({ testTimeout: 100_000 });
const made = stages();
const target = `${process.platform}-${process.arch}`;

function mac(scenario: object = { guest: "agent" }) {
  const stage = made(scenario);
  const shim = join(stage.dir, "mac-uname.so");
  execFileSync("cc", ["-shared", "-fPIC", "-o", shim, join(import.meta.dirname, "..", "fixtures", "mac-uname.c")]);
  // The keeper is looked for under the name of the system that the core sees.
  symlinkSync(target, join(stage.dir, "pkg", "prebuilds", target.replace("linux", "darwin")));
  makeImage(join(stage.dir, "image-vz"), ["shell-transport", "port-transport"], true);
  const prelude = `const MAC = { image: ${JSON.stringify(join(stage.dir, "image-vz"))}, accelerator: "auto", transport: "auto" };`;
  const env = { LD_PRELOAD: [shim, process.env["AL_PRELOAD"] ?? ""].filter(Boolean).join(":") };
  return { stage, run: (script: string) => stage.run(prelude + script, env) };
}

it("runs from create to close on vz, over the shell, with nothing of QEMU's", async () => {
  const { stage, run } = mac();
  const { said, err } = await run(`
    const { openSync, readSync, statSync } = await import("node:fs");
    const begin = (file) => { const b = Buffer.alloc(12); readSync(openSync(file), b, 0, 12, 0); return b.toString(); };
    const events = [];
    let name;
    const lane = await create({ ...MAC, diskGiB: 9, onEvent: (e) => { name ??= e.lane; events.push(e.type === "notice" ? e.message : e.type); } });
    const dir = OPTIONS.home + "/lima/" + name;
    report("disk", [begin(dir + "/disk"), statSync(dir + "/disk").size]);
    report("out", (await lane.exec("printf hello; cat", { stdin: "x".repeat(300000) })).stdout.length);
    await lane.close();
    report("events", events);`);
  expect(said["disk"], err).toEqual(["the raw disk", 9 * 2 ** 30]);
  expect(said["out"]).toBe(300005);
  expect(said["events"]).toEqual(["queued", "creating", "booting", "connecting", "ready", "closing", "closed"]);
  expect(stage.left()).toEqual([]);
  expect(stage.processes().filter((line) => !line.includes("[mux]"))).toEqual([]);
  expect(stage.sql("SELECT state FROM lanes")).toEqual(["closed"]);
});

it("refuses what only QEMU can do, by name, before anything is made", async () => {
  const { stage, run } = mac();
  const { said, err } = await run(`
    report("none", await failure(() => create({ ...MAC, network: "none" })));
    report("port", await failure(() => create({ ...MAC, transport: "port" })));
    report("tcg", await failure(() => create({ ...MAC, accelerator: "tcg" })));
    report("image", await failure(() => create({ ...MAC, image: OPTIONS.image })));`);
  expect(said["none"], err).toMatchObject({ code: "NETWORK_UNENFORCEABLE", step: "check", cure: expect.stringContaining("needs QEMU") });
  expect(said["port"]).toMatchObject({ code: "TRANSPORT_UNAVAILABLE", message: expect.stringContaining("vz") });
  expect(said["tcg"]).toMatchObject({ code: "BAD_OPTION", message: expect.stringContaining('accelerator: "tcg" needs QEMU') });
  expect(said["image"]).toMatchObject({ code: "IMAGE_INVALID", message: expect.stringContaining('no file of role "disk-raw"') });
  expect(stage.left()).toEqual([]);
  expect(stage.calls()).not.toContain("start");
});

it("refuses a port that another process holds", async () => {
  const thief = createServer((socket) => socket.end("SSH-2.0-thief\r\n"));
  await new Promise<void>((done) => thief.listen(0, "127.0.0.1", done));
  const { stage, run } = mac({ port: (thief.address() as AddressInfo).port, at: { "hostagent.vz": "skip" } });
  const { said, err } = await run(`report("error", await failure(() => create(MAC)));`).finally(() => thief.close());
  expect(said["error"], err).toMatchObject({ code: "PEER_UNPROVEN", message: expect.stringContaining("is held by") });
  expect(stage.left()).toEqual([]);
});

it("ends the lane when the host agent, and the VM with it, is gone", async () => {
  const { stage, run } = mac();
  const { said, err } = await run(`
    const { readFileSync } = await import("node:fs");
    let name;
    const lane = await create({ ...MAC, onEvent: (e) => { name ??= e.lane; } });
    const sleeper = lane.exec("sleep 60").then(() => "it ended", (e) => e.code);
    const pid = (file) => Number(readFileSync(OPTIONS.home + "/lima/" + name + "/" + file, "utf8"));
    report("same", pid("vz.pid") === pid("ha.pid"));
    process.kill(pid("ha.pid"), "SIGKILL");
    await lane.close();
    report("sleeper", await sleeper);`);
  expect(said["same"], err).toBe(true);
  expect(said["sleeper"]).toBe("LANE_CLOSED");
  expect(stage.left()).toEqual([]);
});

/** The real limactl that scripts/setup has built, or one of this machine's; AL_LIMACTL names another. */
const limactl = process.env["AL_LIMACTL"] ?? execFileSync("bash", ["-c", '. scripts/lib.sh && printf %s "$LIMACTL"'], { cwd: join(import.meta.dirname, "..", ".."), encoding: "utf8" });
const there = limactl !== "" && existsSync(limactl);

it.skipIf(!there)("writes a template that the real limactl accepts, for Apple Silicon too", async () => {
  const { stage, run } = mac();
  const { said, err } = await run(`
    const { readFileSync } = await import("node:fs");
    let name;
    const lane = await create({ ...MAC, onEvent: (e) => { name ??= e.lane; } });
    report("yaml", readFileSync(OPTIONS.home + "/lima/" + name + "/lima.yaml", "utf8"));
    await lane.close();`);
  const yaml = said["yaml"] as string;
  expect(yaml, err).toContain('vmType: "vz"');
  stage.writable("lima");
  const program = join(stage.dir, "real-limactl"); // its own place may be closed to others
  copyFileSync(limactl, program);
  chmodSync(program, 0o755);
  const validate = (text: string) => {
    const file = join(stage.dir, "lima.yaml");
    writeFileSync(file, text);
    const user = process.getuid?.() === 0 ? { uid: 65534, gid: 65534 } : {};
    const env = { PATH: process.env["PATH"], HOME: join(stage.dir, "lima"), LIMA_HOME: join(stage.dir, "lima") };
    const r = spawnSync(program, ["--tty=false", "validate", file], { cwd: stage.dir, encoding: "utf8", timeout: 60_000, env, ...user });
    return { code: r.status, said: r.stderr };
  };
  expect(validate(yaml)).toEqual({ code: 0, said: expect.stringContaining("OK") });
  // Lima looks at what it is given: neither an unknown kind of VM nor a broken rule passes.
  expect(validate(yaml.replace('vmType: "vz"', 'vmType: "zv"')).code).toBe(1);
  expect(validate(yaml.replace('mode: "data"', 'mode: "some"')).code).toBe(1);
  expect(validate(yaml.replaceAll(/arch: "x86_64"/g, 'arch: "aarch64"'))).toEqual({ code: 0, said: expect.stringContaining("OK") });
});
