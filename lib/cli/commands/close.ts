// SPDX-License-Identifier: Apache-2.0
// agent-lane close: destroys the lanes that are named, whoever owns them.
import type { Command } from "commander";
import { engine } from "../../engine.js";
import { asLaneError, type LaneError } from "../../errors.js";
import { waited } from "../progress.js";
import { colours, complain, plain, print, printJson } from "../output.js";
import { addCommon, common, type CommonOptions } from "./common.js";

interface Outcome {
  readonly name: string;
  readonly ok: boolean;
  /** Who did it. */
  readonly by?: string;
  readonly error?: { readonly code: string; readonly message: string; readonly cure: string };
}

async function close(name: string, options: CommonOptions): Promise<{ outcome: Outcome; error?: LaneError }> {
  try {
    const { by } = await engine().request<{ by: string }>("end", { ...common(options), lane: name });
    return { outcome: { name, ok: true, by } };
  } catch (thrown) {
    const error = asLaneError(thrown);
    const { code, message, cure } = error;
    return { outcome: { name, ok: false, error: { code, message, cure } }, error };
  }
}

export function addClose(program: Command): void {
  addCommon(program.command("close"), { limactl: true })
    .description("destroy lanes by name, also those of other processes")
    .argument("<name...>", "the lanes' names")
    .option("--json", "print a JSON array of {name, ok, by, error}")
    .addHelpText(
      "after",
      "\nThe owner is told: its calls end with LANE_CLOSED and this as the reason. One that does not react is not waited\n" +
        "for. Closing a lane that is closed is no error. Exits 1 when a lane could not be closed or does not exist.\n" +
        "\nExample:\n  agent-lane close agent-lane-0000abcd-0000wxyz",
    )
    .action(async (names: string[], options: CommonOptions & { json?: boolean }) => {
      // At once: each may wait for its owner.
      const named = [...new Set(names)];
      const results = await waited(`closing ${named.length === 1 ? named[0] : `${named.length} lanes`}`, Promise.all(named.map((name) => close(name, options))));
      if (results.some((r) => !r.outcome.ok)) process.exitCode = 1;
      if (options.json === true) return printJson(results.map((r) => r.outcome));
      for (const { outcome, error } of results) {
        if (error !== undefined) complain(error);
        else print(`${plain(outcome.name)} ${colours.green("closed")}${outcome.by === "an earlier end" ? " already" : ""}`);
      }
    });
}
