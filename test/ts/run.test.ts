// SPDX-License-Identifier: Apache-2.0
// agent-lane run: what goes in and what does not, the command with its streams and status, what comes out, how it ends.
import { spawnSync } from "node:child_process";
import { closeSync, mkdirSync, mkdtempSync, openSync, rmSync, writeFileSync, writeSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, describe, expect, it, vi } from "vitest";
import { durationArgument } from "../../lib/cli/commands/common.js";
import { summarise } from "../../lib/cli/patch.js";
import { stages } from "./support/stages.js";
import { PTY_KIT } from "./support/terminal.mjs";

// Each starts processes and a few lanes, on a machine that may be busy.
vi.setConfig({ testTimeout: 100_000 });

const root = join(import.meta.dirname, "..", "..");
const scratch = mkdtempSync(join(tmpdir(), "al-run-"));
afterAll(() => rmSync(scratch, { recursive: true, force: true }));

describe("arguments", () => {
  const run = (args: string[], env: NodeJS.ProcessEnv = {}) => {
    const main = join(root, "dist", "cli", "main.js");
    const r = spawnSync(process.execPath, [main, "run", ...args], {
      encoding: "utf8", timeout: 25_000, cwd: scratch, env: { ...process.env, AGENT_LANE_HOME: join(scratch, "home"), NO_COLOR: "1", ...env },
    });
    return { status: r.status, out: r.stdout, err: r.stderr };
  };

  it.each([
    [[], /missing required argument 'command'/],
    [["--no-such", "--", "x"], /unknown option '--no-such'/],
    [["--cpu", "3", "--", "x"], /unknown option '--cpu'[^]*Did you mean --cpus\?/],
    [["-e", "A-B=1", "--", "x"], /must be NAME or NAME=VALUE/],
    [["-e", "AL_NEVER_SET", "--", "x"], /There is no variable AL_NEVER_SET here/],
    [["--timeout", "0", "--", "x"], /a time from 1s to 24h/],
    [["--queue", "25h", "--", "x"], /a time from 1s to 24h/],
    [["--reporter", "loud", "--", "x"], /Allowed choices are auto, on, off/],
    [["--dir", "", "--", "x"], /must be a path, not an empty text/],
    [["--dir", "a\ufffdb", "--", "x"], /It must be UTF-8\./],
    [["--home", "~/\ufffd", "--", "x"], /It must be UTF-8\./],
    [["--cpus", "0", "--", "x"], /'--cpus <value>' argument '0' is invalid\. It must be an integer from 1 to 64, not the number 0\.\n/],
    [["--cpus", "two", "--", "x"], /argument 'two' is invalid\. It must be an integer from 1 to 64\.\n/],
    [["--network", "closed", "--", "x"], /It must be "open" or "none", not "closed"\.\n/],
  ])("%j is wrong usage", (args, words) => {
    const { status, out, err } = run(args);
    expect([status, out]).toEqual([2, ""]);
    expect(err).toMatch(words);
    expect(err).not.toContain("    at ");
  });

  it.each([
    [["--", "x"], /^error SOURCE_UNREADABLE: .* is in no git work tree .*\ncure: .*--no-copy/],
    [["--dir", "missing", "--", "x"], /^error SOURCE_MISSING: --dir: .*missing is not there/],
    [["--no-copy", "--patch", "p", "--", "x"], /^error BAD_OPTION: --patch needs the files/],
  ])("%j fails before anything is started, with 125", (args, words) => {
    const { status, out, err } = run(args);
    expect([status, out]).toEqual([125, ""]);
    expect(err).toMatch(words);
  });

  it.each([["1", 1], ["90s", 90], ["1.5m", 90], ["10m", 600], ["24h", 86400], ["0.2", 1]])("%s is %d s", (text, seconds) => expect(durationArgument(text)).toBe(seconds));
  it.each(["", "0", "0s", "-1", "1d", "25h", "86401", "1e3", " 1", "m", "1 m"])("%j is no time", (text) => expect(() => durationArgument(text)).toThrow(/from 1s to 24h/));
});

describe("the summary of a patch", () => {
  const of = async (text: string) => {
    const path = join(scratch, "p.patch");
    writeFileSync(path, text);
    return summarise(path);
  };
  it("counts lines, also those that look like headers", async () => {
    expect(await of(`diff --git a/x b/x
index 1..2 100644
--- a/x
+++ b/x
@@ -1,3 +1,4 @@
 same
--- a/gone
+++ b/new
+diff --git a/y b/y
 same
@@ -9 +10 @@
-a\rb
\\ No newline at end of file
+c
`)).toEqual({ files: 1, added: 3, removed: 2, look: [] });
    expect(await of("")).toEqual({ files: 0, added: 0, removed: 0, look: [] });
    expect((await of("@@ -1,99999999 +1,99999999 @@\n+a")).added).toBe(1);
  });
  it("names what programs of the host take orders from", async () => {
    const paths = [".husky/pre-commit", "a/package.json", ".github/workflows/x.yml", "src/main.c", ".gitattributes", "sub/.envrc", "Makefile", "husky.txt"];
    const text = paths.map((p) => `diff --git a/${p} b/${p}\nindex 1..2 100644\n`).join("") + "diff --git a/l b/l\nnew file mode 120000\ndiff --git a/s b/s\nold mode 100644\nnew mode 100755\n";
    expect((await of(text)).look).toEqual([".husky/pre-commit", "a/package.json", ".github/workflows/x.yml", ".gitattributes", "sub/.envrc", "Makefile", "l (a link)", "s (executable)"]);
  });
  it("reads a file of one endless line without keeping it", async () => {
    const path = join(scratch, "endless.patch");
    const line = openSync(path, "w");
    writeSync(line, "diff --git a/x b/x\n+");
    for (let i = 0; i < 600; i++) writeSync(line, Buffer.alloc(1 << 20, "x")); // more than a string can have
    closeSync(line);
    const before = process.memoryUsage().rss;
    expect(await summarise(path)).toEqual({ files: 1, added: 0, removed: 0, look: [] });
    expect(process.memoryUsage().rss - before).toBeLessThan(200 << 20);
    rmSync(path);
  });
  it("names twenty at most, each of bounded length", async () => {
    const { files, look } = await of(Array.from({ length: 50 }, (_, i) => `diff --git a/${"d".repeat(9000)}/${i}/Makefile b/x\n`).join(""));
    expect([files, look.length <= 20, look.every((name) => name.length < 400)]).toEqual([50, true, true]);
  });
});

const stage = stages();
const KIT = `${PTY_KIT}
  import { execFileSync } from "node:child_process";
  import { chmodSync, existsSync, lstatSync, mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
  const CLI = new URL("cli/main.js", PACKAGE).pathname;
  const REPO = WT + "-host";
  let n = 0; // the scripted guest is this machine, so a lane's worktree is not new by itself
  const argv = (...args) => [process.execPath, CLI, "run", "--home", OPTIONS.home, "--limactl", OPTIONS.limactlPath, "--image", OPTIONS.image,
    "--accelerator", "tcg", "--transport", "shell", "--worktree-path", WT + "/wt" + n++, "--memory-gib", "1", ...args];
  function start(args, { input = "", cwd = REPO, env = {} } = {}) {
    const [program, ...rest] = argv(...args);
    const child = spawn(program, rest, { stdio: ["pipe", "pipe", "pipe"], cwd, env: { ...process.env, HOME: OPTIONS.home, NO_COLOR: "1", ...env } });
    let out = "", err = "";
    child.stdout.on("data", (d) => (child.said = out += d));
    child.stderr.on("data", (d) => (err += d));
    child.stdin.on("error", () => undefined);
    if (input !== undefined) child.stdin.end(input);
    return Object.assign(child, { said: "", ended: new Promise((ok) => child.on("close", (code, signal) => ok({ code: code ?? signal, out, err }))) });
  }
  const run = (args, options) => start(args, options).ended;
  const git = (...args) => execFileSync("git", ["-c", "user.name=u", "-c", "user.email=u@example.com", ...args], { cwd: REPO, encoding: "utf8", env: { ...process.env, HOME: OPTIONS.home } });
  const put = (path, text = "x\\n") => { mkdirSync((REPO + "/" + path).replace(/[^/]*$/, ""), { recursive: true }); writeFileSync(REPO + "/" + path, text); };
  const list = () => readdirSync(REPO).sort().join(" ");
  function repository() {
    git("init", "-q", "-b", "main");
    put(".gitignore", "*.log\\nnode_modules/\\n.env\\n");
    put("a.txt", "one\\ntwo\\n"); put("sub/b.txt"); put("gone.txt"); put("run.sh", "echo hi\\n"); put("tracked.log");
    symlinkSync("a.txt", REPO + "/link");
    chmodSync(REPO + "/run.sh", 0o755);
    git("add", "-A", "-f"); git("commit", "-q", "-m", "a secret history");
    put("a.txt", "one\\nTWO\\n"); put("new file.txt"); put(".env", "TOKEN=1\\n"); put("node_modules/m/i.js"); put("x.log"); put("-dash");
    put("nested/.git/config", "[remote]\\n"); put("agent-lane-old.patch");
    execFileSync("rm", [REPO + "/gone.txt"]);
    git("config", "core.hooksPath", REPO + "/hooks"); git("config", "core.fsmonitor", REPO + "/hooks/monitor"); git("config", "filter.f.clean", "touch " + REPO + "/filter-ran; cat");
    put(".gitattributes", "*.txt filter=f\\n");
    for (const hook of ["monitor", "pre-commit", "post-checkout", "post-index-change", "pre-applypatch"]) { put("hooks/" + hook, "#!/bin/sh\\ntouch " + REPO + "/hook-ran\\n"); chmodSync(REPO + "/hooks/" + hook, 0o755); }
    writeFileSync(REPO + "/.git/info/exclude", "hooks/\\n");
  }
`;

async function inRepository(script: string, scenario: object = { guest: "agent" }) {
  const s = stage(scenario);
  s.addCommand();
  s.writable("work-host");
  const r = await s.run(`${KIT}repository(); ${script}`);
  expect(r.err).toBe("");
  expect(r.status).toBe(0);
  expect(s.left()).toEqual([]);
  return r.said as Record<string, never>;
}

it("--keep holds the lane until Ctrl-C, then makes the patch; or until somebody ends the lane", async () => {
  const said = await inRepository(`
    import { spawnSync } from "node:child_process";
    const kept = async (...args) => {
      const child = start(["--keep", "--patch", "k.patch", ...args, "--", "sh", "-c", "echo three >> a.txt; exit 3"]);
      const name = await new Promise((ok) => { let err = ""; child.stderr.on("data", (d) => { err += d; const m = /(agent-lane-\\S+) is kept/.exec(err); if (m) ok(m[1]); }); });
      return { child, name };
    };
    const one = await kept();
    one.child.kill("SIGINT");
    report("ctrl-c", [await one.child.ended, existsSync(REPO + "/k.patch")]);
    const two = await kept("--no-patch");
    const closed = spawnSync(process.execPath, [CLI, "close", two.name, "--home", OPTIONS.home, "--limactl", OPTIONS.limactlPath], { encoding: "utf8" });
    report("closed", [closed.status, await two.child.ended]);`);
  expect(said["ctrl-c"]).toEqual([expect.objectContaining({ code: 130, err: expect.stringMatching(/ is kept until Ctrl-C[^]*k\.patch: 1 file changed, \+1 -0/) }), true]);
  expect(said["closed"]).toEqual([0, expect.objectContaining({ code: 3 })]);
});

it("takes what git lists, and nothing else; the changes come out as a patch that applies", async () => {
  const said = await inRepository(`
    report("in", await run(["--", "sh", "-c", "find . -path ./.git -prune -o ! -type d -print | sort; cat a.txt; readlink link; test -x run.sh && echo x; git log --format=%s; git status --porcelain; git remote; git stash list"]));
    const before = list();
    const r = await run(["--patch", "out.patch", "--", "sh", "-c", "echo three >> a.txt; rm sub/b.txt; echo n > 'new file.txt'; printf 'a\\\\0b' > bin; echo changed >> tracked.log; echo no > ignored.log; git add -A; git commit -qm mine; chmod +x sub/../a.txt; rm -rf .git"]);
    report("out", [r, before === list().replace("out.patch ", "")]);
    git("config", "--unset", "filter.f.clean");
    git("apply", "out.patch");
    report("applied", [readFileSync(REPO + "/a.txt", "utf8"), existsSync(REPO + "/sub/b.txt"), readFileSync(REPO + "/bin", "latin1"), readFileSync(REPO + "/tracked.log", "utf8"), existsSync(REPO + "/ignored.log"), (lstatSync(REPO + "/a.txt").mode & 0o111) !== 0]);
    report("ran", [existsSync(REPO + "/hook-ran"), existsSync(REPO + "/filter-ran")]);
  `);
  const lines = (said["in"] as { out: string }).out.split("\n");
  expect(said["in"]).toMatchObject({ code: 0, err: "agent-lane: the command changed nothing that git would keep\n" });
  expect(lines).toEqual(["./-dash", "./.gitattributes", "./.gitignore", "./a.txt", "./link", "./new file.txt", "./run.sh", "./sub/b.txt", "./tracked.log", "one", "TWO", "a.txt", "x", "the work tree as it was copied in", ""]);
  const [out, same] = said["out"] as [{ code: number; out: string; err: string }, boolean];
  expect(out).toMatchObject({ code: 0, out: "" });
  expect(out.err).toMatch(/^agent-lane: out\.patch: 5 files changed, \+3 -2, \d+ B\nagent-lane: look at a\.txt \(executable\): .*\nagent-lane: nothing here was changed\. .*\n {2}git apply --stat out\.patch\n {2}git apply out\.patch\n$/);
  expect(same).toBe(true);
  expect(said["applied"]).toEqual(["one\nTWO\nthree\n", false, "a\0b", "x\nchanged\n", false, true]);
  expect(said["ran"]).toEqual([false, false]);
});

it("has the command's status, streams, directory and variables", async () => {
  const said = await inRepository(`
    report("status", await run(["--no-patch", "sh", "-c", "cat; echo err >&2; pwd; exit 7", "--flag"], { input: "in", cwd: REPO + "/sub" }));
    report("env", await run(["--no-copy", "-e", "MINE", "--env", "B=2=3", "--", "sh", "-c", "echo $MINE $B; ls -A"], { env: { MINE: "from here", OTHER: "x" } }));
    report("no program", await run(["--no-copy", "--", "no-such-program"]));
    report("no rights", await run(["--", "./a.txt"]));
    report("late", await run(["--no-copy", "--timeout", "1s", "--", "sh", "-c", "echo begun; sleep 60"]));
    report("default", [(await run(["--", "sh", "-c", "echo more > made"], { cwd: REPO + "/sub" })).err, readdirSync(REPO + "/sub").filter((n) => n.endsWith(".patch")).length]);
    report("on", (await run(["--no-copy", "--reporter", "on", "--", "true"])).err);
    report("off", (await run(["--reporter", "off", "--patch", "quiet.patch", "--", "sh", "-c", "echo q > q"])).err);
  `);
  expect(said["status"]).toMatchObject({ code: 7, out: expect.stringMatching(/^in\/.*\/wt0\/sub\n$/), err: "err\n" });
  expect(said["env"]).toEqual({ code: 0, out: "from here 2=3\n", err: "" });
  expect(said["no program"]).toMatchObject({ code: 127, out: "", err: expect.stringContaining("EXEC_FAILED") });
  expect(said["no rights"]).toMatchObject({ code: 126 });
  expect(said["late"]).toEqual({ code: 124, out: "begun\n", err: "agent-lane: the command was ended after --timeout 1 s\n" });
  expect(said["default"]).toEqual([expect.stringMatching(/^agent-lane: agent-lane-\w{8}-\w{8}\.patch: 1 file changed, \+1 -0, .*\n(?:.*\n)? {2}git -C \S+ apply --stat \/\S+\.patch\n/), 1]);
  for (const word of ["boots", "is ready", "is closed"]) expect(said["on"]).toContain(word);
  expect(said["off"]).toBe("");
});

it("a terminal when both ends are one, with the wait shown in one line that goes", async () => {
  const said = await inRepository(`
    const pty = new Pty(30, 90, ["sh", "-c", "cd " + REPO + " && exec " + argv("--", "sh", "-c", "stty size; tty >/dev/null && echo TTY; trap 'echo bye; exit 9' INT; echo READY; while :; do sleep 0.05; done").map((a) => "'" + a.replaceAll("'", "'\\\\''") + "'").join(" ")], { HOME: OPTIONS.home });
    await pty.sees("READY");
    pty.type("\\x03");
    const end = await pty.event("ended");
    report("status", end.code);
    const piped = new Pty(24, 80, ["sh", "-c", "cd " + REPO + " && " + argv("--no-copy", "--", "sh", "-c", "tty; echo out; echo err >&2").map((a) => "'" + a.replaceAll("'", "'\\\\''") + "'").join(" ") + " | cat -v; echo DONE"]);
    await piped.sees("not a tty");
    await piped.sees("DONE");
    report("piped", piped.out);
  `);
  expect(said["status"]).toBe(9);
});

it.each([["SIGINT", 130, true], ["SIGTERM", 143, false]] as const)("%s ends it: status %d, nothing left, patch %s", async (signal, status, patch) => {
  const said = await inRepository(`
    const child = start(["--patch", "cut.patch", "--", "sh", "-c", "echo half > half; echo BEGUN; sleep 60"], { input: undefined });
    await until(() => "its begin", () => child.said.includes("BEGUN"));
    child.kill(${JSON.stringify(signal)});
    report("end", [(await child.ended).code, existsSync(REPO + "/cut.patch")]);
    const early = start(["--no-copy", "--", "true"]);
    await until(() => "a lane", () => existsSync(OPTIONS.home + "/lima") && readdirSync(OPTIONS.home + "/lima").some((n) => n.startsWith("agent-lane-")));
    early.kill(${JSON.stringify(signal)});
    report("early", await early.ended);
  `);
  expect(said["end"]).toEqual([status, patch]);
  expect(said["early"]).toMatchObject({ code: status, out: "" });
});

it("a patch that is too large or tampered with, and a host without git or tar, are said and exit 125", async () => {
  const said = await inRepository(`
    report("large", await run(["--max-copy-out-bytes", "100", "--patch", "big.patch", "--", "sh", "-c", "seq 1000 > big"]));
    report("there", existsSync(REPO + "/big.patch"));
    report("broken", await run(["--patch", "none.patch", "--", "sh", "-c", "rm -rf ../.agent-lane-run.*/git; echo x > x"]));
    report("link", await run(["--patch", "none.patch", "--", "sh", "-c", "for d in ../.agent-lane-run.*; do ln -s $PWD/real $d/patch; done; echo x > x"]));
    report("none", existsSync(REPO + "/none.patch"));
    report("directory", await run(["--patch", "sub", "--", "true"]));
    report("git", await run(["--patch", ".git/hooks/pre-commit", "--", "true"]));
    mkdirSync(REPO + "/fresh");
    execFileSync("git", ["init", "-q"], { cwd: REPO + "/fresh" });
    report("fresh", await run(["--patch", "first.patch", "--", "sh", "-c", "echo x > x"], { cwd: REPO + "/fresh" }));
    const [bin] = process.env.PATH.split(":"), few = OPTIONS.home + "/few";
    mkdirSync(few);
    report("no git", await run(["--", "true"], { env: { PATH: few + ":" + bin } }));
    writeFileSync(few + "/tar", "#!/bin/sh\\necho tar: it is broken >&2; exit 2\\n", { mode: 0o755 });
    report("no tar", await run(["--", "true"], { env: { PATH: few + ":" + process.env.PATH } }));
  `);
  expect(said["large"]).toMatchObject({ code: 125, out: "", err: expect.stringMatching(/^error FILE_TOO_LARGE: the patch was not taken: .*\ncure: .*--max-copy-out-bytes/) });
  expect(said["there"]).toBe(false);
  expect(said["broken"]).toMatchObject({ code: 125, out: "", err: expect.stringMatching(/^error COMMAND_FAILED: making the patch failed in the guest: .+\ncure: /) });
  expect(said["link"]).toMatchObject({ code: 125, out: "", err: expect.stringMatching(/error IS_LINK: /) });
  expect(said["none"]).toBe(false);
  expect(said["directory"]).toMatchObject({ code: 125, err: expect.stringMatching(/^error BAD_OPTION: --patch: \S+ is a directory\n/) });
  expect(said["git"]).toMatchObject({ code: 125, err: expect.stringMatching(/^error BAD_OPTION: --patch: \S+ is in \.git/) });
  expect(said["fresh"]).toMatchObject({ code: 0, err: expect.stringMatching(/^agent-lane: first\.patch: 1 file changed, \+1 -0/) });
  expect(said["no git"]).toMatchObject({ code: 125, err: expect.stringMatching(/^error SOURCE_UNREADABLE: .*spawn git ENOENT/) });
  expect(said["no tar"]).toMatchObject({ code: 125, err: expect.stringMatching(/^error SOURCE_UNREADABLE: the files of work-host could not be packed: tar: it is broken\n/) });
});
