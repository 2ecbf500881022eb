// SPDX-License-Identifier: Apache-2.0
// A complete guest image of a few bytes, and the programs of QEMU that a scripted limactl does not need but the product
// looks for.
import { createHash } from "node:crypto";
import { chmodSync, mkdirSync, writeFileSync } from "node:fs";
import { arch } from "node:os";
import { join } from "node:path";

const DISK_BYTES = 8 * 2 ** 30;

/** The header of an empty qcow2 disk: what an import looks at. */
function qcow2() {
  const header = Buffer.alloc(112);
  header.write("QFI\xfb", "latin1");
  header.writeUInt32BE(3, 4);
  header.writeBigUInt64BE(BigInt(DISK_BYTES), 24);
  return header;
}

/** Writes a file with exactly these permissions, whatever the umask is. */
export function write(path, text, mode = 0o644) {
  writeFileSync(path, text);
  chmodSync(path, mode);
}

/**
 * An image that can be imported, in a new directory. Without "port-transport" it is one of the first version. With `raw` it
 * has a disk for vz, too.
 */
export function makeImage(dir, features = ["shell-transport"], raw = false) {
  mkdirSync(dir);
  const parts = [
    ["disk.qcow2", "disk", qcow2()],
    ["vmlinuz", "kernel", Buffer.from("the kernel")],
    ["initrd.img", "initrd", Buffer.from("the initrd")],
    ["sbom.spdx.json", "sbom", Buffer.from("{}")],
    ...(raw ? [["disk.raw", "disk-raw", Buffer.from("the raw disk")]] : []),
  ];
  const files = parts.map(([name, role, data]) => {
    writeFileSync(join(dir, name), data);
    return { name, size: data.length, sha256: createHash("sha256").update(data).digest("hex"), role };
  });
  const boot = {
    kernel: "vmlinuz",
    initrd: "initrd.img",
    cmdline: "root=/dev/vda quiet",
    disk: "disk.qcow2",
    disk_format: "qcow2",
  };
  const manifest = {
    format: "agent-lane-image/1",
    name: "base",
    flavour: "base",
    version: "1",
    arch: arch() === "arm64" ? "aarch64" : "x86_64",
    created: "2026-01-01T00:00:00Z",
    recipe_sha256: "0".repeat(64),
    virtual_size: DISK_BYTES,
    files,
    boot: { qemu: boot, vz: { ...boot, disk_format: "raw" } },
    probe_marker: "agent-lane-probe-ok",
    probe_word: "agentlane.probe",
    users: { login: "lane", agent: "agent" },
    features,
    inputs: [],
  };
  write(join(dir, "manifest.json"), JSON.stringify(manifest));
}

/**
 * Fills `bin` with a limactl that is `script` run by this Node, and with what is looked up beside it. Gives limactl's
 * path. qemu-img and ssh-keygen first run <home>/run/NAME.sh, where a test may have put what they do wrong (TMPDIR is
 * <home>/run for the core's children).
 */
export function makePrograms(bin, script) {
  const limactl = join(bin, "limactl");
  const node = `'${process.execPath}' '${script}'`;
  const faulty = (name) => `#!/bin/bash\n[ ! -f "$TMPDIR/${name}.sh" ] || . "$TMPDIR/${name}.sh"\n`;
  // By its name the core knows limactl in the list of processes.
  write(limactl, `#!/bin/bash\nexec -a limactl ${node} "$@"\n`, 0o755);
  write(
    join(bin, "qemu-img"),
    `${faulty("qemu-img")}while [ $# -gt 2 ]; do shift; done\numask 077; echo overlay >"$1"\n`,
    0o755,
  );
  write(join(bin, "ssh-keygen"), `${faulty("ssh-keygen")}exec /usr/bin/ssh-keygen "$@"\n`, 0o755);
  for (const name of ["qemu-system-x86_64", "qemu-system-aarch64"])
    write(join(bin, name), `#!/bin/bash\n[ "$1" != --version ] || { echo "QEMU emulator version 7.2.0 (scripted)"; exit; }\nexec ${node} qemu "$@"\n`, 0o755);
  return limactl;
}
