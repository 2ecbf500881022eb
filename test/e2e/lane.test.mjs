// SPDX-License-Identifier: Apache-2.0
// One lane without network, used by many tests, then closed in the hardest way.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { existsSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { copyTests } from "./lane-copy.mjs";
import { execTests } from "./lane-exec.mjs";
import { loadTests } from "./lane-load.mjs";
import { fails, openLane } from "./lib/lanes.mjs";
import { alive, laneDirectories, laneProcesses, nothingLeft, openRows, productHome, until } from "./lib/world.mjs";

const maxCopyOutBytes = 20_000_000; // exactly the size of the file that must still pass

describe("one lane, network none", { concurrency: false }, () => {
  let handle, name;
  const lane = () => handle;

  before(async () => {
    const others = new Set(laneDirectories());
    handle = await openLane({ maxCopyOutBytes }, { RUN_VAR: "from the run" });
    name = laneDirectories().find((d) => !others.has(d));
  }, { timeout: 300_000 });
  after(() => handle?.close(), { timeout: 60_000 });

  it("is one directory, one open row and a running VM", () => {
    assert.match(name, /^agent-lane-[a-z0-9]{8}-[a-z0-9]{8}$/);
    assert.ok(openRows().some((row) => row.startsWith(name)));
    const args = laneProcesses(productHome(), name).map((p) => p.args).join("\n");
    assert.match(args, /qemu-system/);
    assert.match(args, /hostagent/);
  });

  execTests(lane);
  loadTests(lane, () => name);
  copyTests(lane, { maxCopyOutBytes });

  it("the guest reaches no listener of the host, nor anything else", async () => {
    let connections = 0;
    const server = createServer((socket) => { connections++; socket.end("hi"); }).listen(0, "127.0.0.1");
    await new Promise((resolve) => server.once("listening", resolve));
    const probe = (host) =>
      `timeout 5 bash -c 'exec 3<>/dev/tcp/${host}/${server.address().port} && cat <&3' 2>/dev/null && echo REACHED || echo no`;
    const r = await lane().exec(["192.168.5.2", "192.168.5.15", "10.0.2.2"].map(probe).join("; "), { cwd: "/" });
    server.close();
    assert.deepEqual([r.stdout, connections], ["no\nno\nno\n", 0]);
  });

  it("a second lane over maxConcurrentVms is BUSY and names the holder", async () => {
    const error = await fails("BUSY", () => openLane({ maxConcurrentVms: 1, startTimeoutSeconds: 20 }));
    assert.match(error.message, new RegExp(name));
  });

  it("three closes at once resolve, in-flight work settles, every process is dead, a planted pid is not killed", async () => {
    const bystander = spawn("sleep", ["600"], { stdio: "ignore" });
    writeFileSync(join(productHome(), "lima", name, "qemu.pid"), `${bystander.pid}\n`);
    const lines = [];
    const busy = lane()
      .exec("while :; do echo tick; sleep 0.2; done", { onLine: (l) => lines.push(l) })
      .then(
        (r) => r.exitCode,
        (e) => e.code,
      );
    await until("the first lines", 30, () => lines.length >= 3);
    const started = Date.now();
    await Promise.all([lane().close(), lane().close(), lane().close()]);
    const heard = lines.length;
    await lane().close();
    assert.ok(Date.now() - started < 30_000, `${Date.now() - started} ms`);
    assert.deepEqual(laneProcesses(productHome(), name), []);
    assert.equal(existsSync(join(productHome(), "lima", name)), false);
    assert.deepEqual(
      openRows().filter((row) => row.startsWith(name)),
      [],
    );
    assert.equal(alive(bystander.pid), true, "the process behind the planted pid lives");
    bystander.kill("SIGKILL");
    assert.ok(
      ["LANE_CLOSED", "CHANNEL_CLOSED"].includes(await busy) || (await busy) > 128,
      `in-flight exec ended with ${await busy}`,
    );
    assert.equal(lines.length, heard, "no line after the close");
  });

  it("everything after close is LANE_CLOSED", async () => {
    await fails("LANE_CLOSED", () => lane().exec("true"));
    await fails("LANE_CLOSED", () => lane().copyIn("/etc/hostname", "/home/agent/x"));
    await fails("LANE_CLOSED", () => lane().copyFileOut("/etc/hostname", join(productHome(), "x")));
    await nothingLeft();
  });
});
