// SPDX-License-Identifier: Apache-2.0
// Options that several commands share: where Agent Lane keeps its things, and which limactl it runs.
import { resolve } from "node:path";
import type { Command } from "commander";
import type { NativeValue } from "../../native.js";

export interface CommonOptions {
  readonly home?: string;
  readonly limactl?: string;
}

export function addCommon(command: Command, { limactl = false } = {}): Command {
  command.option("--home <dir>", "Agent Lane's directory (default: AGENT_LANE_HOME, else ~/.agent-lane)");
  return limactl
    ? command.option("--limactl <path>", "limactl to use (default: AGENT_LANE_LIMACTL, else PATH)")
    : command;
}

/** As the engine takes them; on a command line a relative path means the current directory. */
export function common(options: CommonOptions): { readonly [key: string]: NativeValue } {
  return {
    home: options.home === undefined ? undefined : resolve(options.home),
    limactlPath: options.limactl === undefined ? undefined : resolve(options.limactl),
  };
}
