// SPDX-License-Identifier: Apache-2.0
// All scenarios by name.
import abort from "./abort.mjs";
import commands from "./commands.mjs";
import demo from "./demo.mjs";
import lifecycle from "./lifecycle.mjs";
import runClaude from "./run-claude.mjs";
import syncOut from "./sync-out.mjs";

export const scenarios = { ...demo, ...runClaude, ...abort, ...lifecycle, ...commands, ...syncOut };
