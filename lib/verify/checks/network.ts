// SPDX-License-Identifier: Apache-2.0
// Checks: what the guest reaches beyond its own network device, and who reaches the guest.
import { connect, createServer } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { broken, cannotBe, held, notRun, open, unless, type Verdict } from "../answers.js";
import { LISTENER, LISTENER_SHAPE, NETWORK, NETWORK_SHAPE, type Network } from "../attacks.js";
import { lanAddress, token, type Post } from "../canary.js";
import type { Check } from "../check.js";
import { attack } from "../guest.js";
import { canLook, internetSockets, SocketWatch } from "../host.js";
import type { PostName, Scene } from "../scene.js";

/** Where QEMU's own network puts the host, its name server, and the host again on IPv6. */
const GATEWAY = "192.168.5.2", NAMES = "192.168.5.3", GATEWAY6 = "fec0::2";
const METADATA = "169.254.169.254";
/** Of TEST-NET-2: nobody has it, and no packet to it should leave this machine's network. */
const NOBODY = "198.51.100.7";

const times = (n: number, what: string): string => `${n} ${what}${n === 1 ? "" : "s"}`;

interface Target {
  readonly way: "tcp" | "udp" | "raw" | "ping" | "query";
  readonly host: string;
  readonly port: number;
}

/** What came of one attack: who was reached on the host, and what QEMU sent out for its guest. */
export interface Seen {
  readonly targets: number;
  /** Canaries that heard this attack's word. */
  readonly hits: number;
  /** Sockets that QEMU opened meanwhile; undefined: nobody could look. */
  readonly sockets: readonly string[] | undefined;
  /** What the guest says, which proves nothing but that it tried. */
  readonly guest: Readonly<Record<string, string>>;
  /** All canaries still sing afterwards. */
  readonly sing: boolean;
}

/**
 * The answer of a network check. Nothing may have reached a canary and QEMU may have opened no socket, or it was reached;
 * where the network is open, it must have been reached, or the attack would prove nothing about "none" either.
 */
export function judge(seen: Seen, network: "open" | "none", needsSockets: boolean): Verdict {
  const details = Object.entries(seen.guest).map(([id, r]) => `${id}: ${r}`);
  if (!seen.sing) return notRun("a canary of the host does not hear its visitors", details);
  if (Object.keys(seen.guest).length !== seen.targets) return notRun("the guest did not try all of it", details);
  if (needsSockets && seen.sockets === undefined) return cannotBe("this system does not show what the VM's process sends, and there is no canary at the other end");
  const sent = seen.sockets?.length ?? 0;
  const reached = seen.hits > 0 || sent > 0;
  const what = [
    ...(needsSockets ? [] : [seen.hits > 0 ? `the canaries heard ${times(seen.hits, "visit")}` : "no canary heard anything"]),
    seen.sockets === undefined ? "what QEMU sends cannot be seen here" : sent > 0 ? "QEMU opened sockets for its guest" : "QEMU opened no socket for its guest",
  ].join("; ");
  const text = `${times(seen.targets, "attempt")}; ${what}`;
  if (reached) return network === "none" ? broken(text, details) : open(text, details);
  return network === "none" ? held(text, details) : notRun(`nothing was reached, though nothing holds it: the attack proves nothing here (${text})`, details);
}

async function attempt(scene: Scene, targets: readonly Target[], posts: readonly Post[]): Promise<Verdict | Seen> {
  const lane = await scene.attacker();
  const qemu = await scene.hypervisor(lane);
  if (canLook && qemu === undefined) return notRun("the lane's QEMU could not be looked at");
  const word = token();
  const watch = qemu === undefined ? undefined : new SocketWatch(qemu, Number(lane.facts["sshPort"]));
  const r = await attack<Network>(lane, NETWORK, { targets: targets.map((t, i) => ({ ...t, id: `${i} ${t.way} ${t.host}`, word })) }, NETWORK_SHAPE);
  const sockets = await watch?.end();
  if (!r.ok) return notRun(r.why, r.details);
  if (r.value.control !== "heard") return notRun("the attack's own control failed: it cannot even reach a listener of the guest's");
  const canaries = posts.flatMap((p) => [p.tcp, p.udp]);
  const hits = canaries.reduce((n, c) => n + c.hits.filter((hit) => hit.said.includes(word)).length, 0);
  const sing = (await Promise.all(canaries.map((c) => c.sings()))).every(Boolean);
  return { targets: targets.length, hits, sockets, guest: r.value.did, sing };
}

const isSeen = (v: Verdict | Seen): v is Seen => "targets" in v;

async function ways(scene: Scene, targets: readonly Target[], posts: readonly Post[] = []): Promise<Verdict> {
  const seen = await attempt(scene, targets, posts);
  return isSeen(seen) ? judge(seen, scene.network, posts.length === 0) : seen;
}

const each = (host: string, port: number, kinds: readonly Target["way"][]): Target[] => kinds.map((way) => ({ way, host, port }));

/** Attacks a canary's port at addresses of the host's. */
async function post(scene: Scene, name: PostName, hosts: readonly string[], missing: string): Promise<Verdict> {
  const there = (await scene.canaries()).posts.get(name);
  if (there === undefined) return cannotBe(missing);
  return ways(scene, hosts.flatMap((host) => each(host, there.port, ["tcp", "udp", "raw"])), [there]);
}

async function lan(scene: Scene, family: "IPv4" | "IPv6"): Promise<Verdict> {
  const address = lanAddress(family);
  if (address === undefined) return cannotBe(`this machine has no ${family} address on a network`);
  return post(scene, family === "IPv4" ? "all v4" : "all v6", [address], `this machine cannot listen on all its ${family} addresses`);
}

async function otherLane(scene: Scene): Promise<Verdict> {
  const other = await scene.neighbour();
  return ways(scene, each(GATEWAY, Number(other.facts["sshPort"]), ["tcp"]));
}

const freePort = (): Promise<number> =>
  new Promise((resolve) => {
    const server = createServer().listen(0, "127.0.0.1", () => {
      const address = server.address();
      server.close(() => resolve(typeof address === "object" && address !== null ? address.port : 0));
    });
  });

/** Whether anybody answers there; a connection that only hangs is none. */
const reach = (host: string, port: number, word: string): Promise<boolean> =>
  new Promise((resolve) => {
    let reached = false;
    const s = connect({ host, port });
    s.setTimeout(1500, () => s.destroy());
    s.on("connect", () => (reached = true) && s.end(word)).on("error", () => undefined).on("close", () => resolve(reached));
  });

/** The guest listens on all its addresses; from outside nobody may get in, and only ssh's port may be there at all. */
async function inbound(scene: Scene): Promise<Verdict> {
  const lane = await scene.attacker();
  const port = await freePort(), word = token();
  await lane.exec("rm -f /run/agent-lane-listens /run/agent-lane-enough", { sudo: true, cwd: "/", timeoutMs: 60_000 });
  const answer = attack<{ came: string[] }>(lane, LISTENER, { port, seconds: 30 }, LISTENER_SHAPE);
  const listens = await lane.exec("i=0; until [ -e /run/agent-lane-listens ] || [ $i -gt 200 ]; do i=$((i+1)); sleep 0.1; done; ls /run/agent-lane-listens", { sudo: true, cwd: "/", timeoutMs: 60_000 });
  const addresses = ["127.0.0.1", "::1", lanAddress("IPv4"), lanAddress("IPv6")].filter((a) => a !== undefined);
  const got = await Promise.all(addresses.map((a) => reach(a, port, word)));
  const processes = (await scene.inspect(lane.name)).processes;
  const all = processes.map((p) => internetSockets(p.pid));
  await sleep(300);
  await lane.exec("touch /run/agent-lane-enough", { sudo: true, cwd: "/", timeoutMs: 60_000 });
  const r = await answer;
  if (!r.ok) return notRun(r.why, r.details);
  if (listens.exitCode !== 0 || !r.value.came.includes("control")) return notRun("the guest's listener did not hear its own control");
  const sshPort = Number(lane.facts["sshPort"]);
  const ears = all.flatMap((list) => list ?? []).filter((s) => s.listens);
  const more = ears.filter((s) => !(s.localAddress === "127.0.0.1" && s.localPort === sshPort));
  if (canLook && ears.length === 0) return notRun("not even ssh's port was found, so nobody looked");
  return unless(
    [
      [r.value.came.some((said) => said.includes(word)), "a connection to the host came to the guest's listener"],
      [got.includes(true), "something on the host answered at the guest's port"],
      [more.length > 0, `the lane's processes listen at ${more.length} more places of the host`],
    ],
    `${addresses.length} addresses of the host refused the guest's port${canLook ? "; the lane's processes listen for ssh on the loopback, and nowhere else" : ""}`,
    more.map((s) => `${s.protocol} ${s.localAddress}:${s.localPort}`),
  );
}

const OUT = (network: "open" | "none"): string => (network === "none" ? "restrict=on,ipv6=off on QEMU's only network device, put there by the warden" : 'nothing: network is "open"');
const point = "network";

export const network: readonly Check[] = [
  { id: "loopback-v4", point, tried: "a listener on 127.0.0.1, by its own address in frames made by hand and as 0.0.0.0: TCP and UDP", by: OUT, run: (s) => post(s, "loopback v4", ["127.0.0.1", "0.0.0.0"], "this machine has no IPv4 loopback") },
  { id: "loopback-gateway", point, tried: "the same by the gateway's address, which stands for the host's loopback: TCP and UDP", by: OUT, run: (s) => post(s, "loopback v4", [GATEWAY], "this machine has no IPv4 loopback") },
  { id: "loopback-v6", point, tried: "a listener on ::1, by its own address and the gateway's IPv6 one: TCP, UDP, frames made by hand", by: OUT, run: (s) => post(s, "loopback v6", ["::1", GATEWAY6], "this machine has no IPv6 loopback") },
  { id: "lan-v4", point, tried: "a listener on all addresses, by the one this machine has on its network: TCP, UDP, frames made by hand", by: OUT, run: (s) => lan(s, "IPv4") },
  { id: "lan-v6", point, tried: "the same by its IPv6 address on its network", by: OUT, run: (s) => lan(s, "IPv6") },
  { id: "metadata", point, tried: "the metadata service of clouds (169.254.169.254): TCP, UDP, frames made by hand; QEMU's sockets are watched", by: OUT, run: (s) => ways(s, each(METADATA, 80, ["tcp", "udp", "raw"])) },
  { id: "elsewhere", point, tried: "an address that nobody has: TCP, UDP; QEMU's sockets are watched", by: OUT, run: (s) => ways(s, each(NOBODY, 443, ["tcp", "udp", "raw"])) },
  { id: "icmp", point, tried: "echo requests beyond the gateway; QEMU's sockets are watched", by: OUT, run: (s) => ways(s, each(NOBODY, 0, ["ping"])) },
  { id: "dns", point, tried: "a name with 128 random bits is asked of QEMU's name server and of another; QEMU's sockets are watched", by: OUT, run: (s) => ways(s, [...each(NAMES, 53, ["query"]), ...each(NOBODY, 53, ["query"])]) },
  { id: "other-lane-port", beside: true, point: "other lanes", tried: "the forwarded ssh port of the lane beside; QEMU's sockets are watched", by: (n) => (n === "none" ? OUT(n) : 'nothing but ssh\'s key: network is "open"'), run: otherLane },
  { id: "inbound", point, tried: "the guest listens on all its addresses; its port is tried at each of the host's; what the lane's processes listen on is listed", by: "Lima is told to forward nothing; the warden lets one forward through, of 127.0.0.1 to the guest's sshd", run: inbound },
];
