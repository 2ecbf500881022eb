// SPDX-License-Identifier: Apache-2.0
// What a run manifest says, for people: the same words in inspect and verify-manifest.
import { bytes, colours, plain, span, table } from "./output.js";

type Fields = Readonly<Record<string, unknown>>;

/** The engine's answer to runCheck. */
export interface CheckedRun {
  readonly path: string;
  readonly ok: boolean;
  readonly state: "open" | "ended";
  /** Lines that hold. */
  readonly count: number;
  /** SHA-256 of the last of them: it stands for all of them. */
  readonly head: string | null;
  /** The first line that does not hold. */
  readonly line: number | null;
  readonly why: string | null;
  readonly interruptedBytes: number;
  readonly events: readonly Fields[];
}

const fields = (value: unknown): Fields => (typeof value === "object" && value !== null ? (value as Fields) : {});
const list = (value: unknown): readonly unknown[] => (Array.isArray(value) ? (value as unknown[]) : []);
const time = (ms: unknown): string => (typeof ms === "number" ? new Date(ms).toISOString() : "");

function held(enforced: unknown): string {
  if (typeof enforced !== "boolean") return colours.dim("unknown");
  return enforced ? colours.green("yes") : colours.yellow("no");
}

export function enforcedTable(rows: unknown): string {
  const cells = list(rows).map(fields).map((e) => [plain(e["what"]), held(e["enforced"]), plain(e["by"])]);
  return table(["what", "enforced", "by"], cells);
}

function commandsText(value: unknown): string {
  const commands = fields(value);
  const exits = list(commands["exits"]).map(fields).map((e) => `${plain(e["count"])} × ${plain(e["code"])}`);
  const codes = exits.length === 0 ? "" : `; exit codes: ${exits.join(", ")}`;
  const cut = Number(commands["interrupted"]) > 0 ? `, ${plain(commands["interrupted"])} interrupted` : "";
  return `${plain(commands["started"])} started, ${plain(commands["ended"])} ended${cut}${codes}`;
}

function copiesTable(events: readonly Fields[]): string {
  const copies = events.filter((e) => e["event"] === "copied" || e["event"] === "files");
  const files = copies.flatMap((e) => list(e["files"]).map(fields));
  const rows = files.map((f) => [plain(f["sha256"]).slice(0, 16), bytes(Number(f["bytes"])), plain(f["path"])]);
  return table(["sha256", "size", "path in the guest"], rows);
}

/** Sections of text with their titles. */
export function describeRun(run: CheckedRun): [string, string][] {
  const of = (event: string): Fields => run.events.find((e) => e["event"] === event) ?? {};
  const ready = of("ready");
  const closing = of("closing");
  const end = of("end");
  const facts: [string, string][] = [
    ["manifest", plain(run.path)],
    ["state", run.ok ? run.state : colours.red(`broken: ${plain(run.why)}`)],
    ["events", `${run.count}; the last one's hash is ${plain(run.head)}`],
    ["ready", time(ready["atMs"])],
    ["ended", end["atMs"] === undefined ? "" : `${time(end["atMs"])} by ${plain(end["by"])}: ${plain(end["reason"])}`],
    ["lasted", end["atMs"] === undefined ? "" : span((Number(end["atMs"]) - Number(ready["atMs"])) / 1000)],
    ["commands", closing["commands"] === undefined ? "" : commandsText(closing["commands"])],
    ["not written", Number(closing["missed"]) > 0 ? `${plain(closing["missed"])} events` : ""],
  ];
  const versions = Object.entries(fields(ready["versions"])).map(([name, value]) => `${plain(name)}: ${value === null ? "not known" : plain(value)}`);
  const image = fields(ready["image"]);
  const chain = [image, ...list(image["parents"]).map(fields)].map((i, n) => {
    const note = i["untrustedSetup"] === true ? `  ${colours.yellow("a project's setup has run in it")}` : "";
    return `${n === 0 ? "" : "of "}${plain(i["id"])}  ${plain(i["manifestSha256"])}${note}`;
  });
  const signature = fields(image["signature"]);
  if (signature["manifestSha256"] !== undefined) {
    const by = signature["key"] ?? signature["keyId"];
    chain.push(`signed by ${plain(by)}${signature["key"] === null ? colours.yellow(", not checked") : ""}`);
  } else if (image["id"] !== undefined) chain.push("unsigned");
  const sections: [string, string][] = [
    ["Run manifest", facts.filter(([, value]) => value !== "").map(([name, value]) => `${name.padEnd(12)}${value}`).join("\n")],
    ["Versions", versions.join("\n")],
    ["Image", image["id"] === undefined ? "" : chain.join("\n")],
    ["Enforced when it was ready", enforcedTable(ready["enforced"])],
  ];
  if (run.events.some((e) => e["event"] === "copied")) sections.push(["Copied out", copiesTable(run.events)]);
  return sections.filter(([, text]) => text !== "");
}
