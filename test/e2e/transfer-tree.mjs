// SPDX-License-Identifier: Apache-2.0
// Whole directories out of a real lane: every kind of file that may come, and what a hostile guest may put into one.
// Tests of transfer.test.mjs, which share one lane.
import assert from "node:assert/strict";
import { existsSync, mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { it } from "node:test";
import { fails } from "./lib/lanes.mjs";
import { differences, guestManifest, hostManifest } from "./lib/manifest.mjs";
import { makeWorld, temporaries } from "./lib/world-of-files.mjs";

/** Entries of one directory: more than a copy may have, unless it says so. */
const ENTRIES = Number(process.env.E2E_ENTRIES ?? 100_001);
const HOME = "/home/agent",
  KINDS = `${HOME}/kinds`; // what kindTests has put there
const LEADING_OUT = ["links/absolute", "links/up"];

/** What the guest's manifest is on the host: links that lead out are left out, modes are ours. */
function expected(guest, executables) {
  const umask = process.umask();
  const mode = {
    d: (m) => (m & 0o777 & ~umask) | 0o700,
    f: (m) => (m & (executables ? 0o777 : 0o666) & ~umask) | 0o400,
    l: (m) => m,
  };
  const kept = new Map([...guest].filter(([name]) => !LEADING_OUT.includes(name)));
  for (const entry of kept.values()) {
    entry.mode = mode[entry.type](parseInt(entry.mode, 8)).toString(8);
  }
  return kept;
}

export function treeTests(lane) {
  const guest = async (script, options) => {
    const r = await lane().exec(script, { cwd: HOME, ...options });
    assert.equal(r.exitCode, 0, r.stderr);
    return r.stdout;
  };
  const attack = (name, work, options = {}) =>
    it(`tree: ${name}`, { timeout: 240_000 + ENTRIES, ...options }, async (t) => {
      const world = makeWorld();
      await work({ ...world, t });
      world.untouched();
      assert.deepEqual(temporaries(world.repo), []);
    });

  for (const executables of [false, true])
    attack(`every kind of file comes out${executables ? ", executables too" : ""}`, async ({ repo }) => {
      const to = join(repo, "kinds"),
        there = await guestManifest(lane(), KINDS);
      const r = await lane().copyOut(KINDS, to, { executables, maxBytes: 1 << 30 });
      assert.deepEqual([r.skipped, r.changed], [LEADING_OUT.length, 0]);
      assert.ok(
        LEADING_OUT.some((name) => r.skippedPath.endsWith(name)),
        r.skippedPath,
      );
      // A hard link comes as a file of its own.
      const but = ["user", "links", "same"];
      assert.deepEqual(differences(expected(there, executables), hostManifest(to), but), []);
    });

  attack(
    "what is no file, directory or link, or is .git to somebody, is refused, and nothing comes",
    async ({ repo }) => {
      const make = {
        fifo: "mkfifo x",
        socket: "perl -MSocket -e 'socket(S, PF_UNIX, SOCK_STREAM, 0); bind(S, sockaddr_un(\"x\")) or die'",
        device: "sudo mknod -m 666 x c 1 5",
      };
      for (const git of [".git", ".GIT", "git~1", ".git ", ".git."])
        make[git] = `mkdir -p "${git}/hooks" && echo pwn >"${git}/hooks/post-applypatch"`;
      for (const [what, script] of Object.entries(make)) {
        await guest(`rm -rf odd && mkdir -p odd/a/b odd/z && echo 1 >odd/a/first && cd odd/a/b && ${script}`);
        const error = await fails("TREE_REFUSED", () => lane().copyOut(`${HOME}/odd`, join(repo, "odd"))).catch((e) => {
          throw new Error(`${what}: ${e.message}`);
        });
        assert.match(error.message, /a\/b/);
        assert.deepEqual(readdirSync(repo).sort(), [".git"]);
      }
    },
  );

  attack("too many entries, bytes or levels", async ({ repo }) => {
    const to = join(repo, "big"),
      refused = (from, options) => fails("TREE_TOO_LARGE", () => lane().copyOut(`${HOME}/${from}`, to, options));
    // Links of a few files: so many files would take the emulated guest too long.
    await guest(
      'rm -rf many && mkdir -p many/d && cd many/d && ' +
        `perl -e 'for (0..${ENTRIES - 1}) { $f = int($_ / 50000); $_ % 50000 ? link("f$f", $_) || die $! : open(F, ">f$f") }'`,
      { timeoutMs: 60_000 + ENTRIES },
    );
    await refused("many");
    await guest(
      "rm -rf many few && mkdir few && cd few && for i in 1 2 3 4 5 6; do head -c 1000 /dev/zero >$i; done && " +
        "mkdir -p a/b/c/d",
    );
    await refused("few", { maxEntries: 9 });
    await refused("few", { maxBytes: 5999 });
    await refused("few", { maxDepth: 3 });
    assert.equal(existsSync(to), false);
    assert.equal(
      (await lane().copyOut(`${HOME}/few`, to, { maxEntries: 10, maxBytes: 6000, maxDepth: 4 })).bytes,
      6000,
    );
    await guest(
      'mkdir -p pit && cd pit && perl -e \'for (1..4096) { mkdir "d" or die $!; chdir "d" or die $! } open F, ">end"\'',
    );
    await fails("TREE_TOO_LARGE", () => lane().copyOut(`${HOME}/pit`, join(repo, "pit")));
    await guest("rm -rf pit; truncate -s 1T huge-file; mkdir -p huge && mv huge-file huge/");
    await fails("TREE_TOO_LARGE", () => lane().copyOut(`${HOME}/huge`, join(repo, "huge")));
    assert.deepEqual(readdirSync(repo).sort(), [".git", "big"]);
  });

  attack("what is there already stays, and no link is followed on the host", async ({ repo, outside }) => {
    await guest("rm -rf t && mkdir -p t/d && echo pwn >t/d/f");
    const from = `${HOME}/t`;
    mkdirSync(join(repo, "full"));
    writeFileSync(join(repo, "full/kept"), "kept");
    writeFileSync(join(repo, "file"), "kept");
    mkdirSync(join(repo, "empty"));
    symlinkSync(outside, join(repo, "door"));
    symlinkSync("nowhere", join(repo, "dangling"));
    for (const [code, to] of [
      ["HOST_PATH_EXISTS", "full"],
      ["HOST_PATH_EXISTS", "file"],
      ["HOST_PATH_LINK", "door/x"],
      ["HOST_PATH_LINK", "door/deep/new"],
      ["HOST_PATH_GIT", ".git"],
      ["HOST_PATH_GIT", ".GIT/hooks"],
      ["HOST_PATH_GIT", "sub/git~1"],
    ])
      await fails(code, () => lane().copyOut(from, join(repo, to))).catch((e) => {
        throw new Error(`${to}: ${e.message}`);
      });
    for (const to of ["door", "dangling"])
      assert.match(
        await lane()
          .copyOut(from, join(repo, to))
          .then(
            () => "came",
            (e) => e.code,
          ),
        /^HOST_PATH_(LINK|EXISTS)$/,
      );
    for (const path of [`${HOME}/t/../t`, `${HOME}/t/`, "t", ""])
      await fails("GUEST_PATH_INVALID", () => lane().copyOut(path, join(repo, "new")));
    await fails("GUEST_FILE_MISSING", () => lane().copyOut(`${HOME}/none`, join(repo, "new")));
    await fails("NOT_A_DIRECTORY", () => lane().copyOut(`${HOME}/t/d/f`, join(repo, "new")));
    await guest("ln -sfn t tl");
    await fails("IS_LINK", () => lane().copyOut(`${HOME}/tl`, join(repo, "new")));
    await fails("IS_LINK", () => lane().copyOut(`${HOME}/tl/d`, join(repo, "new")));
    await lane().copyOut(from, join(repo, "empty"));
    await lane().copyOut(from, join(repo, "new/er/t"));
    for (const to of ["empty", "new/er/t"]) assert.equal(readFileSync(join(repo, to, "d/f"), "utf8"), "pwn\n");
    assert.deepEqual([readdirSync(join(repo, "full")), readFileSync(join(repo, "file"), "utf8")], [["kept"], "kept"]);
  });

  attack("links that lead out are left out, however they do it", async ({ repo }) => {
    const out = ["/etc", "//etc", "/home/agent/ln/f", "..", "../x", "./../x", "a/../..", "a/../../x", "sub/../../../t"];
    out.push("sub/../f"); // by what may be a link by then
    await guest(
      "rm -rf ln && mkdir -p ln/sub/deep && echo x >ln/f && cd ln && ln -s ../f sub/in && ln -s ../../f sub/deep/in && " +
        "ln -s ../../../f sub/deep/out",
    );
    for (const [i, target] of out.entries()) await guest('ln -s "$T" ln/out-$I', { env: { T: target, I: String(i) } });
    const r = await lane().copyOut(`${HOME}/ln`, join(repo, "ln"));
    assert.deepEqual(readdirSync(join(repo, "ln")).sort(), ["f", "sub"]);
    assert.deepEqual(
      [readdirSync(join(repo, "ln/sub")).sort(), readdirSync(join(repo, "ln/sub/deep"))],
      [["deep", "in"], ["in"]],
    );
    assert.equal(r.skipped, out.length + 1);
  });

  attack("a signal ends it, and nothing half-made is left", async ({ repo, t }) => {
    await guest("rm -rf much && mkdir much && cd much && head -c 12000000 /dev/urandom | split -b 30000 -a 3");
    let ended = 0;
    for (const [i, ms] of [0, 5, 30, 100, 250].entries()) {
      const to = join(repo, `much-${i}`);
      const error = await lane()
        .copyOut(`${HOME}/much`, to, { signal: AbortSignal.timeout(ms) })
        .then(
          () => undefined,
          (e) => e,
        );
      if (error !== undefined) assert.equal(error.code, "ABORTED");
      ended += error !== undefined;
      assert.deepEqual(temporaries(repo), []);
      if (existsSync(to)) assert.equal(readdirSync(to).length, 400); // all at once, also when the signal came too late
    }
    t.diagnostic(`${ended} of 5 were ended`);
    assert.ok(ended >= 1);
  });
}
