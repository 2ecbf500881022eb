// SPDX-License-Identifier: Apache-2.0
// What a guest with `network: "open"` reaches on this machine and around it, read off the machine.
import { readFileSync } from "node:fs";
import { networkInterfaces } from "node:os";

/** What `network: "open"` opens, besides the internet. */
export interface Reach {
  /** The networks that this machine is in, such as "192.168.1.0/24". */
  readonly networks: readonly string[];
  /**
   * TCP ports on which services of this machine listen, also those that listen on its loopback only. Missing where the
   * system does not show them to this user (macOS).
   */
  readonly hostPorts?: readonly number[];
  /** Of a Docker that listens on TCP, as "tcp://127.0.0.1:2375": whoever reaches one may do anything on its machine. */
  readonly docker: readonly string[];
}

const LISTEN = "0A";
const DOCKER_PORTS: readonly number[] = [2375, 2376];
const PORTS_SHOWN = 8;

/** The ports of a table of the kernel's, /proc/net/tcp: its fourth column is the state, its second address and port. */
export function listening(table: string): number[] {
  return table.split("\n").slice(1).flatMap((line) => {
    const [, local, , state] = line.trim().split(/\s+/);
    const port = /:([0-9A-F]{4})$/i.exec(local ?? "")?.[1];
    return state === LISTEN && port !== undefined ? [parseInt(port, 16)] : [];
  });
}

function hostPorts(): readonly number[] | undefined {
  const tables = ["/proc/net/tcp", "/proc/net/tcp6"].flatMap((path) => {
    try {
      return [readFileSync(path, "utf8")];
    } catch {
      return []; // no IPv6, or no Linux
    }
  });
  if (tables.length === 0) return undefined;
  return [...new Set(tables.flatMap(listening))].sort((a, b) => a - b);
}

/** "192.168.1.7/24" as the network that it is in. */
export function networkOf(cidr: string): string {
  const [address = "", length = ""] = cidr.split("/");
  const bits = Number(length);
  const number = address.split(".").reduce((sum, part) => sum * 256 + Number(part), 0);
  const base = bits === 0 ? 0 : Math.floor(number / 2 ** (32 - bits)) * 2 ** (32 - bits);
  return `${[24, 16, 8, 0].map((shift) => Math.floor(base / 2 ** shift) % 256).join(".")}/${bits}`;
}

function networks(): readonly string[] {
  const all = Object.values(networkInterfaces()).flatMap((list) => list ?? []);
  const own = all.filter(({ family, internal, cidr }) => family === "IPv4" && !internal && cidr !== null);
  return [...new Set(own.map(({ cidr }) => networkOf(cidr ?? "")))];
}

/** What a guest would reach now. */
export function reachNow(env: NodeJS.ProcessEnv = process.env): Reach {
  const ports = hostPorts();
  const asked = env["DOCKER_HOST"] ?? "";
  const docker = new Set((ports ?? []).filter((port) => DOCKER_PORTS.includes(port)).map((port) => `tcp://127.0.0.1:${port}`));
  // Only where it is: a URL may carry a name and a password.
  const remote = /^tcp:\/\/(?:[^@/]*@)?([\w.:[\]-]+)/.exec(asked)?.[1];
  if (remote !== undefined) docker.add(`tcp://${remote}`);
  return { networks: networks(), ...(ports === undefined ? {} : { hostPorts: ports }), docker: [...docker] };
}

/** The same as a sentence without its end. */
export function reachText({ networks: around, hostPorts: ports, docker }: Reach): string {
  const lan = around.length === 0 ? "the local network" : `the local network (${around.join(", ")})`;
  const some = ports?.slice(0, PORTS_SHOWN).join(", ");
  const more = ports !== undefined && ports.length > PORTS_SHOWN ? ", …" : "";
  const services = ports?.length === 0 ? "" : `, services of this machine on TCP${some === undefined ? "" : ` (ports ${some}${more})`}`;
  const danger = docker.length === 0 ? "" : `; among them Docker at ${docker.join(", ")}, and who reaches that rules its machine`;
  return `the internet, ${lan}${services}${danger}`;
}
