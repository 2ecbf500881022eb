// SPDX-License-Identifier: Apache-2.0
// Run manifests of whole lanes: what they say, that nothing secret is in them, what of a change is seen, who ends them.
import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { chmodSync, readdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it, vi } from "vitest";
import { forge, readManifest, validate, type Line } from "./support/manifest.js";
import type { Stage } from "./support/stage.js";
import { stages } from "./support/stages.js";

// Each starts processes and some a few lanes, on a machine that may be busy.
vi.setConfig({ testTimeout: 120_000 });

const root = join(import.meta.dirname, "..", "..");
const stage = stages();

const KIT = `
  import { spawn } from "node:child_process";
  import { chmodSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, symlinkSync, writeFileSync } from "node:fs";
  import { setTimeout as sleep } from "node:timers/promises";
  const { createLane } = await import(PACKAGE);
  const { engine } = await import(new URL("engine.js", PACKAGE).href);
  const CLI = new URL("cli/main.js", PACKAGE).pathname;
  const RUNS = OPTIONS.home + "/runs/";
  const cli = (...args) => new Promise((ok) => {
    const where = ["--home", OPTIONS.home, ...(["close", "reap"].includes(args[0]) ? ["--limactl", OPTIONS.limactlPath] : [])];
    const child = spawn(process.execPath, [CLI, ...args, ...where], { stdio: ["ignore", "pipe", "pipe"] });
    let out = "", err = "";
    child.stdout.on("data", (d) => (out += d));
    child.stderr.on("data", (d) => (err += d));
    child.on("close", (code, signal) => ok({ code: code ?? signal, out, err }));
  });
  const json = async (...args) => JSON.parse((await cli(...args, "--json")).out);
  const check = (which) => engine().request("runCheck", { home: OPTIONS.home, ...which });
  /** Another process with a lane, which says its name. */
  const owner = async (body = "") => {
    const child = spawn(process.execPath, ["--input-type=module", "-e", \`
      const OPTIONS = \${JSON.stringify(OPTIONS)}, WT = OPTIONS.worktreePath;
      const { createLane } = await import(\${JSON.stringify(PACKAGE)});
      const lane = await createLane(OPTIONS);
      \${body}
      console.log(lane.name);
      setInterval(() => undefined, 1000);\`], { stdio: ["ignore", "pipe", "inherit"] });
    let name = "";
    for await (const data of child.stdout) if ((name += data).endsWith("\\n")) break;
    return { child, name: name.trim() };
  };
`;

interface Ran {
  readonly s: Stage;
  readonly said: Record<string, never>;
  readonly manifest: (name: string) => string;
}

async function run(script: string, { status = 0, err = "", scenario = {} }: { status?: number; err?: string | RegExp; scenario?: object } = {}): Promise<Ran> {
  const s = stage({ guest: "agent", ...scenario });
  s.addCommand();
  const r = await s.run(`${KIT}${script}`);
  if (typeof err === "string") expect(r.err).toBe(err);
  else expect(r.err).toMatch(err);
  expect(r.status).toBe(status);
  return { s, said: r.said, manifest: (name) => readFileSync(join(s.home, "runs", `${name}.jsonl`), "utf8") };
}

const sha256 = (text: string | Buffer): string => createHash("sha256").update(text).digest("hex");

/** Every file below a directory whose bytes contain one of the words, and names that do. */
function holders(dir: string, words: readonly string[]): string[] {
  return readdirSync(dir, { recursive: true, withFileTypes: true }).flatMap((entry) => {
    const path = join(entry.parentPath, entry.name);
    const said = entry.isFile() ? readFileSync(path).toString("latin1") : "";
    return words.filter((word) => said.includes(word) || entry.name.includes(word)).map((word) => `${path}: ${word}`);
  });
}

/** The events of a lane with some of everything; its text. */
async function wholeRun(): Promise<{ ran: Ran; name: string; text: string; lines: Line[] }> {
  const ran = await run(`
    const lane = await createLane({ ...OPTIONS, network: "none", env: { TOKEN: "canary-of-env", PLAIN: "x" }, keepManifestDays: 3 });
    await lane.exec("echo canary-of-command; cat", { stdin: "canary-of-stdin" });
    await lane.exec("exit 3", { env: { OWN: "canary-of-own-env" } });
    await lane.exec("kill -9 $$");
    await failure(() => lane.exec("sleep 60 # canary-of-timeout", { timeoutMs: 50 }));
    mkdirSync(WT + "/tree/sub", { recursive: true });
    writeFileSync(WT + "/one", "canary-of-file");
    writeFileSync(WT + "/tree/a b", "canary-of-tree");
    writeFileSync(WT + "/tree/sub/\\u001b[31m\\u00e9", "");
    symlinkSync("/etc", WT + "/tree/out");
    writeFileSync(WT + "/host", "canary-of-copy-in");
    mkdirSync(WT + "/got");
    await lane.copyIn(WT + "/host", WT + "/guest");
    await lane.copyFileOut(WT + "/one", WT + "/got/one");
    await lane.copyOut(WT + "/tree", WT + "/got/tree");
    report("open", await check({ lane: lane.name }));
    report("mode", statSync(RUNS + lane.name + ".jsonl").mode & 0o7777);
    report("path", lane.facts.manifest);
    await lane.close();
    report("name", lane.name);
    report("runs", await json("runs"));
    report("verified", await cli("verify-manifest", lane.name));
    report("inspected", await json("inspect", lane.name));
    report("text", (await cli("inspect", lane.name)).out);
    report("listed", (await cli("runs")).out);
  `);
  const name = ran.said["name"] as string;
  const text = ran.manifest(name);
  return { ran, name, text, lines: readManifest(text) };
}

it("says what ran, from what, and what came out, and nothing that is secret", async () => {
  const { ran, name, lines } = await wholeRun();
  const { s, said } = ran;
  expect(lines.map((l) => l.event).filter((e) => e !== "counted")).toEqual(["ready", "copied", "copied", "closing", "end"]);
  const [ready] = lines as [Line];
  const product = (JSON.parse(readFileSync(join(root, "package.json"), "utf8")) as { version: string }).version;
  expect(ready).toMatchObject({
    schema: 2,
    lane: name,
    versions: { agentLane: product, lima: "2.2.0", vmType: "qemu", vm: "QEMU emulator version 7.2.0 (scripted)", kernel: null },
    options: { cpus: 4, memoryMiB: 1024, network: "none", accelerator: "tcg", transport: "shell", keepManifestDays: 3 },
    used: { transport: "shell", accelerator: "tcg" },
    environment: ["TOKEN", "PLAIN"],
    configurationSha256: expect.stringMatching(/^[0-9a-f]{64}$/),
    arguments: expect.arrayContaining(["-netdev"]),
  });
  const manifest = readFileSync(join(s.dir, "image", "manifest.json"));
  expect(ready["image"]).toMatchObject({ manifestSha256: sha256(manifest), kernelSha256: sha256("the kernel"), untrustedSetup: false, parents: [] });
  const enforced = Object.fromEntries((ready["enforced"] as { what: string; enforced: boolean }[]).map((e) => [e.what, e.enforced]));
  expect(enforced).toMatchObject({ network: true, "host files": true, memory: true, "end with its owner": true, lifetime: true });
  const times = (ready["timeline"] as { state: string; atMs: number }[]);
  expect(times.map((t) => t.state)).toEqual(["asked", "registered", "creating", "booting", "connecting", "ready"]);
  expect(times.map((t) => t.atMs)).toEqual(times.map((t) => t.atMs).sort((a, b) => a - b));

  const [file, tree] = lines.filter((l) => l.event === "copied") as [Line, Line];
  expect(file).toMatchObject({ kind: "file", from: join(s.work, "one"), to: join(s.work, "got", "one"), bytes: 14, entries: 1, unlisted: 0 });
  expect(file["files"]).toEqual([{ path: join(s.work, "one"), bytes: 14, sha256: sha256("canary-of-file") }]);
  expect(file["commands"]).toMatchObject({ started: 4, ended: 3, interrupted: 1 });
  expect(tree).toMatchObject({ kind: "tree", skipped: 1, unlisted: 0 });
  const came = [...(tree["files"] as { path: string }[])].sort((a, b) => (a.path < b.path ? -1 : 1));
  expect(came).toEqual([
    { path: "a b", bytes: 14, sha256: sha256("canary-of-tree") },
    { path: "sub/\u001b[31mé", bytes: 0, sha256: sha256("") },
  ]);
  const closing = lines.at(-2)!;
  expect(closing).toMatchObject({
    code: "LANE_CLOSED",
    commands: { started: 4, ended: 3, interrupted: 1, exits: [{ code: 0, count: 1 }, { code: 3, count: 1 }, { code: 137, count: 1 }] },
    copies: { copies: 2, bytes: 32 }, // with the target of the link that was left out
    missed: 0,
  });
  expect(lines.at(-1)).toMatchObject({ by: "owner", code: "LANE_CLOSED" });

  expect(said["mode"]).toBe(0o600);
  expect(said["path"]).toBe(join(s.home, "runs", `${name}.jsonl`));
  expect(statSync(join(s.home, "runs", `${name}.jsonl`)).mode & 0o7777).toBe(0o400);
  expect(statSync(join(s.home, "runs")).mode & 0o7777).toBe(0o700);
  expect(said["open"]).toMatchObject({ ok: true, state: "open", why: null });
  expect(said["runs"]).toEqual([expect.objectContaining({ name, state: "ended", by: "owner", image: (ready["image"] as { id: string }).id })]);
  expect(said["verified"]).toMatchObject({ code: 0, err: "", out: expect.stringContaining(`${lines.length} events hold, ended\n${lines.at(-1)!.sha256}\n`) });
  expect(said["inspected"]).toMatchObject({ settings: null, manifest: { ok: true, state: "ended", head: lines.at(-1)!.sha256, events: lines } });
  expect(said["text"]).toMatch(/\nEnforced when it was ready\nwhat +enforced +by\nnetwork +yes /);
  expect(said["text"]).toContain(sha256("canary-of-file").slice(0, 16));
  expect(said["text"]).not.toContain("\u001b");
  expect(said["listed"]).toContain(name);

  // The lane is gone, and with it lima.yaml, its logs and its disk: whatever the home still holds is kept.
  expect(holders(s.home, ["canary-of-", "PLAIN=x"])).toEqual([]);
  expect(holders(s.work, ["canary-of-file"])).not.toEqual([]); // the search finds what is there
});

it("nothing secret is in the home while the lane runs, either", async () => {
  const { said } = await run(`
    const lane = await createLane({ ...OPTIONS, env: { TOKEN: "canary-of-env" } });
    await lane.exec("echo canary-of-command; cat", { stdin: "canary-of-stdin" });
    const found = [];
    const walk = (dir) => {
      for (const e of readdirSync(dir, { withFileTypes: true })) {
        const path = dir + "/" + e.name;
        if (e.isDirectory()) walk(path);
        else if (e.isFile() && readFileSync(path).includes("canary-of-")) found.push(path);
      }
    };
    walk(OPTIONS.home);
    report("found", found);
    await lane.close();
  `);
  expect(said["found"]).toEqual([]);
});

describe("a change", () => {
  let whole: Promise<Awaited<ReturnType<typeof wholeRun>>> | undefined;
  const once = () => (whole ??= wholeRun());

  /** What the product says of many texts, by its request runCheck. */
  async function judge(texts: readonly string[]): Promise<{ ok: boolean; why: string | null; line: number | null }[]> {
    const { s } = (await once()).ran;
    writeFileSync(join(s.dir, "texts.json"), JSON.stringify(texts));
    const r = await s.run(`${KIT}
      const texts = JSON.parse(readFileSync(OPTIONS.home + "/../texts.json", "utf8")), answers = [];
      for (const text of texts) {
        writeFileSync(WT + "/manifest", Buffer.from(text, "latin1"));
        const { ok, why, line } = await check({ path: WT + "/manifest" });
        answers.push({ ok, why, line });
      }
      report("answers", answers);
    `);
    expect(r.err).toBe("");
    return r.said["answers"] as { ok: boolean; why: string | null; line: number | null }[];
  }
  const latin1 = (text: string) => Buffer.from(text).toString("latin1");

  it("of any byte or line is seen", async () => {
    const { text } = await once();
    const raw = latin1(text);
    const rows = raw.slice(0, -1).split("\n").map((row) => `${row}\n`);
    const flip = (i: number) => raw.slice(0, i) + String.fromCharCode(raw.charCodeAt(i) ^ 1) + raw.slice(i + 1);
    // Each byte of a whole manifest is flipped in test/c/test_run.c; here of one that a lane has made.
    const bytes = Array.from({ length: Math.floor(raw.length / 23) }, (_, k) => flip(k * 23));
    const gone = rows.map((_, i) => rows.filter((__, k) => k !== i).join(""));
    const moved = rows.slice(1).map((row, i) => rows.filter((r) => r !== row).toSpliced(i, 0, row).join(""));
    const answers = await judge([raw, ...bytes, ...gone, ...moved]);
    expect(answers[0]).toEqual({ ok: true, why: null, line: null });
    expect(answers.slice(1).filter((a) => a.ok)).toEqual([]);
    expect(answers.length).toBeGreaterThan(200);
  });

  it("of a member is refused as docs/run-manifest.schema.json refuses it", async () => {
    const { lines } = await once();
    const cases: { what: string; line: number; text: string; schema: boolean }[] = [];
    const add = (what: string, line: number, changed: object): void => {
      const forged = forge(lines.map((l, i) => (i === line ? changed : l)));
      const again = JSON.parse(forged.split("\n")[line]!) as object;
      cases.push({ what, line, text: latin1(forged), schema: validate(again) });
    };
    const wrong = [null, true, -1, 1.5, "", "x", [], {}, [1], { x: 1 }];
    const visit = (line: number, value: unknown, path: (string | number)[]): void => {
      const set = (to: unknown, drop = false): object => {
        const copy = structuredClone(lines[line]) as object;
        let at = copy as Record<string | number, unknown>;
        for (const key of path.slice(0, -1)) at = at[key] as Record<string | number, unknown>;
        const last = path.at(-1)!;
        if (drop) delete at[last];
        else at[last] = to;
        return copy;
      };
      const frame = path.length === 1 && ["n", "prev", "sha256", "event"].includes(String(path[0]));
      if (path.length > 0 && !frame) {
        if (typeof path.at(-1) === "string") add(`without ${path.join(".")}`, line, set(undefined, true));
        for (const value of wrong) add(`${path.join(".")} ${JSON.stringify(value)}`, line, set(value));
      }
      if (typeof value === "object" && value !== null && !Array.isArray(value)) {
        const copy = structuredClone(lines[line]) as object;
        let at = copy as Record<string | number, unknown>;
        for (const key of path) at = at[key] as Record<string | number, unknown>;
        at["surplus"] = 1;
        add(`surplus in ${path.join(".")}`, line, copy);
      }
      if (Array.isArray(value)) value.slice(0, 1).forEach((item, i) => visit(line, item, [...path, i]));
      else if (typeof value === "object" && value !== null)
        for (const [key, item] of Object.entries(value)) visit(line, item, [...path, key]);
    };
    lines.forEach((line, i) => visit(i, line, []));
    // Schema 1 is of before these two members were there.
    for (const schema of [1, 2])
      for (const drop of [[], ["signature"], ["imageKeys"], ["signature", "imageKeys"]]) {
        const old = structuredClone(lines[0]) as Line & { image: Record<string, unknown>; options: Record<string, unknown> };
        old["schema"] = schema;
        for (const key of drop) delete (key === "signature" ? old.image : old.options)[key];
        add(`schema ${schema} without ${drop.join(" and ")}`, 0, old);
      }
    const answers = await judge(cases.map((c) => c.text));
    const differ = cases.filter((c, i) => answers[i]!.ok !== c.schema).map((c) => c.what);
    expect(differ).toEqual([]);
    const held = cases.filter(({ what }, i) => what.startsWith("schema ") && answers[i]!.ok).map((c) => c.what);
    expect(held).toEqual(["schema 1 without signature and imageKeys", "schema 2 without "]);
    expect(answers.filter((a) => a.ok).length).toBeGreaterThan(20); // texts may be any text
    expect(answers.filter((a) => !a.ok).length).toBeGreaterThan(500);
  });

  it("is told by the command, with the line, and by the shell script of the documentation", async () => {
    const { ran, name, text, lines } = await once();
    const { s } = ran;
    const script = /```sh\n([\s\S]*?)```/.exec(readFileSync(join(root, "docs", "RUNS.md"), "utf8"))![1]!;
    const bad = text.replace(`"process":${String(lines.at(-1)!["process"])}`, '"process":1');
    expect(bad).not.toBe(text);
    const sh = (content: string) => {
      writeFileSync(join(s.dir, "manifest.jsonl"), content);
      return execFileSync("bash", ["-c", script], { cwd: s.dir, encoding: "utf8" });
    };
    expect(sh(text)).toBe("");
    expect(sh(bad)).toMatch(/^broken: /);
    chmodSync(join(s.dir, "manifest.jsonl"), 0o644);
    const r = await s.run(`${KIT}
      report("broken", await cli("verify-manifest", OPTIONS.home + "/../manifest.jsonl"));
      report("json", await cli("verify-manifest", "../manifest.jsonl", "--json"));
      report("none", await cli("verify-manifest", "agent-lane-00000000-00000000"));
      report("file", await cli("verify-manifest", "/nowhere/at/all"));
      report("good", await cli("verify-manifest", "${name}", "--json"));
    `);
    expect(r.said["broken"]).toMatchObject({ code: 1, out: "", err: expect.stringMatching(/^error MANIFEST_BROKEN: .* line \d+: its hash is not that of its content/) });
    expect(r.said["json"]).toMatchObject({ code: 1, out: expect.stringContaining('"ok": false') });
    for (const which of ["none", "file"]) expect(r.said[which]).toMatchObject({ code: 1, out: "", err: expect.stringMatching(/^error NO_MANIFEST: /) });
    expect(JSON.parse((r.said["good"] as { out: string }).out)).toMatchObject({ ok: true, events: lines });
  });
});

it("of a killed owner's lane is ended by the sweep, with what was known", async () => {
  const { said, manifest } = await run(`
    const { child, name } = await owner(\`
      await lane.exec("true"); await lane.exec("exit 7");
      await lane.exec("echo out >" + WT + "/f");
      await lane.copyFileOut(WT + "/f", WT + "/g");\`);
    child.kill("SIGKILL");
    for (const end = Date.now() + 30_000; existsSync(OPTIONS.home + "/lima/" + name) && Date.now() < end; ) await sleep(50);
    report("before", await check({ lane: name }));
    report("reaped", await json("reap"));
    report("after", await check({ lane: name }));
    report("name", name);
  `);
  const lines = readManifest(manifest(said["name"]));
  expect(said["before"]).toMatchObject({ ok: true, state: "open" }); // its row is still open
  expect(said["after"]).toMatchObject({ ok: true, state: "ended" });
  const copied = lines.find((l) => l.event === "copied");
  expect(copied).toMatchObject({ commands: { started: 3, exits: [{ code: 0, count: 2 }, { code: 7, count: 1 }] } });
  expect(lines.at(-1)).toMatchObject({ event: "end", by: "sweep", reason: "its owner is gone" });
  expect(lines.map((l) => l.event)).not.toContain("closing");
});

it("closed by another process says so, and who was attached", async () => {
  const { said, manifest } = await run(`
    const { child, name } = await owner();
    writeFileSync(WT + "/f", "to and fro");
    report("cp", await cli("cp", name + ":f", WT + "/g", "--limactl", OPTIONS.limactlPath));
    child.kill("SIGSTOP");
    report("closed", await cli("close", name));
    report("check", await check({ lane: name }));
    report("name", name);
    child.kill("SIGKILL");
  `);
  expect(said["closed"]).toMatchObject({ code: 0 });
  expect(said["check"]).toMatchObject({ ok: true, state: "ended" });
  const lines = readManifest(manifest(said["name"]));
  expect(said["cp"]).toMatchObject({ code: 0, err: "" });
  const [attached, copied] = [lines.find((l) => l.event === "attached"), lines.find((l) => l.event === "copied")];
  expect(copied).toMatchObject({ process: attached!["process"], files: [{ bytes: 10, sha256: sha256("to and fro") }] });
  expect(attached!["process"]).not.toBe((lines[0]!["owner"] as { pid: number }).pid);
  expect(lines.at(-1)).toMatchObject({ event: "end", by: "command", reason: expect.stringMatching(/agent-lane close/) });
});

it("that cannot be written refuses the lane, and later fails nothing", async () => {
  const { s, said } = await run(`
    const first = await createLane(OPTIONS);
    await first.close();
    chmodSync(RUNS, 0o500);
    report("refused", await failure(() => createLane(OPTIONS)));
    report("left", await json("ls"));
    chmodSync(RUNS, 0o700);
    const events = [];
    const lane = await createLane({ ...OPTIONS, onEvent: (e) => e.type === "warning" && events.push(e) });
    writeFileSync(WT + "/f", "x");
    rmSync(RUNS + lane.name + ".jsonl");
    await lane.copyFileOut(WT + "/f", WT + "/g");
    report("copied", readFileSync(WT + "/g", "utf8"));
    await lane.close();
    report("events", events);
  `);
  expect(said["refused"]).toMatchObject({ code: "IO_ERROR", step: "manifest", message: expect.stringMatching(/run manifest of agent-lane-\S+ cannot be written: Permission denied/) });
  expect(said["left"]).toEqual([]);
  expect(s.left()).toEqual([]);
  expect(said["copied"]).toBe("x");
  const events = said["events"] as { option: string; message: string }[];
  expect(events.map((e) => e.option)).toEqual(["manifest", "manifest", "manifest"]);
  expect(events[0]!.message).toMatch(/^a copy out is not in the run manifest: /);
});

it("of many files lists some, counts the others, and stays checkable", async () => {
  const { said, manifest } = await run(`
    const lane = await createLane(OPTIONS);
    mkdirSync(WT + "/many");
    for (let i = 0; i < 2100; i++) writeFileSync(WT + "/many/" + "n".repeat(200) + i, String(i));
    await lane.copyOut(WT + "/many", WT + "/out");
    await lane.close();
    report("check", await check({ lane: lane.name }));
    report("name", lane.name);
  `);
  expect(said["check"]).toMatchObject({ ok: true, state: "ended" });
  const lines = readManifest(manifest(said["name"]));
  const files = lines.flatMap((l) => (l["files"] ?? []) as { path: string; sha256: string }[]);
  expect(lines.find((l) => l.event === "copied")).toMatchObject({ entries: 2100, unlisted: 100 });
  expect(files.length).toBe(2000);
  for (const f of files) expect(f.sha256).toBe(sha256(f.path.replace(/^n+/, "")));
  expect(Math.max(...lines.map((l) => ((l["files"] ?? []) as unknown[]).length))).toBe(64);
});
