// SPDX-License-Identifier: Apache-2.0
// A process that copies one of two files of its lane to the same target, again and again: copier.mjs OPTIONS(JSON with
// `target`, `bytes`). Prints "hashes A B", then "copied" each time; or "error CODE MESSAGE".
import { lima } from "@agent-lane/provider-lima";

const { target, bytes, ...options } = JSON.parse(process.argv[2]);
try {
  const lane = await lima(options).create({ env: {} });
  const make = `for n in a b; do head -c ${bytes} /dev/urandom >$n; sha256sum $n | cut -d' ' -f1; done`;
  const { stdout } = await lane.exec(make, { cwd: "/home/agent" });
  console.log(`hashes ${stdout.trim().replace("\n", " ")}`);
  for (let i = 0; ; i++) {
    await lane.copyFileOut(`/home/agent/${"ab"[i % 2]}`, target);
    console.log("copied");
  }
} catch (error) {
  console.log(`error ${error.code} ${error.message}`);
  process.exit(3);
}
