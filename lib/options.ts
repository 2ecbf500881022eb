// SPDX-License-Identifier: Apache-2.0
// The one table of options: defaults, bounds and words. Validation, messages and the README's table come from it.
import { badOption } from "./errors.js";
import type { LaneEvent } from "./events.js";
import { imageRule, settleProject, type ProjectImage, type SettledProject } from "./project.js";
import { reporting, type ReporterChoice } from "./reporter.js";
import * as is from "./rules.js";

/** Options of `lima()`. All are optional. */
export interface LimaOptions {
  /** Virtual CPUs of the VM. Integer 1–64, default 4. */
  readonly cpus?: number | undefined;
  /** Memory of the VM in GiB. Number 1–256, default 8. */
  readonly memoryGiB?: number | undefined;
  /**
   * Size of the VM's disk in GiB. Integer, at least the image's size, at most 2048; default 30. The disk grows as it is
   * used.
   */
  readonly diskGiB?: number | undefined;
  /** Lifetime of the lane in minutes; then it is destroyed, whatever runs in it. Integer 1–1440, default 60. */
  readonly timeoutMinutes?: number | undefined;
  /**
   * Time for a lane to become ready, in seconds, waiting for a place included. Integer 5–600, default 110: Sandcastle
   * gives up at 120.
   */
  readonly startTimeoutSeconds?: number | undefined;
  /**
   * Time after which a lane into which Sandcastle copied no repository counts as lost and is closed, in seconds.
   * Integer 10–3600, default 150.
   */
  readonly syncInTimeoutSeconds?: number | undefined;
  /**
   * Most bytes that one call may copy out of the lane: a file's, or those of all files of a directory. Integer
   * 1–1099511627776 (1 TiB), default 268435456 (256 MiB).
   */
  readonly maxCopyOutBytes?: number | undefined;
  /**
   * Most bytes that may be copied out of the lane in all its life. Integer 1–1099511627776 (1 TiB); default 4294967296
   * (4 GiB), or `maxCopyOutBytes` when that is more.
   */
  readonly maxCopyOutTotalBytes?: number | undefined;
  /**
   * Output that all running commands of a lane may keep in memory together, in bytes; the one that passes it is killed.
   * Integer 1048576 (1 MiB)–8589934592 (8 GiB), default 536870912 (512 MiB).
   */
  readonly maxBufferedBytes?: number | undefined;
  /**
   * How much the lane's files may grow on the host, in GiB, before it is closed with RESOURCE_LIMIT. Number 0.001–4096;
   * default: no bound but `diskGiB`.
   */
  readonly maxDiskGrowthGiB?: number | undefined;
  /** Size in MiB at which the logs of Lima's host agent are emptied. Integer 1–65536, default 64. */
  readonly maxHostLogMiB?: number | undefined;
  /**
   * Space in GiB that is to stay free on the disk of `home`. With less no lane is created (HOST_DISK_FULL), and open ones
   * say so, see `onLowSpace`. Number 0–65536 (0: never looked at), default 1.
   */
  readonly minHostFreeGiB?: number | undefined;
  /**
   * What happens when space stays below `minHostFreeGiB`: `"close"` (default): the lane that takes most is closed with
   * RESOURCE_LIMIT, after a `warning` event. `"event"`: only the event.
   */
  readonly onLowSpace?: "close" | "event" | undefined;
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
  /**
   * What carries the commands and files. `"auto"` (default): `"port"` (a virtio port of the VM, the faster one) where VM
   * and image have it, else `"shell"` (one `limactl shell`). The others: that one, or an error.
   */
  readonly transport?: "auto" | "shell" | "port" | undefined;
  /**
   * Guest image: a name or id from `agent-lane image ls`, or the absolute path of an unpacked image directory; or, as an
   * object, such an image in which a setup of the project's has run once. Default: the newest.
   */
  readonly image?: string | ProjectImage | undefined;
  /**
   * Public keys of minisign (the second line of `minisign.pub`), 1–16. With them a lane starts only from an image that one of
   * them has signed, or that was derived from one. Default: signatures are not asked for.
   */
  readonly imageKeys?: readonly string[] | undefined;
  /** Absolute path of limactl. Default: `AGENT_LANE_LIMACTL`, else found on PATH. */
  readonly limactlPath?: string | undefined;
  /**
   * How many days after its end the lane's run manifest is kept: what ran, from which image, and what was enforced. Integer
   * 0–3650, default 30.
   */
  readonly keepManifestDays?: number | undefined;
  /** Accept a limactl whose version cannot be read, such as one you built yourself. Default false. */
  readonly allowUnknownLima?: boolean | undefined;
  /** Absolute path of Agent Lane's own directory. Default: `AGENT_LANE_HOME`, else `~/.agent-lane`. */
  readonly home?: string | undefined;
  /**
   * Environment of every command in the lane. Sandcastle's own variables win. Values never reach a disk or a command
   * line.
   */
  readonly env?: Readonly<Record<string, string>> | undefined;
  /**
   * Absolute host directory below which `copyFileOut` and `copyOut` may write. Default: the nearest ancestor of the target with
   * `.git`, else its deepest existing parent.
   */
  readonly copyOutRoot?: string | undefined;
  /** Told about the lane's life. What it throws is reported as a process warning. */
  readonly onEvent?: ((event: LaneEvent) => void) | undefined;
  /**
   * Whether the lane's life is written to stderr, one line an event: waiting for a place, create, boot, connect, ready, each
   * with its time. `"auto"`: where stderr is a terminal. `"on"`: always. Default `"off"`. Warnings are lines then too, and no
   * process warnings.
   */
  readonly reporter?: ReporterChoice | undefined;
}

export type OptionName = keyof LimaOptions;

/** What has a value in every case. */
type Defaulted =
  | "cpus"
  | "memoryGiB"
  | "diskGiB"
  | "timeoutMinutes"
  | "startTimeoutSeconds"
  | "syncInTimeoutSeconds"
  | "maxCopyOutBytes"
  | "maxCopyOutTotalBytes"
  | "maxBufferedBytes"
  | "maxHostLogMiB"
  | "minHostFreeGiB"
  | "onLowSpace"
  | "maxConcurrentVms"
  | "worktreePath"
  | "guestSudo"
  | "network"
  | "accelerator"
  | "transport"
  | "keepManifestDays"
  | "allowUnknownLima"
  | "env";

export type ResolvedOptions = Omit<LimaOptions, "image" | "reporter"> & { readonly [K in Defaulted]: NonNullable<LimaOptions[K]> } & {
  readonly image?: string | SettledProject | undefined;
};

/** Above this start timeout Sandcastle has given up before we do. */
export const START_TIMEOUT_ADVISED = 115;

const MIB = 2 ** 20;
const GIB = 2 ** 30;
const TIB = 2 ** 40;
/** What one copy may bring out at most, whatever the options say. */
export const COPY_OUT_MOST = TIB;

export interface OptionSpec {
  readonly name: OptionName;
  readonly rule: is.Rule;
  readonly default: unknown;
  /** The default and the bounds, in words. */
  readonly defaultText: string;
  readonly boundsText: string;
  readonly doc: string;
}

/** `words` say what the value and the rule do not say themselves. */
function spec(
  name: OptionName,
  rule: is.Rule,
  dflt: unknown,
  doc: string,
  words: { dflt?: string; bounds?: string } = {},
): OptionSpec {
  const defaultText = words.dflt ?? rule.show(dflt);
  return { name, rule, default: dflt, defaultText, boundsText: words.bounds ?? rule.bounds, doc };
}

/** In the order in which people read about them. */
export const OPTIONS: readonly OptionSpec[] = [
  spec("cpus", is.integer(1, 64), 4, "virtual CPUs of the VM"),
  spec("memoryGiB", is.number(1, 256), 8, "memory of the VM"),
  spec("diskGiB", is.integer(1, 2048), 30, "size of the VM's disk, which grows as it is used", {
    bounds: "image size–2048",
  }),
  spec("timeoutMinutes", is.integer(1, 1440), 60, "lifetime; then the lane is destroyed, whatever runs in it"),
  spec(
    "startTimeoutSeconds",
    is.integer(5, 600),
    110,
    "time to become ready, waiting for a place included; Sandcastle gives up at 120",
    { bounds: `5–600; a warning above ${START_TIMEOUT_ADVISED}` },
  ),
  spec(
    "syncInTimeoutSeconds",
    is.integer(10, 3600),
    150,
    "a lane into which Sandcastle copied no repository by then is closed",
  ),
  spec(
    "maxCopyOutBytes",
    is.bytes(1, COPY_OUT_MOST),
    256 * MIB,
    "most that one call may copy out, in bytes: a file, or all files of a directory",
  ),
  spec(
    "maxCopyOutTotalBytes",
    is.bytes(1, COPY_OUT_MOST),
    4 * GIB,
    "most that may be copied out of a lane in all its life, in bytes",
    { dflt: "4 GiB, or `maxCopyOutBytes` when that is more" },
  ),
  spec(
    "maxBufferedBytes",
    is.bytes(MIB, 8 * GIB),
    512 * MIB,
    "output that all running commands keep in memory together, in bytes; the one that passes it is stopped",
  ),
  spec(
    "maxDiskGrowthGiB",
    is.number(0.001, 4096),
    undefined,
    "growth of the lane's files on the host at which it is closed (RESOURCE_LIMIT)",
    { dflt: "none but `diskGiB`" },
  ),
  spec("maxHostLogMiB", is.integer(1, 65536), 64, "size at which the logs of Lima's host agent are emptied"),
  spec(
    "minHostFreeGiB",
    is.number(0, 65536),
    1,
    "space that stays free on the disk of `home`: with less no lane is created; 0 never looks",
  ),
  spec(
    "onLowSpace",
    is.oneOf("close", "event"),
    "close",
    '`"close"`: while space is low the lane that takes most is closed, after a `warning` event; `"event"`: only the event',
  ),
  spec("maxConcurrentVms", is.integer(1, 32), 2, "VMs that may run at a time, over all processes of this user"),
  spec(
    "worktreePath",
    is.guestPath,
    "/home/agent/workspace",
    "the worktree in the guest; its parent is made and owned by `agent`",
  ),
  spec("guestSudo", is.bool, true, "whether `agent` may use sudo in the guest: the VM is the boundary, not the user"),
  spec("network", is.oneOf("open", "none"), "open", 'whether the guest reaches the network; `"none"` needs QEMU'),
  spec(
    "accelerator",
    is.oneOf("auto", "tcg"),
    "auto",
    '`"auto"`: KVM only after it has been proven to boot; `"tcg"`: emulation',
  ),
  spec(
    "transport",
    is.oneOf("auto", "shell", "port"),
    "auto",
    'what carries commands and files: `"port"` (virtio port; QEMU, a current image) or `"shell"` (`limactl shell`)',
  ),
  spec("image", imageRule, undefined, "guest image, see `agent-lane image ls`; as an object: a project image, see below", {
    dflt: "the newest",
  }),
  spec(
    "imageKeys",
    is.publicKeys,
    undefined,
    "public keys of minisign, one of which must have signed the image, or what it was derived from (docs/IMAGES.md)",
    { dflt: "signatures are not asked for" },
  ),
  spec("limactlPath", is.hostPath, undefined, "limactl 2.2.0 or newer", { dflt: "`AGENT_LANE_LIMACTL`, else PATH" }),
  spec(
    "allowUnknownLima",
    is.bool,
    false,
    "accept a limactl whose version cannot be read, such as one you built yourself",
  ),
  spec(
    "keepManifestDays",
    is.integer(0, 3650),
    30,
    "how many days after the lane's end its run manifest is kept (`agent-lane runs`)",
  ),
  spec("home", is.hostPath, undefined, "Agent Lane's own directory", {
    dflt: "`AGENT_LANE_HOME`, else `~/.agent-lane`",
  }),
  spec(
    "env",
    is.environment,
    undefined,
    "environment of every command; Sandcastle's variables win; never on a command line, never on a disk",
    { dflt: "`{}`" },
  ),
  spec("copyOutRoot", is.hostPath, undefined, "host directory below which copies out may write", {
    dflt: "nearest ancestor of the target with `.git`, else its deepest existing parent",
  }),
  spec("onEvent", is.func, undefined, "told about the lane's life", { dflt: "none" }),
  spec(
    "reporter",
    is.oneOf("off", "auto", "on"),
    "off",
    'what happens while a lane starts and ends, as lines on stderr; `"auto"`: where that is a terminal',
  ),
];

export const OPTION_NAMES: readonly string[] = OPTIONS.map((option) => option.name);

/**
 * Checks the options and fills in the defaults. Throws LaneError BAD_OPTION or UNKNOWN_OPTION, which suggests one of
 * `known`.
 */
export function resolveOptions(options: LimaOptions = {}, known = OPTION_NAMES): ResolvedOptions {
  if (typeof options !== "object" || options === null || Array.isArray(options))
    throw badOption(`the options of lima() must be an object, not ${is.kindOf(options)}`);
  is.refuseUnknown("option", options, known);
  const resolved: Record<string, unknown> = {};
  for (const option of OPTIONS) {
    const value = options[option.name];
    if (value === undefined) {
      if (option.default !== undefined) resolved[option.name] = option.default;
      continue;
    }
    option.rule.check(`option ${option.name}`, value);
    resolved[option.name] = value;
  }
  const { maxCopyOutBytes, maxCopyOutTotalBytes } = resolved as unknown as ResolvedOptions;
  if (options.maxCopyOutTotalBytes === undefined)
    resolved["maxCopyOutTotalBytes"] = Math.max(maxCopyOutBytes, maxCopyOutTotalBytes);
  // A copy: what the caller changes afterwards has no effect on lanes.
  resolved["env"] = { ...options.env };
  const { imageKeys } = resolved as unknown as ResolvedOptions;
  if (imageKeys !== undefined) resolved["imageKeys"] = [...imageKeys];
  // It is a listener before the user's own from here on.
  const { reporter, ...rest } = resolved as { readonly reporter: ReporterChoice; readonly onEvent?: ResolvedOptions["onEvent"] };
  const onEvent = reporting(reporter, rest.onEvent);
  delete resolved["reporter"];
  if (onEvent !== undefined) resolved["onEvent"] = onEvent;
  const { image, network } = resolved as unknown as { image: LimaOptions["image"]; network: "open" | "none" };
  if (typeof image === "object") resolved["image"] = settleProject(image, { network });
  return Object.freeze(resolved) as unknown as ResolvedOptions;
}

/** The options as a Markdown table, for the README. */
export function optionTable(): string {
  const rows = OPTIONS.map((o) => `| \`${o.name}\` | ${o.defaultText} | ${o.boundsText} | ${o.doc} |`);
  return ["| option | default | bounds | what it is |", "|---|---|---|---|", ...rows].join("\n");
}
