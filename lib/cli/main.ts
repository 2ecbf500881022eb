#!/usr/bin/env node
// SPDX-License-Identifier: Apache-2.0
// The command agent-lane: parses, calls one command, turns errors into two lines and an exit status.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { Command, CommanderError } from "commander";
import { LaneError } from "../errors.js";
import { packageDir } from "../native.js";
import { addClose } from "./commands/close.js";
import { addCp } from "./commands/cp.js";
import { addDoctor } from "./commands/doctor.js";
import { addEvents } from "./commands/events.js";
import { addImage } from "./commands/image.js";
import { addExplain } from "./commands/explain.js";
import { addInspect } from "./commands/inspect.js";
import { addLogs } from "./commands/logs.js";
import { addLs } from "./commands/ls.js";
import { addReap } from "./commands/reap.js";
import { addRuns, addVerifyManifest } from "./commands/runs.js";
import { addShell } from "./commands/shell.js";
import { addVerify } from "./commands/verify.js";
import { complain } from "./output.js";

const EXAMPLES = `
Examples:
  agent-lane doctor                        check what this machine lacks
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

The guest image is built once, as root, on Debian; it takes about two minutes:
  sudo env "PATH=$PATH" ${join(packageDir, "image", "build")} DIR --flavour base

Exit status: 0 done, 1 failed (the reason and a cure on stderr), 2 wrong usage; shell has its command's, and cp or
verify that Ctrl-C ended has 130.`;

function version(): string {
  return (JSON.parse(readFileSync(join(packageDir, "package.json"), "utf8")) as { version: string }).version;
}

/** `agent-lane ls | head -1`: the reader has gone, which is no error. A full disk is one. */
function watchOutput(): void {
  for (const stream of [process.stdout, process.stderr]) {
    stream.on("error", (error: NodeJS.ErrnoException) => {
      if (error.code === "EPIPE") process.exit(process.exitCode ?? 0);
      if (stream === process.stdout) complain(unwritten(error));
      process.exit(1);
    });
  }
}

function unwritten(error: NodeJS.ErrnoException): LaneError {
  const message = `the output could not be written: ${error.message}`;
  return new LaneError({ code: "IO_ERROR", message, cure: "Write it to a place that takes it." });
}

async function main(): Promise<void> {
  watchOutput();
  const program = new Command("agent-lane")
    .description("Disposable Linux VMs for coding agents: look after lanes, images and this machine.")
    .version(version())
    .allowExcessArguments(false)
    .showHelpAfterError("(agent-lane --help shows how)")
    .addHelpText("after", EXAMPLES)
    .exitOverride();
  // Subcommands copy these settings when they are made, so this comes after exitOverride.
  for (const add of [addDoctor, addExplain, addVerify, addLs, addInspect, addLogs, addEvents, addShell, addCp, addClose, addReap, addRuns, addVerifyManifest, addImage]) add(program);
  try {
    await program.parseAsync();
  } catch (error) {
    if (error instanceof CommanderError) {
      // Commander has printed it already; help and version are no errors.
      process.exitCode = error.exitCode === 0 ? 0 : 2;
      return;
    }
    complain(error);
    process.exitCode = 1;
  }
}

void main();
