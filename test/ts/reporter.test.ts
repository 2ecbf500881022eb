// SPDX-License-Identifier: Apache-2.0
// The reporter: when it speaks, what it says, that it changes nothing for the user's own listener; and what "open" reaches.
import { createServer } from "node:net";
import { describe, expect, it, vi } from "vitest";
import { LaneError } from "../../lib/errors.js";
import { tell, type LaneEvent } from "../../lib/events.js";
import { openLane } from "../../lib/open.js";
import { resolveOptions } from "../../lib/options.js";
import { listening, networkOf, reachNow, reachText } from "../../lib/reach.js";
import { duration, lineOf, reporting } from "../../lib/reporter.js";
import { FakeEngine } from "./support/fake-engine.js";
import { stages } from "./support/stages.js";

vi.setConfig({ testTimeout: 100_000 });
const lane = "agent-lane-test0000-test0000";

function stream(isTTY: boolean): { readonly lines: string[]; readonly asStream: NodeJS.WriteStream } {
  const lines: string[] = [];
  return { lines, asStream: { isTTY, write: (text: string) => lines.push(text) } as unknown as NodeJS.WriteStream };
}

describe("words", () => {
  it.each<[LaneEvent, string]>([
    [{ type: "queued", lane, timeMs: 20, position: 1, of: 2, message: "others have the places" }, `    0.0 s  ${lane} waits for a place, 1 of 2: others have the places`],
    [{ type: "creating", lane, timeMs: 160 }, `    0.2 s  ${lane} is being created`],
    [{ type: "booting", lane, timeMs: 1500 }, `    1.5 s  ${lane} boots`],
    [{ type: "connecting", lane, timeMs: 9000 }, `    9.0 s  ${lane} is up, connecting`],
    [{ type: "ready", lane, timeMs: 99_940 }, `   99.9 s  ${lane} is ready`],
    [{ type: "closed", lane, timeMs: 125_000, message: "its lifetime is over" }, `2 min 5 s  ${lane} is closed: its lifetime is over`],
    [{ type: "notice", lane, timeMs: 0, message: "software emulation" }, `    0.0 s  ${lane}: notice: software emulation`],
    [{ type: "warning", option: "memoryGiB", message: "much" }, `           warning: much`],
    [{ type: "preparing", project: "p", step: "setup", timeMs: 3000, message: "npm ci" }, `    3.0 s  image of project p, setup: npm ci`],
    [{ type: "stuck", lane, timeMs: 0, message: "why" }, `    0.0 s  ${lane} is stuck: why`],
    [{ type: "close-failed", lane, error: new LaneError({ code: "DESTROY_FAILED", message: "it is there.", cure: "Reap." }) }, `           ${lane} could not be closed: it is there. Reap.`],
  ])("%j", (event, line) => expect(lineOf(event)).toBe(line));

  it("says what open reaches when the lane is ready", () => {
    const reach = { networks: ["10.0.0.0/8"], hostPorts: [22, 2375], docker: ["tcp://127.0.0.1:2375"] };
    expect(lineOf({ type: "ready", lane, timeMs: 1, reach })).toBe(
      `    0.0 s  ${lane} is ready; network "open" reaches the internet, the local network (10.0.0.0/8), services of this machine on TCP (ports 22, 2375); among them Docker at tcp://127.0.0.1:2375, and who reaches that rules its machine`,
    );
  });

  it("cannot drive the terminal", () => {
    expect(lineOf({ type: "preparing", project: "p\x1b[2J", step: "setup", timeMs: 0, message: "a\r\nb\u202ec\x9b" })).not.toMatch(/[\0-\x1f\x7f-\x9f\u202e]/);
  });

  it.each([[0, "0.0 s"], [99_949, "99.9 s"], [99_951, "1 min 40 s"], [3_600_000, "60 min 0 s"]])("%d ms is %s", (ms, text) => expect(duration(ms)).toBe(text));
});

describe("when it speaks", () => {
  const event: LaneEvent = { type: "booting", lane, timeMs: 1 };
  it.each([["off", true, 0], ["off", false, 0], ["auto", true, 1], ["auto", false, 0], ["on", true, 1], ["on", false, 1]] as const)(
    "%s, terminal %s: %d lines",
    (choice, terminal, lines) => {
      const to = stream(terminal), own = vi.fn();
      reporting(choice, own, to.asStream)?.(event);
      expect(to.lines).toHaveLength(lines);
      expect(own).toHaveBeenCalledExactlyOnceWith(event);
    },
  );

  it("says the same once", () => {
    const to = stream(true), listener = reporting("on", undefined, to.asStream);
    listener?.(event);
    listener?.(event);
    listener?.({ ...event, type: "connecting" });
    expect(to.lines).toHaveLength(2);
  });

  it("takes the place of process warnings, and what the user's listener throws stays one", () => {
    const emit = vi.spyOn(process, "emitWarning").mockReturnValue(undefined), to = stream(true);
    tell(reporting("on", undefined, to.asStream), { type: "warning", option: "x", message: "reported, not warned of" });
    expect([emit.mock.calls, to.lines.length]).toEqual([[], 1]);
    tell(reporting("on", () => { throw new Error("no"); }, to.asStream), event);
    expect(emit.mock.calls[0]?.[0]).toContain('onEvent threw for "booting": no');
    emit.mockRestore();
  });
});

describe("the option", () => {
  it("becomes a listener and never reaches the engine", async () => {
    const own = vi.fn();
    expect(resolveOptions({})).not.toHaveProperty("onEvent");
    expect(resolveOptions({ reporter: "off", onEvent: own }).onEvent).toBe(own);
    const resolved = resolveOptions({ reporter: "on", onEvent: own });
    expect(resolved).not.toHaveProperty("reporter");
    expect(resolved.onEvent).not.toBe(own);
    const fake = new FakeEngine();
    await openLane({ ...resolved, image: undefined }, { engine: fake.asEngine() });
    expect(fake.last("create").params).not.toHaveProperty("reporter");
    expect(fake.last("create").params).not.toHaveProperty("onEvent");
  });

  it("shows a lane's life on stderr, in order, with times", async () => {
    const s = stages()({ guest: "agent" });
    const r = await s.run(`
      const { createLane } = await import(PACKAGE);
      const types = [];
      const lane = await createLane({ ...OPTIONS, reporter: "on", onEvent: (e) => types.push(e.type) });
      await lane.close();
      report("types", types);
      report("quiet", await (async () => { const l = await createLane({ ...OPTIONS, reporter: "auto" }); await l.close(); return l.name; })());
    `);
    s.remove();
    expect(r.said["types"]).toEqual(expect.arrayContaining(["creating", "booting", "connecting", "ready", "closing", "closed"]));
    const lines = r.err.trim().split("\n");
    const order = ["is being created", "boots", "is up, connecting", "is ready", "is being closed", "is closed"].map((text) => lines.findIndex((l) => l.includes(text)));
    expect(order.every((at, i) => at >= 0 && (i === 0 || at > order[i - 1]!)), r.err).toBe(true);
    for (const line of lines) expect(line).toMatch(/^ *(?:\d+\.\d s|\d+ min \d+ s)  agent-lane-\w{8}-\w{8}/);
    expect(r.err).not.toContain(String(r.said["quiet"])); // "auto", and no terminal
  });
});

describe("what open reaches", () => {
  it("reads the kernel's table", () => {
    const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:0947 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1
   1: 0100007F:1F90 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 2
   2: 00000000000000000000000000000000:0016 00000000000000000000000000000000:0000 0A 0:0 0:0 0 0 0 3
`;
    expect(listening(table)).toEqual([2375, 22]);
  });

  it.each([["192.168.1.7/24", "192.168.1.0/24"], ["10.9.8.7/8", "10.0.0.0/8"], ["172.17.255.254/16", "172.17.0.0/16"], ["203.0.113.77/26", "203.0.113.64/26"], ["1.2.3.4/0", "0.0.0.0/0"], ["1.2.3.4/32", "1.2.3.4/32"]])(
    "%s is in %s",
    (address, network) => expect(networkOf(address)).toBe(network),
  );

  it.runIf(process.platform === "linux")("finds a listener on the loopback, and no more once it is closed", async () => {
    const server = createServer().listen(0, "127.0.0.1");
    await new Promise((done) => server.once("listening", done));
    const { port } = server.address() as { port: number };
    expect(reachNow({}).hostPorts).toContain(port);
    await new Promise((done) => server.close(done));
    expect(reachNow({}).hostPorts).not.toContain(port);
  });

  it("names a Docker of DOCKER_HOST without what logs in there", () => {
    expect(reachNow({ DOCKER_HOST: "tcp://me:secret@192.0.2.1:2376" }).docker).toContain("tcp://192.0.2.1:2376");
    expect(reachNow({ DOCKER_HOST: "unix:///var/run/docker.sock" }).docker.filter((d) => d.includes("unix"))).toEqual([]);
  });

  it("shows a few ports, and says that there are more", () => {
    const hostPorts = Array.from({ length: 20 }, (_, i) => i + 1);
    expect(reachText({ networks: [], hostPorts, docker: [] })).toBe("the internet, the local network, services of this machine on TCP (ports 1, 2, 3, 4, 5, 6, 7, 8, …)");
    expect(reachText({ networks: [], docker: [] })).toBe("the internet, the local network, services of this machine on TCP");
    expect(reachText({ networks: [], hostPorts: [], docker: [] })).toBe("the internet, the local network");
  });
});
