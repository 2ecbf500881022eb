// SPDX-License-Identifier: Apache-2.0
// lima(): the Sandcastle provider. Checks the options at once, starts a lane per create, and says errors so that
// Sandcastle shows all of them.
import {
  createIsolatedSandboxProvider,
  type IsolatedSandboxHandle,
  type IsolatedSandboxProvider,
} from "@ai-hero/sandcastle";
import type { CopyInResult } from "./copy.js";
import { asLaneError, spoken } from "./errors.js";
import { tell } from "./events.js";
import { EXEC_NAMES, type ExecOptions } from "./exec.js";
import { INTERACTIVE_NAMES, type InteractiveOptions } from "./interactive.js";
import type { Lane } from "./lane.js";
import { resolveOptions, type LimaOptions } from "./options.js";
import { startLane } from "./start.js";

async function said<T>(work: Promise<T>): Promise<T> {
  try {
    return await work;
  } catch (error) {
    throw spoken(asLaneError(error));
  }
}

/** What a lane knows of the options that Sandcastle passes: names of a later Sandcastle must not stop a run. */
function known<T extends object>(names: readonly (keyof T)[], options: T): T {
  return Object.fromEntries(names.filter((name) => options[name] !== undefined).map((n) => [n, options[n]])) as T;
}

/** Sandcastle has no use for a copy's result, but a file that is not the host's any more must not go unsaid. */
function changedText({ changed, changedPath }: CopyInResult): string {
  const what = changed === 1 ? "a file" : `${changed} files`;
  return `copyIn: ${what} changed while being read, first ${changedPath ?? ""}: cut or padded with zeros to the size at first`;
}

function handleOf(lane: Lane, notice: (message: string) => void): IsolatedSandboxHandle & AsyncDisposable {
  return {
    worktreePath: lane.worktreePath,
    exec: (command, options) => said(lane.exec(command, known<ExecOptions>(EXEC_NAMES, options ?? {}))),
    interactiveExec: (args, options) =>
      said(lane.interactiveExec(args, known<InteractiveOptions>(INTERACTIVE_NAMES, options))),
    copyIn: async (hostPath, sandboxPath) => {
      const result = await said(lane.copyIn(hostPath, sandboxPath));
      if (result.changed > 0) notice(changedText(result));
    },
    copyFileOut: async (sandboxPath, hostPath) => {
      await said(lane.copyFileOut(sandboxPath, hostPath));
    },
    close: () => lane.close(),
    [Symbol.asyncDispose]: () => lane.close(),
  };
}

/**
 * A Sandcastle sandbox provider: every `create` starts a fresh Linux VM on this machine, and `close` destroys it.
 *
 * ```ts
 * import { run, claudeCode } from "@ai-hero/sandcastle";
 * import { lima } from "@agent-lane/provider-lima";
 *
 * await run({ agent: claudeCode("claude-sonnet-4-5"), sandbox: lima({ image: "agents", memoryGiB: 8 }), prompt: "…" });
 * ```
 *
 * @throws LaneError BAD_OPTION or UNKNOWN_OPTION, at once. What needs the machine (Lima, image, memory) fails in
 * `create`.
 */
export function lima(options: LimaOptions = {}): IsolatedSandboxProvider {
  const resolved = resolveOptions(options);
  return createIsolatedSandboxProvider({
    name: "agent-lane",
    env: { ...resolved.env },
    create: async ({ env }) => {
      const begun = Date.now();
      const lane = await said(startLane(resolved, { env, syncInWatchdog: true }));
      return handleOf(lane, (message) =>
        tell(resolved.onEvent, { type: "notice", lane: lane.name, timeMs: Date.now() - begun, message }),
      );
    },
  });
}
