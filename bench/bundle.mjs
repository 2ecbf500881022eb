// SPDX-License-Identifier: Apache-2.0
// `bench bundle`: a real repository through Sandcastle's sync-in on a real VM: how much of it is the transfer. Beside
// it the same bundle by plain ssh. Last line: one JSON object.
import { execFileSync } from "node:child_process";
import { statSync } from "node:fs";
import { join } from "node:path";
import { createSandbox } from "@ai-hero/sandcastle";
import { createLane, lima } from "@agent-lane/provider-lima";
import { peersOf, quote } from "./lib/peers.mjs";
import { MiB, report, roundsOr } from "./lib/report.mjs";
import { median, round, timed } from "./lib/stats.mjs";
import { withPlace } from "./lib/transfer.mjs";

const options = {
  cpus: 2, memoryGiB: 2, network: "none", limactlPath: process.env.BENCH_LIMACTL,
  accelerator: process.env.BENCH_ACCELERATOR ?? "tcg",
};
const samples = { whole: [], boot: [], sync: [], transfer: [], ssh: [] };
const git = (cwd, ...args) => execFileSync("git", args, { cwd, stdio: ["ignore", "pipe", "inherit"] }).toString();

/** The provider as it is, with a clock beside each call. */
function timedProvider(calls) {
  const inner = lima(options);
  return {
    ...inner,
    create: async (given) => {
      let handle;
      calls.boot = await timed(async () => { handle = await inner.create(given); });
      return {
        ...handle,
        copyIn: async (...args) => { calls.transfer += await timed(() => handle.copyIn(...args)); },
      };
    },
  };
}

await withPlace(async (place) => {
  const repo = join(place, "repo"), bundle = join(place, "repo.bundle");
  git("/", "clone", "-q", "--no-local", process.env.BENCH_REPO, repo);
  git(repo, "bundle", "create", "-q", bundle, "--all");
  const bytes = statSync(bundle).size, commits = git(repo, "rev-list", "--all", "--count").trim();
  for (let i = 0; i < roundsOr(3); i++) {
    const calls = { transfer: 0 };
    let sandbox;
    const whole = await timed(async () => {
      sandbox = await createSandbox({ cwd: repo, branch: `bench/${i}`, sandbox: timedProvider(calls) });
    });
    await sandbox.close();
    samples.whole.push(round(whole));
    samples.boot.push(round(calls.boot));
    samples.sync.push(round(whole - calls.boot));
    samples.transfer.push(round(calls.transfer));
    const lane = await createLane(options);
    try {
      const peers = await peersOf({ lane, vm: true });
      samples.ssh.push(round(await timed(() => peers.run(`${peers.ssh(`cat >${peers.dir}/b`)} <${quote(bundle)}`))));
    } finally {
      await lane.close();
    }
    console.log(`round ${i + 1} of ${roundsOr(3)}: ${JSON.stringify(calls)}, all in ${round(whole)} ms`);
  }
  const share = (of) => (100 * median(samples.transfer)) / median(samples[of]);
  report({
    bench: "bundle", unit: "ms",
    title: `${commits} commits, a bundle of ${round(bytes / MiB)} MiB, by Sandcastle's sync-in`,
    rows: {
      whole: "createSandbox(), all of it", boot: "of which: until the lane is ready", sync: "of which: sync-in",
      transfer: "of which: copyIn of the bundle", ssh: "the same bundle by ssh 'cat >FILE'",
    },
    samples,
    goals: [
      { text: "share of the transfer in the sync-in, %", value: share("sync") },
      { text: "share of the transfer in the whole, %", value: share("whole") },
    ],
    more: { bytes, commits: Number(commits) },
  });
});
