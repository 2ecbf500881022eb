// SPDX-License-Identifier: Apache-2.0
// agent-lane image: the store of guest images.
import type { Command } from "commander";
import { engine } from "../../engine.js";
import { bytes, plain, print, printJson, table } from "../output.js";
import { addCommon, common, pathArgument, type CommonOptions } from "./common.js";

type Row = Readonly<Record<string, unknown>>;

function cells(row: Row): string[] {
  return [
    plain(row["id"]),
    plain(row["flavour"]),
    plain(row["version"]),
    plain(row["arch"]),
    typeof row["bytes"] === "number" ? bytes(row["bytes"]) : "",
    plain(row["created"]),
  ];
}

const HEADER = ["id", "flavour", "version", "arch", "size", "created"];

export function addImage(program: Command): void {
  const image = program.command("image").description("the guest images of the store");
  addCommon(image.command("import"))
    .description("copy a built image into the store, checking every file against its manifest")
    .argument("<dir>", "directory with manifest.json and its files", pathArgument)
    .option("--json", "print the image as a JSON object")
    .addHelpText("after", "\nExample:\n  agent-lane image import image/out/base")
    .action(async (dir: string, options: CommonOptions & { json?: boolean }) => {
      const row = await engine().request<Row>("imageImport", { ...common(options), from: dir });
      if (options.json === true) return printJson(row);
      print(`imported ${plain(row["id"])}`);
    });
  addCommon(image.command("ls"))
    .description("list the images")
    .option("--json", "print a JSON array")
    .addHelpText("after", "\nExample:\n  agent-lane image ls")
    .action(async (options: CommonOptions & { json?: boolean }) => {
      const rows = await engine().request<readonly Row[]>("imageList", common(options));
      if (options.json === true) return printJson(rows);
      print(
        rows.length === 0
          ? "There is no image yet. Import one: agent-lane image import DIR"
          : table(HEADER, rows.map(cells)),
      );
    });
}
