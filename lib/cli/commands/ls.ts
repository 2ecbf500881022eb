// SPDX-License-Identifier: Apache-2.0
// agent-lane ls: the registry's lanes, whose they are, and what they take of this machine.
import type { Command } from "commander";
import { engine } from "../../engine.js";
import { bytes, colours, plain, print, printJson, span, table } from "../output.js";
import { addCommon, common, type CommonOptions } from "./common.js";

export type Row = Readonly<Record<string, unknown>>;

/** Green when it works, red when somebody has to do something. */
export function stateOf(row: Row): string {
  const state = plain(row["state"]);
  if (state === "ready") return colours.green(state);
  if (state === "stuck") return colours.red(state);
  return state === "closed" ? colours.dim(state) : colours.yellow(state);
}

/** A lane whose owner has died is still in its last state until somebody ends it: its keeper, or the next sweep. */
export function ownerOf(row: Row): string {
  const who = [plain(row["ownerProgram"]), plain(row["ownerPid"])].filter((t) => t !== "").join(" ");
  if (row["state"] === "closed") return who;
  if (row["ownerAlive"] === false)
    return `${who} (${row["keeperAlive"] === true ? colours.yellow("gone, its keeper lives") : colours.red("owner gone")})`;
  return row["ownerAlive"] === null || row["ownerAlive"] === undefined ? `${who} (cannot be seen)` : who;
}

const size = (value: unknown): string => (typeof value === "number" ? bytes(value) : "");
const time = (value: unknown): string => (typeof value === "number" ? span(value) : "");

function cells(row: Row): string[] {
  const open = row["state"] !== "closed";
  return [
    plain(row["name"]),
    stateOf(row),
    time(row["ageSeconds"]),
    open ? time(row["leftSeconds"]) : "",
    typeof row["memoryMiB"] === "number" ? `${size(row["memoryBytes"]) || "–"} of ${bytes(row["memoryMiB"] * 2 ** 20)}` : "",
    size(row["diskBytes"]),
    plain(row["network"]),
    ownerOf(row),
  ];
}

export function addLs(program: Command): void {
  addCommon(program.command("ls"))
    .description("list the lanes: state, age, time left, memory and disk in use, owner")
    .option("--all", "closed lanes too (the last 1000)")
    .option("--json", "print a JSON array of rows")
    .addHelpText(
      "after",
      "\nMemory is what the lane's QEMU holds now, disk what its files take on this machine. Only lanes of the registry are\n" +
        "listed, never other instances of Lima.\n" +
        "\nExamples:\n  agent-lane ls\n  agent-lane ls --all --json | jq -r '.[].name'",
    )
    .action(async (options: CommonOptions & { all?: boolean; json?: boolean }) => {
      const rows = await engine().request<readonly Row[]>("list", { ...common(options), all: options.all ?? false });
      if (options.json === true) return printJson(rows);
      if (rows.length === 0) return print(options.all === true ? "There has been no lane yet." : "There are no lanes.");
      print(table(["name", "state", "age", "left", "memory", "disk", "network", "owner"], rows.map(cells)));
      for (const row of rows.filter((r) => r["state"] === "stuck"))
        print(`\n${plain(row["name"])} ${colours.red("is stuck")}: ${plain(row["reason"])}\nagent-lane reap tries again.`);
    });
}
