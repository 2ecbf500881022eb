// SPDX-License-Identifier: Apache-2.0
// Unit tests of the TypeScript face: no VM, no network. `npm test`.
import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    dir: "test/ts",
    include: ["**/*.test.ts"],
    globalSetup: ["test/ts/support/setup.ts"],
    pool: "forks",
    maxWorkers: 3, // most of the time is spent waiting for what is to end
    minWorkers: 1,
    testTimeout: 120_000,
    hookTimeout: 60_000,
  },
});
