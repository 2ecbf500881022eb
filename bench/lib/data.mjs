// SPDX-License-Identifier: Apache-2.0
// What the transfers of the benchmarks move: the same bytes on every machine and in every run, that no link can press
// together and no file system can leave out.
import { createCipheriv } from "node:crypto";
import { closeSync, mkdirSync, openSync, rmSync, writeFileSync, writeSync } from "node:fs";
import { join } from "node:path";

const MiB = 2 ** 20;
const PER_DIRECTORY = 100, DIRECTORIES_PER_DIRECTORY = 20;

/** Ever more bytes of one stream, for one place. */
function source() {
  const cipher = createCipheriv("aes-128-ctr", Buffer.alloc(16, "agent lane"), Buffer.alloc(16));
  return (n) => cipher.update(Buffer.alloc(n));
}

export function makeFile(path, bytes) {
  const next = source(), fd = openSync(path, "w");
  for (let left = bytes; left > 0; left -= MiB) writeSync(fd, next(Math.min(left, MiB)));
  closeSync(fd);
  return path;
}

/** `count` files of `least` to `most` bytes, a hundred per directory, two levels deep. Gives {dir, count, bytes}. */
export function makeTree(dir, count, { least = 1024, most = 8192 } = {}) {
  const next = source();
  let bytes = 0, at = dir;
  for (let i = 0; i < count; i++) {
    if (i % PER_DIRECTORY === 0) {
      const n = i / PER_DIRECTORY;
      at = join(dir, `part-${Math.floor(n / DIRECTORIES_PER_DIRECTORY)}`, `module-${n}`);
      mkdirSync(at, { recursive: true });
    }
    const size = least + (next(4).readUInt32LE() % (most - least + 1));
    writeFileSync(join(at, `file-${i}.js`), next(size));
    bytes += size;
  }
  return { dir, count, bytes };
}

export const remove = (path) => rmSync(path, { recursive: true, force: true });
