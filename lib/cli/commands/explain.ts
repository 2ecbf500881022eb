// SPDX-License-Identifier: Apache-2.0
// agent-lane explain: before anything is started, what these options enforce, what they do not, and by what means.
import type { Command } from "commander";
import { engine } from "../../engine.js";
import type { NativeValue } from "../../native.js";
import { resolveOptions } from "../../options.js";
import { outsideDangers } from "../../outside.js";
import { reachNow, reachText } from "../../reach.js";
import { enforcedTable } from "../manifest.js";
import { colours, columnsOf, plain, print, printJson, prose } from "../output.js";
import { addCommon } from "./common.js";
import { addLaneOptions, laneOptionsOf } from "./lane-options.js";

interface Enforced {
  readonly what: string;
  /** Null: it cannot be said before the lane is there. */
  readonly enforced: boolean | null;
  readonly by: string;
}

interface Warning {
  readonly what: string;
  readonly danger: boolean;
  readonly detail: string;
  readonly cure: string;
}

async function warnings(): Promise<readonly Warning[] | null> {
  const found = await outsideDangers(process.cwd());
  return found?.map(({ id, danger, what, cure }) => ({ what: id, danger, detail: what, cure })) ?? null;
}

async function explain(command: Command, json: boolean): Promise<void> {
  const { env: _env, onEvent: _onEvent, copyOutRoot: _root, ...options } = resolveOptions(laneOptionsOf(command));
  const [enforced, repository] = await Promise.all([
    engine().request<readonly Enforced[]>("explain", options as { readonly [name: string]: NativeValue }),
    warnings(),
  ]);
  const reach = options.network === "open" ? reachNow() : null;
  if (json) return printJson({ enforced, reach, repository });
  print(enforcedTable(enforced));
  const columns = columnsOf(process.stdout);
  if (reach !== null) print(`\n${prose("", `${colours.yellow('network "open"')} reaches ${plain(reachText(reach))}.`, columns)}`);
  const dangers = (repository ?? []).filter(({ danger }) => danger);
  if (dangers.length === 0) return;
  print(`\n${colours.bold("In this repository")}`);
  for (const { what, detail, cure } of dangers) print(`${prose("", `${colours.yellow(what)}: ${plain(detail)}`, columns)}\n${prose("  ", `cure: ${plain(cure)}`, columns)}`);
}

export function addExplain(program: Command): void {
  const command = addLaneOptions(addCommon(program.command("explain"), { limactl: true }))
    .description("say, before anything is started, what these options enforce, what they do not, and by what means")
    .option("--json", "print one JSON object: {enforced: [{what, enforced, by}], reach: {networks, hostPorts, docker}, repository: [{what, danger, detail, cure}]}")
    .addHelpText(
      "after",
      "\nThe options are those of lima(). Nothing is started. The same table, read off what runs, is in `agent-lane inspect` and in\n" +
        "the run manifest. In a git repository it also warns of what happens outside every VM, with the cure.\n" +
        "\nExamples:\n  agent-lane explain\n  agent-lane explain --network none --guest-sudo false\n  agent-lane explain --json | jq '.enforced[] | select(.enforced == false)'",
    )
    .action(async (options: { json?: boolean }) => explain(command, options.json === true));
}
