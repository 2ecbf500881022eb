// SPDX-License-Identifier: Apache-2.0
// The image of a project on real VMs: made once, found again, with nothing of the caller's or of the first lane in it; a setup that
// fails, or whose owner is killed, leaves nothing.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { prepareImage } from "@agent-lane/provider-lima";
import { agentLane, fails, openOwnLane, scratch, small } from "./lib/lanes.mjs";
import { laneDirectories, laneProcesses, nothingLeft, until } from "./lib/world.mjs";

const MINUTES = 60_000;
const CANARY = "canary-6f1b2c";

/** What a setup leaves for the lanes after it to look at: who ran it, in what, and what its lane was called by. */
const SETUP = `
  cat input.txt tools/run.sh >both
  sh tools/run.sh
  id -un >who; pwd >where; env | sort >variables
  hostname >its-name
  until [ -s /etc/ssh/ssh_host_ed25519_key.pub ]; do sleep 0.2; done
  cp /etc/ssh/ssh_host_ed25519_key.pub its-key
  echo left >/tmp/left-behind
  (trap '' TERM HUP; sleep 1000) >/dev/null 2>&1 &
  sudo sh -c 'echo installed >/opt/by-root'
`;

const images = () => JSON.parse(agentLane(["image", "ls", "--json"]).out);
const derived = () => images().filter((row) => row.id.startsWith("project-")).map((row) => row.id);

/** Another process that prepares; resolves with its exit and what it said. */
function other(options) {
  const script = fileURLToPath(new URL("./lib/prepare.mjs", import.meta.url));
  const child = spawn(process.execPath, [script, JSON.stringify(options)], { stdio: ["ignore", "pipe", "pipe"] });
  let out = "", errors = "";
  child.stdout.setEncoding("utf8").on("data", (text) => (out += text));
  child.stderr.setEncoding("utf8").on("data", (text) => (errors += text));
  const ended = new Promise((resolve) => child.on("close", (code, signal) => resolve({ code, signal, out, errors })));
  return { child, ended, said: () => out };
}

describe("the image of a project", { concurrency: false }, () => {
  const directory = scratch("project");
  const mine = `e2e ${directory}`;
  const before_ = new Set(derived());
  const options = (image = {}, more = {}) => ({
    ...small,
    startTimeoutSeconds: 120,
    env: { SECRET: CANARY },
    image: { directory, project: mine, setup: SETUP, inputs: ["input.txt", "tools"], ...image },
    ...more,
  });
  let made;

  before(() => {
    writeFileSync(join(directory, "input.txt"), "the input\n");
    mkdirSync(join(directory, "tools"));
    writeFileSync(join(directory, "tools", "run.sh"), "echo from the input >>both\n", { mode: 0o755 });
    agentLane(["reap"]);
  });
  after(() => {
    for (const id of derived()) if (!before_.has(id)) agentLane(["image", "rm", id]);
  });

  it("is made once; events tell how far it is", { timeout: 5 * MINUTES }, async () => {
    const events = [];
    made = await prepareImage(options({}, { onEvent: (event) => events.push(event) }));
    assert.equal(made.made, true);
    assert.match(made.image, /^project-[0-9a-f]{12}-[0-9a-f]{12}$/);
    const steps = [...new Set(events.filter((e) => e.type === "preparing").map((e) => e.step))];
    assert.deepEqual(steps, ["lane", "inputs", "setup", "saving", "ready"]);
    await nothingLeft();
    const again = await prepareImage(options());
    assert.deepEqual([again.image, again.made], [made.image, false]);
    console.log(`     made in ${made.seconds.toFixed(1)} s, found in ${(again.seconds * 1000).toFixed(0)} ms`);
  });

  it("is where the lanes start, with nothing of its own lane in it", { timeout: 5 * MINUTES }, async () => {
    const lane = await openOwnLane(options());
    try {
      assert.equal(lane.facts.image, made.image);
      const look = async (command, o) => (await lane.exec(command, o)).stdout.trim();
      assert.equal(await look("cat ~/setup/both"), "the input\necho from the input >>both\nfrom the input");
      assert.equal(await look("stat -c %a:%U ~/setup/tools/run.sh ~/setup"), "755:agent\n755:agent");
      assert.equal(await look("cat ~/setup/who ~/setup/where /opt/by-root"), "agent\n/home/agent/setup\ninstalled");
      assert.doesNotMatch(await look("cat ~/setup/variables"), new RegExp(`${CANARY}|SECRET`));
      assert.notEqual(await look("cat ~/setup/its-name"), await look("hostname"));
      assert.equal(await look("grep -c \"$(cat ~/setup/its-name)\" /etc/hosts || true"), "0");
      assert.equal(await look("cat /etc/machine-id; ls -A /tmp; find /var/log -type f -size +0 | wc -l"), "0");
      await look("until [ -s /etc/ssh/ssh_host_ed25519_key.pub ]; do sleep 0.2; done");
      assert.notEqual(await look("cat /etc/ssh/ssh_host_ed25519_key.pub"), await look("cat ~/setup/its-key"));
      assert.match(await look("awk '$2 == \"/\" {print $4}' /proc/mounts"), /^rw/);
      // The file system was whole when it was taken.
      assert.match(await look("dumpe2fs -h /dev/vda 2>/dev/null | grep -i 'errors' | head -1; dmesg | grep -i 'ext4.*error' | wc -l", { sudo: true }), /0$/);
      const manifest = readFileSync(lane.facts.manifest, "utf8");
      const { id, untrustedSetup, parents } = JSON.parse(manifest.split("\n")[0]).image;
      assert.deepEqual([id, untrustedSetup, parents[0].id], [made.image, true, made.parent]);
      assert.equal(manifest.includes(CANARY), false);
    } finally {
      await lane.close();
    }
  });

  it("says that code of a project has run in it, and is one that verifies", { timeout: 3 * MINUTES }, () => {
    const row = JSON.parse(agentLane(["image", "inspect", made.image, "--json"]).out);
    assert.equal(row.untrustedSetup, true);
    assert.equal(row.parent, made.parent);
    assert.equal(agentLane(["image", "verify", made.image]).code, 0);
    assert.equal(JSON.stringify(row).includes(directory), false, "the project is a digest");
  });

  it("is another one for another project, whose failing setup leaves nothing", { timeout: 5 * MINUTES }, async () => {
    const there = derived();
    const setup = "echo about to fail; echo and this is why >&2; false; echo not reached";
    const error = await fails("SETUP_FAILED", () => prepareImage(options({ project: `${mine} 2`, setup })));
    assert.match(error.message, /ended with status 1[^]*about to fail[^]*and this is why\n$/);
    assert.doesNotMatch(error.message, /not reached/);
    assert.deepEqual(derived(), there);
    await nothingLeft();
  });

  it("is made by one of two processes, and the other waits", { timeout: 8 * MINUTES }, async () => {
    const o = options({ setup: "sleep 3; echo made >made" });
    const both = [other(o), other(o)];
    const ends = await Promise.all(both.map((p) => p.ended));
    assert.deepEqual(ends.map((e) => [e.code, e.errors]), [[0, ""], [0, ""]]);
    const results = ends.map((e) => JSON.parse(e.out.split("\n").find((line) => line.startsWith("{\"image\""))));
    assert.equal(results[0].image, results[1].image);
    assert.deepEqual(results.map((r) => r.made).sort(), [false, true]);
    assert.match(ends.find((_, i) => !results[i].made).out, /waiting/);
    await nothingLeft();
  });

  it("whose maker is killed is not there, and the next one makes it", { timeout: 8 * MINUTES }, async () => {
    const there = derived();
    const o = options({ setup: "echo begun; sleep 5; echo x >x" });
    const first = other(o);
    await until("the setup", 120, () => first.said().includes("begun"));
    first.child.kill("SIGKILL");
    await first.ended;
    await until("its keeper's work", 60, () => laneProcesses().length + laneDirectories().length === 0);
    agentLane(["reap"]);
    await nothingLeft();
    assert.deepEqual(derived(), there);
    const second = await prepareImage(o);
    assert.equal(second.made, true);
  });

  it("that a lane of Sandcastle's cannot wait for is told of, with the cure", { timeout: 5 * MINUTES }, async () => {
    const { lima } = await import("@agent-lane/provider-lima");
    const o = options({ setup: "echo slow; sleep 600" }, { startTimeoutSeconds: 45 });
    const error = await fails("IMAGE_NOT_READY", () => lima(o).create({ env: {} }));
    assert.match(error.message, /\[IMAGE_NOT_READY\].*agent-lane image prepare/);
    await nothingLeft();
  });
});
