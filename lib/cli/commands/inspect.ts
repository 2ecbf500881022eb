// SPDX-License-Identifier: Apache-2.0
// agent-lane inspect: everything that is known of one lane, and what of its limits something holds up.
import type { Command } from "commander";
import { engine } from "../../engine.js";
import { bytes, colours, plain, print, printJson, span, table } from "../output.js";
import { enforcedTable, type CheckedRun } from "../manifest.js";
import { addCommon, common, type CommonOptions } from "./common.js";
import { ownerOf, stateOf, type Row } from "./ls.js";
import { showRun } from "./runs.js";

interface Report {
  readonly lane: Row;
  readonly history: readonly { atMs: number; from: string | null; to: string; reason: string }[];
  /** Of lima.yaml, by dotted name; null when the lane has no directory any more. */
  readonly settings: Readonly<Record<string, string>> | null;
  /** QEMU's, as the warden wrote them down. */
  readonly arguments: readonly string[] | null;
  readonly processes: readonly { pid: number; kind: string; program: string; memoryBytes: number }[];
  /** `enforced` is null when nothing can be read that would tell. */
  readonly enforced: readonly { what: string; enforced: boolean | null; by: string }[];
  /** Null when there is none: the lane never became ready, or it was kept for its days. */
  readonly manifest: CheckedRun | null;
}

function section(title: string, text: string): void {
  print(`\n${colours.bold(title)}\n${text}`);
}

/** `-option value` in one line each, as people write them. */
export function argumentLines(words: readonly string[]): string[] {
  const lines: string[] = [];
  for (const word of words) {
    const last = lines.length - 1;
    if (word.startsWith("-") || last < 0 || lines[last]?.startsWith("-") !== true || lines[last].includes(" "))
      lines.push(word);
    else lines[last] += ` ${word}`;
  }
  return lines;
}

function facts(row: Row): [string, string][] {
  const keeper = row["keeperPid"] === null ? "none" : `${plain(row["keeperPid"])}${row["keeperAlive"] === true ? "" : ` (${colours.red("gone")})`}`;
  const open = row["state"] !== "closed";
  const all: [string, string][] = [
    ["name", plain(row["name"])],
    ["state", stateOf(row)],
    ["reason", plain(row["reason"])],
    ["owner", ownerOf(row)],
    ["keeper", open ? keeper : ""],
    ["age", span(Number(row["ageSeconds"]))],
    ["left", open ? span(Number(row["leftSeconds"])) : ""],
    ["cpus", plain(row["cpus"])],
    ["memory", `${bytes(Number(row["memoryMiB"]) * 2 ** 20)}${typeof row["memoryBytes"] === "number" ? `, ${bytes(row["memoryBytes"])} in use` : ""}`],
    ["disk", `${plain(row["diskGiB"])} GiB${typeof row["diskBytes"] === "number" ? `, ${bytes(row["diskBytes"])} on this machine` : ""}`],
    ["network", plain(row["network"])],
    ["accelerator", plain(row["accelerator"])],
    ["image", plain(row["image"])],
  ];
  return all.filter(([, value]) => value !== "");
}

function show(report: Report): void {
  print(facts(report.lane).map(([name, value]) => `${name.padEnd(12)}${value}`).join("\n"));
  if (report.lane["state"] !== "closed") {
    section("Enforced", enforcedTable(report.enforced));
    section(
      "Processes",
      report.processes.length === 0
        ? "none"
        : table(["pid", "kind", "memory", "program"], report.processes.map((p) => [plain(p.pid), plain(p.kind), bytes(p.memoryBytes), plain(p.program)])),
    );
  }
  section(
    "History",
    table(["time", "state", "reason"], report.history.map((h) => [new Date(h.atMs).toISOString(), plain(h.to), plain(h.reason)])),
  );
  showRun(report.manifest);
  if (report.settings !== null)
    section("Lima's configuration", Object.entries(report.settings).map(([key, value]) => `${plain(key)}: ${plain(value)}`).join("\n"));
  if (report.arguments !== null) section("QEMU's arguments", argumentLines(report.arguments).map(plain).join("\n"));
}

export function addInspect(program: Command): void {
  addCommon(program.command("inspect"))
    .description("show all that is known of a lane: row, history, configuration, processes, what is enforced, its run manifest")
    .argument("<name>", "the lane's name, open or closed")
    .option("--json", "print one JSON object")
    .addHelpText(
      "after",
      "\nWhat is enforced is read off what runs: QEMU's arguments, the lane's processes. The lane's secret is not shown.\n" +
        "\nExamples:\n  agent-lane inspect agent-lane-0000abcd-0000wxyz\n" +
        "  agent-lane inspect agent-lane-0000abcd-0000wxyz --json | jq .enforced",
    )
    .action(async (name: string, options: CommonOptions & { json?: boolean }) => {
      const report = await engine().request<Report>("inspect", { ...common(options), lane: name });
      if (options.json === true) printJson(report);
      else show(report);
    });
}
