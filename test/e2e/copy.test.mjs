// SPDX-License-Identifier: Apache-2.0
// Copies of a real guest as programs and people have them: createLane's calls with progress, signals and bounds, and
// `agent-lane cp` beside the lane's owner.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import {
  chmodSync,
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  realpathSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { randomBytes } from "node:crypto";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { createLane } from "@agent-lane/provider-lima";
import { agentLane, fails, scratch, sha256, small } from "./lib/lanes.mjs";
import { nothingLeft, until } from "./lib/world.mjs";

const MINUTES = 60_000;
const MIB = 2 ** 20;
const bin = fileURLToPath(new URL("../node_modules/.bin/agent-lane", import.meta.url));

describe("copies of a real guest", { concurrency: false }, () => {
  let lane;
  const run = async (command) => (await lane.exec(command)).stdout.trim();
  const temporary = (dir) => readdirSync(dir).filter((name) => name.startsWith(".agent-lane"));
  const leftInGuest = () => run("find . /home/agent -maxdepth 2 -name '.agent-lane-*' | sort -u");
  const big = (dir, mib = 48) => {
    const file = join(dir, "big");
    writeFileSync(file, randomBytes(mib * MIB));
    return file;
  };

  before(async () => {
    const bounds = { maxCopyOutBytes: 64 * MIB, maxCopyOutTotalBytes: 200 * MIB };
    lane = await createLane({ ...small, startTimeoutSeconds: 240, ...bounds });
  }, { timeout: 5 * MINUTES });
  after(() => lane?.close(), { timeout: MINUTES });

  it("copyIn leaves out what is ignored, tells how far it is, and says what it has copied", async () => {
    const dir = scratch();
    big(dir);
    for (const name of ["keep/node_modules", "node_modules/x"]) mkdirSync(join(dir, name), { recursive: true });
    for (const name of ["a.log", "keep/b", "keep/node_modules/c", "node_modules/x/d"])
      writeFileSync(join(dir, name), name);
    const told = [];
    const result = await lane.copyIn(dir, `${lane.worktreePath}/in`, {
      ignore: ["*.log", "/node_modules"],
      onProgress: (p) => told.push({ ...p, at: performance.now() }),
    });
    assert.equal(await run("cd in && find . -type f | sort | xargs echo"), "./big ./keep/b ./keep/node_modules/c");
    assert.equal(await run("sha256sum <in/big | cut -d' ' -f1"), sha256(readFileSync(join(dir, "big"))));
    assert.deepEqual([result.bytes, result.changed], [48 * MIB + "keep/b".length + "keep/node_modules/c".length, 0]);
    assert.ok(told.length > 0 && told.every((p, i) => i === 0 || p.bytes >= told[i - 1].bytes), "rising");
    const within = (at) => told.filter((p) => p.at >= at && p.at < at + 1000).length;
    assert.ok(told.every(({ at }) => within(at) <= 10), "at most ten times a second");
  }, { timeout: 3 * MINUTES });

  it("a signal ends each kind of copy: ABORTED, nothing left on either side, the lane goes on", async () => {
    const dir = scratch();
    const file = big(dir);
    await lane.exec("rm -rf src && mkdir src && head -c 50331648 /dev/urandom >src/big");
    const calls = {
      copyIn: (o) => lane.copyIn(file, `${lane.worktreePath}/cut`, o),
      copyFileOut: (o) => lane.copyFileOut(`${lane.worktreePath}/src/big`, join(dir, "cut"), o),
      copyOut: (o) => lane.copyOut(`${lane.worktreePath}/src`, join(dir, "cut"), o),
    };
    for (const [name, call] of Object.entries(calls)) {
      const c = new AbortController();
      const error = await fails("ABORTED", () => call({ signal: c.signal, onProgress: () => c.abort("enough") }));
      assert.equal(error.cause, "enough", name);
      assert.equal(await run("ls -d cut 2>/dev/null"), "", name);
      assert.equal(existsSync(join(dir, "cut")), false, name);
      assert.deepEqual([temporary(dir), await leftInGuest()], [[], ""], name);
      await fails("CALLBACK_THREW", () => call({ onProgress: () => { throw new Error("boo"); } }));
      assert.deepEqual([temporary(dir), await leftInGuest()], [[], ""], name);
    }
  }, { timeout: 5 * MINUTES });

  it("copyOut brings a directory, bounded, and without what would lead out of it", async () => {
    const dir = scratch();
    await lane.exec(`rm -rf t && mkdir -p t/sub/empty && cd t && printf hello >a && chmod 755 a && seq 2000 >sub/b &&
      ln -s ../a sub/in && ln -s /etc/passwd out && ln -s ../../outside sub/up && touch -d @1600000000 a &&
      printf x >"$(printf 'odd\\nname')"`);
    const to = join(dir, "made/t");
    const result = await lane.copyOut(`${lane.worktreePath}/t`, to);
    const names = (path) => readdirSync(path, { recursive: true }).sort();
    assert.deepEqual(names(to), ["a", "odd\nname", "sub", "sub/b", "sub/empty", "sub/in"]);
    assert.equal(readFileSync(join(to, "sub/in"), "utf8"), "hello");
    assert.equal(readlinkSync(join(to, "sub/in")), "../a");
    assert.equal(sha256(readFileSync(join(to, "sub/b"))), await run("sha256sum <t/sub/b | cut -d' ' -f1"));
    assert.deepEqual([lstatSync(join(to, "a")).mode & 0o111, lstatSync(join(to, "a")).mtimeMs], [0, 1.6e12]);
    assert.deepEqual([result.files, result.skipped, result.changed], [6, 2, 0]);
    await lane.copyOut(`${lane.worktreePath}/t`, join(dir, "x"), { executables: true });
    assert.notEqual(lstatSync(join(dir, "x/a")).mode & 0o100, 0);
    const from = `${lane.worktreePath}/t`;
    for (const [code, source, target, options] of [
      ["HOST_PATH_EXISTS", from, "x"],
      ["NOT_A_DIRECTORY", `${from}/a`, "no"],
      ["GUEST_FILE_MISSING", `${from}/none`, "no"],
      ["IS_LINK", `${from}/sub/in`, "no"],
      ["HOST_PATH_GIT", from, ".git/hooks"],
      ["TREE_TOO_LARGE", from, "no", { maxEntries: 3 }],
      ["TREE_TOO_LARGE", from, "no", { maxDepth: 1 }],
      ["TREE_TOO_LARGE", from, "no", { maxBytes: 100 }],
    ])
      await fails(code, () => lane.copyOut(source, join(dir, target), options));
    await lane.exec("mkfifo t/sub/fifo");
    await fails("TREE_REFUSED", () => lane.copyOut(from, join(dir, "no")));
    await lane.exec("rm t/sub/fifo; mkdir -p t/sub/.GIT/hooks");
    await fails("TREE_REFUSED", () => lane.copyOut(from, join(dir, "no")));
    assert.deepEqual(readdirSync(dir).sort(), ["made", "x"]);
  }, { timeout: 3 * MINUTES });

  it("cp: into the lane and out of it, files and directories, where cp would put them", () => {
    const dir = realpathSync(scratch());
    const here = (...args) => {
      const { code, out, errors = "" } = agentLane(["cp", ...args], { cwd: dir, timeout: 3 * MINUTES });
      return [code, out, errors];
    };
    mkdirSync(join(dir, "tree/sub"), { recursive: true });
    writeFileSync(join(dir, "tree/sub/f"), "in the tree");
    writeFileSync(join(dir, "tree/run.sh"), "#!/bin/sh\necho ran\n");
    chmodSync(join(dir, "tree/run.sh"), 0o755);
    symlinkSync("sub/f", join(dir, "tree/link"));
    writeFileSync(join(dir, "a:b"), "colon");
    assert.deepEqual(here("--ignore", "*.tmp", "tree", ":cp"), [0, "", ""]);
    assert.deepEqual(here("./a:b", `${lane.name}:cp`), [0, "", ""]);
    assert.deepEqual(here(`${lane.name}:cp/a:b`, "back"), [0, "", ""]);
    assert.equal(readFileSync(join(dir, "back"), "utf8"), "colon");
    const [code, out] = here("--json", "--executables", ":cp/", "home");
    assert.equal(code, 0);
    const { bytes, ...rest } = JSON.parse(out);
    const [from, to] = [`${lane.name}:${lane.worktreePath}/cp`, join(dir, "home")];
    assert.deepEqual(rest, { from, to, files: 5, changed: 0, skipped: 0 });
    assert.ok(bytes >= "in the tree".length);
    assert.deepEqual(readdirSync(to, { recursive: true }).sort(), ["a:b", "link", "run.sh", "sub", "sub/f"]);
    assert.notEqual(lstatSync(join(dir, "home/run.sh")).mode & 0o100, 0);
    assert.deepEqual(here(":/etc/hostname", "home/"), [0, "", ""]);
    assert.ok(existsSync(join(dir, "home/hostname")));
    assert.match(here(":none", "n")[2], /^error GUEST_FILE_MISSING/);
    assert.equal(here("n", "m")[0], 2);
  }, { timeout: 12 * MINUTES });

  it("cp: Ctrl-C ends it with 130, and nothing is left on either side", async () => {
    const dir = scratch();
    const file = big(dir, 200);
    const child = spawn(bin, ["cp", file, ":cut"], { stdio: ["ignore", "pipe", "pipe"] });
    let said = "";
    for (const stream of [child.stdout, child.stderr]) stream.on("data", (data) => (said += data));
    const ended = new Promise((resolve) => child.on("close", resolve));
    const begun = async () => child.exitCode !== null || (await leftInGuest()) !== "";
    await until("a temporary file in the guest", 120, begun);
    child.kill("SIGINT");
    assert.deepEqual([await ended, said], [130, ""]);
    await until("a clean guest", 20, async () => (await leftInGuest()) === "");
    assert.equal(await run("ls -d cut 2>/dev/null"), "");
  }, { timeout: 5 * MINUTES });

  it("what a lane may copy out in all is bounded, and the owner goes on", async () => {
    const dir = scratch();
    await lane.exec("head -c 50331648 /dev/zero >zeros");
    let n = 0;
    const error = await fails("COPY_OUT_LIMIT", async () => {
      for (; n < 6; n++) await lane.copyFileOut(`${lane.worktreePath}/zeros`, join(dir, `zeros-${n}`));
    });
    assert.match(error.cure, /maxCopyOutTotalBytes/);
    assert.ok(n >= 1 && n <= 4, `after ${n}`);
    assert.deepEqual(temporary(dir), []);
    assert.equal(await run("echo fine"), "fine");
    await lane.close();
    await nothingLeft();
  }, { timeout: 5 * MINUTES });
});
