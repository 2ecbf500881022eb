#!/usr/bin/env node
// SPDX-License-Identifier: Apache-2.0
// The command agent-lane: parses, calls one command, turns errors into two lines and an exit status.
import { CommanderError } from "commander";
import { LaneError } from "../errors.js";
import { columnsOf, complain, plain, prose } from "./output.js";
import { makeProgram } from "./program.js";

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

/** Node would name the process and how to trace it; other warnings than ours are about this program, not for its users. */
function watchWarnings(): void {
  process.removeAllListeners("warning");
  process.on("warning", ({ name, message }) => {
    if (name === "AgentLaneWarning") process.stderr.write(`${prose("", `warning: ${plain(message)}`, columnsOf(process.stderr))}\n`);
  });
}

/** What nobody has caught is a bug of ours, and still no reason for a stack trace. */
function watchBugs(): void {
  process.on("uncaughtException", (error) => {
    complain(error);
    process.exit(1);
  });
}

async function main(): Promise<void> {
  watchOutput();
  watchWarnings();
  watchBugs();
  try {
    await makeProgram().parseAsync();
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
