#!/usr/bin/env node
// SPDX-License-Identifier: Apache-2.0
// The command's screens, in a real terminal (tmux) at 80 and 200 columns and without one: screens.mjs OUT writes the Markdown.
// scripts/screens runs it as the user of the lanes. Names of the machine and of its user are replaced.
import { execFileSync, spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { homedir, hostname, release, tmpdir, userInfo } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { createLane } from "@agent-lane/provider-lima";

const out = process.argv[2];
if (out === undefined) throw new Error("usage: screens.mjs OUT");
const bin = fileURLToPath(new URL("../node_modules/.bin/agent-lane", import.meta.url));
const scratch = mkdtempSync(join(tmpdir(), "screens-"));
const PATIENCE_MS = 600_000;

const repo = join(scratch, "project");
mkdirSync(repo);
const sh = (command) => execFileSync("sh", ["-c", command], { cwd: repo, encoding: "utf8" });
sh("git init -q -b main && printf 'def add(a, b):\\n    return a - b\\n' > add.py && printf 'from add import add\\nassert add(2, 2) == 4, add(2, 2)\\nprint(\"ok\")\\n' > test.py && git add -A && git -c user.name=u -c user.email=u@example.com commit -qm initial");
mkdirSync(join(scratch, "bin"));
execFileSync("ln", ["-s", bin, join(scratch, "bin", "agent-lane")]);

const env = { ...process.env, PATH: `${join(scratch, "bin")}:${process.env.PATH}`, LANG: "C.UTF-8", PS1: "$ ", TERM: "xterm-256color", SHELL: "/bin/sh" };
// A server that was told to go may still be there for a moment: each session has a socket of its own.
let sessions = 0;
const tmux = (...args) => execFileSync("tmux", ["-f", "/dev/null", "-L", `screens-${process.pid}-${sessions}`, ...args], { encoding: "utf8", timeout: 30_000, env, cwd: repo });

/** What no document should say: where things are on this machine, and its name. Lengths change no column that matters. */
function neutral(text) {
  const home = process.env.AGENT_LANE_HOME ?? "", project = fileURLToPath(new URL("..", import.meta.url)).replace(/\/$/, "");
  const pairs = [[home, "~/.agent-lane"], [project, "~/project"], [repo, "~/project"], [scratch, "/tmp/screens"], [homedir(), "~"], [hostname(), "host"], [userInfo().username, "me"], [release(), "6.x"]];
  return pairs.reduce((all, [from, to]) => (from.length < 3 ? all : all.replaceAll(from, to)), text).replace(/[ \t]+$/gm, "").replace(/\n+$/, "");
}

/** The screen after a command has run in a terminal of so many columns. */
async function inTerminal(columns, command) {
  const mark = join(scratch, `done-${columns}`);
  rmSync(mark, { force: true });
  sessions++;
  tmux("new-session", "-d", "-s", "s", "-x", String(columns), "-y", "60", "-e", `PATH=${env.PATH}`, "sh");
  try {
    tmux("set-option", "-t", "s", "history-limit", "10000");
    tmux("send-keys", "-t", "s", `PS1='$ '; cd ${repo}; clear`, "Enter");
    await sleep(700);
    tmux("clear-history", "-t", "s");
    tmux("send-keys", "-t", "s", `${command}; : >${mark}`, "Enter");
    for (const end = Date.now() + PATIENCE_MS; ; await sleep(200)) {
      try {
        readFileSync(mark);
        break;
      } catch (error) {
        if (Date.now() > end) throw new Error(`${command} has not ended: ${tmux("capture-pane", "-p", "-t", "s")}`, { cause: error });
      }
    }
    await sleep(300);
    // What we have added to the line goes again, wherever the terminal has broken it.
    const added = new RegExp([...`; : >${mark}`].map((c) => c.replace(/\W/, "\\$&")).join("\n?"));
    return neutral(tmux("capture-pane", "-p", "-S", "-10000", "-t", "s").replace(added, "")).replace(/\n\$ *$/, "");
  } finally {
    tmux("kill-server");
  }
}

function withoutTerminal(command) {
  const r = spawnSync("sh", ["-c", command], { cwd: repo, env, encoding: "utf8", timeout: PATIENCE_MS, stdio: ["ignore", "pipe", "pipe"] });
  const err = r.stderr === "" ? "" : `\n--- stderr ---\n${r.stderr}`;
  return neutral(`$ ${command}\n${r.stdout}${err}`) + `\n--- exit status ${r.status} ---`;
}

const small = "--cpus 2 --memory-gib 1.5 --network none --start-timeout-seconds 240";
const fix = `sh -c "sed -i s/-/+/ add.py && python3 test.py"`;
const SCREENS = [
  { title: "agent-lane doctor", command: "agent-lane doctor" },
  { title: "agent-lane demo", command: "agent-lane demo" },
  { title: "agent-lane run", command: `agent-lane run ${small} --patch fix.patch -- ${fix}` },
  { title: "agent-lane ls", command: "agent-lane ls", lane: true },
  { title: "agent-lane inspect", command: "agent-lane inspect LANE", lane: true },
  { title: "agent-lane verify", command: "agent-lane verify --only docker-socket ssh-agent host-home" },
];

const parts = [`# Screens

What the command shows, in a real terminal of 80 and of 200 columns, and without one (its output goes into files there: no colours, no line that is
written over, nothing is cut). Captured by \`scripts/screens\` with software emulation, which is several times slower than KVM or a Mac. Colours do not show here; while something
is waited for, the last line of a terminal says for what and for how long, and is gone afterwards.
`];
const wanted = (process.env.E2E_SCREENS ?? "").split(" ").filter(Boolean);
for (const { title, command, lane: needed } of SCREENS.filter((s) => wanted.length === 0 || wanted.some((w) => s.title.endsWith(` ${w}`)))) {
  const lane = needed ? await createLane({ cpus: 2, memoryGiB: 1.5, network: "none", startTimeoutSeconds: 240 }) : undefined;
  try {
    const real = command.replace("LANE", lane?.name ?? "");
    parts.push(`## ${title}\n`);
    for (const columns of [80, 200]) {
      console.log(`${title}, ${columns} columns`);
      parts.push(`${columns} columns:\n\n\`\`\`text\n${await inTerminal(columns, real)}\n\`\`\`\n`);
    }
    console.log(`${title}, no terminal`);
    parts.push(`Without a terminal:\n\n\`\`\`text\n${withoutTerminal(real)}\n\`\`\`\n`);
    writeFileSync(out, parts.join("\n")); // as far as it has come
  } finally {
    await lane?.close();
  }
}
rmSync(scratch, { recursive: true, force: true });
