// SPDX-License-Identifier: Apache-2.0
// The engine's JavaScript side on an addon that never answers, as one does whose lanes could not be ended in time.
import { expect, it, vi } from "vitest";
import { Engine } from "../../lib/engine.js";
import { rejection } from "./support/fake-engine.js";

vi.mock("../../lib/native.js", () => ({
  packageDir: "/",
  native: () => ({ open: () => ({ post: () => undefined, taken: () => undefined, close: () => 1 }), leave: () => true }),
}));

it("a request that the core leaves unanswered is rejected with INTERRUPTED when the engine closes", async () => {
  const engine = new Engine();
  const open = rejection(engine.request("create"));
  expect(engine.open).toBe(1);
  expect(engine.close(1)).toBe(1);
  expect((await open).code).toBe("INTERRUPTED");
  expect(engine.open).toBe(0);
});
