// SPDX-License-Identifier: Apache-2.0
// Run manifests as docs/RUNS.md describes them, checked and forged without any code of the product's.
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { Ajv2020, type ValidateFunction } from "ajv/dist/2020.js";

const root = join(import.meta.dirname, "..", "..", "..");

export type Line = Record<string, unknown> & { event: string; n: number; prev: string; sha256: string };

const hashOf = (text: string): string => createHash("sha256").update(text).digest("hex");
const TAIL = /,"sha256":"([0-9a-f]{64})"\}$/;

export const validate: ValidateFunction = new Ajv2020({ allowUnionTypes: true }).compile(
  JSON.parse(readFileSync(join(root, "docs", "run-manifest.schema.json"), "utf8")) as object,
);

/** The events, or a throw that says what does not hold. */
export function readManifest(text: string): Line[] {
  if (!text.endsWith("\n")) throw new Error("no newline at the end");
  let prev = "0".repeat(64);
  return text.slice(0, -1).split("\n").map((raw, i) => {
    const [tail, hash] = TAIL.exec(raw) ?? [];
    if (tail === undefined || hash !== hashOf(raw.slice(0, -tail.length))) throw new Error(`line ${i + 1}: hash`);
    const line = JSON.parse(raw) as Line;
    if (line.n !== i || line.prev !== prev) throw new Error(`line ${i + 1}: chain`);
    if (JSON.stringify(line) !== raw) throw new Error(`line ${i + 1}: form`);
    if (!validate(line)) throw new Error(`line ${i + 1}: ${JSON.stringify(validate.errors)}`);
    prev = hash!;
    return line;
  });
}

/** Lines with a chain that fits, whatever they say. */
export function forge(lines: readonly object[]): string {
  let prev = "0".repeat(64);
  return lines
    .map((line, n) => {
      const { n: _n, prev: _prev, sha256: _sha256, ...rest } = line as Line;
      const body = JSON.stringify({ n, prev, ...rest }).slice(0, -1);
      prev = hashOf(body);
      return `${body},"sha256":"${prev}"}\n`;
    })
    .join("");
}
