// SPDX-License-Identifier: Apache-2.0
// First bad input: each gives an error with a code and a cure, and leaves nothing.
import assert from "node:assert/strict";
import {
  chmodSync,
  closeSync,
  copyFileSync,
  linkSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  readSync,
  rmSync,
  statSync,
  writeFileSync,
  writeSync,
} from "node:fs";
import { dirname, join } from "node:path";
import { after, describe, it } from "node:test";
import { agentLane, fails, openLane, scratch, sh, startOwner } from "./lib/lanes.mjs";
import { isEmpty, leftovers, nothingLeft } from "./lib/world.mjs";

const imageDir = process.env.E2E_IMAGE_DIR;

/** A home of our own with a short path: Lima's socket names must fit. */
const homes = [];
function freshHome() {
  const home = mkdtempSync("/tmp/alh-");
  homes.push(home);
  return home;
}
after(() => homes.forEach((home) => rmSync(home, { recursive: true, force: true })));

/** A program in limactl's place that only answers --version. */
function fakeLimactl(version) {
  const file = join(scratch("fake-limactl"), "limactl");
  writeFileSync(file, `#!/bin/sh\necho '${version}'\n`);
  chmodSync(file, 0o755);
  return file;
}

/**
 * The real limactl; while it reads a lane's configuration back, `file` is in _config, and gone again before anybody
 * else looks there.
 */
function plantingLimactl(file, text) {
  const dir = scratch("planting-limactl"),
    limactl = join(dir, "limactl"),
    real = process.env.AGENT_LANE_LIMACTL ?? sh("command -v limactl");
  writeFileSync(join(dir, "plant"), text);
  writeFileSync(
    limactl,
    `#!/bin/sh\ncase " $* " in *" list "*) ;; *) exec '${real}' "$@" ;; esac\n` +
      `cp '${dir}/plant' "$LIMA_HOME/_config/${file}"\n'${real}' "$@"\ncode=$?\nrm "$LIMA_HOME/_config/${file}"\nexit $code\n`,
  );
  chmodSync(limactl, 0o755);
  return limactl;
}

function flipByte(file) {
  chmodSync(file, 0o600);
  const fd = openSync(file, "r+"), byte = Buffer.alloc(1), at = statSync(file).size >> 1;
  readSync(fd, byte, 0, 1, at);
  byte[0] ^= 1;
  writeSync(fd, byte, 0, 1, at);
  closeSync(fd);
}

/** The image with another init. Big files are linked, not copied. */
function imageWithInit(init) {
  const dir = scratch("other-init");
  const manifest = JSON.parse(readFileSync(join(imageDir, "manifest.json"), "utf8"));
  for (const { name } of manifest.files) {
    try {
      linkSync(join(imageDir, name), join(dir, name));
    } catch {
      copyFileSync(join(imageDir, name), join(dir, name));
    }
  }
  manifest.name = "mute";
  manifest.boot.qemu.cmdline = manifest.boot.qemu.cmdline.replace(/init=\S+/, `init=${init}`);
  writeFileSync(join(dir, "manifest.json"), JSON.stringify(manifest));
  return dir;
}

describe("options", () => {
  it("an unknown option is refused and the near one suggested", async () => {
    const error = await fails("UNKNOWN_OPTION", () => openLane({ memoryGib: 2 }));
    assert.match(`${error.message} ${error.cure}`, /memoryGiB/);
  });

  it("values out of bounds or of the wrong type are refused by name", async () => {
    const cases = {
      cpus: [0, 65, 1.5, "2", NaN],
      memoryGiB: [0.5, 257, Infinity],
      diskGiB: [0, 2049],
      timeoutMinutes: [0, 1441],
      startTimeoutSeconds: [4, 601],
      syncInTimeoutSeconds: [9, 3601],
      maxCopyOutBytes: [0, 2 ** 40 + 1],
      maxCopyOutTotalBytes: [0, 2 ** 40 + 1],
      maxBufferedBytes: [2 ** 20 - 1, 2 ** 33 + 1],
      maxConcurrentVms: [0, 33],
      worktreePath: ["relative", "/a/../b", "/a/"],
      guestSudo: ["yes"],
      network: ["closed"],
      accelerator: ["kvm"],
      env: [{ "A B": "1" }, { A: 1 }, { A: "x\0y" }],
      limactlPath: ["limactl"],
      onEvent: ["f"],
    };
    for (const [name, values] of Object.entries(cases))
      for (const value of values) {
        const error = await fails("BAD_OPTION", () => openLane({ [name]: value }));
        assert.ok(error.message.includes(name), `${name}=${String(value)}: ${error.message}`);
      }
  });

  it("a disk smaller than the image, an unsafe home and a home too long are refused", async () => {
    await fails("BAD_OPTION", () => openLane({ diskGiB: 1 }));
    const open = freshHome();
    chmodSync(open, 0o777);
    await fails("HOME_UNSAFE", () => openLane({ home: open }));
    const long = join(freshHome(), "x".repeat(80));
    await fails("HOME_TOO_LONG", () => openLane({ home: long }));
  });
});

describe("host", { concurrency: false, timeout: 600_000 }, () => {
  it("no limactl", async () => {
    await fails("LIMA_MISSING", () => openLane({ limactlPath: "/no/such/limactl" }));
    const owner = startOwner({}, { env: { PATH: "/usr/bin:/bin", AGENT_LANE_LIMACTL: "/no/such/limactl" } });
    const { code, lines } = await owner.ended;
    assert.deepEqual([code, lines[1]?.split(" ").slice(0, 2).join(" ")], [3, "error LIMA_MISSING"]);
  });

  it("an old limactl, and one whose version cannot be read", async () => {
    const old = await fails("LIMA_TOO_OLD", () => openLane({ limactlPath: fakeLimactl("limactl version 2.1.4") }));
    assert.match(old.message, /2\.1\.4/);
    assert.match(`${old.message} ${old.cure}`, /2\.2\.0/);
    await fails("LIMA_UNKNOWN_VERSION", () => openLane({ limactlPath: fakeLimactl("limactl version HEAD-abcdef") }));
  });

  it("a limactl that everybody may change", async () => {
    const file = fakeLimactl("limactl version 2.2.0");
    chmodSync(file, 0o777);
    await fails("PROGRAM_UNSAFE", () => openLane({ limactlPath: file }));
  });

  it("root", async (t) => {
    try { sh("unshare --map-root-user true"); } catch { return t.skip("no user namespaces here: nobody to play root"); }
    const owner = startOwner({ home: freshHome() }, { wrapper: ["unshare", "--map-root-user"] });
    const { code, lines } = await owner.ended;
    assert.deepEqual([code, lines[1]?.split(" ").slice(0, 2).join(" ")], [3, "error LIMA_ROOT"]);
  });

  it("settings in Lima's _config: refused by the file's name, and by the setting's when only Lima has seen the file", async () => {
    const home = freshHome();
    const imported = agentLane(["image", "import", imageDir], { env: { ...process.env, AGENT_LANE_HOME: home } });
    assert.equal(imported.code, 0, imported.errors);
    for (const name of ["override.yaml", "base.yaml", "default.yaml"]) {
      const file = join(home, "lima", "_config", name);
      writeFileSync(file, 'mounts: [{location: "/"}]\n');
      const error = await fails("CONFIG_REFUSED", () => openLane({ home }));
      assert.ok(error.message.includes(name), error.message);
      rmSync(file);
    }
    // In plain mode Lima itself drops mounts and forwards; without it they would be there.
    const seen = [
      ["override.yaml", 'plain: false\nmounts: [{location: "~"}]\n', "mounts"],
      ["override.yaml", "plain: false\nportForwards: [{guestPort: 80, hostPort: 18080}]\n", "portForwards"],
      ["override.yaml", 'provision: [{mode: system, script: "#!/bin/sh"}]\n', "provision"],
      ["default.yaml", 'provision: [{mode: system, script: "#!/bin/sh"}]\n', "provision"],
      ["override.yaml", "ssh: {forwardAgent: true}\n", "ssh.forwardAgent"],
      ["override.yaml", "networks: [{lima: user-v2}]\n", "network"],
      ["override.yaml", "copyToHost: [{guest: /etc/passwd, host: /tmp/x}]\n", "copyToHost"],
    ];
    for (const [file, text, key] of seen) {
      const error = await fails("CONFIG_REFUSED", () => openLane({ home, limactlPath: plantingLimactl(file, text) }));
      assert.ok(error.message.includes(key + "`"), `${key}: ${error.message}`);
    }
    assert.ok(isEmpty(leftovers(home)), JSON.stringify(leftovers(home)));
  });

  it("a home with a space: Lima splits the warden's words as they were written, and QEMU gets its paths whole", async () => {
    const dir = freshHome(),
      home = join(dir, "a home"),
      bin = join(dir, "bin"),
      seen = join(dir, "seen");
    const imported = agentLane(["image", "import", imageDir], { env: { ...process.env, AGENT_LANE_HOME: home } });
    assert.equal(imported.code, 0, imported.errors);
    mkdirSync(bin, { mode: 0o755 });
    const qemu = `qemu-system-${process.arch === "arm64" ? "aarch64" : "x86_64"}`,
      real = sh(`command -v ${qemu}`);
    // Answers Lima's questions, and starts no VM.
    writeFileSync(
      join(bin, qemu),
      `#!/bin/sh\ncase " $* " in *" -pidfile "*) printf '%s\\n' "$@" >'${seen}'; exit 1 ;; esac\nexec '${real}' "$@"\n`,
    );
    chmodSync(join(bin, qemu), 0o755);
    const owner = startOwner({ home, accelerator: "tcg" }, { env: { PATH: `${bin}:${process.env.PATH}` } });
    const { code, lines } = await owner.ended;
    assert.deepEqual([code, lines[1]?.split(" ").slice(0, 2).join(" ")], [3, "error START_FAILED"], lines.join("\n"));
    const words = readFileSync(seen, "utf8").split("\n");
    const lane = dirname(words[words.indexOf("-pidfile") + 1]);
    assert.ok(lane.startsWith(`${home}/lima/agent-lane-`), lane);
    assert.ok(words.includes(`file=${lane}/disk,if=none,discard=on,id=boot-disk,format=qcow2`), words.join("\n"));
    assert.ok(
      words.some((w) => w.endsWith(",restrict=on,ipv6=off")),
      "the policy got through",
    );
    assert.ok(isEmpty(leftovers(home)), JSON.stringify(leftovers(home)));
  });

  it("no image in the store", async () => {
    const home = freshHome();
    await fails("IMAGE_MISSING", () => openLane({ home }));
    await fails("IMAGE_MISSING", () => openLane({ image: "no-such-image" }));
    assert.ok(isEmpty(leftovers(home)));
  });

  it("one byte of the stored image changed", async () => {
    const home = freshHome();
    const imported = agentLane(["image", "import", imageDir], { env: { ...process.env, AGENT_LANE_HOME: home } });
    assert.equal(imported.code, 0, imported.errors);
    const [image] = readdirSync(join(home, "images")).filter((e) => !e.startsWith("_") && !e.startsWith("."));
    const disk = readdirSync(join(home, "images", image)).find((f) => f.startsWith("disk"));
    chmodSync(join(home, "images", image), 0o700);
    flipByte(join(home, "images", image, disk));
    const error = await fails("IMAGE_CORRUPT", () => openLane({ home }));
    assert.match(error.message, new RegExp(disk));
    assert.ok(isEmpty(leftovers(home)), JSON.stringify(leftovers(home)));
  });

  function homeWithInit(init) {
    const home = freshHome();
    const imported = agentLane(["image", "import", imageWithInit(init)], { env: { ...process.env, AGENT_LANE_HOME: home } });
    assert.equal(imported.code, 0, imported.errors);
    return home;
  }

  it("a guest that panics: START_FAILED with its last words, nothing left", async () => {
    const home = homeWithInit("/no/such/init");
    const error = await fails("START_FAILED", () => openLane({ home, startTimeoutSeconds: 120 }));
    assert.match(error.message, /the guest's last words: .*Kernel panic/);
    await nothingLeft(60, home);
  });

  it("a guest that never answers: START_TIMEOUT within the limit, nothing left", async () => {
    const home = homeWithInit("/bin/cat"); // it waits for what nobody types
    const started = Date.now();
    const error = await fails("START_TIMEOUT", () => openLane({ home, startTimeoutSeconds: 24 }));
    const seconds = (Date.now() - started) / 1000;
    assert.ok(seconds > 20 && seconds < 60, `${seconds} s`);
    assert.match(error.lane ?? "", /^agent-lane-/);
    await nothingLeft(60, home);
  });

  it("the command: doctor finds everything, ls is empty", () => {
    const doctor = agentLane(["doctor"]);
    assert.equal(doctor.code, 0, `${doctor.out} ${doctor.errors}`);
    const broken = agentLane(["doctor"], { env: { ...process.env, AGENT_LANE_LIMACTL: "/no/such/limactl" } });
    assert.equal(broken.code, 1);
    const ls = agentLane(["ls", "--json"]);
    assert.deepEqual([ls.code, JSON.parse(ls.out)], [0, []]);
  });
});
