// SPDX-License-Identifier: Apache-2.0
// agent-lane cp: which end is which, where a copy goes, what is shown, and how Ctrl-C ends it.
import { spawnSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, describe, expect, it, vi } from "vitest";
import { placeOf } from "../../lib/cli/commands/cp.js";
import { sizeArgument } from "../../lib/cli/commands/common.js";
import { stages } from "./support/stages.js";
import { PTY_KIT } from "./support/terminal.mjs";

// Each starts processes and some a few lanes, on a machine that may be busy.
vi.setConfig({ testTimeout: 100_000 });

const root = join(import.meta.dirname, "..", "..");
const scratch = mkdtempSync(join(tmpdir(), "al-cp-"));
afterAll(() => rmSync(scratch, { recursive: true, force: true }));

describe("arguments", () => {
  it.each([
    ["a", undefined, "a"],
    ["/a:b", undefined, "/a:b"],
    ["./a:b", undefined, "./a:b"],
    ["d/a:b", undefined, "d/a:b"],
    ["..", undefined, ".."],
    [":a", "", "a"],
    [":", "", ""],
    [":/a:b", "", "/a:b"],
    ["a:b", "a", "b"],
    ["a:", "a", ""],
    ["a:b:c", "a", "b:c"],
    ["agent-lane-0000abcd-0000wxyz:/x", "agent-lane-0000abcd-0000wxyz", "/x"],
  ])("%s is %s of lane %j", (text, lane, path) => {
    expect(placeOf(text)).toEqual({ lane, path });
  });

  it.each([
    ["1", 1],
    ["4096", 4096],
    ["2GiB", 2 ** 31],
    ["2gib", 2 ** 31],
    ["1TiB", 2 ** 40],
    ["1024KiB", 2 ** 20],
    ["3MiB", 3 * 2 ** 20],
  ])("%s is a size", (text, size) => {
    expect(sizeArgument(text)).toBe(size);
  });

  it.each(["", "0", "-1", "1.5", "1e3", "2GB", "2 GiB", "2TiB", "1099511627777", "GiB", "0x10", " 1"])("%j is none", (text) => {
    expect(() => sizeArgument(text)).toThrow(/from 1 to 1TiB/);
  });

  const cp = (...args: string[]) => {
    const main = join(root, "dist", "cli", "main.js");
    const env = { ...process.env, AGENT_LANE_HOME: join(scratch, "home"), NO_COLOR: "1" };
    const r = spawnSync(process.execPath, [main, "cp", ...args], { encoding: "utf8", timeout: 25_000, env, cwd: scratch });
    return [r.status, r.stdout, r.stderr] as const;
  };

  it.each([
    [["a", "b"], /exactly one of SRC and DST/],
    [[":a", ":b"], /exactly one of SRC and DST/],
    [["x:a", "y:b"], /exactly one of SRC and DST/],
    [["--", "-r", "x"], /exactly one of SRC and DST/],
    [["-r", "x", ":y"], /unknown option '-r'/],
    [[":a"], /missing required argument 'dst'/],
    [["a", "b", ":c"], /too many arguments/],
    [["", ":b"], /must be a path, not an empty text/],
    [["--ignore", "x", ":a", "b"], /--ignore is for copies into a lane/],
    [["--max-bytes", "5", "a", ":b"], /--max-bytes is for copies out of a lane/],
    [["--executables", "a", ":b"], /--executables is for copies out of a lane/],
    [["--max-entries", "5", "a", ":b"], /--max-entries is for copies out of a lane/],
    [["--max-depth", "0", ":a", "b"], /must be a whole number from 1/],
    [["--max-bytes", "lots", ":a", "b"], /such as 4096, 512MiB or 2GiB/],
  ])("%j is wrong usage", (args, words) => {
    const [status, out, err] = cp(...args);
    expect([status, out]).toEqual([2, ""]);
    expect(err).toMatch(words);
    expect(err).toContain("(agent-lane cp --help shows how)");
  });

  it("may name no lane: said so, with what a name with a colon is like", () => {
    expect(cp("a", ":")).toEqual([1, "", expect.stringContaining("there is no lane that is ready")]);
    expect(cp("a:b", "c")).toEqual([1, "", expect.stringMatching(/BAD_NAME.*\ncure: .*written \.\/a:/)]);
  });
});

const stage = stages();
const KIT = `${PTY_KIT}
  import { chmodSync, existsSync, lstatSync, mkdirSync, readdirSync, readFileSync, realpathSync, symlinkSync, writeFileSync } from "node:fs";
  import { randomBytes } from "node:crypto";
  const { createLane } = await import(PACKAGE);
  const CLI = new URL("cli/main.js", PACKAGE).pathname;
  const HOST = WT + "-host";
  const argv = (...args) => [process.execPath, CLI, "cp", "--home", OPTIONS.home, "--limactl", OPTIONS.limactlPath, ...args];
  function start(...args) {
    const [program, ...rest] = argv(...args);
    const child = spawn(program, rest, { stdio: ["ignore", "pipe", "pipe"], cwd: HOST });
    let out = "", err = "";
    child.stdout.on("data", (d) => (out += d));
    child.stderr.on("data", (d) => (err += d));
    return Object.assign(child, { ended: new Promise((ok) => child.on("close", (code, signal) => ok([code ?? signal, out, err]))) });
  }
  const cp = (...args) => start(...args).ended;
  const put = (path, text = path) => { mkdirSync(path.replace(/[^/]*$/, ""), { recursive: true }); writeFileSync(path, text); };
  const tree = (dir) => readdirSync(dir, { recursive: true }).sort().join(" ");
  const temporary = () => [HOST, WT].flatMap((d) => readdirSync(d, { recursive: true })).filter((n) => n.includes(".agent-lane"));
  const lane = await createLane({ ...OPTIONS, worktreePath: WT + "/wt" });
  const W = WT + "/wt";
`;

async function run(script: string): Promise<Record<string, unknown>> {
  const s = stage({ guest: "agent" });
  s.addCommand();
  s.writable("work-host");
  const r = await s.run(`${KIT}${script}; await lane.close();`);
  expect(r.err).toBe("");
  expect(r.status).toBe(0);
  expect(s.left()).toEqual([]);
  return r.said;
}

const QUIET = [0, "", ""];

it("puts files and directories where cp would", async () => {
  const said = await run(`
    put(HOST + "/f", "file"); put(HOST + "/d/a", "A"); put(HOST + "/d/sub/b", "B"); put(HOST + "/d/skip.log", "L"); put(HOST + "/x:y", "colon"); put(HOST + "/-dash", "dash");
    report("file", await cp("f", ":"));
    report("as", await cp(HOST + "/f", ":new/deep/g"));
    mkdirSync(W + "/dir");
    report("inside", await cp("f", lane.name + ":dir"));
    report("slash", await cp("f", ":made/"));
    report("dir as", await cp("--ignore", "*.log", "--ignore=/none", "d", ":copy"));
    report("dir inside", await cp("d/", ":dir"));
    report("contents", await cp("d/.", ":dir"));
    report("absolute", await cp("./x:y", lane.name + ":" + W + "/abs/"));
    report("dash", await cp("--", "-dash", ":"));
    report("tree", tree(W));
    report("text", readFileSync(W + "/new/deep/g", "utf8"));
    process.chdir(HOST);
    report("dot", (await cp(".", ":all"))[0]);
    report("all", readdirSync(W + "/all").sort().join(" "));
    report("missing", await cp("none", ":"));
    report("no lane", await cp("f", "agent-lane-00000000-00000000:"));`);
  for (const name of ["file", "as", "inside", "slash", "dir as", "dir inside", "contents", "absolute", "dash"]) expect(said[name]).toEqual(QUIET);
  expect(said["tree"]).toBe(
    "-dash abs abs/x:y copy copy/a copy/sub copy/sub/b dir dir/a dir/d dir/d/a dir/d/skip.log dir/d/sub dir/d/sub/b dir/f dir/skip.log dir/sub dir/sub/b f made made/f new new/deep new/deep/g",
  );
  expect(said["text"]).toBe("file");
  expect(said["dot"]).toBe(0);
  expect(said["all"]).toBe("-dash d f x:y");
  expect(said["no lane"]).toEqual([1, "", expect.stringContaining("NO_SUCH_LANE")]);
  expect(said["missing"]).toEqual([1, "", expect.stringMatching(/^error SOURCE_MISSING: .*none.*\ncure: .+\n$/)]);
});

it("takes directories where cp would, and says what it left out", async () => {
  const said = await run(`
    put(W + "/d/run", "run"); put(W + "/d/sub/b", "B"); chmodSync(W + "/d/run", 0o755); symlinkSync("/etc", W + "/d/out");
    mkdirSync(HOST + "/there"); mkdirSync(HOST + "/empty"); put(HOST + "/full/x");
    report("as", await cp(":d", "as"));
    report("slash", await cp(":d/", "new/"));
    report("inside", await cp("--executables", "--json", ":d", "there"));
    report("contents", await cp(":d/.", "empty"));
    report("full", await cp(":d/.", "full"));
    report("again", await cp(":d", "there"));
    report("large", await cp("--max-bytes", "3", ":d", "l"));
    report("entries", await cp("--max-entries", "3", ":d", "l"));
    report("just", await cp("--max-entries", "4", "--max-depth", "1", ":d", "l"));
    report("tree", tree(HOST));
    report("modes", ["as", "there/d"].map((d) => (lstatSync(HOST + "/" + d + "/run").mode & 0o111) !== 0));`);
  const warned = [0, "", "warning: 1 link that leads out was left out: out\n"];
  for (const name of ["as", "slash", "contents", "just"]) expect(said[name]).toEqual(warned);
  const [code, out] = said["inside"] as [number, string];
  expect([code, JSON.parse(out)]).toEqual([0, expect.objectContaining({ files: 3, skipped: 1, skippedPath: "out" })]);
  expect(said["full"]).toEqual([1, "", expect.stringContaining("HOST_PATH_EXISTS")]);
  expect(said["again"]).toEqual([1, "", expect.stringContaining("HOST_PATH_EXISTS")]);
  for (const name of ["large", "entries"])
    expect(said[name]).toEqual([1, "", expect.stringMatching(/^error TREE_TOO_LARGE[^]*cure: .*--max-bytes.*--max-entries/)]);
  const one = (dir: string): string => ["", "/run", "/sub", "/sub/b"].map((name) => dir + name).join(" ");
  expect(said["tree"]).toBe([one("as"), one("empty"), "full full/x", one("l"), one("new"), "there", one("there/d")].join(" "));
  expect(said["modes"]).toEqual([false, true]);
});

it("takes files where cp would, bounded, and says what it did as JSON", async () => {
  const said = await run(`
    put(W + "/out.txt", "out"); put(W + "/big", "x".repeat(5000)); mkdirSync(HOST + "/there");
    symlinkSync("out.txt", W + "/link");
    report("as", await cp(":out.txt", "as.txt"));
    report("inside", await cp(":out.txt", "there"));
    report("slash", await cp(lane.name + ":" + W + "/out.txt", "made/"));
    report("deep", await cp(":../wt/out.txt", "p/q/r"));
    report("tree", tree(HOST));
    report("link", await cp(":link", "l"));
    report("none", await cp(":none", "n"));
    report("too large", await cp("--max-bytes", "4999", ":big", "b"));
    report("just", await cp("--max-bytes", "5000", ":big", "b"));
    report("json", JSON.parse((await cp("--json", ":out.txt", "j"))[1]));
    report("json in", JSON.parse((await cp("--json", "j", ":"))[1]));
    report("wd", [HOST, realpathSync(W)]);
    report("lane", lane.name);
    report("owner", (await lane.exec("echo fine")).stdout);
    await lane.close();
    report("closed", await cp(":out.txt", "c"));`);
  for (const name of ["as", "inside", "slash", "deep", "just"]) expect(said[name]).toEqual(QUIET);
  expect(said["tree"]).toBe("as.txt made made/out.txt p p/q p/q/r there there/out.txt");
  expect(said["link"]).toEqual([1, "", expect.stringMatching(/^error IS_LINK/)]);
  expect(said["none"]).toEqual([1, "", expect.stringMatching(/^error GUEST_FILE_MISSING/)]);
  expect(said["too large"]).toEqual([1, "", expect.stringMatching(/^error FILE_TOO_LARGE[^]*cure: .*--max-bytes/)]);
  const [host, wt] = said["wd"] as [string, string];
  expect(said["json"]).toEqual({ from: `${said["lane"] as string}:${wt}/out.txt`, to: `${host}/j`, bytes: 3, files: 1 });
  expect(said["json in"]).toEqual({ from: `${host}/j`, to: `${said["lane"] as string}:${wt}/j`, bytes: 3, files: 1, changed: 0 });
  expect(said["owner"]).toBe("fine\n");
  expect(said["closed"]).toEqual([1, "", expect.stringContaining("there is no lane that is ready")]);
});

it("shows a bar on a terminal, and Ctrl-C ends it: status 130, nothing left on either side", async () => {
  const said = await run(`
    const block = randomBytes(2 ** 20);
    const big = (path, mib) => { put(path, ""); for (let i = 0; i < mib; i++) writeFileSync(path, block, { flag: "a" }); return path; };
    big(HOST + "/big", 200); big(W + "/big", 200);
    for (const [name, args] of [["in", [HOST + "/big", ":there"]], ["out", [":big", HOST + "/there"]]]) {
      const whole = new Pty(24, 80, argv(...args));
      await until(() => "a bar in " + whole.out, () => /MiB/.test(whole.out));
      const { before } = await whole.event("before"), end = await whole.event("ended");
      report(name + " whole", [end.code, JSON.stringify(before) === JSON.stringify(end.ended), whole.out.endsWith("\\x1b[2K")]);
      const cut = new Pty(24, 80, argv(...args.slice(0, 1), args[1].replace("there", "cut")));
      await until(() => "a bar", () => /MiB/.test(cut.out));
      cut.type("\\x03");
      report(name + " cut", [(await cut.event("ended")).code, cut.out.includes("error")]);
      const term = start(...args.slice(0, 1), args[1].replace("there", "cut"));
      await until(() => "a temporary file", () => temporary().length > 0);
      term.kill("SIGTERM");
      report(name + " term", await term.ended);
      await until(() => "nothing left: " + temporary(), () => temporary().length === 0);
      report(name + " left", [existsSync(HOST + "/cut"), existsSync(W + "/cut")]);
    }
    report("owner", (await lane.exec("echo fine")).stdout);`);
  for (const way of ["in", "out"]) {
    expect(said[`${way} whole`]).toEqual([0, true, true]);
    expect(said[`${way} cut`]).toEqual([130, false]);
    expect(said[`${way} term`]).toEqual([143, "", ""]);
    expect(said[`${way} left`]).toEqual([false, false]);
  }
  expect(said["owner"]).toBe("fine\n");
});

it("is ended by a signal while it still attaches", async () => {
  const said = await run(`
    put(HOST + "/f", "x");
    const calls = () => readFileSync(OPTIONS.home + "/run/calls", "utf8").split("\\n").filter((l) => l.startsWith("shell")).length;
    const before = calls();
    const child = start("f", ":");
    await until(() => "limactl shell", () => calls() > before);
    child.kill("SIGINT");
    report("ended", await child.ended);
    report("owner", [(await lane.exec("echo fine")).stdout, await cp("f", ":"), existsSync(W + "/f")]);`);
  expect(said["ended"]).toEqual([130, "", ""]);
  expect(said["owner"]).toEqual(["fine\n", QUIET, true]);
});
