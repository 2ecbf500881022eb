// SPDX-License-Identifier: Apache-2.0
// The command as a tree of commander's: what main.ts runs, and what the man page, docs/CLI.md and the completions are made of.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import type { Command } from "commander";
import { packageDir } from "../native.js";
import { addClose } from "./commands/close.js";
import { addCompletion, addNames } from "./commands/completion.js";
import { addCp } from "./commands/cp.js";
import { addDemo } from "./commands/demo.js";
import { addDoctor } from "./commands/doctor.js";
import { addEvents } from "./commands/events.js";
import { addExplain } from "./commands/explain.js";
import { addImage } from "./commands/image.js";
import { addInspect } from "./commands/inspect.js";
import { addLogs } from "./commands/logs.js";
import { addLs } from "./commands/ls.js";
import { addReap } from "./commands/reap.js";
import { addRun } from "./commands/run.js";
import { addRuns, addVerifyManifest } from "./commands/runs.js";
import { addShell } from "./commands/shell.js";
import { addVerify } from "./commands/verify.js";
import { FittingCommand, pointAtHelp } from "./help.js";

export const DESCRIPTION = "Disposable Linux VMs for coding agents: run commands in them, look after lanes, images and this machine.";

/** What the command exits with. */
export const EXITS: readonly (readonly [status: string, meaning: string])[] = [
  ["0", "done"],
  ["1", "failed (the reason and a cure are on stderr), or what was asked is not so: doctor, verify, verify-manifest, image verify, reap"],
  ["2", "wrong usage"],
  ["124", "run: --timeout ended the command"],
  ["125", "run: the lane failed, so the command was not run or its end is unknown"],
  ["126", "run, shell: the command cannot be run"],
  ["127", "run, shell: there is no such command"],
  ["129, 130, 143", "ended by SIGHUP, SIGINT (Ctrl-C), SIGTERM"],
  ["others", "run, shell: the status of the command"],
];

/** Variables that it reads. */
export const VARIABLES: readonly (readonly [name: string, meaning: string])[] = [
  ["AGENT_LANE_HOME", "Agent Lane's directory, where --home does not say another (default ~/.agent-lane)"],
  ["AGENT_LANE_LIMACTL", "absolute path of limactl, where --limactl does not say another (default: found on PATH)"],
  ["NO_COLOR", "any text: no colours"],
  ["FORCE_COLOR", "any text but 0 and false: colours also without a terminal; NO_COLOR goes before it"],
  ["TERM", "dumb: no colours, and no line that is written over"],
];

const EXAMPLES = `
Examples:
  agent-lane doctor                        check what this machine lacks
  agent-lane demo                          a lane from start to end, in a dozen lines
  agent-lane run -- npm test               a command in a lane of its own, on a copy of this repository
  agent-lane explain --network none        what these options enforce, and what they do not
  agent-lane verify                        attack a fresh lane's boundary, and say what held
  agent-lane image import DIR              put a built guest image into the store
  agent-lane ls                            list the lanes: state, owner, age, memory, disk
  agent-lane inspect NAME                  all that is known of a lane, and what is enforced
  agent-lane logs NAME                     the guest's console and what the host wrote about it
  agent-lane shell                         a shell in the only lane that is open
  agent-lane cp report.txt :               a file into the worktree of the only lane that is open
  agent-lane close NAME                    destroy a lane, whoever owns it
  agent-lane reap --dry-run                say which lanes are past their time or without owner
  agent-lane runs                          the run manifests that are kept: what ran, when, how it ended
  agent-lane verify-manifest NAME          whether one is as it was written
  agent-lane completion bash               what makes a shell complete all this`;

/** Where this package is, as people write it. */
function epilogue(where: string): string {
  const exits = EXITS.map(([status, meaning]) => `  ${status.padEnd(14)} ${meaning}`).join("\n");
  return `${EXAMPLES}

The guest image is built once, as root, on Debian; it takes about two minutes:
  sudo env "PATH=$PATH" ${join(where, "image", "build")} DIR --flavour base

Exit status:
${exits}`;
}

export function version(): string {
  return (JSON.parse(readFileSync(join(packageDir, "package.json"), "utf8")) as { version: string }).version;
}

export function makeProgram(where = packageDir): Command {
  const program = new FittingCommand("agent-lane")
    .description(DESCRIPTION)
    .version(version())
    .allowExcessArguments(false)
    .enablePositionalOptions()
    .addHelpText("after", epilogue(where))
    .exitOverride();
  // Subcommands copy these settings when they are made, so this comes after exitOverride.
  const all = [addRun, addDemo, addDoctor, addExplain, addVerify, addLs, addInspect, addLogs, addEvents, addShell, addCp, addClose, addReap, addRuns, addVerifyManifest, addImage];
  for (const add of all) add(program);
  addCompletion(program);
  addNames(program);
  pointAtHelp(program);
  return program;
}
