// SPDX-License-Identifier: Apache-2.0
// agent-lane verify: starts a fresh lane and attacks the boundary from inside and beside; says what held.
import { InvalidArgumentError, Option, type Command } from "commander";
import { fails, type Answer, type Finding } from "../../verify/answers.js";
import { CHECKS, verify, type KeptLane, type Report } from "../../verify/run.js";
import { heldOpen, interruptible } from "../interrupt.js";
import { colours, columnsOf, plain, print, printJson, prose, table } from "../output.js";
import { livePossible, Waiting } from "../progress.js";
import { addCommon, type CommonOptions } from "./common.js";

// Some less than the lane's hour.
const KEEP_MS = 3_500_000;

interface VerifyOptions extends CommonOptions {
  readonly network: "open" | "none";
  readonly image?: string;
  readonly accelerator: "auto" | "tcg";
  readonly transport: "auto" | "shell" | "port";
  readonly allowUnknownLima?: boolean;
  readonly only?: readonly string[];
  readonly keep?: boolean;
  readonly json?: boolean;
}

function coloured(answer: Answer, excused: boolean): string {
  if (answer === "held") return colours.green(answer);
  return answer === "open" || excused ? colours.yellow(answer) : colours.red(answer);
}

function checkArgument(id: string, before: readonly string[] = []): readonly string[] {
  if (!CHECKS.some((check) => check.id === id)) throw new InvalidArgumentError("There is no such check.");
  return [...before, id];
}

const rowOf = (f: Finding): string[] => [f.id, coloured(f.answer, f.excused !== undefined), plain(f.seen)];

function summary({ summary: s, findings, network, seconds }: Report): string {
  const counts = `${s.held} held, ${s.open} open, ${s.broken} broken, ${s.notRun} not run${s.excused > 0 ? ` (${s.excused} of them cannot be had on this machine)` : ""}`;
  const verdict = s.ok ? colours.green("the boundary holds what it promises") : colours.red("the boundary does not hold, or was not tried");
  return `${findings.length} checks of network "${network}" in ${seconds} s: ${counts}; ${verdict}`;
}

/** What failed, with what was tried. Checks that ended for the same reason, such as a lane that did not start, have it once. */
function reasons(bad: readonly Finding[], columns: number | undefined): string[] {
  const groups = new Map<string, Finding[]>();
  for (const f of bad) {
    const key = f.answer === "not run" && (f.details ?? []).length > 0 ? JSON.stringify([f.seen, f.details]) : f.id;
    groups.set(key, [...(groups.get(key) ?? []), f]);
  }
  return [...groups.values()].map((group) => {
    const [first] = group as [Finding, ...Finding[]];
    const names = colours.bold(group.map(({ id }) => id).join(", "));
    const head = group.length === 1 ? `${names}: tried: ${plain(first.tried)}` : `${names}: ${plain(first.seen)}`;
    return [prose("", head, columns), ...(first.details ?? []).map((d) => prose("  ", plain(d), columns))].join("\n");
  });
}

async function run(options: VerifyOptions): Promise<void> {
  const live = livePossible(), waiting = new Waiting();
  /** What is being done, on stderr; in one line that the next one replaces where there is a terminal. */
  const progress = (text: string): void => (live ? waiting.on(text) : waiting.say(plain(text)));
  await interruptible(async (interrupt) => {
    interrupt.endsBySignal();
    let shown = false;
    const keep = async (report: Report, lane: KeptLane, dir: string): Promise<void> => {
      shown = true;
      waiting.off();
      show(report, options.json === true);
      process.stderr.write(`${lane.name} is kept, with the canaries in ${dir}, until Ctrl-C or an hour has gone: agent-lane shell ${lane.name}\n`);
      await heldOpen(lane, interrupt.signal, KEEP_MS);
    };
    const { home, limactl, network, image, accelerator, transport, allowUnknownLima } = options;
    const report = await verify({
      choice: { home, limactlPath: limactl, network, image, accelerator, transport, allowUnknownLima },
      only: options.only,
      signal: interrupt.signal,
      say: progress,
      told: (f) => progress(`${f.id}: ${f.answer}`),
      ...(options.keep === true ? { keep } : {}),
    }).finally(() => waiting.off());
    if (!shown) show(report, options.json === true);
  });
}

function show(report: Report, json: boolean): void {
  if (!report.summary.ok) process.exitCode = 1;
  if (json) return printJson(report);
  print(table(["check", "answer", "seen"], report.findings.map(rowOf)));
  const bad = report.findings.filter(fails);
  if (bad.length > 0) print("");
  const columns = columnsOf(process.stdout);
  for (const text of reasons(bad, columns)) print(text);
  print(`\n${prose("", summary(report), columns)}`);
}

export function addVerify(program: Command): void {
  addCommon(program.command("verify"), { limactl: true })
    .description("attack a fresh lane's boundary from inside and beside, and say what held")
    .addOption(new Option("--network <network>", "the network of the lane").choices(["none", "open"]).default("none"))
    .option("--image <image>", "the image to start (name, id or directory)")
    .addOption(new Option("--accelerator <accelerator>", "as of lima()").choices(["auto", "tcg"]).default("auto"))
    .addOption(new Option("--transport <transport>", "as of lima()").choices(["auto", "shell", "port"]).default("auto"))
    .option("--allow-unknown-lima", "accept a limactl whose version cannot be read")
    .option("--only <checks...>", `only these checks: ${CHECKS.map((c) => c.id).join(", ")}`, checkArgument)
    .option("--keep", "keep the lane that attacked, and the canaries, until Ctrl-C")
    .option("--json", "print one JSON object: versions, each check with what was tried and seen, summary")
    .addHelpText(
      "after",
      "\nIt starts two small lanes, and for a moment two more. Canaries are planted on this machine for what a guest must not\n" +
        "reach: listeners, sockets, files, variables. What counts is what those saw, not what the guest says.\n" +
        "\nAnswers: held (it was attacked and stood), open (reachable, and not promised otherwise), broken (a promise did not\n" +
        "hold), not run (nothing can be said: a failure, unless this machine cannot have it, which is said).\n" +
        "Exit status: 0 everything held or is open as said; 1 something is broken or was not run; 2 wrong usage; 130 Ctrl-C.\n" +
        "\nExamples:\n  agent-lane verify\n  agent-lane verify --network open\n  agent-lane verify --json | jq '.findings[] | select(.answer != \"held\")'\n" +
        "  agent-lane verify --only docker-socket ssh-agent --keep",
    )
    .action(run);
}
