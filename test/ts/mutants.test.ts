// SPDX-License-Identifier: Apache-2.0
// Each deliberate fault of scripts/mutants.d still has its one place: else it would silently prove nothing any more.
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, it } from "vitest";

const root = fileURLToPath(new URL("../..", import.meta.url));
const dir = join(root, "scripts", "mutants.d");

interface Mutant {
  readonly name: string;
  readonly file: string;
  readonly from: string;
  /** More places, of a build that is weakened in several. */
  readonly and?: readonly { readonly file: string; readonly from: string }[];
}

it("finds the place of every mutant, once", async () => {
  const lists = await Promise.all(
    readdirSync(dir).map(async (file) => Object.values((await import(join(dir, file))) as Record<string, Mutant[]>)),
  );
  const mutants = lists.flat().flat();
  expect(mutants.length).toBeGreaterThan(200);
  const there = ({ file, from }: { file: string; from: string }) => readFileSync(join(root, file), "utf8").split(from).length === 2;
  const lost = mutants.filter((m) => ![m, ...(m.and ?? [])].every(there));
  expect(lost.map((m) => `${m.file}: ${m.name}`)).toEqual([]);
  const names = mutants.map((m) => m.name);
  expect(names.filter((name, i) => names.indexOf(name) !== i)).toEqual([]);
});
