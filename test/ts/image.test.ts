// SPDX-License-Identifier: Apache-2.0
// The commands of the store of images, and what a lane thinks of an image that is not as it was.
import { expect, it, vi } from "vitest";
import { stages } from "./support/stages.js";

// Each starts processes and some a lane, on a machine that may be busy.
vi.setConfig({ testTimeout: 100_000 });

const stage = stages();

const KIT = `
  import { execFileSync, spawn } from "node:child_process";
  import { chmodSync, existsSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
  import { setTimeout as sleep } from "node:timers/promises";
  const { signer } = await import(new URL("minisign.mjs", LOAD).href);
  const { createLane } = await import(PACKAGE);
  const CLI = new URL("cli/main.js", PACKAGE).pathname, IMAGE = OPTIONS.image, STORE = OPTIONS.home + "/images";
  function start(...args) {
    const child = spawn(process.execPath, [CLI, "image", ...args, "--home", OPTIONS.home], { stdio: ["ignore", "pipe", "pipe"] });
    let out = "", err = "";
    child.stdout.on("data", (d) => (out += d));
    child.stderr.on("data", (d) => (err += d));
    const ended = new Promise((ok) => child.on("close", (code, signal) => ok({ code: code ?? signal, out, err })));
    return Object.assign(child, { ended });
  }
  const cli = (...args) => start(...args).ended;
  const json = async (...args) => JSON.parse((await cli(...args, "--json")).out);
  const manifest = () => readFileSync(IMAGE + "/manifest.json");
  const COPY = WT + "/image";
  /** A copy of the image that may be changed. */
  function copy(change = (m) => m) {
    rmSync(COPY, { recursive: true, force: true });
    mkdirSync(COPY);
    for (const name of readdirSync(IMAGE)) writeFileSync(COPY + "/" + name, readFileSync(IMAGE + "/" + name));
    writeFileSync(COPY + "/manifest.json", JSON.stringify(change(JSON.parse(manifest()))));
    return COPY;
  }
  function flip(path, at = 0) {
    const bytes = readFileSync(path);
    bytes[at] ^= 1;
    chmodSync(path, 0o600);
    writeFileSync(path, bytes);
    chmodSync(path, 0o400);
  }
`;

async function run(script: string, timeout?: number): Promise<Record<string, never>> {
  const s = stage({ guest: "agent" });
  s.addCommand();
  const r = await s.run(`${KIT}${script}`, {}, timeout);
  expect(r.err).toBe("");
  expect(r.status).toBe(0);
  expect(s.left()).toEqual([]);
  return r.said;
}

interface Ended {
  readonly code: number;
  readonly out: string;
  readonly err: string;
}

it("import, ls, inspect, verify, export, rm: from a directory to an archive and back", async () => {
  const said = await run(`
    report("none", await cli("ls"));
    const row = await json("import", IMAGE);
    report("row", row);
    report("again", await cli("import", IMAGE));
    report("ls", await json("ls"));
    report("table", await cli("ls"));
    report("inspect", await json("inspect", "base"));
    report("text", await cli("inspect", row.id));
    report("verify", await cli("verify", row.id));
    report("all", await json("verify", "--all"));
    report("neither", await cli("verify"));
    report("both", await cli("verify", "base", "--all"));
    report("export", await json("export", "base", WT + "/base.tar"));
    report("over", await cli("export", "base", WT + "/base.tar"));
    report("rm", await json("rm", row.id));
    report("gone", await cli("rm", row.id));
    report("left", readdirSync(STORE));
    report("tar", await json("import", WT + "/base.tar"));
    report("modes", readdirSync(STORE + "/" + row.id).length);
    report("missing", await cli("inspect", "nothing"));
  `);
  const row = said["row"] as { id: string; manifestSha256: string };
  expect(row.id).toMatch(/^base-[0-9a-f]{12}$/);
  expect(row.manifestSha256.startsWith(row.id.slice(5))).toBe(true);
  expect((said["none"] as Ended).out).toContain("There is no image yet");
  expect(said["again"]).toEqual({ code: 0, out: `imported ${row.id}\n`, err: "" });
  const [listed] = said["ls"] as Record<string, unknown>[];
  expect(listed).toMatchObject({ id: row.id, name: "base", signed: false, untrustedSetup: false });
  expect((said["table"] as Ended).out).toContain(row.id);
  expect(said["inspect"]).toMatchObject({
    id: row.id,
    signature: { state: "unsigned" },
    manifest: { format: "agent-lane-image/1", files: [{ name: "disk.qcow2" }, {}, {}, { role: "sbom" }] },
  });
  expect((said["text"] as Ended).out).toMatch(/signature: +unsigned/);
  expect(said["verify"]).toEqual({ code: 0, out: `${row.id}: every byte is what was imported\n`, err: "" });
  expect(said["all"]).toEqual([{ id: row.id, ok: true }]);
  for (const wrong of ["neither", "both"]) expect(said[wrong]).toMatchObject({ code: 2, out: "" });
  expect(said["export"]).toMatchObject({ id: row.id });
  expect(said["over"]).toMatchObject({ code: 1, err: expect.stringMatching(/^error IO_ERROR: .*already/) as string });
  expect(said["rm"]).toEqual({ removed: [row.id] });
  expect(said["gone"]).toMatchObject({ code: 1, err: expect.stringMatching(/^error IMAGE_MISSING: /) as string });
  expect(said["left"]).toEqual([]);
  expect((said["tar"] as { id: string }).id).toBe(row.id);
  expect(said["modes"]).toBe(5);
  expect(said["missing"]).toMatchObject({ code: 1, err: expect.stringMatching(/^error IMAGE_MISSING: /) as string });
});

it("a changed byte of any file: verify says it and exits 1, and no lane starts", async () => {
  const said = await run(`
    const { id } = await json("import", IMAGE);
    const found = {};
    for (const file of readdirSync(STORE + "/" + id).filter((name) => name !== ".verified")) {
      flip(STORE + "/" + id + "/" + file, 1);
      found[file] = {
        verify: await cli("verify", id),
        all: await cli("verify", "--all", "--json"),
        lane: await failure(() => createLane({ ...OPTIONS, image: id })),
      };
      flip(STORE + "/" + id + "/" + file, 1);
    }
    report("found", found);
    report("good", await cli("verify", "--all"));
  `);
  const found = Object.entries(said["found"] as Record<string, { verify: Ended; all: Ended; lane: { code: string } }>);
  expect(found.map(([name]) => name).sort()).toEqual(["disk.qcow2", "initrd.img", "manifest.json", "sbom.spdx.json", "vmlinuz"]);
  for (const [name, { verify, all, lane }] of found) {
    expect(verify, name).toMatchObject({ code: 1, out: "", err: expect.stringMatching(/^error IMAGE_CORRUPT: .*\ncure: /) as string });
    expect(JSON.parse(all.out), name).toMatchObject([{ ok: false, code: "IMAGE_CORRUPT" }]);
    expect(all.code, name).toBe(1);
    expect(lane.code, name).toBe("IMAGE_CORRUPT");
  }
  expect(said["good"]).toMatchObject({ code: 0 });
});

it("rm and prune leave what an open lane uses, and prune what is the newest", async () => {
  const said = await run(`
    const { id } = await json("import", IMAGE);
    const lane = await createLane({ ...OPTIONS, image: id });
    report("used", await cli("rm", id));
    const { id: newer } = await json("import", copy((m) => ({ ...m, created: "2026-01-02T00:00:00Z" })));
    report("kept", await json("prune"));
    await lane.close();
    report("dry", await json("prune", "--dry-run"));
    report("both", readdirSync(STORE).sort());
    mkdirSync(STORE + "/.aside.0123456789abcdef");
    report("table", await cli("prune"));
    report("one", readdirSync(STORE));
    report("nothing", await cli("prune"));
    report("lane", lane.name);
    report("ids", [id, newer]);
    report("rm", await cli("rm", newer));
  `);
  const [id, newer] = said["ids"] as string[];
  expect(said["used"]).toMatchObject({
    code: 1,
    err: expect.stringMatching(new RegExp(`^error IMAGE_IN_USE: .*${String(said["lane"])}`)) as string,
  });
  expect(said["kept"]).toMatchObject({ removed: [], kept: [{ id }] });
  expect(said["dry"]).toMatchObject({ removed: [{ id }], kept: [], dryRun: true });
  expect(said["both"]).toEqual([id, newer].sort());
  expect((said["table"] as Ended).out).toMatch(new RegExp(`${id} .*removed[^]*1 left by interrupted`));
  expect(said["one"]).toEqual([newer]);
  expect((said["nothing"] as Ended).out).toBe("There is nothing to remove.\n");
  expect(said["rm"]).toEqual({ code: 0, out: `removed ${newer}\n`, err: "" });
});

it("with a pinned key only what it has signed is imported, verified and started from", async () => {
  const said = await run(`
    const own = signer(), other = signer();
    const mine = { ...OPTIONS, imageKeys: [own.publicKey] };
    report("id", own.id);
    report("unsigned", await cli("import", IMAGE, "--key", own.publicKey));
    report("path", await failure(() => createLane(mine)));
    report("store", readdirSync(STORE));
    const { id } = await json("import", IMAGE);
    report("name", await failure(() => createLane({ ...mine, image: id })));
    report("default", await failure(() => createLane({ ...mine, image: undefined })));
    report("verify", await cli("verify", id, "--key", own.publicKey));
    // By somebody else; by the right key, but over another manifest; by the right one.
    const signed = copy((m) => ({ ...m, created: "2026-01-02T00:00:00Z" }));
    const file = signed + "/manifest.json.minisig", bytes = readFileSync(signed + "/manifest.json");
    writeFileSync(file, other.sign(bytes));
    report("other", await failure(() => createLane({ ...mine, image: signed })));
    writeFileSync(file, own.sign(Buffer.concat([bytes, Buffer.from(" ")])));
    report("wrong", await failure(() => createLane({ ...mine, image: signed })));
    const before = readdirSync(STORE).length;
    writeFileSync(file, own.sign(bytes, "a comment"));
    const asked = { ...OPTIONS, imageKeys: [other.publicKey, own.publicKey], image: signed };
    const lane = await createLane(asked);
    await lane.close();
    const first = (path) => JSON.parse(readFileSync(path, "utf8").split("\\n")[0]);
    report("keys", asked.imageKeys);
    report("manifest", first(lane.facts.manifest));
    report("words", execFileSync(process.execPath, [CLI, "inspect", lane.name, "--home", OPTIONS.home], { encoding: "utf8" }));
    const unasked = await createLane({ ...OPTIONS, image: signed });
    await unasked.close();
    report("unasked", first(unasked.facts.manifest));
    const none = await createLane({ ...OPTIONS, image: id });
    await none.close();
    report("none", first(none.facts.manifest));
    report("imported", readdirSync(STORE).length - before);
    const row = (await json("ls")).find((each) => each.signed);
    const again = await createLane({ ...mine, image: row.id });
    await again.close();
    // Two in the store, each by another key: the manifest names the right one for each.
    const theirs = copy((m) => ({ ...m, created: "2026-01-03T00:00:00Z" }));
    writeFileSync(theirs + "/manifest.json.minisig", other.sign(readFileSync(theirs + "/manifest.json")));
    const each = [];
    for (const image of [(await json("import", theirs)).id, row.id]) {
      const lane = await createLane({ ...asked, image });
      await lane.close();
      each.push(first(lane.facts.manifest).image.signature.key);
    }
    report("each", each);
    writeFileSync(WT + "/minisign.pub", "untrusted comment: minisign public key\\n" + own.publicKey + "\\n");
    report("valid", await json("inspect", row.id, "--key", WT + "/minisign.pub"));
    report("text", await cli("inspect", row.id, "--key", own.publicKey));
    report("unchecked", await cli("inspect", row.id));
    report("good", await cli("verify", row.id, "--key", own.publicKey));
    report("bad", await cli("verify", row.id, "--key", other.publicKey));
    report("tar", await cli("export", row.id, WT + "/signed.tar"));
    report("fromTar", await cli("import", WT + "/signed.tar", "--key", own.publicKey));
    report("fromTarBad", await cli("import", WT + "/signed.tar", "--key", other.publicKey));
    report("noKey", await cli("import", signed, "--key", "nonsense"));
    // A caller of the core that has checked nothing is not believed.
    const { engine } = await import(new URL("engine.js", PACKAGE).href);
    const { resolveOptions } = await import(new URL("options.js", PACKAGE).href);
    report("raw", await failure(() => engine().request("create", { ...resolveOptions(mine), syncInTimeoutSeconds: 0 })));
    flip(STORE + "/" + row.id + "/manifest.json.minisig", 200);
    report("damaged", await failure(() => createLane({ ...OPTIONS, image: row.id })));
  `);
  for (const name of ["unsigned", "verify", "bad", "fromTarBad"])
    expect(said[name], name).toMatchObject({ code: 1, err: expect.stringMatching(/^error IMAGE_UNTRUSTED: /) as string });
  for (const name of ["path", "name", "default", "other", "wrong"])
    expect(said[name], name).toMatchObject({ code: "IMAGE_UNTRUSTED" });
  expect(said["store"]).toEqual([]);
  expect(said["imported"]).toBe(1);
  // The run manifest: what was asked for, and who has signed.
  const [, ours] = said["keys"] as string[];
  const manifest = said["manifest"] as { image: { manifestSha256: string } };
  const signature = { manifestSha256: manifest.image.manifestSha256, keyId: said["id"], key: ours };
  expect(manifest).toMatchObject({ image: { signature }, options: { imageKeys: said["keys"] } });
  expect(said["each"]).toEqual(said["keys"]);
  expect(said["words"]).toContain(`signed by ${ours}`);
  expect(said["unasked"]).toMatchObject({ image: { signature: { ...signature, key: null } }, options: { imageKeys: null } });
  expect(said["none"]).toMatchObject({ image: { signature: null }, options: { imageKeys: null } });
  expect((said["valid"] as { signature: object }).signature).toEqual({ state: "valid", keyId: said["id"], key: ours, comment: "a comment" });
  expect((said["text"] as Ended).out).toMatch(/signature: +valid, by key [0-9A-F]{16}: a comment/);
  expect((said["unchecked"] as Ended).out).toMatch(/signature: +by key [0-9A-F]{16}, not checked/);
  for (const name of ["good", "tar", "fromTar"]) expect(said[name], name).toMatchObject({ code: 0 });
  expect(said["noKey"]).toMatchObject({ code: 2, out: "" });
  expect(said["raw"]).toMatchObject({ code: "BAD_OPTION", message: expect.stringContaining("imageDigests") as string });
  expect(said["damaged"]).toMatchObject({ code: "IMAGE_CORRUPT" });
});

it("an image of an earlier version is refused with its cure", async () => {
  const said = await run(`
    const old = copy(({ format, ...m }) => ({ schema: 1, ...m }));
    report("import", await cli("import", old));
    report("lane", await failure(() => createLane({ ...OPTIONS, image: old })));
  `);
  expect(said["import"]).toMatchObject({
    code: 1,
    err: expect.stringMatching(/^error IMAGE_FORMAT: .*earlier version[^]*\ncure: .*image\/build/) as string,
  });
  expect(said["lane"]).toMatchObject({ code: "IMAGE_FORMAT" });
});

// Nightly 24 times.
const KILLS = process.env["AL_LONG"] === "1" ? 24 : 8;

it("killed at any moment, import, export and rm leave nothing half", async () => {
  const said = await run(`
    // Large enough to be caught in the middle.
    const { createHash } = await import("node:crypto");
    const big = copy((m) => m);
    const bytes = Buffer.alloc(24 << 20, "x");
    writeFileSync(big + "/vmlinuz", bytes);
    const m = JSON.parse(manifest());
    Object.assign(m.files.find((f) => f.name === "vmlinuz"), { size: bytes.length, sha256: createHash("sha256").update(bytes).digest("hex") });
    writeFileSync(big + "/manifest.json", JSON.stringify(m));
    let images = 0, archives = 0, wrong = [];
    for (let i = 0; i < ${KILLS}; i++) {
      const before = await json("import", big);
      const tar = WT + "/big-" + i + ".tar";
      const args = [["import", big], ["export", before.id, tar], ["rm", before.id], ["prune"]][i % 4];
      if (i % 4 === 0) await cli("rm", before.id);
      const child = start(...args);
      await sleep(100 + ((i * 7919) % 400));
      child.kill("SIGKILL");
      await child.ended;
      const rows = await json("verify", "--all");
      images += rows.length;
      wrong.push(...rows.filter((row) => !row.ok).map((row) => [args, row]));
      if (existsSync(tar)) {
        archives++;
        if ((await cli("import", tar)).code !== 0) wrong.push(tar);
      }
      rmSync(tar, { force: true });
    }
    report("wrong", wrong);
    report("seen", { images, archives });
    await cli("prune");
    report("left", readdirSync(STORE).length <= 1);
  `, 380_000);
  expect(said["wrong"]).toEqual([]);
  expect(said["left"]).toBe(true);
}, 400_000);
