// SPDX-License-Identifier: Apache-2.0
// agent-lane shell beside an owner: what it sees, what it leaves alone, and what it says when it cannot.
import { expect, it, vi } from "vitest";
import { stages } from "./support/stages.js";
import { PTY_KIT } from "./support/terminal.mjs";

// Each starts processes and some a few lanes, on a machine that may be busy.
vi.setConfig({ testTimeout: 100_000 });

const stage = stages();

const KIT = `${PTY_KIT}
  import { setTimeout as sleep } from "node:timers/promises";
  const { createLane } = await import(PACKAGE);
  const CLI = new URL("cli/main.js", PACKAGE).pathname;
  const shell = (...args) => [process.execPath, CLI, "shell", "--home", OPTIONS.home, "--limactl", OPTIONS.limactlPath, ...args];
  function run(argv, input) {
    const child = spawn(argv[0], argv.slice(1), { stdio: ["pipe", "pipe", "pipe"] });
    let out = "", err = "";
    child.stdout.on("data", (d) => (out += d));
    child.stderr.on("data", (d) => (err += d));
    child.stdin.on("error", () => undefined);
    if (input !== undefined) child.stdin.end(input);
    return Object.assign(child, { ended: new Promise((ok) => child.on("close", (code, signal) => ok({ code: code ?? signal, out, err }))) });
  }
  const lane = await createLane(OPTIONS);
  const alive = (pid) => { try { process.kill(pid, 0); return true; } catch { return false; } };
`;

async function run(script: string): Promise<Record<string, unknown>> {
  const s = stage({ guest: "agent" });
  s.addCommand();
  const r = await s.run(`${KIT}${script}; await lane.close();`);
  expect(r.err).toBe("");
  expect(r.status).toBe(0);
  expect(s.left()).toEqual([]);
  return r.said;
}

it("runs a command on pipes, with its status, and the owner goes on", async () => {
  const said = await run(`
    const cat = lane.spawn(["cat"]);
    report("named", await run(shell(lane.name, "--", "sh", "-c", "cat; pwd; echo err >&2; exit 7"), "in\\n").ended);
    report("unnamed", await run(shell("--", "echo", "a b", "--flag"), "").ended);
    report("cwd", await run(shell("--cwd", "/", lane.name, "--", "pwd"), "").ended);
    report("script", await run(shell(lane.name), "echo from stdin; exit 3\\n").ended);
    const hit = run(shell(lane.name, "--", "sh", "-c", "echo $$; exec sleep 60"));
    let pid = "";
    hit.stdout.on("data", (d) => (pid += d));
    await until(() => "a pid", () => pid.endsWith("\\n"));
    hit.kill("SIGKILL");
    report("killed", [(await hit.ended).code, await until(() => "its end", () => !alive(Number(pid)))]);
    cat.stdin.end("owner");
    let out = ""; for await (const d of cat.stdout) out += d;
    report("owner", [out, (await cat.exited).exitCode, (await lane.exec("echo fine")).stdout]);
  `);
  const ok = (out: string, code = 0, err = "") => ({ code, out, err });
  expect(said["named"]).toEqual({ code: 7, out: expect.stringMatching(/^in\n\/.*\/al-stage-\w+\/work\n$/), err: "err\n" });
  expect(said["unnamed"]).toEqual(ok("a b --flag\n"));
  expect(said["cwd"]).toEqual(ok("/\n"));
  expect(said["script"]).toEqual(ok("from stdin\n", 3));
  expect(said["killed"]).toEqual(["SIGKILL", true]);
  expect(said["owner"]).toEqual(["owner", 0, "fine\n"]);
});

it("gives a terminal when stdin is one: sized, followed, given back, also when the lane ends under it", async () => {
  const said = await run(`
    const pty = new Pty(30, 90, shell(lane.name, "--", "sh", "-c", "stty size; trap 'stty size' WINCH; trap 'exit 9' INT; echo READY; while :; do sleep 0.05; done"));
    await pty.sees("30 90\\r\\nREADY");
    report("raw", isRaw(await pty.settings()));
    pty.resize(11, 44);
    await pty.sees("11 44");
    pty.type("\\x03");
    const end = await pty.event("ended"), { before } = await pty.event("before");
    report("status", end.code);
    report("same", JSON.stringify(before) === JSON.stringify(end.ended));
    const login = new Pty(24, 80, shell());
    login.type("echo $((6 * 7)); exit 4\\r");
    await login.sees("42\\r\\n");
    report("login", (await login.event("ended")).code);
    const under = new Pty(24, 80, shell(lane.name, "--", "sh", "-c", "echo READY; sleep 60"));
    await under.sees("READY");
    await lane.close();
    const last = await under.event("ended"), first = await under.event("before");
    report("under", [last.code, JSON.stringify(first.before) === JSON.stringify(last.ended)]);
    report("words", /error.*CHANNEL_CLOSED|LANE_CLOSED/s.test(under.out));
  `);
  expect(said).toMatchObject({ raw: true, status: 9, same: true, login: 4, under: [1, true], words: true });
});

it("says why it cannot", async () => {
  const said = await run(`
    const said = async (...args) => { const { code, out, err } = await run(shell(...args), "").ended; return [code, out, err.replace(/agent-lane-\\w{8}-\\w{8}/g, "NAME")]; };
    report("nonsense", await said("no/lane"));
    report("missing", await said("agent-lane-00000000-00000000"));
    report("command", await said("ls"));
    report("usage", (await said(lane.name, "ls")).slice(0, 1));
    const other = await createLane(OPTIONS);
    report("two", await said());
    report("both", [await run(shell(other.name, "--", "echo", "other"), "").ended, await run(shell(lane.name, "--", "echo", "one"), "").ended].map((r) => r.out));
    await other.close();
    report("closed", await said(other.name));
    report("no program", await said(lane.name, "--", "no-such-program"));
    const nine = Array.from({ length: 8 }, () => run(shell(lane.name, "--", "sh", "-c", "echo in; exec cat")));
    const first = (child) => new Promise((ok) => child.stdout.once("data", (d) => ok(String(d))));
    report("inside", await Promise.all(nine.map((child) => Promise.race([first(child), child.ended]))));
    report("full", await said(lane.name));
    for (const child of nine) child.stdin.end();
    report("eight", (await Promise.all(nine.map((child) => child.ended))).every((r) => r.code === 0));
    const slow = createLane({ ...OPTIONS, onEvent: (e) => { if (e.type === "creating") name = e.lane; } });
    let name;
    await until(() => "a name", () => name);
    const early = await said(name);
    report("early", early[2].includes("not ready") || early[2] === "");
    await (await slow).close();
    await lane.close();
    report("none", await said());
  `);
  const failed = (code: string) => [1, "", expect.stringContaining(code)];
  expect(said["nonsense"]).toEqual(failed("BAD_NAME"));
  expect(said["missing"]).toEqual(failed("NO_SUCH_LANE"));
  expect(said["missing"]).toEqual([1, "", expect.not.stringMatching(/NAME.*NAME.*\n/)]);
  expect(said["command"]).toEqual([1, "", expect.stringContaining("after --: agent-lane shell -- ls")]);
  expect(said["usage"]).toEqual([2]);
  expect(said["two"]).toEqual([1, "", expect.stringContaining("2 lanes are ready: NAME, NAME")]);
  expect(said["both"]).toEqual(["other\n", "one\n"]);
  expect(said["closed"]).toEqual(failed("NO_SUCH_LANE"));
  expect(said["no program"]).toEqual([127, "", expect.stringContaining("EXEC_FAILED")]);
  expect(said["inside"]).toEqual(Array(8).fill("in\n"));
  expect(said["full"]).toEqual([1, "", expect.stringMatching(/as many as may be are attached.*\ncure: Leave another/)]);
  expect(said["eight"]).toBe(true);
  expect(said["early"]).toBe(true);
  expect(said["none"]).toEqual([1, "", expect.stringContaining("there is no lane that is ready")]);
});

it("has ls and reap tell what a dead owner and a lost registry left", async () => {
  const said = await run(`
    report("no program", await run(shell(lane.name, "--", "no-such-program"), "").ended);
    // It takes its keeper with it, which would end the lane by itself.
    const keepers = "const keepers = () => readdirSync('/proc').filter((p) => { try {" +
      " return readFileSync('/proc/' + p + '/stat', 'latin1').includes('(keeper)'); } catch { return false; } });";
    const dead = spawn(process.execPath, ["--input-type=module", "-e",
      "import { readFileSync, readdirSync } from 'node:fs'; " + keepers + "const others = keepers(); const { createLane } = await import(" +
      JSON.stringify(PACKAGE) + "); const l = await createLane(" + JSON.stringify(OPTIONS) + "); console.log(l.name);" +
      "for (const p of keepers()) if (!others.includes(p) && readFileSync('/proc/' + p + '/cmdline', 'latin1').startsWith(" +
      JSON.stringify(OPTIONS.home) + ")) process.kill(Number(p), 'SIGKILL'); process.kill(process.pid, 'SIGKILL')"],
      { stdio: ["ignore", "pipe", "ignore"] });
    let died = ""; dead.stdout.on("data", (d) => (died += d));
    await new Promise((ok) => dead.on("exit", ok));
    const cli = (command) => run([process.execPath, CLI, ...command.split(" "), "--home", OPTIONS.home], "").ended;
    report("ls", (await cli("ls")).out.split("\\n").find((l) => l.startsWith(died.trim())));
    const { mkdirSync, rmdirSync } = await import("node:fs");
    const lost = OPTIONS.home + "/lima/agent-lane-0000lost-00000000";
    mkdirSync(lost, { mode: 0o700 });
    report("dry", await cli("reap --dry-run --limactl " + OPTIONS.limactlPath));
    report("reap", await cli("reap --limactl " + OPTIONS.limactlPath));
    rmdirSync(lost);
    report("reap 2", await cli("reap --limactl " + OPTIONS.limactlPath));
  `);
  expect(said["no program"]).toEqual({ code: 127, out: "", err: expect.stringContaining("EXEC_FAILED") });
  expect(said["ls"]).toMatch(/^agent-lane-\S+ +ready .* \d+ \(owner gone\)/);
  const left = /agent-lane-0000lost-00000000 +left +the registry does not know/;
  expect(said["dry"]).toEqual({ code: 0, err: "", out: expect.stringMatching(left) });
  expect(said["reap"]).toEqual({ code: 1, err: "", out: expect.stringMatching(left) });
  expect((said["reap"] as { out: string }).out).toMatch(/destroyed +its owner is gone/);
  expect(said["reap 2"]).toMatchObject({ code: 0, err: "" });
});
