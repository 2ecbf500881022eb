// SPDX-License-Identifier: Apache-2.0
// Which transport a lane gets, what is said about it, and a lane on the port: through lima(), on the scripted limactl.
import { afterEach, expect, it } from "vitest";
import { Stage } from "./support/stage.js";

let stage: Stage;
afterEach(() => stage.remove());

const shells = (s: Stage): number => s.calls().filter((call) => call === "shell").length;

it("auto takes the port where image and VM have it, and no login is made", { timeout: 60_000 }, async () => {
  stage = new Stage();
  stage.scenario({ guest: "agent", banner: "mute" });
  const { said, err } = await stage.run(`
    const events = [];
    const lane = await create({ ...PORT, transport: "auto", onEvent: (e) => events.push(e.type) });
    report("out", (await lane.exec("printf hello; cat", { stdin: "x".repeat(300000) })).stdout.length);
    await lane.close();
    report("events", events);`);
  expect(said["out"], err).toBe(300005);
  expect(said["events"]).toEqual(["queued", "creating", "booting", "connecting", "ready", "closing", "closed"]);
  expect(shells(stage)).toBe(0);
  expect(stage.left()).toEqual([]);
});

it("auto falls back to the shell with an old image, and says so", { timeout: 60_000 }, async () => {
  stage = new Stage();
  const { said, err } = await stage.run(`
    const notices = [];
    const lane = await create({ transport: "auto", onEvent: (e) => e.type === "notice" && notices.push(e.message) });
    report("out", (await lane.exec("echo up")).stdout);
    await lane.close();
    report("notices", notices);`);
  expect(said["out"], err).toBe("up\n");
  expect(said["notices"]).toEqual([expect.stringMatching(/^image base-\w+ is older than the port transport: .*limactl shell$/)]);
  expect(shells(stage)).toBe(1);
});

it("shell is the shell, whatever the image has, and says nothing", { timeout: 60_000 }, async () => {
  stage = new Stage();
  const { said, err } = await stage.run(`
    const notices = [];
    const lane = await create({ ...PORT, transport: "shell", onEvent: (e) => e.type === "notice" && notices.push(e.message) });
    report("out", (await lane.exec("echo up")).stdout);
    await lane.close();
    report("notices", notices);`);
  expect(said["out"], err).toBe("up\n");
  expect(said["notices"]).toEqual([]);
  expect(shells(stage)).toBe(1);
});

it("port by name is refused with an old image, before anything is made", { timeout: 60_000 }, async () => {
  stage = new Stage();
  const { said } = await stage.run(`report("error", await failure(() => create({ transport: "port" })));`);
  expect(said["error"]).toMatchObject({ code: "TRANSPORT_UNAVAILABLE", step: "check" });
  expect((said["error"] as { message: string }).message).toMatch(/image base-\w+ is older/);
  expect(stage.left()).toEqual([]);
  expect(stage.sql("SELECT name FROM lanes")).toEqual([]);
});

it("a lane on the port is lost the moment its VM is", { timeout: 60_000 }, async () => {
  stage = new Stage();
  const { said, err } = await stage.run(`
    const { readFileSync } = await import("node:fs");
    let name;
    const lane = await create({ ...PORT, onEvent: (e) => { name ??= e.lane; } });
    const sleeper = lane.exec("sleep 60").then(() => "it ended", (e) => e.code);
    process.kill(Number(readFileSync(OPTIONS.home + "/lima/" + name + "/qemu.pid", "utf8")), "SIGKILL");
    report("sleeper", await sleeper);
    await lane.close();`);
  expect(said["sleeper"], err).toBe("CHANNEL_CLOSED");
  expect(stage.left()).toEqual([]);
});
