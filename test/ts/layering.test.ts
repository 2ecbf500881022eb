// SPDX-License-Identifier: Apache-2.0
// Holds the layers of docs/ARCHITECTURE.md: who may include whom, which libraries are seen where, and that no file
// grows too long.
import { readdirSync, readFileSync } from "node:fs";
import { basename, join } from "node:path";
import { fileURLToPath } from "node:url";
import { describe, expect, it } from "vitest";

const root = fileURLToPath(new URL("../..", import.meta.url));

/** Module (file name without extension and part suffix) to layer. The longest matching prefix counts. */
const layers: Record<string, number> = {
  err: 0, mem: 0, utf8: 0, hook: 0,
  buf: 1, queue: 1, tail: 1, lines: 1, names: 1, ignore: 1, sha256: 1, frame: 1, pacing: 1, val: 1, version: 1, platform: 1, lane: 1, tree: 1, tmp: 1, leftover: 1,
  work: 2, proc: 2, db: 2, ask: 2,
  home: 3, image: 3, seal: 3, keeper: 3, lima_procs: 3, teardown: 3, lima: 3, transport: 3, registry: 3, chan: 3, run: 3,
  exec: 4, xfer: 4,
  lane_life: 5, lane_options: 5, lane_create: 5, lane_admit: 5, lane_start: 5, lane_time: 5, lane_destroy: 5, lane_keep: 5, lane_calls: 5,
  lane_guard: 5, lane_evict: 5, lane_exec: 5, lane_copy: 5, lane_derive: 5, lane_tty: 5, lane_attach: 5, reaper: 5, sweep: 5, admin: 5, doctor: 5, site: 5, engine: 5, tty: 5, al: 5,
  lane_manifest: 5, manifest: 5, enforced: 5,
};
/** Neighbours in one layer that may be included, with the reason. */
const siblings: Record<string, string[]> = {
  mem: ["err"], val: ["err"], names: ["err", "utf8"], ignore: ["err"], lines: ["buf", "utf8"], tree: ["names", "frame", "tmp"], tail: ["utf8"], platform: ["names"], leftover: ["platform", "tmp"],
  db: ["work"],
  image: ["home"], // an image lives in the home's store
  lima_procs: ["home"],
  seal: ["names"],
  run: ["home"], // manifests lie in it
  keeper: ["home"], // it installs and starts the program below it
  teardown: ["lima_procs", "seal"], // the steps, for the driver and for the keeper
  lima: ["home", "image", "lima_procs", "seal", "teardown"], // the driver is given the first two
  transport: ["lima", "chan"], // `shell` is limactl's
  registry: ["home", "seal"], // rows of lost lanes are made of their sealed records
  pacing: ["frame"],
  err: ["mem"],
};
const onlyIn: Record<string, RegExp> = {
  "sqlite3.h": /^src\/(db|registry)/,
  "archive.h": /^src\/(xfer|image_tar|image_export)/,
  "archive_entry.h": /^src\/(xfer|image_tar|image_export)/,
  "napi.h": /^binding\//,
};

function moduleOf(file: string): string {
  const name = basename(file).replace(/\.[ch]$/, "");
  const known = Object.keys(layers).filter((m) => name === m || name.startsWith(`${m}_`));
  known.sort((a, b) => b.length - a.length);
  return known[0] ?? name;
}

const list = (dir: string, kind: RegExp) =>
  readdirSync(join(root, dir), { recursive: true }).map(String).filter((f) => kind.test(f)).map((f) => `${dir}/${f}`);
const includes = (file: string) =>
  [...readFileSync(join(root, file), "utf8").matchAll(/^\s*#\s*include\s+["<]([^">]+)[">]/gm)].map((m) => m[1]!);

const core = list("src", /^[^/]+\.[ch]$/);

describe("layers of the core", () => {
  it("knows every module", () => {
    expect(core.map(moduleOf).filter((m) => layers[m] === undefined)).toEqual([]);
  });

  it("is the table of docs/ARCHITECTURE.md", () => {
    const rows = [...readFileSync(join(root, "docs/ARCHITECTURE.md"), "utf8").matchAll(/^\| L(\d) \| ([^|]+) \|/gm)];
    const named = rows.flatMap((row) => [...row[2]!.matchAll(/`(\w+\*?)`/g)].map((m) => ({ layer: Number(row[1]), name: m[1]! })));
    const fits = (name: string, file: string) => (name.endsWith("*") ? file.startsWith(name.slice(0, -1)) : file === name || file.startsWith(`${name}_`));
    const told = (file: string) => named.filter(({ name }) => fits(name, file)).sort((a, b) => b.name.length - a.name.length)[0]?.layer;
    const files = [...new Set(core.map((file) => basename(file).replace(/\.[ch]$/, "")))].filter((file) => file !== "al");
    expect(files.filter((file) => told(file) !== layers[moduleOf(file)]).map((file) => `${file}: L${layers[moduleOf(file)]}, the document says L${told(file)}`)).toEqual([]);
    // And nothing that is not there any more.
    expect(named.filter(({ name }) => !files.some((file) => fits(name, file)))).toEqual([]);
  });

  it("never looks upwards", () => {
    const wrong: string[] = [];
    for (const file of core) {
      const own = moduleOf(file);
      for (const header of includes(file)) {
        const other = moduleOf(header);
        if (!header.endsWith(".h") || layers[other] === undefined || !core.includes(`src/${header}`) || other === own) continue;
        const up = layers[other]! > layers[own]!;
        const beside = layers[other] === layers[own] && layers[own]! < 4 && layers[own] !== 0 && !siblings[own]?.includes(other);
        if (up || beside) wrong.push(`${file} (L${layers[own]}) includes ${header} (L${layers[other]})`);
      }
    }
    expect(wrong).toEqual([]);
  });

  it("keeps each library behind its module", () => {
    const wrong: string[] = [];
    for (const file of [...core, ...list("src/agent", /\.[ch]$/), ...list("src/warden", /\.[ch]$/), ...list("src/keeper", /\.[ch]$/), ...list("binding", /\.(cc|h)$/)])
      for (const header of includes(file)) {
        const where = onlyIn[basename(header)];
        if (where && !where.test(file)) wrong.push(`${file} includes ${header}`);
      }
    expect(wrong).toEqual([]);
  });

  it("shows the binding nothing but al.h", () => {
    const seen = list("binding", /\.(cc|h)$/).flatMap((f) => includes(f).filter((h) => core.includes(`src/${h}`)));
    expect([...new Set(seen)]).toEqual(["al.h"]);
  });

  it("gives the small programs no libuv and only shared headers", () => {
    const allowed = ["frame.h", "pacing.h", "sha256.h", "tmp_name.h", "err.h", "mem.h", "platform.h", "names.h", "keeper_wire.h", "teardown.h"];
    const wrong = ["src/agent", "src/warden", "src/keeper"].flatMap((dir) =>
      list(dir, /\.[ch]$/).flatMap((f) =>
        includes(f).filter((h) => h === "uv.h" || (core.includes(`src/${h}`) && !allowed.includes(h))).map((h) => `${f} includes ${h}`)));
    expect(wrong).toEqual([]);
  });

  it("has no platform conditionals outside the platform files", () => {
    const files = [...core, ...list("binding", /\.(cc|h)$/)].filter((f) => !/^src\/platform/.test(f));
    expect(files.filter((f) => /__APPLE__|__linux__/.test(readFileSync(join(root, f), "utf8")))).toEqual([]);
  });
});

describe("size of files", () => {
  it("keeps one concern to a file", () => {
    const all = [...core, ...list("src/agent", /\.[ch]$/), ...list("src/warden", /\.[ch]$/), ...list("src/keeper", /\.[ch]$/), ...list("binding", /\.(cc|h)$/), ...list("lib", /\.ts$/)];
    const long = all.map((f) => [f, readFileSync(join(root, f), "utf8").split("\n").length] as const).filter(([, n]) => n > 500);
    expect(long).toEqual([]);
  });
});
