// SPDX-License-Identifier: Apache-2.0
// agent-lane demo against a "guest" that is this very machine: it must see that, say so, and fail. A real guest is in test/e2e.
import { expect, it, vi } from "vitest";
import { stages } from "./support/stages.js";

vi.setConfig({ testTimeout: 100_000 });
const stage = stages();

const KIT = `
  import { spawn } from "node:child_process";
  const CLI = new URL("cli/main.js", PACKAGE).pathname;
  function start(...args) {
    const argv = [CLI, "demo", "--home", OPTIONS.home, "--limactl", OPTIONS.limactlPath, "--image", OPTIONS.image, "--accelerator", "tcg", "--transport", "shell", "--worktree-path", OPTIONS.worktreePath + "/demo", ...args];
    const child = spawn(process.execPath, argv, { stdio: ["ignore", "pipe", "pipe"], env: { ...process.env, HOME: OPTIONS.home, NO_COLOR: "1" } });
    let out = "", err = "";
    child.stdout.on("data", (d) => (out += d));
    child.stderr.on("data", (d) => (err += d));
    return Object.assign(child, { ended: new Promise((ok) => child.on("close", (code, signal) => ok({ code: code ?? signal, out, err }))) });
  }
`;

async function run(script: string, scenario: object = { guest: "agent" }): Promise<Record<string, { code: unknown; out: string; err: string }>> {
  const s = stage(scenario);
  s.addCommand();
  const r = await s.run(KIT + script);
  expect(r.err).toBe("");
  expect(s.left()).toEqual([]);
  return r.said;
}

it("fails, and says what it saw, when the guest sees what it must not", async () => {
  const said = await run(`
    report("text", await start().ended);
    report("json", await start("--json").ended);
    report("open", await start("--network", "open", "--json").ended);`);
  const { code, out, err } = said["text"]!;
  expect([code, err]).toEqual([1, ""]);
  expect(out).toMatch(/^ +\d+\.\d s  a lane +agent-lane-\w{8}-\w{8} is ready: .*network "none"\n/);
  expect(out).toMatch(/your files +THERE: /);
  // In any order, and either end may have been the one that saw it in time.
  expect(out).toMatch(/the network +.*(127\.0\.0\.1 \d+|a service planted on this machine).* can be reached\n/);
  expect(out).toMatch(/the end +closed; left over: 0 processes, 0 directories, 0 open rows\n\nSomething is not as it should be/);
  const json = JSON.parse(said["json"]!.out) as { ok: boolean; network: string; steps: { what: string; ok: boolean | null }[] };
  expect(json).toMatchObject({ ok: false, network: "none" });
  expect(json.steps.map(({ what, ok }) => [what, ok])).toEqual([
    ["a lane", null], ["its kernel", null], ["its user", null], ["your files", false], ["your sockets", expect.any(Boolean)], ["the network", false],
    ["a file in", null], ["a change", null], ["a file out", true], ["the end", true],
  ]);
  const open = JSON.parse(said["open"]!.out) as typeof json;
  expect(open.steps.find(({ what }) => what === "the network")).toMatchObject({ ok: null, seen: expect.stringMatching(/can be reached, as network "open" allows$/) });
});

it("a lane that does not start is an error in two lines", async () => {
  const said = await run(`report("r", await start("--image", "/nonexistent").ended);`);
  expect(said["r"]).toEqual({ code: 1, out: "", err: expect.stringMatching(/^error SOURCE_MISSING: .+\ncure: .+\n$/) });
});
