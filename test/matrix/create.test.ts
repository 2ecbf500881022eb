// SPDX-License-Identifier: Apache-2.0
// Every step of create, every failure that can happen there, through lima() and the whole core: nothing is left when
// create settles, the first error is what is told, and it settles within startTimeoutSeconds + 10 s. Leaves the table
// in build/check/matrix-rows.json.
import { execFileSync, spawn, type ChildProcess } from "node:child_process";
import { chownSync, cpSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, describe, expect, it } from "vitest";
import { Stage } from "../ts/support/stage.js";
import { cell } from "../../scripts/lib/failures.mjs";
import { cases, type Case, type Place } from "./cases.js";

const GRACE_S = 10;
const LONG_S = 60;
const uid = process.getuid?.() === 0 ? 65534 : undefined;
const owned = uid === undefined ? {} : { uid, gid: uid };
const root = join(import.meta.dirname, "..", "..");

interface Told {
  readonly code: string;
  readonly step?: string;
  readonly message?: string;
  readonly cure?: string;
  readonly name?: string;
  readonly seconds: number;
}

interface Row {
  readonly step: string;
  readonly failure: string;
  readonly code: string;
  readonly at: string;
  readonly seconds: number;
  readonly limit: number;
  readonly left: number;
}

const stage = new Stage();
const rows = new Map<Case, Row>();
const children: ChildProcess[] = [];

function own(path: string): void {
  if (uid !== undefined) chownSync(path, uid, uid);
}

function makeDir(path: string): string {
  mkdirSync(path, { mode: 0o700 });
  own(path);
  return path;
}

/**
 * Processes that belong to `home`, from outside: by their arguments, or by the LIMA_HOME that only limactl's family
 * has. Not the owner's keeper: it stays as long as its owner.
 */
function processes(home: string, owner: number | undefined): string[] {
  const table = execFileSync("ps", ["-wweo", "pid=,stat=,args="], { encoding: "utf8", maxBuffer: 16 << 20 });
  const found: string[] = [];
  for (const entry of table.split("\n")) {
    const [, pid, state, args] = /^\s*(\d+)\s+(\S+)\s+(.*)$/.exec(entry) ?? [];
    if (!pid || !state || !args || state.startsWith("Z") || Number(pid) === owner || Number(pid) === process.pid)
      continue;
    if (args.includes(`/keeper --agent-lane-keeper 1 --owner ${owner}:`)) continue;
    let environ = "";
    try {
      environ = readFileSync(`/proc/${pid}/environ`, "utf8");
    } catch {
      // it has ended, or is not ours
    }
    if (args.includes(`${home}/`) || environ.split("\0").includes(`LIMA_HOME=${home}/lima`)) found.push(args);
  }
  return found;
}

function leftovers(home: string, owner: number | undefined): string[] {
  const lima = join(home, "lima");
  const dirs = existsSync(lima) ? readdirSync(lima).filter((name) => name !== "_config") : [];
  const keys = readdirSync(join(home, "run")).filter((name) => name.startsWith("key-"));
  const registry = join(home, "registry.db");
  const sql = "SELECT name || ' ' || state FROM lanes WHERE state <> 'closed'";
  // What is no database has no rows.
  const open = existsSync(registry) && readFileSync(registry, "latin1").startsWith("SQLite format 3")
    ? execFileSync("sqlite3", ["-readonly", registry, sql], { encoding: "utf8", ...owned }).split("\n").filter(Boolean)
    : [];
  return [
    ...processes(home, owner).map((p) => `process ${p}`),
    ...[...dirs, ...keys].map((d) => `directory ${d}`),
    ...open.map((r) => `row ${r}`),
  ];
}

/** The owner's script: create, say how it settled, live on until it has been looked at. */
function script(c: Case, home: string, options: object): string {
  const all = JSON.stringify({ home, startTimeoutSeconds: c.timeout ?? LONG_S, ...options });
  const first = JSON.stringify({ home, startTimeoutSeconds: LONG_S, image: stage.dir + "/image" });
  return `
    import { spawn as run } from "node:child_process";
    import { existsSync } from "node:fs";
    import { setTimeout as sleep } from "node:timers/promises";
    const how = ${JSON.stringify(c.while ?? "")};
    const first = how ? await create(${first}) : undefined;
    let lock;
    if (how === "locked") {
      await first.close();
      lock = run("sqlite3", [${JSON.stringify(join(home, "registry.db"))}], { stdio: ["pipe", "pipe", "inherit"] });
      lock.stdin.write("BEGIN EXCLUSIVE; SELECT 'locked';\\n");
      await new Promise((ok) => lock.stdout.once("data", ok));
    }
    const t0 = performance.now();
    const settled = (told) => ({ ...told, seconds: (performance.now() - t0) / 1000 });
    let told;
    try {
      const lane = await create(${all});
      told = settled({ code: "ready" });
      if ((await lane.exec("echo up")).stdout !== "up\\n") told.code = "not ready";
      await lane.close();
    } catch (e) {
      told = settled({ name: e.name, code: e.code, step: e.step, message: e.message, cure: e.cure });
    }
    if (lock) await new Promise((ok) => lock.on("exit", ok).kill("SIGKILL"));
    if (how === "held") await first.close();
    report("settled", told);
    while (!existsSync(${JSON.stringify(join(home, "run", "go"))})) await sleep(50);`;
}

/** Everything that a case may use; `end` takes its processes back and fails when a stranger was killed. */
function makePlace(home: string): { place: Place; end: () => void } {
  const strangers: ChildProcess[] = [];
  const place: Place = {
    home,
    image: `${home}-image`,
    stranger: () => {
      const child = spawn("sleep", ["300"], { stdio: "ignore", ...owned });
      strangers.push(child);
      children.push(child);
      return child.pid ?? 0;
    },
    server: async (sameUser) => {
      const text = `const s = require("net").createServer((c) => { c.on("error", () => 0); c.end("SSH-2.0-impostor\\r\\n"); }); s.listen(0, "127.0.0.1", () => console.log(s.address().port)); setTimeout(() => process.exit(), 120000);`;
      const child = spawn(process.execPath, ["-e", text], {
        stdio: ["ignore", "pipe", "inherit"],
        cwd: "/",
        ...(sameUser ? owned : {}),
      });
      children.push(child);
      return await new Promise<number>((ok) => child.stdout.once("data", (d: Buffer) => ok(Number(d.toString()))));
    },
  };
  const end = (): void => {
    for (const child of strangers) expect(child.exitCode ?? child.signalCode, "a stranger was killed").toBeNull();
  };
  return { place, end };
}

async function play(c: Case, index: number): Promise<{ told: Told; left: string[]; err: string }> {
  const home = makeDir(join(stage.dir, c.space === true ? `m ${index}` : `m${index}`));
  const config = join(makeDir(join(home, "lima")), "_config");
  const run = makeDir(join(home, "run"));
  makeDir(config);
  if (c.fresh !== true)
    for (const name of ["user", "user.pub", "networks.yaml"]) {
      writeFileSync(join(config, name), "x\n", { mode: 0o600 });
      own(join(config, name));
    }
  const { place, end } = makePlace(home);
  cpSync(join(stage.dir, c.port === true ? "image-port" : "image"), place.image, { recursive: true });
  own(place.image);
  for (const name of readdirSync(place.image)) own(join(place.image, name));
  const more = (await c.before?.(place)) ?? {};
  for (const name of readdirSync(config)) own(join(config, name));
  if (existsSync(join(home, "registry.db"))) own(join(home, "registry.db"));
  writeFileSync(join(run, "scenario.json"), JSON.stringify({ ...c.scenario, ...more.scenario }));
  const { child, ended } = stage.start(script(c, home, { image: place.image, ...(c.port === true && { transport: "port" }), ...c.options, ...more.options }));
  const said = new Promise<void>((ok) =>
    child.stdout?.on("data", (d: Buffer) => d.toString().includes('["settled"') && ok()),
  );
  await Promise.race([said, ended]);
  const left = leftovers(home, child.pid);
  writeFileSync(join(run, "go"), "");
  const outcome = await ended;
  const told = outcome.said["settled"] as Told | undefined;
  expect(told, `the owner ended early: ${outcome.err}`).toBeDefined();
  expect(outcome.status).toBe(0);
  end();
  rmSync(home, { recursive: true, force: true });
  rmSync(place.image, { recursive: true, force: true });
  return { told: told as Told, left, err: outcome.err };
}

afterAll(() => {
  for (const child of children) child.kill("SIGKILL");
  stage.remove();
  mkdirSync(join(root, "build", "check"), { recursive: true });
  writeFileSync(
    join(root, "build", "check", "matrix-rows.json"),
    JSON.stringify(cases.map((c) => rows.get(c) ?? { step: c.step, failure: c.failure })),
  );
});

describe.concurrent("create", () => {
  cases.forEach((c, index) => {
    it(`${c.step}: ${c.failure}`, { timeout: 120_000 }, async ({ expect }) => {
      const { told, left } = await play(c, index);
      const limit = (c.timeout ?? LONG_S) + GRACE_S;
      rows.set(c, {
        step: c.step,
        failure: c.failure,
        code: told.code === c.or ? c.code : told.code,
        at: told.step ?? "",
        seconds: told.seconds,
        limit,
        left: left.length,
      });
      expect([c.code, c.or], told.message).toContain(told.code);
      if (c.says) expect(told.message).toMatch(c.says);
      expect(left).toEqual([]);
      expect(told.seconds).toBeLessThan(limit);
      if (c.code === "ready") return;
      expect(told.name).toBe("LaneError");
      expect(told.step, "the step").toMatch(/^\w+$/);
      expect(told.cure, "the cure").toMatch(/\w+ \w+/);
      // Sandcastle shows nothing but the message.
      expect(told.message).toContain(told.code);
      expect(told.message).toContain(told.cure);
    });
  });
});

it("is described by docs/FAILURES.md (else: scripts/generate-failures)", () => {
  const page = readFileSync(join(root, "docs", "FAILURES.md"), "utf8");
  const listed = [...page.matchAll(/^\| (\w+) \| (.+?) \| `(\w+)` \|/gm)].map((m) => m.slice(1).join(" | "));
  expect(listed).toEqual(cases.map((c) => [c.step, cell(c.failure), c.code].join(" | ")));
});
