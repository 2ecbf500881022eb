// SPDX-License-Identifier: Apache-2.0
// Sandcastle's own project templates, as `sandcastle init` would lay them down, with one import changed: `docker` comes from lanes of ours.
// The agent is a scripted `claude` that the project carries; the templates' prompts, hooks and loops are as they are.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { chmodSync, cpSync, mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { makePlace } from "../oracle/lib/place.mjs";
import { makeRepo, scratch, sh } from "./lib/lanes.mjs";
import { nothingLeft } from "./lib/world.mjs";

// "agent": the lane agent as a process of this machine behind a scripted limactl, one lane at a time; for trying the test itself.
const where = process.env.E2E_TEMPLATES_ON ?? "lima";
const modules = fileURLToPath(new URL("../node_modules", import.meta.url));
const templates = join(dirname(fileURLToPath(import.meta.resolve("@ai-hero/sandcastle"))), "templates");

/** `claude --print`: the prompt on stdin, JSON lines on stdout. What it does is in the prompt's first line, which this test adds. */
const CLAUDE = `#!/bin/sh
prompt=$(cat)
say() { printf '%s' "$1" | jq -Rs '{type: "result", result: .}' -c; }
echo '{"type":"system","subtype":"init","session_id":"11111111-2222-3333-4444-555555555555"}'
commit() { git add -A && git commit -qm "$1" >&2; }
case "$prompt" in
  'ROLE plan'*) say "<plan>$(jq -Rsc '{issues: [split("\\n")[] | select(. != "") | {id: ., title: ("Issue " + .), branch: ("sandcastle/issue-" + .)}]}' issues.txt)</plan>" ;;
  'ROLE merge'*)
    for branch in $(printf '%s\\n' "$prompt" | sed -n 's/^- \\(sandcastle\\/issue-.*\\)/\\1/p'); do
      git merge -q --no-edit "$branch" >&2 || git merge -q --no-edit "origin/$branch" >&2 || exit 1
    done
    : > issues.txt; commit "RALPH: merged"; say "<promise>COMPLETE</promise>" ;;
  'ROLE review'*) echo reviewed >> review.txt; commit "RALPH: review"; say "<promise>COMPLETE</promise>" ;;
  'ROLE implement'*)
    id=$(printf '%s\\n' "$prompt" | sed -n 's/^ISSUE \\([0-9]*\\)$/\\1/p')
    # Else the first that no branch has done yet: the repository came with all of them.
    for each in \${id:+none} $(cat issues.txt); do
      [ -n "$id" ] || git log --all --format=%s | grep -qx "RALPH: issue $each" || id=$each
    done
    [ -n "$id" ] || { say "nothing to do <promise>COMPLETE</promise>"; exit 0; }
    echo "done" > "issue-$id.txt"
    commit "RALPH: issue $id"; say "done <promise>COMPLETE</promise>" ;;
  *) echo "no role: $prompt" >&2; exit 1 ;;
esac
`;

/** The planners check the plan with zod, which a project of theirs would have: enough of it, by the standard that Sandcastle asks for. */
const ZOD = `const ok = (value) => ({ "~standard": { version: 1, vendor: "test", validate: (v) => ({ value: v }) } });
export const z = { object: ok, array: ok, string: ok };`;

const ROLES = { "plan-prompt.md": "plan", "merge-prompt.md": "merge", "review-prompt.md": "review", "implement-prompt.md": "implement", "prompt.md": "implement" };

/** A project with the template in .sandcastle, and what a template leaves to the project. */
function project(name, issues) {
  const repo = makeRepo();
  const place = join(repo, ".sandcastle");
  cpSync(join(templates, name), place, { recursive: true });
  for (const file of readdirSync(place).filter((each) => ROLES[each])) {
    const text = readFileSync(join(place, file), "utf8");
    const filled = text.replaceAll("{{LIST_TASKS_COMMAND}}", "cat issues.txt").replace(/\{\{(?:VIEW|CLOSE)_TASK_COMMAND\}\}/g, "true");
    const issue = text.includes("{{TASK_ID}}") ? "\nISSUE {{TASK_ID}}" : "";
    writeFileSync(join(place, file), `ROLE ${ROLES[file]}${issue}\n${filled}`);
  }
  const main = readFileSync(join(place, "main.mts"), "utf8");
  const from = '"@ai-hero/sandcastle/sandboxes/docker"';
  assert.equal(main.split(from).length, 2, "one import is changed, and it is there once");
  // The types of the one that has any go away, as tsx would have it.
  writeFileSync(join(place, "main.mjs"), main.replace(from, '"./lanes.mjs"').replaceAll("]!", "]").replace(/: entry is \{[^]*?\} =>/, " =>"));
  // The agent's commands start in the worktree: its tools are found from there.
  const path = JSON.stringify({ PATH: "./tools:/usr/local/bin:/usr/bin:/bin" });
  const lanes = {
    lima: `import { lima } from "@agent-lane/provider-lima";
export const docker = () => lima({ cpus: 2, memoryGiB: 1.5, network: "none", env: ${path} });`,
    agent: `import { productProvider } from ${JSON.stringify(new URL("../oracle/lib/place.mjs", import.meta.url).href)};
const make = await productProvider("agent", () => undefined);
export const docker = () => ({ tag: "isolated", name: "lanes", ...make({ env: ${path} }) });`,
  };
  writeFileSync(join(place, "lanes.mjs"), lanes[where]);
  for (const path of ["@ai-hero", "@agent-lane"]) {
    mkdirSync(join(place, "node_modules"), { recursive: true });
    symlinkSync(join(modules, path), join(place, "node_modules", path));
  }
  mkdirSync(join(place, "node_modules", "zod"));
  writeFileSync(join(place, "node_modules", "zod", "package.json"), '{"name":"zod","type":"module","exports":"./index.js"}');
  writeFileSync(join(place, "node_modules", "zod", "index.js"), ZOD);
  mkdirSync(join(repo, "node_modules"));
  writeFileSync(join(repo, "node_modules", "marker"), "");
  mkdirSync(join(repo, "tools"));
  writeFileSync(join(repo, "tools", "claude"), CLAUDE);
  chmodSync(join(repo, "tools", "claude"), 0o755);
  // The reviewers compare with `main`, which a guest of an isolated provider, whichever it is, has as origin/main only. The templates' hook is
  // `npm install`, so that is where the project can help.
  const scripts = { preinstall: "git show-ref -q --verify refs/heads/main || git branch main origin/main" };
  writeFileSync(join(repo, "package.json"), `${JSON.stringify({ name: "project", version: "1.0.0", private: true, scripts })}\n`);
  writeFileSync(join(repo, ".npmrc"), "package-lock=false\n");
  writeFileSync(join(repo, "issues.txt"), issues.map((id) => `${id}\n`).join(""));
  sh("printf 'node_modules/\\n' >> .gitignore && git add -A && git commit -qm project", repo);
  return repo;
}

async function runTemplate(name, issues) {
  const repo = project(name, issues);
  const r = spawnSync(process.execPath, [".sandcastle/main.mjs"], { cwd: repo, encoding: "utf8", timeout: 600_000, killSignal: "SIGKILL", env: { ...process.env, ...(where === "agent" ? makePlace("agent", scratch("e2e-place")) : {}) } });
  assert.equal(r.status, 0, `${r.stdout}\n${r.stderr}`.slice(-4000));
  if (where === "lima") await nothingLeft();
  return { repo, out: r.stdout, log: (...args) => sh(`git log --format=%s ${args.join(" ")}`, repo).split("\n") };
}

describe("Sandcastle's templates, with one import changed", { concurrency: false, timeout: 1_500_000 }, () => {
  it("blank", async () => {
    const { log } = await runTemplate("blank", [1]);
    // Its strategy is the provider's own: a branch of its own, or the current one; the commit is in the repository either way.
    assert.ok(log("--all").includes("RALPH: issue 1"), log("--all").join(", "));
  });

  it("simple-loop: iterations in one lane, merged to HEAD", async () => {
    const { repo, log } = await runTemplate("simple-loop", [1]);
    assert.ok(log().includes("RALPH: issue 1"));
    assert.equal(sh("cat issue-1.txt", repo), "done");
  });

  it("sequential-reviewer: implementer and reviewer in one lane per branch, until there is nothing left", async () => {
    const { out, log } = await runTemplate("sequential-reviewer", [1]);
    assert.match(out, /All done\./);
    for (const subject of ["RALPH: issue 1", "RALPH: review"]) assert.ok(log("--all").includes(subject), subject);
  });

  it("parallel-planner-with-review: a plan, two lanes at once, a merge", async () => {
    const { repo, log } = await runTemplate("parallel-planner-with-review", where === "lima" ? [1, 2] : [1]);
    for (const subject of ["RALPH: issue 1", ...(where === "lima" ? ["RALPH: issue 2"] : []), "RALPH: review"]) assert.ok(log().includes(subject), log().join(", "));
    assert.equal(sh("cat issue-*.txt issues.txt", repo), where === "lima" ? "done\ndone" : "done");
  });
});
