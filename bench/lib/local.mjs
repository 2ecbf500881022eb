// SPDX-License-Identifier: Apache-2.0
// A lane whose guest is this machine: the whole product, with the real lane agent as a local process on the same socket
// pair that limactl's would be. Nothing lies between the two, so what is measured is ours. Or, with --vm, a real lane.
import { chmodSync, copyFileSync, existsSync, mkdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { createLane } from "@agent-lane/provider-lima";
import { newPlace } from "./place.mjs";

export const flow = process.env.BENCH_FLOW;
export const agent = process.env.BENCH_AGENT;
const support = fileURLToPath(new URL("../../ts/support", import.meta.url));
export const vm = process.argv.includes("--vm");
export const transport = process.argv[process.argv.indexOf("--transport") + 1 || Infinity] ?? "auto";

async function localLane(more) {
  const { makeImage, makePrograms } = await import(join(support, "image.mjs"));
  const dir = newPlace("bench-lane");
  const bin = join(dir, "bin"), work = join(dir, "work"), home = join(dir, "h");
  for (const part of [bin, work]) mkdirSync(part);
  mkdirSync(home, { mode: 0o700 });
  mkdirSync(join(home, "run"), { mode: 0o700 });
  for (const file of ["limactl.mjs", "guest.mjs", "load.mjs"])
    if (existsSync(join(support, file))) copyFileSync(join(support, file), join(bin, file));
  const limactlPath = makePrograms(bin, join(bin, "limactl.mjs"));
  makeImage(join(dir, "image"));
  writeFileSync(join(home, "run", "scenario.json"), JSON.stringify({ guest: "agent", lifeMs: 3_600_000 }));
  // The scripted limactl's own programs are looked up here.
  process.env.PATH = `${bin}:${process.env.PATH}`;
  const image = join(dir, "image");
  const options = {
    limactlPath, home, image, worktreePath: work, accelerator: "tcg", transport: "shell", memoryGiB: 1, ...more,
  };
  const remove = () => rmSync(dir, { recursive: true, force: true });
  try {
    return { lane: await createLane(options), remove, flow, dir: work };
  } catch (error) {
    remove();
    throw error;
  }
}

async function realLane(more) {
  const lane = await createLane({
    cpus: 2,
    memoryGiB: 2,
    network: "none",
    limactlPath: process.env.BENCH_LIMACTL,
    accelerator: process.env.BENCH_ACCELERATOR ?? "tcg",
    transport,
    ...more,
  });
  const inGuest = join(lane.worktreePath, "flow");
  await lane.copyIn(flow, inGuest);
  await lane.exec(`chmod 755 ${inGuest}`);
  return { lane, remove: () => undefined, flow: inGuest, dir: lane.worktreePath };
}

/** Runs `work` with {lane, flow: the program's path for the lane, dir: a directory of the lane}; `more`: options. */
export async function withLane(work, more = {}) {
  const { lane, remove, ...rest } = await (vm ? realLane(more) : localLane(more));
  try {
    return await work({ lane, ...rest });
  } finally {
    await lane.close();
    remove();
  }
}

/** The secret file that an agent of our own wants. */
export function secretFile(dir) {
  const file = join(dir, "proof");
  writeFileSync(file, `${"5a".repeat(32)}\n`);
  chmodSync(file, 0o600);
  return file;
}
