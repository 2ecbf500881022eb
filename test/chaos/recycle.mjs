// SPDX-License-Identifier: Apache-2.0
// Root's part of the decoys: recycle.mjs SOCKET UID GID. "take PID" starts a process of that user which gets this pid
// (ns_last_pid), "drop PID" ends it; the answer is "ok" or why not. Only pids that nobody has are given away.
import { spawn } from "node:child_process";
import { chownSync, existsSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";

const [socket, uid, gid] = [process.argv[2], Number(process.argv[3]), Number(process.argv[4])];
const strangers = new Map();

function take(pid) {
  for (let attempt = 0; attempt < 40; attempt++) {
    if (existsSync(`/proc/${pid}`)) return "somebody has it";
    writeFileSync("/proc/sys/kernel/ns_last_pid", String(pid - 1));
    const child = spawn("/bin/sleep", ["300"], { uid, gid, stdio: "ignore", cwd: "/" });
    if (child.pid === pid) {
      strangers.set(pid, child);
      return "ok";
    }
    child.kill("SIGKILL"); // another process was quicker
  }
  return "it was always somebody else's turn";
}

const server = createServer((s) => {
  s.on("error", () => undefined);
  s.once("data", (line) => {
    const [verb, n] = line.toString().trim().split(" ");
    let answer = "what?";
    if (verb === "take" && Number(n) > 300 && Number.isInteger(Number(n))) answer = take(Number(n));
    if (verb === "drop") answer = strangers.get(Number(n))?.kill("SIGKILL") ? "ok" : "none of mine";
    if (verb === "drop") strangers.delete(Number(n));
    s.end(answer);
  });
});
server.listen(socket, () => chownSync(socket, uid, gid));
const end = () => {
  for (const child of strangers.values()) child.kill("SIGKILL");
  process.exit(0);
};
for (const signal of ["SIGTERM", "SIGINT", "SIGHUP"]) process.on(signal, end);
