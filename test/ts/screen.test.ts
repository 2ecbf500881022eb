// SPDX-License-Identifier: Apache-2.0
// That what the command says fits the terminal that it is shown in: tables, sentences, help; with characters that take two columns, or none.
import { spawnSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, describe, expect, it } from "vitest";
import { fitted } from "../../lib/cli/help.js";
import { bytes, clip, columnsOf, prose, table, wrap } from "../../lib/cli/output.js";
import { Waiting } from "../../lib/cli/progress.js";
import { makeProgram } from "../../lib/cli/program.js";
import { flat, treeOf } from "../../lib/cli/tree.js";

const root = join(import.meta.dirname, "..", "..");
const scratch = mkdtempSync(join(tmpdir(), "al-screen-"));
afterAll(() => rmSync(scratch, { recursive: true, force: true }));
const bare = (text: string): string => text.replace(/\x1b\[\d+m/g, "");

describe("characters that do not take one column", () => {
  const wide = "日本語の長い名前";
  it("are counted as a terminal shows them", () => {
    expect(bare(table(["name", "what"], [[wide, "x"], ["e\u0301", "y"]]))).toBe(`name              what\n${wide}  x\ne\u0301                 y`);
    expect(wrap(`${wide} ${wide}`, 20)).toEqual([wide, wide]);
  });
  it("are cut between them, and never in the middle of one", () => {
    expect(clip(wide, 16)).toBe(wide);
    expect(clip(wide, 10)).toBe("日本語の…");
    expect(clip(wide, 9)).toBe("日本語の…");
    expect(clip("👩‍💻👩‍💻👩‍💻", 5)).toBe("👩‍💻👩‍💻…");
    expect(wrap("👩‍💻👩‍💻👩‍💻", 4, { hard: true })).toEqual(["👩‍💻👩‍💻", "👩‍💻"]);
  });
  it.each([20, 40, 80])("leave the line that is written over within %i columns", (columns) => {
    let written = "";
    const stream = { isTTY: true, columns, write: (text: string) => ((written += text), true) } as unknown as NodeJS.WriteStream;
    const waiting = new Waiting({ live: true, stream });
    waiting.on(wide.repeat(20), 3_723_000);
    waiting.off();
    const shown = bare(written).split("\r\x1b[K").filter((line) => line !== "");
    expect(shown.length).toBe(1);
    // "⠙ 日…  62 min 3 s": half as many characters as columns, and some.
    expect([...shown[0]!].reduce((sum, c) => sum + (c > "\u3000" ? 2 : 1), 0)).toBeLessThan(columns);
    expect(shown[0]).toMatch(/… 62 min 3 s$/);
  });
});

describe("a terminal", () => {
  it("is as wide as it says, 80 columns where it does not say, and nothing else is one", () => {
    const stream = (isTTY: boolean, columns?: number) => columnsOf({ isTTY, columns } as NodeJS.WriteStream);
    expect([stream(true, 132), stream(true, 0), stream(true), stream(false, 132)]).toEqual([132, 80, 80, undefined]);
  });
  it("has tables whose long words are broken within their column", () => {
    const word = "x".repeat(50);
    expect(bare(table(["what", "by"], [["a", `say ${word}`]], 40))).toBe(`what  by\na     say\n      ${"x".repeat(34)}\n      ${"x".repeat(16)}`);
    expect(bare(table(["what", "by"], [["a", `say ${word}`]]))).toBe(`what  by\na     say ${word}`);
  });
  it("has sentences broken at blanks, below each other; a long word stays whole, to be copied", () => {
    expect(prose("", "one two three four five six", 20)).toBe("one two three four\nfive six");
    expect(prose("  1 s  ", "one two three four five six", 30)).toBe("  1 s  one two three four five\n       six");
    expect(prose("", `see ${"/path".repeat(10)} there`, 20)).toBe(`see\n${"/path".repeat(10)}\nthere`);
    expect(prose("", "one two three four five six", undefined)).toBe("one two three four five six");
    expect(prose("", "one two three four five six", 8)).toBe("one two three four five six"); // the terminal does it as well
  });
  it("sees commands to be copied as they are", () => {
    let written = "";
    const stream = { isTTY: true, columns: 30, write: (text: string) => ((written += text), true) } as unknown as NodeJS.WriteStream;
    new Waiting({ live: true, stream }).say(`nothing here was changed. To have it:\n  git apply ${"x".repeat(40)} y`);
    expect(written).toBe(`nothing here was changed. To\nhave it:\n  git apply ${"x".repeat(40)} y\n`);
  });
});

it("sizes have a unit that fits", () => {
  expect([9_999, 10_000, 102_400, 2 ** 20 - 1, 2 ** 20].map(bytes)).toEqual(["9999 B", "10 KiB", "100 KiB", "1024 KiB", "1 MiB"]);
});

describe("help", () => {
  const text = "\nOne two three four five six.\nSeven eight nine.\n\nExamples:\n  agent-lane ls --all            what it does is said beside it, at length\n  agent-lane run -- sh -c 'a long command that is to be copied'";
  it("is filled anew for a terminal, but for what is to be copied", () => {
    expect(fitted(text, undefined)).toBe(text);
    expect(fitted(text, 64)).toBe(
      "\nOne two three four five six. Seven eight nine.\n\nExamples:\n  agent-lane ls --all            what it does is said beside it,\n                                 at length\n  agent-lane run -- sh -c 'a long command that is to be copied'",
    );
    expect(fitted(text, 30)).toContain("\nOne two three four five six.\nSeven eight nine.\n");
  });

  const commands = flat(treeOf(makeProgram())).map(({ path }) => path);
  it.each(commands.map((path) => [path.join(" "), path] as const))("of %j fits 80 columns, commands apart", (_, path) => {
    const program = makeProgram();
    let said = "";
    const command = path.reduce((above, name) => above.commands.find((each) => each.name() === name)!, program);
    command.configureOutput({ ...program.configureOutput(), getOutHelpWidth: () => 80, writeOut: (part) => (said += part) });
    command.outputHelp();
    const long = said.split("\n").filter((line) => line.length > 80);
    expect(long.filter((line) => !/^ {2}(?:agent-lane|sudo) /.test(line))).toEqual([]);
  });

  it("in documents does not depend on the terminal of who makes them", () => {
    const own = Object.getOwnPropertyDescriptor(process.stdout, "isTTY");
    const before = JSON.stringify(treeOf(makeProgram()));
    Object.defineProperty(process.stdout, "isTTY", { value: true, configurable: true });
    try {
      expect(JSON.stringify(treeOf(makeProgram()))).toBe(before);
    } finally {
      if (own === undefined) delete (process.stdout as { isTTY?: boolean }).isTTY;
      else Object.defineProperty(process.stdout, "isTTY", own);
    }
  });
});

describe("wrong usage", () => {
  it.each([
    [["nonsense"], "agent-lane --help"],
    [["ls", "--nonsense"], "agent-lane ls --help"],
    [["image", "nonsense"], "agent-lane image --help"],
    [["image", "import"], "agent-lane image import --help"],
    [["completion", "ksh"], "agent-lane completion --help"],
  ])("%j points at the help of just that command", (args, help) => {
    const r = spawnSync(process.execPath, [join(root, "dist", "cli", "main.js"), ...args], { encoding: "utf8", timeout: 25_000 });
    expect([r.status, r.stdout]).toEqual([2, ""]);
    expect(r.stderr).toContain(`(${help} shows how)`);
  });
});

it("verify says once why nothing could be started, with the cure, and passes nothing", () => {
  const args = ["verify", "--only", "host-mount", "ssh-agent", "limits", "--limactl", join(scratch, "no-limactl")];
  const r = spawnSync(process.execPath, [join(root, "dist", "cli", "main.js"), ...args], {
    encoding: "utf8", timeout: 60_000, env: { ...process.env, HOME: scratch, AGENT_LANE_HOME: join(scratch, "home"), NO_COLOR: "1" },
  });
  expect(r.status).toBe(1);
  expect(r.stdout.match(/not run +it ended with/g)).toHaveLength(3);
  // Root is told to be another user, everybody else that there is no limactl.
  const [, why = ""] = /\nhost-mount, ssh-agent, limits: it ended with LIMA_(?:MISSING|ROOT)\n {2}(\S.*)\n {2}cure: \S.*\n/.exec(r.stdout) ?? [];
  expect(why).not.toBe("");
  expect(r.stdout.split(why)).toHaveLength(2);
});
