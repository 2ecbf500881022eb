// SPDX-License-Identifier: Apache-2.0
// What a check of `agent-lane verify` can say, and what a whole run says with its exit status.

/**
 * `held`: it was attacked, and the boundary stood. `open`: it is reachable, and this configuration does not promise
 * otherwise. `broken`: what is promised did not hold. `not run`: nothing can be said, which is a failure unless this
 * machine cannot have it at all (`excused`).
 */
export type Answer = "held" | "open" | "broken" | "not run";

export interface Verdict {
  readonly answer: Answer;
  /** What was seen, without paths, names or addresses of this machine: it is printed in documents. */
  readonly seen: string;
  /** Why this machine cannot have it; only with "not run". */
  readonly excused?: string;
  /** More for whoever looks into it, such as addresses. */
  readonly details?: readonly string[];
}

export interface Finding extends Verdict {
  readonly id: string;
  /** Which of the boundary's points it belongs to. */
  readonly point: string;
  readonly tried: string;
  /** What is there to hold it, or "nothing". */
  readonly by: string;
  readonly seconds: number;
}

export const held = (seen: string, details: readonly string[] = []): Verdict => ({ answer: "held", seen, details });
export const open = (seen: string, details: readonly string[] = []): Verdict => ({ answer: "open", seen, details });
export const broken = (seen: string, details: readonly string[] = []): Verdict => ({ answer: "broken", seen, details });
export const notRun = (seen: string, details: readonly string[] = []): Verdict => ({ answer: "not run", seen, details });
/** This machine or system cannot have it, so that nothing is missing. */
export const cannotBe = (why: string): Verdict => ({ answer: "not run", seen: why, excused: why });

/**
 * The first of these that is true, else `held`. A list of what would be wrong keeps a check from passing by a test that
 * was forgotten: each entry is said.
 */
export function unless(wrong: readonly (readonly [boolean, string])[], seen: string, details: readonly string[] = []): Verdict {
  const found = wrong.filter(([is]) => is).map(([, what]) => what);
  return found.length === 0 ? held(seen, details) : broken(found.join("; "), details);
}

/** Whether a finding makes the run fail. */
export const fails = (f: Verdict): boolean => f.answer === "broken" || (f.answer === "not run" && f.excused === undefined);

export interface Summary {
  readonly ok: boolean;
  readonly held: number;
  readonly open: number;
  readonly broken: number;
  readonly notRun: number;
  /** Of those not run, how many this machine cannot have. */
  readonly excused: number;
}

/** A run without findings has proven nothing, so it is no success. */
export function summarise(findings: readonly Verdict[]): Summary {
  const count = (answer: Answer): number => findings.filter((f) => f.answer === answer).length;
  return {
    ok: findings.length > 0 && !findings.some(fails),
    held: count("held"),
    open: count("open"),
    broken: count("broken"),
    notRun: count("not run"),
    excused: findings.filter((f) => f.answer === "not run" && f.excused !== undefined).length,
  };
}
