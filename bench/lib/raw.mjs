// SPDX-License-Identifier: Apache-2.0
// The bare thing beside the product, in the same VM and at the same time: a second virtio port, plugged in by QEMU's
// own monitor, or one more `limactl shell`. What stands in the guest at its other end is an ordinary program.
import { spawn } from "node:child_process";
import { createConnection } from "node:net";
import { homedir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { bareEnv } from "./children.mjs";

export const limaHome = join(process.env.AGENT_LANE_HOME ?? join(homedir(), ".agent-lane"), "lima");
const limactl = process.env.BENCH_LIMACTL;
export const shellArgs = (name) => ["--tty=false", "--log-level", "error", "shell", "--workdir", "/", name];

async function dial(path) {
  for (let i = 0; ; i++) {
    const socket = createConnection(path);
    const error = await new Promise((resolve) => {
      socket.once("connect", () => resolve(undefined));
      socket.once("error", resolve);
    });
    if (error === undefined) return socket;
    if (i === 100) throw error;
    await sleep(50);
  }
}

/** Runs monitor commands one after the other. */
async function monitor(path, commands) {
  const socket = await dial(path);
  let text = "";
  socket.setEncoding("utf8").on("data", (data) => (text += data));
  const answers = () => text.split("\n").filter((line) => line.includes('"return"') || line.includes('"error"'));
  for (const [i, [execute, args]] of [["qmp_capabilities"], ...commands].entries()) {
    socket.write(`${JSON.stringify({ execute, ...(args && { arguments: args }) })}\n`);
    while (answers().length <= i) await sleep(10);
    if (answers()[i].includes('"error"')) throw new Error(`${execute}: ${answers()[i]}`);
  }
  socket.destroy();
}

/** A virtio port of its own: {socket, device: its path in the guest}. */
async function plugPort(lane) {
  const dir = join(limaHome, lane.name), path = join(dir, "bench.sock");
  const addr = { type: "unix", data: { path } };
  await monitor(join(dir, "qmp.sock"), [
    ["chardev-add", { id: "bench", backend: { type: "socket", data: { addr, server: true, wait: false } } }],
    ["device_add", { driver: "virtserialport", bus: "agent-lane-bus.0", chardev: "bench", id: "bench", name: "bench" }],
  ]);
  const find = "until p=$(grep -lx bench /sys/class/virtio-ports/*/name); do sleep 0.1; done; basename $(dirname $p)";
  const { stdout } = await lane.exec(find);
  return { socket: await dial(path), device: `/dev/${stdout.trim()}` };
}

/**
 * {run(command)}: starts `command` with the raw transport as its stdin and stdout and gives {input, output, ended}. One
 * at a time.
 */
export async function rawTransport(lane, transport) {
  if (transport === "port") {
    const { socket, device } = await plugPort(lane);
    return {
      run: (command) => {
        const ended = lane.exec(`exec 3<>${device}; { ${command}; } <&3 >&3`, { sudo: true });
        ended.catch(() => undefined); // who waits for it is told; nobody else has to be
        return { input: socket, output: socket, ended };
      },
      end: () => socket.destroy(),
    };
  }
  const children = new Set();
  return {
    run: (command) => {
      const child = spawn(limactl, [...shellArgs(lane.name), "sh", "-c", command], {
        env: bareEnv(limaHome), stdio: ["pipe", "pipe", "ignore"],
      });
      children.add(child);
      const ended = new Promise((resolve) => child.once("close", () => resolve(children.delete(child))));
      return { input: child.stdin, output: child.stdout, ended };
    },
    end: () => children.forEach((child) => child.kill("SIGTERM")),
  };
}

/** `echo(n)`: milliseconds of one round trip of n bytes through `run`'s streams, where a `cat` is at the other end. */
export function echoOn({ input, output }) {
  let waiting = 0, done = () => undefined;
  const onData = (data) => { if ((waiting -= data.length) <= 0) done(); };
  output.on("data", onData);
  return (n) => new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error("no echo within 30 s")), 30_000);
    const started = process.hrtime.bigint();
    waiting = n;
    done = () => {
      clearTimeout(timer);
      resolve(Number(process.hrtime.bigint() - started) / 1e6);
    };
    input.write(Buffer.alloc(n, 120));
  });
}
