// SPDX-License-Identifier: Apache-2.0
// agent-lane image prepare: makes the image of a project before any lane has to wait for it.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
import type { Command } from "commander";
import { badOption, wordsOf } from "../../errors.js";
import type { LaneEvent } from "../../events.js";
import type { LimaOptions } from "../../options.js";
import { prepareImage } from "../../prepare.js";
import { interruptible } from "../interrupt.js";
import { plain, print, printJson, span } from "../output.js";
import { addCommon, pathArgument, type CommonOptions } from "./common.js";

/** The options that a JSON file is, or a module exports as `options` or by default. */
async function optionsOf(path: string): Promise<LimaOptions> {
  let found: unknown;
  try {
    if (path.endsWith(".json")) found = JSON.parse(readFileSync(path, "utf8"));
    else {
      const module = (await import(pathToFileURL(path).href)) as { readonly options?: unknown; readonly default?: unknown };
      found = module.options ?? module.default;
    }
  } catch (error) {
    throw badOption(`${path} cannot be read: ${wordsOf(error)}`, error);
  }
  if (typeof found === "object" && found !== null) return found as LimaOptions;
  throw badOption(`${path} must export the options of lima() as "options" or by default`);
}

/** One line a step, and one for what the setup says. */
function show(event: LaneEvent): void {
  const { type } = event;
  if (type !== "preparing" && type !== "notice" && type !== "warning") return;
  const at = event.timeMs === undefined ? "" : `${span(event.timeMs / 1000)}: `;
  process.stderr.write(`${at}${type === "preparing" ? `${event.step}: ` : `${type}: `}${plain(event.message)}\n`);
}

interface PrepareOptions extends CommonOptions {
  readonly json?: boolean;
}

async function prepare(path: string, { home, limactl, json }: PrepareOptions): Promise<void> {
  const given = await optionsOf(path);
  const options = {
    ...given,
    onEvent: show,
    ...(home === undefined ? {} : { home }),
    ...(limactl === undefined ? {} : { limactlPath: limactl }),
  };
  await interruptible(async ({ signal, endsBySignal }) => {
    endsBySignal();
    const result = await prepareImage(options, { signal });
    if (json === true) return printJson(result);
    const how = result.made ? `made in ${span(result.seconds)}` : "there already";
    print(`${result.image}: ${how}, from ${result.parent}`);
  });
}

export function addImagePrepare(image: Command): void {
  addCommon(image.command("prepare"), { limactl: true })
    .description("make the image of a project (option image with a setup) before a lane has to wait for it")
    .argument("<file>", "the options of lima(): a JSON file, or a module that exports them as `options` or by default", pathArgument)
    .option("--json", "print the image as a JSON object")
    .addHelpText(
      "after",
      "\nThe same options give the same image; when it is there already, nothing is done. What the setup says is shown on stderr." +
        "\n\nExamples:\n  agent-lane image prepare lane.json\n  agent-lane image prepare .sandcastle/options.mjs",
    )
    .action(prepare);
}
