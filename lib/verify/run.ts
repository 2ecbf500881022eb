// SPDX-License-Identifier: Apache-2.0
// One run of `agent-lane verify`: the checks in their order, each with an end, and a report that leaves none out.
import { readFileSync } from "node:fs";
import { arch, platform, release } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { engine } from "../engine.js";
import { asLaneError, badOption } from "../errors.js";
import { packageDir } from "../native.js";
import { cannotBe, notRun, summarise, type Finding, type Summary, type Verdict } from "./answers.js";
import type { Check } from "./check.js";
import { copies } from "./checks/copies.js";
import { ends } from "./checks/ends.js";
import { files } from "./checks/files.js";
import { lanes } from "./checks/lanes.js";
import { configurations } from "./checks/limits.js";
import { network } from "./checks/network.js";
import { outside } from "./checks/outside.js";
import { sockets } from "./checks/sockets.js";
import { Scene, type LaneChoice } from "./scene.js";

// The lane beside ends in the last check of `ends`, so those that need it come before.
export const CHECKS: readonly Check[] = [...files, ...sockets, ...lanes, ...configurations, ...copies, ...network, ...ends, ...outside];

const CHECK_MS = 400_000;

export interface Report {
  readonly version: 1;
  readonly versions: Readonly<Record<string, string>>;
  readonly network: "open" | "none";
  readonly accelerator: string;
  readonly transport: string;
  readonly image: string;
  /** The ids that were asked for, or "all". */
  readonly chosen: "all" | readonly string[];
  readonly at: string;
  readonly seconds: number;
  readonly findings: readonly Finding[];
  readonly summary: Summary;
}

/** The checks of these ids, in the order of the table; all without. Throws BAD_OPTION for an id that is none. */
export function choose(only: readonly string[] | undefined): readonly Check[] {
  if (only === undefined) return CHECKS;
  const unknown = only.find((id) => !CHECKS.some((check) => check.id === id));
  if (unknown !== undefined) throw badOption(`there is no check "${unknown.slice(0, 80)}"; there are: ${CHECKS.map((c) => c.id).join(", ")}`);
  return CHECKS.filter((check) => only.includes(check.id));
}

async function judged(check: Check, scene: Scene, signal: AbortSignal): Promise<Verdict> {
  const late = sleep(CHECK_MS, notRun(`no answer within ${CHECK_MS / 1000} s`), { ref: false });
  let stop = (): void => undefined;
  const stopped = new Promise<Verdict>((resolve) => (stop = () => resolve(notRun("the run was interrupted"))));
  signal.addEventListener("abort", stop, { once: true });
  if (signal.aborted) return notRun("the run was interrupted");
  try {
    return await Promise.race([check.run(scene), late, stopped]);
  } catch (thrown) {
    const { code, message, cure } = asLaneError(thrown);
    // On vz there is no policy for the network to be put under: the product refuses it, which is no proof either way.
    if (code === "NETWORK_UNENFORCEABLE") return cannotBe('network: "none" cannot be enforced on this system, and is refused');
    return notRun(`it ended with ${code}`, cure === "" ? [message] : [message, `cure: ${cure}`]);
  } finally {
    signal.removeEventListener("abort", stop);
  }
}

interface Doctor {
  readonly checks: readonly { readonly name: string; readonly detail?: string | null }[];
}

async function versionsOf(scene: Scene): Promise<Record<string, string>> {
  const { version } = JSON.parse(readFileSync(join(packageDir, "package.json"), "utf8")) as { version: string };
  const doctor = await engine().request<Doctor>("doctor", { ...scene.common, image: scene.choice.image, allowUnknownLima: scene.choice.allowUnknownLima });
  // "path: what it says of itself": the path is this machine's.
  const said = (name: RegExp): string => doctor.checks.find((c) => name.test(c.name))?.detail?.replace(/^[^:]*: /, "") ?? "not found";
  return { "agent-lane": version, lima: said(/^limactl$/), qemu: said(/^qemu-system/), node: process.version, host: `${platform()} ${release().replace(/^(\d+\.\d+).*/, "$1")} ${arch()}` };
}

export interface KeptLane {
  readonly name: string;
  readonly closed: boolean;
}

export interface RunOptions {
  readonly choice: LaneChoice;
  readonly only?: readonly string[] | undefined;
  readonly signal: AbortSignal;
  /** What is being done, for people. */
  readonly say: (text: string) => void;
  readonly told?: (finding: Finding) => void;
  /** Waits until whoever wants to look at the lane has seen enough. Without it the lane is closed at once. */
  readonly keep?: (report: Report, lane: KeptLane, dir: string) => Promise<void>;
}

/** Runs the checks. What goes wrong becomes a finding: it never rejects once the choice is valid. */
export async function verify({ choice, only, signal, say, told, keep }: RunOptions): Promise<Report> {
  const checks = choose(only), scene = new Scene(choice, say), began = Date.now();
  const clear = (): void => scene.clear();
  process.once("exit", clear);
  const findings: Finding[] = [];
  try {
    const versions = await versionsOf(scene).catch(() => ({}));
    scene.expect(checks);
    for (const check of checks) {
      const started = Date.now();
      const verdict = await judged(check, scene, signal);
      const by = typeof check.by === "string" ? check.by : check.by(scene.network);
      const finding = { id: check.id, point: check.point, tried: check.tried, by, ...verdict, seconds: Math.round((Date.now() - started) / 100) / 10 };
      findings.push(finding);
      told?.(finding);
    }
    const report = reportOf(scene, versions, findings, only === undefined ? "all" : checks.map((c) => c.id), began);
    if (keep !== undefined && scene.started !== undefined && !signal.aborted) await keep(report, await scene.attacker(), scene.dir);
    return report;
  } finally {
    await scene.end();
    process.off("exit", clear);
  }
}

function reportOf(scene: Scene, versions: Readonly<Record<string, string>>, findings: readonly Finding[], chosen: Report["chosen"], began: number): Report {
  const text = (name: string): string => {
    const fact = scene.facts[name];
    return typeof fact === "string" ? fact : "unknown";
  };
  return {
    version: 1,
    versions: { ...versions, ...(scene.kernel === undefined ? {} : { guest: scene.kernel }) },
    network: scene.network,
    accelerator: text("accelerator"),
    transport: scene.choice.transport ?? "auto",
    image: text("image"),
    chosen,
    at: new Date(began).toISOString(),
    seconds: Math.round((Date.now() - began) / 1000),
    findings,
    summary: summarise(findings),
  };
}
