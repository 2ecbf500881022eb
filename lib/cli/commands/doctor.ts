// SPDX-License-Identifier: Apache-2.0
// agent-lane doctor: what a lane needs on this machine, what is there, and how to get the rest.
import type { Command } from "commander";
import { engine } from "../../engine.js";
import { colours, plain, print, printJson, table } from "../output.js";
import { addCommon, common, type CommonOptions } from "./common.js";

interface Check {
  readonly name: string;
  readonly status: "found" | "missing" | "too old" | "unsafe" | "skipped";
  readonly detail?: string | null;
  readonly cure?: string | null;
}
interface Report {
  readonly ok: boolean;
  readonly checks: readonly Check[];
}

function coloured(status: Check["status"]): string {
  if (status === "found") return colours.green(status);
  return status === "skipped" ? colours.dim(status) : colours.red(status);
}

export function addDoctor(program: Command): void {
  addCommon(program.command("doctor"), { limactl: true })
    .description("check that this machine has what a lane needs")
    .option("--image <image>", "the image to look for (name, id or directory)")
    .option("--allow-unknown-lima", "accept a limactl whose version cannot be read")
    .option("--json", "print one JSON object")
    .addHelpText(
      "after",
      "\nExits 1 when something is missing, too old or unsafe.\n\nExamples:\n" +
        "  agent-lane doctor\n  agent-lane doctor --json | jq .ok",
    )
    .action(async (options: CommonOptions & { image?: string; allowUnknownLima?: boolean; json?: boolean }) => {
      const report = await engine().request<Report>("doctor", {
        ...common(options),
        image: options.image,
        allowUnknownLima: options.allowUnknownLima,
      });
      process.exitCode = report.ok ? 0 : 1;
      if (options.json === true) return printJson(report);
      print(
        table(
          ["requirement", "status", "detail"],
          report.checks.map((c) => [plain(c.name), coloured(c.status), plain(c.detail)]),
        ),
      );
      const cures = report.checks.filter((c) => c.status !== "found" && plain(c.cure) !== "");
      if (cures.length > 0) print("");
      for (const c of cures) print(`${colours.bold(plain(c.name))}: ${plain(c.cure)}`);
      if (report.ok) print(`\n${colours.green("Everything that is needed is here.")}`);
    });
}
