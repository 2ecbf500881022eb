// SPDX-License-Identifier: Apache-2.0
// The tarball that is published: every file it must have and none it must not, the compiled ones as promised, its size as the README says.
import { createHash } from "node:crypto";
import { execFileSync, spawnSync } from "node:child_process";
import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, describe, expect, it } from "vitest";
import { TARGETS } from "../../lib/advice.js";
import { checkTarget, faultsOf, filesOf, GUEST, TARGETS as BUILT } from "../../scripts/prebuilds/rules.mjs";
import { prebuilds, root, tarball, unpackedRoot } from "./support.js";

const scratch = mkdtempSync(join(tmpdir(), "al-tarball-"));
afterAll(() => rmSync(scratch, { recursive: true, force: true }));

/** Of an everyday run only this machine's; what is published has all. */
const wanted = (process.env["PACKAGE_TARGETS"] ?? TARGETS.join(" ")).split(" ");
const parts = [...wanted, GUEST];
const whole = wanted.length === TARGETS.length;
const listed = execFileSync("tar", ["-tvzf", tarball()], { encoding: "utf8" })
  .trim()
  .split("\n")
  .map((line) => line.trim().split(/\s+/))
  .map((words) => ({ mode: words[0]!, path: words.slice(5).join(" ").replace(/^package\//, "") }));
const paths = listed.map((entry) => entry.path);

describe("the tarball", () => {
  it("has the compiled files of every target, and of no other", () => {
    expect([...BUILT]).toEqual([...TARGETS]);
    expect(paths.filter((p) => p.startsWith("prebuilds/")).sort()).toEqual(
      ["NOTICE.txt", "prebuilds.json", ...parts.flatMap(filesOf)].map((p) => `prebuilds/${p}`).sort(),
    );
  });

  it.each(parts)("has for %s what loads where it is meant to, and nothing that asks for more", (target) => {
    expect(checkTarget(join(unpackedRoot, "prebuilds"), target)).toEqual([]);
  });

  it("lists the compiled files with their digests", () => {
    const { files, builtWith } = prebuilds();
    expect(Object.keys(files).sort()).toEqual(parts.flatMap(filesOf).sort());
    for (const [name, { bytes, sha256 }] of Object.entries(files)) {
      const content = readFileSync(join(unpackedRoot, "prebuilds", name));
      expect([name, content.length, createHash("sha256").update(content).digest("hex")]).toEqual([name, bytes, sha256]);
    }
    expect(Object.keys(builtWith)).toEqual(["zig", "libarchive", "sqlite", "nodeHeaders"]);
  });

  it("brings the licences of what is linked in", () => {
    const notice = readFileSync(join(unpackedRoot, "prebuilds", "NOTICE.txt"), "utf8");
    for (const words of ["libarchive", "Redistribution and use in source and binary forms", "musl as a whole is licensed", "LLVM Exceptions", "SQLite"])
      expect(notice).toContain(words);
  });

  it("has only kinds of files that belong to a package", () => {
    const allowed =
      /^(?:dist\/[\w/.-]+\.(?:js|d\.ts)|prebuilds\/[\w/.-]+|src\/[\w/]+\.(?:c|h|mk)|binding\/[\w.]+|image\/[\w/.@+-]+|examples\/[\w/. -]+|docs\/[\w-]+\.(?:md|schema\.json)|man\/[\w.-]+|scripts\/build-native|binding\.gyp|Makefile|package\.json|(?:README|CHANGELOG|SECURITY|CONTRIBUTING)\.md|LICENSE)$/;
    expect(paths.filter((p) => !allowed.test(p))).toEqual([]);
    // Examples are whole projects, tests included.
    expect(paths.filter((p) => !p.startsWith("examples/") && /(^|\/)(node_modules|test|tests|\.git|\.ci|__pycache__)(\/|$)|tsbuildinfo|\.(?:map|log|o|tgz)$/.test(p))).toEqual([]);
  });

  it("has modes that let everybody read, and programs run", () => {
    expect(listed.filter((e) => !/^-rw[x-]r-[x-]r-[x-]$/.test(e.mode)).map((e) => e.path)).toEqual([]);
    for (const entry of listed)
      if (/^prebuilds\/[^.]+\/(?:keeper|warden)$|^dist\/cli\/main\.js$/.test(entry.path)) expect([entry.path, entry.mode]).toEqual([entry.path, "-rwxr-xr-x"]);
  });

  it("names nothing of the machine that made it", () => {
    mkdirSync(join(scratch, "t"));
    execFileSync("tar", ["-xzf", tarball(), "-C", join(scratch, "t")]);
    const found = spawnSync("grep", ["-rlF", root, join(scratch, "t")], { encoding: "utf8" });
    expect([found.status, found.stdout]).toEqual([1, ""]);
  });

  it("is in order for publint", () => {
    const out = execFileSync(process.execPath, [join(root, "node_modules/publint/src/cli.js"), tarball(), "--strict"], {
      encoding: "utf8",
      env: { ...process.env, NO_COLOR: "1" },
    });
    expect(out).toContain("All good!");
  });

  it("resolves with types for attw", () => {
    const attw = join(root, "node_modules/@arethetypeswrong/cli/dist/index.js");
    const r = spawnSync(process.execPath, [attw, tarball(), "--profile", "esm-only", "--format", "json"], { encoding: "utf8" });
    expect([r.status, r.stderr]).toEqual([0, ""]);
    expect(JSON.parse(r.stdout)).toMatchObject({ analysis: { types: { kind: "included" } } });
  });

  // With fewer targets it is smaller than what is published.
  if (whole)
    it("is as large as the README says", () => {
      const said = /The tarball has ([\d.]+) MB, unpacked ([\d.]+) MB/.exec(readFileSync(join(root, "README.md"), "utf8"));
      const unpacked = paths.map((p) => statSync(join(unpackedRoot, p)).size).reduce((a, b) => a + b, 0);
      for (const [words, bytes] of [[said?.[1], statSync(tarball()).size], [said?.[2], unpacked]] as const) {
        expect(bytes / 1e6).toBeGreaterThan(Number(words) * 0.9);
        expect(bytes / 1e6).toBeLessThan(Number(words) * 1.1);
      }
    });
});

describe("the rules for compiled files", () => {
  const good = join(unpackedRoot, "prebuilds", "linux-x64", "agent_lane.node");
  const changed = (change: (bytes: Buffer) => void): string => {
    const path = join(scratch, "changed.node");
    const bytes = readFileSync(good);
    change(bytes);
    writeFileSync(path, bytes);
    return path;
  };
  const faults = (path: string, target = "linux-x64") => faultsOf(path, target, `${target}/agent_lane.node`).join("; ");
  const replace = (bytes: Buffer, from: string, to: string): void => {
    const at = bytes.indexOf(from);
    expect(at).toBeGreaterThan(0);
    bytes.write(to, at, "latin1");
  };

  it("pass what was built", () => expect(faults(good)).toBe(""));
  it.each([
    ["a newer glibc", () => changed((b) => replace(b, "GLIBC_2.28", "GLIBC_2.34")), "linux-x64", "needs glibc 2.34"],
    ["another library", () => changed((b) => replace(b, "libdl.so.2\0", "libxy.so.2\0")), "linux-x64", "needs libxy.so.2"],
    ["a function of ours that is missing", () => changed((b) => replace(b, "napi_create_error\0", "sqlite3_made_up12\0")), "linux-x64", "lacks sqlite3_made_up12"],
    ["one more export", () => changed((b) => replace(b, "napi_register_module_v1\0", "napi_register_module_v2\0")), "linux-x64", "exports"],
    ["another processor", () => changed((b) => b.writeUInt16LE(183, 18)), "linux-x64", "is for arm64"],
    ["glibc's file for musl", () => good, "linux-x64-musl", "needs lib"],
    ["a Linux file for macOS", () => good, "darwin-arm64", "is elf"],
    ["what is no program", () => join(root, "README.md"), "linux-x64", "neither ELF nor Mach-O"],
    ["what is not there", () => join(scratch, "none"), "linux-x64", "is not there"],
  ])("refuse %s", (_what, path, target, words) => {
    expect(faults(path(), target)).toContain(words);
  });
  it("refuse a keeper that is not static", () => {
    copyFileSync(process.execPath, join(scratch, "keeper"));
    expect(faultsOf(join(scratch, "keeper"), "linux-x64", "linux-x64/keeper")).toContain("is not static");
  });
});
