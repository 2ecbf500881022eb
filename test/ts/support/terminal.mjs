// SPDX-License-Identifier: Apache-2.0
// For scripts of a Stage: a program on a real pseudo-terminal, driven by a small Python process that keeps the terminal when the program is gone.

/** Commands on stdin, one JSON array a line; events on stdout, one JSON object a line. The terminal's settings come with each end and stop. */
const DRIVER = `
import fcntl, json, os, pty, select, signal, struct, sys, termios
rows, columns, argv = json.loads(sys.argv[1])
def say(**event):
    sys.stdout.write(json.dumps(event) + "\\n")
    sys.stdout.flush()
def settings():
    a = termios.tcgetattr(slave)
    return [str(x) for x in a[:4]] + [b.hex() if isinstance(b, bytes) else str(b) for b in a[6]]
def resize(r, c):
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", r, c, 0, 0))
master, slave = pty.openpty()
resize(rows, columns)
before = settings()
pid = os.fork()
if pid == 0:
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    for fd in range(3): os.dup2(slave, fd)
    os.execvp(argv[0], argv)
say(pid=pid, before=before)
def output(wait):
    while select.select([master], [], [], wait)[0]:
        say(out=os.read(master, 65536).decode("latin1"))
pending = b""
while True:
    ready = select.select([0, master], [], [], 0.02)[0]
    if master in ready: output(0)
    if 0 in ready:
        chunk = os.read(0, 65536)
        if not chunk:
            os.kill(pid, signal.SIGKILL)
            os._exit(0)
        pending += chunk
        *lines, pending = pending.split(b"\\n")
        for line in lines:
            what, *rest = json.loads(line)
            if what == "type": os.write(master, rest[0].encode())
            elif what == "resize": resize(*rest)
            elif what == "signal": os.kill(pid, getattr(signal, rest[0]))
            elif what == "settings": say(settings=settings())
    done, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
    if done == 0: continue
    output(0.05)
    if os.WIFSTOPPED(status): say(stopped=settings())
    elif os.WIFCONTINUED(status): say(continued=True)
    else:
        say(ended=settings(), code=os.WTERMSIG(status) + 128 if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))
        os._exit(0)
`;

/** `new Pty(rows, columns, argv)`; `inner(script)` is the argv of a Node with the Stage's prelude; `until(check)` waits. */
export const PTY_KIT = `
  import { spawn } from "node:child_process";
  const patience = 60000;
  async function until(what, check) {
    for (const end = Date.now() + patience; ;) {
      const value = await check();
      if (value) return value;
      if (Date.now() > end) throw new Error("waited in vain for " + what());
      await new Promise((ok) => setTimeout(ok, 10));
    }
  }
  const inner = (script) => [process.execPath, "--input-type=module", "-e",
    "import { lima } from " + JSON.stringify(PACKAGE) + "; const OPTIONS = " + JSON.stringify(OPTIONS) + ";"
    + "const create = (o = {}) => lima({ ...OPTIONS, ...o }).create({ env: {} });"
    + "const io = { stdin: process.stdin, stdout: process.stdout, stderr: process.stderr };" + script];
  class Pty {
    out = ""; events = [];
    constructor(rows, columns, argv, env = {}) {
      this.driver = spawn("python3", ["-c", ${JSON.stringify(DRIVER)}, JSON.stringify([rows, columns, argv])],
        { stdio: ["pipe", "pipe", "inherit"], env: { ...process.env, ...env } });
      let rest = "";
      this.driver.stdout.setEncoding("utf8").on("data", (text) => {
        const lines = (rest + text).split("\\n");
        rest = lines.pop();
        for (const line of lines) {
          const event = JSON.parse(line);
          if (event.out !== undefined) this.out += event.out;
          else this.events.push(event);
        }
      });
      this.driver.stdin.on("error", () => undefined);
    }
    #send(...what) { this.driver.stdin.write(JSON.stringify(what) + "\\n"); }
    type(text) { this.#send("type", text); }
    resize(rows, columns) { this.#send("resize", rows, columns); }
    signal(name) { this.#send("signal", name); }
    /** Waits for text of the output, which counts as read then. */
    async sees(text) {
      await until(() => JSON.stringify(text) + " in " + JSON.stringify(this.out), () => this.out.includes(text));
      this.out = this.out.slice(this.out.indexOf(text) + text.length);
    }
    async event(name) {
      const i = await until(() => name + ", got " + JSON.stringify(this.events) + this.out, () => this.events.findIndex((e) => e[name] !== undefined) + 1);
      return this.events.splice(i - 1, 1)[0];
    }
    async settings() { this.#send("settings"); return (await this.event("settings")).settings; }
  }
  // ECHO, ICANON and ISIG of the local modes.
  const isRaw = (settings) => (Number(settings[3]) & (8 | 2 | 1)) === 0;
`;
