// SPDX-License-Identifier: Apache-2.0
// createSandbox() with a scripted agent: two runs, a command, close twice.
import { createSandbox } from "@ai-hero/sandcastle";
import { scriptedAgent } from "../lib/kit.mjs";

const agent = scriptedAgent(
  `cat > prompt.seen; echo "working"; rm prompt.seen; echo change >> a.txt; git add -A; git commit -qm "agent commit"; echo "RESULT done <promise>COMPLETE</promise>"`,
);

export default {
  demo: {
    about: "createSandbox, two runs, exec, close twice; commits land on a branch",
    async run(t) {
      const sandbox = await createSandbox({
        branch: "agent/demo",
        cwd: t.repo,
        sandbox: t.provider({ env: { GUEST_VAR: "1" } }),
      });
      t.note("host worktree", sandbox.worktreePath);
      await t.show("run 1", sandbox.run({ agent, prompt: "please change a.txt" }));
      await t.show("run 2", sandbox.run({ agent, prompt: "again" }));
      await t.show("exec", sandbox.exec("pwd; git log --oneline | wc -l; echo $GUEST_VAR"));
      await t.show("close", sandbox.close());
      await t.show("close again", sandbox.close());
      t.note(
        "host log",
        t.sh("git log --format='%h %an <%ae> %s' agent/demo; git status --porcelain; git worktree list", t.repo),
      );
    },
  },
};
