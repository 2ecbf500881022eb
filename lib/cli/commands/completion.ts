// SPDX-License-Identifier: Apache-2.0
// agent-lane completion: the text that makes a shell complete; and the hidden command that it asks for names.
import { Argument, type Command } from "commander";
import { engine } from "../../engine.js";
import { completionOf, NAME_KINDS, NAMES_COMMAND, SHELLS, type Shell } from "../completions.js";
import { plain, print } from "../output.js";
import { treeOf } from "../tree.js";
import { addCommon, common, type CommonOptions } from "./common.js";

export function addCompletion(program: Command): void {
  program
    .command("completion")
    .description("print what makes a shell complete commands, options, and the names of lanes and images")
    .addArgument(new Argument("<shell>", "which shell").choices(SHELLS))
    .addHelpText(
      "after",
      '\nExamples:\n  eval "$(agent-lane completion bash)"                    # in ~/.bashrc\n  agent-lane completion zsh >"${fpath[1]}/_agent-lane"' +
        "\n  agent-lane completion fish >~/.config/fish/completions/agent-lane.fish",
    )
    .action((shell: Shell) => print(completionOf(shell, treeOf(program)).trimEnd()));
}

type Row = Readonly<Record<string, unknown>>;

const SOURCES: Readonly<Record<(typeof NAME_KINDS)[number], readonly [op: string, field: string]>> = {
  lane: ["list", "name"],
  image: ["imageList", "id"],
  run: ["runs", "name"],
};
const RUNS = 50;

export function addNames(program: Command): void {
  addCommon(program.command(NAMES_COMMAND, { hidden: true }))
    .description("print names for a shell's completion, one a line")
    .addArgument(new Argument("<kind>", "of what").choices(NAME_KINDS))
    .addHelpText("after", `\nExample:\n  agent-lane ${NAMES_COMMAND} lane`)
    .action(async (kind: keyof typeof SOURCES, options: CommonOptions) => {
      const [op, field] = SOURCES[kind];
      const rows = await engine().request<readonly Row[]>(op, { ...common(options), ...(kind === "run" ? { max: RUNS } : {}) });
      const names = rows.map((row) => plain(row[field])).filter((name) => /^[\w.-]+$/.test(name));
      if (names.length > 0) print(names.join("\n"));
    });
}
