// SPDX-License-Identifier: Apache-2.0
// agent-lane reap --install and --uninstall, with a scripted systemctl and launchctl.
import { chmodSync } from "node:fs";
import { join } from "node:path";
import { expect, it, vi } from "vitest";
import { write } from "./support/image.mjs";
import { stages } from "./support/stages.js";

vi.setConfig({ testTimeout: 100_000 });

const stage = stages();

const KIT = `
  import { execFile, execFileSync } from "node:child_process";
  import { existsSync, readdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
  const CLI = new URL("cli/main.js", PACKAGE).pathname;
  const cli = (...args) => new Promise((ok) => execFile(process.execPath, [CLI, "reap", ...args, "--home", OPTIONS.home, "--limactl", OPTIONS.limactlPath],
    (error, out, err) => ok({ code: error === null ? 0 : error.code, out, err })));
  const read = (file) => readFileSync(file, "utf8");
  const calls = () => existsSync(OPTIONS.home + "/calls") ? read(OPTIONS.home + "/calls").trim().split("\\n") : [];
  const units = () => existsSync(UNITS) ? readdirSync(UNITS).sort() : [];
  const UNITS = process.env.XDG_CONFIG_HOME + "/systemd/user";
  const copy = OPTIONS.home + "/reaper";
`;

/** A program of the system that writes down what it is asked; `body` is what it does then. */
async function run(program: string, body: string, script: string): Promise<Record<string, never>> {
  const s = stage();
  s.addCommand();
  const file = join(s.dir, "bin", program);
  write(file, `#!/bin/sh\necho "$*" >> '${s.home}/calls'\n${body}\n`);
  chmodSync(file, 0o755);
  s.writable("config");
  const r = await s.run(KIT + script, { XDG_CONFIG_HOME: join(s.dir, "config") });
  expect(r.err).toBe("");
  expect(r.status).toBe(0);
  return r.said;
}

it("installs a timer that runs a copy below the home, and removes exactly that", async () => {
  const said = await run("systemctl", "exit 0", `
    writeFileSync(process.env.XDG_CONFIG_HOME + "/mine", "");
    report("first", await cli("--install"));
    report("calls", calls());
    report("units", units());
    const [service, timer] = units().map((f) => read(UNITS + "/" + f));
    report("timer", timer);
    report("again", await cli("--install"));
    report("same", [units().length, service === read(UNITS + "/" + units()[0])]);
    // What the timer starts: nothing above the home has what the copy lacks.
    const words = /^ExecStart=(.*)$/m.exec(service)[1].match(/"[^"]*"/g).map((w) => w.slice(1, -1));
    report("words", words.slice(2));
    report("runs", execFileSync(words[0], [...words.slice(1), "--json"], { encoding: "utf8", env: { PATH: process.env.PATH, HOME: process.env.HOME } }));
    report("inside", words[1].startsWith(copy + "/"));
    report("mode", (statSync(copy).mode & 0o777).toString(8));
    report("removed", await cli("--uninstall"));
    report("left", [units(), existsSync(copy), existsSync(process.env.XDG_CONFIG_HOME + "/mine"), readdirSync(OPTIONS.home).filter((n) => n.includes("reaper"))]);
    report("none", await cli("--uninstall"));
    report("last", calls().slice(-2));
  `);
  expect(said["first"]).toMatchObject({ code: 0, err: "", out: expect.stringMatching(/^installed \/.*\/agent-lane-reap-[0-9a-f]{8}\.timer: /) });
  expect(said["again"]).toMatchObject({ code: 0 });
  expect(said["units"]).toEqual([expect.stringMatching(/^agent-lane-reap-\w{8}\.service$/), expect.stringMatching(/\.timer$/)]);
  expect(said["calls"]).toEqual([
    "--user --no-ask-password show-environment",
    "--user --no-ask-password daemon-reload",
    expect.stringMatching(/^--user --no-ask-password enable --now agent-lane-reap-\w{8}\.timer$/),
  ]);
  expect(said["timer"]).toMatch(/\[Timer\]\nOnStartupSec=1min\nOnUnitActiveSec=10min\n/);
  expect(said["same"]).toEqual([2, true]);
  expect(said["words"]).toEqual(["reap", "--home", expect.stringMatching(/\/h$/), "--limactl", expect.stringMatching(/\/limactl$/)]);
  expect(JSON.parse(said["runs"]!)).toMatchObject({ reaped: [], kept: [] });
  expect(said["inside"]).toBe(true);
  expect(said["mode"]).toBe("700");
  expect(said["removed"]).toMatchObject({ code: 0, out: expect.stringMatching(/removed/) });
  expect(said["left"]).toEqual([[], false, true, []]);
  expect(said["none"]).toMatchObject({ code: 0, out: "there was no timer\n" });
  expect(said["last"]).toEqual([expect.stringMatching(/disable --now/), expect.stringMatching(/daemon-reload$/)]);
});

it("where the user has no systemd nothing is left, and the words are clear", async () => {
  const said = await run("systemctl", 'echo "Failed to connect to bus: No medium found" >&2; exit 1', `
    report("r", await cli("--install"));
    report("left", [units(), existsSync(copy)]);
  `);
  expect(said["r"]).toMatchObject({ code: 1, out: "" });
  expect((said["r"] as { err: string }).err).toMatch(/^error TIMER_FAILED: systemctl --user .*Failed to connect to bus.*\ncure: .*cron/);
  expect(said["left"]).toEqual([[], false]);
});

it("a systemctl that fails in the middle leaves no half", async () => {
  const said = await run("systemctl", 'case "$*" in *enable*) echo no >&2; exit 1;; esac', `
    report("r", (await cli("--install")).code);
    report("left", [units(), existsSync(copy)]);
  `);
  expect(said).toEqual({ r: 1, left: [[], false] });
});

it("is an agent of launchd on macOS", async () => {
  const said = await run("launchctl", "exit 0", `
    const { installTimer, uninstallTimer } = await import(new URL("cli/timer.js", PACKAGE));
    const place = { home: OPTIONS.home, limactl: undefined, platform: "darwin" };
    const file = await installTimer(place);
    report("file", file);
    report("text", read(file));
    report("calls", calls());
    report("removed", [await uninstallTimer(place), existsSync(file), existsSync(copy), await uninstallTimer(place)]);
  `);
  expect(said["file"]).toMatch(/\/h\/Library\/LaunchAgents\/com\.agent-lane\.reap-\w{8}\.plist$/);
  expect(said["text"]).toMatch(/<string>reap<\/string>\n +<string>--home<\/string>/);
  expect(said["calls"]).toEqual([
    expect.stringMatching(/^print gui\/\d+$/),
    expect.stringMatching(/^bootout gui\/\d+\/com\.agent-lane\.reap-\w{8}$/),
    expect.stringMatching(/^enable gui\/\d+\/com\.agent-lane\.reap-\w{8}$/),
    expect.stringMatching(/^bootstrap gui\/\d+ .*\.plist$/),
  ]);
  expect(said["removed"]).toEqual([true, false, false, false]);
});

it("waits for the end of an older agent of launchd, but not for ever", async () => {
  // What launchctl says while a service of that name is still being removed.
  const busy = (times: number) => `
    [ "$1" = bootstrap ] || exit 0
    [ "$(grep -c ^bootstrap "$HOME/calls")" -gt ${times} ] || { echo 'Bootstrap failed: 5: Input/output error' >&2; exit 5; }`;
  const script = `
    const { installTimer } = await import(new URL("cli/timer.js", PACKAGE));
    const error = await installTimer({ home: OPTIONS.home, limactl: undefined, platform: "darwin" }).then(() => null, (e) => [e.code, e.message]);
    report("ended", [error, calls().filter((c) => c.startsWith("bootstrap")).length, existsSync(copy)]);`;
  expect((await run("launchctl", busy(2), script))["ended"]).toEqual([null, 3, true]);
  expect((await run("launchctl", busy(99), script))["ended"]).toEqual([["TIMER_FAILED", expect.stringContaining("5: Input/output error")], 5, false]);
});
