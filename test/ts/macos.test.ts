// SPDX-License-Identifier: Apache-2.0
// scripts/check --macos: what of it can run without a Mac. The outputs are derived from the programs' manuals and sources, not recorded.
import { spawnSync } from "node:child_process";
import { join } from "node:path";
import { expect, it } from "vitest";
import { hasVz, macosServes, machines, signedForVms, STEPS } from "../../scripts/lib/macos.mjs";

const root = join(import.meta.dirname, "..", "..");
const check = (...args: string[]) => spawnSync(join(root, "scripts", "check"), ["--macos", ...args], { encoding: "utf8", timeout: 60_000 });

it("lists every step with what it proves, and passes none of them", () => {
  const r = check("--dry-run");
  expect(r.status).toBe(0);
  for (const step of STEPS) expect(r.stdout).toContain(`${step.name}\n  ${step.by}\n  proves: ${step.proves}\n`);
  expect(r.stdout).toMatch(new RegExp(`macos: 0 passed, 0 failed, ${STEPS.length} skipped\\n$`));
  expect(check("--dry-run", "sleep").stdout).toMatch(/^sleep\n[^]*\nmacos: 0 passed, 0 failed, 1 skipped\n$/);
});

it.skipIf(process.platform === "darwin")("says that it cannot run elsewhere", () => {
  const r = check();
  expect(r).toMatchObject({ status: 1, stdout: "", stderr: expect.stringContaining("this is not macOS") });
  expect(check("no-such-step")).toMatchObject({ status: 2, stderr: expect.stringMatching(/^usage: .*--macos.* steps: machine build /) });
});

it("every step is either run or done by hand", () => {
  for (const step of STEPS) expect([typeof step.run === "function", step.manual === true]).toContain(true);
  expect(new Set(STEPS.map((step) => step.name)).size).toBe(STEPS.length);
});

it("judges what the programs of macOS say", () => {
  expect([macosServes("13.0\n"), macosServes("26.1\n"), macosServes("12.7.6\n"), macosServes("")]).toEqual([true, true, false, false]);
  const entitled = "Executable=/opt/homebrew/bin/limactl\n<key>com.apple.security.virtualization</key><true/>";
  expect([signedForVms(entitled), signedForVms("code object is not signed at all")]).toEqual([true, false]);
  const info = (vms: object) => `time="x" level=warning msg="y"\n${JSON.stringify({ version: "2.2.0", ...vms })}`;
  expect([hasVz(info({ vmTypes: ["qemu", "vz"] })), hasVz(info({ vmTypesEx: { vz: {} } })), hasVz(info({ vmTypes: ["qemu"] }))]).toEqual([true, true, false]);
  const vm = "/System/Library/Frameworks/Virtualization.framework/Versions/A/XPCServices/com.apple.Virtualization.VirtualMachine.xpc/Contents/MacOS/com.apple.Virtualization.VirtualMachine";
  expect(machines(`  1 /sbin/launchd\n 77 ${vm}\n 78 ${vm}\n`)).toBe(2);
  expect(machines("  1 /sbin/launchd\n")).toBe(0);
});
