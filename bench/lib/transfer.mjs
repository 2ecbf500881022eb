// SPDX-License-Identifier: Apache-2.0
// What the benchmarks of transfers share: a place on the host, turns in which each way begins with an empty target, the
// growth of our own memory, and proof that what came is what was sent.
import { createHash } from "node:crypto";
import { createReadStream, mkdtempSync } from "node:fs";
import { join } from "node:path";
import { remove } from "./data.mjs";
import { grown } from "./memory.mjs";
import { quote } from "./peers.mjs";
import { alternate, roundsOr } from "./report.mjs";
import { round, timed } from "./stats.mjs";

/** A directory of the host for one benchmark, on a disk with room (BENCH_DIR; default /tmp). */
export async function withPlace(work) {
  const place = mkdtempSync(join(process.env.BENCH_DIR ?? "/tmp", "bench-transfer-"));
  try {
    return await work(place);
  } finally {
    remove(place);
  }
}

/**
 * ways: {name: {label, amount, clear, work}}; "ours" is one of them, runs once beforehand, then `check`. Each turn
 * clears, then does the work; a rate is amount / seconds. Gives {rows, samples, growth: MiB of our process, per turn}.
 */
export async function compare(ways, check) {
  const growth = [];
  const turn = (name, { amount, clear, work }) => async () => {
    await clear();
    const measured = name === "ours" ? async () => growth.push(round((await grown(work)).grown, 1)) : work;
    return amount / ((await timed(measured)) / 1000);
  };
  await ways.ours.clear();
  await ways.ours.work();
  await check();
  const samples = await alternate(
    roundsOr(3), Object.fromEntries(Object.entries(ways).map(([name, way]) => [name, turn(name, way)])),
  );
  return { rows: Object.fromEntries(Object.entries(ways).map(([name, { label }]) => [name, label])), samples, growth };
}

export async function hashOf(file) {
  const hash = createHash("sha256");
  for await (const data of createReadStream(file)) hash.update(data);
  return hash.digest("hex");
}

/** The same file on both sides, or it throws. */
export async function sameFile(lane, onHost, inGuest) {
  const { stdout } = await lane.exec(`sha256sum <${quote(inGuest)}`, { cwd: "/" });
  if (stdout.split(" ")[0] !== (await hashOf(onHost))) throw new Error(`${inGuest} is not ${onHost}`);
}

/** `count` files and their bytes are in that directory of the guest, or it throws. */
export async function sameTree(lane, { count, bytes }, inGuest) {
  const script = `find ${quote(inGuest)} -type f -printf '%s\\n' | awk '{ n++; b += $1 } END { print n, b }'`;
  const { stdout } = await lane.exec(script, { cwd: "/" });
  if (stdout.trim() !== `${count} ${bytes}`) throw new Error(`${stdout.trim()} instead of ${count} ${bytes} in the guest`);
}
