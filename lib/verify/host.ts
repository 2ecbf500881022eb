// SPDX-License-Identifier: Apache-2.0
// What the host sees of a lane's processes by itself, without asking the product: command lines, open files, sockets.
import { readdirSync, readFileSync, readlinkSync, statSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

/** Whether this system shows what a process of ours has open; macOS does not without help. */
export const canLook = process.platform === "linux";

const read = (path: string): string => {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return ""; // the process has ended
  }
};

/** The words of a process's command line; empty when it is gone. */
export const argvOf = (pid: number): string[] => read(`/proc/${pid}/cmdline`).split("\0").slice(0, -1);

/** When it was started, in ticks since boot: with the number it is one process, and no later one. */
export function startOf(pid: number): string | undefined {
  // The name may contain anything, so the fields are counted from its closing bracket.
  return read(`/proc/${pid}/stat`).split(") ").at(-1)?.split(" ")[19];
}

export interface Process {
  readonly pid: number;
  readonly start: string | undefined;
}

export const processOf = (pid: number): Process => ({ pid, start: startOf(pid) });

/** Whether exactly that process still runs. Where its start cannot be read, whether one with its number does. */
export function runs({ pid, start }: Process): boolean {
  if (canLook) return start !== undefined && startOf(pid) === start && !/\) Z /.test(read(`/proc/${pid}/stat`));
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

/** Processes of this machine whose command line contains `text`, but for this one. */
export function processesNaming(text: string): Process[] {
  if (!canLook) return [];
  const pids = readdirSync("/proc").filter((name) => /^\d+$/.test(name)).map(Number);
  return pids.filter((pid) => pid !== process.pid && argvOf(pid).join(" ").includes(text)).map(processOf).filter(runs);
}

export interface OpenFile {
  readonly path: string;
  readonly kind: "file" | "directory" | "device" | "other";
  readonly writable: boolean;
}

/** What a process has open that has a path. Undefined: it cannot be seen. */
export function openFiles(pid: number): OpenFile[] | undefined {
  const dir = `/proc/${pid}/fd`;
  try {
    return readdirSync(dir).flatMap((fd) => {
      try {
        const path = readlinkSync(`${dir}/${fd}`);
        if (!path.startsWith("/")) return [];
        const st = statSync(`${dir}/${fd}`);
        const kind = st.isFile() ? "file" : st.isDirectory() ? "directory" : st.isCharacterDevice() || st.isBlockDevice() ? "device" : "other";
        const flags = parseInt(/^flags:\s*(\d+)/m.exec(read(`/proc/${pid}/fdinfo/${fd}`))?.[1] ?? "3", 8);
        return [{ path, kind, writable: (flags & 3) !== 0 } as const];
      } catch {
        return []; // closed meanwhile
      }
    });
  } catch {
    return undefined;
  }
}

export interface InternetSocket {
  readonly protocol: string;
  readonly inode: string;
  readonly localAddress: string;
  readonly localPort: number;
  readonly listens: boolean;
}

const LISTEN = "0A";

/** `0100007F` and the like as an address; v6 stays in hexadecimal but for the two that matter. */
function addressOf(hex: string): string {
  if (hex.length === 8) return [6, 4, 2, 0].map((i) => parseInt(hex.slice(i, i + 2), 16)).join(".");
  if (/^0{32}$/.test(hex)) return "::";
  return hex === "00000000000000000000000001000000" ? "::1" : hex;
}

/** The internet sockets of a process. Undefined: they cannot be seen. */
export function internetSockets(pid: number): InternetSocket[] | undefined {
  const own = new Set<string>();
  try {
    for (const fd of readdirSync(`/proc/${pid}/fd`)) {
      try {
        const inode = /^socket:\[(\d+)\]$/.exec(readlinkSync(`/proc/${pid}/fd/${fd}`))?.[1];
        if (inode !== undefined) own.add(inode);
      } catch {
        // closed meanwhile
      }
    }
  } catch {
    return undefined;
  }
  return ["tcp", "tcp6", "udp", "udp6", "icmp", "icmp6", "raw", "raw6"].flatMap((protocol) =>
    read(`/proc/${pid}/net/${protocol}`)
      .split("\n")
      .slice(1)
      .flatMap((line) => {
        const words = line.trim().split(/\s+/);
        const [, local = "", , state] = words, inode = words[9];
        if (inode === undefined || !own.has(inode)) return [];
        const [hex = "", port = ""] = local.split(":");
        const listens = protocol.startsWith("tcp") && state === LISTEN;
        return [{ protocol, inode, localAddress: addressOf(hex), localPort: parseInt(port, 16), listens }];
      }),
  );
}

// A socket that QEMU opens for its guest lives for milliseconds when nobody answers.
const LOOK_MS = 4;

/** Notes which new internet sockets a process opens, but for those of the one port that is forwarded to it. */
export class SocketWatch {
  readonly #pid: number;
  readonly #forwarded: number;
  readonly #known: ReadonlySet<string>;
  readonly #seen = new Map<string, string>();
  readonly #ended: Promise<void>;
  #over = false;
  #blind: boolean;

  constructor(pid: number, forwardedPort: number) {
    this.#pid = pid;
    this.#forwarded = forwardedPort;
    const now = internetSockets(pid);
    this.#blind = now === undefined;
    this.#known = new Set((now ?? []).map((s) => s.inode));
    this.#ended = this.#look();
  }

  async #look(): Promise<void> {
    while (!this.#over) {
      const now = internetSockets(this.#pid);
      if (now === undefined) this.#blind = true;
      for (const s of now ?? [])
        if (!this.#known.has(s.inode) && !(s.localPort === this.#forwarded && s.localAddress === "127.0.0.1"))
          this.#seen.set(s.inode, s.protocol);
      await sleep(LOOK_MS);
    }
  }

  /** The protocols of the sockets that came, one for each. Undefined: nobody could look. */
  async end(): Promise<string[] | undefined> {
    this.#over = true;
    await this.#ended;
    return this.#blind ? undefined : [...this.#seen.values()];
  }
}
