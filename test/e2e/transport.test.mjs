// SPDX-License-Identifier: Apache-2.0
// A lane on each transport. The other tests use the default, which is the port where the image has it.
import assert from "node:assert/strict";
import { readFileSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { fails, openLane, scratch, sha256 } from "./lib/lanes.mjs";
import { laneDirectories, laneProcesses, nothingLeft, productHome, until } from "./lib/world.mjs";

/** Opens a lane and finds its name from outside. */
async function open(options) {
  const others = new Set(laneDirectories());
  const handle = await openLane(options);
  return { handle, name: laneDirectories().find((d) => !others.has(d)) };
}

const commands = (name) => laneProcesses(productHome(), name).map((p) => p.args);
const shells = (name) => commands(name).filter((args) => /limactl .*\bshell\b/.test(args));

/** What must be the same on both. */
function sameTests(lane) {
  it("output, errors and status of a command", async () => {
    const r = await lane().exec("printf out; printf err >&2; exit 7");
    assert.deepEqual([r.stdout, r.stderr, r.exitCode], ["out", "err", 7]);
  });

  it("5 MB, ten windows of it, through stdin and stdout", async () => {
    const text = "0123456789abcdef".repeat(312_500);
    const r = await lane().exec("cat", { stdin: text });
    assert.equal(sha256(r.stdout), sha256(text));
  });

  it("a file in and out", async () => {
    const dir = scratch("transport"), data = Buffer.alloc(3_000_001, "\0\xff\n\r", "latin1");
    writeFileSync(join(dir, "in"), data);
    await lane().copyIn(join(dir, "in"), "/home/agent/workspace/x");
    await lane().copyFileOut("/home/agent/workspace/x", join(dir, "out"));
    assert.equal(sha256(readFileSync(join(dir, "out"))), sha256(data));
  });
}

describe("transport shell", { concurrency: false }, () => {
  let lane;
  before(async () => { lane = await open({ transport: "shell" }); }, { timeout: 300_000 });
  after(() => lane?.handle.close(), { timeout: 60_000 });

  it("one login carries it, and the VM has no port", async () => {
    assert.equal(shells(lane.name).length > 0, true);
    assert.equal(commands(lane.name).some((args) => args.includes("virtserialport")), false);
    const r = await lane.handle.exec("cat /sys/class/virtio-ports/*/name 2>/dev/null | grep -c agent-lane");
    assert.equal(r.stdout, "0\n");
  });
  sameTests(() => lane.handle);
  it("nothing is left", async () => {
    await lane.handle.close();
    await nothingLeft();
  });
});

describe("transport port", { concurrency: false }, () => {
  let lane;
  before(async () => { lane = await open({ transport: "port" }); }, { timeout: 300_000 });
  after(() => lane?.handle.close(), { timeout: 60_000 });

  it("a private socket carries it, and no login", () => {
    const dir = join(productHome(), "lima", lane.name);
    assert.deepEqual(shells(lane.name), []);
    assert.equal(statSync(dir).mode & 0o777, 0o700);
    assert.equal(statSync(join(dir, "lane.sock")).mode & 0o777, 0o600);
  });

  it("the user of the commands can neither read nor write it, and root cannot open it beside the agent", async () => {
    const port = "p=/dev/$(basename $(dirname $(grep -lx agent-lane /sys/class/virtio-ports/*/name)))";
    const r = await lane.handle.exec(`${port}; head -c 1 $p; (echo x >$p); stat -c %a:%U $p`);
    assert.equal(r.stdout, "600:root\n");
    assert.equal(r.stderr.match(/[Pp]ermission denied/g)?.length, 2, r.stderr);
    const root = await lane.handle.exec(`${port}; head -c 1 $p`, { sudo: true });
    assert.match(root.stderr, /busy/);
  });
  sameTests(() => lane.handle);

  it("root in the guest who kills the lane agent ends this lane, at once, and nothing else", async () => {
    const busy = fails("CHANNEL_CLOSED", () => lane.handle.exec("sleep 600"));
    await lane.handle.exec("kill -9 $(pidof agent)", { sudo: true }).catch(() => undefined);
    await busy;
    await until("the VM's end", 30, () => commands(lane.name).length === 0);
    await lane.handle.close();
    await nothingLeft();
  });
});

describe("a guest that goes away by itself", { concurrency: false }, () => {
  // Nobody asks the lane anything: the host hears of it from QEMU, not by waiting in vain for an answer.
  const unbind =
    "d=$(readlink -f $(dirname $(grep -lx agent-lane /sys/class/virtio-ports/*/name))/device); " +
    "(sleep 1; echo ${d##*/} >/sys/bus/virtio/drivers/virtio_console/unbind) >/dev/null 2>&1 & ";
  const panic = "(sleep 1; echo 1 >/proc/sys/kernel/sysrq; echo c >/proc/sysrq-trigger) >/dev/null 2>&1 &";
  for (const [what, command] of [["takes its port away", unbind], ["panics", panic]])
    it(`${what}: the lane ends with it, though no command waits`, { timeout: 300_000 }, async () => {
      const events = [];
      const { handle, name } = await open({ transport: "port", onEvent: (e) => events.push(e) });
      await handle.exec(command, { sudo: true });
      await until("the lane's end", 30, () => events.some((e) => e.type === "closed"));
      await fails("LANE_CLOSED", () => handle.exec("true"));
      assert.deepEqual(commands(name), []);
      await handle.close();
      await nothingLeft();
    });
});
