// SPDX-License-Identifier: Apache-2.0
// agent-lane image: the store of guest images.
import { readFileSync } from "node:fs";
import { InvalidArgumentError, type Command } from "commander";
import type { CopyProgress } from "../../copy.js";
import { engine } from "../../engine.js";
import { asLaneError } from "../../errors.js";
import { keysOf, signatures, signedDigests } from "../../images.js";
import { publicKey, type Verdict } from "../../minisign.js";
import type { NativeValue } from "../../native.js";
import { Bar } from "../bar.js";
import { interruptible } from "../interrupt.js";
import { bytes, complain, plain, print, printJson, table } from "../output.js";
import { addCommon, common, pathArgument, type CommonOptions } from "./common.js";
import { addImageBuild } from "./image-build.js";
import { addImagePrepare } from "./image-prepare.js";

type Row = Readonly<Record<string, unknown>>;

interface ImageOptions extends CommonOptions {
  readonly json?: boolean;
  readonly key?: readonly string[];
}

const HEADER = ["id", "flavour", "version", "arch", "size", "created", ""];
// A bar that is gone before it can be read is only a flicker.
const BAR_AFTER_MS = 1000;

function notes(row: Row): string {
  if (row["problem"] !== undefined) return plain(row["problem"]);
  const said = [row["signed"] === true && "signed", row["untrustedSetup"] === true && "untrusted setup"];
  if (row["parent"] !== undefined) said.push(`from ${plain(row["parent"])}`);
  return said.filter(Boolean).join(", ");
}

function cells(row: Row): string[] {
  const size = typeof row["bytes"] === "number" ? bytes(row["bytes"]) : "";
  const texts = ["id", "flavour", "version", "arch"].map((name) => plain(row[name]));
  return [...texts, size, plain(row["created"]), notes(row)];
}

/** A public key, or the path of the file in which minisign keeps one. */
function keyArgument(value: string, all: readonly string[] = []): string[] {
  let text = value;
  if (publicKey(text) === undefined) {
    try {
      text = readFileSync(value, "utf8").trim().split("\n").at(-1)?.trim() ?? "";
    } catch {
      // It is neither a file: said below.
    }
  }
  if (publicKey(text) === undefined)
    throw new InvalidArgumentError("It must be a public key of minisign, or the path of a minisign.pub.");
  return [...all, text];
}

/** A request that copies or hashes: a bar when it takes long, and Ctrl-C ends it and takes back what is half done. */
async function long(op: string, params: { readonly [key: string]: NativeValue }, done: (row: Row) => void): Promise<void> {
  await interruptible(async () => {
    const bar = Bar.seen ? new Bar() : undefined;
    const begun = Date.now();
    const onProgress = (progress: CopyProgress): void => {
      if (Date.now() - begun >= BAR_AFTER_MS) bar?.update(progress);
    };
    try {
      const row = await engine().start<Row>(op, { ...params, progress: true }, { onProgress }).done;
      bar?.stop();
      done(row);
    } finally {
      bar?.stop();
    }
  });
}

/** What is asked for by --key: only images that one of them has signed. */
async function trust(options: ImageOptions, from?: string): Promise<{ imageDigests?: readonly string[] }> {
  if (options.key === undefined) return {};
  return { imageDigests: await signedDigests(engine(), options, options.key, from) };
}

async function importImage(path: string, options: ImageOptions): Promise<void> {
  const params = { ...common(options), ...(await trust(options, path)), from: path };
  await long("imageImport", params, (row) => {
    if (options.json === true) printJson(row);
    else print(`imported ${plain(row["id"])}`);
  });
}

async function exportImage(id: string, path: string, options: ImageOptions): Promise<void> {
  await long("imageExport", { ...common(options), image: id, to: path }, (row) => {
    if (options.json === true) printJson(row);
    else print(`exported ${plain(row["id"])} to ${plain(path)}`);
  });
}

async function list(options: ImageOptions): Promise<void> {
  const rows = await engine().request<readonly Row[]>("imageList", common(options));
  if (options.json === true) return printJson(rows);
  print(
    rows.length === 0
      ? "There is no image yet. Import one: agent-lane image import DIR"
      : table(HEADER, rows.map(cells)),
  );
}

function signatureWords(verdict: Verdict | undefined): string {
  switch (verdict?.state) {
    case undefined:
      return "unsigned";
    case "valid":
      return `valid, by key ${verdict.keyId}: ${verdict.comment}`;
    case "unchecked":
      return `by key ${verdict.keyId}, not checked: that key was not given (--key)`;
    case "invalid":
      return `not valid: ${verdict.why}`;
  }
}

interface Manifest {
  readonly files: readonly { readonly name: string; readonly role: string; readonly size: number; readonly sha256: string }[];
  readonly features?: readonly string[];
  readonly inputs?: readonly unknown[];
  readonly recipe_sha256?: string;
}

function describe(row: Row, verdict: Verdict | undefined): string {
  const { files, features = [], inputs = [], recipe_sha256: recipe } = JSON.parse(String(row["manifest"])) as Manifest;
  const facts: [string, string][] = [
    ...["id", "name", "flavour", "version", "arch", "created"].map((name): [string, string] => [name, plain(row[name])]),
    ["manifest", `sha256 ${plain(row["manifestSha256"])}`],
    ["recipe", `sha256 ${plain(recipe)}`],
    ["signature", plain(signatureWords(verdict))],
    ["features", features.map(plain).join(", ")],
    ["inputs", String(inputs.length)],
    ["directory", plain(row["dir"])],
  ];
  if (row["parent"] !== undefined) facts.push(["derived from", plain(row["parent"])]);
  if (row["untrustedSetup"] === true) facts.push(["untrusted setup", "code of a project has run in it while it was made"]);
  const lines = facts.map(([name, value]) => `${`${name}:`.padEnd(17)}${value}`);
  const rows = files.map((f) => [plain(f.name), plain(f.role), bytes(f.size), plain(f.sha256)]);
  return [...lines, "", table(["file", "role", "size", "sha256"], rows)].join("\n");
}

async function inspect(id: string, options: ImageOptions): Promise<void> {
  const row = await engine().request<Row>("imageInspect", { ...common(options), image: id });
  const all = await signatures(engine(), options, keysOf(options.key ?? []));
  const verdict = all.find((each) => each.id === row["id"])?.verdict;
  const { manifest, ...rest } = row;
  if (options.json === true) {
    const parsed = manifest === undefined ? undefined : (JSON.parse(String(manifest)) as unknown);
    return printJson({ ...rest, signature: verdict ?? { state: "unsigned" }, manifest: parsed });
  }
  if (manifest === undefined) print(`${plain(row["id"])}: ${plain(row["problem"])}`);
  else print(describe(row, verdict));
}

interface VerifyOptions extends ImageOptions {
  readonly all?: boolean;
}

async function verify(id: string | undefined, options: VerifyOptions, self: Command): Promise<void> {
  if ((id === undefined) !== (options.all === true)) self.error("error: name one image, or say --all");
  const rows = id === undefined ? await engine().request<readonly Row[]>("imageList", common(options)) : [{ id }];
  const trusted = await trust(options);
  const report: Row[] = [];
  for (const row of rows) {
    const image = String(row["id"]);
    try {
      await long("imageVerify", { ...common(options), ...trusted, image }, (found) => {
        report.push({ id: found["id"], ok: true });
        if (options.json !== true) print(`${plain(found["id"])}: every byte is what was imported`);
      });
    } catch (thrown) {
      const { code, message, cure } = asLaneError(thrown);
      report.push({ id: image, ok: false, code, message, cure });
      process.exitCode = 1;
      if (options.json !== true) complain(thrown);
    }
    if (process.exitCode !== undefined && process.exitCode !== 1) return; // a signal
  }
  if (options.json === true) printJson(report);
  else if (rows.length === 0) print("There is no image.");
}

interface Removal {
  readonly removed: readonly Row[];
  readonly kept: readonly Row[];
  readonly leftovers: number;
}

async function remove(id: string, options: ImageOptions): Promise<void> {
  const { removed } = await engine().request<Removal>("imageRemove", { ...common(options), image: id });
  if (options.json === true) return printJson({ removed: removed.map((row) => row["id"]) });
  print(`removed ${plain(id)}`);
}

async function prune(options: ImageOptions & { readonly dryRun?: boolean }): Promise<void> {
  const dryRun = options.dryRun ?? false;
  const report = await engine().request<Removal>("imagePrune", { ...common(options), dryRun });
  if (options.json === true) return printJson(report);
  const row = (what: string) => (each: Row): string[] => {
    const size = typeof each["bytes"] === "number" ? bytes(each["bytes"]) : "";
    return [plain(each["id"]), what, size, plain(each["reason"])];
  };
  const { removed, kept, leftovers } = report;
  const rows = [...removed.map(row(dryRun ? "would be removed" : "removed")), ...kept.map(row("kept"))];
  print(rows.length === 0 ? "There is nothing to remove." : table(["id", "", "size", "why"], rows));
  if (leftovers > 0) print(`${leftovers} left by interrupted commands removed`);
}

const KEY = "a public key of minisign, or its file: refuse images that no such key has signed (repeatable)";
const JSON_OBJECT = "print one JSON object";

export function addImage(program: Command): void {
  const image = program.command("image").description("build, store and look after guest images");
  image.addHelpText("after", "\nExamples:\n  agent-lane image ls\n  agent-lane image import DIR\n  agent-lane image import --help");
  addImageBuild(image);
  addImagePrepare(image);
  addCommon(image.command("import"))
    .description("copy a built image into the store, checking every file against its manifest")
    .argument("<path>", "directory with manifest.json and its files, or a tar archive of one", pathArgument)
    .option("--key <key>", KEY, keyArgument)
    .option("--json", "print the image as a JSON object")
    .addHelpText(
      "after",
      "\nAn archive has manifest.json as its first entry, as `agent-lane image export` makes it; it is not compressed.\n" +
        "\nExamples:\n  agent-lane image import image/out/base\n  agent-lane image import base.tar --key minisign.pub",
    )
    .action(importImage);
  addCommon(image.command("export"))
    .description("write an image of the store to a tar archive, checking every file on the way")
    .argument("<id>", "an image's id, or a name that only one has")
    .argument("<tar>", "the archive, where nothing is yet", pathArgument)
    .option("--json", JSON_OBJECT)
    .addHelpText("after", "\nExample:\n  agent-lane image export base base.tar")
    .action(exportImage);
  addCommon(image.command("ls"))
    .description("list the images")
    .option("--json", "print a JSON array")
    .addHelpText("after", "\nExample:\n  agent-lane image ls")
    .action(list);
  addCommon(image.command("inspect"))
    .description("all that is known of an image: files with digests, signature, inputs, what it was derived from")
    .argument("<id>", "an image's id, or a name that only one has")
    .option("--key <key>", "a public key of minisign, or its file, to check the signature with (repeatable)", keyArgument)
    .option("--json", JSON_OBJECT)
    .addHelpText("after", "\nExamples:\n  agent-lane image inspect base\n  agent-lane image inspect base --key minisign.pub")
    .action(inspect);
  addCommon(image.command("verify"))
    .description("hash every file of an image, whatever was found earlier; a lane refuses what fails here")
    .argument("[id]", "an image's id, or a name that only one has")
    .option("--all", "all images of the store")
    .option("--key <key>", KEY, keyArgument)
    .option("--json", "print a JSON array")
    .addHelpText("after", "\nExits 1 when an image is not whole.\n\nExamples:\n  agent-lane image verify base\n  agent-lane image verify --all")
    .action(verify);
  addCommon(image.command("rm"))
    .description("remove one image that no open lane and no other image needs")
    .argument("<id>", "the image's id")
    .option("--json", JSON_OBJECT)
    .addHelpText("after", "\nExample:\n  agent-lane image rm base-0123456789ab")
    .action(remove);
  addCommon(image.command("prune"))
    .description("remove images of which there is a newer one, but none that is needed, and what was left by interruptions")
    .option("--dry-run", "say what would be removed, and do nothing")
    .option("--json", JSON_OBJECT)
    .addHelpText("after", "\nExamples:\n  agent-lane image prune --dry-run\n  agent-lane image prune")
    .action(prune);
}
