// SPDX-License-Identifier: Apache-2.0
// Options that several commands share: where Agent Lane keeps its things, and which limactl it runs.
import { InvalidArgumentError, type Command } from "commander";
import { hostPathOf } from "../../checks.js";
import { asLaneError } from "../../errors.js";
import type { NativeValue } from "../../native.js";
import { COPY_OUT_MOST } from "../../options.js";

export interface CommonOptions {
  readonly home?: string;
  readonly limactl?: string;
}

/**
 * A path on the command line: relative ones mean the current directory; an empty one, such as a variable that was never
 * set, is wrong usage. Node has put U+FFFD where an argument is no UTF-8: that would be another file.
 */
export function pathArgument(value: string): string {
  if (value.includes("\ufffd")) throw new InvalidArgumentError("It must be UTF-8.");
  try {
    return hostPathOf("It", value);
  } catch (error) {
    throw new InvalidArgumentError(`${asLaneError(error).message}.`);
  }
}

const UNITS: Readonly<Record<string, number>> = { "": 1, KIB: 2 ** 10, MIB: 2 ** 20, GIB: 2 ** 30, TIB: 2 ** 40 };

/** Bytes, as a number or with a unit: 4096, 512MiB, 2GiB. */
export function sizeArgument(value: string): number {
  const [, digits = "", unit = ""] = /^(\d{1,15})((?:[KMGT]iB)?)$/i.exec(value) ?? [];
  const size = Number(digits) * (UNITS[unit.toUpperCase()] ?? NaN);
  if (size >= 1 && size <= COPY_OUT_MOST) return size;
  throw new InvalidArgumentError("It must be a number of bytes from 1 to 1TiB, such as 4096, 512MiB or 2GiB.");
}

export function countArgument(value: string): number {
  if (/^[1-9]\d{0,9}$/.test(value)) return Number(value);
  throw new InvalidArgumentError("It must be a whole number from 1.");
}

const SECONDS: Readonly<Record<string, number>> = { "": 1, s: 1, m: 60, h: 3600 };
const TIME_MOST = 86_400;

/** A length of time in seconds, as a number or with a unit: 90, 90s, 10m, 2h. */
export function durationArgument(value: string): number {
  const [, digits = "", unit = ""] = /^(\d{1,7}(?:\.\d{1,3})?)([smh]?)$/.exec(value) ?? [];
  const seconds = Math.ceil(Number(digits) * (SECONDS[unit] ?? NaN));
  if (digits !== "" && seconds >= 1 && seconds <= TIME_MOST) return seconds;
  throw new InvalidArgumentError("It must be a time from 1s to 24h, such as 90s, 10m or 2h.");
}

/** The shell leaves the ~ of --home=~/x as it is, so we know it as in AGENT_LANE_HOME. */
function homeArgument(value: string): string {
  return /^~(\/|$)/.test(value) && !value.includes("\ufffd") ? value : pathArgument(value);
}

export function addCommon(command: Command, { limactl = false } = {}): Command {
  const home = "Agent Lane's directory (default: AGENT_LANE_HOME, else ~/.agent-lane)";
  command.option("--home <dir>", home, homeArgument);
  return limactl
    ? command.option("--limactl <path>", "limactl to use (default: AGENT_LANE_LIMACTL, else PATH)", pathArgument)
    : command;
}

/** As the engine takes them. */
export function common(options: CommonOptions): { readonly [key: string]: NativeValue } {
  return { home: options.home, limactlPath: options.limactl };
}
