// SPDX-License-Identifier: Apache-2.0
// Real Sandcastle, real lanes: the product's main job, and the ways in which Sandcastle loses or drops a handle.
import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import { describe, it } from "node:test";
import { claudeCode, createSandbox, run } from "@ai-hero/sandcastle";
import { makeRepo, provider, scriptedAgent, sh } from "./lib/lanes.mjs";
import { laneDirectories, laneProcesses, nothingLeft, productHome, until } from "./lib/world.mjs";

const commitAgent = scriptedAgent(
  `cat > prompt.txt; echo change >> a.txt; git add -A; git commit -qm "agent commit"; echo "RESULT done <promise>COMPLETE</promise>"`,
);
const logging = (repo) => ({ type: "file", path: join(repo, ".sandcastle/e2e.log") });

const fakeClaude = `cat > /usr/local/bin/claude <<'EOF'
#!/bin/sh
prompt=$(cat)
echo '{"type":"system","subtype":"init","session_id":"11111111-2222-3333-4444-555555555555"}'
printf '%s' "$prompt" > from-claude.txt
git add from-claude.txt >&2 && git commit -qm "fake claude commit" >&2
echo '{"type":"result","result":"all good <promise>COMPLETE</promise>"}'
EOF
chmod 755 /usr/local/bin/claude`;

/** The guest's git lies about untracked names, as a hostile guest would. */
const lyingGit = (names) => `cat > /usr/local/bin/git <<'EOF'
#!/bin/sh
case "$*" in "ls-files --others --exclude-standard") printf '%s\\n' ${names};; *) exec /usr/bin/git "$@";; esac
EOF
chmod 755 /usr/local/bin/git`;

describe("Sandcastle", { concurrency: false, timeout: 900_000 }, () => {
  it("createSandbox: commits land on the branch, with an open network; a lying guest writes nothing on the host; the VM is gone after close", async () => {
    const repo = makeRepo();
    const sandbox = await createSandbox({
      cwd: repo,
      branch: "agent/one",
      sandbox: provider({ network: "open", env: { RUN_VAR: "yes" } }),
    });
    try {
      const first = await sandbox.run({ agent: commitAgent, prompt: "please change a.txt", logging: logging(repo) });
      assert.equal(first.commits.length, 1);
      const second = await sandbox.run({ agent: commitAgent, prompt: "again", logging: logging(repo) });
      assert.equal(second.commits.length, 1);
      assert.equal(sh("git log --format='%s|%an' agent/one", repo), "agent commit|Dev\nagent commit|Dev\ninitial|Dev");
      assert.equal(sh("git show agent/one:prompt.txt", repo), "again");
      assert.equal((await sandbox.exec("echo $RUN_VAR")).stdout, "yes\n");

      const server = createServer((socket) => socket.end("from the host\n")).listen(0, "127.0.0.1");
      await new Promise((resolve) => server.once("listening", resolve));
      const reached = await sandbox.exec(
        `timeout 10 bash -c 'exec 3<>/dev/tcp/192.168.5.2/${server.address().port} && cat <&3'`,
      );
      server.close();
      assert.equal(reached.stdout, "from the host\n", "network open reaches what network none does not");

      await sandbox.exec(lyingGit("../../../escaped.txt"), { sudo: true });
      await sandbox.exec("echo pwn > ../escaped.txt; echo pwn > ../../../escaped.txt || true");
      await assert.rejects(
        sandbox.run({ agent: scriptedAgent("echo done"), prompt: "x", logging: logging(repo) }),
        /GUEST_PATH_INVALID|\.\./,
      );
      assert.deepEqual(
        [existsSync(join(repo, "escaped.txt")), existsSync(join(repo, "../escaped.txt"))],
        [false, false],
      );
    } finally {
      await sandbox.close();
    }
    await nothingLeft();
  });

  it("run() with claudeCode: the commit lands on main", async () => {
    const repo = makeRepo();
    const r = await run({
      cwd: repo,
      agent: claudeCode("fake-model", { env: { ANTHROPIC_API_KEY: "k" } }),
      sandbox: provider(),
      prompt: "hello claude",
      logging: logging(repo),
      hooks: { sandbox: { onSandboxReady: [{ command: fakeClaude, sudo: true }] } },
    });
    assert.equal(r.commits.length, 1);
    assert.equal(
      sh("git log --format=%s main; git show main:from-claude.txt", repo),
      "fake claude commit\ninitial\nhello claude",
    );
    await nothingLeft();
  });

  it("abort of run() closes the lane; nothing is left", async () => {
    const repo = makeRepo(), controller = new AbortController();
    const agent = scriptedAgent("echo started; sleep 300");
    agent.parseStreamLine = (line) => {
      setTimeout(() => controller.abort(new Error("user abort")), 300);
      return [{ type: "text", text: line }];
    };
    await assert.rejects(
      run({ cwd: repo, agent, sandbox: provider(), prompt: "x", signal: controller.signal, logging: logging(repo) }),
      /user abort/,
    );
    await nothingLeft();
  });

  it("a sync-in that fails loses the handle: the lane ends itself after syncInTimeoutSeconds", async () => {
    const repo = makeRepo(), clone = `${repo}-shallow`;
    sh("for i in 1 2 3; do echo $i >> a.txt; git commit -qam c$i; done", repo);
    sh(
      `git clone -q --depth 1 file://${repo} ${clone} && cd ${clone} && git config user.email x@y && git config user.name x`,
      repo,
    );
    await assert.rejects(
      createSandbox({ cwd: clone, branch: "b", sandbox: provider({ syncInTimeoutSeconds: 15 }) }),
      /parents|clone|SyncError/i,
    );
    assert.equal(laneDirectories().length, 1, "Sandcastle never closed it");
    assert.ok(laneProcesses(productHome()).length > 0);
    await until("the sync-in watchdog", 40, () => laneDirectories().length === 0);
    await nothingLeft();
  });
});
