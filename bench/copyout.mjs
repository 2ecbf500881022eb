// SPDX-License-Identifier: Apache-2.0
// `bench copyout [--vm]`: a thousand files of 20 KB out of the guest, one after another as a series of patches comes,
// and one large file, beside the ways it would be done without us. Last line: one JSON object.
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { makeFile, makeTree, remove } from "./lib/data.mjs";
import { transport, vm, withLane } from "./lib/local.mjs";
import { peersOf, quote, rawPort } from "./lib/peers.mjs";
import { bytesOr, MiB, ratio, report, roundsOr } from "./lib/report.mjs";
import { round } from "./lib/stats.mjs";
import { compare, memoryGoal, sameFile, withPlace } from "./lib/transfer.mjs";

const SMALL = 20_000, FILES = 1000, MAX = 4096 * MiB;
const bytes = bytesOr(vm ? 128 * MiB : MAX);
const files = Math.max(1, Math.round((FILES * bytes) / (vm ? 128 * MiB : MAX)));
// How many of them say the rate of a way that would need minutes for all.
const FEW = { limactl: Math.min(files, 20), ssh: Math.min(files, 100), relay: Math.min(files, 300) };

async function measure({ lane, dir, flow, place }) {
  const source = join(place, "source"), out = join(place, "out"), large = join(source, "large");
  const series = makeTree(join(source, "series"), files, { least: SMALL, most: SMALL });
  makeFile(large, bytes);
  const peers = await peersOf({ lane, vm, flow, place });
  const raw = vm && transport === "port" ? await rawPort(lane, bytes) : undefined;
  const inGuest = vm ? "/var/tmp/bench-source" : join(dir, "source"), target = join(out, "file");
  await lane.copyIn(source, inGuest);
  await lane.exec(`chmod -R a+rX ${quote(inGuest)}; sync`, { cwd: "/" }); // another user reads it too
  const listed = await lane.exec("find series -type f | sort", { cwd: inGuest });
  const names = listed.stdout.trim().split("\n");

  const clear = () => {
    remove(out);
    mkdirSync(out);
  };
  const each = async (count, work) => {
    for (const [i, name] of names.slice(0, count).entries()) await work(join(inGuest, name), join(out, String(i)));
  };
  const cat = (file, to) => vm
    ? peers.run(`${peers.ssh(`cat ${quote(file)}`)} >${quote(to)}`)
    : peers.outOf(`cat ${quote(file)}`, `cat >${quote(to)}`);
  const bare = vm ? "ssh" : "relay", bareLabel = vm ? "ssh 'cat FILE' >FILE" : "cat | relay | cat >FILE";
  const some = `${round((SMALL * files) / MiB)} MiB in files of 20 KB`, one = `one file of ${round(bytes / MiB)} MiB`;
  const rated = (count) => (count < files ? `, by its rate for ${count} of them` : "");
  const small = (count, label, work) => (
    { label: `${some}: ${label}${rated(count)}`, amount: (count * SMALL) / MiB, clear, work: () => each(count, work) });
  const whole = (label, work) => ({ label: `${one}: ${label}`, amount: bytes / MiB, clear, work });
  const bigOne = join(inGuest, "large");
  const ways = {
    ours_small: small(files, "Agent Lane: copyFileOut", (file, to) => lane.copyFileOut(file, to)),
    [`${bare}_small`]: small(FEW[bare], bareLabel, cat),
    ...(vm && { limactl_small: small(FEW.limactl, "limactl copy", (file, to) => peers.copyOut(file, to)) }),
    ours_large: whole("Agent Lane: copyFileOut", () => lane.copyFileOut(bigOne, target)),
    [`${bare}_large`]: whole(bareLabel, () => cat(bigOne, target)),
    ...(vm && { limactl_large: whole("limactl copy", () => peers.copyOut(bigOne, target)) }),
    ...(raw && { port_large: whole("a virtio port of its own", () => raw.drain(bigOne, target)) }),
  };
  const { rows, samples, grown } = await compare(ways, () => sameFile(lane, target, bigOne));
  raw?.end();
  const against = (name, size, text, goal) => {
    const value = ratio(samples[`ours_${size}`], samples[`${name}_${size}`]);
    return { text: `${size} files: copyFileOut / ${text}`, value, ...goal };
  };
  report({
    bench: vm ? `copyout-vm-${transport}` : "copyout",
    title: "files out of the guest", unit: "MiB/s", rows, samples,
    goals: [
      ...(vm ? [against("limactl", "small", "limactl copy", { bound: 10, least: true })] : []),
      against(bare, "small", bareLabel),
      against(bare, "large", bareLabel, vm ? { bound: 0.9, least: true } : {}),
      ...(vm ? [against("limactl", "large", "limactl copy")] : []),
      ...(raw ? [against("port", "large", "a virtio port of its own")] : []),
      memoryGoal(grown),
    ],
    more: { bytes, files: series.count, rounds: roundsOr(3) },
  });
}

await withLane(
  async ({ lane, dir, flow }) => withPlace((place) => measure({ lane, dir, flow, place })), { maxCopyOutBytes: MAX, maxCopyOutTotalBytes: 2 ** 40 },
);
