// SPDX-License-Identifier: Apache-2.0
// interactiveExec on a real terminal, with the real lane agent: what the program sees of it, and that it is given back however the call ends.
import { afterAll, beforeAll, describe, expect, it, vi } from "vitest";
import { Stage, type Outcome } from "./support/stage.js";
import { PTY_KIT } from "./support/terminal.mjs";

// Each starts processes and some a few lanes, on a machine that may be busy.
vi.setConfig({ testTimeout: 100_000 });

let stage: Stage;
beforeAll(() => {
  stage = new Stage();
  stage.scenario({ guest: "agent" });
});
afterAll(() => stage.remove());

async function run(script: string): Promise<Outcome> {
  const outcome = await stage.run(PTY_KIT + script);
  expect(outcome.err).toBe("");
  return outcome;
}

const SESSION = "const lane = await create(); const call = lane.interactiveExec(['sh', '-c', COMMAND], io);";

describe("a program of the guest on the caller's terminal", () => {
  it("has its size, its type and its exit code, follows it, and hears Ctrl-C", async () => {
    const { said } = await run(`
      const COMMAND = ${JSON.stringify(`trap 'echo INT; exit 7' INT; echo $TERM $COLORTERM; stty size; trap 'stty size' WINCH; echo READY; while :; do sleep 0.05; done`)};
      const pty = new Pty(40, 100, inner("const COMMAND = " + JSON.stringify(COMMAND) + ";" + ${JSON.stringify(SESSION)} + "const { exitCode } = await call; console.log('EXIT ' + exitCode); await lane.close();"),
        { TERM: "tmux-256color", COLORTERM: "truecolor" });
      await pty.sees("tmux-256color truecolor\\r\\n40 100\\r\\nREADY");
      const during = await pty.settings();
      pty.resize(33, 77);
      await pty.sees("33 77");
      pty.resize(50, 132);
      await pty.sees("50 132");
      pty.type("\\x03");
      await pty.sees("INT");
      await pty.sees("EXIT 7");
      const { before } = await pty.event("before"), end = await pty.event("ended");
      report("raw", isRaw(during));
      report("same", JSON.stringify(before) === JSON.stringify(end.ended));
      report("code", end.code);
    `);
    expect(said).toEqual({ raw: true, same: true, code: 0 });
  });

  it("loses nothing of what is typed or written, and nothing of its tail", async () => {
    const { said } = await run(`
      const COMMAND = "stty raw -echo; printf READY; head -c 100000 | sha256sum; head -c 300000 /dev/zero | tr '\\\\\\\\0' y; printf LAST";
      const pty = new Pty(24, 80, inner("const COMMAND = " + JSON.stringify(COMMAND.replaceAll("\\\\\\\\", "\\\\")) + ";" + ${JSON.stringify(SESSION)} + "await call; process.stdout.write('<END>'); await lane.close();"));
      await pty.sees("READY");
      const text = Array.from({ length: 20000 }, (_, i) => String(10000 + i)).join("");
      for (let i = 0; i < text.length; i += 1000) { pty.type(text.slice(i, i + 1000)); await new Promise((ok) => setTimeout(ok, 2)); }
      await until(() => pty.out.slice(-300), () => pty.out.includes("<END>"));
      const { createHash } = await import("node:crypto");
      report("typed", pty.out.startsWith(createHash("sha256").update(text).digest("hex")));
      const output = pty.out.slice(pty.out.indexOf("y"), pty.out.indexOf("<END>"));
      report("length", output.length);
      report("tail", output.slice(-6));
    `);
    expect(said).toEqual({ typed: true, length: 300004, tail: "yyLAST" });
  });
});

describe("a full-screen program under tmux", () => {
  it("draws, follows the window, takes keys, and leaves the screen as it was", async () => {
    const { said } = await run(`
      const { execFileSync } = await import("node:child_process");
      const { writeFileSync } = await import("node:fs");
      const tmux = (...args) => execFileSync("tmux", ["-f", "/dev/null", "-L", "al-" + process.pid, ...args], { encoding: "utf8", timeout: 60000, env: { ...process.env, SHELL: "/bin/sh", LANG: "C.UTF-8" } });
      const screen = () => tmux("capture-pane", "-p", "-t", "s");
      const shows = (what) => until(() => what + " on " + screen(), () => what.test(screen()));
      writeFileSync(WT + "/session.mjs", inner(${JSON.stringify(`const COMMAND = "seq -f 'line %g' 500 >text; exec less -M text"; ${SESSION} const r = await call; console.log("status " + r.exitCode); await lane.close();`)}).at(-1));
      tmux("new-session", "-d", "-s", "s", "-x", "60", "-y", "12", "sh");
      try {
        tmux("send-keys", "-t", "s", "echo be''fore; stty -g >settings; '" + process.execPath + "' " + WT + "/session.mjs; stty -g >settings.after; echo do''ne", "Enter");
        await shows(/^line 1\\n(line \\d+\\n){10}text lines 1-11\\/500/);
        tmux("send-keys", "-t", "s", "G");
        await shows(/^line 490\\n[^]*line 500\\n/);
        tmux("resize-window", "-t", "s", "-x", "44", "-y", "7");
        await shows(/^(line \\d+\\n){6}[^\\n]+\\n*$/); // six lines and the prompt
        tmux("send-keys", "-t", "s", "G");
        await shows(/^line 495\\n(line \\d+\\n){5}/);
        tmux("send-keys", "-t", "s", "g");
        await shows(/^line 1\\n(line \\d+\\n){5}text lines 1-6/);
        report("program", screen());
        tmux("send-keys", "-t", "s", "q");
        await shows(/status 0\\ndone/);
        const { readFileSync } = await import("node:fs");
        report("same", readFileSync(WT + "/settings", "utf8") === readFileSync(WT + "/settings.after", "utf8"));
        report("screen", screen());
      } finally { tmux("kill-server"); }
    `);
    expect(said["program"]).toMatch(/^line 1\nline 2\nline 3\nline 4\nline 5\nline 6\ntext lines 1-6/);
    expect(said["same"]).toBe(true);
    expect(said["screen"]).not.toMatch(/line 1/); // less has left its own screen
  });
});

/** The call has ended, the process goes on for a while. */
const BACK = "await call.catch((e) => console.log(e.code)); console.log('BACK'); await new Promise((ok) => setTimeout(ok, 1000)); await lane.close();";

/**
 * Each ends the session in its own way; `pty` acts from outside, the rest is code of the session's process.
 */
/** What the session's process does when the test, which has seen the program run, gives the cue. */
const onCue = (code: string): string => `process.once("SIGUSR2", () => ${code});`;
const CUE = "pty.signal('SIGUSR2');";
const ENDS: Record<string, { code: string; act?: string; status: number; before?: string }> = {
  "the program's end": { code: BACK, act: "pty.type('q');", status: 0 },
  "close of the lane": { code: `${onCue("lane.close()")} ${BACK}`, act: CUE, status: 0 },
  abort: {
    before: "const c = new AbortController(); io.signal = c.signal;",
    code: `${onCue("c.abort()")} ${BACK}`,
    act: CUE,
    status: 0,
  },
  "a guest that dies": { code: BACK, act: "pty.type('k');", status: 0 },
  "a stream that throws": {
    before:
      "const w = io.stdout; io.stdout = Object.create(w, { write: { value: (d, cb) => { if (String(d).includes('BOOM')) throw new Error('boom'); return w.write(d, cb); } } });",
    code: BACK,
    act: "pty.type('b');",
    status: 0,
  },
  "an exception nobody catches": { code: `${onCue("{ throw new Error('uncaught'); }")} await call;`, act: CUE, status: 1 },
  "a rejection nobody catches": {
    code: `${onCue("{ Promise.reject(new Error('uncaught')); }")} await call;`,
    act: CUE,
    status: 1,
  },
  "process.exit": { code: `${onCue("process.exit(9)")} await call;`, act: CUE, status: 9 },
  SIGINT: { code: "await call.catch(() => 0);", act: "pty.signal('SIGINT');", status: 130 },
  SIGTERM: { code: "await call.catch(() => 0);", act: "pty.signal('SIGTERM');", status: 143 },
  SIGHUP: { code: "await call.catch(() => 0);", act: "pty.signal('SIGHUP');", status: 129 },
  SIGQUIT: { code: "await call.catch(() => 0);", act: "pty.signal('SIGQUIT');", status: 131 },
  "a handler that exits": { before: "process.on('SIGTERM', () => process.exit(4));", code: "await call;", act: "pty.signal('SIGTERM');", status: 4 },
};
const PROGRAM = "stty raw -echo; printf READY; while :; do case $(head -c 1) in q) exit 5;; k) kill -9 $PPID;; b) printf BOOM;; esac; done";

describe("the caller's terminal is given back after", () => {
  it.each(Object.entries(ENDS))("%s", async (_name, { code, act = "", status, before = "" }) => {
    const session = `const COMMAND = ${JSON.stringify(PROGRAM)}; ${before} ${SESSION} ${code}`;
    const { said } = await run(`
      const pty = new Pty(24, 80, inner(${JSON.stringify(session)}));
      await pty.sees("READY");
      report("raw", isRaw(await pty.settings()));
      ${act}
      const { before } = await pty.event("before");
      if (${code.includes(BACK)}) {
        await pty.sees("BACK");
        report("back", JSON.stringify(before) === JSON.stringify(await pty.settings()));
      }
      const end = await pty.event("ended");
      report("same", JSON.stringify(before) === JSON.stringify(end.ended));
      report("code", end.code);
    `);
    expect(said).toEqual({ raw: true, ...(code.includes(BACK) ? { back: true } : {}), same: true, code: status });
  });

  it("SIGTSTP, and taken again by SIGCONT, with the size of then", async () => {
    const session = `const COMMAND = "stty size; stty -echo; printf READY; read -r x; stty size; echo got $x"; ${SESSION} await call; await lane.close();`;
    const { said } = await run(`
      const pty = new Pty(24, 80, inner(${JSON.stringify(session)}));
      await pty.sees("READY");
      const { before } = await pty.event("before"), during = await pty.settings();
      pty.signal("SIGTSTP");
      const { stopped } = await pty.event("stopped");
      pty.resize(11, 22);
      pty.signal("SIGCONT");
      await pty.event("continued");
      await until(() => "raw mode", async () => isRaw(await pty.settings()));
      report("again", JSON.stringify(await pty.settings()) === JSON.stringify(during));
      pty.type("on\\r");
      await pty.sees("11 22\\r\\ngot on");
      const end = await pty.event("ended");
      report("stopped", JSON.stringify(before) === JSON.stringify(stopped));
      report("same", JSON.stringify(before) === JSON.stringify(end.ended));
      report("code", end.code);
    `);
    expect(said).toEqual({ again: true, stopped: true, same: true, code: 0 });
  });
});
