// SPDX-License-Identifier: Apache-2.0
// Checks: the host's Docker, ssh agent, keys and environment are not in the guest, and the run's secrets are on no disk.
import { spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { createReadStream, existsSync, lstatSync, readdirSync, readFileSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import type { Lane } from "../../lane.js";
import { notRun, unless, type Verdict } from "../answers.js";
import type { Sockets } from "../attacks.js";
import type { Canary } from "../canary.js";
import type { Check } from "../check.js";
import { argvOf } from "../host.js";
import type { Scene } from "../scene.js";

const COMMAND = fileURLToPath(new URL("../../cli/main.js", import.meta.url));
const SHELL_MS = 60_000;

/** `agent-lane shell` goes in with this environment, as a developer would: it must hand nothing on. */
async function goIn(scene: Scene, lane: Lane): Promise<() => Promise<void>> {
  const { home, limactlPath } = scene.common;
  const options = [...(home === undefined ? [] : ["--home", home]), ...(limactlPath === undefined ? [] : ["--limactl", limactlPath])];
  const child = spawn(process.execPath, [COMMAND, "shell", ...options, lane.name, "--", "sh", "-c", "echo inside; exec sleep 120"], { stdio: ["ignore", "pipe", "ignore"] });
  let said = "";
  child.stdout.on("data", (data: Buffer) => (said = (said + data.toString("latin1")).slice(-100)));
  const ended = new Promise<void>((resolve) => child.on("error", () => resolve()).on("close", () => resolve()));
  const leave = async (): Promise<void> => {
    child.kill("SIGTERM");
    await Promise.race([ended, sleep(10_000, undefined, { ref: false })]);
    child.kill("SIGKILL");
  };
  scene.later(() => child.kill("SIGKILL"));
  for (const end = Date.now() + SHELL_MS; !said.includes("inside"); await sleep(50))
    if (child.exitCode !== null || child.signalCode !== null || Date.now() > end) {
      await leave();
      throw new Error("agent-lane shell could not go into the lane");
    }
  return leave;
}

const look = (scene: Scene) => scene.sockets((lane) => goIn(scene, lane));
const environmentsOf = (s: Sockets): string => Buffer.from(s.environments, "base64").toString("latin1");

async function socket(scene: Scene, canary: Canary | undefined, what: string, variable: string): Promise<Verdict> {
  const seen = await look(scene);
  if (!seen.ok) return notRun(seen.why, seen.details);
  if (canary === undefined || !(await canary.sings())) return notRun(`the decoy of ${what} does not hear its visitors`);
  const { spoken } = seen.value;
  const tried = Object.keys(spoken).length, spoke = Object.values(spoken).filter((s) => s === "connected").length;
  if (tried < 3) return notRun("the guest tried too few sockets");
  return unless(
    [
      [canary.hits.length > 0, `the decoy of ${what} was reached ${canary.hits.length} times`],
      [environmentsOf(seen.value).includes(`${variable}=`), `${variable} of the host is set in the guest`],
    ],
    `${tried} sockets and usual places were tried, at ${spoke} something of the guest's own listens; the decoy on the host was never contacted`,
    Object.entries(spoken).map(([path, r]) => `${path}: ${r}`),
  );
}

async function hostEnvironment(scene: Scene): Promise<Verdict> {
  const { variable, secret } = await scene.canaries();
  const seen = await look(scene);
  if (!seen.ok) return notRun(seen.why, seen.details);
  const all = environmentsOf(seen.value);
  if (!all.includes(secret)) return notRun("the environments of the guest lack what the lane was given, so they were not read whole");
  return unless(
    [[all.includes(variable), "a variable of the host's is in the guest"]],
    "the lane's own variable is there, and no variable of the host's",
  );
}

const sha256 = (data: string | Buffer): string => createHash("sha256").update(data).digest("hex");

/** Digests of the private keys that this user has. */
function ownKeys(home: string): string[] {
  const dirs = [join(home, "lima", "_config"), join(homedir(), ".ssh")];
  const paths = dirs.flatMap((dir) => (existsSync(dir) ? readdirSync(dir).map((name) => join(dir, name)) : []));
  return paths
    .filter((path) => lstatSync(path, { throwIfNoEntry: false })?.isFile() === true)
    .map((path) => readFileSync(path))
    .filter((data) => data.includes("PRIVATE KEY-----"))
    .map(sha256);
}

async function sshKeys(scene: Scene): Promise<Verdict> {
  const lane = await scene.attacker();
  const seen = await look(scene);
  if (!seen.ok) return notRun(seen.why, seen.details);
  const home = String(lane.facts["home"]);
  const own = ownKeys(home);
  if (own.length === 0) return notRun("this user has no key that could be looked for, not even Lima's");
  const allowed = readFileSync(join(home, "lima", "_config", "user.pub"), "utf8").split(" ")[1] ?? "?";
  const { keys, authorised } = seen.value;
  if (authorised.length === 0) return notRun("the guest's list of keys that may log in was not found");
  return unless(
    [
      [keys.some((digest) => own.includes(digest)), "a private key of this user's is in the guest"],
      [authorised.some((line) => line.split(" ")[1] !== allowed), "other keys than the home's own may log in"],
    ],
    `none of this user's private keys is among the guest's ${keys.length}; the home's own public key, and no other, may log in`,
  );
}

/** Whether any file below `dir` contains the word; links are not followed. Answers the number of files, or the path. */
async function searched(dir: string, word: string): Promise<{ files: number; found: string[] }> {
  let files = 0;
  const found: string[] = [];
  for (const name of readdirSync(dir)) {
    const path = join(dir, name);
    const st = lstatSync(path, { throwIfNoEntry: false });
    if (st?.isDirectory() === true) {
      const below = await searched(path, word);
      files += below.files;
      found.push(...below.found);
    } else if (st?.isFile() === true && st.size > 0) {
      files++;
      let rest = "";
      for await (const chunk of createReadStream(path, { encoding: "latin1", highWaterMark: 1 << 20 })) {
        const text = rest + (chunk as string);
        if (text.includes(word)) found.push(path);
        rest = text.slice(-word.length);
      }
    }
  }
  return { files, found };
}

async function laneSecret(scene: Scene): Promise<Verdict> {
  const lane = await scene.attacker();
  const { secret } = await scene.canaries();
  const used = await lane.exec('printf %s "$AGENT_LANE_VERIFY_SECRET" | sha256sum; sync', { timeoutMs: 60_000 });
  if (used.exitCode !== 0 || !used.stdout.startsWith(sha256(secret))) return notRun("the lane does not have the variable that it was given");
  const home = String(lane.facts["home"]);
  const inLane = await searched(String(lane.facts["dir"]), secret);
  // The images are older than the secret, and large.
  const beside = [];
  for (const name of readdirSync(home).filter((n) => n !== "lima" && n !== "images" && n !== "bin")) {
    const path = join(home, name), st = lstatSync(path);
    if (st.isDirectory()) beside.push(await searched(path, secret));
    else if (st.isFile()) beside.push({ files: 1, found: readFileSync(path).includes(secret) ? [path] : [] });
  }
  const files = inLane.files + beside.reduce((n, b) => n + b.files, 0), found = [...inLane.found, ...beside.flatMap((b) => b.found)];
  const lines = (await scene.inspect(lane.name)).processes.filter((p) => argvOf(p.pid).join(" ").includes(secret));
  if (inLane.files < 3) return notRun("the lane's directory has hardly any files to look through");
  return unless(
    [
      [found.length > 0, `the variable's value is in ${found.length} files`],
      [lines.length > 0, "the variable's value is on a command line"],
    ],
    `the command had the variable; its value is in none of ${files} files, the lane's disk among them, and on no command line`,
    found,
  );
}

const SCRUBBED = "limactl, ssh and QEMU are started with an environment of our own making; Lima is told to forward nothing";

export const sockets: readonly Check[] = [
  {
    id: "docker-socket",
    point: "host Docker socket",
    tried: "a decoy of Docker's socket is named in DOCKER_HOST; the guest speaks to every socket it has, to Docker's usual places and to the decoy's path, while `agent-lane shell` is in the lane",
    by: SCRUBBED,
    run: async (scene) => socket(scene, (await scene.canaries()).docker, "Docker's socket", "DOCKER_HOST"),
  },
  {
    id: "ssh-agent",
    point: "ssh keys or agent",
    tried: "a decoy of an ssh agent is named in SSH_AUTH_SOCK; the guest speaks to it as above",
    by: SCRUBBED,
    run: async (scene) => socket(scene, (await scene.canaries()).agent, "the ssh agent", "SSH_AUTH_SOCK"),
  },
  {
    id: "ssh-keys",
    point: "ssh keys or agent",
    tried: "every private key in the guest is compared with the user's own and with Lima's; the keys that may log in are listed",
    by: "Lima is told not to read ~/.ssh; the home has a key pair of its own, of which the guest gets the public half",
    run: sshKeys,
  },
  {
    id: "host-environment",
    point: "host environment",
    tried: "a canary is put into this process's environment, also as a proxy; the environments of all processes of the guest are read",
    by: SCRUBBED,
    run: hostEnvironment,
  },
  {
    id: "lane-secret",
    point: "secrets of the run",
    tried: "a variable is given to the lane; its value is searched for in the lane's files on the host, its disk included, in the rest of the home, and on command lines",
    by: "variables travel in the request of each command over the channel",
    run: laneSecret,
  },
];
