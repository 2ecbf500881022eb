// SPDX-License-Identifier: Apache-2.0
// What a scenario is given: a small repository, scripted agents, and ways to say what happened.
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { logged } from "./logged.mjs";

export const sh = (command, cwd) =>
  execFileSync("sh", ["-c", command], { cwd, encoding: "utf8", timeout: 60_000 }).trim();
export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

export const makeRepo = () => {
  const repo = mkdtempSync(join(tmpdir(), "host-repo-"));
  sh(
    `git init -q -b main && git config user.email dev@example.com && git config user.name 'Dev "Q" User' && ` +
      `printf 'hello\\n' > a.txt && printf '.env\\n.sandcastle/\\n' > .gitignore && git add -A && git commit -qm initial`,
    repo,
  );
  return repo;
};

/** Runs a shell script in the guest in an agent's place: no model, no network. */
export const scriptedAgent = (script, extra = {}) => ({
  name: "scripted",
  env: {},
  captureSessions: false,
  buildPrintCommand: ({ prompt }) => ({ command: script, stdin: prompt }),
  buildInteractiveArgs: ({ prompt }) => ["sh", "-c", script, "scripted", prompt],
  parseStreamLine: (line) =>
    line.startsWith("RESULT ") ? [{ type: "result", result: line.slice(7) }]
    : line.startsWith("TOOL ") ? [{ type: "tool_call", name: "Bash", args: line.slice(5) }]
    : [{ type: "text", text: line + "\n" }],
  ...extra,
});

/** The usual task: one commit, then the completion signal. */
export const okAgent = scriptedAgent(
  `echo change >> a.txt; git commit -qam c; echo "RESULT <promise>COMPLETE</promise>"`,
);

const plain = (value) =>
  JSON.parse(
    JSON.stringify(value ?? null, (key, v) =>
      key === "logFilePath" || key === "timestamp" ? undefined : typeof v === "function" ? "<fn>" : v,
    ),
  );

/** A `git` for the guest that does `action` (shell) when its arguments match `pattern`, and is git otherwise. */
export const gitThat = (pattern, action) => (guest) =>
  guest.install("git", `#!/bin/sh\ncase "$*" in ${pattern}) ${action} ;; esac\nexec /usr/bin/git "$@"\n`);

/**
 * `ownFaults`: a fault of the plain provider's own code is replaced by one that this provider can have, or left out.
 */
export function makeKit(recorder, makeInner, { ownFaults = false } = {}) {
  const repo = makeRepo();
  recorder.scrub(repo, "$REPO");
  const isAgent = (c) => c.call === "exec" && Boolean(c.options?.onLine);
  return {
    repo, recorder, sh, sleep,
    claude: readFileSync(new URL("../bin/claude", import.meta.url), "utf8"),
    logging: { type: "file", path: join(repo, ".sandcastle/oracle.log") },
    provider: (options) => logged(makeInner, recorder, options, ownFaults),
    killGuest: () => makeInner.killGuest(),
    freezeGuest: () => makeInner.freezeGuest(),
    note: (label, value) => recorder.note(label, typeof value === "string" ? value : plain(value)),
    /** Notes how a promise ends, and gives its value (undefined when it rejects). */
    show: async (label, promise) => {
      try {
        const value = await promise;
        recorder.note(label, { resolved: plain(value) });
        return value;
      } catch (error) {
        recorder.note(label, {
          rejected: {
            name: String(error?._tag ?? error?.name ?? typeof error),
            message: String(error?.message ?? error).slice(0, 500),
          },
        });
        return undefined;
      }
    },
    /** The newest handle, for what Sandcastle no longer does with it. */
    handle: () => recorder.handle,
    /** An AbortSignal that fires `ms` after the agent (or the call that satisfies `when`) has begun. */
    abortAfter: (ms, when = isAgent) => {
      const controller = new AbortController();
      recorder.after(when, ms, () => controller.abort(new Error("user abort")));
      return controller.signal;
    },
    afterAgentStarts: (ms, action) => recorder.after(isAgent, ms, action),
  };
}
