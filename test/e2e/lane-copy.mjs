// SPDX-License-Identifier: Apache-2.0
// copyIn and copyFileOut on a real lane; tests of lane.test.mjs, which share one lane.
import assert from "node:assert/strict";
import { chmodSync, existsSync, mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { randomBytes } from "node:crypto";
import { join } from "node:path";
import { it } from "node:test";
import { fails, scratch, sha256 } from "./lib/lanes.mjs";

const guestHash = async (lane, path) =>
  (await lane.exec(`sha256sum '${path}' | cut -d' ' -f1`, { cwd: "/" })).stdout.trim();

export function copyTests(lane, { maxCopyOutBytes }) {
  it("copyIn of a file is exact, makes parents, overwrites, belongs to agent", async () => {
    const dir = scratch(), data = randomBytes(5_000_000);
    writeFileSync(join(dir, "f"), data, { mode: 0o640 });
    writeFileSync(join(dir, "empty"), "");
    await lane().copyIn(join(dir, "f"), "/home/agent/in/deep/er/f");
    assert.equal(await guestHash(lane(), "/home/agent/in/deep/er/f"), sha256(data));
    await lane().copyIn(join(dir, "empty"), "/home/agent/in/deep/er/f");
    assert.equal(
      (await lane().exec("stat -c '%s %U' /home/agent/in/deep/er/f /home/agent/in", { cwd: "/" })).stdout.split(
        "\n",
      )[0],
      "0 agent",
    );
    assert.match((await lane().exec("stat -c %U /home/agent/in/deep", { cwd: "/" })).stdout, /^agent/);
  });

  it("copyIn of a directory is directory-as, merges, keeps modes, links and empty directories", async () => {
    const dir = join(scratch(), "tree");
    mkdirSync(join(dir, "sub/empty"), { recursive: true });
    writeFileSync(join(dir, "run.sh"), "#!/bin/sh\necho ran\n");
    chmodSync(join(dir, "run.sh"), 0o755);
    writeFileSync(join(dir, "sub/ö name"), "x");
    symlinkSync("../run.sh", join(dir, "sub/link"));
    symlinkSync("/nowhere", join(dir, "sub/dangling"));
    await lane().exec(
      "mkdir -p /home/agent/tree/sub && echo kept > /home/agent/tree/sub/kept && echo old > /home/agent/tree/run.sh",
      { cwd: "/" },
    );
    await lane().copyIn(dir, "/home/agent/tree");
    const r = await lane().exec("find . -mindepth 1 -printf '%y %m %u %P %l\\n' | sort; ./sub/link", {
      cwd: "/home/agent/tree",
    });
    const found = r.stdout.split("\n").map((l) => l.trim()).filter(Boolean);
    assert.ok(found.includes("f 755 agent run.sh"), r.stdout);
    assert.ok(found.includes("l 777 agent sub/link ../run.sh"), r.stdout);
    assert.ok(found.includes("l 777 agent sub/dangling /nowhere"), r.stdout);
    assert.ok(
      found.some((l) => /^d \d+ agent sub\/empty$/.test(l)) && found.some((l) => l.endsWith("sub/ö name")),
      r.stdout,
    );
    assert.ok(found.some((l) => l.endsWith("sub/kept")), "merged, not replaced");
    assert.ok(!found.some((l) => l.includes("tree/")), "not nested");
    assert.equal(found.at(-1), "ran");
  });

  it("copyIn of a missing path and of a socket are refused by name", async () => {
    const missing = await fails("SOURCE_MISSING", () => lane().copyIn("/no/such/file", "/home/agent/x"));
    assert.match(missing.message, /no\/such\/file/);
    const dir = scratch(), server = createServer().listen(join(dir, "sock"));
    await new Promise((resolve) => server.once("listening", resolve));
    const refused = await fails("SOURCE_UNSUPPORTED", () => lane().copyIn(dir, "/home/agent/y"));
    server.close();
    assert.match(refused.message, /sock/);
  });

  it("copyFileOut is exact by hash, makes parents, overwrites, leaves no temporary file", async () => {
    const dir = scratch(), target = join(dir, "a/b/out.bin");
    await lane().exec("head -c 20000000 /dev/urandom > /home/agent/out.bin", { cwd: "/" });
    await lane().copyFileOut("/home/agent/out.bin", target);
    assert.equal(sha256(readFileSync(target)), await guestHash(lane(), "/home/agent/out.bin"));
    await lane().exec(": > /home/agent/out.bin", { cwd: "/" });
    await lane().copyFileOut("/home/agent/out.bin", target);
    assert.equal(readFileSync(target).length, 0);
    assert.deepEqual(readdirSync(join(dir, "a/b")), ["out.bin"]);
  });

  it("copyFileOut refuses each bad source with its own code and leaves the target alone", async (t) => {
    const dir = scratch(), target = join(dir, "target");
    writeFileSync(target, "before");
    await lane().exec(
      `mkdir -p src/d && cd src && echo x > f && ln -sf f link && ln -sfn d dlink && echo y > d/g && mkfifo -m 666 fifo; truncate -s ${maxCopyOutBytes + 1} big`,
      { cwd: "/home/agent" },
    );
    const cases = [
      ["GUEST_PATH_INVALID", "/home/agent/src/../src/f"],
      ["GUEST_PATH_INVALID", "relative/f"],
      ["GUEST_PATH_INVALID", "/home/agent/src/d/"],
      ["IS_LINK", "/home/agent/src/link"],
      ["IS_LINK", "/home/agent/src/dlink/g"],
      ["NOT_A_FILE", "/home/agent/src/d"],
      ["NOT_A_FILE", "/home/agent/src/fifo"],
      ["NOT_A_FILE", "/dev/zero"],
      ["GUEST_FILE_MISSING", "/home/agent/src/none"],
      ["FILE_TOO_LARGE", "/home/agent/src/big"],
    ];
    for (const [code, path] of cases) {
      const started = Date.now();
      await fails(code, () => lane().copyFileOut(path, target)).catch((e) => {
        throw new Error(`${path}: ${e.message}`);
      });
      t.diagnostic(`${code} ${path}: ${Date.now() - started} ms`);
      assert.equal(readFileSync(target, "utf8"), "before", path);
    }
    assert.deepEqual(readdirSync(dir), ["target"]);
  });

  it("copyFileOut refuses a host path through .git or a link", async () => {
    const root = scratch(), outside = scratch();
    mkdirSync(join(root, ".git"));
    symlinkSync(outside, join(root, "door"));
    await lane().exec("echo pwn > /home/agent/pwn", { cwd: "/" });
    await fails("HOST_PATH_GIT", () =>
      lane().copyFileOut("/home/agent/pwn", join(root, ".git/hooks/post-applypatch")),
    );
    await fails("HOST_PATH_LINK", () => lane().copyFileOut("/home/agent/pwn", join(root, "door/x")));
    assert.deepEqual([readdirSync(join(root, ".git")), existsSync(join(outside, "x"))], [[], false]);
  });
}
