// SPDX-License-Identifier: Apache-2.0
// Bytes through Node's streams, the same for our process and for child_process: how long until all of them are there.
import { spawn } from "node:child_process";

/** Milliseconds, on the clock that does not jump. */
export const now = () => Number(process.hrtime.bigint()) / 1e6;
export const rate = (bytes, ms) => bytes / 2 ** 20 / (ms / 1000);

/** A program of this machine; with `through` its output or input goes through that relay. */
export function child(program, args, { through, input = false } = {}) {
  const stdio = [input ? "pipe" : "ignore", "pipe", "inherit"];
  if (through === undefined) return spawn(program, args, { stdio });
  const words = [program, ...args].map((word) => `'${word}'`).join(" ");
  return spawn("/bin/sh", ["-c", input ? `'${through}' relay | ${words}` : `${words} | '${through}' relay`], { stdio });
}

const closed = (process) => new Promise((resolve, reject) => {
  process.once("error", reject);
  process.once("close", (code) => (code === 0 ? resolve() : reject(new Error(`exit status ${code}`))));
});

/** When our process or a child has ended well. */
export const ended = (process) => process.exited === undefined
  ? closed(process)
  : process.exited.then(({ exitCode }) => {
    if (exitCode !== 0) throw new Error(`exit status ${exitCode}`);
  });

/** MiB/s from the start of `make` to the last of `bytes` bytes of its stdout. */
export async function drain(make, bytes) {
  const started = now();
  const process = make();
  const end = ended(process);
  let got = 0;
  process.stdout.on("data", (data) => (got += data.length));
  const over = new Promise((resolve) => process.stdout.once("end", resolve));
  await Promise.all([end, over]);
  const ms = now() - started;
  if (got !== bytes) throw new Error(`${got} bytes came instead of ${bytes}`);
  return rate(bytes, ms);
}

/** MiB/s of `bytes` bytes into the stdin of `make`, which counts them on its stdout. */
export async function fill(make, bytes) {
  const chunk = Buffer.alloc(65536, "x");
  const started = now();
  const process = make();
  const end = ended(process);
  let said = "";
  process.stdout.on("data", (data) => (said += data));
  for (let left = bytes; left > 0; left -= chunk.length)
    if (!process.stdin.write(left < chunk.length ? chunk.subarray(0, left) : chunk))
      await new Promise((resolve) => process.stdin.once("drain", resolve));
  process.stdin.end();
  await end;
  const ms = now() - started;
  if (Number(said) !== bytes) throw new Error(`the sink has counted ${said.trim()} bytes instead of ${bytes}`);
  return rate(bytes, ms);
}
