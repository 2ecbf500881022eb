// SPDX-License-Identifier: Apache-2.0
// run() with the real claudeCode() driven by a scripted `claude`: hooks, prompt blocks, copyToWorktree, merge to head.
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { claudeCode, run } from "@ai-hero/sandcastle";

export default {
  "run-claude": {
    about: "run() with claudeCode, prompt file, hooks, copyToWorktree; the commit lands on main",
    async run(t) {
      writeFileSync(join(t.repo, ".env"), "SECRET=1\n"); // ignored by git, so in the main checkout only
      mkdirSync(join(t.repo, ".sandcastle"), { recursive: true });
      writeFileSync(join(t.repo, ".sandcastle/.env"), "FROM_DOTENV=yes\n");
      const promptFile = join(t.repo, ".sandcastle/prompt.md");
      writeFileSync(
        promptFile,
        "Branch {{SOURCE_BRANCH}} -> {{TARGET_BRANCH}}\nfiles: !`ls -a`\nuname: !`printf 'x\\n\\n'`\n",
      );
      const events = [];
      const outcome = await t.show(
        "run",
        run({
          cwd: t.repo,
          agent: claudeCode("fake-model", { env: { ANTHROPIC_API_KEY: "k" } }),
          sandbox: t.provider({ env: { PROV: "p" }, prepare: (guest) => guest.install("claude", t.claude) }),
          promptFile,
          copyToWorktree: [".env", "a.txt", "missing.txt", "gen-dir"],
          hooks: {
            host: {
              onWorktreeReady: [{ command: "mkdir -p gen-dir/sub && echo g > gen-dir/sub/f" }],
              onSandboxReady: [{ command: "true" }],
            },
            sandbox: {
              onSandboxReady: [{ command: "echo hook1; sleep 0.1" }, { command: "echo hook2 && id -u", sudo: true }],
            },
          },
          logging: {
            type: "file",
            path: join(t.repo, ".sandcastle/logs/x.log"),
            verbose: true,
            onAgentStreamEvent: (e) => events.push(e),
          },
        }),
      );
      t.note("events", events);
      t.note(
        "host",
        t.sh(
          "git log --format='%h %s' main; git branch -a; git show main:from-claude.txt; ls; git worktree list",
          t.repo,
        ),
      );
      if (outcome) await t.show("resume", (async () => outcome.resume("more"))());
    },
  },
};
