// SPDX-License-Identifier: Apache-2.0
// agent-lane runs and verify-manifest: the run manifests that are kept, and whether one is as it was written.
import { resolve } from "node:path";
import type { Command } from "commander";
import { engine } from "../../engine.js";
import { LaneError } from "../../errors.js";
import { describeRun, type CheckedRun } from "../manifest.js";
import { colours, plain, print, printJson, span, table } from "../output.js";
import { addCommon, common, countArgument, type CommonOptions } from "./common.js";

interface Run {
  readonly name: string;
  readonly state: "open" | "ended";
  readonly readyMs: number | null;
  readonly endedMs: number | null;
  readonly by: string | null;
  readonly reason: string | null;
  readonly image: string | null;
  readonly bytes: number;
}

const LANE = /^agent-lane-[a-z0-9]{8}-[a-z0-9]{8}$/;

function cells(run: Run): string[] {
  const lasted = run.readyMs !== null && run.endedMs !== null ? span((run.endedMs - run.readyMs) / 1000) : "";
  const ready = run.readyMs === null ? "" : new Date(run.readyMs).toISOString().slice(0, 19).replace("T", " ");
  return [run.name, ready, run.state === "open" ? colours.green("open") : lasted, plain(run.image), plain(run.by), plain(run.reason)];
}

export function addRuns(program: Command): void {
  addCommon(program.command("runs"))
    .description("list the run manifests that are kept, newest first: when, how long, from which image, how it ended")
    .option("-n, --lines <n>", "at most so many", countArgument, 50)
    .option("--json", "print a JSON array")
    .addHelpText(
      "after",
      "\nEach lane that became ready has one, also when the lane is long gone; the option keepManifestDays says for how long.\n" +
        "\nExamples:\n  agent-lane runs\n  agent-lane runs -n 1000 --json | jq -r '.[] | select(.by == \"sweep\").name'",
    )
    .action(async (options: CommonOptions & { lines: number; json?: boolean }) => {
      const max = Math.min(options.lines, 10_000);
      const runs = await engine().request<readonly Run[]>("runs", { ...common(options), max });
      if (options.json === true) return printJson(runs);
      if (runs.length === 0) return print("There are no run manifests.");
      print(table(["name", "ready (UTC)", "lasted", "image", "ended by", "reason"], runs.map(cells)));
    });
}

function broken(run: CheckedRun): LaneError {
  const message = `${run.path} does not hold: ${run.why ?? ""}`;
  const cure = run.count === 0 ? "Nothing in it can be relied on." : `The first ${run.count} lines hold, and nothing behind them.`;
  return new LaneError({ code: "MANIFEST_BROKEN", message, cure });
}

export function addVerifyManifest(program: Command): void {
  addCommon(program.command("verify-manifest"))
    .description("check a run manifest: the form of every event, and the chain of their hashes")
    .argument("<manifest>", "a lane's name, or the path of a manifest")
    .option("--json", "print one JSON object, with the events")
    .addHelpText(
      "after",
      "\nThe chain shows every change that was not made by who could make the whole file anew; to be sure of that, too, keep\n" +
        "the hash that is printed elsewhere. A manifest without an end holds only while its lane is open.\n" +
        "\nExamples:\n  agent-lane verify-manifest agent-lane-0000abcd-0000wxyz\n  agent-lane verify-manifest ./evidence.jsonl --json | jq .head",
    )
    .action(async (manifest: string, options: CommonOptions & { json?: boolean }) => {
      const which = LANE.test(manifest) ? { lane: manifest } : { path: resolve(manifest) };
      const run = await engine().request<CheckedRun>("runCheck", { ...common(options), ...which });
      if (options.json === true) printJson(run);
      else if (run.ok) print(`${plain(run.path)}: ${run.count} events hold, ${run.state}\n${plain(run.head)}`);
      if (!run.ok) throw broken(run);
    });
}

/** For inspect. */
export function showRun(run: CheckedRun | null): void {
  if (run === null) return;
  for (const [title, text] of describeRun(run)) print(`\n${colours.bold(title)}\n${text}`);
}
