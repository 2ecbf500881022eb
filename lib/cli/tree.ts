// SPDX-License-Identifier: Apache-2.0
// The commands as plain data, read off commander's tree: for the completions, the man page and docs/CLI.md.
import type { Command } from "commander";

/** What a word of the command line can be completed to. */
export type Kind = "none" | "file" | "dir" | "lane" | "image" | "run" | "command" | readonly string[];

export interface OptionNode {
  readonly short: string | undefined;
  readonly long: string;
  /** "<dir>", or "" for one without a value. */
  readonly value: string;
  readonly kind: Kind;
  /** Whether it takes all words up to the next option. */
  readonly variadic: boolean;
  readonly doc: string;
}

export interface CommandNode {
  readonly name: string;
  /** Of the command and those above it, without the program's: ["image", "ls"]. */
  readonly path: readonly string[];
  readonly usage: string;
  readonly doc: string;
  readonly args: readonly { readonly name: string; readonly required: boolean; readonly variadic: boolean; readonly kind: Kind; readonly doc: string }[];
  readonly options: readonly OptionNode[];
  /** What its help says below the options. */
  readonly more: string;
  readonly commands: readonly CommandNode[];
}

/** By name, which means the same in every command. */
const ARGUMENTS: Readonly<Record<string, Kind>> = {
  name: "lane", id: "image", manifest: "run", command: "command", path: "file", file: "file", tar: "file", src: "file", dst: "file",
};
const OPTIONS: Readonly<Record<string, Kind>> = {
  image: "image", patch: "file", key: "file", limactl: "file", lock: "file", out: "file", packages: "file", home: "dir", dir: "dir", "copy-out-root": "dir",
};

/** The text that was added to a help, which commander only tells to an output. */
function addedHelp(command: Command): string {
  let said = "";
  const { writeOut, writeErr, ...rest } = command.configureOutput();
  // As where there is no terminal: documents must not depend on who makes them.
  command.configureOutput({ ...rest, getOutHelpWidth: () => undefined as unknown as number, writeOut: (text) => (said += text), writeErr: (text) => (said += text) });
  command.outputHelp();
  const added = said.slice(command.helpInformation().length).replace(/^\n+|\s+$/g, "");
  command.configureOutput({ ...rest, ...(writeOut === undefined ? {} : { writeOut }), ...(writeErr === undefined ? {} : { writeErr }) });
  return added;
}

/** The tree below `command`; hidden commands and options are not in it. */
export function treeOf(command: Command, path: readonly string[] = []): CommandNode {
  const help = command.createHelp();
  const options = help.visibleOptions(command).map((option): OptionNode => {
    const value = /[<[].*$/.exec(option.flags)?.[0] ?? "";
    const long = option.long ?? "";
    return { short: option.short, long, value, kind: value === "" ? "none" : (option.argChoices ?? OPTIONS[long.slice(2)] ?? "none"), variadic: option.variadic, doc: help.optionDescription(option) };
  });
  const commands = help.visibleCommands(command).filter((each) => each.name() !== "help");
  return {
    name: command.name(),
    path,
    usage: help.commandUsage(command),
    doc: command.description(),
    args: command.registeredArguments.map((a) => ({ name: a.name(), required: a.required, variadic: a.variadic, kind: a.argChoices ?? ARGUMENTS[a.name()] ?? "none", doc: a.description })),
    options,
    more: addedHelp(command),
    commands: commands.map((each) => treeOf(each, [...path, each.name()])),
  };
}

/** The node and all below it, parents first. */
export function flat(node: CommandNode): readonly CommandNode[] {
  return [node, ...node.commands.flatMap(flat)];
}
