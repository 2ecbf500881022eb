// SPDX-License-Identifier: Apache-2.0
// The flavour docker in a lane. Run by name (run.mjs docker.mjs) with E2E_DOCKER_IMAGE, a built image: the daemon takes its
// time in an emulated guest. Nothing is pulled: the lane has no network, and the images are made of the guest's own files.
import assert from "node:assert/strict";
import { createServer } from "node:net";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { openOwnLane, scratch } from "./lib/lanes.mjs";
import { nothingLeft } from "./lib/world.mjs";

const image = process.env.E2E_DOCKER_IMAGE;
const MINUTES = 60_000;

/** A decoy of the host's Docker: whoever connects is counted. */
async function decoy(where) {
  const seen = { connections: 0 };
  const server = createServer((socket) => {
    seen.connections++;
    socket.end("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK");
  });
  await new Promise((resolve, reject) => server.on("error", reject).listen(where, resolve));
  return { seen, server, close: () => server.close() };
}

describe("docker in a lane", { concurrency: false, skip: image ? false : "E2E_DOCKER_IMAGE is not set" }, () => {
  let lane;
  const decoys = [];
  const times = {};

  /** Runs it as agent, and shows everything when it fails. */
  async function run(command, { status = 0, ...options } = {}) {
    const r = await lane.exec(command, { timeoutMs: 8 * MINUTES, ...options });
    assert.equal(r.exitCode, status, `${command}\n${r.stdout}\n${r.stderr}`);
    return r.stdout.trim();
  }
  async function timed(what, command, options) {
    const started = performance.now();
    const out = await run(command, options);
    times[what] = (performance.now() - started) / 1000;
    return out;
  }

  before(async () => {
    const path = join(scratch("docker"), "docker.sock");
    decoys.push(await decoy(path), await decoy({ host: "127.0.0.1", port: 0 }));
    process.env.DOCKER_HOST = `unix://${path}`;
    lane = await openOwnLane({ image, memoryGiB: 2, diskGiB: 10, timeoutMinutes: 60 });
  }, { timeout: 5 * MINUTES });
  after(async () => {
    await lane?.close();
    decoys.forEach((d) => d.close());
    delete process.env.DOCKER_HOST;
    for (const [what, seconds] of Object.entries(times)) console.log(`     ${what}: ${seconds.toFixed(1)} s`);
  }, { timeout: 2 * MINUTES });

  it("nothing of Docker runs before the first use, but its socket is there for the group docker", async () => {
    assert.equal(await run("pgrep -c dockerd || true"), "0");
    assert.equal(await run("stat -c %a:%U:%G /run/docker.sock"), "660:root:docker");
    assert.match(await run("id -nG"), /\bdocker\b/);
  });

  it("the daemon answers its first client, user agent", { timeout: 10 * MINUTES }, async () => {
    assert.match(await timed("first answer of the daemon", "docker version --format '{{.Server.Version}}'"), /^\d+\.\d+/);
    assert.match(await timed("an answer when it runs", "docker info --format '{{.Driver}} {{.CgroupDriver}}'"), /^overlay2 cgroupfs$/);
  });

  it("run: an image made of an archive, offline", { timeout: 10 * MINUTES }, async () => {
    await run("mkdir -p root/bin && cp /bin/busybox root/bin/ && for a in sh cat echo ls sleep dd fallocate id; do ln -sf busybox root/bin/$a; done");
    await timed("docker import", "tar -C root -c . | docker import - local:1");
    assert.equal(await timed("docker run", "docker run --rm local:1 /bin/sh -c 'echo from $(id -u)'"), "from 0");
    assert.equal(await timed("docker run again", "docker run --rm --network none local:1 /bin/echo twice"), "twice");
  });

  it("build: by buildx, from a local image", { timeout: 10 * MINUTES }, async () => {
    await run("mkdir -p build && printf 'FROM local:1\\nRUN echo made >/made\\nCMD [\"/bin/cat\", \"/made\"]\\n' >build/Dockerfile");
    assert.match(await run("docker buildx version"), /buildx/);
    await timed("docker buildx build", "docker buildx build --progress plain -t built:1 build 2>&1");
    assert.equal(await run("docker run --rm built:1"), "made");
    await timed("docker build", "DOCKER_BUILDKIT=1 docker build -t built:2 build 2>&1");
  });

  it("compose: two services up and down", { timeout: 10 * MINUTES }, async () => {
    const file = [
      "services:",
      "  one: {image: 'local:1', command: ['/bin/sh', '-c', 'echo one is here; sleep 600'], stop_grace_period: 1s}",
      "  two: {image: 'built:1', depends_on: [one]}",
    ];
    await run(`mkdir -p project && cat >project/compose.yaml <<'END'\n${file.join("\n")}\nEND`);
    const out = await timed("docker compose up", "cd project && docker compose up --abort-on-container-exit 2>&1");
    assert.match(out, /one is here/);
    assert.match(out, /made/);
    await timed("docker compose down", "cd project && docker compose down 2>&1");
    assert.equal(await run("docker ps -aq | wc -l"), "0");
  });

  it("a container's memory and the lane's disk have their limits", { timeout: 10 * MINUTES }, async () => {
    const eat = "dd if=/dev/zero of=/dev/shm/x bs=1048576 count=300";
    await run(`docker run --rm --memory 64m --shm-size 1g local:1 /bin/sh -c '${eat}'`, { status: 137 });
    const full = await run("docker run --rm local:1 /bin/sh -c 'fallocate -l 64G /x' 2>&1; true");
    assert.match(full, /No space left/);
  });

  it("a daemon that was killed is there again for the next client", { timeout: 10 * MINUTES }, async () => {
    const before = await run("pgrep -o dockerd");
    await run("sudo kill -9 $(pgrep dockerd)");
    assert.match(await run("for i in 1 2 3 4 5 6; do docker version --format '{{.Server.Version}}' && break; sleep 3; done"), /^\d+\.\d+/);
    assert.notEqual(await run("pgrep -o dockerd"), before);
  });

  it("the host's Docker is never contacted", { timeout: 5 * MINUTES }, async () => {
    const port = decoys[1].server.address().port;
    assert.equal(await run("echo ${DOCKER_HOST-unset}"), "unset");
    for (const host of ["192.168.5.2", "10.0.2.2"]) {
      const { exitCode } = await lane.exec(`timeout 20 docker -H tcp://${host}:${port} version`, { timeoutMs: 2 * MINUTES });
      assert.notEqual(exitCode, 0);
    }
    assert.deepEqual(decoys.map((d) => d.seen.connections), [0, 0]);
  });

  it("everything of it ends with the lane", { timeout: 5 * MINUTES }, async () => {
    await run("docker run -d local:1 /bin/sleep 1000");
    await lane.close();
    await nothingLeft();
  });
});
