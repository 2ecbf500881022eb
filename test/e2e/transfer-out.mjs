// SPDX-License-Identifier: Apache-2.0
// What a hostile guest may try with copyFileOut: names, links, kinds, sizes. Each says its code, and nothing but the
// target changes. Tests of transfer.test.mjs, which share one lane.
import assert from "node:assert/strict";
import {
  chmodSync,
  existsSync,
  linkSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { basename, join } from "node:path";
import { it } from "node:test";
import { fails } from "./lib/lanes.mjs";
import { makeWorld, SECRET, temporaries } from "./lib/world-of-files.mjs";
import { NAMES } from "./transfer-kinds.mjs";

const HOME = "/home/agent";
// All of these are .git to git itself, or to a file system that folds case, drops dots and spaces, ignores some
// characters, or has short names.
const GITS = [
  ".git",
  ".GIT",
  ".Git",
  ".giT",
  ".git ",
  ".git.",
  ".git...",
  ".GIT. .",
  "git~1",
  "GIT~1",
  ".g\u200cit",
  "\u200e.git",
  ".git\ufeff",
  ".git::$INDEX_ALLOCATION",
  ".git:x",
];
// What some decoder would take for "..", but no file system does.
const LITERAL = [
  "%2e%2e",
  "%2e%2e%2fx",
  "..%2fx",
  "%252e%252e",
  "..\\x",
  "\uff0e\uff0e",
  "\u2025",
  "..%c0%af",
  "...",
  "..\u200b",
  ".. ",
  "..;",
];

export function outTests(lane, { maxCopyOutBytes }) {
  const guest = async (script, options) => {
    const r = await lane().exec(script, { cwd: HOME, ...options });
    assert.equal(r.exitCode, 0, r.stderr);
    return r.stdout;
  };
  /** A test with a world of its own; afterwards nothing outside the worktree is different, nothing half-made in it. */
  const attack = (name, work, { but, ...options } = {}) =>
    it(`out: ${name}`, { timeout: 180_000, ...options }, async (t) => {
      const world = makeWorld(),
        target = join(world.repo, "target");
      writeFileSync(target, "before");
      await work({ ...world, target, t });
      world.untouched(but);
      assert.deepEqual(temporaries(world.repo), []);
    });
  const refuses = async (code, from, to, target) => {
    await fails(code, () => lane().copyFileOut(from, to)).catch((e) => {
      throw new Error(`${from} to ${to}: ${e.message}`);
    });
    if (target !== undefined) assert.equal(readFileSync(target, "utf8"), "before", from);
  };

  attack("a link in the place of each component of the guest's path", async ({ target }) => {
    const parts = ["la", "lb", "lc", "f"];
    await guest("mkdir -p la/lb/lc && echo inside >la/lb/lc/f");
    await lane().copyFileOut(`${HOME}/la/lb/lc/f`, target);
    writeFileSync(target, "before");
    for (const [i, part] of parts.entries()) {
      const at = `${HOME}/${parts.slice(0, i + 1).join("/")}`;
      for (const to of [`${at}.real`, `${basename(at)}.real`]) {
        await guest(`mv ${at} ${at}.real && ln -s ${to} ${at}`);
        await refuses("IS_LINK", `${HOME}/la/lb/lc/f`, target, target);
        await guest(`rm ${at} && mv ${at}.real ${at}`);
      }
      assert.equal(part, basename(at));
    }
    await guest("ln -s /proc/self/root rootlink; ln -s /etc/shadow shadow");
    await refuses("IS_LINK", `${HOME}/rootlink/etc/passwd`, target, target);
    await refuses("IS_LINK", `${HOME}/shadow`, target, target);
    await refuses("IS_LINK", "/proc/self/exe", target, target);
  });

  attack("a FIFO, devices, a socket and a directory in place of the file", async ({ target }) => {
    await guest(
      "mkdir -p odd/d && cd odd && mkfifo -m 666 fifo && sudo mknod -m 666 zero c 1 5 && sudo mknod -m 666 block b 7 0 && " +
        "sudo mknod -m 666 tty c 5 0 && " +
        "perl -MSocket -e 'socket(S, PF_UNIX, SOCK_STREAM, 0); bind(S, sockaddr_un(\"socket\")) or die'",
    );
    for (const name of ["fifo", "zero", "block", "tty", "socket", "d"])
      await refuses("NOT_A_FILE", `${HOME}/odd/${name}`, target, target);
    for (const path of ["/dev/zero", "/dev/ptmx"]) await refuses("NOT_A_FILE", path, target, target);
  });

  attack("files of which the size says nothing", async ({ repo, t }) => {
    for (const path of ["/proc/version", "/proc/kmsg", "/sys/kernel/mm/transparent_hugepage/enabled", "/proc/1/mem"]) {
      const to = join(repo, basename(path));
      const code = await lane()
        .copyFileOut(path, to)
        .then(
          () => `${statSync(to).size} bytes`,
          (e) => e.code,
        );
      t.diagnostic(`${path}: ${code}`);
      assert.match(code, /^([1-9]\d* bytes|COPY_OUT_FAILED|NOT_A_FILE|GUEST_FILE_MISSING)$/);
      assert.equal(existsSync(to), /bytes/.test(code));
    }
  });

  attack("a file that grows for ever, and one that is too large", async ({ repo, target, t }) => {
    await guest(
      "head -c 1000000 /dev/zero | tr '\\0' y >grows; : >grow; " +
        "(while [ -e grow ]; do head -c 65536 grows; done >>grows) >/dev/null 2>&1 &",
    );
    for (let i = 0; i < 3; i++) {
      const to = join(repo, `grown-${i}`);
      const code = await lane()
        .copyFileOut(`${HOME}/grows`, to)
        .then(
          () => "whole",
          (e) => e.code,
        );
      t.diagnostic(`${code}${existsSync(to) ? `, ${statSync(to).size} bytes` : ""}`);
      assert.ok(["whole", "FILE_TOO_LARGE", "COPY_OUT_FAILED"].includes(code), code);
      assert.equal(existsSync(to), code === "whole");
      if (code === "whole") {
        const data = readFileSync(to);
        assert.ok(data.length >= 1_000_000 && data.length <= maxCopyOutBytes && data.every((byte) => byte === 121));
      }
    }
    await guest("rm grow; sleep 1; rm grows");
    await guest(`truncate -s ${maxCopyOutBytes + 1} big; truncate -s 1T huge-one`);
    await refuses("FILE_TOO_LARGE", `${HOME}/big`, target, target);
    await refuses("FILE_TOO_LARGE", `${HOME}/huge-one`, target, target);
    await guest("truncate -s -1 big");
    await lane().copyFileOut(`${HOME}/big`, target);
    assert.equal(statSync(target).size, maxCopyOutBytes);
  });

  attack("`..`, `.`, NUL and a slash at the end, in the guest's path and in the host's", async ({ repo, target }) => {
    await guest("mkdir -p up && echo pwn >up/f && echo pwn >f");
    for (const path of [
      `${HOME}/up/../f`,
      `${HOME}/..`,
      `${HOME}/./f`,
      `${HOME}/up/f/`,
      `${HOME}/up/.`,
      "/..",
      "/",
      "",
      "f",
      "../f",
      "~/f",
      `${HOME}/up/../../../f`,
    ])
      await refuses("GUEST_PATH_INVALID", path, target, target);
    await refuses("BAD_OPTION", `${HOME}/f\0.txt`, target, target);
    await refuses("BAD_OPTION", `${HOME}/f`, `${target}\0.txt`, target);
    // Node takes a relative or unclean host path for what it means; then it is a path like any other.
    await refuses("HOST_PATH_GIT", `${HOME}/f`, `${repo}/sub/../.git/hooks/post-applypatch`, target);
  });

  attack("what a decoder would take for `..` is a name like any other, on both sides", async ({ repo, outside }) => {
    for (const name of LITERAL) {
      await guest(`mkdir -p lit && printf %s "$N" >"lit/$N"`, { env: { N: name } });
      await lane().copyFileOut(`${HOME}/lit/${name}`, join(repo, "lit", name));
      assert.equal(readFileSync(join(repo, "lit", name), "utf8"), name);
    }
    assert.deepEqual(readdirSync(join(repo, "lit")).sort(), [...LITERAL].sort());
    assert.deepEqual(readdirSync(repo).sort(), [".git", "lit", "target"]);
    assert.equal(existsSync(join(outside, "x")), false);
  });

  attack(".git in any case and disguise, as file and on the way", async ({ repo, target }) => {
    await guest("printf '#!/bin/sh\\ntouch /tmp/pwned\\n' >hook && chmod 755 hook");
    for (const git of GITS) {
      await refuses("HOST_PATH_GIT", `${HOME}/hook`, join(repo, git), target);
      await refuses("HOST_PATH_GIT", `${HOME}/hook`, `${repo}/${git}/hooks/post-applypatch`, target);
      await refuses("HOST_PATH_GIT", `${HOME}/hook`, `${repo}/sub/module/${git}/config`, target);
    }
    assert.deepEqual(readdirSync(repo).sort(), [".git", "target"]);
    for (const name of [".gitignore", ".github", "git", "x.git", ".gi"])
      await lane().copyFileOut(`${HOME}/hook`, join(repo, name));
  });

  attack("a link as the host's target and in the place of each component", async ({ repo, outside }) => {
    await guest("echo pwn >f");
    symlinkSync(join(outside, "secret"), join(repo, "file-link"));
    symlinkSync(outside, join(repo, "door"));
    symlinkSync("../outside", join(repo, "relative-door"));
    symlinkSync("nowhere", join(repo, "dangling"));
    mkdirSync(join(repo, "a/b"), { recursive: true });
    symlinkSync(outside, join(repo, "a/b/c"));
    symlinkSync("b", join(repo, "a/inner"));
    for (const to of [
      "file-link",
      "door/x",
      "door/deep/er/f",
      "relative-door/x",
      "dangling",
      "a/b/c/x",
      "a/inner/x",
      "door/.",
      "a/b/c/d/e/f",
    ].filter((p) => !p.endsWith("/.")))
      await refuses("HOST_PATH_LINK", `${HOME}/f`, join(repo, to));
    await refuses("HOST_PATH_DIRECTORY", `${HOME}/f`, join(repo, "a"));
    await refuses("HOST_PATH_REFUSED", `${HOME}/f`, join(repo, "target/below"));
    assert.deepEqual(readdirSync(join(repo, "a/b")), ["c"]);
  });

  attack("a target with a hard link elsewhere is replaced, not written through", async ({ repo, outside }) => {
    const target = join(repo, "linked");
    await guest("echo from the guest >f");
    linkSync(join(outside, "secret"), target);
    await lane().copyFileOut(`${HOME}/f`, target);
    assert.equal(readFileSync(target, "utf8"), "from the guest\n");
    assert.equal(readFileSync(join(outside, "secret"), "utf8"), SECRET);
    assert.equal(statSync(join(outside, "secret")).nlink, 2); // as before the test has linked it
  });

  attack("a directory of the host that may not be written", async ({ repo }) => {
    const dir = join(repo, "closed"),
      target = join(dir, "target");
    mkdirSync(dir);
    writeFileSync(target, "before");
    chmodSync(dir, 0o555);
    try {
      await guest("echo pwn >f");
      const error = await fails("COPY_OUT_FAILED", () => lane().copyFileOut(`${HOME}/f`, target));
      assert.match(error.message, /[Pp]ermission denied/);
      await refuses("COPY_OUT_FAILED", `${HOME}/f`, join(dir, "new/er/f"));
      assert.deepEqual([readFileSync(target, "utf8"), readdirSync(dir)], ["before", ["target"]]);
    } finally {
      chmodSync(dir, 0o755);
    }
  });

  const small = process.env.E2E_SMALL_DISK || undefined;
  attack(
    "the host's disk is full",
    async ({ repo, target }) => {
      await guest(`head -c ${maxCopyOutBytes} /dev/urandom >big; echo small >f`);
      const on = join(small, "target");
      writeFileSync(on, "before");
      await refuses("HOST_DISK_FULL", `${HOME}/big`, on, on);
      assert.deepEqual(readdirSync(small), ["target"]);
      await lane().copyFileOut(`${HOME}/f`, on);
      assert.equal(readFileSync(on, "utf8"), "small\n");
      await lane().copyFileOut(`${HOME}/f`, target);
      assert.deepEqual(temporaries(repo), []);
    },
    {
      skip:
        small === undefined && "E2E_SMALL_DISK names no small file system; only root can make one (scripts/check does)",
    },
  );

  attack("names with anything in them come out as they are", async ({ repo }) => {
    const names = NAMES.filter((name) => Buffer.from(name, "latin1").toString("utf8").includes("\ufffd") === false);
    assert.ok(names.length > 25);
    await guest("mkdir -p names");
    for (const bytes of names) {
      const name = Buffer.from(bytes, "latin1").toString("utf8");
      await guest('printf %s "$N" >"names/$N"', { env: { N: name } });
      await lane().copyFileOut(`${HOME}/names/${name}`, join(repo, "names", name));
      assert.equal(readFileSync(join(repo, "names", name), "utf8"), name);
    }
    assert.equal(readdirSync(join(repo, "names")).length, names.length);
    assert.equal(existsSync(join(repo, "names/pwned")), false);
  });

  attack("a signal ends it: the target is as it was, nothing half-made is left", async ({ repo, target }) => {
    await guest(`head -c ${maxCopyOutBytes} /dev/urandom >big`);
    for (const ms of [0, 5, 30, 100]) {
      const error = await lane()
        .copyFileOut(`${HOME}/big`, target, { signal: AbortSignal.timeout(ms) })
        .then(
          () => undefined,
          (e) => e,
        );
      if (error === undefined) continue; // it was faster
      assert.equal(error.code, "ABORTED");
      assert.deepEqual(temporaries(repo), []);
      const now = statSync(target).size;
      assert.ok(now === 6 || now === maxCopyOutBytes, String(now));
    }
    const control = new AbortController();
    control.abort(new Error("before it began"));
    await fails("ABORTED", () => lane().copyFileOut(`${HOME}/big`, target, { signal: control.signal }));
  });
}
