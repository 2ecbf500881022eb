// SPDX-License-Identifier: Apache-2.0
// The options of lima() as options of a command, made from the one table of them.
import type { Command } from "commander";
import { InvalidArgumentError, Option } from "commander";
import { asLaneError } from "../../errors.js";
import { OPTIONS, type LimaOptions, type OptionName, type OptionSpec } from "../../options.js";
import { sizeArgument } from "./common.js";

/** What is no value, or has an option of its own in every command. */
const NOT_HERE: readonly OptionName[] = ["env", "onEvent", "reporter", "home", "limactlPath"];

const kebab = (name: string): string => name.replace(/GiB|MiB/g, (unit) => `-${unit.toLowerCase()}`).replace(/[A-Z]/g, (c) => `-${c.toLowerCase()}`);

/** What an option says here, where its doc is about code. */
const WORDS: Partial<Record<OptionName, string>> = {
  image: "guest image: a name or id of agent-lane image ls, or an unpacked image's directory as an absolute path",
  imageKeys: "a public key of minisign, one of which must have signed the image, or what it was derived from (repeatable)",
};

/** The value of a word: numbers and true or false are what they look like, where the option is no text. */
function valueOf(spec: OptionSpec, word: string, before: unknown): unknown {
  if (spec.name === "imageKeys") return [...(Array.isArray(before) ? (before as unknown[]) : []), word];
  if (/Bytes$/.test(spec.name) && /[a-z]$/i.test(word)) return sizeArgument(word);
  const reads = (value: unknown): boolean => {
    try {
      spec.rule.check("", value);
      return true;
    } catch {
      return false;
    }
  };
  if (reads(word)) return word;
  if (/^-?\d+(?:\.\d+)?$/.test(word)) return Number(word);
  return word === "true" || word === "false" ? word === "true" : word;
}

/** The value, when lima() would take it. */
function checkedValue(spec: OptionSpec, word: string, before: unknown): unknown {
  const value = valueOf(spec, word, before);
  try {
    spec.rule.check("It", value);
  } catch (error) {
    throw new InvalidArgumentError(`${asLaneError(error).message.replace(/, not a string$/, "")}.`);
  }
  return value;
}

/** For the help and the completion. */
function choicesOf({ boundsText }: OptionSpec): string[] | undefined {
  if (boundsText === "true or false") return ["true", "false"];
  const words = [...boundsText.matchAll(/`"(\w+)"`/g)].map((m) => m[1] ?? "");
  return words.length > 0 ? words : undefined;
}

/** Adds an option for each of lima()'s that can be written in one word, but `without`. */
export function addLaneOptions(command: Command, without: readonly OptionName[] = []): Command {
  for (const spec of OPTIONS.filter(({ name }) => !NOT_HERE.includes(name) && !without.includes(name))) {
    const doc = `${(WORDS[spec.name] ?? spec.doc).replaceAll("`", "")} (default: ${spec.defaultText.replaceAll("`", "")})`;
    const option = new Option(`--${kebab(spec.name)} <value>`, doc).argParser((word, before) => checkedValue(spec, word, before));
    const words = choicesOf(spec);
    if (words !== undefined) option.argChoices = words;
    command.addOption(option);
  }
  return command;
}

/** Those that were given. What they must be together is checked where lima()'s are: resolveOptions. */
export function laneOptionsOf(command: Command): LimaOptions {
  const given = command.opts<Record<string, unknown>>();
  const { home, limactl } = given as { home?: string; limactl?: string };
  const names = OPTIONS.map(({ name }) => name).filter((name) => !NOT_HERE.includes(name));
  const entries = names.flatMap((name) => {
    const value = given[kebab(name).replace(/-([a-z])/g, (_, c: string) => c.toUpperCase())];
    return value === undefined ? [] : [[name, value] as const];
  });
  return { ...Object.fromEntries(entries), home, limactlPath: limactl };
}
