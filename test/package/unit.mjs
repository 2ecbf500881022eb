// SPDX-License-Identifier: Apache-2.0
// What of the package needs no VM, run by the Node of one target: unit.mjs PACKAGE TARGET SCRATCH. Prints one line of JSON.
// PACKAGE is an installed copy. What the addon has inside is used: SQLite by the registry, libarchive by an image's archive.
import { mkdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { makeImage } from "../ts/support/image.mjs";

const [pkg, target, scratch] = process.argv.slice(2);
const load = (name) => import(pathToFileURL(join(pkg, "dist", name)).href);
const { native, hostTarget } = await load("native.js");
const { engine } = await load("engine.js");

const home = join(scratch, "h");
mkdirSync(home, { mode: 0o700 });
makeImage(join(scratch, "image"));
const call = (op, params = {}) => engine().request(op, { home, ...params });

const said = { node: process.version, arch: process.arch, target: hostTarget(), expected: target, addon: Object.keys(native()).sort() };
said.errors = (await engine().request("errors")).length;
said.lanes = await call("list");
const imported = await call("imageImport", { from: join(scratch, "image") });
await call("imageExport", { image: imported.id, to: join(scratch, "image.tar") });
await call("imageRemove", { image: imported.id });
said.none = (await call("imageList")).length;
const again = await call("imageImport", { from: join(scratch, "image.tar") });
said.same = again.id === imported.id;
said.closed = engine().close(2000);
rmSync(scratch, { recursive: true, force: true });
console.log(JSON.stringify(said));
