// SPDX-License-Identifier: Apache-2.0
// `bench bulk`: 128 MiB through a command's stdout and stdin on a lane of each transport, beside the same program on the
// bare transport, with a `cat` between the two and without, alternating. Last line: one JSON object.
//
// Whoever carries more than one stream over one transport has to stand between a command's pipe and the transport, as
// that `cat` does: a pipe and a process more, which is most of the price in an emulated guest. So the goal is set
// against it; what the bare transport does for a single program that has it for itself is shown beside it.
import { createLane } from "@agent-lane/provider-lima";
import { rawTransport } from "./lib/raw.mjs";
import { alternate, bytesOr, MiB, ratio, report, roundsOr } from "./lib/report.mjs";
import { drain, fill, now, rate } from "./lib/streams.mjs";
import { median } from "./lib/stats.mjs";

const bytes = bytesOr(128 * MiB);
const samples = {};

/** MiB/s until `bytes` bytes have come. */
async function rawDrain(raw, command) {
  const started = now();
  const { output, ended } = raw.run(command);
  let got = 0;
  await new Promise((resolve) => {
    const onData = (data) => {
      if ((got += data.length) < bytes) return;
      output.off("data", onData);
      resolve();
    };
    output.on("data", onData);
  });
  const ms = now() - started;
  await ended;
  return rate(bytes, ms);
}

/** MiB/s until the other end has said that all of them are there. */
async function rawFill(raw, command) {
  const chunk = Buffer.alloc(65536, "x");
  const started = now();
  const { input, output, ended } = raw.run(command);
  const said = new Promise((resolve) => output.once("data", resolve));
  for (let left = bytes; left > 0; left -= chunk.length)
    if (!input.write(left < chunk.length ? chunk.subarray(0, left) : chunk))
      await new Promise((resolve) => input.once("drain", resolve));
  await said;
  const ms = now() - started;
  await ended;
  return rate(bytes, ms);
}

for (const transport of ["port", "shell"]) {
  const lane = await createLane({
    cpus: 2, memoryGiB: 2, network: "none", limactlPath: process.env.BENCH_LIMACTL, transport,
    accelerator: process.env.BENCH_ACCELERATOR ?? "tcg",
  });
  try {
    const raw = await rawTransport(lane, transport);
    // The same programs at both ends: dd writes and reads 64 KiB at a time.
    const out = `dd if=/dev/zero bs=65536 count=${bytes / 65536} 2>/dev/null`;
    const into = `dd of=/dev/null bs=65536 iflag=fullblock count=${bytes / 65536} 2>/dev/null`;
    // A port has no end, for which `cat` would wait: on the way in it is a dd that counts.
    const hop = `dd bs=65536 iflag=fullblock count=${bytes / 65536} 2>/dev/null`;
    // One sample of the port takes less than a second, of which a busy moment of the machine is a tenth.
    const got = await alternate(roundsOr(transport === "port" ? 15 : 5), {
      [`${transport}_out`]: () => drain(() => lane.spawn(out), bytes),
      [`${transport}_out_cat`]: () => rawDrain(raw, `${out} | cat`),
      [`${transport}_out_raw`]: () => rawDrain(raw, out),
      [`${transport}_in`]: () => fill(() => lane.spawn(`${into} && echo ${bytes}`), bytes),
      [`${transport}_in_cat`]: () => rawFill(raw, `${hop} | ${into} && echo ${bytes}`),
      [`${transport}_in_raw`]: () => rawFill(raw, `${into} && echo ${bytes}`),
    });
    Object.assign(samples, got);
    raw.end();
  } finally {
    await lane.close();
  }
}

const rows = {}, goals = [];
for (const transport of ["port", "shell"])
  for (const [way, text] of Object.entries({ out: "stdout", in: "stdin" })) {
    rows[`${transport}_${way}`] = `${transport}: a command's ${text}`;
    rows[`${transport}_${way}_cat`] = `${transport}: the same, bare, behind cat`;
    rows[`${transport}_${way}_raw`] = `${transport}: the same, bare, alone`;
    const to = (other) => ratio(samples[`${transport}_${way}`], samples[`${transport}_${way}_${other}`]);
    goals.push({ text: `${transport}: ${text} / bare behind cat`, value: to("cat"), bound: 0.9, least: true });
    goals.push({ text: `${transport}: ${text} / bare alone`, value: to("raw") });
  }
for (const way of ["out", "in"]) {
  const value = median(samples[`port_${way}`]) / median(samples[`shell_${way}`]);
  goals.push({ text: `port / shell, ${way}`, value, bound: 3, least: true });
}
report({ bench: "bulk", title: `${bytes / MiB} MiB through one command`, unit: "MiB/s", rows, samples, goals });
