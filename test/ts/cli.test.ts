// SPDX-License-Identifier: Apache-2.0
// The command as people run it: what it prints, where, and its exit status.
import { execFileSync, spawn, spawnSync, type SpawnSyncOptions } from "node:child_process";
import { closeSync, cpSync, mkdirSync, mkdtempSync, openSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, describe, expect, it, vi } from "vitest";
import { isNewEnough } from "../../lib/cli/commands/doctor.js";
import { bytes, plain, printJson, table, wantsColour, when } from "../../lib/cli/output.js";
import { makeProgram } from "../../lib/cli/program.js";
import { flat, treeOf } from "../../lib/cli/tree.js";
import { commandPackages } from "./support/stage.js";

const root = join(import.meta.dirname, "..", "..");
const main = join(root, "dist", "cli", "main.js");
const scratch = mkdtempSync(join(tmpdir(), "al-cli-"));
const home = join(scratch, "home");
afterAll(() => rmSync(scratch, { recursive: true, force: true }));

interface Run {
  readonly status: number | null;
  readonly out: string;
  readonly err: string;
}

function run(args: string[], env: NodeJS.ProcessEnv = {}, more: SpawnSyncOptions = {}): Run {
  const r = spawnSync(process.execPath, [main, ...args], {
    ...more,
    encoding: "utf8",
    timeout: 25_000,
    env: { ...process.env, AGENT_LANE_HOME: home, AGENT_LANE_LIMACTL: "", FORCE_COLOR: undefined, NO_COLOR: "1", ...env },
  });
  return { status: r.status, out: r.stdout, err: r.stderr };
}

describe("usage", () => {
  it("--version prints the package's version", () => {
    const { version } = JSON.parse(readFileSync(join(root, "package.json"), "utf8")) as { version: string };
    expect(run(["--version"])).toEqual({ status: 0, out: `${version}\n`, err: "" });
  });

  const tree = flat(treeOf(makeProgram()));
  const leaves = tree.filter(({ path, commands }) => path.length > 0 && commands.length === 0).map(({ path }) => path.join(" "));

  it("--help shows every command, examples and the exit status", () => {
    const { status, out } = run(["--help"]);
    expect(status).toBe(0);
    for (const word of ["image/build DIR --flavour base", "Examples:", "Exit status:", "125"]) expect(out).toContain(word);
    for (const { name } of tree[0]!.commands) expect(out).toMatch(new RegExp(`^  ${name}[ |]`, "m"));
  });

  it("knows them all here", () => {
    expect(leaves.length).toBeGreaterThan(25);
    for (const name of ["run", "demo", "doctor", "completion", "image ls"]) expect(leaves).toContain(name);
  });

  it.each(leaves)("%s --help has an example", (command) => {
    const { status, out } = run([...command.split(" "), "--help"]);
    expect(status).toBe(0);
    expect(out).toMatch(/Examples?:\n +(?:\S.* )?(?:eval "\$\()?agent-lane /);
  });

  it("every command, argument and option says what it is", () => {
    const silent = tree.flatMap(({ path, doc, options, args }) => [
      ...(doc === "" ? [path.join(" ")] : []),
      ...[...options.map((o) => [o.long, o.doc] as const), ...args.map((a) => [a.name, a.doc] as const)].filter(([, text]) => text === "").map(([name]) => `${path.join(" ")} ${name}`),
    ]);
    expect(silent).toEqual([]);
  });

  it.each([
    [["imgae"], "Did you mean image?"],
    [["rnu", "--", "x"], "Did you mean run?"],
    [["image", "imprt"], "Did you mean import?"],
    [["ls", "--jsn"], "Did you mean --json?"],
    [["run", "--memory-gb", "2", "--", "x"], "Did you mean --memory-gib?"],
    [["completion", "bsh"], "Allowed choices are bash, zsh, fish"],
  ])("%j: %s", (args, words) => {
    const { status, out, err } = run(args);
    expect([status, out]).toEqual([2, ""]);
    expect(err).toContain(words);
  });

  it.each([[["nonsense"]], [["ls", "--nonsense"]], [["image", "import"]], [["ls", "extra"]], [["close"]], [["logs", "x", "-n", "0"]], [["logs", "x", "--only", "y"]], [["inspect"]], [[]]])(
    "%j is wrong usage: exit 2, help on stderr, nothing on stdout",
    (args) => {
      const { status, out, err } = run(args);
      expect(status).toBe(2);
      expect(out).toBe("");
      expect(err).toMatch(/--help|Usage/);
      expect(err).not.toContain("    at ");
    },
  );
});

describe("doctor", () => {
  it("prints one JSON object and exits 1 when something is missing", () => {
    const { status, out, err } = run(["doctor", "--json", "--limactl", join(scratch, "no-limactl")], {}, { cwd: scratch }); // in no repository
    expect(err).toBe("");
    expect(status).toBe(1);
    const report = JSON.parse(out) as { ok: boolean; checks: { name: string; status: string; cure?: string }[] };
    expect(report.ok).toBe(false);
    expect(report.checks.map((c) => c.name)).toEqual(expect.arrayContaining(["node", "registry", "memory", "limactl", "home", "image"]));
    for (const check of report.checks) {
      expect(["found", "missing", "too old", "unsafe", "skipped"]).toContain(check.status);
      if (["missing", "too old", "unsafe"].includes(check.status)) expect(check.cure).toMatch(/\w/);
    }
    expect(report.checks.find((c) => c.name === "limactl")?.status).not.toBe("found");
  });

  it("prints a table with the cures below for people", () => {
    const { status, out } = run(["doctor", "--limactl", join(scratch, "no-limactl")]);
    expect(status).toBe(1);
    expect(out).toMatch(/^requirement +status +detail\n/);
    expect(out).toMatch(/\nlimactl: Install Lima/);
    expect(out).toMatch(/\nimage: `agent-lane image import DIR`/);
  });
});

it.each([["20.19.0", true], ["20.20.2", true], ["22.0.0", true], ["20.18.3", false], ["18.20.0", false]])(
  "Node %s against >=20.19: %s",
  (version, good) => expect(isNewEnough(version, ">=20.19")).toBe(good),
);

describe("ls, image, reap", () => {
  it("ls of a new home", () => {
    expect(run(["ls"])).toEqual({ status: 0, out: "There are no lanes.\n", err: "" });
    expect(JSON.parse(run(["ls", "--json"]).out)).toEqual([]);
    expect(run(["ls", "--all", "--home", join(scratch, "other")]).out).toBe("There has been no lane yet.\n");
  });

  it("image ls of a new home", () => {
    expect(run(["image", "ls"]).out).toContain("agent-lane image import DIR");
    expect(JSON.parse(run(["image", "ls", "--json"]).out)).toEqual([]);
  });

  it("image import of nothing: code, sentence and cure on stderr, exit 1, no stack trace", () => {
    const { status, out, err } = run(["image", "import", join(scratch, "nothing")]);
    expect(status).toBe(1);
    expect(out).toBe("");
    expect(err).toMatch(/^error SOURCE_MISSING: .+\ncure: .+\n$/);
  });

  it("image import of a directory without a manifest", () => {
    mkdirSync(join(scratch, "empty"));
    const { status, err } = run(["image", "import", join(scratch, "empty")]);
    expect(status).toBe(1);
    expect(err).toMatch(/^error (IMAGE_INVALID|SOURCE_MISSING): .+\ncure: .+\n$/);
  });

  it("a home that others can write is refused", () => {
    const open = join(scratch, "open");
    mkdirSync(open);
    execFileSync("chmod", ["0777", open]);
    const { status, err } = run(["ls", "--home", open]);
    expect(status).toBe(1);
    expect(err).toMatch(/^error HOME_UNSAFE: /);
  });
});

describe("paths", () => {
  it.each([["ls", "--home", ""], ["image", "import", ""], ["doctor", "--limactl", ""]])(
    "%s %s %j: an empty one is wrong usage, not the current directory",
    (...args) => {
      const cwd = mkdtempSync(join(scratch, "cwd-"));
      const { status, out, err } = run(args, {}, { cwd });
      expect({ status, out }).toEqual({ status: 2, out: "" });
      expect(err).toMatch(/must be a path, not an empty text/);
      expect(readdirSync(cwd)).toEqual([]);
    },
  );

  it("a relative one means the current directory, ~ the user's home", () => {
    const cwd = mkdtempSync(join(scratch, "cwd-"));
    expect(run(["ls", "--home", "rel"], {}, { cwd }).status).toBe(0);
    expect(run(["ls", "--home=~/mine"], { HOME: scratch }, { cwd }).status).toBe(0);
    expect(readdirSync(cwd)).toEqual(["rel"]);
    expect(readdirSync(scratch)).toContain("mine");
  });

  it("a relative one where the current directory is gone is said so", () => {
    const script = `mkdir gone && cd gone && rmdir ../gone && exec "$0" "$1" image import x`;
    const r = spawnSync("/bin/sh", ["-c", script, process.execPath, main], { cwd: scratch, encoding: "utf8" });
    expect(r.status).not.toBe(0);
    expect(r.stderr).not.toContain("bug in Agent Lane");
  });
});

describe("what goes wrong", () => {
  // The command's own module, beside which something happens once it is at work.
  const after = (script: string, args: string[]): Run => {
    const file = join(scratch, `before-${Math.random().toString(36).slice(2)}.mjs`);
    const then = `const looks = setInterval(() => { if (process.listenerCount("uncaughtException") === 0) return; clearInterval(looks); ${script}; }, 20);`;
    writeFileSync(file, `process.argv.splice(1, 1, "agent-lane"); ${then} await import(${JSON.stringify(main)});`);
    const r = spawnSync(process.execPath, [file, ...args], { encoding: "utf8", timeout: 25_000, env: { ...process.env, AGENT_LANE_HOME: home, NO_COLOR: "1" } });
    return { status: r.status, out: r.stdout, err: r.stderr };
  };

  it("a bug is two lines too, never a stack trace", () => {
    const { status, err } = after(`setTimeout(() => { throw new Error("a bug"); }, 300)`, ["events", "--follow"]);
    expect([status, err]).toEqual([1, "error INTERNAL: a bug\ncure: This is a bug in Agent Lane; please report it with the message.\n"]);
  });

  it("warnings are lines: ours, and nobody else's", () => {
    const { status, err } = after(`setTimeout(() => { process.emitWarning("much\\x1b[2J", "AgentLaneWarning"); process.emitWarning("old", "DeprecationWarning"); setTimeout(() => process.exit(0), 100); }, 300)`, ["events", "--follow"]);
    expect([status, err]).toEqual([0, "warning: much?[2J\n"]);
  });
});

describe("output", () => {
  it("that cannot be written is an error in two lines", () => {
    for (const args of [["ls"], ["--help"], ["doctor", "--json"]]) {
      const full = openSync("/dev/full", "w");
      const { status, err } = run(args, {}, { stdio: ["ignore", full, "pipe"] });
      closeSync(full);
      expect(status).toBe(1);
      expect(err).toMatch(/^error IO_ERROR: the output could not be written: .*\ncure: .+\n$/);
    }
  });

  it("to a reader that has gone is no error", async () => {
    const child = spawn(process.execPath, [main, "--help"], {
      stdio: ["ignore", "pipe", "pipe"],
      env: { ...process.env, AGENT_LANE_HOME: home },
    });
    child.stdout.destroy();
    let err = "";
    child.stderr.on("data", (data: Buffer) => (err += data.toString()));
    const status = await new Promise((resolve) => child.on("close", resolve));
    expect(err).toBe("");
    expect(status).toBe(0);
  });

  it("cannot drive the terminal", () => {
    expect(plain("a\x1b[2Jb\rc\nd\x9b")).toBe("a?[2Jb?c d?");
    expect(plain("a\u202eb\u2066c")).toBe("a?b?c");
    expect(plain(undefined)).toBe("");
    const write = vi.spyOn(process.stdout, "write").mockReturnValue(true);
    printJson(["\x1b\x9b\u202e\u2028é"]);
    const text = String(write.mock.calls[0]?.[0]);
    write.mockRestore();
    expect(text).toBe('[\n  "\\u001b\\u009b\\u202e\\u2028é"\n]\n');
    expect(plain({ a: 1 })).toBe('{"a":1}');
  });

  it("lines columns up", () => {
    expect(
      table(
        ["a", "long"],
        [
          ["xxxx", "y"],
          ["z", ""],
        ],
      ).replace(/\x1b\[\d+m/g, ""),
    ).toBe("a     long\nxxxx  y\nz");
  });

  it("fits a terminal: the last column broken within itself, or a block for each row", () => {
    const bare = (text: string): string => text.replace(/\x1b\[\d+m/g, "");
    const long = "one two three four five six seven eight nine ten";
    const rows = [["x", "yes", long], ["longer", "no", "short"]];
    expect(bare(table(["what", "held", "by"], rows, 200))).toBe(`what    held  by\nx       yes   ${long}\nlonger  no    short`);
    expect(bare(table(["what", "held", "by"], rows, 40))).toBe(
      "what    held  by\nx       yes   one two three four five\n              six seven eight nine ten\nlonger  no    short",
    );
    expect(bare(table(["what", "held", "by"], rows, 30))).toBe("x\n  held yes, by one two three\n  four five six seven eight\n  nine ten\nlonger\n  held no, by short");
    for (const columns of [30, 40, 61, 62, 200]) for (const line of bare(table(["what", "held", "by"], rows, columns)).split("\n")) expect(line.length).toBeLessThanOrEqual(columns);
    expect(bare(table(["a"], [], 1))).toBe("a");
  });

  it("says times and sizes for people", () => {
    expect([
      when(100, 100),
      when(40, 100),
      when(100 + 600, 100),
      when(100 - 7200, 100),
      when(100 + 4 * 86400, 100),
    ]).toEqual(["in 0 s", "60 s ago", "in 10 min", "2 h ago", "in 4 d"]);
    expect([bytes(5), bytes(300 * 2 ** 20), bytes(3 * 2 ** 30)]).toEqual(["5 B", "300 MiB", "3.0 GiB"]);
  });
});

describe("colours", () => {
  it.each([
    [true, {}, true],
    [false, {}, false],
    [true, { TERM: "dumb" }, false],
    [true, { NO_COLOR: "1" }, false],
    [true, { NO_COLOR: "" }, true],
    [false, { FORCE_COLOR: "1" }, true],
    [false, { FORCE_COLOR: "3" }, true],
    [true, { FORCE_COLOR: "0" }, false],
    [true, { FORCE_COLOR: "false" }, false],
    [false, { FORCE_COLOR: "" }, false],
    [true, { NO_COLOR: "1", FORCE_COLOR: "1" }, false],
  ])("terminal %s, %j: %s", (terminal, env, wanted) => expect(wantsColour(terminal, env)).toBe(wanted));

  it("are in the output of a real command only where they are wanted", () => {
    const colour = (env: NodeJS.ProcessEnv) => run(["explain"], { NO_COLOR: undefined, ...env }).out.includes("\x1b[");
    expect([colour({}), colour({ FORCE_COLOR: "1" }), colour({ FORCE_COLOR: "1", NO_COLOR: "1" })]).toEqual([false, true, false]);
  });
});

it("the command runs where Sandcastle is not installed", () => {
  const bare = join(scratch, "bare");
  mkdirSync(join(bare, "node_modules"), { recursive: true });
  cpSync(join(root, "dist"), join(bare, "dist"), { recursive: true });
  cpSync(join(root, "prebuilds"), join(bare, "prebuilds"), { recursive: true });
  cpSync(join(root, "package.json"), join(bare, "package.json"));
  for (const name of commandPackages())
    symlinkSync(join(root, "node_modules", name), join(bare, "node_modules", name));
  const r = spawnSync(process.execPath, [join(bare, "dist", "cli", "main.js"), "ls", "--json"], {
    encoding: "utf8",
    env: { ...process.env, AGENT_LANE_HOME: home },
  });
  expect(r.stderr).toBe("");
  expect(JSON.parse(r.stdout)).toEqual([]);
  // Proof that this place really lacks it.
  writeFileSync(
    join(bare, "probe.mjs"),
    `import("./dist/index.js").then(() => console.log("loaded"), (e) => console.log(e.code));`,
  );
  expect(execFileSync(process.execPath, [join(bare, "probe.mjs")], { encoding: "utf8" })).toBe(
    "ERR_MODULE_NOT_FOUND\n",
  );
});
