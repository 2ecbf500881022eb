// SPDX-License-Identifier: Apache-2.0
// A repository on the host in which a lane may put files, beside things that nothing may touch.
import assert from "node:assert/strict";
import { linkSync, mkdirSync, readdirSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { scratch } from "./lanes.mjs";
import { differences, hostManifest } from "./manifest.mjs";

export const SECRET = "the host's secret\n";

/** {repo, outside, untouched(): throws when anything but files of the repository's worktree has changed}. */
export function makeWorld() {
  const world = scratch("transfer"),
    repo = join(world, "repo"),
    outside = join(world, "outside");
  for (const dir of [repo, outside]) mkdirSync(join(dir, ".git/hooks"), { recursive: true });
  writeFileSync(join(repo, ".git/hooks/post-applypatch"), "#!/bin/sh\n# as it was\n", { mode: 0o755 });
  writeFileSync(join(repo, ".git/config"), "[core]\n");
  mkdirSync(join(outside, "deep/er"), { recursive: true });
  writeFileSync(join(outside, "secret"), SECRET);
  writeFileSync(join(outside, "deep/er/f"), SECRET);
  linkSync(join(outside, "secret"), join(outside, "deep/twin"));
  symlinkSync("../secret", join(outside, "deep/link"));
  const guarded = () => {
    const all = hostManifest(world);
    for (const name of all.keys())
      if (name === "" || name === "repo" || (name.startsWith("repo/") && !/^repo\/\.git(\/|$)/.test(name)))
        all.delete(name);
    return all;
  };
  const before = guarded();
  return {
    repo,
    outside,
    untouched: (but) =>
      assert.deepEqual(differences(before, guarded(), but), [], "nothing outside the worktree has changed"),
  };
}

/** Temporary files of ours in a directory of the host. */
export const temporaries = (dir) => readdirSync(dir).filter((name) => name.startsWith(".agent-lane-"));
