// SPDX-License-Identifier: Apache-2.0
// agent-lane logs: what the guest's console, the warden and Lima's host agent have written about one lane.
import { InvalidArgumentError, Option, type Command } from "commander";
import { engine } from "../../engine.js";
import { colours, plain, print, printJson } from "../output.js";
import { addCommon, common, type CommonOptions } from "./common.js";

interface Log {
  readonly file: string;
  readonly what: "guest" | "warden" | "hostagent";
  readonly bytes: number;
  /** There is more before these lines. */
  readonly cut: boolean;
  readonly lines: readonly string[];
}

const LINES_MAX = 10_000;

function linesArgument(value: string): number {
  const n = /^[1-9]\d{0,5}$/.test(value) ? Number(value) : LINES_MAX + 1;
  if (n <= LINES_MAX) return n;
  throw new InvalidArgumentError(`It must be a whole number from 1 to ${LINES_MAX}.`);
}

export function addLogs(program: Command): void {
  addCommon(program.command("logs"))
    .description("show the ends of a lane's logs: the guest's console, the warden's, Lima's host agent's")
    .argument("<name>", "the lane's name")
    .option("-n, --lines <n>", "lines of each log", linesArgument, 200)
    .addOption(new Option("--only <what>", "only these").choices(["guest", "warden", "hostagent"]))
    .option("--json", "print a JSON array of logs")
    .addHelpText(
      "after",
      "\nWhat stands in the logs comes from the guest and is not trusted: control characters are shown as \\xNN. A lane that is\n" +
        "closed has no logs any more.\n" +
        "\nExamples:\n  agent-lane logs agent-lane-0000abcd-0000wxyz\n  agent-lane logs agent-lane-0000abcd-0000wxyz --only guest -n 50",
    )
    .action(async (name: string, options: CommonOptions & { lines: number; only?: string; json?: boolean }) => {
      const all = await engine().request<readonly Log[]>("logs", { ...common(options), lane: name, lines: options.lines });
      const logs = all.filter((log) => options.only === undefined || log.what === options.only);
      if (options.json === true) return printJson(logs);
      if (logs.length === 0) return print("There are no such logs: the lane is closed, or only beginning.");
      for (const log of logs) {
        print(colours.bold(`==> ${plain(log.file)}${log.cut ? ` (the last ${log.lines.length} lines)` : ""} <==`));
        for (const line of log.lines) print(line.split("\t").map(plain).join("\t"));
      }
    });
}
