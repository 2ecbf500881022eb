// SPDX-License-Identifier: Apache-2.0
// agent-lane reap: destroys registered lanes that are past their time or have no owner.
import { Option, type Command } from "commander";
import { engine } from "../../engine.js";
import { installTimer, uninstallTimer } from "../timer.js";
import { colours, plain, print, printJson, table } from "../output.js";
import { waited } from "../progress.js";
import { addCommon, common, type CommonOptions } from "./common.js";

interface Reaped {
  readonly name: string;
  readonly reason: string;
  readonly ok: boolean;
  readonly message?: string | null;
}
interface Report {
  readonly reaped: readonly Reaped[];
  /** Lane directories without a row in the registry and without our record. */
  readonly unlisted: readonly string[];
  /** Temporary files and processes that nobody owned. */
  readonly removed: readonly { readonly what: string; readonly reason: string }[];
  /** Such as that the registry was damaged, and where it is now. */
  readonly notices: readonly string[];
  readonly kept: readonly { readonly name: string; readonly reason: string; readonly message?: string | null }[];
}

function outcome(r: Reaped, dryRun: boolean): string {
  if (dryRun) return colours.yellow("would be destroyed");
  return r.ok ? colours.green("destroyed") : colours.red("left");
}

interface ReapOptions extends CommonOptions {
  readonly dryRun?: boolean;
  readonly force?: boolean;
  readonly install?: boolean;
  readonly uninstall?: boolean;
  readonly json?: boolean;
}

async function timer(options: ReapOptions): Promise<void> {
  const { home } = await engine().request<{ home: string }>("home", { home: options.home });
  const place = { home, limactl: options.limactl ?? (process.env["AGENT_LANE_LIMACTL"] || undefined) };
  if (options.install === true) {
    const file = await installTimer(place);
    if (options.json === true) return printJson({ installed: file });
    return print(`installed ${plain(file)}: lanes without an owner are destroyed every ten minutes`);
  }
  const removed = await uninstallTimer(place);
  if (options.json === true) return printJson({ removed });
  print(removed ? "the timer and its copy of this package are removed" : "there was no timer");
}

export function addReap(program: Command): void {
  addCommon(program.command("reap"), { limactl: true })
    .description("destroy lanes that are past their time or have no owner")
    .option("--dry-run", "say what would be destroyed, and do nothing")
    .option("--force", "destroy lanes whose owner still lives, too")
    .addOption(new Option("--install", "reap every ten minutes from now on, by a timer of this user's (systemd, launchd)").conflicts(["dryRun", "force", "uninstall"]))
    .addOption(new Option("--uninstall", "remove that timer, and the copy of this package that it runs").conflicts(["dryRun", "force"]))
    .option("--json", "print one JSON object")
    .addHelpText(
      "after",
      "\nOnly lanes of the registry are touched, each by its own name. A lane that the registry does not know (it was\n" +
        "lost) is taken over when its directory carries our record; any other directory is named and left. Exits 1 when\n" +
        "a lane could not be destroyed, or such a directory is there; with --dry-run 0.\n" +
        "\nThe timer runs a copy of this package below the home, so that no project needs to stay where it is.\n" +
        "\nExamples:\n  agent-lane reap --dry-run\n  agent-lane reap\n  agent-lane reap --install",
    )
    .action(async (options: ReapOptions) => {
      if (options.install === true || options.uninstall === true) return timer(options);
      const dryRun = options.dryRun ?? false;
      const asked = { ...common(options), force: options.force ?? false, dryRun };
      const report = await waited("looking for lanes that are past their time", engine().request<Report>("reap", asked));
      if ((report.reaped.some((r) => !r.ok) || report.unlisted.length > 0) && !dryRun) process.exitCode = 1;
      if (options.json === true) return printJson(report);
      const rows = [
        ...report.reaped.map((r) => [
          plain(r.name),
          outcome(r, dryRun),
          [plain(r.reason), plain(r.message)].filter((t) => t !== "").join(": "),
        ]),
        ...report.kept.map((k) => [
          plain(k.name),
          "kept",
          [plain(k.reason), plain(k.message)].filter((t) => t !== "").join(": "),
        ]),
        ...report.unlisted.map((name) => [
          plain(name),
          colours.red("left"),
          "the registry does not know this directory; `agent-lane doctor` says how to remove it",
        ]),
        ...report.removed.map((r) => [plain(r.what), colours.green("removed"), plain(r.reason)]),
        ...report.notices.map((text) => ["registry", colours.yellow("set aside"), plain(text)]),
      ];
      print(rows.length === 0 ? "There is nothing to reap." : table(["name", "outcome", "reason"], rows));
    });
}
