// SPDX-License-Identifier: Apache-2.0
// Commands that do what they can to outlive their end, on a real lane: after a cancel the guest's processes are what they were before.
// And what needs a real kernel besides: limits and want of memory. Frozen guests are in stillness.mjs.
import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { fails, openLane } from "./lib/lanes.mjs";

// perl's syscall(): prctl(PR_SET_CHILD_SUBREAPER, 1) on x86-64 and arm64.
const SUBREAPER = `perl -e 'my $n = qx(uname -m) =~ /aarch64/ ? 167 : 157; syscall($n, 36, 1, 0, 0, 0) == 0 or die; if (fork) { print "up\\n"; $| = 1; print ""; sleep 300 } else { exec "sh", "-c", "setsid sh -c \\"sleep 300 & sleep 300 &\\""; }'`;
const ROWS = [
  ["sleep", "echo up; sleep 300"],
  ["setsid", "setsid sleep 300 & setsid sh -c 'sleep 300; sleep 300' & echo up; sleep 300"],
  ["double fork", "(setsid sh -c 'sleep 300 & sleep 300 & exit' >/dev/null 2>&1 &); echo up; sleep 300"],
  ["nohup", "nohup sleep 300 >/dev/null 2>&1 & echo up; exec sleep 300"],
  ["ignoring SIGTERM", "trap '' TERM HUP INT; echo up; while :; do sleep 1; done", { killGraceMs: 1000 }],
  ["a deaf child of an obedient command", "sh -c \"trap '' TERM; while :; do sleep 1; done\" >/dev/null 2>&1 & echo up; exec sleep 300", { killGraceMs: 1000 }],
  ["a pipeline", "echo up; yes | tr y n | grep -v x | wc -l"],
  ["a subreaper", SUBREAPER],
  ["stopped", "echo up; sleep 300 & kill -STOP $!; kill -STOP $$"],
  ["a fork bomb under a process limit", "echo up; exec perl -e 'fork while 1'", { limits: { processes: 30, cpus: 0.5 }, killGraceMs: 1000 }],
  ["root", "echo up; setsid sleep 300 & exec sleep 300", { sudo: true }],
];

describe("whatever a command starts ends with it", { concurrency: false }, () => {
  const rows = [];
  let lane;

  before(async () => {
    lane = await openLane();
    // What the boot has started and not ended yet is not ours to explain.
    for (let last = ""; last !== (last = String(await processes())); ) await new Promise((resolve) => setTimeout(resolve, 3000));
  }, { timeout: 300_000 });
  after(() => {
    console.log(JSON.stringify({ name: "kill-matrix", rows }));
    return lane?.close();
  }, { timeout: 60_000 });

  /**
   * pid and name of every process but the kernel's threads, those of this very look, and Lima's own logins, which come and go: a
   * command's processes are never below an sshd, except by way of the lane agent.
   */
  async function processes() {
    const r = await lane.exec("exec ps -eo pid=,ppid=,comm=", { cwd: "/" });
    const all = new Map(r.stdout.split("\n").map((l) => l.trim().split(/\s+/)).filter(([, , comm]) => comm).map(([pid, ppid, comm]) => [pid, { ppid, comm }]));
    const ours = (pid) => {
      for (let p = pid; all.has(p); p = all.get(p).ppid) {
        if (all.get(p).comm === "agent") return true;
        if (all.get(p).comm === "sshd" || p === "2") return false;
      }
      return true;
    };
    return [...all].filter(([pid, { comm }]) => comm !== "ps" && ours(pid)).map(([pid, { comm }]) => `${pid} ${comm}`).sort();
  }

  for (const [what, command, options = {}] of ROWS) {
    it(`${what}: ended by its caller's signal`, { timeout: 120_000 }, async () => {
      const before = await processes();
      const control = new AbortController();
      let up;
      const started = new Promise((resolve) => (up = resolve));
      const call = fails("ABORTED", () => lane.exec(command, { cwd: "/", signal: control.signal, onLine: (l) => l === "up" && up(), ...options }));
      await Promise.race([started, call]);
      await new Promise((resolve) => setTimeout(resolve, 1500)); // so that it is in the midst of what it does
      const during = (await processes()).length;
      assert.ok(during > before.length, "it runs");
      const t = Date.now();
      control.abort(new Error("enough"));
      const error = await call;
      const ms = Date.now() - t;
      assert.equal(error.cause.message, "enough");
      assert.match(error.stdout, /^up/);
      assert.deepEqual(await processes(), before);
      rows.push({ what, processes: during - before.length, exitCode: error.exitCode, ms });
    });
  }

  it("ends a command by its time, with what it said until then", { timeout: 60_000 }, async () => {
    const before = await processes();
    // SIGTERM is for the whole tree, so the shell sees its sleep end too, and says so, unless it was between two of them.
    const error = await fails("TIMEOUT", () => lane.exec("setsid sleep 300 & echo out; echo err >&2; trap 'echo last; exit 3' TERM; while :; do sleep 0.2; done", { timeoutMs: 4000, cwd: "/" }));
    assert.deepEqual([error.stdout, error.exitCode], ["out\nlast\n", 3]);
    assert.match(error.stderr, /^err\n(Terminated\n)?$/);
    assert.deepEqual(await processes(), before);
  });

  it("leaves daemons alone unless told otherwise", { timeout: 60_000 }, async () => {
    const before = await processes();
    const script = "setsid sleep 301 >/dev/null 2>&1 & echo started";
    assert.equal((await lane.exec(script, { cwd: "/", leaveDaemons: false })).stdout, "started\n");
    assert.deepEqual(await processes(), before);
    assert.equal((await lane.exec(script, { cwd: "/" })).stdout, "started\n");
    assert.equal((await processes()).length, before.length + 1);
    await lane.exec("pkill -f 'sleep 30[1]'");
    assert.deepEqual(await processes(), before);
  });

  it("holds a command to its processes, its memory and its CPUs", { timeout: 120_000 }, async () => {
    const file = (name) => `cat /sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup)/${name}`;
    const set = await lane.exec([file("pids.max"), file("memory.max"), file("cpu.max")].join("; "), { limits: { processes: 20, memoryBytes: 64 << 20, cpus: 0.25 } });
    assert.equal(set.stdout, `20\n${64 << 20}\n25000 100000\n`);
    const none = await lane.exec([file("pids.max"), file("memory.max"), file("cpu.max")].join("; "));
    assert.equal(none.stdout, "max\nmax\nmax 100000\n");
    const forks = await lane.exec("for i in $(seq 1 20); do sleep 2 & done 2>&1; wait", { limits: { processes: 10 }, cwd: "/" });
    assert.match(forks.stdout + forks.stderr, /fork/i);
    const throttled = "while :; do while read -r key n; do [ $key = nr_throttled ] && [ $n -gt 0 ] && exit 0; done <$stat; done";
    const busy = `stat=/sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup)/cpu.stat; ${throttled}`;
    assert.equal((await lane.exec(busy, { limits: { cpus: 0.1 }, timeoutMs: 30_000 })).exitCode, 0);
    await fails("TIMEOUT", () => lane.exec(busy, { limits: { processes: 20 }, timeoutMs: 1000 }));
    const fed = await lane.exec("echo up; head -c 200000000 /dev/zero | tail -c 150000000 | wc -c; echo not here", { limits: { memoryBytes: 32 << 20 } });
    assert.deepEqual(fed, { stdout: "up\n", stderr: "", exitCode: 137, oom: true });
    assert.equal("oom" in (await lane.exec("kill -9 $$")), false);
  });
});
