// SPDX-License-Identifier: Apache-2.0
// Unit tests of the TypeScript face: no VM, no network. `npm test`.
import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    dir: "test/ts",
    include: ["**/*.test.ts"],
    globalSetup: ["test/ts/support/setup.ts"],
    pool: "forks",
    maxWorkers: 2,
    minWorkers: 1,
    testTimeout: 120_000,
    hookTimeout: 60_000,
  },
});
