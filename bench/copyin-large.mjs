// SPDX-License-Identifier: Apache-2.0
// `bench copyin-large [--vm]`: one large file into the guest, beside the ways it would be done without us: 128 MiB into
// a VM, 4 GiB where the guest is this machine. Last line: one JSON object.
import { join } from "node:path";
import { makeFile } from "./lib/data.mjs";
import { transport, vm, withLane } from "./lib/local.mjs";
import { peersOf, quote, rawPort } from "./lib/peers.mjs";
import { bytesOr, MiB, ratio, report } from "./lib/report.mjs";
import { round } from "./lib/stats.mjs";
import { compare, memoryGoal, sameFile, withPlace } from "./lib/transfer.mjs";

// In a VM a turn takes five seconds and what ssh does in them varies by half: more turns for a median that stands.
const rounds = vm ? 9 : 3;
const bytes = bytesOr(vm ? 128 * MiB : 4096 * MiB), amount = bytes / MiB;

await withLane(async ({ lane, dir, flow }) => withPlace(async (place) => {
  const file = makeFile(join(place, "large"), bytes), target = join(dir, "large");
  const peers = await peersOf({ lane, vm, flow, place });
  const { clear } = peers, to = join(peers.dir, "large");
  const raw = vm && transport === "port" ? await rawPort(lane, bytes) : undefined;
  const work = {
    ours: () => lane.copyIn(file, target),
    ...(vm
      ? {
        ssh: () => peers.run(`${peers.ssh(`cat >${to}`)} <${quote(file)}`),
        limactl: () => peers.copyIn(file, to),
      }
      : { relay: () => peers.into(`cat ${quote(file)}`, `cat >${quote(to)}`) }),
    tar: () => peers.into(`tar -C ${quote(place)} -cf - large`, `tar -C ${quote(peers.dir)} -xf -`),
    ...(raw && { port: () => raw.fill(file, to) }),
  };
  const label = {
    ours: "Agent Lane: copyIn",
    ssh: "ssh 'cat >FILE'",
    limactl: "limactl copy",
    relay: "cat | relay | cat >FILE",
    tar: vm ? "tar | limactl shell tar" : "tar | relay | tar",
    port: "a virtio port of its own",
  };
  const clearOurs = () => lane.exec(`rm -f ${quote(target)}; sync`, { cwd: "/" });
  const ways = Object.fromEntries(Object.keys(work).map((name) => [
    name, { label: label[name], amount, clear: name === "ours" ? clearOurs : clear, work: work[name] },
  ]));
  const { rows, samples, grown } = await compare(ways, () => sameFile(lane, file, target), rounds);
  raw?.end();
  const against = (name, goal) =>
    ({ text: `copyIn / ${label[name]}`, value: ratio(samples.ours, samples[name]), ...goal });
  const first = vm ? against("ssh", { bound: 0.9, least: true }) : against("relay", { bound: 0.8, least: true });
  const others = Object.keys(work).filter((name) => !["ours", "ssh", "relay"].includes(name));
  report({
    bench: vm ? `copyin-large-vm-${transport}` : "copyin-large",
    title: `one file of ${round(amount)} MiB into the guest`, unit: "MiB/s", rows, samples,
    goals: [
      first, ...others.map((name) => against(name)),
      memoryGoal(grown),
    ],
    more: { bytes },
  });
}));
