// SPDX-License-Identifier: Apache-2.0
// The process's end: what a signal or an exit does to lanes, in processes of their own.
import { spawn } from "node:child_process";
import { join } from "node:path";
import { describe, expect, it } from "vitest";

const exitModule = join(import.meta.dirname, "..", "..", "dist", "exit.js");

interface End {
  readonly code: number | null;
  readonly signal: string | null;
  readonly out: string;
}

// A guard on an engine that only says what is asked of it. `body` runs with `guard` and `release`.
function run(body: string, signal?: NodeJS.Signals): Promise<End> {
  const script = `
    import { ExitGuard } from ${JSON.stringify(exitModule)};
    const engine = { close(ms) { console.log("closed", ms); return 0; } };
    const guard = new ExitGuard(engine);
    const stay = setTimeout(() => console.log("timer"), 3000);
    ${body}
    console.log("up");`;
  const child = spawn(process.execPath, ["--input-type=module", "-e", script], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  return new Promise((resolve, reject) => {
    let out = "";
    let sent = false;
    child.stdout.on("data", (data: Buffer) => {
      out += data.toString();
      if (signal !== undefined && !sent && out.includes("up")) {
        sent = true;
        child.kill(signal);
      }
    });
    child.on("error", reject);
    child.on("close", (code, sig) => resolve({ code, signal: sig, out }));
  });
}

describe("with a lane", () => {
  it.each(["SIGINT", "SIGTERM", "SIGHUP"] as const)(
    "%s destroys it, then ends the process by that signal",
    async (signal) => {
      const end = await run("guard.hold();", signal);
      expect(end.out).toBe("up\nclosed 5000\n");
      expect(end.signal).toBe(signal);
    },
  );

  it("the process's own exit destroys it", async () => {
    const end = await run("guard.hold(); setTimeout(() => process.exit(3), 50);");
    expect(end.out).toContain("closed 2000");
    expect(end.code).toBe(3);
  });

  it("an uncaught exception destroys it too", async () => {
    const end = await run(
      "guard.hold(); process.on('uncaughtException', (e) => { console.log(e.message); process.exit(4); }); setTimeout(() => { throw new Error('bug'); }, 50);",
    );
    expect(end.out).toContain("bug\nclosed 2000");
    expect(end.code).toBe(4);
  });

  it("a signal that somebody else handles is theirs; the lane dies at their exit", async () => {
    const end = await run(
      "guard.hold(); process.on('SIGINT', () => { console.log('theirs'); process.exit(1); });",
      "SIGINT",
    );
    expect(end.out).toBe("up\ntheirs\nclosed 2000\n");
    expect(end.code).toBe(1);
  });

  it("a handler that is good for one signal is not cut short, though it is off the list when it runs", async () => {
    const end = await run(
      "process.once('SIGINT', () => { console.log('theirs'); setTimeout(() => { console.log('saved'); process.exit(5); }, 600); }); guard.hold();",
      "SIGINT",
    );
    expect(end.out).toBe("up\ntheirs\nsaved\nclosed 2000\n");
    expect(end.code).toBe(5);
  });

  it("does not wait for signal-exit, which waits for everybody else", async () => {
    // signal-exit 4 does this: one listener per signal, which acts only when no other listener is left.
    const signalExit = `globalThis[Symbol.for("signal-exit emitter")] = { count: 1 };
      process.on("SIGINT", () => { if (process.listeners("SIGINT").length === 1) { console.log("signal-exit"); process.exit(9); } });`;
    const end = await run(`${signalExit} guard.hold();`, "SIGINT");
    expect(end.out).toBe("up\nclosed 5000\nsignal-exit\nclosed 2000\n".replace("closed 2000\n", ""));
    expect(end.code).toBe(9);
  });

  it("two copies of the package do not wait for each other", async () => {
    const end = await run(
      "guard.hold(); new ExitGuard({ close(ms) { console.log('second', ms); return 0; } }).hold();",
      "SIGTERM",
    );
    expect(end.out.split("\n").sort()).toEqual(["", "closed 5000", "second 5000", "up"]);
    expect(end.signal).toBe("SIGTERM");
  });

  it("what waits for a create has time to hear of the interruption", async () => {
    const end = await run(
      "guard.hold(); const c = engine.close; engine.close = (ms) => { c(ms); setTimeout(() => console.log('INTERRUPTED'), 20); };",
      "SIGINT",
    );
    expect(end.out).toContain("INTERRUPTED");
    expect(end.signal).toBe("SIGINT");
  });
});

describe("without a lane", () => {
  it.each([
    ["never one", ""],
    ["none any more", "const a = guard.hold(), b = guard.hold(); a(); a(); b();"],
  ])("(%s) a signal ends the process as always", async (_what, body) => {
    const end = await run(body, "SIGINT");
    expect(end.out).toBe("up\n");
    expect(end.signal).toBe("SIGINT");
  });

  it("one release too many does not let go of another lane", async () => {
    const end = await run("const a = guard.hold(); guard.hold(); a(); a();", "SIGINT");
    expect(end.out).toContain("closed 5000");
  });
});
