// SPDX-License-Identifier: Apache-2.0
// Small lanes for the tests, and what every test says about errors.
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { mkdirSync, mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { createLane, lima } from "@agent-lane/provider-lima";

/** Kind to the machine: two CPUs, little memory, no network unless the test is about it. */
export const small = { cpus: 2, memoryGiB: 1.5, network: "none" };
export const provider = (options = {}) => lima({ ...small, ...options });
/** Used without Sandcastle, so there is no sync-in to watch for, and nobody gives up after 120 s on a busy machine. */
/**
 * A ready lane. One emulated guest in a hundred and more has been seen to hang in its boot; the tests of a lane are not
 * about that, so such a boot is told on the console and tried once more. What a caller of the product sees of it has
 * tests of its own (START_TIMEOUT).
 */
export const openLane = (options = {}, env = {}) =>
  twice(options, () => provider({ syncInTimeoutSeconds: 3600, startTimeoutSeconds: 120, ...options }).create({ env }));

/** The same for a lane with all that createLane's has: signals, progress, whole directories out. */
export const openOwnLane = (options = {}) =>
  twice(options, () => createLane({ ...small, startTimeoutSeconds: 120, ...options }));

async function twice(options, create) {
  try {
    return await create();
  } catch (error) {
    if (error.code !== "START_TIMEOUT" || options.startTimeoutSeconds !== undefined) throw error;
    console.error(`e2e: the guest did not come up, trying once more: ${error.message}`);
    return create();
  }
}

export const sha256 = (data) => createHash("sha256").update(data).digest("hex");
export const sh = (command, cwd) =>
  execFileSync("sh", ["-c", command], { cwd, encoding: "utf8", timeout: 60_000 }).trim();
export const scratch = (name = "e2e") => mkdtempSync(join(tmpdir(), `${name}-`));

/** The call, or building the provider for it, fails with `code`, a sentence and a cure. Gives the error. */
export async function fails(code, work) {
  let error;
  try {
    await work();
  } catch (e) {
    error = e;
  }
  assert.ok(error, `expected ${code}, but it succeeded`);
  assert.equal(error.code, code, `${error.name}: ${error.message}`);
  assert.equal(error.name, "LaneError");
  assert.match(error.message, /\w+ \w+/, "a sentence");
  assert.ok(typeof error.cure === "string" && error.cure.length > 5, `a cure, not ${error.cure}`);
  return error;
}

/** A host repository with one commit. */
export function makeRepo(name = "repo") {
  const repo = join(scratch("e2e-repo"), name);
  mkdirSync(repo);
  sh(
    `git init -q -b main && git config user.email dev@example.com && git config user.name Dev && printf 'hello\\n' > a.txt && ` +
      `printf '.env\\n.sandcastle/\\n' > .gitignore && git add -A && git commit -qm initial`,
    repo,
  );
  return repo;
}

export const scriptedAgent = (script) => ({
  name: "scripted",
  env: {},
  captureSessions: false,
  buildPrintCommand: ({ prompt }) => ({ command: script, stdin: prompt }),
  buildInteractiveArgs: ({ prompt }) => ["sh", "-c", script, "scripted", prompt],
  parseStreamLine: (line) =>
    line.startsWith("RESULT ") ? [{ type: "result", result: line.slice(7) }] : [{ type: "text", text: line + "\n" }],
});

/**
 * Another Node process that owns a lane: lib/owner.mjs, or `file` here, with `options` as JSON. `lines` fills with what
 * it prints.
 */
export function startOwner(options = {}, { env = {}, wrapper = [], file = "./owner.mjs" } = {}) {
  const script = fileURLToPath(new URL(file, import.meta.url));
  const [program, ...args] = [
    ...wrapper,
    process.execPath,
    script,
    JSON.stringify({ ...small, startTimeoutSeconds: 240, ...options }),
  ];
  const child = spawn(program, args, { env: { ...process.env, ...env }, stdio: ["ignore", "pipe", "pipe"] });
  const lines = [];
  let errors = "";
  child.stdout.setEncoding("utf8").on("data", (text) => lines.push(...text.split("\n").filter(Boolean)));
  child.stderr.setEncoding("utf8").on("data", (text) => { errors += text; });
  const ended = new Promise((resolve) => child.on("close", (code, signal) => resolve({ code, signal, lines, errors })));
  return { child, lines, ended, errors: () => errors };
}

/** Runs the installed command as people do. */
export function agentLane(args, options = {}) {
  const bin = fileURLToPath(new URL("../../node_modules/.bin/agent-lane", import.meta.url));
  try {
    return {
      code: 0,
      out: execFileSync(bin, args, {
        encoding: "utf8",
        timeout: 90_000,
        stdio: ["ignore", "pipe", "pipe"],
        ...options,
      }),
    };
  } catch (error) {
    if (error.status === undefined || error.status === null) throw error;
    return { code: error.status, out: error.stdout, errors: error.stderr };
  }
}
