// SPDX-License-Identifier: Apache-2.0
// What the benchmarks of transfers share: a place on the host, turns in which each way begins with an empty target, the
// growth of our own memory, and proof that what came is what was sent.
import { createHash } from "node:crypto";
import { createReadStream } from "node:fs";
import { remove } from "./data.mjs";
import { memoryWatch } from "./memory.mjs";
import { newPlace } from "./place.mjs";
import { quote } from "./peers.mjs";
import { alternate, roundsOr } from "./report.mjs";
import { timed } from "./stats.mjs";

/** A directory of the host for one benchmark. */
export async function withPlace(work) {
  const place = newPlace("bench-transfer");
  try {
    return await work(place);
  } finally {
    remove(place);
  }
}

/**
 * ways: {name: {label, amount, clear, work}}; those whose name begins with "ours" run once beforehand, then `check`,
 * and are watched. Each turn clears, then does the work; a rate is amount / seconds. Gives {rows, samples, grown: MiB
 * by which our process grew in all its turns}.
 */
export async function compare(ways, check, rounds = 3) {
  const watch = memoryWatch(), ours = Object.keys(ways).filter((name) => name.startsWith("ours"));
  const turn = (name, { amount, clear, work }) => async () => {
    await clear();
    const ms = await timed(ours.includes(name) ? () => watch.during(work) : work);
    return amount / (ms / 1000);
  };
  for (const name of ours) {
    await ways[name].clear();
    await ways[name].work();
  }
  await check();
  const turns = Object.fromEntries(Object.entries(ways).map(([name, way]) => [name, turn(name, way)]));
  const samples = await alternate(roundsOr(rounds), turns);
  const rows = Object.fromEntries(Object.entries(ways).map(([name, { label }]) => [name, label]));
  return { rows, samples, grown: watch.grown() };
}

export const memoryGoal = (value) =>
  ({ text: "growth of the host process's memory in all turns, MiB", value, bound: 24 });

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
  const said = stdout.trim();
  if (said !== `${count} ${bytes}`) throw new Error(`${said} instead of ${count} ${bytes} in the guest`);
}
