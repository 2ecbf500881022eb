// SPDX-License-Identifier: Apache-2.0
// The runner of scripts/weakened: builds each weakened product aside and lets its own `verify` judge it on a real VM.
import { execFileSync, spawnSync } from "node:child_process";
import { cpSync, existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import list from "../mutants.d/containment.mjs";

const root = dirname(dirname(dirname(fileURLToPath(import.meta.url))));
const { WEAKENED_PROJECT: project, WEAKENED_CACHE: cache, WEAKENED_USER: user, WEAKENED_HOME: home } = process.env;
const copy = join(cache, "tree"), platform = `${process.platform}-${process.arch}`;
// Beside the project, where the user of the lanes may read and nobody else needs to write.
const stage = `${project}-weakened`, installed = join(stage, "node_modules", "@agent-lane", "provider-lima");
const wanted = process.argv.slice(2);
const chosen = list.filter((m) => wanted.length === 0 || wanted.some((w) => m.name.includes(w)));
const editsOf = (m) => [{ file: m.file, from: m.from, to: m.to }, ...(m.and ?? [])];
const checkOf = (m) => m.test.replace(/^vm:/, "");

function run(program, args, seconds, cwd = copy) {
  const r = spawnSync(program, args, { cwd, encoding: "utf8", timeout: seconds * 1000, killSignal: "SIGKILL", maxBuffer: 64 << 20 });
  return { ok: r.status === 0, out: r.stdout ?? "", text: `${r.stdout ?? ""}${r.stderr ?? ""}${r.error?.message ?? ""}` };
}

function copyTree() {
  mkdirSync(copy, { recursive: true });
  const files = execFileSync("git", ["ls-files", "-z", "--cached", "--others", "--exclude-standard"], { cwd: root, encoding: "utf8" }).split("\0");
  for (const old of ["src", "lib", "binding", "scripts", "dist", "build"]) rmSync(join(copy, old), { recursive: true, force: true });
  for (const name of files.filter((n) => n !== "" && existsSync(join(root, n)))) cpSync(join(root, name), join(copy, name), { preserveTimestamps: true });
  for (const dir of ["node_modules", "prebuilds"]) {
    rmSync(join(copy, dir), { recursive: true, force: true });
    cpSync(join(root, dir), join(copy, dir), { recursive: true, preserveTimestamps: true, verbatimSymlinks: true });
  }
  rmSync(stage, { recursive: true, force: true });
  mkdirSync(stage, { recursive: true });
  cpSync(join(project, "node_modules"), join(stage, "node_modules"), { recursive: true, verbatimSymlinks: true });
}

// Whether the compiled part is that of a weakened build.
let changed = true;

/** Builds what the files need and puts the result where the user of the lanes runs it. */
function build(files) {
  const native = files.some((f) => f.startsWith("src/"));
  if (native || changed) {
    const made = run("make", ["-s", "build/core/plain/agent_lane.node", "programs"], 400);
    if (!made.ok) return made;
    cpSync(join(copy, "build/core/plain/agent_lane.node"), join(copy, "prebuilds", platform, "agent_lane.node"));
    changed = native;
  }
  const made = run("scripts/build-ts", [], 180);
  if (!made.ok) return made;
  for (const part of ["dist", "prebuilds", "package.json"]) {
    rmSync(join(installed, part), { recursive: true, force: true });
    cpSync(join(copy, part), join(installed, part), { recursive: true });
  }
  if (process.getuid() === 0) execFileSync("chown", ["-R", `${user}:`, stage]);
  return made;
}

/** The answers of these checks, by id. */
function verify(checks, network) {
  const main = join(installed, "dist", "cli", "main.js");
  const r = run(join(root, "scripts", "weakened"), ["--as-lane-user", "timeout", "-k", "30", "600", "node", main, "verify", "--json", "--network", network, ...(home ? ["--home", home] : []), "--only", ...checks], 700, root);
  try {
    return Object.fromEntries(JSON.parse(r.out).findings.map((f) => [f.id, f]));
  } catch {
    console.log(r.text.slice(-2000));
    return {};
  }
}

copyTree();
const counts = { caught: 0, failed: [] };
// For scripts/generate-containment: what each build was last seen to do, so that a long run may be made in parts.
const kept = join(root, "build", "check", "weakened.json");
const rows = new Map(existsSync(kept) ? JSON.parse(readFileSync(kept, "utf8")).weakened.map((row) => [row.name, row]) : []);
function keep(row) {
  rows.set(row.name, row);
  mkdirSync(dirname(kept), { recursive: true });
  const weakened = list.map((m) => rows.get(m.name)).filter((r) => r !== undefined);
  writeFileSync(kept, JSON.stringify({ at: new Date().toISOString(), weakened }));
}
const say = (what, name, since, detail) => console.log(`${what.padEnd(7)} ${name} (${((Date.now() - since) / 1000).toFixed(0)} s)${detail}`);
let started = Date.now();
const built = build([]);
if (!built.ok) {
  console.log(built.text.slice(-3000));
  console.log("weakened: 0 passed, 1 failed, 0 skipped");
  process.exit(1);
}
const healthy = verify([...new Set(chosen.map(checkOf))], "none");
for (const id of new Set(chosen.map(checkOf))) {
  if (healthy[id]?.answer === "held") continue;
  counts.failed.push(`${id} without a fault`);
  say("BROKEN", id, started, `: without any fault it says ${healthy[id]?.answer ?? "nothing"}: ${healthy[id]?.seen ?? ""}`);
}
say("held", `${Object.keys(healthy).length} checks with nothing changed`, started, "");
for (const m of chosen) {
  started = Date.now();
  const edits = editsOf(m), texts = new Map(edits.map((e) => [e.file, readFileSync(join(copy, e.file), "utf8")]));
  const stale = edits.find((e) => texts.get(e.file).split(e.from).length !== 2);
  if (stale !== undefined) {
    counts.failed.push(m.name);
    say("stale", m.name, started, `: the old text is not once in ${stale.file}`);
    continue;
  }
  for (const e of edits) writeFileSync(join(copy, e.file), readFileSync(join(copy, e.file), "utf8").replace(e.from, () => e.to));
  const made = build(edits.map((e) => e.file));
  for (const [file, text] of texts) writeFileSync(join(copy, file), text);
  const found = made.ok ? verify([checkOf(m)], "none")[checkOf(m)] : undefined;
  const caught = found?.answer === (m.answer ?? "broken");
  keep({ name: m.name, check: checkOf(m), caught, answer: found?.answer ?? "nothing", seen: found?.seen ?? "" });
  if (caught) {
    counts.caught++;
    say("caught", m.name, started, `: ${checkOf(m)}: ${found.answer}: ${found.seen}`);
  } else {
    counts.failed.push(m.name);
    say("MISSED", m.name, started, made.ok ? `: ${checkOf(m)} says ${found?.answer ?? "nothing"}: ${found?.seen ?? ""} ${JSON.stringify(found?.details ?? [])}` : `: it does not compile\n${made.text.slice(-2000)}`);
  }
}
if (counts.failed.length > 0) console.log(`missed: ${counts.failed.join(", ")}`);
console.log(`weakened: ${counts.caught} passed, ${counts.failed.length} failed, 0 skipped`);
process.exitCode = counts.failed.length > 0 ? 1 : 0;
