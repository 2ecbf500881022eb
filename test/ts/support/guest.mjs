// SPDX-License-Identifier: Apache-2.0
// The lane agent's side of the channel in JavaScript, written from docs/PROTOCOL.md: commands run on this machine, as
// this user. It copies nothing.
import { spawn } from "node:child_process";
import { createHmac, randomBytes } from "node:crypto";
import { statSync } from "node:fs";

const F = {
  HELLO: 1,
  HELLO_ACK: 2,
  CONFIG: 4,
  CONFIG_ACK: 5,
  ACK: 6,
  PING: 7,
  PONG: 8,
  CLOCK: 9,
  EXEC: 16,
  DATA: 20,
  END: 21,
  CREDIT: 22,
  SIGNAL: 23,
  EXIT: 25,
  RESET: 26,
  CANCEL: 27,
};
const WINDOW = 262144;
const PACING = 131072;
const CHUNK = 16384;
const TAGS = { 1: "arg", 2: "env", 3: "cwd", 4: "user", 5: "flags", 7: "path" };

function tlvs(payload) {
  const out = { arg: [], env: [] };
  for (let at = 0; at < payload.length;) {
    const tag = TAGS[payload.readUInt16LE(at)];
    const value = payload.subarray(at + 6, (at += 6 + payload.readUInt32LE(at + 2)));
    if (tag === "flags") out.flags = value.readUInt32LE(0);
    else if (Array.isArray(out[tag])) out[tag].push(value.toString());
    else if (tag) out[tag] = value.toString();
  }
  return out;
}

class Guest {
  constructor(output, secret, scenario) {
    Object.assign(this, {
      output,
      secret,
      scenario,
      received: 0,
      sent: 0,
      acked: 0,
      queue: [],
      streams: new Map(),
      gone: new Set(),
    });
  }

  frame(stream, type, flags = 0, payload = Buffer.alloc(0)) {
    const header = Buffer.alloc(12);
    header.writeUInt32LE(stream, 0);
    header[4] = type;
    header[5] = flags;
    header.writeUInt32LE(payload.length, 8);
    return Buffer.concat([header, payload]);
  }

  send(...frame) {
    if (this.gone.has(frame[0])) return; // it has said EXIT, or the host has reset it
    this.queue.push(this.frame(...frame));
    this.flush();
  }

  flush() {
    while (this.queue.length > 0 && this.sent - this.acked + this.queue[0].length <= PACING) {
      const bytes = this.queue.shift();
      this.sent += bytes.length;
      this.output.write(bytes);
    }
    if (this.queue.length === 0) for (const s of this.streams.values()) s.pump();
  }

  ack() {
    const n = Buffer.alloc(8);
    n.writeBigUInt64LE(BigInt(this.received));
    this.output.write(this.frame(0, F.ACK, 0, n));
  }

  on(stream, type, flags, p) {
    const s = this.streams.get(stream);
    switch (type) {
      case F.HELLO:
        return this.hello(p);
      case F.CONFIG:
        return this.config();
      case F.ACK:
        this.acked = Number(p.readBigUInt64LE(0));
        return this.flush();
      case F.PING:
        return this.send(0, F.PONG, 0, p);
      case F.EXEC:
        return this.exec(stream, flags, p);
      case F.DATA:
        return s?.input(p);
      case F.END:
        return s?.end();
      case F.CREDIT:
        return s?.credit(flags, p.readUInt32LE(0));
      case F.SIGNAL:
        return s?.kill(p.readUInt32LE(0));
      case F.CANCEL:
        s?.kill(15);
        setTimeout(() => s?.kill(9), p.readUInt32LE(0)).unref();
        return undefined;
      case F.CLOCK:
        return undefined;
      case F.RESET:
        s?.kill(9);
        this.streams.delete(stream);
        this.gone.add(stream);
        this.queue = this.queue.filter((bytes) => bytes.readUInt32LE(0) !== stream);
        return undefined;
      default:
        throw new Error(`frame type ${type}`);
    }
  }

  /**
   * What `hello` of the scenario may be: "mute", "die", "garbage", "old", "short", "replay", "huge", "config"; none: a
   * good answer.
   */
  hello(p) {
    const nonce = randomBytes(32);
    const secret = this.scenario.impostor ? randomBytes(32) : this.secret;
    const mac = createHmac("sha256", secret)
      .update("agent-lane proof 1")
      .update(p.subarray(8, 40))
      .update(nonce)
      .digest();
    const head = Buffer.from("ALCH\x01\0\0\0\0\0", "latin1");
    const good = Buffer.concat([head, nonce, mac, Buffer.from("scripted")]);
    switch (this.scenario.hello) {
      case "mute":
        return undefined;
      case "die":
        return process.exit(1);
      case "garbage":
        return this.output.write(randomBytes(4096));
      case "old": // REJECT: no common version
        return this.send(0, 3, 0, Buffer.from([2, 0, 0, 0]));
      case "short":
        return this.send(0, F.HELLO_ACK, 0, good.subarray(0, 60));
      case "replay": // the host's own nonce and a proof of nothing
        return this.send(
          0,
          F.HELLO_ACK,
          0,
          Buffer.concat([head, p.subarray(8, 40), Buffer.alloc(32), Buffer.from("scripted")]),
        );
      case "huge":
        return this.output.write(Buffer.from([0, 0, 0, 0, F.HELLO_ACK, 0, 0, 0, 0xff, 0xff, 0xff, 0x7f]));
      case "config": // as if it had proven itself already
        return this.send(0, F.CONFIG_ACK, 0, Buffer.alloc(4));
      default:
        return this.send(0, F.HELLO_ACK, 0, good);
    }
  }

  /** What `config` of the scenario may be: "mute", "die", "garbage", "refuse", "twice". */
  config() {
    const errno = Buffer.alloc(4);
    switch (this.scenario.config) {
      case "mute":
        return undefined;
      case "die":
        return process.exit(1);
      case "garbage":
        return this.output.write(randomBytes(4096));
      case "refuse":
        errno.writeUInt32LE(17);
        return this.send(0, F.CONFIG_ACK, 0, Buffer.concat([errno, Buffer.from("the worktree is a file")]));
      case "twice":
        this.send(0, F.CONFIG_ACK, 0, errno);
        return this.send(0, F.CONFIG_ACK, 0, errno);
      default:
        return this.send(0, F.CONFIG_ACK, 0, errno);
    }
  }

  exit(stream, kind, value, length = 0, text = "") {
    const p = Buffer.alloc(24);
    p.writeUInt32LE(kind, 0);
    p.writeUInt32LE(value, 4);
    p.writeBigUInt64LE(1000000n, 8);
    p.writeBigUInt64LE(BigInt(length), 16);
    this.send(stream, F.EXIT, 0, Buffer.concat([p, Buffer.from(text)]));
    this.streams.delete(stream);
    this.gone.add(stream);
  }

  /** An output of a stream: sends within the credit, pauses its source when there is none. */
  outlet(stream, sub, source, onEnd) {
    const outlet = { window: WINDOW, held: [], ended: false, done: false };
    source.on("data", (chunk) => {
      outlet.held.push(chunk);
      source.pause();
      outlet.pump();
    });
    source.on("end", () => {
      outlet.ended = true;
      outlet.pump();
    });
    outlet.pump = () => {
      while (outlet.held.length > 0 && outlet.window > 0 && this.queue.length === 0) {
        const chunk = outlet.held.shift();
        const n = Math.min(chunk.length, outlet.window, CHUNK);
        if (n < chunk.length) outlet.held.unshift(chunk.subarray(n));
        outlet.window -= n;
        this.send(stream, F.DATA, sub, chunk.subarray(0, n));
      }
      if (outlet.held.length > 0) return;
      source.resume();
      if (!outlet.ended || outlet.done) return;
      outlet.done = true;
      this.send(stream, F.END, sub);
      onEnd();
    };
    return outlet;
  }

  exec(stream, flags, p) {
    const parts = (this.opening ??= new Map()).get(stream) ?? [];
    parts.push(p);
    if (flags & 1) return void this.opening.set(stream, parts);
    this.opening.delete(stream);
    const req = tlvs(Buffer.concat(parts));
    try {
      if (!statSync(req.cwd).isDirectory()) throw new Error("not a directory");
    } catch {
      return this.exit(stream, 2, 2, 0, `cwd ${req.cwd}: No such file or directory`);
    }
    if (this.scenario.crumbs) return this.crumbs(stream, this.scenario.crumbs);
    const withStdin = (req.flags ?? 0) & 1;
    const child = spawn(req.arg[0], req.arg.slice(1), {
      cwd: req.cwd,
      detached: true,
      stdio: [withStdin ? "pipe" : "ignore", "pipe", "pipe"],
      env: {
        PATH: "/usr/local/bin:/usr/bin:/bin",
        HOME: "/nonexistent",
        ...Object.fromEntries(req.env.map((e) => [e.slice(0, e.indexOf("=")), e.slice(e.indexOf("=") + 1)])),
        SCRIPTED_USER: req.user,
      },
    });
    let left = 3;
    let status;
    const one = () => {
      if (--left === 0) this.exit(stream, status.signal ? 1 : 0, status.value);
    };
    child.on("error", (e) => this.exit(stream, 2, 2, 0, e.message));
    child.on("exit", (code, signal) => {
      status = { signal, value: signal ? (SIGNALS[signal] ?? 9) : code };
      one();
    });
    child.stdin?.on("error", () => undefined);
    const outlets = { 1: this.outlet(stream, 1, child.stdout, one), 2: this.outlet(stream, 2, child.stderr, one) };
    this.streams.set(stream, {
      pump: () => {
        outlets[1].pump();
        outlets[2].pump();
      },
      input: (data) =>
        child.stdin.write(data, () => {
          const n = Buffer.alloc(4);
          n.writeUInt32LE(data.length);
          if (this.streams.has(stream)) this.send(stream, F.CREDIT, 0, n);
        }),
      end: () => child.stdin.end(),
      credit: (sub, n) => {
        outlets[sub].window += n;
        outlets[sub].pump();
      },
      kill: (signo) => {
        try {
          process.kill(-child.pid, signo);
        } catch {
          /* it is gone */
        }
      },
    });
  }

  /** The output of a guest that means harm: empty lines, each in a frame of its own. */
  crumbs(stream, count) {
    const thousand = Buffer.concat(Array(1000).fill(this.frame(stream, F.DATA, 1, Buffer.from("\n"))));
    for (let i = 0; i < count; i += 1000) this.queue.push(thousand);
    for (const sub of [1, 2]) this.send(stream, F.END, sub);
    this.exit(stream, 0, 0);
  }
}

const SIGNALS = { SIGHUP: 1, SIGINT: 2, SIGKILL: 9, SIGPIPE: 13, SIGTERM: 15 };

/** Speaks until the owner closes the channel, then kills what still runs. */
export function serve(input, output, secret, scenario) {
  const guest = new Guest(output, secret, scenario);
  let rest = Buffer.alloc(0);
  input.on("data", (chunk) => {
    if (scenario.mute) return;
    rest = rest.length > 0 ? Buffer.concat([rest, chunk]) : chunk;
    let read = 0;
    while (rest.length >= 12 && rest.length >= 12 + rest.readUInt32LE(8)) {
      const n = rest.readUInt32LE(8);
      const [stream, type, flags, payload] = [
        rest.readUInt32LE(0),
        rest[4],
        rest[5],
        Buffer.from(rest.subarray(12, 12 + n)),
      ];
      rest = rest.subarray(12 + n);
      if (type !== F.ACK) read += 12 + n;
      guest.on(stream, type, flags, payload);
    }
    guest.received += read;
    if (read > 0) guest.ack();
  });
  input.on("end", () => {
    for (const s of guest.streams.values()) s.kill(9);
    process.exit(0);
  });
  if (scenario.dieAfterMs) setTimeout(() => process.exit(1), scenario.dieAfterMs);
}
