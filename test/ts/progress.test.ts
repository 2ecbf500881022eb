// SPDX-License-Identifier: Apache-2.0
// The line that says what is waited for: when it comes, that it fits, that it goes; and lines instead where it cannot be written over.
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { LaneProgress, waited, Waiting } from "../../lib/cli/progress.js";

let written = "";
const stream = (columns = 80): NodeJS.WriteStream => ({ isTTY: true, columns, write: (text: string) => ((written += text), true) }) as unknown as NodeJS.WriteStream;
const lane = "agent-lane-test0000-test0000";
/** What a terminal shows in the end: what was written over is gone. */
const screen = () => written.split("\n").map((line) => line.split("\r\x1b[K").at(-1)!.replace(/\x1b\[[0-9;]*m/g, "")).join("\n");

beforeEach(() => {
  written = "";
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
  vi.restoreAllMocks();
});

describe("Waiting", () => {
  it("shows the wait with its time, in other words when they change, and is gone afterwards", () => {
    const w = new Waiting({ live: true, stream: stream() });
    w.on("the lane boots");
    expect(screen()).toMatch(/^\S the lane boots 0\.0 s$/);
    vi.advanceTimersByTime(3000);
    expect(screen()).toMatch(/^\S the lane boots [23]\.\d s$/);
    w.change("the lane still boots");
    vi.advanceTimersByTime(200);
    expect(screen()).toMatch(/still boots 3\.\d s$/);
    w.on("copying");
    expect(screen()).toMatch(/^\S copying 0\.0 s$/);
    w.off();
    expect(screen()).toBe("");
    vi.advanceTimersByTime(5000);
    expect(screen()).toBe("");
  });

  it("keeps within the terminal, whatever the text is", () => {
    const w = new Waiting({ live: true, stream: stream(40) });
    w.on(`${"x".repeat(500)}\x1b[2J\n`);
    for (const shown of written.split("\r\x1b[K").slice(1)) expect(shown.replace(/\x1b\[[0-9;]*m/g, "").length).toBeLessThan(40);
    expect(written).not.toContain("[2J");
    w.off();
  });

  it("lines that stay come above it", () => {
    const w = new Waiting({ live: true, stream: stream() });
    w.on("waiting");
    w.say("a line");
    vi.advanceTimersByTime(200);
    expect(screen()).toMatch(/^a line\n\S waiting 0\.\d s$/);
    w.off();
    expect(screen()).toBe("a line\n");
  });

  it("writes nothing where it cannot be written over, and nothing before its time", () => {
    const dumb = new Waiting({ live: false, stream: stream() });
    dumb.on("waiting");
    dumb.off();
    const late = new Waiting({ live: true, afterMs: 1000, stream: stream() });
    late.on("waiting");
    vi.advanceTimersByTime(900);
    expect(written).toBe("");
    vi.advanceTimersByTime(300);
    expect(screen()).toMatch(/waiting 1\.\d s/);
    late.off();
  });
});

describe("on stderr without a terminal", () => {
  const told = () => {
    const lines: string[] = [];
    vi.spyOn(process.stderr, "write").mockImplementation((text) => lines.push(String(text)) > 0);
    return lines;
  };
  const life = (p: LaneProgress) => {
    p.event({ type: "booting", lane, timeMs: 1000 });
    p.event({ type: "warning", option: "memoryGiB", message: "much" });
    p.event({ type: "notice", lane, timeMs: 1, message: "emulation" });
    p.step("copying");
    p.note("a result");
    p.detail("a detail");
    p.event({ type: "closed", lane, timeMs: 2000 });
  };
  it.each([
    ["auto", ["warning: much\n", "notice: emulation\n", "a result\n"]],
    ["off", ["warning: much\n"]],
    ["on", [`    1.0 s  ${lane} boots\n`, "warning: much\n", "notice: emulation\n", "copying\n", "a result\n", "a detail\n", `    2.0 s  ${lane} is closed\n`]],
  ] as const)("%s", (choice, lines) => {
    const got = told();
    life(new LaneProgress(choice));
    expect(got).toEqual(lines);
  });

  it("waited gives what the work gives, or throws what it throws", async () => {
    const got = told();
    await expect(waited("x", Promise.resolve(7))).resolves.toBe(7);
    await expect(waited("x", Promise.reject(new Error("no")))).rejects.toThrow("no");
    expect(got).toEqual([]);
  });
});
