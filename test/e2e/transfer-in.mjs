// SPDX-License-Identifier: Apache-2.0
// What goes wrong with copyIn, on a real lane: each failure says its code and its path, and leaves nothing in the
// guest.
// Tests of transfer.test.mjs, which share one lane.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { chmodSync, mkdirSync, symlinkSync, writeFileSync } from "node:fs";
import { randomBytes } from "node:crypto";
import { createServer } from "node:net";
import { join } from "node:path";
import { it } from "node:test";
import { fails, scratch } from "./lib/lanes.mjs";
import { makeWorld, SECRET } from "./lib/world-of-files.mjs";

const HOME = "/home/agent";

export function inTests(lane) {
  const guest = async (script, options) => {
    const r = await lane().exec(script, { cwd: HOME, ...options });
    assert.equal(r.exitCode, 0, r.stderr);
    return r.stdout;
  };
  /** Everything below a directory of the guest; nothing that is only there for a while is among it. */
  const listing = async (dir) => (await guest(`find ${dir} -printf '%y %s %P\\n' | sort`)).split("\n").filter(Boolean);
  const tree = (files) => {
    const dir = join(scratch("in"), "tree");
    for (const [name, content] of Object.entries(files)) {
      mkdirSync(join(dir, name, ".."), { recursive: true });
      writeFileSync(join(dir, name), content);
    }
    return dir;
  };

  it(
    "in: a FIFO, a socket and a file that may not be read are refused with their path, and nothing comes",
    { timeout: 120_000 },
    async () => {
      await guest("mkdir -p in && echo kept >in/kept");
      const before = await listing("in");
      const dir = tree({ "a/one": "1", "z/last": "2" });
      const odd = join(dir, "m/odd");
      mkdirSync(join(dir, "m"));
      execFileSync("mkfifo", [odd]);
      for (const [code, prepare] of [
        ["SOURCE_UNSUPPORTED", () => undefined],
        [
          "SOURCE_UNSUPPORTED",
          async () => {
            execFileSync("rm", [odd]);
            const server = createServer().listen(odd);
            await new Promise((resolve) => server.once("listening", resolve));
            return () => new Promise((resolve) => server.close(resolve));
          },
        ],
        [
          "SOURCE_UNREADABLE",
          () => {
            writeFileSync(odd, "closed", { mode: 0 });
          },
        ],
      ]) {
        const done = await prepare();
        const error = await fails(code, () => lane().copyIn(dir, `${HOME}/in/target`));
        assert.match(error.message, /m\/odd/);
        await done?.();
      }
      chmodSync(odd, 0o600);
      for (const source of [join(dir, "none"), "/dev/null"])
        await fails(source === "/dev/null" ? "SOURCE_UNSUPPORTED" : "SOURCE_MISSING", () =>
          lane().copyIn(source, `${HOME}/in/target`),
        );
      assert.deepEqual(await listing("in"), before, "the guest is as it was");
    },
  );

  it("in: a path of more than 4 KiB is refused, with the path", { timeout: 60_000 }, async () => {
    const dir = join(scratch("deep"), "tree");
    mkdirSync(dir);
    // Deeper than a path may be long: made and removed step by step.
    execFileSync("perl", ["-e", 'for (1..25) { mkdir "d" x 200; chdir "d" x 200 or die } open F, ">end"'], {
      cwd: dir,
      timeout: 20_000,
    });
    await guest("mkdir -p in");
    const before = await listing("in");
    const error = await fails("SOURCE_UNSUPPORTED", () => lane().copyIn(dir, `${HOME}/in/long`));
    assert.match(error.message, /d{200}/);
    assert.deepEqual(await listing("in"), before);
    execFileSync("rm", ["-rf", dir]); // Node's own cannot
  });

  it(
    "in: links below the root are copied, not followed; a root that is a link is followed",
    { timeout: 60_000 },
    async () => {
      const world = makeWorld(),
        dir = tree({ f: "x" });
      symlinkSync(world.outside, join(dir, "door"));
      symlinkSync(join(world.outside, "secret"), join(dir, "file"));
      symlinkSync("tree", `${dir}-link`);
      await lane().copyIn(`${dir}-link`, `${HOME}/in/links`);
      assert.deepEqual(
        await guest("cd in/links && find . -mindepth 1 -printf '%y %P %l\\n' | sort"),
        `f f \nl door ${world.outside}\nl file ${join(world.outside, "secret")}\n`,
      );
      assert.equal(await guest(`grep -rlF "${SECRET.trim()}" in || true`), "");
      world.untouched();
    },
  );

  it("in: kinds that clash are an error that names both, and what was there stays", { timeout: 120_000 }, async () => {
    await guest(
      "rm -rf clash && mkdir -p clash/dir/below clash/tree/name && echo old >clash/file && echo old >clash/tree/other",
    );
    const before = await listing("clash");
    const file = join(tree({ f: "new" }), "f"),
      dir = tree({ f: "new" });
    const onDir = await fails("COPY_IN_FAILED", () => lane().copyIn(file, `${HOME}/clash/dir`));
    assert.match(onDir.message, /clash\/dir/);
    const onFile = await fails("COPY_IN_FAILED", () => lane().copyIn(dir, `${HOME}/clash/file`));
    assert.match(onFile.message, /clash\/file/);
    await fails("COPY_IN_FAILED", () => lane().copyIn(tree({ name: "a file" }), `${HOME}/clash/tree`));
    await fails("COPY_IN_FAILED", () => lane().copyIn(tree({ "other/below": "a directory" }), `${HOME}/clash/tree`));
    assert.deepEqual(await listing("clash"), before);
    await lane().copyIn(tree({ other: "file over file", "name/new": "merged" }), `${HOME}/clash/tree`);
    assert.deepEqual(await listing("clash/tree"), ["d 4096 ", "d 4096 name", "f 14 other", "f 6 name/new"]);
  });

  it("in: links in the guest are replaced or refused, never written through", { timeout: 120_000 }, async () => {
    await guest(
      "rm -rf lnk && mkdir -p lnk/elsewhere lnk/tree && echo old >lnk/elsewhere/f && " +
        "ln -s ../elsewhere lnk/tree/sub && ln -s ../elsewhere/f lnk/tree/file",
    );
    const said = await lane()
      .copyIn(tree({ "sub/f": "new", file: "new" }), `${HOME}/lnk/tree`)
      .then(
        () => "came",
        (e) => e.code,
      );
    assert.ok(["came", "COPY_IN_FAILED"].includes(said), said);
    assert.equal(await guest("cat lnk/elsewhere/f; ls lnk/elsewhere"), "old\nf\n");
  });

  it(
    "in: a full disk and a directory of root's in the guest: COPY_IN_FAILED, nothing half-made is left",
    { timeout: 180_000 },
    async () => {
      await guest(
        "mkdir -p full && sudo mount -t tmpfs -o size=2m,uid=$(id -u),mode=755 none full && echo kept >full/kept",
      );
      const before = await listing("full");
      const large = tree({ "a/large": randomBytes(5_000_000), "b/small": "x" });
      const many = tree(Object.fromEntries(Array.from({ length: 800 }, (_, i) => [`m/${i}`, randomBytes(5000)])));
      for (const [from, to] of [
        [join(large, "a/large"), "full/file"],
        [large, "full/tree"],
        [many, "full/new/er/tree"],
      ]) {
        const error = await fails("COPY_IN_FAILED", () => lane().copyIn(from, `${HOME}/${to}`));
        assert.match(error.message, /[Nn]o space left/);
        assert.deepEqual(await listing("full"), before);
      }
      await lane().copyIn(join(large, "b"), `${HOME}/full/fits`);
      await guest("sudo umount full");
      const denied = await fails("COPY_IN_FAILED", () => lane().copyIn(large, "/usr/local/large"));
      assert.match(denied.message, /[Pp]ermission denied/);
      await fails("COPY_IN_FAILED", () => lane().copyIn(join(large, "b/small"), "/usr/passwd"));
      assert.equal(await guest("ls -A /usr | grep -c agent-lane || true"), "0\n");
    },
  );

  it("in: a signal ends it, and nothing half-made is left in the guest", { timeout: 120_000 }, async (t) => {
    await guest("rm -rf cut && mkdir cut && echo kept >cut/kept");
    const before = await listing("cut");
    const dir = tree(Object.fromEntries(Array.from({ length: 1500 }, (_, i) => [`m/${i}`, randomBytes(8000)])));
    writeFileSync(join(dir, "large"), randomBytes(20_000_000));
    let ended = 0;
    for (const [from, to] of [
      [dir, "cut/tree"],
      [join(dir, "large"), "cut/file"],
    ])
      for (const ms of [0, 5, 30, 150, 400]) {
        const error = await lane()
          .copyIn(from, `${HOME}/${to}`, { signal: AbortSignal.timeout(ms) })
          .then(
            () => undefined,
            (e) => e,
          );
        if (error === undefined)
          await guest(`rm -r ${to}`); // it was faster
        else assert.equal(error.code, "ABORTED");
        ended += error !== undefined;
        assert.deepEqual(await listing("cut"), before, `${to} after ${ms} ms`);
      }
    t.diagnostic(`${ended} of 10 were ended`);
    assert.ok(ended >= 2);
  });

  it("in: a file that grows or shrinks meanwhile is cut or filled up, and said", { timeout: 120_000 }, async (t) => {
    const dir = tree({ steady: "x", moving: randomBytes(30_000_000) });
    const mover = execMover(join(dir, "moving"));
    try {
      const r = await lane().copyIn(dir, `${HOME}/moved`);
      t.diagnostic(JSON.stringify(r));
      assert.ok(r.changed <= 1);
      if (r.changed === 1) assert.match(r.changedPath, /moving$/);
    } finally {
      await mover();
    }
    assert.equal(await guest("cat moved/steady"), "x");
  });
}

/** Makes the file longer and shorter without pause; gives what ends that. */
function execMover(file) {
  const timer = setInterval(
    () => execFileSync("truncate", ["-s", Math.random() < 0.5 ? "20000000" : "40000000", file]),
    5,
  );
  return async () => clearInterval(timer);
}
