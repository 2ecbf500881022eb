// SPDX-License-Identifier: Apache-2.0
// Terminals in a real guest, on a real pseudo-terminal of the host, and `agent-lane shell` beside a running agent.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { agentLane, openLane, scratch, small } from "./lib/lanes.mjs";
import { laneDirectories, nothingLeft } from "./lib/world.mjs";
import { PTY_KIT } from "../ts/support/terminal.mjs";

const MINUTES = 60_000;
const bin = fileURLToPath(new URL("../node_modules/.bin/agent-lane", import.meta.url));
const here = scratch("e2e-terminal");

// The kit is text, for scripts; here it becomes a module that patience of an emulated guest can be given.
const kit = join(here, "pty.mjs");
writeFileSync(kit, `const PACKAGE = "", OPTIONS = {};${PTY_KIT.replace("patience = 20000", "patience = 120000")}\nexport { Pty, until, isRaw };`);
const { Pty, until, isRaw } = await import(kit);

/** A script in a place from which the package can be imported. */
function script(name, text) {
  const dir = fileURLToPath(new URL("./scratch-terminal/", import.meta.url));
  mkdirSync(dir, { recursive: true });
  writeFileSync(join(dir, name), `import { createLane } from "@agent-lane/provider-lima"; const OPTIONS = ${JSON.stringify({ ...small, startTimeoutSeconds: 240 })};\n${text}`);
  return join(dir, name);
}
const SESSION = "const call = lane.interactiveExec(['bash', '-c', COMMAND], { stdin: process.stdin, stdout: process.stdout, stderr: process.stderr });";

/** The settings of a terminal, as the driver reports them. */
const same = (a, b) => assert.deepEqual(b, a, "the terminal is what it was before");

describe("terminals of a real guest", { concurrency: false }, () => {
  it("interactiveExec: size, owner, /dev/tty, resize, Ctrl-C, and a full-screen program under tmux", async () => {
    const command = "echo owner $(stat -c '%U %a' $(tty)); stty size; echo tty >/dev/tty; trap 'stty size' WINCH; trap 'exit 7' INT; echo READY; while :; do sleep 0.05; done";
    const file = script("session.mjs", `
      const lane = await createLane(OPTIONS);
      console.log("OPEN");
      let COMMAND = ${JSON.stringify(command)};
      ${SESSION}
      const first = await call;
      console.log("STATUS " + first.exitCode);
      const second = await lane.interactiveExec(["bash", "-c", "seq -f 'line %g' 500 >text; exec less -M text"], { stdin: process.stdin, stdout: process.stdout, stderr: process.stderr });
      console.log("LESS " + second.exitCode);
      await lane.close();`);
    const tmux = (...args) => execFileSync("tmux", ["-f", "/dev/null", "-L", `al-${process.pid}`, ...args], { encoding: "utf8", timeout: 20_000, env: { ...process.env, SHELL: "/bin/sh" } });
    const screen = () => tmux("capture-pane", "-p", "-t", "s");
    const shows = (what) => until(() => `${what} on ${screen()}`, () => what.test(screen()));
    tmux("new-session", "-d", "-s", "s", "-x", "70", "-y", "12", "sh");
    try {
      tmux("send-keys", "-t", "s", `stty -g >${here}/before; '${process.execPath}' ${file}; stty -g >${here}/after; echo FIN''ISHED`, "Enter");
      await shows(/owner agent 620\n12 70\ntty\nREADY/);
      tmux("resize-window", "-t", "s", "-x", "61", "-y", "13");
      await shows(/READY\n13 61/);
      tmux("send-keys", "-t", "s", "C-c");
      await shows(/STATUS 7|^line 1\n/m);
      await shows(/^line 1\n(line \d+\n){11}text lines 1-12\/500/);
      tmux("send-keys", "-t", "s", "G");
      await shows(/^line 489\n[^]*line 500\n/);
      tmux("resize-window", "-t", "s", "-x", "44", "-y", "7");
      // Its own repaint, not what tmux has cut off: less drops a key that comes together with the signal.
      await shows(/^line 489\n(line \d+\n){5}text lines 489-494/);
      tmux("send-keys", "-t", "s", "g");
      await shows(/^line 1\n(line \d+\n){5}text lines 1-6/);
      console.log(`captured:\n${screen()}`);
      tmux("send-keys", "-t", "s", "q");
      await shows(/LESS 0/);
      await shows(/FINISHED/);
      assert.equal(readFileSync(join(here, "after"), "utf8"), readFileSync(join(here, "before"), "utf8"));
    } finally {
      tmux("kill-server");
    }
    await nothingLeft();
  }, { timeout: 6 * MINUTES });

  it("a guest that is powered off under it gives the terminal back", async () => {
    const file = script("poweroff.mjs", `
      const lane = await createLane(OPTIONS);
      const COMMAND = "stty raw -echo; printf READY; head -c 1 >/dev/null; echo o | sudo tee /proc/sysrq-trigger >/dev/null; sleep 600";
      ${SESSION}
      try { await call; } catch (error) { console.log(error.code); }
      await lane.close();`);
    const pty = new Pty(24, 80, [process.execPath, file]);
    const { before: first } = await pty.event("before");
    await pty.sees("READY");
    assert.equal(isRaw(await pty.settings()), true);
    pty.type("x");
    await pty.sees("CHANNEL_CLOSED");
    const end = await pty.event("ended");
    assert.equal(end.code, 0);
    same(first, end.ended);
    await nothingLeft();
  }, { timeout: 6 * MINUTES });
});

describe("agent-lane shell beside a running agent", { concurrency: false }, () => {
  let lane, name;
  const ticks = [];
  let agent;
  const processes = async () => (await lane.exec("ps -eo args= | grep -c -E '[s]leep 777|[-]-attach'", { cwd: "/" })).stdout.trim();

  before(async () => {
    const others = new Set(laneDirectories());
    lane = await openLane();
    name = laneDirectories().find((d) => !others.has(d));
    agent = lane.exec("i=0; while [ ! -e stop ]; do echo $((i += 1)); sleep 0.1; done; exit 5", { onLine: (line) => ticks.push(Number(line)) });
    agent.catch(() => undefined); // whoever awaits it hears of it
  }, { timeout: 5 * MINUTES });
  after(() => lane?.close(), { timeout: MINUTES });

  it("pipes: runs beside it as agent in the worktree, with its status", () => {
    assert.deepEqual(agentLane(["shell", name, "--", "sh", "-c", "id -un; pwd; exit 7"], { timeout: 2 * MINUTES }), { code: 7, out: `agent\n${lane.worktreePath}\n`, errors: "" });
    assert.equal(agentLane(["shell", "--root", "--", "id", "-u"], { timeout: 2 * MINUTES }).out, "0\n");
  }, { timeout: 5 * MINUTES });

  it("a terminal: resized, Ctrl-C, killed; the agent never notices and nothing of it is left", async () => {
    const pty = new Pty(30, 90, [bin, "shell", name, "--", "bash", "-c", "stty size; trap 'stty size' WINCH; trap 'exit 9' INT; echo READY; while :; do sleep 0.05; done"]);
    await pty.sees("30 90\r\nREADY");
    pty.resize(11, 44);
    await pty.sees("11 44");
    pty.type("\x03");
    const { before: first } = await pty.event("before"), end = await pty.event("ended");
    assert.equal(end.code, 9);
    same(first, end.ended);
    const killed = new Pty(24, 80, [bin, "shell", "--", "bash", "-c", "(setsid sleep 777 &); sleep 777 & echo READY; wait"]);
    await killed.sees("READY");
    killed.signal("SIGKILL");
    await killed.event("ended");
    await until(() => "what the shell had started to be gone", async () => (await processes()) === "0");
    const seen = ticks.length;
    await until(() => "more ticks", () => ticks.length > seen + 5);
    await lane.exec("touch stop");
    assert.equal((await agent).exitCode, 5);
    assert.deepEqual(ticks, Array.from({ length: ticks.length }, (_, i) => i + 1));
  }, { timeout: 6 * MINUTES });

  it("after the owner has closed it, there is nothing to attach to", async () => {
    await lane.close();
    const r = agentLane(["shell", name]);
    assert.equal(r.code, 1);
    assert.match(r.errors, /NO_SUCH_LANE/);
    await nothingLeft();
  }, { timeout: 2 * MINUTES });
});
