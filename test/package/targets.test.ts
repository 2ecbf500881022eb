// SPDX-License-Identifier: Apache-2.0
// Each target's files in use, by a Node of that target: this machine's own, and those of scripts/fetch-runtimes (musl's, and arm64's
// under emulation). macOS runs nowhere but on macOS: its files are inspected in tarball.test.ts.
import { execFileSync } from "node:child_process";
import { copyFileSync, mkdtempSync, readFileSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { homedir, tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { CORE_ERROR_CODES } from "../../lib/errors.js";
import { ended, installed, root } from "./support.js";

const scratch = mkdtempSync(join(tmpdir(), "al-targets-"));
afterAll(() => rmSync(scratch, { recursive: true, force: true }));
const runtimes = join(process.env["XDG_CACHE_HOME"] ?? join(homedir(), ".cache"), "agent-lane", "runtimes");
const wanted = (process.env["PACKAGE_TARGETS"] ?? "linux-x64 linux-arm64 linux-x64-musl linux-arm64-musl").split(" ").filter((t) => !t.startsWith("darwin"));
const own = `${process.platform}-${process.arch}`;
const node = (target: string) => (target === own ? process.execPath : join(runtimes, target, "node"));

let pkg = "";
beforeAll(async () => {
  const others = wanted.filter((target) => target !== own);
  if (others.length > 0) {
    const r = await ended(join(root, "scripts", "fetch-runtimes"), others, { timeout: 600_000 });
    if (r.status !== 0) throw new Error(r.stdout + r.stderr);
  }
  pkg = installed(scratch);
}, 700_000);

const run = (target: string, args: string[], env: NodeJS.ProcessEnv = {}) =>
  ended(node(target), args, { cwd: scratch, env: { ...process.env, ...env } });

describe.each(wanted)("%s", (target) => {
  it("loads its addon, keeps a registry, and takes an image to an archive and back", async () => {
    const dir = mkdtempSync(join(scratch, "u-"));
    const r = await run(target, [join(import.meta.dirname, "unit.mjs"), pkg, target, dir]);
    expect([r.stderr, r.status]).toEqual(["", 0]);
    expect(JSON.parse(r.stdout)).toMatchObject({
      arch: target.split("-")[1],
      target,
      expected: target,
      addon: ["leave", "open", "rawOutput"],
      errors: CORE_ERROR_CODES.length,
      lanes: [],
      none: 0,
      same: true,
      closed: 0,
    });
  });

  it("has a command that says its version", async () => {
    const r = await run(target, [join(pkg, "dist", "cli", "main.js"), "--version"]);
    expect([r.status, r.stdout.trim()]).toEqual([0, (JSON.parse(readFileSync(join(pkg, "package.json"), "utf8")) as { version: string }).version]);
  });

  it.each(target.endsWith("-musl") ? [] : ["keeper", "warden"])("has a %s that runs", async (name) => {
    const program = join(pkg, "prebuilds", target, name);
    const [command, ...args] = target === own ? [program] : ["qemu-aarch64-static", program];
    const r = await ended(command!, args);
    expect(r.stderr).toMatch(/this program is started by Agent Lane only/);
    expect(r.status).not.toBe(0);
  });
});

describe("advice, from what really happens", () => {
  const other = own.endsWith("-musl") ? own.slice(0, -5) : `${own}-musl`;
  const elsewhere = { x64: "linux-arm64", arm64: "linux-x64" }[process.arch as string]!;
  const script = `
    const { engine } = await import(${JSON.stringify("PKG/dist/engine.js")});
    try { engine(); console.log("it loaded"); } catch (e) { console.log(e.code); console.log(e.message); console.log(e.cure); }`;
  /** What is said when `change` has been done to a copy of the package. */
  async function advice(change: (addon: string, prebuilds: string) => void, options: { node?: string; args?: string[] } = {}): Promise<string> {
    const dir = mkdtempSync(join(scratch, "advice-"));
    const copy = join(dir, "provider-lima");
    execFileSync("cp", ["-R", pkg, copy]);
    change(join(copy, "prebuilds", own, "agent_lane.node"), join(copy, "prebuilds"));
    const args = [...(options.args ?? []), "--input-type=module", "-e", script.replace("PKG", copy)];
    const r = await ended(options.node ?? process.execPath, args);
    rmSync(dir, { recursive: true, force: true });
    return r.stdout + r.stderr;
  }

  it("nothing is wrong: it loads", async () => expect(await advice(() => undefined)).toBe("it loaded\n"));
  it("a file that was cut short", async () => {
    const said = await advice((addon) => truncateSync(addon, 100_000));
    expect(said).toMatch(/^NATIVE_LOAD_FAILED\n.*it has 100000 bytes instead of \d+\)\nThe file is damaged\. Install the package again/s);
  });
  it("a file with other contents", async () => {
    const said = await advice((addon) => writeFileSync(addon, Buffer.alloc(readFileSync(addon).length)));
    expect(said).toMatch(/its contents have changed\nThe file is damaged/);
  });
  it("an empty file where the list is gone too", async () => {
    const said = await advice((addon, prebuilds) => {
      rmSync(join(prebuilds, "prebuilds.json"));
      truncateSync(addon, 0);
    });
    expect(said).toMatch(/file too short\)\nThe file is damaged, or of another platform/);
  });
  it("a file that is not there", async () => {
    expect(await advice((addon) => rmSync(addon))).toMatch(/there is no Agent Lane addon for .* in the package\nInstall the package again/);
  });
  it("addons switched off", async () => {
    expect(await advice(() => undefined, { args: ["--no-addons"] })).toMatch(/Start Node without --no-addons/);
  });
  if (wanted.length > 1) {
    const take = (target: string) => (addon: string, prebuilds: string) => {
      copyFileSync(join(prebuilds, target, "agent_lane.node"), addon);
      rmSync(join(prebuilds, "prebuilds.json"));
    };
    it("musl's file under glibc", async () => expect(await advice(take(other))).toMatch(/is for musl and this Node is for glibc/));
    it("another processor's file", async () => expect(await advice(take(elsewhere))).toMatch(/another platform than/));
    it("glibc's file under musl", async () => {
      const change = (_addon: string, prebuilds: string): void => {
        copyFileSync(join(prebuilds, own, "agent_lane.node"), join(prebuilds, other, "agent_lane.node"));
        rmSync(join(prebuilds, "prebuilds.json"));
      };
      expect(await advice(change, { node: node(other) })).toMatch(/is for glibc and this Node is for musl/);
    });
  }
});
