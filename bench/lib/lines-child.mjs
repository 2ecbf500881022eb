// SPDX-License-Identifier: Apache-2.0
// One of the ways that `bench stdout-lines` compares with, in a process of its own, so that its garbage is not ours.
// Prints MiB/s.
import { createInterface } from "node:readline";
import { child, drain, ended, now, rate } from "./streams.mjs";

const [way, flow, size] = process.argv.slice(2);
const bytes = Number(size), through = way === "relay" ? flow : undefined;
const make = () => child(flow, ["lines", size], { through });

async function byLines() {
  const started = now();
  const process = make();
  const end = ended(process);
  let lines = 0, text = 0;
  createInterface({ input: process.stdout }).on("line", (line) => { lines++; text += line.length; });
  await end;
  const ms = now() - started;
  if (text + lines !== bytes) throw new Error(`${lines} lines with ${text} bytes came of ${bytes}`);
  return rate(bytes, ms);
}

console.log(await (way === "raw" ? drain(make, bytes) : byLines()));
