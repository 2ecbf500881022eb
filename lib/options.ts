// SPDX-License-Identifier: Apache-2.0
// The one table of options: defaults, bounds and words. Validation, messages and the README's table come from it.
import { posix } from "node:path";
import { badOption, LaneError } from "./errors.js";
import type { LaneEvent } from "./events.js";
import { nearest } from "./suggest.js";

/** Options of `lima()`. All are optional. */
export interface LimaOptions {
  /** Virtual CPUs of the VM. Integer 1–64, default 4. */
  readonly cpus?: number | undefined;
  /** Memory of the VM in GiB. Number 1–256, default 8. */
  readonly memoryGiB?: number | undefined;
  /** Size of the VM's disk in GiB. Integer, at least the image's size, at most 2048; default 30. The disk grows as it is used. */
  readonly diskGiB?: number | undefined;
  /** Lifetime of the lane in minutes; then it is destroyed, whatever runs in it. Integer 1–1440, default 60. */
  readonly timeoutMinutes?: number | undefined;
  /** Time for a lane to become ready, in seconds, waiting for a place included. Integer 5–600, default 110: Sandcastle gives up at 120. */
  readonly startTimeoutSeconds?: number | undefined;
  /** Time after which a lane into which Sandcastle copied no repository counts as lost and is closed, in seconds. Integer 10–3600, default 150. */
  readonly syncInTimeoutSeconds?: number | undefined;
  /** Largest file that may be copied out of the lane, in bytes. Integer 1–4294967296 (4 GiB), default 268435456 (256 MiB). */
  readonly maxCopyOutBytes?: number | undefined;
  /** Output that all running commands of a lane may keep in memory together, in bytes; the one that passes it is killed. Integer 1048576 (1 MiB)–8589934592 (8 GiB), default 536870912 (512 MiB). */
  readonly maxBufferedBytes?: number | undefined;
  /** VMs that may run at the same time, over all processes of this user. Integer 1–32, default 2. */
  readonly maxConcurrentVms?: number | undefined;
  /** The worktree's path in the guest: absolute, normalised. Default `/home/agent/workspace`. */
  readonly worktreePath?: string | undefined;
  /** Whether the user `agent` may use sudo in the guest. Default true: the VM is the boundary, not the user. */
  readonly guestSudo?: boolean | undefined;
  /** `"open"` (default): the guest reaches the network. `"none"`: it does not; needs QEMU. */
  readonly network?: "open" | "none" | undefined;
  /** `"auto"` (default): hardware acceleration where it is proven to work. `"tcg"`: emulation. */
  readonly accelerator?: "auto" | "tcg" | undefined;
  /** Guest image: a name or id from `agent-lane image ls`, or the absolute path of an unpacked image directory. Default: the newest. */
  readonly image?: string | undefined;
  /** Absolute path of limactl. Default: `AGENT_LANE_LIMACTL`, else found on PATH. */
  readonly limactlPath?: string | undefined;
  /** Accept a limactl whose version cannot be read, such as one you built yourself. Default false. */
  readonly allowUnknownLima?: boolean | undefined;
  /** Absolute path of Agent Lane's own directory. Default: `AGENT_LANE_HOME`, else `~/.agent-lane`. */
  readonly home?: string | undefined;
  /** Environment of every command in the lane. Sandcastle's own variables win. Values never reach a disk or a command line. */
  readonly env?: Readonly<Record<string, string>> | undefined;
  /** Absolute host directory below which `copyFileOut` may write. Default: the nearest ancestor of the target with `.git`, else its deepest existing parent. */
  readonly copyOutRoot?: string | undefined;
  /** Told about the lane's life. What it throws is reported as a process warning. */
  readonly onEvent?: ((event: LaneEvent) => void) | undefined;
}

export type OptionName = keyof LimaOptions;

export interface ResolvedOptions extends LimaOptions {
  readonly cpus: number;
  readonly memoryGiB: number;
  readonly diskGiB: number;
  readonly timeoutMinutes: number;
  readonly startTimeoutSeconds: number;
  readonly syncInTimeoutSeconds: number;
  readonly maxCopyOutBytes: number;
  readonly maxBufferedBytes: number;
  readonly maxConcurrentVms: number;
  readonly worktreePath: string;
  readonly guestSudo: boolean;
  readonly network: "open" | "none";
  readonly accelerator: "auto" | "tcg";
  readonly allowUnknownLima: boolean;
  readonly env: Readonly<Record<string, string>>;
}

/** Above this start timeout Sandcastle has given up before we do. */
export const START_TIMEOUT_ADVISED = 115;

const MIB = 2 ** 20;
const GIB = 2 ** 30;
const TEXT_MAX = 4096;

interface NumberRule {
  readonly kind: "integer" | "number";
  readonly min: number;
  readonly max: number;
}
interface TextRule {
  readonly kind: "name" | "guest path" | "host path";
}
interface ChoiceRule {
  readonly kind: "choice";
  readonly values: readonly string[];
}
interface PlainRule {
  readonly kind: "boolean" | "environment" | "function";
}
type Rule = NumberRule | TextRule | ChoiceRule | PlainRule;

export interface OptionSpec {
  readonly name: OptionName;
  readonly rule: Rule;
  readonly default: number | string | boolean | undefined;
  /** The default and the bounds, in words. */
  readonly defaultText: string;
  readonly boundsText: string;
  readonly doc: string;
}

function spec(
  name: OptionName,
  rule: Rule,
  dflt: number | string | boolean | undefined,
  words: { dflt?: string; bounds?: string; doc: string },
): OptionSpec {
  let bounds = words.bounds;
  if (bounds === undefined) {
    if ("min" in rule) bounds = `${rule.min}–${rule.max}`;
    else if (rule.kind === "choice") bounds = rule.values.map((v) => `\`"${v}"\``).join(" or ");
    else bounds = rule.kind;
  }
  return { name, rule, default: dflt, defaultText: words.dflt ?? String(dflt), boundsText: bounds, doc: words.doc };
}

const int = (min: number, max: number): NumberRule => ({ kind: "integer", min, max });

/** In the order in which people read about them. */
export const OPTIONS: readonly OptionSpec[] = [
  spec("cpus", int(1, 64), 4, { doc: "virtual CPUs of the VM" }),
  spec("memoryGiB", { kind: "number", min: 1, max: 256 }, 8, { bounds: "1–256 (number)", doc: "memory of the VM" }),
  spec("diskGiB", int(1, 2048), 30, {
    bounds: "image size–2048",
    doc: "size of the VM's disk, which grows as it is used",
  }),
  spec("timeoutMinutes", int(1, 1440), 60, { doc: "lifetime; then the lane is destroyed, whatever runs in it" }),
  spec("startTimeoutSeconds", int(5, 600), 110, {
    bounds: `5–600; a warning above ${START_TIMEOUT_ADVISED}`,
    doc: "time to become ready, waiting for a place included; Sandcastle gives up at 120",
  }),
  spec("syncInTimeoutSeconds", int(10, 3600), 150, {
    doc: "a lane into which Sandcastle copied no repository by then is closed",
  }),
  spec("maxCopyOutBytes", int(1, 4 * GIB), 256 * MIB, {
    dflt: "256 MiB",
    bounds: "1 B–4 GiB",
    doc: "largest file that may be copied out, in bytes",
  }),
  spec("maxBufferedBytes", int(MIB, 8 * GIB), 512 * MIB, {
    dflt: "512 MiB",
    bounds: "1 MiB–8 GiB",
    doc: "output that all running commands keep in memory together, in bytes; the one that passes it is stopped",
  }),
  spec("maxConcurrentVms", int(1, 32), 2, { doc: "VMs that may run at a time, over all processes of this user" }),
  spec("worktreePath", { kind: "guest path" }, "/home/agent/workspace", {
    dflt: "`/home/agent/workspace`",
    bounds: "absolute, normalised",
    doc: "the worktree in the guest; its parent is made and owned by `agent`",
  }),
  spec("guestSudo", { kind: "boolean" }, true, {
    bounds: "true or false",
    doc: "whether `agent` may use sudo in the guest: the VM is the boundary, not the user",
  }),
  spec("network", { kind: "choice", values: ["open", "none"] }, "open", {
    dflt: '`"open"`',
    doc: 'whether the guest reaches the network; `"none"` needs QEMU',
  }),
  spec("accelerator", { kind: "choice", values: ["auto", "tcg"] }, "auto", {
    dflt: '`"auto"`',
    doc: '`"auto"`: KVM only after it has been proven to boot; `"tcg"`: emulation',
  }),
  spec("image", { kind: "name" }, undefined, {
    dflt: "the newest",
    bounds: "name, id or absolute path",
    doc: "guest image, see `agent-lane image ls`",
  }),
  spec("limactlPath", { kind: "host path" }, undefined, {
    dflt: "`AGENT_LANE_LIMACTL`, else PATH",
    bounds: "absolute path",
    doc: "limactl 2.2.0 or newer",
  }),
  spec("allowUnknownLima", { kind: "boolean" }, false, {
    bounds: "true or false",
    doc: "accept a limactl whose version cannot be read, such as one you built yourself",
  }),
  spec("home", { kind: "host path" }, undefined, {
    dflt: "`AGENT_LANE_HOME`, else `~/.agent-lane`",
    bounds: "absolute path",
    doc: "Agent Lane's own directory",
  }),
  spec("env", { kind: "environment" }, undefined, {
    dflt: "`{}`",
    bounds: "names and texts",
    doc: "environment of every command; Sandcastle's variables win; never on a command line, never on a disk",
  }),
  spec("copyOutRoot", { kind: "host path" }, undefined, {
    dflt: "nearest ancestor with `.git`",
    bounds: "absolute path",
    doc: "host directory below which `copyFileOut` may write",
  }),
  spec("onEvent", { kind: "function" }, undefined, {
    dflt: "none",
    bounds: "function",
    doc: "told about the lane's life",
  }),
];

/** "a string", "an array", "the number 3", for messages; never the value of a text, which may be a secret. */
function kindOf(value: unknown): string {
  if (value === null) return "null";
  if (Array.isArray(value)) return "an array";
  if (typeof value === "number" || typeof value === "boolean") return `the ${typeof value} ${String(value)}`;
  return typeof value === "object" ? "an object" : `a ${typeof value}`;
}

function refuse(name: string, wanted: string, value: unknown, shown = kindOf(value)): never {
  throw badOption(`option ${name} must be ${wanted}, not ${shown}`);
}

const HOST_TEXT = /[\0\r\n]/;
const GUEST_CONTROL = /[\0-\x1f\x7f]/;

function checkText(name: string, rule: TextRule, value: unknown): void {
  const wanted =
    rule.kind === "name"
      ? "a name or an absolute path"
      : rule.kind === "guest path"
        ? "an absolute, normalised path in the guest"
        : "an absolute path";
  if (typeof value !== "string") refuse(name, wanted, value);
  if (value === "") refuse(name, wanted, value, "an empty text");
  if (value.length > TEXT_MAX)
    refuse(name, `${wanted} of at most ${TEXT_MAX} characters`, value, `one of ${value.length}`);
  if ((rule.kind === "guest path" ? GUEST_CONTROL : HOST_TEXT).test(value))
    refuse(name, wanted, value, "a text with control characters");
  if (rule.kind === "name") return;
  if (!value.startsWith("/")) refuse(name, wanted, value, `the relative path "${value.slice(0, 80)}"`);
  if (rule.kind === "guest path" && value === "/") refuse(name, "a directory below /", value, "/ itself");
  if (rule.kind === "guest path" && (posix.normalize(value) !== value || value.endsWith("/")))
    refuse(
      name,
      wanted,
      value,
      `"${value.slice(0, 80)}" (use "${posix
        .normalize(value)
        .replace(/(?<=.)\/$/, "")
        .slice(0, 80)}")`,
    );
}

const ENV_NAME = /^[A-Za-z_][A-Za-z0-9_]*$/;

/** Throws BAD_OPTION unless every name is a shell identifier and every value a text without NUL. Values are never shown. */
export function checkEnv(env: unknown, where = "option env"): asserts env is Record<string, string> {
  if (typeof env !== "object" || env === null || Array.isArray(env))
    throw badOption(`${where} must be an object of names and texts, not ${kindOf(env)}`);
  for (const [name, value] of Object.entries(env)) {
    if (!ENV_NAME.test(name))
      throw badOption(
        `${where}: ${JSON.stringify(name.slice(0, 80))} is not a variable's name (letters, digits and _, not starting with a digit)`,
      );
    if (typeof value !== "string") throw badOption(`${where}: ${name} must be a text, not ${kindOf(value)}`);
    if (value.includes("\0")) throw badOption(`${where}: ${name} contains a NUL character`);
  }
}

function checkNumber(name: string, rule: NumberRule, value: unknown): void {
  const wanted = `${rule.kind === "integer" ? "an integer" : "a number"} from ${rule.min} to ${rule.max}`;
  if (typeof value !== "number" || !(value >= rule.min && value <= rule.max)) refuse(name, wanted, value);
  if (rule.kind === "integer" && !Number.isInteger(value)) refuse(name, wanted, value);
}

function check(option: OptionSpec, value: unknown): void {
  const { name, rule } = option;
  switch (rule.kind) {
    case "integer":
    case "number":
      return checkNumber(name, rule, value);
    case "name":
    case "guest path":
    case "host path":
      return checkText(name, rule, value);
    case "choice":
      if (typeof value !== "string" || !rule.values.includes(value))
        refuse(
          name,
          rule.values.map((v) => `"${v}"`).join(" or "),
          value,
          typeof value === "string" ? JSON.stringify(value.slice(0, 80)) : kindOf(value),
        );
      return;
    case "boolean":
      if (typeof value !== "boolean") refuse(name, "true or false", value);
      return;
    case "environment":
      return checkEnv(value);
    case "function":
      if (typeof value !== "function") refuse(name, "a function", value);
  }
}

/** Checks the options and fills in the defaults. Throws LaneError BAD_OPTION or UNKNOWN_OPTION. */
export function resolveOptions(options: LimaOptions = {}): ResolvedOptions {
  if (typeof options !== "object" || options === null || Array.isArray(options))
    throw badOption(`the options of lima() must be an object, not ${kindOf(options)}`);
  for (const name of Object.keys(options)) {
    if (OPTIONS.some((option) => option.name === name)) continue;
    const near = nearest(
      name,
      OPTIONS.map((o) => o.name),
    );
    throw new LaneError({
      code: "UNKNOWN_OPTION",
      message: `there is no option ${JSON.stringify(name.slice(0, 80))}${near === undefined ? "" : `; did you mean ${near}?`}`,
      cure:
        near === undefined
          ? `Remove it. The options are: ${OPTIONS.map((o) => o.name).join(", ")}.`
          : `Use ${near}, or remove the option.`,
    });
  }
  const resolved: Record<string, unknown> = {};
  for (const option of OPTIONS) {
    const value = options[option.name];
    if (value === undefined) {
      if (option.default !== undefined) resolved[option.name] = option.default;
      continue;
    }
    check(option, value);
    resolved[option.name] = value;
  }
  // A copy: what the caller changes afterwards has no effect on lanes.
  resolved["env"] = { ...options.env };
  return Object.freeze(resolved) as unknown as ResolvedOptions;
}

/** The options as a Markdown table, for the README. */
export function optionTable(): string {
  const rows = OPTIONS.map((o) => `| \`${o.name}\` | ${o.defaultText} | ${o.boundsText} | ${o.doc} |`);
  return ["| option | default | bounds | what it is |", "|---|---|---|---|", ...rows].join("\n");
}
