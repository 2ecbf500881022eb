// SPDX-License-Identifier: Apache-2.0
// agent-lane shell: a shell or a command in a lane that another process owns, without disturbing it.
import type { Command } from "commander";
import { engine } from "../../engine.js";
import { LaneError } from "../../errors.js";
import { Departure, interact } from "../../interactive.js";
import { complain } from "../output.js";
import { attached } from "./attached.js";
import { addCommon, type CommonOptions } from "./common.js";

const LOGIN = ["/bin/sh", "-c", 'exec "${SHELL:-/bin/sh}" -l'];

export function addShell(program: Command): void {
  addCommon(program.command("shell"), { limactl: true })
    .description("run a shell, or a command, in an open lane beside its owner")
    .argument("[name]", "the lane's name; may be left out when only one is ready")
    .argument("[command...]", "what to run instead of a shell (after --)")
    .option("--cwd <dir>", "absolute directory in the guest (default: the worktree)")
    .option("--root", "run it as root of the guest")
    .addHelpText(
      "after",
      "\nOn a terminal when stdin is one. Ends with the command's status (127: no such program); leaving it does not touch the lane.\n\nExamples:\n  agent-lane shell\n  agent-lane shell agent-lane-0000abcd-0000wxyz\n  agent-lane shell agent-lane-0000abcd-0000wxyz -- git log --oneline\n  agent-lane shell -- make test",
    )
    .action(async (_name: string | undefined, _words: string[], options: CommonOptions & ShellOptions, self: Command) =>
      run(wordsOf(self), options),
    );
}

interface ShellOptions {
  readonly cwd?: string;
  readonly root?: boolean;
}

/** `[NAME] [-- COMMAND...]`: what comes after `--` is never a name. */
function wordsOf(self: Command): { name: string | undefined; command: readonly string[] } {
  const dashes = process.argv.indexOf("--");
  const command = dashes < 0 ? [] : process.argv.slice(dashes + 1);
  const before = self.args.slice(0, self.args.length - command.length);
  if (before.length > 1) self.error("error: a command comes after -- (agent-lane shell NAME -- COMMAND)");
  return { name: before[0], command };
}

const hint = (name: string): string => `A command comes after --: agent-lane shell -- ${name}`;

async function run(
  { name, command }: { name: string | undefined; command: readonly string[] },
  options: CommonOptions & ShellOptions,
): Promise<void> {
  try {
    const argv = command.length > 0 ? command : LOGIN;
    const streams = { stdin: process.stdin, stdout: process.stdout, stderr: process.stderr };
    const { exitCode } = await attached(name, options, hint, (lane) =>
      interact(
        engine(),
        { lane, argv, cwd: options.cwd, sudo: options.root ?? false, env: {} },
        streams,
        new Departure(),
      ),
    );
    process.exitCode = exitCode;
  } catch (error) {
    if (!(error instanceof LaneError) || error.code !== "EXEC_FAILED") throw error;
    complain(error);
    process.exitCode = /No such file|not found/i.test(error.message) ? 127 : 126; // as every shell has it
  }
}
