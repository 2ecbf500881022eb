// SPDX-License-Identifier: Apache-2.0
// Copies through the whole product and the real lane agent on this machine: what they say, how they end, what is left.
import { afterAll, beforeAll, describe, expect, it, vi } from "vitest";
import { Stage } from "./support/stage.js";

// A lane for each test, on machines that are busy.
vi.setConfig({ testTimeout: 120_000 });

let s: Stage;
beforeAll(() => {
  s = new Stage();
  s.scenario({ guest: "agent" });
});
afterAll(() => s.remove());

// host/ is the caller's, guest/ the lane's: here both are of this machine. `big` takes long enough to be ended.
const KIT = `
  import { createHash, randomBytes } from "node:crypto";
  import { appendFileSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, symlinkSync, truncateSync, writeFileSync } from "node:fs";
  import { setTimeout as sleep } from "node:timers/promises";
  const HOST = WT + "/host", GUEST = WT + "/guest", MIB = 2 ** 20;
  for (const d of [HOST, GUEST]) { rmSync(d, { recursive: true, force: true }); mkdirSync(d); }
  const sha = (file) => createHash("sha256").update(readFileSync(file)).digest("hex");
  const block = randomBytes(MIB);
  const big = (file, mib = 400) => { writeFileSync(file, ""); for (let i = 0; i < mib; i++) appendFileSync(file, block); return file; };
  const many = (dir, mib = 400) => { mkdirSync(dir); for (let i = 0; i < 8; i++) big(dir + "/" + i, mib / 8); return dir; };
  const refused = async (work) => { try { await work(); return "it succeeded"; } catch (e) { return [e.code, e.message, e.cause?.message]; } };
  const left = () => [HOST, GUEST].flatMap((d) => readdirSync(d, { recursive: true })).filter((n) => n.includes(".tmp") || n.includes(".agent-lane")).sort();
  const { createLane } = await import(PACKAGE);
  const open = (o = {}) => createLane({ ...OPTIONS, maxCopyOutBytes: 2 ** 30, ...o });
`;

async function play(script: string): Promise<Record<string, never>> {
  const r = await s.run(`${KIT}${script}`);
  expect(r.err).toBe("");
  expect(r.status).toBe(0);
  expect(s.left()).toEqual([]);
  return r.said;
}

describe("what is copied", () => {
  it("is counted in bytes and files, both ways", async () => {
    const said = await play(`
      const lane = await open();
      mkdirSync(HOST + "/tree/sub/empty", { recursive: true });
      writeFileSync(HOST + "/tree/a", "12345"); writeFileSync(HOST + "/tree/sub/b", "678"); symlinkSync("a", HOST + "/tree/link");
      report("tree", await lane.copyIn(HOST + "/tree", GUEST + "/tree"));
      report("file", await lane.copyIn(HOST + "/tree/a", GUEST + "/deep/er/a"));
      report("out", await lane.copyFileOut(GUEST + "/deep/er/a", HOST + "/back/a"));
      report("text", readFileSync(HOST + "/back/a", "utf8"));
      await lane.close();`);
    // The root, sub, sub/empty, a, sub/b, link.
    expect(said["tree"]).toEqual({ bytes: 8, files: 6, changed: 0 });
    expect(said["file"]).toEqual({ bytes: 5, files: 1, changed: 0 });
    expect(said["out"]).toEqual({ bytes: 5, files: 1 });
    expect(said["text"]).toBe("12345");
  });

  it("comes out as a file to the path of a file only", async () => {
    const said = await play(`
      const lane = await open();
      writeFileSync(GUEST + "/f", "x");
      mkdirSync(HOST + "/there");
      for (const to of ["/new/", "/there/", "/there", "/there/.", "/f/.git/x"])
        report(to, (await refused(() => lane.copyFileOut(GUEST + "/f", HOST + to)))[0]);
      report("left", readdirSync(HOST, { recursive: true }));
      await lane.close();`);
    expect(said).toEqual({
      "/new/": "HOST_PATH_INVALID",
      "/there/": "HOST_PATH_INVALID",
      "/there": "HOST_PATH_DIRECTORY",
      "/there/.": "HOST_PATH_DIRECTORY",
      "/f/.git/x": "HOST_PATH_GIT",
      left: ["there"],
    });
  });

  it("comes out as a directory: bounded, without links that lead out, executable only when asked for", async () => {
    const said = await play(`
      const lane = await open({ copyOutRoot: HOST });
      mkdirSync(GUEST + "/tree/sub/empty", { recursive: true });
      writeFileSync(GUEST + "/tree/a", "12345", { mode: 0o755 }); writeFileSync(GUEST + "/tree/sub/b", "678");
      symlinkSync("../a", GUEST + "/tree/sub/in"); symlinkSync("/etc/passwd", GUEST + "/tree/out");
      const x = (path) => (statSync(HOST + path).mode & 0o111) !== 0;
      const names = (dir) => readdirSync(HOST + dir, { recursive: true }).sort().join(" ");
      report("result", await lane.copyOut(GUEST + "/tree", HOST + "/new/tree"));
      report("names", names("/new/tree"));
      report("text", readFileSync(HOST + "/new/tree/sub/in", "utf8"));
      report("x", x("/new/tree/a"));
      await lane.copyOut(GUEST + "/tree", HOST + "/x", { executables: true });
      report("x asked", [x("/x/a"), x("/x/sub/b")]);
      const code = (o, from = "/tree", to = "/no") => refused(() => lane.copyOut(GUEST + from, HOST + to, o)).then((r) => r[0]);
      report("codes", [await code({ maxBytes: 7 }), await code({ maxEntries: 4 }), await code({ maxDepth: 1 }), await code({}, "/tree", "/x"),
        await code({}, "/tree/a"), await code({}, "/none"), await code({}, "/tree/sub/in"), await code({}, "/tree", "/../outside"), await code({}, "/tree", "/.git")]);
      report("left", [names("").includes("no"), left()]);
      await lane.close();`);
    expect(said["result"]).toMatchObject({ files: 5, changed: 0, skipped: 1, skippedPath: "out" });
    expect(said["names"]).toBe("a sub sub/b sub/empty sub/in");
    expect(said["text"]).toBe("12345");
    expect(said["x"]).toBe(false);
    expect(said["x asked"]).toEqual([true, false]);
    expect(said["codes"]).toEqual([
      "TREE_TOO_LARGE",
      "TREE_TOO_LARGE",
      "TREE_TOO_LARGE",
      "HOST_PATH_EXISTS",
      "NOT_A_DIRECTORY",
      "GUEST_FILE_MISSING",
      "IS_LINK",
      "HOST_PATH_REFUSED",
      "HOST_PATH_GIT",
    ]);
    expect(said["left"]).toEqual([false, []]);
  });

  it("may be several things at once, each whole", async () => {
    const said = await play(`
      const lane = await open();
      for (let i = 0; i < 4; i++) writeFileSync(HOST + "/in" + i, randomBytes(5 * MIB + i));
      for (let i = 0; i < 4; i++) writeFileSync(GUEST + "/out" + i, randomBytes(5 * MIB + i));
      const results = await Promise.all([0, 1, 2, 3].flatMap((i) => [
        lane.copyIn(HOST + "/in" + i, GUEST + "/in" + i), lane.copyFileOut(GUEST + "/out" + i, HOST + "/out" + i), lane.exec("echo " + i),
      ]));
      report("bytes", results.filter((r) => r.bytes).map((r) => r.bytes - 5 * MIB));
      report("same", [0, 1, 2, 3].every((i) => ["in", "out"].every((n) => sha(HOST + "/" + n + i) === sha(GUEST + "/" + n + i))));
      report("left", left());
      await lane.close();`);
    expect(said).toEqual({ bytes: [0, 0, 1, 1, 2, 2, 3, 3], same: true, left: [] });
  });
});

describe.each([
  ["copyIn", `lane.copyIn(big(HOST + "/big"), GUEST + "/there", `, "GUEST", "/there"],
  ["copyFileOut", `lane.copyFileOut(big(GUEST + "/big"), HOST + "/there", `, "HOST", "/there"],
  ["copyOut", `lane.copyOut(many(GUEST + "/dir"), HOST + "/there", `, "HOST", "/there"],
])("%s", (name, call, side, target) => {
  it("tells how far it is: rising, at most ten times a second, never after the end", async () => {
    const said = await play(`
      const lane = await open();
      const told = [];
      let over = false;
      const onProgress = (p) => told.push({ ...p, at: performance.now(), late: over });
      const result = await ${call}{ onProgress });
      over = true;
      await sleep(300);
      report("bytes", result.bytes);
      report("some", told.length >= 2);
      report("rising", told.every((p, i) => i === 0 || p.bytes >= told[i - 1].bytes));
      report("within", told.every((p) => p.bytes <= result.bytes && p.files <= result.files && (p.totalBytes ?? result.bytes) === result.bytes));
      report("known", told.at(-1).totalBytes);
      report("rate", Math.max(...told.map((p) => told.filter((q) => q.at >= p.at && q.at < p.at + 1000).length)) <= 10);
      report("late", told.some((p) => p.late));
      await lane.close();`);
    const bytes = 400 * 2 ** 20;
    const known = name === "copyIn" ? bytes : null;
    expect(said).toEqual({ bytes, some: true, rising: true, within: true, known, rate: true, late: false });
  });

  it("piles nothing up for a thread that is busy", async () => {
    const said = await play(`
      const lane = await open();
      let told = 0, after;
      const onProgress = () => {
        if (++told > 1) return;
        for (const end = Date.now() + 1500; Date.now() < end;);
        setImmediate(() => setImmediate(() => { after = told; }));
      };
      await ${call}{ onProgress });
      await sleep(0);
      report("at once", (after ?? told) <= 3);
      await lane.close();`);
    expect(said).toEqual({ "at once": true });
  });

  it("ends by its signal: ABORTED, nothing is left on either side, and the lane goes on", async () => {
    const said = await play(`
      const lane = await open();
      const c = new AbortController();
      let told = 0;
      const onProgress = () => { told++; c.abort(new Error("enough")); };
      report("aborted", await refused(() => ${call}{ signal: c.signal, onProgress })));
      report("told", told);
      report("there", existsSync(${side} + "${target}"));
      report("left", left());
      report("lane", (await lane.exec("echo fine")).stdout);
      await lane.close();`);
    expect(said).toEqual({
      aborted: ["ABORTED", `${name} was aborted by its signal`, "enough"],
      told: 1,
      there: false,
      left: [],
      lane: "fine\n",
    });
  });

  it("ends when onProgress throws", async () => {
    const said = await play(`
      const lane = await open();
      if (${name !== "copyOut"}) writeFileSync(${side} + "${target}", "old");
      report("threw", await refused(() => ${call}{ onProgress: () => { throw new Error("boo"); } })));
      const there = existsSync(${side} + "${target}");
      report("old", there ? readFileSync(${side} + "${target}", "utf8") : "none");
      report("left", left());
      await lane.close();`);
    expect(said).toEqual({
      threw: ["CALLBACK_THREW", "onProgress threw, and the copy was cancelled: boo", "boo"],
      old: name === "copyOut" ? "none" : "old",
      left: [],
    });
  });

  it("ends with its lane", async () => {
    const said = await play(`
      const lane = await open();
      let closed;
      const onProgress = () => { closed ??= lane.close(); };
      report("ended", (await refused(() => ${call}{ onProgress })))[0]);
      await closed;
      report("there", existsSync(HOST + "/there"));
      report("on the host", left().filter((n) => readdirSync(HOST).includes(n)));`);
    expect(said).toEqual({ ended: "LANE_CLOSED", there: false, "on the host": [] });
  });
});

describe("what may come out", () => {
  it("is bounded for a call, and for a lane in all", async () => {
    const said = await play(`
      const lane = await open({ maxCopyOutBytes: 100, maxCopyOutTotalBytes: 250 });
      const other = await open({ maxCopyOutBytes: 100, maxCopyOutTotalBytes: 250 });
      for (const n of [50, 100, 101, 200]) writeFileSync(GUEST + "/" + n, "x".repeat(n));
      const out = (l, n, o) => refused(() => l.copyFileOut(GUEST + "/" + n, HOST + "/" + n, o)).then((r) => Array.isArray(r) ? r[0] : r);
      report("more than a call may", await out(lane, 101));
      report("more than this call may", await out(lane, 50, { maxBytes: 49 }));
      report("its own bound", await out(lane, 200, { maxBytes: 200 }));
      report("one more", await out(lane, 100));
      report("another lane", await out(other, 100));
      report("left", [left(), existsSync(HOST + "/50")]);
      await Promise.all([lane.close(), other.close()]);`);
    expect(said).toEqual({
      "more than a call may": "FILE_TOO_LARGE",
      "more than this call may": "FILE_TOO_LARGE",
      "its own bound": "it succeeded",
      "one more": "COPY_OUT_LIMIT",
      "another lane": "it succeeded",
      left: [[], false],
    });
  });
});
