// SPDX-License-Identifier: Apache-2.0
// agent-lane doctor: what a lane needs on this machine, what is there, and how to get the rest.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import type { Command } from "commander";
import { engine } from "../../engine.js";
import { packageDir } from "../../native.js";
import { outsideDangers } from "../../outside.js";
import { waited } from "../progress.js";
import { colours, columnsOf, plain, print, printJson, prose, table } from "../output.js";
import { addCommon, common, type CommonOptions } from "./common.js";

interface Check {
  readonly name: string;
  /** "warning" is nothing that a lane lacks, so it does not make the report fail. */
  readonly status: "found" | "missing" | "too old" | "unsafe" | "skipped" | "warning";
  readonly detail?: string | null;
  readonly cure?: string | null;
}
interface Report {
  readonly ok: boolean;
  readonly checks: readonly Check[];
}

/** The running Node against `engines` of package.json, which npm only warns of. */
function nodeCheck(): Check {
  const text = readFileSync(join(packageDir, "package.json"), "utf8");
  const wanted = (JSON.parse(text) as { engines: { node: string } }).engines.node;
  const detail = `${process.execPath}: ${process.version} (${wanted} is needed)`;
  if (isNewEnough(process.versions.node, wanted)) return { name: "node", status: "found", detail };
  return { name: "node", status: "too old", detail, cure: `Upgrade Node: ${wanted}.` };
}

/** Whether "20.19.1" is what ">=20.19" asks for. */
export function isNewEnough(version: string, wanted: string): boolean {
  const numbers = (text: string): number[] => text.replace(/^>=/, "").split(".").map((n) => parseInt(n, 10));
  const [has, needs] = [numbers(version), numbers(wanted)];
  const at = needs.findIndex((n, i) => n !== has[i]);
  return at < 0 || (has[at] ?? 0) > (needs[at] ?? 0);
}

function coloured(status: Check["status"]): string {
  if (status === "found") return colours.green(status);
  if (status === "warning") return colours.yellow(status);
  return status === "skipped" ? colours.dim(status) : colours.red(status);
}

/** What no lane can hold, in the repository that this is run in. */
async function repositoryChecks(): Promise<Check[]> {
  const dangers = (await outsideDangers(process.cwd())) ?? [];
  return dangers.map(({ id, danger, what, cure }) => ({ name: id, status: danger ? "warning" : "found", detail: what, cure }));
}

export function addDoctor(program: Command): void {
  addCommon(program.command("doctor"), { limactl: true })
    .description("check that this machine has what a lane needs")
    .option("--image <image>", "the image to look for (name, id or directory)")
    .option("--allow-unknown-lima", "accept a limactl whose version cannot be read")
    .option("--json", "print one JSON object")
    .addHelpText(
      "after",
      "\nExits 1 when something is missing, too old or unsafe. In a git repository it also warns of what happens outside\n" +
        "every VM: hooks that the agent's patches could add, and what git bundle --all would take into the guest.\n\nExamples:\n" +
        "  agent-lane doctor\n  agent-lane doctor --json | jq .ok",
    )
    .action(async (options: CommonOptions & { image?: string; allowUnknownLima?: boolean; json?: boolean }) => {
      const asked = { ...common(options), image: options.image, allowUnknownLima: options.allowUnknownLima };
      const core = await waited("looking at this machine", engine().request<Report>("doctor", asked));
      const node = nodeCheck();
      const report = { ok: core.ok && node.status === "found", checks: [node, ...core.checks, ...(await repositoryChecks())] };
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
      for (const cure of new Set(cures.map((c) => plain(c.cure)))) {
        const names = cures.filter((c) => plain(c.cure) === cure).map((c) => plain(c.name));
        print(prose("", `${colours.bold(names.join(", "))}: ${cure}`, columnsOf(process.stdout)));
      }
      if (report.ok) print(`\n${colours.green("Everything that is needed is here.")}`);
    });
}
