// SPDX-License-Identifier: Apache-2.0
// What the real limactl makes of our lima.yaml passes our comparison: the one that scripts/setup has built, and those of
// AL_LIMACTLS="/path/to/limactl ...", such as a newer one. Everything but `list` and --version is scripted, so no VM is started.
import { execFileSync } from "node:child_process";
import { chmodSync, copyFileSync, existsSync } from "node:fs";
import { join } from "node:path";
import { expect, it, vi } from "vitest";
import { write } from "./support/image.mjs";
import { stages } from "./support/stages.js";

vi.setConfig({ testTimeout: 100_000 });
const made = stages();
const built = execFileSync("bash", ["-c", '. scripts/lib.sh && printf %s "$LIMACTL"'], { cwd: join(import.meta.dirname, "..", ".."), encoding: "utf8" });
const all = [built, ...(process.env["AL_LIMACTLS"] ?? "").split(" ")].filter((path) => path !== "" && existsSync(path));

const UP = `const lane = await create({ network: "none" }); report("out", (await lane.exec("echo up")).stdout); await lane.close();`;

it.skipIf(all.length === 0).each(all.length > 0 ? all : ["none"])("%s: its effective configuration is ours", async (path) => {
  /** A stage whose limactl is the real one where configurations are read; `before` is done first. */
  const withReal = (before = "") => {
    const stage = made({ guest: "agent" });
    const real = join(stage.dir, "real-limactl"); // its own place may be closed to others
    copyFileSync(path, real);
    chmodSync(real, 0o755);
    const scripted = join(stage.dir, "bin", "limactl.mjs");
    const text = `#!/bin/bash\ncase " $* " in *" list "*) ${before} exec '${real}' "$@" ;; *" --version "*) exec '${real}' "$@" ;; esac\nexec -a limactl '${process.execPath}' '${scripted}' "$@"\n`;
    write(stage.limactl, text, 0o755);
    return stage;
  };
  const { said, err } = await withReal().run(UP);
  expect(said["out"], err).toBe("up\n");
  // And the comparison does see what limactl answers.
  const changed = await withReal(`sed -i 's/propagateProxyEnv: false/propagateProxyEnv: true/' "$LIMA_HOME"/agent-lane-*/lima.yaml;`).run(`report("error", await failure(async () => { ${UP} }));`);
  expect(changed.said["error"], changed.err).toMatchObject({ code: "CONFIG_REFUSED", message: expect.stringContaining("`propagateProxyEnv` changed") });
});
