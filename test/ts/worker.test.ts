// SPDX-License-Identifier: Apache-2.0
// Worker threads: a lane in each of two, one of them terminated at every stage.
import { beforeAll, describe, expect, it, vi } from "vitest";
import type { Stage } from "./support/stage.js";
import { stages } from "./support/stages.js";
import { KIT } from "./support/threads.js";

// Many processes after another, on machines that are busy.
vi.setConfig({ testTimeout: 60_000 });

const stage = stages();
let s: Stage;
beforeAll(() => {
  s = stage({ guest: "agent" });
});

/** A copy that says "at" when it is under way. */
function copying(call: string): string {
  return `(async () => {
    const { createLane } = await import(workerData.url), W = workerData.options.worktreePath;
    const lane = await createLane({ ...workerData.options, maxCopyOutBytes: 2 ** 30 });
    let once = false;
    const o = { onProgress() { if (!once) say("at"); once = true; } };
    return lane.${call};
  })()`;
}

describe("two workers with a lane each", () => {
  it.each([
    ["creating", `create({ onEvent: (e) => { if (e.type === "creating") say("at"); } })`],
    ["booting", `create({ onEvent: (e) => { if (e.type === "booting") say("at"); } })`],
    ["connecting", `create({ onEvent: (e) => { if (e.type === "connecting") say("at"); } })`],
    [
      "running a command",
      `create().then((lane) => { setTimeout(say, 300, "at"); return lane.exec("while :; do echo x; done", { onLine() {} }); })`,
    ],
    ["copying in", copying(`copyIn(W + "/big", W + "/there", o)`)],
    ["copying out", copying(`copyFileOut(W + "/big", W + "/out/back", o)`)],
    ["copying a directory out", copying(`copyOut(W + "/dir", W + "/out/dir", o)`)],
  ])("one is terminated while %s: its lane goes, the other's stays", async (_what, work) => {
    const r = await s.run(`${KIT}
      import { linkSync, mkdirSync, rmSync, writeFileSync } from "node:fs";
      for (const d of ["/out", "/dir"]) mkdirSync(WT + d, { recursive: true });
      writeFileSync(WT + "/big", Buffer.alloc(400e6, "x")); linkSync(WT + "/big", WT + "/dir/big");
      const other = new Thread(\`
        const lane = await create();
        say("ready");
        const lines = []; const r = await lane.exec("i=0; while [ ! -e " + workerData.options.worktreePath + "/go ]; do sleep 0.05; done; echo over", { onLine: (l) => lines.push(l) });
        say([lines.join(), r.exitCode, (await lane.exec("echo alive")).stdout].join("|"));
        await lane.close();\`);
      await other.hears("ready");
      const one = new Thread(${JSON.stringify(`say("done " + JSON.stringify(await ${work}));`)});
      await one.hears("at");
      const t0 = Date.now();
      await one.worker.terminate();
      report("soon", Date.now() - t0 < 5000);
      report("interrupted", one.heard.join());
      report("one left", await until(() => lanes().length === 1));
      writeFileSync(WT + "/go", "");
      report("code", await other.ended);
      report("other", other.heard.at(-1));
      report("none left", await until(() => lanes().length === 0));
      for (const f of ["big", "dir", "go", "there", "out"]) rmSync(WT + "/" + f, { force: true, recursive: true });`);
    expect(r.err).toBe("");
    expect(r.said).toMatchObject({
      soon: true,
      interrupted: "at",
      "one left": true,
      code: 0,
      other: "over|0|alive\n",
      "none left": true,
    });
    expect(r.status).toBe(0);
    expect(s.left()).toEqual([]);
  });

  it("an idle lane does not hold its worker, a pending call does", async () => {
    const r = await s.run(`${KIT}
      const idle = new Thread("globalThis.lane = await create(); say('idle');");
      report("idle", [await idle.ended, idle.heard.join()]);
      report("gone", await until(() => lanes().length === 0));
      const busy = new Thread("const lane = await create(); lane.exec('sleep 1; echo late').then((r) => say(r.stdout));");
      report("busy", [await busy.ended, busy.heard.join()]);`);
    expect(r.said).toMatchObject({ idle: [0, "idle"], gone: true, busy: [0, "late\n"] });
    expect(r.status).toBe(0);
    expect(s.left()).toEqual([]);
  });
});
