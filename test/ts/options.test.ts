// SPDX-License-Identifier: Apache-2.0
// Each option's default and bounds, and what is said when one is wrong.
import { describe, expect, it } from "vitest";
import { LaneError } from "../../lib/errors.js";
import { OPTIONS, optionTable, resolveOptions, type LimaOptions } from "../../lib/options.js";
import { lima } from "../../lib/provider.js";
import { checkEnv } from "../../lib/rules.js";

function refusal(options: unknown): LaneError {
  try {
    resolveOptions(options as LimaOptions);
  } catch (error) {
    expect(error).toBeInstanceOf(LaneError);
    return error as LaneError;
  }
  throw new Error(`accepted: ${JSON.stringify(options)}`);
}

const BOUNDS: [keyof LimaOptions, number, number, boolean][] = [
  ["cpus", 1, 64, true],
  ["memoryGiB", 1, 256, false],
  ["diskGiB", 1, 2048, true],
  ["timeoutMinutes", 1, 1440, true],
  ["startTimeoutSeconds", 5, 600, true],
  ["syncInTimeoutSeconds", 10, 3600, true],
  ["maxCopyOutBytes", 1, 2 ** 40, true],
  ["maxCopyOutTotalBytes", 1, 2 ** 40, true],
  ["maxBufferedBytes", 2 ** 20, 8 * 2 ** 30, true],
  ["maxConcurrentVms", 1, 32, true],
  ["maxDiskGrowthGiB", 0.001, 4096, false],
  ["maxHostLogMiB", 1, 65536, true],
  ["minHostFreeGiB", 0, 65536, false],
  ["keepManifestDays", 0, 3650, true],
];

/** What is wrong of the other options, and what is said. */
const WRONG: [object, RegExp][] = [
  [{ network: "closed" }, /network must be "open" or "none", not "closed"/],
  [{ network: true }, /network .* not the boolean true/],
  [{ accelerator: "kvm" }, /accelerator must be "auto" or "tcg"/],
  [{ transport: "ssh" }, /transport must be "auto" or "shell" or "port"/],
  [{ guestSudo: "yes" }, /guestSudo must be true or false, not a string/],
  [{ allowUnknownLima: 1 }, /allowUnknownLima must be true or false, not the number 1/],
  [{ limactlPath: "limactl" }, /limactlPath must be an absolute path, not the relative path "limactl"/],
  [{ limactlPath: "" }, /limactlPath .* empty/],
  [{ home: "~/x" }, /home must be an absolute path/],
  [{ home: "/a\nb" }, /home .* control characters/],
  [{ copyOutRoot: 3 }, /copyOutRoot must be an absolute path, not the number 3/],
  [{ image: "" }, /image .* empty/],
  [{ image: "x".repeat(5000) }, /image .* at most 4096/],
  [{ imageKeys: "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3" }, /imageKeys must be a list .*, not a string/],
  [{ imageKeys: [] }, /imageKeys must have 1 to 16 .*, not 0/],
  [{ imageKeys: ["RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3", "x"] }, /imageKeys: "x" is no public key/],
  [{ imageKeys: [, "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3"] }, /imageKeys: undefined is no public key/],
  [{ worktreePath: "workspace" }, /worktreePath .* relative/],
  [{ worktreePath: "/home/agent/../x" }, /worktreePath .*use "\/home\/x"/],
  [{ worktreePath: "/home/agent/w/" }, /worktreePath .*use "\/home\/agent\/w"/],
  [{ worktreePath: "/" }, /worktreePath must be an absolute, normalised path below \/ .*, not \/ itself/],
  [{ worktreePath: "/a\x07b" }, /worktreePath .* control characters/],
  [{ onEvent: {} }, /onEvent must be a function, not an object/],
  [{ env: ["A=1"] }, /env must be an object of names and texts, not an array/],
  [{ env: { "A-B": "1" } }, /"A-B" is not a variable's name/],
  [{ env: { A: 1 } }, /A must be a text, not the number 1/],
  [{ env: { A: "x\0y" } }, /A contains a NUL/],
  [{ onLowSpace: "kill" }, /onLowSpace must be "close" or "event", not "kill"/],
  [{ reporter: true }, /reporter must be "off" or "auto" or "on", not the boolean true/],
];

it("no option with a number is left out here", () => {
  const numbers = OPTIONS.filter(({ default: d, boundsText }) => typeof d === "number" || /\(number\)/.test(boundsText)).map(({ name }) => name);
  expect(BOUNDS.map(([name]) => name).sort()).toEqual(numbers.sort());
});

describe("defaults", () => {
  it("are those of the documentation", () => {
    expect(resolveOptions()).toEqual({
      cpus: 4,
      memoryGiB: 8,
      diskGiB: 30,
      timeoutMinutes: 60,
      startTimeoutSeconds: 110,
      syncInTimeoutSeconds: 150,
      maxCopyOutBytes: 268435456,
      maxCopyOutTotalBytes: 4294967296,
      maxBufferedBytes: 536870912,
      maxHostLogMiB: 64,
      minHostFreeGiB: 1,
      onLowSpace: "close",
      maxConcurrentVms: 2,
      worktreePath: "/home/agent/workspace",
      guestSudo: true,
      network: "open",
      accelerator: "auto",
      transport: "auto",
      keepManifestDays: 30,
      allowUnknownLima: false,
      env: {},
    });
  });

  it("let one call copy out as much as it may, whatever all may", () => {
    const more = 5 * 2 ** 30;
    expect(resolveOptions({ maxCopyOutBytes: more }).maxCopyOutTotalBytes).toBe(more);
    expect(resolveOptions({ maxCopyOutBytes: more, maxCopyOutTotalBytes: 1 }).maxCopyOutTotalBytes).toBe(1);
  });

  it("stand in for options that are undefined", () => {
    expect(resolveOptions({ cpus: undefined, network: undefined }).cpus).toBe(4);
  });

  it("are copied, so that later changes of the caller's object have no effect", () => {
    const env = { A: "1" };
    const resolved = resolveOptions({ env });
    env.A = "2";
    expect(resolved.env).toEqual({ A: "1" });
  });
});

describe.each(BOUNDS)("%s", (name, min, max, integer) => {
  it(`accepts ${min} and ${max}`, () => {
    expect(resolveOptions({ [name]: min })[name]).toBe(min);
    expect(resolveOptions({ [name]: max })[name]).toBe(max);
  });

  it.each([min - 1, max + 1, NaN, Infinity, -Infinity, String(min), null, {}, [min], true, BigInt(Math.ceil(min))])(
    "refuses %s",
    (value) => {
      const error = refusal({ [name]: value });
      expect(error.code).toBe("BAD_OPTION");
      expect(error.message).toContain(name);
      expect(error.message).toContain(`from ${min} to ${max}`);
      expect(error.cure).not.toBe("");
    },
  );

  it(integer ? "refuses fractions" : "accepts fractions", () => {
    if (integer) expect(refusal({ [name]: min + 0.5 }).message).toContain("an integer");
    else expect(resolveOptions({ [name]: min + 0.5 })[name]).toBe(min + 0.5);
  });
});

describe("texts and choices", () => {
  it.each(WRONG)("refuses %j", (options, message) => {
    const error = refusal(options);
    expect(error.code).toBe("BAD_OPTION");
    expect(error.message).toMatch(message);
  });

  it.each([null, 3, "x", []])("refuses %j in place of the options", (options) => {
    expect(refusal(options).code).toBe("BAD_OPTION");
  });

  it("never shows the value of a variable", () => {
    for (const env of [{ TOKEN: "hunter2\0" }, { "BAD NAME": "hunter2" }])
      expect(refusal({ env }).message).not.toContain("hunter2");
  });

  it("checks the variables that Sandcastle brings as well", () => {
    expect(() => checkEnv({ "A=B": "1" }, "env")).toThrow(/env: "A=B"/);
  });
});

describe("unknown options", () => {
  it.each([
    ["cpu", "cpus"],
    ["CPUS", "cpus"],
    ["memory", "memoryGiB"],
    ["memoryGb", "memoryGiB"],
    ["timeoutMinute", "timeoutMinutes"],
    ["startTimeout", "startTimeoutSeconds"],
    ["limactl", "limactlPath"],
    ["maxConcurrentVMs", "maxConcurrentVms"],
    ["worktree", "worktreePath"],
    ["onevent", "onEvent"],
  ])("%s suggests %s", (name, meant) => {
    const error = refusal({ [name]: 1 });
    expect(error.code).toBe("UNKNOWN_OPTION");
    expect(error.message).toContain(`did you mean ${meant}?`);
  });

  it("lists the options when nothing is near", () => {
    const error = refusal({ zzzzzzzzzz: 1 });
    expect(error.message).not.toContain("did you mean");
    expect(error.cure).toContain("startTimeoutSeconds");
  });

  it("is not misled by names of Object's prototype", () => {
    expect(refusal({ constructor: 1 }).code).toBe("UNKNOWN_OPTION");
    expect(refusal(JSON.parse('{"__proto__": 1}')).code).toBe("UNKNOWN_OPTION");
  });
});

describe("lima()", () => {
  it("throws at once, naming the option", () => {
    expect(() => lima({ cpus: 0 })).toThrow(/option cpus must be an integer from 1 to 64, not the number 0/);
  });

  it("returns what createIsolatedSandboxProvider returns", () => {
    const provider = lima({ env: { A: "1" } }) as unknown as Record<string, unknown>;
    expect(provider).toMatchObject({ tag: "isolated", name: "agent-lane", env: { A: "1" } });
    expect(provider["create"]).toBeTypeOf("function");
  });
});

it("the table for the README has them all", () => {
  for (const option of OPTIONS) expect(optionTable()).toContain(`| \`${option.name}\` |`);
});

it("every option has its bounds tested here", () => {
  const tested = [...BOUNDS.map(([name]) => name as string), ...WRONG.flatMap(([options]) => Object.keys(options))];
  expect(OPTIONS.map((option) => option.name).filter((name) => !tested.includes(name))).toEqual([]);
});
