// SPDX-License-Identifier: Apache-2.0
// Load on lanes, local or real: commands at once, each byte of which is known; thousands in a row; several processes.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

const TAIL = 65536; // what exec keeps of a command with onLine
// From nothing over a frame, a credit portion and a window to more than a window; every command meets all in turn.
const SIZES = [0, 1, 700, 5_000, 17_000, 40_000, 90_000, 280_000];
const LARGEST = Math.max(...SIZES);

const word = (...of) => `${of.join("-")}-${createHash("sha256").update(of.join()).digest("hex").slice(0, 24)}`;

/** Numbered lines that no other command has: bytes of another or from another place show. The last one may be cut. */
function pattern(name, bytes) {
  let text = "";
  for (let n = 1; text.length < bytes; n++) text += `${name} ${n}\n`;
  return text.slice(0, bytes);
}

/** Lie in files of the guest: what would make them there is slow where floating point is emulated. */
const patterns = (i) => ({ out: pattern(word("out", i), LARGEST), err: pattern(word("err", i), LARGEST) });

/** Command `i` of a round: what it does, and every byte that must come of it. All wait at the gate for all. */
function plan(round, i, dir, own) {
  const size = (shift) => SIZES[(i + round * 3 + shift) % SIZES.length];
  const out = own.out.slice(0, size(0));
  const stderr = own.err.slice(0, size(3));
  const name = word("own", round, i);
  const cwd = `${dir}/${i}`;
  const stdin = pattern(word("in\0é世", round, i), size(5));
  const command = `pwd; echo "$OWN"; echo >../arrived; : <../gate; echo >../arrived;
    head -c ${stderr.length} err >&2 & cat; head -c ${out.length} out; wait; exit ${i}`;
  const stdout = `${cwd}\n${name}\n${stdin}${out}`;
  return { name, cwd, command, stdin, lines: (i + round) % 2 === 1, exitCode: i, stdout, stderr };
}

// Keeps both pipes open for writing, so that nobody who comes late or leaves early is missed.
const gate = (count) => `all() { n=0; while [ $n -lt ${count} ]; do read -r x <&3; n=$((n + 1)); done; }
  exec 3<>arrived; all; exec 4<>gate; all; echo all`;

/** By the handle, which has no environment of a call's own; or past it, with one. The results are of one shape. */
async function start(lane, name, engine, p) {
  const lines = [];
  const { cwd, stdin } = p;
  if (engine === undefined) {
    const onLine = p.lines ? (line) => lines.push(line) : undefined;
    return { ...(await lane.exec(`OWN=${p.name}; ${p.command}`, { cwd, stdin, onLine })), lines };
  }
  const batches = [];
  const onLines = (data) => {
    batches.push(Buffer.from(data));
    engine.taken(request.id, 1, data.length);
  };
  const mode = p.lines ? "lines" : "whole";
  const params = { lane: name, command: p.command, cwd, env: { OWN: p.name }, mode, stdin: Buffer.from(stdin) };
  const request = engine.start("exec", params, { onLines });
  const { stdout, stderr, exitCode } = await request.done;
  lines.push(...Buffer.concat(batches).toString().split("\n").slice(0, -1));
  return { stdout: stdout.toString(), stderr: stderr.toString(), exitCode, lines };
}

/** Where two texts part, with what stands there: it shows whose bytes came instead. */
function difference(what, got, want) {
  if (got === want) return [];
  let at = 0;
  while (at < got.length && got[at] === want[at]) at++;
  const show = (text) => JSON.stringify(text.slice(at, at + 60));
  return [`${what}: ${got.length} characters, not ${want.length}; at ${at} ${show(got)}, not ${show(want)}`];
}

/** The text that lines were made of: each ended, the last one too. */
const ended = (text) => (text === "" || text.endsWith("\n") ? text : `${text}\n`);
const joined = (lines) => lines.map((line) => `${line}\n`).join("");
// A tail may begin inside a character, the rest of which is left out.
const whole = (text) => text.replace(/^\ufffd+/, "");
const lastBytes = (text) => whole(Buffer.from(text).subarray(-TAIL).toString());

function faultsOf(p, r) {
  const faults = difference("exit code", String(r.exitCode), String(p.exitCode));
  if (!p.lines)
    return [...faults, ...difference("stdout", r.stdout, p.stdout), ...difference("stderr", r.stderr, p.stderr)];
  faults.push(...difference("lines", joined(r.lines), ended(p.stdout)));
  faults.push(...difference("tail", whole(r.stdout), lastBytes(ended(p.stdout).slice(0, -1))));
  return [...faults, ...difference("stderr's tail", r.stderr, lastBytes(p.stderr))];
}

/**
 * `rounds` times `count` commands at once, each with a directory, a word in its environment and a stdin of its own.
 * Gives what was wrong, the number of commands, the bytes compared, and a digest of what came beside that of what
 * should have come.
 */
export async function overlap(lane, { name, engine, rounds = 40, count = 25, dir = `${lane.worktreePath}/overlap` }) {
  const faults = [];
  const [came, should] = [createHash("sha256"), createHash("sha256")];
  let bytes = 0;
  const own = Array.from({ length: count }, (_, i) => patterns(i));
  const folders = own.map((_, i) => `${dir}/${i}`).join(" ");
  await lane.exec(`mkdir -p ${folders} && mkfifo ${dir}/arrived ${dir}/gate`);
  const keep = (i, file, stdin) => lane.exec(`cat >${file}`, { cwd: `${dir}/${i}`, stdin });
  await Promise.all(own.flatMap(({ out, err }, i) => [keep(i, "out", out), keep(i, "err", err)]));
  for (let round = 0; round < rounds; round++) {
    const plans = own.map((files, i) => plan(round, i, dir, files));
    const [all, ...results] = await Promise.all([
      lane.exec(gate(count), { cwd: dir }),
      ...plans.map((p, i) => start(lane, name, (i >> 1) % 2 === 1 ? engine : undefined, p)),
    ]);
    if (all.stdout !== "all\n") faults.push(`round ${round}: the gate said ${all.stdout}`);
    plans.forEach((p, i) => {
      const r = results[i];
      const stdout = p.lines ? joined(r.lines) : r.stdout;
      came.update(stdout).update(r.stderr);
      should.update(p.lines ? ended(p.stdout) : p.stdout).update(p.lines ? lastBytes(p.stderr) : p.stderr);
      for (const text of [stdout, r.stderr, p.stdin]) bytes += Buffer.byteLength(text);
      faults.push(...faultsOf(p, r).map((fault) => `round ${round}, command ${i}: ${fault}`));
    });
  }
  await lane.exec(`rm -rf ${dir}`, { cwd: "/" });
  return { faults, execs: rounds * count, bytes, came: came.digest("hex"), should: should.digest("hex") };
}

const HOLDS = "grep -E '^(VmRSS|Threads):' /proc/$PPID/status; echo descriptors: $(ls /proc/$PPID/fd | wc -l)";

function read(text) {
  const number = (name) => Number(new RegExp(`^${name}:\\s+(\\d+)`, "m").exec(text)?.[1]);
  return { descriptors: number("descriptors"), threads: number("Threads"), residentKiB: number("VmRSS") };
}

/** What the lane agent holds, as the parent of every command. */
async function agentHolds(lane, sudo) {
  const r = await lane.exec(HOLDS, { sudo });
  if (r.exitCode !== 0) throw new Error(`the agent's /proc cannot be read: ${r.stderr}`);
  return read(r.stdout);
}

// Newer V8 (Node 22) keeps the 256 KiB pages of a shrunk heap in a pool, tens of megabytes that no statistic of the heap
// counts; only the collection of last resort gives them back. In older V8, which has no such pool and does not know the
// word, the plain collection frees more; so both are done.
const EVERYTHING = { type: "major", execution: "sync", flavor: "last-resort" };

/** What this process holds once it is at rest: freed memory is given back late. */
async function selfHolds(gc) {
  let least;
  for (let i = 0; i < 10; i++) {
    for (let k = 0; k < 4; k++) {
      gc(EVERYTHING);
      gc();
    }
    const descriptors = readdirSync("/proc/self/fd").length;
    const now = read(`${readFileSync("/proc/self/status", "utf8")}\ndescriptors: ${descriptors}\n`);
    now.heapKiB = Math.round(process.memoryUsage().heapUsed / 1024);
    if (least) for (const kind of ["residentKiB", "heapKiB"]) now[kind] = Math.min(now[kind], least[kind]);
    least = now;
    await sleep(100);
  }
  return least;
}

/** One command of each kind that a lane meets, in turn; true when it ended as it should. */
async function one(lane, n) {
  const lines = [];
  const onLine = (line) => lines.push(line);
  const expect = async (work, ok) => ok(await work.catch((e) => e));
  const fail = () => {
    throw new Error("as planned");
  };
  switch (n % 20) {
    case 1:
    case 11:
      return expect(lane.exec("cat", { stdin: `${n}` }), (r) => r.stdout === `${n}`);
    case 3:
    case 13:
      return expect(lane.exec(`echo ${n}; echo b`, { onLine }), () => lines.join() === `${n},b`);
    case 5:
      return expect(lane.exec("true", { cwd: "/no/such/place" }), (r) => r.code === "EXEC_FAILED");
    case 15:
      return expect(lane.exec("echo a; exec sleep 60", { onLine: fail }), (r) => r.code === "CALLBACK_THREW");
    case 7:
      return expect(lane.exec(`echo ${n} >&2; exit 7`), (r) => r.exitCode === 7 && r.stderr === `${n}\n`);
    default:
      return expect(lane.exec(`echo ${n}`), (r) => r.stdout === `${n}\n`);
  }
}

/** `total` commands, some at a time, on one lane; what this process and the agent hold after `first` and at the end. */
export async function many(lane, { total, first, together = 8, sudo = false, gc }) {
  let wrong = 0;
  let n = 0;
  const started = Date.now();
  const upTo = async (end) => {
    const worker = async () => {
      while (n < end) if (!(await one(lane, n++))) wrong++;
    };
    await Promise.all(Array.from({ length: together }, worker));
    return { after: end, self: await selfHolds(gc), agent: await agentHolds(lane, sudo) };
  };
  const samples = { first: await upTo(first), last: await upTo(total) };
  return { wrong, total: n, seconds: (Date.now() - started) / 1000, ...samples };
}

/**
 * What grew between the two samples of `many` and should not have. The heap: V8 keeps under a megabyte of its own
 * between collections. The process: freed blocks do not fit together as well as at first, which comes to rest after some
 * 3000 commands (with one malloc arena; with one for each thread seven megabytes higher). So 9000 commands show a leak
 * of 120 bytes each in JavaScript and of 350 in C; the agent has no heap, and gives the pages of a stream back.
 */
export function growth({ first, last }) {
  const grown = [];
  const compare = (who, kind, most) => {
    const [from, to] = [first[who][kind], last[who][kind]];
    if (!(to - from <= most)) grown.push(`${who}: ${kind} from ${from} to ${to}`);
  };
  for (const who of ["self", "agent"]) for (const kind of ["descriptors", "threads"]) compare(who, kind, 0);
  compare("self", "heapKiB", 1024);
  compare("self", "residentKiB", 3072);
  compare("agent", "residentKiB", 256);
  return grown;
}

/**
 * One of several processes with `count` lanes each: says a lane's name once a command runs in it; when `go` is true,
 * which is when all lanes of all processes were heard, ends these commands from outside and runs some whose every byte
 * is known. Gives what was wrong.
 */
export async function oneOfSeveral(create, { count, say, go, engine, rounds = 2, commands = 6 }) {
  const one = async () => {
    let name;
    const lane = await create({ onEvent: (event) => (name = event.lane ?? name) });
    return { lane, name };
  };
  const lanes = await Promise.all(Array.from({ length: count }, one));
  const faults = [];
  const work = async ({ lane, name }) => {
    const dir = `${lane.worktreePath}/${name}`;
    await lane.exec(`mkdir ${dir}`);
    const onLine = (line) => line === "here" && say(name);
    const held = lane.exec("echo here; until [ -e go ]; do sleep 0.1; done; cat", { cwd: dir, stdin: name, onLine });
    while (!go()) await sleep(50);
    await lane.exec("touch go", { cwd: dir });
    faults.push(...difference(name, (await held).stdout, `here\n${name}`));
    const more = await overlap(lane, { name, engine, rounds, count: commands, dir: `${dir}/overlap` });
    faults.push(...more.faults);
  };
  await Promise.all(lanes.map(work));
  await Promise.all(lanes.map(({ lane }) => lane.close()));
  return faults;
}
