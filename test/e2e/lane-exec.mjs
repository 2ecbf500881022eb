// SPDX-License-Identifier: Apache-2.0
// exec and interactiveExec on a real lane; tests of lane.test.mjs, which share one lane.
import assert from "node:assert/strict";
import { PassThrough } from "node:stream";
import { text } from "node:stream/consumers";
import { it } from "node:test";
import { fails, sha256 } from "./lib/lanes.mjs";

const failsWithin = (ms, promise) => Promise.race([promise, new Promise((_, no) => setTimeout(() => no(new Error(`not within ${ms} ms`)), ms).unref())]);

export function execTests(lane) {
  it("runs sh -c as user agent in the worktree, with the run's environment", async () => {
    const r = await lane().exec("pwd; id -un; echo $HOME; echo $RUN_VAR; echo out; echo err >&2");
    assert.deepEqual(r, { stdout: `${lane().worktreePath}\nagent\n/home/agent\nfrom the run\nout\n`, stderr: "err\n", exitCode: 0 });
  });

  it("sudo runs the whole command as root and keeps the environment", async () => {
    const r = await lane().exec("id -u && id -u; echo $HOME $USER $LOGNAME; echo $RUN_VAR", { sudo: true });
    assert.equal(r.stdout, "0\n0\n/root root root\nfrom the run\n");
  });

  it("honours cwd, and says so when it is missing", async () => {
    assert.equal((await lane().exec("pwd", { cwd: "/usr/lib" })).stdout, "/usr/lib\n");
    await fails("EXEC_FAILED", () => lane().exec("pwd", { cwd: "/no/such/place" }));
  });

  it("gives exit codes, and 128 + n for a signal", async () => {
    assert.equal((await lane().exec("exit 42")).exitCode, 42);
    assert.equal((await lane().exec("exit 255")).exitCode, 255);
    assert.equal((await lane().exec("no-such-command-here")).exitCode, 127);
    assert.equal((await lane().exec("kill -9 $$")).exitCode, 137);
    assert.equal((await lane().exec("kill -TERM $$")).exitCode, 143);
  });

  it("returns 5 MB of stdout byte-complete and untrimmed without onLine", async () => {
    const r = await lane().exec("printf '\\n  '; seq 1 700000; printf '  \\n\\n'");
    const expected = `\n  ${Array.from({ length: 700_000 }, (_, i) => i + 1).join("\n")}\n  \n\n`;
    assert.equal(r.stdout.length, expected.length);
    assert.equal(sha256(r.stdout), sha256(expected));
  });

  it("delivers 5 MB of stdin exactly, and EOF after an empty one", async () => {
    const stdin = "Grüße, 世界 – $`\"'\\\r\n".repeat(200_000);
    const r = await lane().exec("sha256sum | cut -d' ' -f1", { stdin });
    assert.ok(Buffer.byteLength(stdin) > 5_000_000);
    assert.equal(r.stdout.trim(), sha256(stdin));
    assert.equal((await lane().exec("wc -c", { stdin: "" })).stdout.trim(), "0");
    assert.equal((await lane().exec("wc -c")).stdout.trim(), "0");
  });

  it("does not fail when the command ignores its stdin", async () => {
    assert.equal((await lane().exec("exit 5", { stdin: "x".repeat(3_000_000) })).exitCode, 5);
  });

  it("calls onLine live, in order, stdout only, with the last unfinished line", async () => {
    const lines = [], times = [];
    const r = await lane().exec("echo line1; sleep 0.7; echo err >&2; printf 'line2\\r\\n'; echo 'é世'; printf tail", {
      onLine: (line) => { lines.push(line); times.push(Date.now()); },
    });
    assert.deepEqual(lines, ["line1", "line2", "é世", "tail"]);
    assert.ok(times[1] - times[0] > 400, `live: ${times[1] - times[0]} ms between the lines`);
    assert.equal(r.stderr, "err\n");
  });

  it("delivers 50000 lines before the promise resolves and keeps a tail of at least 64 KiB", async () => {
    let n = 0, wrong = 0;
    const r = await lane().exec("seq 1 50000", { onLine: (line) => { if (Number(line) !== ++n) wrong++; } });
    assert.deepEqual([n, wrong], [50_000, 0]);
    assert.ok(r.stdout.length >= 65_536 && r.stdout.trimEnd().endsWith("\n50000"), `${r.stdout.length} bytes of tail`);
  });

  it("an onLine that throws ends the command with CALLBACK_THREW, and this process lives", async () => {
    const error = await fails("CALLBACK_THREW", () => lane().exec("echo a; exec sleep 987", { onLine: () => { throw new TypeError("parser bug"); } }));
    assert.match(`${error.message} ${error.cause?.message ?? ""}`, /parser bug/);
    const left = await lane().exec("pgrep -f 'sleep 98[7]' || echo gone");
    assert.equal(left.stdout, "gone\n");
  });

  it("runs ten commands at once, each with its own streams", async () => {
    // Each waits for all ten, so one after another would never end.
    const meet = "touch here.$1; until [ $(ls here.* | wc -l) = 10 ]; do sleep 0.2; done";
    await lane().exec("mkdir -p /tmp/meet", { cwd: "/" });
    const command = (i) => `set -- ${i}; ${meet}; cat; echo e$1 >&2; exit $1`;
    const all = await failsWithin(60_000, Promise.all(Array.from({ length: 10 }, (_, i) => lane().exec(command(i), { stdin: `in${i}`, cwd: "/tmp/meet" }))));
    all.forEach((r, i) => assert.deepEqual(r, { stdout: `in${i}`, stderr: `e${i}\n`, exitCode: i }));
  });

  it("takes a command of 100 KiB", async () => {
    const r = await lane().exec(`printf %s '${"y".repeat(100 * 1024)}' | wc -c`);
    assert.equal(r.stdout.trim(), String(100 * 1024));
  });

  it("ends although a background child keeps stdout open", async () => {
    const r = await failsWithin(30_000, lane().exec("echo started; sleep 300 & exit 3"));
    assert.deepEqual([r.stdout, r.exitCode], ["started\n", 3]);
    await lane().exec("pkill -f 'sleep 30[0]'");
  });

  it("lets the worktree be removed and replaced while commands run", async () => {
    const wt = lane().worktreePath;
    const busy = lane().exec("sleep 1.5; echo still here", { cwd: wt });
    const r = await lane().exec(`mkdir -p "${wt}_clone" && touch "${wt}_clone/new" && rm -rf "${wt}" && mv "${wt}_clone" "${wt}" && ls "${wt}"`);
    assert.equal(r.stdout, "new\n", r.stderr);
    assert.equal((await lane().exec("pwd; ls")).stdout, `${wt}\nnew\n`);
    assert.equal((await busy).stdout, "still here\n");
  });

  it("interactiveExec works with pipes: stdin, stdout, stderr and the exit code", async () => {
    const stdin = new PassThrough(), stdout = new PassThrough(), stderr = new PassThrough();
    const session = lane().interactiveExec(["sh", "-c", 'while read -r l; do echo "got $l"; done; echo bye >&2; pwd; exit 6'], { stdin, stdout, stderr, cwd: "/usr" });
    stdin.write("one\n");
    setTimeout(() => stdin.end("two\n"), 300);
    const seen = Promise.all([text(stdout), text(stderr)]);
    assert.deepEqual(await session, { exitCode: 6 });
    stdout.end();
    stderr.end();
    assert.deepEqual(await seen, ["got one\ngot two\n/usr\n", "bye\n"]);
  });

  it("gives the program a terminal when stdin is one", async () => {
    const stdin = Object.assign(new PassThrough(), { isTTY: true }), stdout = new PassThrough();
    const session = lane().interactiveExec(["sh", "-c", "test -t 0 && test -t 1 && test -t 2 && stty size && exec cat"], { stdin, stdout, stderr: new PassThrough() });
    stdin.end("typed\n");
    assert.deepEqual(await session, { exitCode: 0 });
    stdout.end();
    assert.match(await text(stdout), /^(typed\r\n)?24 80\r\n(typed\r\n){1,2}$/);
  });
}
