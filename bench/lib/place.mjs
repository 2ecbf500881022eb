// SPDX-License-Identifier: Apache-2.0
// Where the benchmarks keep their files: in memory where that is possible, since a disk has its own idea of when it is
// slow. BENCH_DIR names another place.
import { existsSync, mkdtempSync, statfsSync } from "node:fs";
import { join } from "node:path";

const MEMORY = "/dev/shm", ROOM = 12 * 2 ** 30;

function root() {
  if (process.env.BENCH_DIR) return process.env.BENCH_DIR;
  if (!existsSync(MEMORY)) return "/tmp";
  const { bavail, bsize } = statfsSync(MEMORY);
  return bavail * bsize >= ROOM ? MEMORY : "/tmp";
}

export const placeRoot = root();
export const inMemory = placeRoot === MEMORY;
export const newPlace = (name) => mkdtempSync(join(placeRoot, `${name}-`));
