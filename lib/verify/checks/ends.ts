// SPDX-License-Identifier: Apache-2.0
// Checks: the end of one lane is the end of that lane only, may come twice, follows a failed start, and needs no owner.
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { engine } from "../../engine.js";
import { asLaneError, LaneError } from "../../errors.js";
import type { LaneEvent } from "../../events.js";
import type { Lane } from "../../lane.js";
import { broken, notRun, unless, type Verdict } from "../answers.js";
import type { Check } from "../check.js";
import { plantDecoys } from "../decoys.js";
import { argvOf, canLook, processesNaming, processOf, runs, type Process } from "../host.js";
import type { Scene } from "../scene.js";

const ORPHAN = fileURLToPath(new URL("../orphan.js", import.meta.url));
const GONE_MS = 20_000;

async function within(ms: number, is: () => boolean | Promise<boolean>): Promise<boolean> {
  for (const end = Date.now() + ms; ; await sleep(50)) {
    if (await is()) return true;
    if (Date.now() > end) return false;
  }
}

function signalled(pid: number): boolean {
  try {
    return process.kill(pid, "SIGKILL");
  } catch {
    return false; // it has ended by itself
  }
}

/** What is left of a lane: its processes, its directory, its row. */
async function leftOf(scene: Scene, home: string, name: string): Promise<string[]> {
  const rows = await engine().request<readonly Readonly<Record<string, unknown>>[]>("list", { home: scene.choice.home });
  return [
    ...processesNaming(join(home, "lima", name) + "/").map((p) => `the process ${p.pid}: ${argvOf(p.pid).join(" ").slice(0, 100)}`),
    ...(existsSync(join(home, "lima", name)) ? ["its directory"] : []),
    ...rows.filter((row) => row["name"] === name).map((row) => `its row, ${String(row["state"])}`),
  ];
}

/** That a lane is as it was: the same processes, and it answers. */
async function witness(scene: Scene, lane: Lane): Promise<() => Promise<boolean>> {
  const before: Process[] = (await scene.inspect(lane.name)).processes.filter((p) => p.kind === "qemu" || p.kind === "hostagent").map((p) => processOf(p.pid));
  return async () => {
    if (before.length < 2 || !before.every(runs) || !existsSync(String(lane.facts["dir"]))) return false;
    return lane.exec("echo here", { timeoutMs: 60_000, cwd: "/" }).then((r) => r.stdout === "here\n", () => false);
  };
}

interface Closing {
  readonly before: boolean;
  readonly after: boolean;
  readonly left: readonly string[];
  readonly touched: readonly string[];
  readonly decoys: number;
  readonly rejected: number;
  /** What a close by name said afterwards, and how a call in flight ended. */
  readonly again: string;
  readonly call: string;
}

/** One end for the two checks that look at it: the neighbour's, in the middle of a command, between decoys. */
async function close(scene: Scene): Promise<Closing> {
  const [bystander, victim] = await Promise.all([scene.attacker(), scene.neighbour()]);
  const home = String(victim.facts["home"]);
  const unharmed = await witness(scene, bystander);
  const before = await unharmed();
  const decoys = plantDecoys(home, victim.name);
  scene.later(decoys.remove);
  const running = victim.exec("sleep 60", { cwd: "/" }).then(() => "ended", (error: unknown) => asLaneError(error).code);
  const results = await Promise.allSettled([victim.close(), victim.close(), victim.close()]);
  results.push(...(await Promise.allSettled([victim.close()])));
  // A lane of that name could be there by another's doing: a second close must not find one.
  const again = await engine().request<{ by: string }>("end", { ...scene.common, lane: victim.name }).then((r) => r.by, (error: unknown) => asLaneError(error).code);
  const call = await Promise.race([running, sleep(20_000, "never settled", { ref: false })]);
  const left = await leftOf(scene, home, victim.name), touched = decoys.touched();
  decoys.remove();
  return { before, after: await unharmed(), left, touched, decoys: decoys.count, rejected: results.filter((r) => r.status === "rejected").length, again, call };
}

const closings = new WeakMap<Scene, Promise<Closing>>();
function closing(scene: Scene): Promise<Closing> {
  const one = closings.get(scene) ?? close(scene);
  closings.set(scene, one);
  return one;
}

async function exactClose(scene: Scene): Promise<Verdict> {
  const { before, after, left, touched, decoys } = await closing(scene);
  if (!before) return notRun("the lane beside did not answer before");
  return unless(
    [
      [left.length > 0, "something of the closed lane is left"],
      [touched.length > 0, `${touched.length} of ${decoys} decoys with nearly the same name were touched`],
      [!after, "the lane beside was harmed"],
    ],
    `the lane is gone with its ${canLook ? "processes, " : ""}directory and row; ${decoys} decoys with nearly its name and the lane beside are untouched`,
    [...left, ...touched],
  );
}

async function idempotentClose(scene: Scene): Promise<Verdict> {
  const { before, after, left, rejected, again, call } = await closing(scene);
  if (!before) return notRun("the lane beside did not answer before");
  return unless(
    [
      [rejected > 0, `${rejected} closes were rejected`],
      [again !== "an earlier end", `a close by name afterwards said ${again}`],
      [call !== "LANE_CLOSED", `a call in flight ended with ${call}`],
      [left.length > 0, "something of the closed lane is left"],
      [!after, "the lane beside was harmed"],
    ],
    "four closes, three of them at once, and one by name all resolved; a call in flight ended with LANE_CLOSED; nothing is left",
    left,
  );
}

async function failedCreate(scene: Scene): Promise<Verdict> {
  const bystander = await scene.attacker();
  const unharmed = await witness(scene, bystander);
  let name = "", killed = false;
  const home = String(bystander.facts["home"]);
  const told = (event: LaneEvent): void => {
    if (!("lane" in event) || event.lane === undefined) return;
    name = event.lane;
    if (event.type === "booting" || event.type === "connecting") void kill();
  };
  // QEMU is killed as soon as it is there: no guest can be ready by then.
  const kill = async (): Promise<void> => {
    for (const end = Date.now() + 30_000; !killed && Date.now() < end; await sleep(20)) {
      const pid = (await scene.inspect(name).catch(() => undefined))?.processes.find((p) => p.kind === "qemu")?.pid;
      if (pid === undefined || !argvOf(pid).join(" ").includes(name) || killed) continue;
      killed = signalled(pid);
    }
  };
  const error = await scene.open({ onEvent: told }).then(() => undefined, (e: unknown) => e);
  if (!killed) return notRun("the lane's QEMU was not seen before the lane was ready");
  if (!(error instanceof LaneError)) return broken(error === undefined ? "a lane without a VM was ready" : "the start failed with another error than ours");
  const left = await leftOf(scene, home, name);
  return unless(
    [
      [left.length > 0, "something of the failed lane is left"],
      [error.step === undefined || error.lane !== name, "the error does not name lane and step"],
      [!["START_FAILED", "CHANNEL_CLOSED", "START_TIMEOUT"].includes(error.code), `the error is ${error.code}, which is not why the start failed`],
      [!(await unharmed()), "the lane beside was harmed"],
    ],
    `the start failed with ${error.code} at the step ${error.step ?? ""}; when the error came, nothing of the lane was left`,
    left,
  );
}

/** Kills the owner and its keeper at once, so that only the warden and a later sweep can end the lane. */
async function orphan(scene: Scene): Promise<{ name: string; qemu: Process }> {
  const child = spawn(process.execPath, [ORPHAN, JSON.stringify(scene.choice)], { stdio: ["ignore", "pipe", "ignore"] });
  scene.later(() => child.kill("SIGKILL"));
  let name = "";
  child.stdout.on("data", (data: Buffer) => (name ||= /^lane (agent-lane-[a-z0-9-]+)$/m.exec(data.toString("latin1"))?.[1] ?? ""));
  const seen = { qemu: undefined as number | undefined, keeper: 0 };
  const found = await within(60_000, async () => {
    if (name === "") return child.exitCode !== null;
    const report = await scene.inspect(name).catch(() => undefined);
    seen.qemu = report?.processes.find((p) => p.kind === "qemu")?.pid;
    seen.keeper = Number(report?.lane["keeperPid"] ?? 0);
    return seen.qemu !== undefined && Number(report?.lane["ownerPid"]) === child.pid;
  });
  const { qemu, keeper } = seen;
  if (!found || qemu === undefined) {
    child.kill("SIGKILL");
    throw new Error("the lane that was to lose its owner did not start");
  }
  const victim = processOf(qemu);
  child.kill("SIGSTOP"); // else it would start another keeper
  if (keeper > 1 && argvOf(keeper).join(" ").includes(`${child.pid ?? 0}:`)) signalled(keeper);
  child.kill("SIGKILL");
  return { name, qemu: victim };
}

async function reaper(scene: Scene): Promise<Verdict> {
  const bystander = await scene.attacker();
  const home = String(bystander.facts["home"]);
  const unharmed = await witness(scene, bystander);
  const { name, qemu } = await orphan(scene);
  const decoys = plantDecoys(home, name);
  scene.later(decoys.remove);
  const ended = await within(GONE_MS, () => !runs(qemu));
  interface Report {
    reaped: readonly { name: string; ok: boolean }[];
    kept: readonly { name: string }[];
    unlisted: readonly string[];
  }
  const report = await engine().request<Report>("reap", { ...scene.common, force: false, dryRun: false });
  const left = await leftOf(scene, home, name), touched = decoys.touched();
  const others = report.reaped.filter((r) => r.name !== name && r.ok).length;
  const verdict = unless(
    [
      [!ended, "QEMU outlived its owner and its keeper"],
      [left.length > 0, "the sweep left something of the lane without an owner"],
      [touched.length > 0, `the sweep touched ${touched.length} of ${decoys.count} decoys`],
      [!report.kept.some((k) => k.name === bystander.name), "the sweep does not say that it kept the living lane"],
      [report.unlisted.length < 1, "the sweep does not name the directory that is not ours"],
      [!(await unharmed()), "the lane beside was harmed"],
    ],
    `QEMU ended with its owner and keeper; the sweep removed that lane${others > 0 ? ` and ${others} that other runs had left` : ""}, named the directory that is not ours, and left ${decoys.count} decoys and the living lane alone`,
    [...left, ...touched],
  );
  decoys.remove();
  return verdict;
}

const ONE = "one routine for every end: it takes one registered name, checks each process by identity, and proves that nothing is left";

export const ends: readonly Check[] = [
  { id: "exact-close", beside: true, point: "exact-target close", tried: "a lane is closed between directories and processes with nearly its name and another lane", by: ONE, run: exactClose },
  { id: "failed-create", point: "cleanup on failure", tried: "QEMU is killed while the guest boots; what is left is listed when the error arrives", by: `${ONE}; the error comes after it`, run: failedCreate },
  { id: "reaper", point: "reaper", tried: "owner and keeper are killed at once; then a sweep runs between decoys with nearly that lane's name", by: "the warden ends QEMU; the sweep takes registered lanes only, each by its name", run: reaper },
  { id: "idempotent-close", beside: true, point: "idempotent close", tried: "a lane with a running command is closed three times at once, once more, and by name", by: ONE, run: idempotentClose },
];
