// SPDX-License-Identifier: Apache-2.0
// The edges of src/hook.h are in the test build of the core and nowhere in the product.
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { describe, expect, it } from "vitest";
import { HOOKS } from "../chaos/edges.mjs";

const root = fileURLToPath(new URL("../..", import.meta.url));
const src = join(root, "src");
const inSource = readdirSync(src)
  .filter((f) => f.endsWith(".c"))
  .flatMap((f) => [...readFileSync(join(src, f), "utf8").matchAll(/AL_HOOK\("([^"]+)"\)/g)].map((m) => m[1]!));

/** What a hook leaves in a binary, if anything: names of functions and of the environment. */
const TRACES = ["al_hook", "AGENT_LANE_HOOK"];
const has = (file: string, text: string): boolean => readFileSync(file).includes(text);

describe("hooks", () => {
  it("are the edges that scripts/chaos knows, each once", () => {
    expect([...inSource].sort()).toEqual([...HOOKS].sort());
  });

  it("are not in the product's addon and programs", () => {
    const prebuilt = join(root, "prebuilds", `${process.platform}-${process.arch}`);
    const files = readdirSync(prebuilt).map((f) => join(prebuilt, f));
    expect(files.length).toBeGreaterThan(1);
    for (const file of files) for (const trace of TRACES) expect([file, trace, has(file, trace)]).toEqual([file, trace, false]);
    // A name may be another word's part or a state's; those that are no word of the product tell.
    const telling = inSource.filter((name) => name.includes("-"));
    expect(telling.length).toBeGreaterThan(2);
    for (const file of files)
      for (const name of telling) expect([file, name, has(file, `${name}\0`)]).toEqual([file, name, false]);
  });

  const hooked = join(root, "build/core/hooks/agent_lane.node");
  it.skipIf(!existsSync(hooked))("are in the test build, or the test above would see nothing (skipped: it is not built here)", () => {
    for (const trace of TRACES) expect(has(hooked, trace)).toBe(true);
    for (const name of inSource) expect([name, has(hooked, `${name}\0`)]).toEqual([name, true]);
  });
});
