// SPDX-License-Identifier: Apache-2.0
// A place outside the checkout in which an unprivileged user runs the built package on a scripted limactl (limactl refuses root).
import { execFileSync, spawn, spawnSync, type ChildProcess } from "node:child_process";
import {
  chmodSync,
  chownSync,
  copyFileSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { pathToFileURL } from "node:url";
import { makeImage, makePrograms, write } from "./image.mjs";

const root = join(import.meta.dirname, "..", "..", "..");
const NOBODY = 65534;

/** The packages that the command needs, with those that they need themselves. */
export function commandPackages(): string[] {
  const needs = (dir: string): string[] => {
    const { dependencies = {} } = JSON.parse(readFileSync(join(dir, "package.json"), "utf8")) as { dependencies?: object };
    return Object.keys(dependencies);
  };
  const names = new Set(needs(root));
  for (const name of names) for (const other of needs(join(root, "node_modules", name))) names.add(other);
  return [...names];
}

export interface Outcome {
  readonly status: number | null;
  readonly signal: NodeJS.Signals | null;
  /** What the script reported: report("name", value). */
  readonly said: Record<string, never>;
  readonly err: string;
}

/** scripts/sanitize: the sanitizer's library and its options go to the processes that the tests are about. */
function sanitizer(): NodeJS.ProcessEnv {
  const library = process.env["AL_PRELOAD"];
  if (library === undefined) return {};
  const options = Object.entries(process.env).filter(([name]) => name.endsWith("SAN_OPTIONS"));
  return { LD_PRELOAD: library, ...Object.fromEntries(options) };
}

/** What the threads of a process wait for, and what runs besides: for whoever has to find out why it did not end. */
function whereabouts(pid: number | undefined): string {
  const options = { encoding: "utf8", timeout: 10_000 } as const;
  const threads = ["-L", "-p", String(pid), "-o", "tid,stat,time,wchan:32,comm"];
  const all = ["ax", "--forest", "-o", "pid,ppid,stat,etime,args"];
  try {
    return [threads, all].map((args) => execFileSync("ps", args, options)).join("\n");
  } catch (error) {
    return String(error); // the process must be killed all the same
  }
}

/** Whether a stage may have a file system of its own, whose space nothing else on the machine changes. */
export const canMount = process.platform === "linux" && process.getuid?.() === 0 &&
  spawnSync("unshare", ["-m", "mount", "-t", "tmpfs", "try", "/mnt"], { timeout: 10_000 }).status === 0;

export class Stage {
  readonly dir = mkdtempSync(join(tmpdir(), "al-stage-"));
  readonly home = join(this.dir, "h");
  readonly work = join(this.dir, "work");
  readonly limactl = join(this.dir, "bin", "limactl");
  #mounted = false;
  /** Another runtime than this Node, with its arguments; the script is then a file. */
  runtime: readonly string[] | undefined;
  readonly #uid = process.getuid?.() === 0 ? NOBODY : undefined;

  /** `disk`: the home is a file system of that size ("500m") in memory; needs `canMount`. */
  constructor(disk?: string) {
    const { dir } = this;
    chmodSync(dir, 0o755);
    for (const part of ["pkg", "pkg/node_modules/@ai-hero/sandcastle", "bin", "work"])
      mkdirSync(join(dir, part), { recursive: true, mode: 0o755 });
    for (const part of ["dist", "prebuilds", "package.json"])
      cpSync(join(root, part), join(dir, "pkg", part), { recursive: true });
    const { AL_ADDON: other } = process.env;
    const addon = join("prebuilds", `${process.platform}-${process.arch}`, "agent_lane.node");
    if (other !== undefined) copyFileSync(other, join(dir, "pkg", addon));
    // The factory is documented to be pure; the real one is used in the tests on VMs.
    const sandcastle = join(dir, "pkg", "node_modules", "@ai-hero", "sandcastle");
    write(join(sandcastle, "package.json"), '{"name":"@ai-hero/sandcastle","type":"module","exports":"./index.js"}');
    write(
      join(sandcastle, "index.js"),
      'export const createIsolatedSandboxProvider = (c) => ({ tag: "isolated", name: c.name, env: c.env ?? {}, create: c.create });',
    );
    for (const file of ["limactl.mjs", "guest.mjs", "load.mjs", "minisign.mjs"])
      copyFileSync(join(import.meta.dirname, file), join(dir, "bin", file));
    makePrograms(join(dir, "bin"), join(dir, "bin", "limactl.mjs"));
    makeImage(join(dir, "image"));
    makeImage(join(dir, "image-port"), ["shell-transport", "port-transport"]);
    if (this.#uid !== undefined) chownSync(this.work, this.#uid, this.#uid);
    mkdirSync(this.home, { mode: 0o700 });
    if (disk !== undefined) {
      execFileSync("mount", ["-t", "tmpfs", "-o", `size=${disk},mode=700`, "lanes", this.home], { timeout: 10_000 });
      this.#mounted = true;
    }
    if (this.#uid !== undefined) chownSync(this.home, this.#uid, this.#uid);
  }

  /** The command is there too. */
  addCommand(): void {
    for (const name of commandPackages())
      cpSync(join(root, "node_modules", name), join(this.dir, "pkg", "node_modules", name), { recursive: true });
  }

  /** Makes a directory beside the others, which the scripts may write to. */
  writable(name: string): void {
    mkdirSync(join(this.dir, name), { mode: 0o755 });
    if (this.#uid !== undefined) chownSync(join(this.dir, name), this.#uid, this.#uid);
  }

  /** Chooses what the scripted limactl does wrong. */
  scenario(scenario: object): void {
    mkdirSync(join(this.home, "run"), { recursive: true, mode: 0o700 });
    if (this.#uid !== undefined) chownSync(join(this.home, "run"), this.#uid, this.#uid);
    write(join(this.home, "run", "scenario.json"), JSON.stringify(scenario));
  }

  start(
    script: string,
    env: NodeJS.ProcessEnv = {},
    timeout = 100_000,
  ): { child: ChildProcess; ended: Promise<Outcome> } {
    const url = pathToFileURL(join(this.dir, "pkg", "dist", "index.js")).href;
    const options = {
      limactlPath: this.limactl,
      home: this.home,
      image: join(this.dir, "image"),
      accelerator: "tcg",
      transport: "shell",
      worktreePath: this.work,
      memoryGiB: 1,
      startTimeoutSeconds: 30,
      maxConcurrentVms: 8,
    };
    const prelude = `
      import { lima, LaneError } from ${JSON.stringify(url)};
      const PORT = { image: ${JSON.stringify(join(this.dir, "image-port"))}, transport: "port" };
      const PACKAGE = ${JSON.stringify(url)}, OPTIONS = ${JSON.stringify(options)}, WT = OPTIONS.worktreePath;
      const LOAD = ${JSON.stringify(pathToFileURL(join(this.dir, "bin", "load.mjs")).href)};
      const report = (name, value) => console.log(JSON.stringify([name, value ?? null]));
      const make = (o = {}) => lima({ ...OPTIONS, ...o });
      const create = (o, env = {}) => make(o).create({ env });
      const failure = async (work) => { try { await work(); } catch (e) { return { name: e.name, code: e.code, message: e.message, cure: e.cure, step: e.step, lane: e.lane, cause: e.cause?.message }; } return "it succeeded"; };
    `;
    const [program = process.execPath, ...words] = this.runtime ?? [process.execPath];
    const file = join(this.dir, "pkg", "script.mjs");
    if (this.runtime !== undefined) write(file, prelude + script);
    const child = spawn(program, this.runtime === undefined ? ["--input-type=module", "-e", prelude + script] : [...words, file], {
      cwd: this.work,
      stdio: ["ignore", "pipe", "pipe"],
      env: {
        PATH: `${join(this.dir, "bin")}:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin`,
        HOME: this.home,
        ...sanitizer(),
        ...env,
      },
      ...(this.#uid === undefined ? {} : { uid: this.#uid, gid: this.#uid }),
    });
    let out = "";
    let err = "";
    child.stdout.on("data", (data: Buffer) => (out += data.toString()));
    child.stderr.on("data", (data: Buffer) => (err += data.toString()));
    const late = setTimeout(() => {
      err += `after ${timeout} ms it has not ended, having said ${out}\n${whereabouts(child.pid)}`;
      child.kill("SIGKILL");
    }, timeout);
    const ended = new Promise<Outcome>((resolve, reject) => {
      child.on("error", reject);
      child.on("close", async (status, signal) => {
        clearTimeout(late);
        await this.#kept(child.pid);
        const said = Object.fromEntries(
          out
            .split("\n")
            .filter((l) => l.startsWith("[\""))
            .map((l) => JSON.parse(l) as [string, never]),
        );
        resolve({ status, signal, said, err });
      });
    });
    return { child, ended };
  }

  /** An owner's end waits for no lane: its keeper ends them. What is left after that is left. */
  async #kept(owner: number | undefined): Promise<void> {
    const keepers = () => this.processes().filter((line) => line.includes("--agent-lane-keeper") && line.includes(` ${owner}:`));
    for (const end = Date.now() + 15_000; keepers().length > 0 && Date.now() < end; ) await sleep(50);
  }

  run(script: string, env: NodeJS.ProcessEnv = {}, timeout?: number): Promise<Outcome> {
    return this.start(script, env, timeout).ended;
  }

  /** Lane directories that are left in LIMA_HOME. */
  left(): string[] {
    const lima = join(this.home, "lima");
    return existsSync(lima) ? readdirSync(lima).filter((name) => name !== "_config") : [];
  }

  /** Rows of the registry, by SQL, each a text; none while there is no registry. */
  sql(query: string): string[] {
    const file = join(this.home, "registry.db");
    if (!existsSync(file)) return [];
    const args = ["-readonly", "-cmd", ".timeout 5000", file, query];
    const user = this.#uid === undefined ? {} : { uid: this.#uid, gid: this.#uid };
    return execFileSync("sqlite3", args, { encoding: "utf8", timeout: 20_000, ...user }).split("\n").filter(Boolean);
  }

  /** Command lines of this place's processes, those of its own scripts included. */
  processes(): string[] {
    return readdirSync("/proc")
      .filter((pid) => /^\d+$/.test(pid))
      .map((pid) => {
        try {
          return readFileSync(join("/proc", pid, "cmdline"), "utf8").replaceAll("\0", " ");
        } catch {
          return ""; // it has ended meanwhile
        }
      })
      .filter((line) => line.includes(this.dir));
  }

  /** Commands that limactl was asked for. */
  calls(): string[] {
    const file = join(this.home, "run", "calls");
    return existsSync(file) ? readFileSync(file, "utf8").split("\n").filter(Boolean) : [];
  }

  remove(): void {
    if (this.#mounted) execFileSync("umount", ["-l", this.home], { timeout: 10_000 });
    rmSync(this.dir, { recursive: true, force: true });
  }
}
