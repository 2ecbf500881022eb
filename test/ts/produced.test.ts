// SPDX-License-Identifier: Apache-2.0
// Every error code is what some test expects of something that it does: a code that nothing produces would be a promise that nobody
// keeps. Read from the tests' sources; what counts is a line that asserts, not one that only names a code.
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, it } from "vitest";
import { CORE_ERROR_CODES, OWN_ERRORS } from "../../lib/errors.js";

const root = join(import.meta.dirname, "..", "..");
const filesOf = (dir: string): string[] =>
  readdirSync(join(root, dir), { withFileTypes: true, recursive: true })
    .filter((entry) => entry.isFile() && /\.(?:c|h|ts|mjs)$/.test(entry.name))
    .map((entry) => join(entry.parentPath, entry.name));
/** Not this file and those that speak of all codes at once. */
const NAMING = /(?:produced|docs)\.test\.ts$|test_err\.c$/;
const lines = ["test/c", "test/ts", "test/matrix", "test/e2e"]
  .flatMap(filesOf)
  .filter((file) => !NAMING.test(file))
  .flatMap((file) => readFileSync(file, "utf8").split("\n"));

/** Of a test's line: what it expects. A scripted engine's answer (`fail("CODE")`) is no product of ours. */
const expects = (line: string): boolean =>
  !/^\s*(?:\/\/|\*|\/\*)/.test(line) &&
  !/\.fail\(|al_err_name\(/.test(line) &&
  /expect|assert|toBe|toEqual|toMatch|rejects|refused|fails|answer|failed|==|!==|!=|code:|\{ ?A|": "/.test(line);
const asserting = lines.filter(expects);

const produces = (code: string): boolean => {
  const own = new RegExp(`\\bAL_E${code}\\b|(?<![A-Z_])${code}(?![A-Z_])`);
  return asserting.some((line) => own.test(line));
};

it.each([...CORE_ERROR_CODES, ...Object.keys(OWN_ERRORS)])("%s is expected by a test", (code) => {
  expect(produces(code)).toBe(true);
});

it("sees a code that nobody expects", () => {
  expect(produces("NO_SUCH_CODE_AT_ALL")).toBe(false);
  expect(["// expect(code).toBe(\"X_Y\")", "engine.fail(\"X_Y\")", "const X_Y = 1;"].filter(expects)).toEqual([]);
});
