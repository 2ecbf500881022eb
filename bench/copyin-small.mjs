// SPDX-License-Identifier: Apache-2.0
// `bench copyin-small [--vm]`: many small files into the guest, beside the ways it would be done without us: 20,000
// into a VM, 50,000 where the guest is this machine. Last line: one JSON object.
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { makeTree, remove } from "./lib/data.mjs";
import { transport, vm, withLane } from "./lib/local.mjs";
import { peersOf, quote } from "./lib/peers.mjs";
import { bytesOr, MiB, ratio, report } from "./lib/report.mjs";
import { round } from "./lib/stats.mjs";
import { compare, memoryGoal, sameTree, withPlace } from "./lib/transfer.mjs";

// BENCH_BYTES counts in files of the mean size.
const count = Math.round(bytesOr((vm ? 20_000 : 50_000) * 4608) / 4608);
const FEW = Math.min(count, 1000); // of which `limactl copy` says its rate: all would take it many minutes
let turns = 0; // each has a directory of its own in a VM: what is made where much was removed takes a guest's ext4 four times as long

await withLane(async ({ lane, dir, flow }) => withPlace(async (place) => {
  const tree = makeTree(join(place, "tree"), count), few = makeTree(join(place, "few"), FEW);
  const peers = await peersOf({ lane, vm, flow, place });
  const from = quote(tree.dir), target = () => join(dir, `tree-${vm ? turns : 0}`), there = () => join(peers.dir, vm ? `${turns}` : ".");
  const to = () => quote(there());
  const clear = async () => {
    if (!vm) return peers.clear();
    turns++;
    await peers.into("true", `mkdir -p ${to()} && sync`);
  };

  /** Sandcastle's own hosted provider: a packed archive, read whole, sent as a file, unpacked there. */
  async function whole() {
    const archive = join(place, "whole.tar.gz"), sent = join(there(), "whole.tar.gz");
    await peers.run(`tar -czf ${quote(archive)} -C ${from} .`);
    writeFileSync(join(place, "read"), readFileSync(archive));
    await peers.into(`cat ${quote(join(place, "read"))}`, `cat >${quote(sent)}`);
    await peers.into("true", `tar -xzf ${quote(sent)} -C ${to()} && rm -f ${quote(sent)}`);
    remove(archive);
  }
  const clearOurs = vm ? clear : () => lane.exec(`rm -rf ${quote(target())}; sync`, { cwd: "/" });
  const relayed = vm ? "limactl shell" : "relay";
  const ways = {
    ours: { label: "Agent Lane: copyIn", amount: count, clear: clearOurs, work: () => lane.copyIn(tree.dir, target()) },
    tar: {
      label: vm ? "tar | limactl shell tar" : "tar | relay | tar", amount: count, clear,
      work: () => peers.into(`tar -C ${from} -cf - .`, `tar -C ${to()} -xf -`),
    },
    whole: { label: `tar -cz, then ${relayed}, then tar -xz`, amount: count, clear, work: whole },
    ...(vm && {
      limactl: {
        label: `limactl copy -r, by its rate for ${FEW} of them`, amount: FEW, clear,
        work: () => peers.copyIn(few.dir, join(there(), "few"), "-r"),
      },
    }),
  };
  const { rows, samples, grown } = await compare(ways, () => sameTree(lane, tree, target()));
  const against = (name, goal) =>
    ({ text: `copyIn / ${rows[name]}`, value: ratio(samples.ours, samples[name]), ...goal });
  report({
    bench: vm ? `copyin-small-vm-${transport}` : "copyin-small",
    title: `${count} files, ${round(tree.bytes / MiB)} MiB, into the guest`, unit: "files/s", rows, samples,
    goals: [
      ...(vm ? [against("limactl", { bound: 3, least: true })] : []),
      against("tar", { bound: 1, least: true }),
      against("whole"),
      memoryGoal(grown),
    ],
    more: { count, bytes: tree.bytes },
  });
}));
