// SPDX-License-Identifier: Apache-2.0
// Lanes in trouble, on the real engine and a scripted limactl: ends that cannot be proven, and leftovers that take
// their time.
import { describe, expect, it } from "vitest";
import { stages } from "./support/stages.js";

const stage = stages();

describe("an end that cannot be proven", () => {
  it("is told to everybody who asks for it, whenever they do", async () => {
    const s = stage();
    const r = await s.run(`
      import { chmodSync, readdirSync } from "node:fs";
      const { engine } = await import(new URL("engine.js", PACKAGE));
      const events = [];
      const lane = await create({ onEvent: (e) => { events.push(e.type); report(e.type, events.length); } });
      const dir = OPTIONS.home + "/lima", name = readdirSync(dir).find((n) => n.startsWith("agent-lane-"));
      chmodSync(dir, 0o500);
      let open = true;
      const first = failure(() => engine().request("close", { lane: name })).finally(() => (open = false));
      const rest = new Set();
      while (open) {
        engine().request("close", { lane: name }).then(() => rest.add("closed"), (e) => rest.add(e.code));
        await new Promise((ok) => setImmediate(ok));
      }
      report("first", await first); report("rest", [...rest]);
      chmodSync(dir, 0o700);
      report("events", events);`);
    expect(r.err).toBe("");
    expect(r.said).toMatchObject({ first: { code: "DESTROY_FAILED" } });
    expect((r.said["events"] as string[]).at(-1)).toBe("stuck");
  });
});

describe("a home that changes under our feet", () => {
  const processes = `
    import { chmodSync, existsSync, readdirSync, readFileSync, renameSync, rmSync } from "node:fs";
    const { engine } = await import(new URL("engine.js", PACKAGE));
    const home = OPTIONS.home, events = [];
    process.on("warning", () => undefined);
    const running = (name) => readdirSync("/proc").filter((pid) => /^\\d+$/.test(pid)).map((pid) => {
      try { return readFileSync("/proc/" + pid + "/cmdline", "latin1").replaceAll("\\0", " "); } catch { return ""; }
    }).filter((line) => line.includes(name));`;

  it.each([
    ["moved away", 'renameSync(home + "/lima", home + "/run/l")', 'renameSync(home + "/run/l", home + "/lima")'],
    ["closed to us", 'chmodSync(home + "/lima", 0)', 'chmodSync(home + "/lima", 0o700)'],
  ])("ends the VM also when its directory is %s; that is told, and the next sweep does the rest", async (_, away, back) => {
    const s = stage();
    const r = await s.run(
      `${processes}
      const lane = await create({ onEvent: (e) => events.push(e.type) });
      const name = readdirSync(home + "/lima").find((n) => n.startsWith("agent-lane-"));
      report("before", running(name).length);
      ${away};
      await lane.close();
      report("after", running(name));
      ${back};
      report("events", events.slice(-3));
      await (await create()).close();`,
      { NODE_NO_WARNINGS: "1" },
    );
    expect(r.err).toBe("");
    expect(r.said["before"]).toBeGreaterThan(2);
    expect(r.said["after"]).toEqual([]);
    expect(r.said["events"]).toEqual(["closing", "stuck", "close-failed"]);
    expect(s.left()).toEqual([]);
    expect(s.sql("SELECT name FROM lanes WHERE state <> 'closed'")).toEqual([]);
  });

  it("puts new lanes into the registry that all others see, and its programs back", async () => {
    const s = stage();
    const r = await s.run(`${processes}
      const list = async () => (await engine().request("list", { home })).length;
      const first = await create();
      for (const tail of ["", "-wal", "-shm"]) rmSync(home + "/registry.db" + tail, { force: true });
      rmSync(home + "/bin", { recursive: true });
      const second = await create();
      report("listed", await list());
      report("file", existsSync(home + "/registry.db"));
      await first.close(); await second.close();
      rmSync(home + "/bin", { recursive: true });
      report("third", await failure(async () => { await (await create()).close(); }));`);
    expect(r.err).toBe("");
    expect(r.said).toMatchObject({ listed: 2, file: true, third: "it succeeded" });
    expect(s.left()).toEqual([]);
    expect(s.sql("SELECT state FROM lanes")).toEqual(["closed", "closed", "closed"]);
  });
});

describe("a create that fails and cannot be cleaned up", () => {
  it("says the first error first, then what is left, which the next create removes", async () => {
    const s = stage({ at: { "start.read": [{ slow: 500 }, { fatal: "no such luck" }] } });
    const r = await s.run(`
      import { chmodSync } from "node:fs";
      const dir = OPTIONS.home + "/lima", events = [];
      const onEvent = (e) => { events.push(e.type); if (e.type === "booting") chmodSync(dir, 0o500); };
      report("error", await failure(() => create({ onEvent })));
      while (!events.includes("stuck")) await new Promise((ok) => setTimeout(ok, 10));
      chmodSync(dir, 0o700);
      report("next", await failure(() => create()));`);
    expect(r.err).toBe("");
    expect(r.said["error"]).toMatchObject({ code: "START_FAILED", step: "boot" });
    const { message, cure } = r.said["error"] as { message: string; cure: string };
    expect(message).toMatch(/no such luck.*then it could not be removed: .*agent-lane-/);
    expect(cure).toMatch(/doctor.*agent-lane reap`/);
    expect(r.said["next"]).toMatchObject({ code: "START_FAILED" });
    expect(s.left()).toEqual([]);
  });
});

describe("leftovers of a dead process", () => {
  it("do not keep a create waiting beyond its startTimeoutSeconds", async () => {
    const s = stage();
    // With its keeper, which would end the lane by itself.
    const dead = await s.run(`
      import { readFileSync, readdirSync } from "node:fs";
      await create();
      const keepers = readdirSync("/proc").filter((pid) => {
        try { return /^\\d+$/.test(pid) && readFileSync("/proc/" + pid + "/cmdline", "latin1").startsWith(OPTIONS.home + "/bin/") &&
          readFileSync("/proc/" + pid + "/cmdline", "latin1").split("\\0")[0].endsWith("/keeper"); } catch { return false; }
      });
      report("keepers", keepers.length);
      for (const pid of keepers) process.kill(Number(pid), "SIGKILL");
      process.kill(process.pid, "SIGKILL");`);
    expect(dead.err).toBe("");
    expect(dead.said["keepers"]).toBe(1);
    expect(s.left()).toHaveLength(1);
    s.scenario({ at: { "delete.read": "hang" } });
    const r = await s.run(`
      const begun = Date.now();
      report("error", await failure(() => create({ startTimeoutSeconds: 5 })));
      report("seconds", (Date.now() - begun) / 1000);`);
    expect(r.said).toMatchObject({ error: { code: "START_TIMEOUT", step: "check" } });
    expect(r.said["seconds"]).toBeLessThan(15);
  }, 90_000);
});

describe("a guest that sends its output in crumbs", () => {
  it("costs the host no more than what it sends, while JavaScript is busy", async () => {
    const s = stage({ guest: { crumbs: 250_000 } });
    const r = await s.run(`
      const lane = await create();
      let lines = 0;
      const before = process.memoryUsage().rss;
      const done = lane.exec("true", { onLine: () => lines++ });
      await new Promise((ok) => setTimeout(ok, 50));
      for (const end = Date.now() + 3000; Date.now() < end; ); // the other thread goes on receiving
      const rss = process.memoryUsage().rss;
      await done;
      report("MB", (Math.max(rss, process.memoryUsage().rss) - before) / 1e6); report("lines", lines);
      await lane.close();`);
    expect(r.err).toBe("");
    expect(r.said["lines"]).toBe(250_000);
    expect(r.said["MB"]).toBeLessThan(100);
  }, 60_000);
});

describe("a lane's lifetime", () => {
  it("does not count the wait for a place", async () => {
    const s = stage();
    const r = await s.run(`
      const { engine } = await import(new URL("engine.js", PACKAGE));
      const first = await create();
      const second = create({ maxConcurrentVms: 1, timeoutMinutes: 1 });
      await new Promise((ok) => setTimeout(ok, 3000));
      const free = Math.floor(Date.now() / 1000);
      await first.close();
      const lane = await second;
      const [row] = await engine().request("list", { home: OPTIONS.home });
      report("life", row.expires - row.created);
      report("counted", row.created - free);
      await lane.close();`);
    expect(r.err).toBe("");
    expect(r.said).toMatchObject({ life: 60 });
    expect(r.said["counted"]).toBeGreaterThanOrEqual(0);
  });
});
