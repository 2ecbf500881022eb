// SPDX-License-Identifier: Apache-2.0
// The oracle's judge: what it must not let pass, and that no scenario is without an expected result.
import { describe, expect, it } from "vitest";
import { expected, rules } from "../oracle/expected.mjs";
import { judge } from "../oracle/lib/judge.mjs";
import { scenarios } from "../oracle/scenarios/index.mjs";

const clean = { guests: 0, processes: 0 };
const lost = { guests: 1, processes: 0 };
const run = (outcome: unknown, left = clean, notes: unknown[] = [{ "scenario done": true }]) => ({
  provider: "agent",
  calls: [{ n: 1, call: "create", outcome }],
  notes,
  end: { code: 0, signal: null },
  left,
});

describe("expected results", () => {
  it("are there for every scenario, each with a rule or a reason where it is not equal", () => {
    expect(Object.keys(expected).sort()).toEqual(Object.keys(scenarios).sort());
    for (const [name, entry] of Object.entries<any>(expected)) {
      if (entry.kind === "equal") continue;
      expect((rules as any)[entry.rule] ?? entry.reason, name).toMatch(/\w+/);
      if (entry.kind === "safer") expect(entry.differences.length, name).toBeGreaterThan(0);
    }
  });
});

describe("judge", () => {
  it("lets two equal runs pass", () => {
    expect(judge("demo", run("done"), run("done")).verdict).toBe("equal");
  });

  it("refuses any difference that is not expected: outcomes, calls, notes, leftovers", () => {
    const verdict = (product: unknown) => judge("demo", run("done"), product).verdict;
    expect(verdict(run("pending"))).toBe("UNEXPLAINED");
    expect(verdict({ ...run("done"), calls: [] })).toBe("UNEXPLAINED");
    expect(verdict(run("done", clean, [{ "scenario done": false }]))).toBe("UNEXPLAINED");
    expect(verdict(run("done", lost))).toBe("UNEXPLAINED");
    expect(verdict({ ...run("done"), end: { code: null, signal: "SIGSEGV" } })).toBe("UNEXPLAINED");
  });

  it("lets our words stand for the plain provider's, but only with the expected code", () => {
    const plain = run({ rejected: "no kvm" });
    const ours = (code: string) => run({ rejected: `it failed [${code}, step boot] A cure.`, code });
    expect(judge("createThrows", plain, ours("START_FAILED")).verdict).toBe("equal");
    expect(judge("createThrows", plain, ours("INTERNAL")).verdict).toBe("UNEXPLAINED");
    expect(judge("createThrows", plain, run("done")).verdict).toBe("UNEXPLAINED");
  });

  it("refuses a safer scenario in which nothing safer was seen", () => {
    expect(judge("shallow", run("done", lost), run("done", clean)).verdict).toBe("safer");
    expect(judge("shallow", run("done", lost), run("done", lost)).verdict).toBe("UNEXPLAINED");
    expect(judge("shallow", run("done", clean), run("done", clean)).verdict).toBe("UNEXPLAINED");
  });

  it("refuses a run that said nothing, and a scenario that it does not know", () => {
    const nothing = { ...run("done"), calls: [], notes: [] };
    expect(judge("demo", nothing, nothing).verdict).toBe("UNEXPLAINED");
    expect(judge("unheard-of", run("done"), run("done")).verdict).toBe("UNEXPLAINED");
  });
});
