// SPDX-License-Identifier: Apache-2.0
// Before all tests: dist/ is what lib/ says, so that tests which start processes run today's code.
import { execFileSync } from "node:child_process";
import { existsSync } from "node:fs";
import { join } from "node:path";

const root = join(import.meta.dirname, "..", "..", "..");

export default function setup(): void {
  const addon = join(root, "prebuilds", `${process.platform}-${process.arch}`, "agent_lane.node");
  if (!existsSync(addon) && (process.env["AL_BINDING"] ?? "") === "")
    throw new Error("the addon is not built: run `npm run build:native` first (these tests skip nothing)");
  execFileSync(join(root, "scripts", "build-ts"), { stdio: "inherit" });
}
