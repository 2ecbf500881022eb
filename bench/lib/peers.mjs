// SPDX-License-Identifier: Apache-2.0
// The ways in which files are moved without us: limactl, tar and ssh for a VM; the same pipes through a relay, the hop
// that any agent costs at least, for a guest that is this machine.
import { createReadStream, createWriteStream } from "node:fs";
import { join } from "node:path";
import { bareEnv, runChild } from "./children.mjs";
import { limaHome, rawTransport, shellArgs } from "./raw.mjs";

const SECONDS = 900;
const limactl = process.env.BENCH_LIMACTL;
export const quote = (word) => `'${String(word).replaceAll("'", "'\\''")}'`;

/** A pipeline of which every part must end well. */
const pipeline = (text, env = process.env) =>
  runChild("bash", ["-c", `set -o pipefail; ${text}`], { env, seconds: SECONDS });

/**
 * Of a lane's VM; its login user has `dir` on the same disk as the lane's own files. `into` and `outOf` are pipelines
 * between a command of the host and one of the guest.
 */
async function vmPeers(lane) {
  const env = bareEnv(limaHome), dir = "/var/tmp/bench-peers";
  const shell = (command) => [limactl, ...shellArgs(lane.name), "sh", "-c", command].map(quote).join(" ");
  const ssh = (command) =>
    ["ssh", "-F", join(limaHome, lane.name, "ssh.config"), `lima-${lane.name}`, command].map(quote).join(" ");
  const copy = (...words) =>
    runChild(limactl, ["--tty=false", "--log-level", "error", "copy", ...words], { env, seconds: SECONDS });
  await lane.exec("until [ -e /run/lima-boot-done ]; do sleep 0.2; done"); // sshd comes after a port
  const clear = () => pipeline(shell(`rm -rf ${dir} && mkdir -p ${dir} && sync`), env);
  await clear();
  return {
    dir, clear, ssh,
    run: (text) => pipeline(text, env),
    into: (command, inGuest) => pipeline(`${command} | ${shell(inGuest)}`, env),
    outOf: (inGuest, command) => pipeline(`${shell(inGuest)} | ${command}`, env),
    copyIn: (from, to, ...flags) => copy(...flags, from, `${lane.name}:${to}`),
    copyOut: (from, to, ...flags) => copy(...flags, `${lane.name}:${from}`, to),
  };
}

/** Of this machine: what is in `dir` is in the guest. */
async function localPeers(flow, place) {
  const dir = join(place, "peers"), relay = `${quote(flow)} relay`, inside = (command) => `sh -c ${quote(command)}`;
  const clear = () => pipeline(`rm -rf ${quote(dir)} && mkdir -p ${quote(dir)} && sync`);
  await clear();
  return {
    dir, clear,
    run: (text) => pipeline(text),
    into: (command, inGuest) => pipeline(`${command} | ${relay} | ${inside(inGuest)}`),
    outOf: (inGuest, command) => pipeline(`${inside(inGuest)} | ${relay} | ${command}`),
  };
}

export const peersOf = ({ lane, vm, flow, place }) => (vm ? vmPeers(lane) : localPeers(flow, place));

/** A virtio port beside the lane's own, with an ordinary program at its other end. `bytes` bytes each way. */
export async function rawPort(lane, bytes) {
  const raw = await rawTransport(lane, "port");
  return {
    /** A file of the host into the guest. */
    fill: async (file, inGuest) => {
      const { input, output, ended } = raw.run(`head -c ${bytes} >${inGuest} && echo done`);
      const said = new Promise((resolve) => output.once("data", resolve));
      createReadStream(file, { highWaterMark: 65536 }).pipe(input, { end: false });
      await said;
      await ended;
    },
    /** A file of the guest to the host. */
    drain: async (inGuest, file) => {
      const { output, ended } = raw.run(`cat ${inGuest}`);
      const to = createWriteStream(file);
      let got = 0;
      await new Promise((resolve, reject) => {
        to.once("error", reject);
        const onData = (data) => {
          if (!to.write(data)) {
            output.pause();
            to.once("drain", () => output.resume());
          }
          if ((got += data.length) < bytes) return;
          output.off("data", onData);
          to.end(resolve);
        };
        output.on("data", onData);
        output.resume(); // the last one may have left it at rest
      });
      await ended;
    },
    end: () => raw.end(),
  };
}
