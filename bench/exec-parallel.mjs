// SPDX-License-Identifier: Apache-2.0
// `bench exec-parallel [--vm]`: 64 overlapping `sleep 0.2`, against 64 that a lane agent runs for a host of a few lines
// beside it. Last line: one JSON object.
import { join } from "node:path";
import { agent, secretFile, transport, vm, withLane } from "./lib/local.mjs";
import { alternate, ratio, report, roundsOr } from "./lib/report.mjs";
import { timed } from "./lib/stats.mjs";

const COUNT = 64, COMMAND = "sleep 0.2";
let lost = 0;

async function prepare(lane, dir) {
  if (!vm) return { agentPath: agent, secret: secretFile(dir) };
  const paths = { agentPath: join(dir, "agent"), secret: join(dir, "proof") };
  await lane.copyIn(agent, paths.agentPath);
  await lane.exec(`chmod 755 ${paths.agentPath}; umask 077; printf '%064d\n' 0 >${paths.secret}`);
  return paths;
}

await withLane(async ({ lane, flow, dir }) => {
  const { agentPath, secret } = await prepare(lane, dir);
  const ours = () => timed(async () => {
    const ends = await Promise.allSettled(Array.from({ length: COUNT }, () => lane.exec(COMMAND)));
    lost += ends.filter((end) => end.status !== "fulfilled" || end.value.exitCode !== 0).length;
  });
  async function alone() {
    const alone = `'${flow}' spawns ${COUNT} '${COMMAND}' '${agentPath}' --local --secret '${secret}'`;
    const { stdout, stderr, exitCode } = await lane.exec(alone);
    const [ms, good] = stdout.split(" ").map(Number);
    if (exitCode !== 0 || good !== COUNT) throw new Error(`the agent alone: ${stdout}${stderr}`);
    return ms;
  }
  await ours();
  const samples = await alternate(roundsOr(10), { ours, alone });
  report({
    bench: vm ? `exec-parallel-vm-${transport}` : "exec-parallel",
    title: `${COUNT} overlapping commands, ${COMMAND}`,
    unit: "ms",
    rows: { ours: `Agent Lane: ${COUNT} x exec at once`, alone: "the same by an agent alone" },
    samples,
    goals: [
      { text: "exec at once / the agent alone", value: ratio(samples.ours, samples.alone), bound: 1.3 },
      { text: "commands lost", value: lost, bound: 0 },
    ],
  });
});
