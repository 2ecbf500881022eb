// SPDX-License-Identifier: Apache-2.0
// Help that fits a terminal, what stands below the options included, which commander writes as it is.
import { Command, type AddHelpTextContext, type AddHelpTextPosition } from "commander";
import { prose } from "./output.js";

// Longer lines are hard to read, however wide the terminal is.
const COLUMNS_MOST = 120;

/** What is set off by two blanks or more: a command and what it does, a status and what it means. */
const TWO_COLUMNS = /^( {2}\S.*? {2,})(\S.*)$/;

/** Paragraphs are filled anew; lines that begin with blanks are to be copied, and only what is beside them is broken. */
export function fitted(text: string, columns: number | undefined): string {
  if (columns === undefined) return text;
  const most = Math.min(columns, COLUMNS_MOST);
  const paragraph = (part: string): string => {
    const lines = part.split("\n");
    if (lines.every((line) => !/^ /.test(line))) return prose("", lines.join(" "), most);
    return lines.map((line) => {
      const [, before = "", after = ""] = TWO_COLUMNS.exec(line) ?? [];
      return before === "" ? line : prose(before, after, columns);
    }).join("\n");
  };
  return text.split(/(^\n+|\n{2,})/).map((part) => (/^\n*$/.test(part) ? part : paragraph(part))).join("");
}

/** A command whose whole help fits, and whose complaints name its own help. */
export class FittingCommand extends Command {
  override createCommand(name?: string): FittingCommand {
    return new FittingCommand(name);
  }

  override addHelpText(position: AddHelpTextPosition, text: string | ((context: AddHelpTextContext) => string)): this {
    return super.addHelpText(position, (context: AddHelpTextContext) => {
      const { getErrHelpWidth, getOutHelpWidth } = this.configureOutput();
      const whole = typeof text === "string" ? text : text(context);
      return fitted(whole, (context.error ? getErrHelpWidth : getOutHelpWidth)?.());
    });
  }
}

/** What follows an error: where the help of just this command is. */
export function pointAtHelp(command: Command, above = ""): void {
  const name = `${above}${command.name()}`;
  command.showHelpAfterError(`(${name} --help shows how)`);
  for (const each of command.commands) pointAtHelp(each, `${name} `);
}
