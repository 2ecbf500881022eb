// SPDX-License-Identifier: Apache-2.0
// What a sweep that is a little too eager would touch: instances and processes whose names are nearly the lane's, directories
// that look like ours, a stranger who has got the pid of one who died.
import { spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { lstatSync, mkdirSync, readFileSync, readdirSync, readlinkSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { connect } from "node:net";
import { join } from "node:path";
import { alive, startOf } from "./world.mjs";

function manifest(path) {
  const st = lstatSync(path, { throwIfNoEntry: false });
  if (st === undefined) return "missing";
  const facts = `${st.mode} ${st.ino} ${st.mtimeMs}`;
  if (st.isDirectory()) return [facts, ...readdirSync(path).sort().map((f) => `${f}: ${manifest(join(path, f))}`)].join("\n");
  if (st.isSymbolicLink()) return `${facts} -> ${readlinkSync(path)}`;
  return `${facts} ${st.size} ${createHash("sha256").update(readFileSync(path)).digest("hex")}`;
}

/** The same name with another last letter: as valid as the lane's own. */
const neighbour = (name) => name.slice(0, -1) + (name.endsWith("a") ? "b" : "a");

/** A process that does nothing, under a command line that is nearly one of the lane's. */
function pretend(argv0, args) {
  const child = spawn("/bin/sh", ["-c", "read -r x", argv0, ...args], { argv0, stdio: ["pipe", "ignore", "ignore"] });
  child.unref();
  return { pid: child.pid, start: startOf(child.pid), child, what: [argv0, ...args].join(" ") };
}

/**
 * Plants all decoys for a lane: `touched()` names those that are not as they were, `remove()` takes them away. `planted`
 * are the names below <home>/lima.
 */
export function plantDecoys(home, outside, name) {
  const lima = join(home, "lima"), other = neighbour(name);
  const planted = [], processes = [];
  const instance = (dir, files) => {
    mkdirSync(join(lima, dir), { mode: 0o700 });
    for (const [file, text] of Object.entries(files)) writeFileSync(join(lima, dir, file), text, { mode: 0o600 });
    planted.push(`lima/${dir}`);
  };
  const record = JSON.stringify({ name: other, row: 1, dev: 1, ino: 1, created: 1 });
  // An instance of somebody else's; one with a record that was not made for this directory; one with our name and more; a half one.
  instance(other, { "lima.yaml": "cpus: 1\n", disk: "disk", "agent-lane.json": record });
  instance(`${name}x`, { "lima.yaml": "cpus: 1\n", disk: "disk" });
  instance(`_tmp.${other}`, { disk: "disk" });
  mkdirSync(outside, { recursive: true });
  mkdirSync(join(outside, name));
  writeFileSync(join(outside, name, "precious"), name);
  const dir = `${lima}/${other}`;
  processes.push(pretend("/usr/bin/qemu-system-x86_64", ["-name", `lima-${other}`, "-pidfile", `${dir}/qemu.pid`]));
  processes.push(pretend("limactl", ["hostagent", "--pidfile", `${dir}/ha.pid`, other]));
  processes.push(pretend(`ssh: ${dir}/ssh.sock [mux]`, []));
  for (const [file, p] of [["qemu.pid", processes[0]], ["ha.pid", processes[1]]]) writeFileSync(join(dir, file), `${p.pid}\n`);
  const paths = [...planted.map((p) => join(home, p)), join(outside, name)];
  const before = paths.map(manifest);
  return {
    planted,
    processes,
    /** A link out of the lane's own directory, which its removal must not follow. */
    link() {
      try {
        symlinkSync(join(outside, name), join(lima, name, "decoy"));
      } catch {
        // there is no directory yet
      }
    },
    touched: () => [
      ...paths.filter((p, i) => manifest(p) !== before[i]),
      ...processes.filter((p) => !alive(p)).map((p) => `${p.pid} ${p.what}`),
    ],
    remove() {
      for (const p of processes) p.child.kill("SIGKILL");
      for (const p of paths) rmSync(p, { recursive: true, force: true });
    },
  };
}

/** Gives a stranger the pid of one who has died, through root's recycle.mjs. `touched()`: it is no longer there. */
export class Recycler {
  #socket = process.env.CHAOS_RECYCLER ?? "";

  get there() {
    return this.#socket !== "";
  }

  #ask(line) {
    return new Promise((done) => {
      const s = connect(this.#socket);
      let text = "";
      s.setTimeout(5000, () => s.destroy());
      s.setEncoding("utf8").on("data", (d) => (text += d)).on("error", () => undefined).on("close", () => done(text.trim()));
      s.write(`${line}\n`);
    });
  }

  async take(pid) {
    if (!this.there || (await this.#ask(`take ${pid}`)) !== "ok") return undefined;
    const stranger = { pid, start: startOf(pid) };
    return { pid, touched: () => !alive(stranger), release: () => this.#ask(`drop ${pid}`) };
  }
}
