// SPDX-License-Identifier: Apache-2.0
// The keeper of a real owner process: what becomes of lanes whose owner is killed or stands still, and of lanes without a keeper.
import { readdirSync, readFileSync, readlinkSync } from "node:fs";
import { join } from "node:path";
import { beforeEach, describe, expect, it, vi } from "vitest";
import type { Stage } from "./support/stage.js";
import { stages } from "./support/stages.js";
import { tick } from "./support/fake-engine.js";

vi.setConfig({ testTimeout: 60_000 });

const stage = stages();
let s: Stage;
beforeEach(() => {
  s = stage({ guest: "agent" });
});

const WAIT = `await create(); report("ready", process.pid); setInterval(() => {}, 1000);`;

/** An owner with a ready lane, in a process of its own. */
async function owner(script = WAIT) {
  const { child, ended } = s.start(script);
  await new Promise<void>((resolve, reject) => {
    child.stdout?.on("data", (data: Buffer) => data.toString().includes('"ready"') && resolve());
    child.on("close", () => reject(new Error("the owner has ended")));
  });
  return { child, ended };
}

/** Keepers whose copy of the program lies below this home. */
function keepers(): number[] {
  return readdirSync("/proc").filter((pid) => /^\d+$/.test(pid)).map(Number).filter((pid) => {
    try {
      return readlinkSync(`/proc/${pid}/exe`).startsWith(join(s.home, "bin")) &&
        readFileSync(`/proc/${pid}/cmdline`, "utf8").includes("--agent-lane-keeper");
    } catch {
      return false;
    }
  });
}

async function until(what: string, done: () => boolean): Promise<void> {
  for (let i = 0; i < 1500; i++) {
    if (done()) return;
    await tick(20);
  }
  throw new Error(`not within half a minute: ${what}; left are ${s.processes().join("\n")}`);
}

describe("a keeper", () => {
  it("ends the lane of an owner that is killed, and then itself", async () => {
    const { child, ended } = await owner();
    expect(keepers()).toHaveLength(1);
    child.kill("SIGKILL");
    await ended;
    await until("the directory is gone", () => s.left().length === 0);
    await until("nobody is left", () => s.processes().length === 0);
    expect(s.sql("SELECT state FROM lanes")).toEqual(["ready"]); // the sweep's to close
  });

  it("is replaced when it dies, and the new one has the lane and the row", async () => {
    const { child, ended } = await owner();
    const [first] = keepers();
    process.kill(first!, "SIGKILL");
    await until("there is another", () => keepers().length === 1 && keepers()[0] !== first);
    await until("the row knows it", () => s.sql("SELECT keeper_pid FROM lanes").includes(String(keepers()[0])));
    child.kill("SIGKILL");
    await ended;
    await until("the directory is gone", () => s.left().length === 0);
    await until("nobody is left", () => s.processes().length === 0);
  });

  it("and its owner are killed: the warden ends the VM at once, the next create removes the rest", async () => {
    const { child, ended } = await owner();
    child.kill("SIGSTOP"); // or it may start another keeper in between
    for (const pid of keepers()) process.kill(pid, "SIGKILL");
    child.kill("SIGKILL");
    await ended;
    // The scripted ssh master does not see that the other end is gone.
    await until("the VM is gone", () => s.processes().every((line) => !line.includes("qemu.pid")));
    expect(s.left()).toHaveLength(1);
    const r = await s.run(`const lane = await create(); await lane.close();`);
    expect(r).toMatchObject({ status: 0, err: "" });
    expect(s.left()).toEqual([]);
    await until("nobody is left", () => s.processes().length === 0);
    expect(new Set(s.sql("SELECT state FROM lanes"))).toEqual(new Set(["closed"]));
  });

  it("ends a minute's lane of an owner that stands still", async () => {
    const { child, ended } = await owner(WAIT.replace("create()", "create({ timeoutMinutes: 1 })"));
    child.kill("SIGSTOP");
    await tick(40_000);
    expect(s.left()).toHaveLength(1);
    await until("the directory is gone", () => s.left().length === 0);
    child.kill("SIGKILL");
    await ended;
    await until("nobody is left", () => s.processes().length === 0);
  }, 120_000);

  it("ends with its owner's last lane and its process", async () => {
    const { child, ended } = await owner(
      `const lane = await create(); report("ready"); await lane.close(); report("closed"); setTimeout(() => {}, 3000);`,
    );
    await until("the lane is gone", () => s.left().length === 0);
    expect(keepers()).toHaveLength(1); // for the next lane
    await ended;
    await until("nobody is left", () => s.processes().length === 0);
    expect(child.exitCode).toBe(0);
  });

  it("no lane without one: nothing is made, the error says why", async () => {
    const { write } = await import("./support/image.mjs");
    write(
      join(s.dir, "pkg", "prebuilds", `${process.platform}-${process.arch}`, "keeper"),
      "#!/bin/sh\necho no room on this machine >&2\nexit 1\n",
      0o755,
    );
    const r = await s.run(`report("error", await failure(() => create()));`);
    expect(r.said["error"]).toMatchObject({ code: "KEEPER_FAILED", step: "create" });
    expect((r.said["error"] as { message: string }).message).toContain("no room on this machine");
    expect(s.left()).toEqual([]);
    expect(s.calls().filter((c) => /start|shell/.test(c))).toEqual([]);
    expect(s.sql("SELECT state FROM lanes")).toEqual(["closed"]);
  });
});
