// SPDX-License-Identifier: Apache-2.0
// The core's part of a project image, on a scripted limactl: whose turn it is to make one, and how a lane's disk becomes one.
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { write } from "./support/image.mjs";
import type { Stage } from "./support/stage.js";
import { stages } from "./support/stages.js";

const stage = stages();

/** qemu-img makes the header of a real overlay: of that alone the store lives. */
const OVERLAY = `
import { writeFileSync } from "node:fs";
const args = process.argv.slice(2), name = Buffer.from(args[args.indexOf("-b") + 1]), h = Buffer.alloc(4096);
h.write("QFI\\xfb", "latin1");
h.writeUInt32BE(3, 4); h.writeBigUInt64BE(512n, 8); h.writeUInt32BE(name.length, 16); h.writeUInt32BE(16, 20);
h.writeBigUInt64BE(BigInt(parseInt(args.at(-1))) << 30n, 24); h.writeUInt32BE(4, 96); h.writeUInt32BE(104, 100);
h.writeUInt32BE(0xe2792aca, 104); h.writeUInt32BE(5, 108); h.write("qcow2", 112);
name.copy(h, 512);
writeFileSync(args.at(-2), h, { mode: 0o600 });
`;

function realOverlays(s: Stage): void {
  write(join(s.dir, "bin", "overlay.mjs"), OVERLAY);
  write(join(s.home, "run", "qemu-img.sh"), `exec '${process.execPath}' '${join(s.dir, "bin", "overlay.mjs")}' "$@"\n`);
}

const PRELUDE = `
  const { createLane } = await import(PACKAGE);
  const { engine } = await import(PACKAGE.replace("index.js", "engine.js"));
  const KEYS = { project: "a".repeat(64), inputsKey: "b".repeat(64) };
  const place = { home: OPTIONS.home, limactlPath: OPTIONS.limactlPath };
  const find = (o = {}) => { const r = engine().start("imageDerived", { ...place, image: PORT.image, ...KEYS, claim: true, ...o }); return r.done.then((v) => ({ ...v, claim: r.id })); };
  const told = (e) => ({ code: e.code, message: e.message });
`;

describe("a turn", () => {
  it("is one caller's until he gives it back, or his process is gone", async () => {
    const s = stage();
    const r = await s.run(`${PRELUDE}
      const first = await find(), second = await find(), look = await find({ claim: false }), else_ = await find({ project: "c".repeat(64) });
      report("claimed", [first, second, look, else_].map((f) => [f.claimed, f.image ?? null]));
      report("parent", first.parent);
      await engine().request("imageUnclaim", { claim: second.claim });
      report("not his", (await find()).claimed);
      await engine().request("imageUnclaim", { claim: first.claim });
      const third = await find();
      report("again", third.claimed);
    `);
    expect(r.err).toBe("");
    expect(r.said["claimed"]).toEqual([[true, null], [false, null], [false, null], [true, null]]);
    expect(r.said["parent"]).toMatch(/^base-[0-9a-f]{12}$/);
    expect([r.said["not his"], r.said["again"]]).toEqual([false, true]);
    const next = await s.run(`${PRELUDE} report("claimed", (await find()).claimed);`);
    expect(next.said["claimed"]).toBe(true);
  });

  it("is refused for what makes no sense", async () => {
    const s = stage();
    const r = await s.run(`${PRELUDE}
      for (const [name, o] of Object.entries({ project: { project: "x" }, key: { inputsKey: "B".repeat(64) }, image: { image: "none" } }))
        report(name, told(await find(o).catch((e) => e)));
    `);
    expect(r.said["project"]).toMatchObject({ code: "BAD_OPTION", message: expect.stringContaining("project") as string });
    expect(r.said["key"]).toMatchObject({ code: "BAD_OPTION", message: expect.stringContaining("inputsKey") as string });
    expect(r.said["image"]).toMatchObject({ code: "IMAGE_MISSING" });
  });
});

describe("a lane's disk", () => {
  it("becomes the image when its VM has ended, and the lane is gone like any other", async () => {
    const s = stage();
    realOverlays(s);
    const r = await s.run(`${PRELUDE}
      const events = [];
      const lane = await createLane({ ...OPTIONS, ...PORT, onEvent: (e) => events.push(e.type) });
      await find();
      const made = await engine().request("derive", { lane: lane.name, ...KEYS });
      report("image", made.image);
      report("closed", [lane.closed, (await lane.exec("true").catch(told)).code, events.slice(-2)]);
      const found = await find();
      report("found", [found.image === made.image, found.claimed]);
      report("others", (await find({ project: "c".repeat(64) })).image ?? null);
      report("derived of derived", told(await find({ image: made.image }).catch((e) => e)));
      const next = await createLane({ ...OPTIONS, ...PORT, image: made.image });
      report("next", next.facts.image === made.image);
      await next.close();
    `);
    expect(r.err).toBe("");
    expect(r.said["image"]).toMatch(/^project-aaaaaaaaaaaa-[0-9a-f]{12}$/);
    expect(r.said["closed"]).toEqual([true, "LANE_CLOSED", ["closing", "closed"]]);
    expect(r.said["found"]).toEqual([true, false]);
    expect(r.said["others"]).toBe(null);
    expect(r.said["derived of derived"]).toMatchObject({ code: "BAD_OPTION" });
    expect(r.said["next"]).toBe(true);
    expect(s.left()).toEqual([]);
    expect(s.sql("SELECT count(*) FROM lanes WHERE state <> 'closed'")).toEqual(["0"]);
    const disk = readFileSync(join(s.home, "images", String(r.said["image"]), "disk.qcow2")).toString("latin1");
    expect(disk).toMatch(/\.\.\/base-[0-9a-f]{12}\/disk\.qcow2/);
    expect(disk).not.toContain(s.home);
  });

  it("that is none leaves no image, and no lane", async () => {
    const s = stage();
    const r = await s.run(`${PRELUDE}
      const lane = await createLane({ ...OPTIONS, ...PORT });
      report("error", told(await engine().request("derive", { lane: lane.name, ...KEYS }).catch((e) => e)));
      report("found", (await find()).image ?? null);
    `);
    expect(r.said["error"]).toMatchObject({ code: "IMAGE_INVALID" });
    expect(r.said["found"]).toBe(null);
    expect(s.left()).toEqual([]);
    expect(readdirSync(join(s.home, "images")).filter((name) => name.startsWith("project-"))).toEqual([]);
  });

  it("is not taken from under a VM that goes on", { timeout: 180_000 }, async () => {
    const s = stage();
    realOverlays(s);
    // Over the shell: nothing tells this QEMU that its guest's channel is gone.
    const r = await s.run(`${PRELUDE}
      const lane = await createLane({ ...OPTIONS, ...PORT, transport: "shell" });
      report("error", told(await engine().request("derive", { lane: lane.name, ...KEYS }).catch((e) => e)));
      report("found", (await find()).image ?? null);
    `, {}, 150_000);
    expect(r.said["error"]).toMatchObject({ code: "DERIVE_FAILED", message: expect.stringContaining("did not power itself off") as string });
    expect(r.said["found"]).toBe(null);
    expect(s.left()).toEqual([]);
  });

  it("needs a lane that is ready, and digests", async () => {
    const s = stage();
    const r = await s.run(`${PRELUDE}
      report("none", told(await engine().request("derive", { lane: "agent-lane-aaaaaaaa-aaaaaaaa", ...KEYS }).catch((e) => e)));
      const lane = await createLane({ ...OPTIONS, ...PORT });
      report("digest", told(await engine().request("derive", { lane: lane.name, project: "x", inputsKey: KEYS.inputsKey }).catch((e) => e)));
      report("open", lane.closed);
      await lane.close();
    `);
    expect(r.said["none"]).toMatchObject({ code: "LANE_CLOSED" });
    expect([r.said["digest"], r.said["open"]]).toMatchObject([{ code: "BAD_OPTION" }, false]);
  });
});
