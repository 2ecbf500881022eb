// SPDX-License-Identifier: Apache-2.0
// Canaries on the host: listeners that note who came, sockets that nobody may reach, files that nobody may touch.
import { randomBytes } from "node:crypto";
import { createSocket, type Socket as Datagrams } from "node:dgram";
import { readFileSync, statSync, writeFileSync } from "node:fs";
import { connect, createServer, isIPv6, type ListenOptions, type Server } from "node:net";
import { networkInterfaces } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";

/** 128 random bits that occur nowhere else. */
export const token = (): string => randomBytes(16).toString("hex");

/** Somebody reached a listener; `said` is the beginning of what he sent. */
export interface Hit {
  readonly said: string;
}

// What a visitor says is only looked through for tokens of ours.
const SAID_MAX = 512;
const LISTEN_MS = 5000;

/** A listener that answers nothing and notes every visit. */
export interface Canary {
  readonly what: string;
  readonly port: number;
  readonly hits: readonly Hit[];
  /** Reaches it from the host, as nobody in the guest may. False: it is no canary, since it would never sing. */
  sings(): Promise<boolean>;
  close(): void;
}

function bounded<T>(work: Promise<T>, otherwise: T): Promise<T> {
  return Promise.race([work, sleep(LISTEN_MS, otherwise, { ref: false })]);
}

function listening(server: Server, where: ListenOptions): Promise<boolean> {
  const done = new Promise<boolean>((resolve) => {
    server.once("error", () => resolve(false));
    server.listen(where, () => resolve(true));
  });
  return bounded(done, false);
}

function knock(to: { host: string; port: number } | { path: string }, text: string): Promise<void> {
  const done = new Promise<void>((resolve) => {
    const s = connect(to as { path: string });
    s.setTimeout(1000, () => s.destroy());
    s.on("error", () => undefined).on("close", () => resolve());
    s.end(text);
  });
  return bounded(done, undefined);
}

/** Whether a visit of our own, which is taken off the list again, is noted within a second. */
async function heard(hits: Hit[], visit: (word: string) => Promise<void>): Promise<boolean> {
  const word = token();
  await visit(word);
  for (let i = 0; i < 50; i++) {
    const at = hits.findIndex((hit) => hit.said.includes(word));
    if (at >= 0) {
      hits.splice(at, 1);
      return true;
    }
    await sleep(20);
  }
  return false;
}

async function streamCanary(what: string, where: { host: string; port: number } | { path: string }, from: string): Promise<Canary | undefined> {
  const hits: Hit[] = [];
  const server = createServer((socket) => {
    let hit: Hit = { said: "" };
    hits.push(hit);
    socket.setTimeout(10_000, () => socket.destroy());
    socket.on("error", () => undefined).on("data", (data) => {
      const at = hits.indexOf(hit);
      hit = { said: (hit.said + data.toString("latin1")).slice(0, SAID_MAX) };
      if (at >= 0) hits[at] = hit;
    });
  });
  if (!(await listening(server, where))) return undefined;
  server.on("error", () => undefined).unref();
  const address = server.address();
  const port = typeof address === "object" && address !== null ? address.port : 0;
  const to = "path" in where ? where : { host: from, port };
  return { what, port, hits, sings: () => heard(hits, (word) => knock(to, word)), close: () => server.close() };
}

async function datagramCanary(what: string, host: string, port: number, from: string): Promise<Canary | undefined> {
  const hits: Hit[] = [];
  const type = isIPv6(host) ? ("udp6" as const) : ("udp4" as const);
  const socket: Datagrams = createSocket({ type, ipv6Only: type === "udp6" });
  socket.on("message", (data) => hits.push({ said: data.subarray(0, SAID_MAX).toString("latin1") }));
  const bound = new Promise<boolean>((resolve) => {
    socket.once("error", () => resolve(false));
    socket.bind({ address: host, port }, () => resolve(true));
  });
  if (!(await bounded(bound, false))) return undefined;
  socket.on("error", () => undefined).unref();
  const visit = (word: string): Promise<void> =>
    new Promise((resolve) => {
      const s = createSocket(type);
      s.on("error", () => undefined).send(word, socket.address().port, from, () => s.close(() => resolve()));
    });
  return { what, port: socket.address().port, hits, sings: () => heard(hits, visit), close: () => socket.close() };
}

/** A TCP and a UDP listener at one port of one address; undefined where the machine does not have the address. */
export interface Post {
  readonly tcp: Canary;
  readonly udp: Canary;
  readonly port: number;
  /** Under which address the host itself reaches it. */
  readonly address: string;
}

/** Listeners at `host` (an address, or all of them), reached from here as `address`. Each proves that it hears. */
export async function plantPost(what: string, host: string, address = host): Promise<Post | undefined> {
  for (let attempt = 0; attempt < 5; attempt++) {
    const tcp = await streamCanary(`${what} (TCP)`, { host, port: 0 }, address);
    if (tcp === undefined) return undefined;
    const udp = await datagramCanary(`${what} (UDP)`, host, tcp.port, address);
    if (udp !== undefined) {
      if ((await tcp.sings()) && (await udp.sings())) return { tcp, udp, port: tcp.port, address };
      udp.close();
    }
    tcp.close(); // somebody else has that port of UDP: another one
  }
  return undefined;
}

/** A unix socket that stands for Docker's or an ssh agent's. */
export async function plantSocket(what: string, path: string): Promise<Canary | undefined> {
  const canary = await streamCanary(what, { path }, "");
  return canary !== undefined && (await canary.sings()) ? canary : undefined;
}

/** This machine's address on a network of its own, where it has one. */
export function lanAddress(family: "IPv4" | "IPv6"): string | undefined {
  const all = Object.values(networkInterfaces()).flatMap((list) => list ?? []);
  return all.find((a) => a.family === family && !a.internal && !/^fe80:/i.test(a.address))?.address;
}

/** A file that must stay exactly as it is: contents, times, inode. */
export class CanaryFile {
  readonly #before: string;

  constructor(
    readonly path: string,
    readonly word: string,
  ) {
    writeFileSync(path, `${word}\n`, { mode: 0o600, flag: "wx" });
    this.#before = this.#look();
  }

  get untouched(): boolean {
    return this.#look() === this.#before;
  }

  #look(): string {
    try {
      const st = statSync(this.path, { bigint: true });
      return `${st.ino} ${st.mode} ${st.nlink} ${st.size} ${st.mtimeNs} ${readFileSync(this.path, "utf8")}`;
    } catch (error) {
      return String(error);
    }
  }
}
