// SPDX-License-Identifier: Apache-2.0
// What an end that is a little too eager would touch: directories and processes whose names are nearly a lane's.
import { spawn, type ChildProcess } from "node:child_process";
import { lstatSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { processOf, runs } from "./host.js";

export interface Decoys {
  /** Those that are not as they were. */
  touched(): string[];
  /** How many there are. */
  readonly count: number;
  remove(): void;
}

function manifest(path: string): string {
  const st = lstatSync(path, { throwIfNoEntry: false });
  if (st === undefined) return "missing";
  const facts = `${st.mode} ${st.ino} ${st.mtimeMs}`;
  if (st.isDirectory()) return [facts, ...readdirSync(path).sort().map((name) => `${name}: ${manifest(join(path, name))}`)].join("\n");
  return st.isFile() ? `${facts} ${readFileSync(path, "latin1")}` : facts;
}

/** Another name of the same form: as valid as the lane's own. */
const neighbour = (name: string): string => name.slice(0, -1) + (name.endsWith("a") ? "b" : "a");

/** A process that does nothing, under a command line that is nearly one of the lane's. */
function pretend(argv0: string, args: readonly string[]): ChildProcess {
  const child = spawn("/bin/sh", ["-c", "read -r x", argv0, ...args], { argv0, stdio: ["pipe", "ignore", "ignore"] });
  child.on("error", () => undefined).unref();
  return child;
}

function recordOf(dir: string): string {
  try {
    return readFileSync(join(dir, "agent-lane.json"), "utf8");
  } catch {
    return "{}"; // a lane that is gone, or has none yet
  }
}

/** Plants them beside the lane `name`, in the directory of lanes that the product uses. */
export function plantDecoys(home: string, name: string): Decoys {
  const lima = join(home, "lima"), other = neighbour(name), dir = join(lima, other);
  // The lane's own record under the other name: as valid as its own, but for the directory that it was made for.
  const record = recordOf(join(lima, name)).replaceAll(name, other);
  const planted: [string, Record<string, string>][] = [
    [dir, { "lima.yaml": "cpus: 1\n", disk: "disk", "agent-lane.json": record }],
    [join(lima, `${name}x`), { "lima.yaml": "cpus: 1\n", disk: "disk" }],
    [join(lima, `x${name}`), { disk: "disk" }],
  ];
  const children: ChildProcess[] = [];
  const remove = (): void => {
    for (const child of children) child.kill("SIGKILL");
    for (const [path] of planted) rmSync(path, { recursive: true, force: true });
  };
  try {
    for (const [path, files] of planted) {
      mkdirSync(path, { mode: 0o700 });
      for (const [file, text] of Object.entries(files)) writeFileSync(join(path, file), text, { mode: 0o600 });
    }
    children.push(
      pretend("/usr/bin/qemu-system-x86_64", ["-name", `lima-${other}`, "-pidfile", `${dir}/qemu.pid`]),
      pretend("limactl", ["hostagent", "--pidfile", `${dir}/ha.pid`, other]),
      pretend(`ssh: ${dir}/ssh.sock [mux]`, []),
    );
    for (const [i, file] of ["qemu.pid", "ha.pid"].entries()) writeFileSync(join(dir, file), `${children[i]?.pid ?? 0}\n`);
  } catch (error) {
    remove();
    throw error;
  }
  const processes = children.map((child) => processOf(child.pid ?? 0));
  const before = planted.map(([path]) => manifest(path));
  return {
    count: planted.length + processes.length,
    touched: () => [
      ...planted.filter(([path], i) => manifest(path) !== before[i]).map(([path]) => path),
      ...processes.filter((p) => !runs(p)).map((p) => `the process ${p.pid}`),
    ],
    remove,
  };
}
