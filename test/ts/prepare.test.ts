// SPDX-License-Identifier: Apache-2.0
// How the image of a project is found, waited for and made, against an engine that answers by hand.
import { existsSync, mkdtempSync, readFileSync, readdirSync, realpathSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, describe, expect, it } from "vitest";
import { LaneError } from "../../lib/errors.js";
import type { LaneEvent, LanePreparingEvent } from "../../lib/events.js";
import { resolveOptions, type LimaOptions } from "../../lib/options.js";
import { projectImage, SETUP_DIR, type Bounds, type PreparedImage, type ProjectOptions } from "../../lib/prepare.js";
import { SETTLE } from "../../lib/settle.js";
import { execResult, FakeEngine, rejection, tick, type Call } from "./support/fake-engine.js";

const dir = realpathSync(mkdtempSync(join(tmpdir(), "al-prepare-")));
writeFileSync(join(dir, "package-lock.json"), "lock");
afterAll(() => rmSync(dir, { recursive: true, force: true }));

const FOUND = { parent: "base-0123456789ab", parentSha256: "0".repeat(64) };
const IMAGE = "project-aaaaaaaaaaaa-bbbbbbbbbbbb";

interface Scene {
  readonly engine: FakeEngine;
  readonly events: LaneEvent[];
  /** What the copy in had, by name. */
  readonly copied: Record<string, string>;
  readonly done: Promise<PreparedImage>;
}

/** `setup` answers the setup's exec; everything else goes well. */
function scene(setup: (call: Call) => void, options: LimaOptions & { image?: object } = {}, bounds: Bounds = {}): Scene {
  const engine = new FakeEngine();
  const events: LaneEvent[] = [];
  const copied: Record<string, string> = {};
  engine.auto.set("imageDerived", () => ({ ...FOUND, claimed: true }));
  engine.auto.set("imageUnclaim", () => null);
  engine.auto.set("derive", () => ({ image: IMAGE }));
  engine.auto.set("copyIn", ({ hostPath }) => {
    for (const name of readdirSync(String(hostPath))) copied[name] = readFileSync(join(String(hostPath), name), "utf8");
    return { bytes: 1, files: 1, changed: 0 };
  });
  const start = engine.start.bind(engine);
  engine.start = (op, params, hooks) => {
    const request = start(op, params, hooks);
    if (op !== "exec") return request;
    const call = engine.last("exec");
    queueMicrotask(() => (params["command"] === SETTLE ? call.resolve(execResult()) : setup(call)));
    return request;
  };
  const image = { directory: dir, setup: "npm ci", inputs: ["package-lock.json"], ...options.image };
  const resolved = resolveOptions({ ...options, image, onEvent: (event) => events.push(event) }) as ProjectOptions;
  return { engine, events, copied, done: projectImage(resolved, bounds, engine.asEngine()) };
}

const lines = (call: Call, text: string): void => call.hooks.onLines?.(Buffer.from(text), 1);
const good = (call: Call): void => call.resolve(execResult());
const preparing = (events: LaneEvent[]): LanePreparingEvent[] => events.filter((e) => e.type === "preparing");

describe("an image that is there", () => {
  it("is found without a lane, and nobody hears of it", async () => {
    const engine = new FakeEngine();
    engine.auto.set("imageDerived", () => ({ ...FOUND, image: IMAGE, claimed: false }));
    const events: LaneEvent[] = [];
    const image = { directory: dir, setup: "npm ci", extends: "docker" };
    const options = resolveOptions({ image, home: "/h", onEvent: (e) => events.push(e) }) as ProjectOptions;
    const found = await projectImage(options, {}, engine.asEngine());
    expect(found).toMatchObject({ image: IMAGE, parent: FOUND.parent, made: false });
    expect(engine.calls.map((c) => c.op)).toEqual(["imageDerived"]);
    expect(engine.last("imageDerived").params).toMatchObject({ home: "/h", image: "docker", claim: true });
    expect(events).toEqual([]);
  });
});

describe("a setup", () => {
  it("runs in a lane of its own, with nothing of the caller's, and its disk becomes the image", async () => {
    const { engine, copied, events, done } = scene(
      (call) => {
        lines(call, "added 3 packages\n");
        good(call);
      },
      { env: { API_KEY: "secret" }, diskGiB: 40, image: { env: { npm_config_registry: "http://r" } } },
    );
    expect(await done).toMatchObject({ image: IMAGE, parent: FOUND.parent, made: true });
    const [key, setup, settle] = [engine.last("imageDerived").params, ...engine.calls.filter((c) => c.op === "exec")];
    expect(engine.last("create").params).toMatchObject({ image: FOUND.parent, env: {}, diskGiB: 40, network: "open" });
    expect(setup?.params).toMatchObject({
      command: "set -e\nnpm ci",
      cwd: SETUP_DIR,
      sudo: false,
      env: { npm_config_registry: "http://r" },
      leaveDaemons: false,
      timeoutMs: 20 * 60_000,
    });
    expect(engine.last("copyIn").params).toMatchObject({ guestPath: SETUP_DIR });
    expect(existsSync(String(engine.last("copyIn").params["hostPath"]))).toBe(false);
    expect(copied).toEqual({ "package-lock.json": "lock" });
    expect((settle as unknown as Call).params).toMatchObject({ command: SETTLE, sudo: true });
    expect(engine.last("derive").params).toMatchObject({ project: key["project"], inputsKey: key["inputsKey"] });
    expect(engine.calls.map((c) => c.op).slice(-3)).toEqual(["derive", "close", "imageUnclaim"]);
    expect(engine.last("imageUnclaim").params).toEqual({ claim: engine.last("imageDerived").id });
    expect(JSON.stringify(engine.calls)).not.toContain("secret");
    expect([...new Set(preparing(events).map((e) => e.step))]).toEqual(["lane", "inputs", "setup", "saving", "ready"]);
  });

  it("that fails leaves nothing, and says what it said last, safe to show and bounded", async () => {
    const { engine, done } = scene((call) => {
      lines(call, `${Array.from({ length: 500 }, (_, i) => `line ${i} ${"x".repeat(90)}`).join("\n")}\n`);
      call.hooks.onLines?.(Buffer.from("\x1b[31mnpm error\x1b[0m \x07code E404\n"), 2);
      call.resolve(execResult({ exitCode: 1 }));
    });
    const error = await rejection(done);
    expect(error.code).toBe("SETUP_FAILED");
    expect(error.message).toMatch(/^the setup of project al-prepare-\w+ ended with status 1/);
    expect(error.message).toMatch(/line 499 x+\nnpm error {2}code E404\n$/);
    expect(error.message.length).toBeLessThan(4000);
    expect(error.message).not.toContain("\x1b");
    expect(engine.count("derive")).toBe(0);
    expect([engine.count("close"), engine.count("imageUnclaim")]).toEqual([1, 1]);
  });

  it("that takes too long is told as that", async () => {
    const { engine, done } = scene((call) => call.fail("TIMEOUT"), { image: { timeoutMinutes: 2, network: "none" } });
    const error = await rejection(done);
    expect(error.code).toBe("SETUP_FAILED");
    expect(error.message).toMatch(/not done within timeoutMinutes \(2\); it had no network \(image\.network\), without a word/);
    expect(engine.last("exec").params["timeoutMs"]).toBe(120_000);
  });

  it("whose guest does not come to rest becomes no image", async () => {
    const s = scene(good);
    const start = s.engine.start.bind(s.engine);
    s.engine.start = (op, params, hooks) => {
      if (params["command"] !== SETTLE) return start(op, params, hooks);
      const request = start("settle", params, hooks);
      s.engine.last("settle").resolve(execResult({ exitCode: 1, stderr: "the file system stayed writable" }));
      return request;
    };
    const error = await rejection(s.done);
    expect(error.code).toBe("DERIVE_FAILED");
    expect(error.message).toMatch(/stayed writable/);
    expect([s.engine.count("derive"), s.engine.count("close"), s.engine.count("imageUnclaim")]).toEqual([0, 1, 1]);
  });

  it("ends when its caller's time is over, with the cure", async () => {
    const { engine, done } = scene(
      (call) => {
        lines(call, "still at it\n");
        const check = setInterval(() => {
          if (engine.count("cancel") === 0) return;
          clearInterval(check);
          call.fail("ABORTED");
        }, 5);
      },
      {},
      { seconds: 2 },
    );
    const error = await rejection(done);
    expect(error.code).toBe("IMAGE_NOT_READY");
    expect(error.message).toMatch(/still at it/);
    expect(error.cure).toMatch(/prepareImage.*agent-lane image prepare/);
    expect([engine.count("derive"), engine.count("close"), engine.count("imageUnclaim")]).toEqual([0, 1, 1]);
  });

  it("ends with its caller's signal", async () => {
    const controller = new AbortController();
    const { engine, done } = scene(
      (call) => {
        controller.abort("enough");
        call.fail("ABORTED");
      },
      {},
      { signal: controller.signal },
    );
    const error = await rejection(done);
    expect([error.code, error.cause]).toEqual(["ABORTED", "enough"]);
    expect([engine.count("close"), engine.count("imageUnclaim")]).toEqual([1, 1]);
  });

  it("is never silent for long", { timeout: 30_000 }, async () => {
    const { events, done } = scene((call) => {
      lines(call, "compiling\n");
      setTimeout(() => good(call), 11_000);
    });
    await done;
    const told = preparing(events).filter((e) => e.step === "setup" && e.message === "compiling");
    expect(told.length).toBeGreaterThanOrEqual(2);
  });
});

describe("who comes second", () => {
  it("waits until the first has made it", async () => {
    const s = scene(good);
    let asked = 0;
    s.engine.auto.set("imageDerived", () => (++asked < 3 ? { ...FOUND, claimed: false } : { ...FOUND, image: IMAGE, claimed: false }));
    expect(await s.done).toMatchObject({ image: IMAGE, made: false });
    expect(asked).toBe(3);
    expect(s.engine.count("create")).toBe(0);
    expect(preparing(s.events).map((e) => e.step)).toEqual(["waiting"]);
  });

  it("makes it when the first one was another process that failed", async () => {
    const s = scene(good);
    let asked = 0;
    s.engine.auto.set("imageDerived", () => ({ ...FOUND, claimed: ++asked === 2 }));
    expect(await s.done).toMatchObject({ made: true });
  });

  it("fails as the first one did when that is this process", async () => {
    const engine = new FakeEngine();
    let asked = 0;
    engine.auto.set("imageDerived", () => ({ ...FOUND, claimed: ++asked === 1 }));
    engine.auto.set("imageUnclaim", () => null);
    engine.auto.set("copyIn", () => ({ bytes: 0, files: 0, changed: 0 }));
    const image = { directory: dir, setup: "same" };
    const options = resolveOptions({ image, onEvent: () => undefined }) as ProjectOptions;
    const all = [1, 2].map(() => rejection(projectImage(options, {}, engine.asEngine())));
    while (engine.count("exec") === 0) await tick(5);
    await tick(50);
    engine.last("exec").resolve(execResult({ exitCode: 7 }));
    const errors = await Promise.all(all);
    expect(errors.map((e) => e.code)).toEqual(["SETUP_FAILED", "SETUP_FAILED"]);
    expect(engine.count("create")).toBe(1);
  });

  it("gives up when its own time is over", async () => {
    const s = scene(good, {}, { seconds: 0.3 });
    s.engine.auto.set("imageDerived", () => ({ ...FOUND, claimed: false }));
    const error = await rejection(s.done);
    expect(error.code).toBe("IMAGE_NOT_READY");
    expect(error).toBeInstanceOf(LaneError);
    expect(error.message).toMatch(/another lane or process is making this image/);
  });
});
