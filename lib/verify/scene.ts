// SPDX-License-Identifier: Apache-2.0
// What the checks share: the lane that attacks, the lane beside it, the canaries on the host, and their end.
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import { engine } from "../engine.js";
import { asLaneError } from "../errors.js";
import type { LaneEvent } from "../events.js";
import type { Lane } from "../lane.js";
import { openLane } from "../open.js";
import { resolveOptions, type LimaOptions } from "../options.js";
import { attack, type Answered } from "./guest.js";
import { SHARES, SHARES_SHAPE, SOCKETS, SOCKETS_SHAPE, type Shares, type Sockets } from "./attacks.js";
import { CanaryFile, plantPost, plantSocket, token, type Canary, type Post } from "./canary.js";
import { canLook } from "./host.js";

/** What lima() takes and `agent-lane verify` passes on. */
export type LaneChoice = Pick<LimaOptions, "home" | "limactlPath" | "network" | "accelerator" | "transport" | "allowUnknownLima"> & {
  readonly image?: string | undefined;
};

// Small, so that two fit on any machine; the checks of limits count on these.
export const SIZE = { cpus: 1, memoryGiB: 1 } as const;
const START_SECONDS = 180;
// More than anybody's other lanes: this run does not wait for them.
const VMS_MOST = 32;

const ATTACKER = "the lane that attacks";

export interface LaneProcess {
  readonly pid: number;
  readonly kind: string;
  readonly program: string;
}
/** The parts of `inspect` that a check compares with what it sees itself. */
export interface Inspected {
  readonly lane: Readonly<Record<string, unknown>>;
  readonly processes: readonly LaneProcess[];
  readonly enforced: readonly { readonly what: string; readonly enforced: boolean | null; readonly by: string }[];
}

export interface HostCanaries {
  readonly docker: Canary | undefined;
  readonly agent: Canary | undefined;
  readonly dockerPath: string;
  readonly agentPath: string;
  readonly file: CanaryFile;
  /** Value of a variable of this process's environment, which no guest may see. */
  readonly variable: string;
  /** Value of a variable of the lane's, which no disk and no command line may hold. */
  readonly secret: string;
  /** Listeners of the host that a guest must not reach, as far as the machine has such addresses. */
  readonly posts: ReadonlyMap<PostName, Post>;
}
export type PostName = "loopback v4" | "loopback v6" | "all v4" | "all v6";

// What a careless start of ssh, limactl or QEMU would hand on.
const VARIABLE = "AGENT_LANE_VERIFY_CANARY";
const CHANGED = ["SSH_AUTH_SOCK", "DOCKER_HOST", "http_proxy", VARIABLE] as const;

export class Scene {
  readonly choice: LaneChoice;
  readonly network: "open" | "none";
  /** Below the user's own directory, where a careless mount would find it. */
  readonly dir = mkdtempSync(join(homedir(), ".al-verify-"));
  readonly #say: (text: string) => void;
  readonly #environment = new Map<string, string | undefined>();
  readonly #lanes: Lane[] = [];
  readonly #undo: (() => void)[] = [];
  #canaries: Promise<HostCanaries> | undefined;
  #beside = false;
  #attacker: Promise<Lane> | undefined;
  #neighbour: Promise<Lane> | undefined;
  #shares: Promise<Answered<Shares>> | undefined;
  #sockets: Promise<Answered<Sockets>> | undefined;

  constructor(choice: LaneChoice, say: (text: string) => void) {
    this.choice = choice;
    this.network = choice.network ?? "open";
    this.#say = say;
  }

  say(text: string): void {
    this.#say(text);
  }

  /** Told about whatever must be taken away again, also when the run is interrupted. The last comes first. */
  later(undo: () => void): void {
    this.#undo.push(undo);
  }

  get common(): { readonly home: string | undefined; readonly limactlPath: string | undefined } {
    return { home: this.choice.home, limactlPath: this.choice.limactlPath };
  }

  /** Before the first lane: what is in the environment now is what its start may hand on. */
  canaries(): Promise<HostCanaries> {
    this.#canaries ??= this.#plant();
    return this.#canaries;
  }

  /** A directory of a check's own, beside the canaries. */
  async scratch(name: string): Promise<string> {
    await this.canaries();
    const dir = join(this.dir, name);
    mkdirSync(dir, { mode: 0o700 });
    return dir;
  }

  async #plant(): Promise<HostCanaries> {
    const dockerPath = join(this.dir, "docker.sock"), agentPath = join(this.dir, "agent.sock");
    const [docker, agent] = [await plantSocket("Docker's socket", dockerPath), await plantSocket("the ssh agent's socket", agentPath)];
    for (const canary of [docker, agent]) if (canary !== undefined) this.later(() => canary.close());
    const posts = new Map<PostName, Post>();
    for (const [name, host, address] of [["loopback v4", "127.0.0.1", "127.0.0.1"], ["loopback v6", "::1", "::1"], ["all v4", "0.0.0.0", "127.0.0.1"], ["all v6", "::", "::1"]] as const) {
      const post = await plantPost(name, host, address);
      if (post === undefined) continue;
      posts.set(name, post);
      this.later(() => [post.tcp, post.udp].forEach((canary) => canary.close()));
    }
    const variable = token();
    for (const name of CHANGED) this.#environment.set(name, process.env[name]);
    Object.assign(process.env, { SSH_AUTH_SOCK: agentPath, DOCKER_HOST: `unix://${dockerPath}`, http_proxy: `http://127.0.0.1:9/${variable}`, [VARIABLE]: variable });
    this.later(() => {
      for (const [name, value] of this.#environment)
        if (value === undefined) delete process.env[name];
        else process.env[name] = value;
    });
    mkdirSync(join(this.dir, "private"), { mode: 0o700 });
    const file = new CanaryFile(join(this.dir, "private", `canary-${token()}`), token());
    return { docker, agent, dockerPath, agentPath, file, variable, secret: token(), posts };
  }

  /** Starts a lane of this run. It is closed at the end, if not before. */
  async open(more: LimaOptions = {}): Promise<Lane> {
    const { secret } = await this.canaries();
    const options = { ...this.choice, ...SIZE, startTimeoutSeconds: START_SECONDS, timeoutMinutes: 60, maxConcurrentVms: VMS_MOST, onEvent: () => undefined, ...more };
    const lane = await openLane(
      { ...resolveOptions(options), image: this.choice.image },
      { env: { AGENT_LANE_VERIFY_SECRET: secret } },
    );
    this.#lanes.push(lane);
    return lane;
  }

  /** Which checks will come, so that the lanes that they need start at once. */
  expect(checks: readonly { readonly beside?: true }[]): void {
    this.#beside = checks.some((check) => check.beside === true);
  }

  /** The lane from which the attacks come. */
  attacker(): Promise<Lane> {
    // What its start fails with is told to the check that needs it.
    if (this.#beside) this.neighbour().catch(() => undefined);
    this.#attacker ??= this.#named(ATTACKER);
    return this.#attacker;
  }

  /** The lane beside it. */
  neighbour(): Promise<Lane> {
    this.#neighbour ??= this.#named("a lane beside it");
    return this.#neighbour;
  }

  async #named(what: string): Promise<Lane> {
    const started = Date.now();
    const told = (event: LaneEvent): void => {
      if (event.type === "queued" && event.message !== undefined) this.say(`${what}: ${event.message}`);
    };
    this.say(`${what} starts`);
    const lane = await this.open({ onEvent: told });
    if (what === ATTACKER) await this.#introduce(lane);
    this.say(`${what} is ready after ${((Date.now() - started) / 1000).toFixed(1)} s: ${lane.name}`);
    return lane;
  }

  /** What the report says of the lane, once it has started. */
  facts: Readonly<Record<string, unknown>> = {};
  started: string | undefined;
  kernel: string | undefined;

  async #introduce(lane: Lane): Promise<void> {
    this.started = lane.name;
    this.facts = lane.facts;
    const r = await lane.exec("uname -sr", { cwd: "/", timeoutMs: 60_000, maxOutputBytes: 4096 }).catch(() => undefined);
    this.kernel = /^[\w.+ -]{1,80}$/.exec(r?.stdout.trim() ?? "")?.[0];
  }

  async inspect(name: string): Promise<Inspected> {
    return engine().request<Inspected>("inspect", { home: this.choice.home, lane: name });
  }

  /** The lane's QEMU, as far as this system shows it. */
  async hypervisor(lane: Lane): Promise<number | undefined> {
    return canLook ? (await this.inspect(lane.name)).processes.find((p) => p.kind === "qemu")?.pid : undefined;
  }

  /** One attack for all checks about files: it takes some seconds of the guest's. */
  shares(): Promise<Answered<Shares>> {
    this.#shares ??= (async () => {
      const { file } = await this.canaries();
      return attack<Shares>(await this.attacker(), SHARES, { path: file.path, name: file.path.split("/").at(-1) ?? "" }, SHARES_SHAPE);
    })();
    return this.#shares;
  }

  /** One attack for all checks about sockets, keys and environments; `agent-lane shell` is in the lane meanwhile. */
  sockets(beside: (lane: Lane) => Promise<() => Promise<void>>): Promise<Answered<Sockets>> {
    this.#sockets ??= (async () => {
      const { dockerPath, agentPath } = await this.canaries();
      const lane = await this.attacker();
      const leave = await beside(lane);
      try {
        return await attack<Sockets>(lane, SOCKETS, { docker: dockerPath, agent: agentPath }, SOCKETS_SHAPE);
      } finally {
        await leave();
      }
    })();
    return this.#sockets;
  }

  /** Ends everything. A close that fails is said, and takes nobody's report away. */
  async end(): Promise<void> {
    await Promise.all(this.#lanes.map((lane) => lane.close().catch((e: unknown) => this.say(`closing ${lane.name}: ${asLaneError(e).message}`))));
    this.clear();
  }

  /** Takes the canaries away. */
  clear(): void {
    for (const undo of this.#undo.splice(0).reverse()) {
      try {
        undo();
      } catch {
        // The next one all the same.
      }
    }
    rmSync(this.dir, { recursive: true, force: true });
  }
}
