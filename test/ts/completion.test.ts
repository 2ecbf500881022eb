// SPDX-License-Identifier: Apache-2.0
// Completion as a shell does it: bash itself, on a terminal; zsh and fish where they are.
import { execFileSync, spawnSync } from "node:child_process";
import { chmodSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it, vi } from "vitest";
import { completionOf, SHELLS } from "../../lib/cli/completions.js";
import { makeProgram } from "../../lib/cli/program.js";
import { flat, treeOf } from "../../lib/cli/tree.js";
import { stages } from "./support/stages.js";
import { PTY_KIT } from "./support/terminal.mjs";

vi.setConfig({ testTimeout: 100_000 });
const root = join(import.meta.dirname, "..", "..");
const dir = mkdtempSync(join(tmpdir(), "al-completion-"));
afterAll(() => rmSync(dir, { recursive: true, force: true }));
const has = (program: string) => spawnSync(program, ["--version"]).status === 0;

// Stands for the command: it only knows the names.
beforeAll(() => {
  writeFileSync(join(dir, "agent-lane"), `#!/bin/sh\n[ "$1" = __names ] || exit 1\ncase $2 in lane) echo agent-lane-00000000-aaaaaaaa; echo agent-lane-00000000-bbbbbbbb ;; image) echo base-0123456789ab ;; run) echo agent-lane-99999999-aaaaaaaa ;; esac\n`);
  chmodSync(join(dir, "agent-lane"), 0o755);
  for (const shell of SHELLS) writeFileSync(join(dir, shell), completionOf(shell, treeOf(makeProgram())));
  mkdirSync(join(dir, "files", "folder"), { recursive: true });
  writeFileSync(join(dir, "files", "fine.tar"), "");
});

const CASES: [line: string, some: string[], none?: string[]][] = [
  ["agent-lane ", ["run", "ls", "image", "completion"], ["__names", "help"]],
  ["agent-lane im", ["image"], ["ls"]],
  ["agent-lane image ", ["ls", "import", "prune"], ["run"]],
  ["agent-lane ls --", ["--all", "--json", "--home"], ["--cpus"]],
  ["agent-lane image ls --", ["--json"], ["--all"]],
  ["agent-lane --home=/x close ", ["agent-lane-00000000-aaaaaaaa", "agent-lane-00000000-bbbbbbbb"]],
  ["agent-lane close agent-lane-00000000-aaaaaaaa agent", ["agent-lane-00000000-bbbbbbbb"]],
  ["agent-lane shell ", ["agent-lane-00000000-aaaaaaaa"]],
  ["agent-lane image rm b", ["base-0123456789ab"]],
  ["agent-lane run --image ", ["base-0123456789ab"]],
  ["agent-lane run --network ", ["open", "none"], ["run"]],
  ["agent-lane run --guest-sudo ", ["true", "false"]],
  ["agent-lane run --cpus 2 --", ["--memory-gib", "--no-copy"], ["--all"]],
  ["agent-lane verify-manifest ", ["agent-lane-99999999-aaaaaaaa"]],
  ["agent-lane logs --only ", ["guest", "warden", "hostagent"]],
  ["agent-lane completion ", ["bash", "zsh", "fish"]],
];

describe("bash", () => {
  const complete = (line: string): string[] => {
    const script = `source ./bash; cd files
      line=$1; COMP_LINE=$line; COMP_POINT=\${#line}
      read -ra COMP_WORDS <<<"$line"; case $line in *' ') COMP_WORDS+=('') ;; esac
      COMP_CWORD=$((\${#COMP_WORDS[@]} - 1)); compopt() { echo "compopt $*"; }
      _agent_lane; printf '%s\\n' "\${COMPREPLY[@]}"`;
    const out = execFileSync("bash", ["--norc", "-c", script, "bash", line], { cwd: dir, encoding: "utf8", timeout: 20_000, env: { ...process.env, PATH: `${dir}:${process.env["PATH"]}` } });
    return out.split("\n").filter(Boolean);
  };

  it("reads it without a word", () => expect(spawnSync("bash", ["-n", join(dir, "bash")], { encoding: "utf8" })).toMatchObject({ status: 0, stderr: "" }));

  it.each(CASES)("%s", (line, some, none = []) => {
    const words = complete(line);
    expect(words).toEqual(expect.arrayContaining(some));
    expect(words.filter((w) => none.includes(w))).toEqual([]);
  });

  it("leaves files and commands to the shell", () => {
    expect(complete("agent-lane cp f")).toEqual(["compopt -o default"]);
    expect(complete("agent-lane ls --home f")).toEqual(["compopt -o dirnames"]);
    expect(complete("agent-lane run -- bas")).toContain("bash");
    expect(complete("agent-lane run --cpus 2 npm --")).toEqual(["compopt -o default"]);
    expect(complete("agent-lane logs -n ")).toEqual([]);
  });

  it("every option of every command is offered where it belongs", () => {
    const nodes = flat(treeOf(makeProgram())), script = `source ./bash\nfor where in "$@"; do _agent_lane_offers; printf '%s:%s\\n' "$where" "$flags"; done`;
    const out = execFileSync("bash", ["-c", script, "bash", ...nodes.map(({ path }) => path.map((n) => `/${n}`).join(""))], { cwd: dir, encoding: "utf8" });
    expect(out.trim().split("\n").map((l) => l.split(":")[1]?.split(" ").filter((w) => w.startsWith("--")))).toEqual(nodes.map((n) => n.options.map((o) => o.long)));
  });

  it("a Tab on a terminal writes the rest", async () => {
    const s = stages()();
    s.addCommand();
    const r = await s.run(`${PTY_KIT}
      import { mkdirSync, writeFileSync, chmodSync } from "node:fs";
      const bin = OPTIONS.home + "/bin-completion";
      mkdirSync(bin);
      writeFileSync(bin + "/agent-lane", "#!/bin/sh\\nexec '" + process.execPath + "' '" + new URL("cli/main.js", PACKAGE).pathname + "' \\"$@\\"\\n");
      chmodSync(bin + "/agent-lane", 0o755);
      const pty = new Pty(24, 80, ["bash", "--norc", "--noprofile"], { PATH: bin + ":" + process.env.PATH, PS1: "$ ", TERM: "xterm", HOME: OPTIONS.home });
      await pty.sees("$ ");
      pty.type('eval "$(agent-lane completion bash)"; echo RE""ADY\\r');
      await pty.sees("READY");
      pty.type("agent-lane verify-m\\t");
      await pty.sees("agent-lane verify-manifest ");
      pty.type("--js\\t");
      await pty.sees("--json ");
      pty.type("\\x15agent-lane image pr\\t\\t");
      await pty.sees("prepare");
      await pty.sees("prune");
      pty.type("\\x15exit\\r");
      report("code", (await pty.event("ended")).code);
      const { execFileSync } = await import("node:child_process");
      report("names", execFileSync(bin + "/agent-lane", ["__names", "lane", "--home", OPTIONS.home], { encoding: "utf8" }));
    `);
    expect(r.err).toBe("");
    expect(r.said).toEqual({ code: 0, names: "" });
  });
});

describe.skipIf(!has("zsh"))("zsh", () => {
  // With zsh's own functions for files and commands, which need its parameters and options as they are.
  it("a Tab on a terminal writes the rest", async () => {
    const s = stages()();
    s.addCommand();
    const r = await s.run(`${PTY_KIT}
      import { mkdirSync, writeFileSync, chmodSync } from "node:fs";
      const bin = OPTIONS.home + "/bin-completion";
      mkdirSync(bin + "/files/folder", { recursive: true });
      writeFileSync(bin + "/files/fine.tar", "");
      const main = "'" + process.execPath + "' '" + new URL("cli/main.js", PACKAGE).pathname + "'";
      writeFileSync(bin + "/agent-lane", "#!/bin/sh\\ncase $1 in completion) exec " + main + ' "$@" ;; __names) echo "agent-lane-0-$2" ;; *) echo "GOT:$*:" ;; esac\\n');
      chmodSync(bin + "/agent-lane", 0o755);
      const pty = new Pty(24, 120, ["zsh", "-f"], { PATH: bin + ":" + process.env.PATH, TERM: "dumb", HOME: bin, ZDOTDIR: bin });
      await pty.sees("% ");
      pty.type('autoload -U compinit; compinit -u -D; agent-lane completion zsh >_agent-lane; eval "$(agent-lane completion zsh)"; cd ' + bin + '/files; echo RE""ADY\\r');
      await pty.sees("READY");
      const gets = async (typed, got) => { pty.type(typed + "\\t\\r"); await pty.sees("GOT:" + got + ":"); };
      await gets("agent-lane verify-m", "verify-manifest");
      await gets("agent-lane ls --js", "ls --json");
      await gets("agent-lane run --network o", "run --network open");
      await gets("agent-lane close agent-lane-0", "close agent-lane-0-lane");
      await gets("agent-lane cp fi", "cp fine.tar");
      await gets("agent-lane ls --home fo", "ls --home folder");
      await gets("agent-lane run -- sha256su", "run -- sha256sum");
      pty.type("exit\\r");
      report("code", (await pty.event("ended")).code);
    `);
    expect(r.err).toBe("");
    expect(r.said).toEqual({ code: 0 });
  });

  it("reads it without a word", () => expect(spawnSync("zsh", ["-n", join(dir, "zsh")], { encoding: "utf8" })).toMatchObject({ status: 0, stderr: "" }));
  it.each(CASES)("%s", (line, some, none = []) => {
    const script = `compdef() { :; }; source ./zsh; compadd() { shift; print -l -- "$@"; }; _files() { :; }; _command_names() { :; }
      words=(\${=1}); case $1 in *' ') words+=('') ;; esac; CURRENT=$#words; current=$words[CURRENT]; _agent_lane`;
    const out = execFileSync("zsh", ["-f", "-c", script, "zsh", line], { cwd: dir, encoding: "utf8", timeout: 20_000, env: { ...process.env, PATH: `${dir}:${process.env["PATH"]}` } });
    // compadd leaves what does not begin like the word under the cursor out; here that is done by hand.
    const begun = line.endsWith(" ") ? "" : line.split(" ").at(-1)!;
    const all = out.split("\n").filter((w) => w !== "" && w.startsWith(begun));
    expect(all).toEqual(expect.arrayContaining(some));
    expect(all.filter((w) => none.includes(w))).toEqual([]);
  });
});

describe.skipIf(!has("fish"))("fish", () => {
  it.each(CASES)("%s", (line, some, none = []) => {
    const out = execFileSync("fish", ["--no-config", "-c", `source ./fish; complete -C ${JSON.stringify(line)}`], { cwd: dir, encoding: "utf8", timeout: 20_000, env: { ...process.env, HOME: dir, PATH: `${dir}:${process.env["PATH"]}` } });
    const words = out.split("\n").map((l) => l.split("\t")[0]!).filter(Boolean);
    expect(words).toEqual(expect.arrayContaining(some));
    expect(words.filter((w) => none.includes(w))).toEqual([]);
  });
});

describe.skipIf(!has("fish"))("fish, beyond our own words", () => {
  it.each([
    ["agent-lane cp f", ["fine.tar", "folder/"]],
    ["agent-lane ls --home f", ["folder/"]],
    ["agent-lane logs -n ", []],
    ["agent-lane run -- ech", ["echo"]],
    ["agent-lane run --cpus 2 ech", ["echo"]],
    ["agent-lane shell -- ech", ["echo"]],
    ["agent-lane run cat f", ["fine.tar", "folder/"]],
  ])("%s: %j", (line, words) => {
    const out = execFileSync("fish", ["--no-config", "-c", `source ../fish; complete -C ${JSON.stringify(line)}`], { cwd: join(dir, "files"), encoding: "utf8", timeout: 20_000, env: { ...process.env, HOME: dir, PATH: `${dir}:${process.env["PATH"]}` } });
    expect(out.split("\n").map((l) => l.split("\t")[0]!).filter(Boolean)).toEqual(words);
  });
});

it("the hidden command says nothing of a home without lanes, and knows no other kinds", () => {
  const main = join(root, "dist", "cli", "main.js"), env = { ...process.env, AGENT_LANE_HOME: join(dir, "home") };
  const names = (kind: string) => spawnSync(process.execPath, [main, "__names", kind], { encoding: "utf8", env });
  for (const kind of ["lane", "image", "run"]) expect(names(kind)).toMatchObject({ status: 0, stdout: "", stderr: "" });
  expect(names("secret")).toMatchObject({ status: 2, stdout: "" });
  expect(spawnSync(process.execPath, [main, "--help"], { encoding: "utf8" }).stdout).not.toContain("__names");
});
