// SPDX-License-Identifier: Apache-2.0
// Checks: no file of the host's in the guest, neither by a mount nor by a device, and none of the guest's on the host.
import { existsSync } from "node:fs";
import { join } from "node:path";
import { notRun, unless, type Verdict } from "../answers.js";
import type { Check } from "../check.js";
import { argvOf, canLook, openFiles, type OpenFile } from "../host.js";
import type { Scene } from "../scene.js";

// Virtio devices that share files (9p, file system), and file systems that come from elsewhere.
const SHARING_DEVICES = new Set(["0x0009", "0x001a"]);
const SHARING_KINDS = /^(?:9p|virtiofs|fuse\.(?!lxcfs)|nfs|cifs|smb|vboxsf|vmhgfs|sshfs|prl_fs)/;
const SHARING_WORDS = /^-(?:virtfs|fsdev|virtfs_synth)$|(?:virtio-9p|vhost-user-fs|vhost-vsock|usb-mtp|usb-host|vfio|fat:)/;
/** What QEMU may have open beside the lane's directory and the images: its own program's files, and devices without data. */
const OF_SYSTEM = /^\/(?:usr|lib|lib64|etc\/ld\.so\.cache|opt\/homebrew|nix\/store)(?:\/|$)/;
const DEVICES = /^\/dev\/(?:null|zero|urandom|random|kvm|pts\/\d+|tty)$/;

/** What QEMU has open and a lane does not need. */
export function foreign(files: readonly OpenFile[], laneDir: string, images: string): OpenFile[] {
  return files.filter(({ path, kind, writable }) => {
    if (path.startsWith(`${laneDir}/`)) return kind === "directory";
    if (kind === "device") return !DEVICES.test(path);
    if (path.startsWith(`${images}/`)) return writable || kind !== "file";
    return writable || kind === "directory" || !OF_SYSTEM.test(path);
  });
}

async function hostMount(scene: Scene): Promise<Verdict> {
  const lane = await scene.attacker();
  const seen = await scene.shares();
  if (!seen.ok) return notRun(seen.why, seen.details);
  const { devices, kinds, mounted } = seen.value;
  const inside = [
    [mounted.length > 0, `the guest mounted ${mounted.length} shared directories`],
    [devices.some((d) => SHARING_DEVICES.has(d)), "the guest has a device that shares files"],
    [kinds.some((k) => SHARING_KINDS.test(k)), "a file system of the guest comes from elsewhere"],
  ] as const;
  if (!canLook) return { ...unless(inside, `of ${devices.length} virtio devices none shares files, ${kinds.length} kinds of mounts are the guest's own`), details: [...devices, ...kinds] };
  const qemu = await scene.hypervisor(lane);
  const argv = qemu === undefined ? [] : argvOf(qemu);
  const files = qemu === undefined ? undefined : openFiles(qemu);
  if (argv.length === 0 || files === undefined || files.length === 0) return notRun("the lane's QEMU could not be looked at");
  const home = String(lane.facts["home"]), dir = String(lane.facts["dir"]);
  const wrong = foreign(files, dir, join(home, "images"));
  return unless(
    [
      ...inside,
      [argv.some((word) => SHARING_WORDS.test(word)), "QEMU runs with a device that shares files"],
      [wrong.length > 0, `QEMU has ${wrong.length} files open that are not the lane's`],
    ],
    `QEMU's arguments and open files (${files.length}) are the lane's own, its image is open for reading; no device or mount of the guest shares files`,
    [...mounted, ...wrong.map((f) => `${f.kind} ${f.path}`)],
  );
}

async function hostHome(scene: Scene): Promise<Verdict> {
  const { file } = await scene.canaries();
  const seen = await scene.shares();
  if (!seen.ok) return notRun(seen.why, seen.details);
  // Nothing but the file itself knows its word, so a guest that has it has read it.
  const { found, wrote } = seen.value;
  return unless(
    [
      [found.some((text) => text.includes(file.word)), "the guest read a file of the user's directory"],
      [found.length > 0, "the guest found a file by the canary's name"],
      [!file.untouched, "the canary in the user's directory was changed"],
      [existsSync(`${file.path}-guest`), "a file that the guest wrote is in the user's directory"],
    ],
    `the canary was not found and is untouched; what the guest wrote at its place (${wrote}) is not on the host`,
  );
}

export const files: readonly Check[] = [
  {
    id: "host-mount",
    point: "no host mount",
    tried: "each share that a hypervisor could offer is mounted, the guest's devices and mounts are listed, QEMU's arguments and open files are read on the host",
    by: "Lima's configuration has no mounts and is read back before the start; the warden refuses every argument of QEMU's that is not on its list",
    run: hostMount,
  },
  {
    id: "host-home",
    point: "no host home",
    tried: "a canary in the user's directory is searched for in the whole guest and opened by its path; the guest writes a file at its place",
    by: "as no host mount",
    run: hostHome,
  },
];

