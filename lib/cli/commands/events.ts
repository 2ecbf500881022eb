// SPDX-License-Identifier: Apache-2.0
// agent-lane events: changes of lanes' states, one JSON line each, as they happen.
import type { Command } from "commander";
import { setTimeout as sleep } from "node:timers/promises";
import { engine } from "../../engine.js";
import { interruptible } from "../interrupt.js";
import { printLine } from "../output.js";
import { addCommon, common, countArgument, type CommonOptions } from "./common.js";

interface Change {
  readonly number: number;
  readonly atMs: number;
  readonly lane: string;
  readonly from: string | null;
  readonly to: string;
  readonly reason: string;
}
interface Answer {
  readonly last: number;
  readonly changes: readonly Change[];
}

const POLL_MS = 500;
const RECENT = 100;

interface Options extends CommonOptions {
  readonly follow?: boolean;
  readonly since?: number;
}

async function run(options: Options, signal: AbortSignal): Promise<void> {
  const ask = (after?: number): Promise<Answer> => engine().request<Answer>("events", { ...common(options), after });
  let { last } = await ask();
  if (options.since !== undefined) last = Math.min(options.since, last);
  else if (options.follow !== true) last = Math.max(0, last - RECENT);
  while (!signal.aborted) {
    const answer = await ask(last);
    for (const { atMs, reason, ...change } of answer.changes)
      printLine({ time: new Date(atMs).toISOString(), ...change, ...(reason === "" ? {} : { reason }) });
    last = answer.last;
    if (answer.changes.length > 0) continue;
    if (options.follow !== true) return;
    await sleep(POLL_MS, undefined, { signal }).catch(() => undefined);
  }
}

export function addEvents(program: Command): void {
  addCommon(program.command("events"))
    .description("print changes of lanes' states, one JSON object a line")
    .option("-f, --follow", "go on with those that come, from now on, until Ctrl-C")
    .option("--since <number>", "begin after the change of this number", countArgument)
    .addHelpText(
      "after",
      "\nEach line has number, time, lane, from, to, and reason where there is one. Without --follow and --since the last\n" +
        `${RECENT} are printed.\n` +
        "\nExamples:\n  agent-lane events --follow\n  agent-lane events --since 4711 --follow | jq -r '[.lane, .to] | @tsv'",
    )
    .action((options: Options) =>
      interruptible(async ({ signal, endsBySignal }) => {
        endsBySignal();
        await run(options, signal);
      }),
    );
}
