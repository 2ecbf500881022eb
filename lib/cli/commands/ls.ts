// SPDX-License-Identifier: Apache-2.0
// agent-lane ls: the registry's lanes.
import type { Command } from "commander";
import { engine } from "../../engine.js";
import { colours, plain, print, printJson, table, when } from "../output.js";
import { addCommon, common, type CommonOptions } from "./common.js";

type Row = Readonly<Record<string, unknown>>;

function seconds(value: unknown): string {
  return typeof value === "number" && value > 0 ? when(value) : "";
}

/** A lane whose owner has died is still in its last state until somebody reaps it. */
function owner(row: Row): string {
  const pid = plain(row["ownerPid"]);
  return row["ownerAlive"] === false && row["state"] !== "closed" ? `${pid} (${colours.red("owner gone")})` : pid;
}

export function addLs(program: Command): void {
  addCommon(program.command("ls"))
    .description("list the lanes")
    .option("--all", "closed lanes too")
    .option("--json", "print a JSON array of rows")
    .addHelpText("after", "\nExamples:\n  agent-lane ls\n  agent-lane ls --all --json | jq -r '.[].name'")
    .action(async (options: CommonOptions & { all?: boolean; json?: boolean }) => {
      const rows = await engine().request<readonly Row[]>("list", { ...common(options), all: options.all ?? false });
      if (options.json === true) return printJson(rows);
      if (rows.length === 0) return print(options.all === true ? "There has been no lane yet." : "There are no lanes.");
      print(
        table(
          ["name", "state", "created", "expires", "owner", "cpus", "memory", "network", "image"],
          rows.map((r) => [
            plain(r["name"]),
            r["state"] === "ready" ? colours.green("ready") : plain(r["state"]),
            seconds(r["created"]),
            r["state"] === "closed" ? "" : seconds(r["expires"]),
            owner(r),
            plain(r["cpus"]),
            typeof r["memoryMiB"] === "number" ? `${Number((r["memoryMiB"] / 1024).toFixed(2))} GiB` : "",
            plain(r["network"]),
            plain(r["image"]),
          ]),
        ),
      );
    });
}
