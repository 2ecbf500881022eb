// SPDX-License-Identifier: Apache-2.0
// What a caller gives a lane - variables, prompts, files - is nowhere on the host afterwards: not in any file of the home, while the
// lane runs and when it is gone, not in the arguments or variables of its processes, not in events, errors or what the command says.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { inspect } from "node:util";
import { run } from "@ai-hero/sandcastle";
import { agentLane, makeRepo, openOwnLane, provider, scratch, scriptedAgent } from "./lib/lanes.mjs";
import { nothingLeft, productHome, until } from "./lib/world.mjs";

const MINUTES = 60_000;
/** Each way in has a word of its own, so that a find says which one it was. */
const WAYS = ["laneEnv", "callEnv", "callerEnv", "command", "argument", "stdin", "fileIn", "treeIn", "fileOut", "treeOut", "output", "sandcastleEnv", "prompt"];
const canary = Object.fromEntries(WAYS.map((way) => [way, `canary-${way}-${randomBytes(12).toString("hex")}`]));
const words = Object.values(canary);
/** Those that also the words for people must not have; commands and output are the caller's own business there. */
const values = ["laneEnv", "callEnv", "callerEnv", "stdin", "fileIn", "treeIn", "fileOut", "treeOut", "sandcastleEnv", "prompt"].map((way) => canary[way]);

const within = (text, list = words) => list.filter((word) => text.includes(word));

/** Every file of the home that has one of the words; `disk`: also the lane's own disk, which is the guest's. */
function inHome({ disk }) {
  const args = ["-rlaF", ...words.flatMap((word) => ["-e", word]), ...(disk ? [] : ["--exclude=disk"]), "--devices=skip", productHome()];
  try {
    return execFileSync("grep", args, { encoding: "utf8", timeout: 2 * MINUTES, stdio: ["ignore", "pipe", "ignore"] }).trim().split("\n");
  } catch (error) {
    if (error.status === 1 || (error.status === 2 && error.stdout === "")) return []; // 2: a file or socket went meanwhile
    return error.stdout.trim().split("\n");
  }
}

/** Every process of this user but this one whose arguments or variables have one of the words. */
function inProcesses() {
  return readdirSync("/proc").filter((pid) => /^\d+$/.test(pid) && Number(pid) !== process.pid).flatMap((pid) =>
    ["cmdline", "environ"].flatMap((file) => {
      try {
        const found = within(readFileSync(`/proc/${pid}/${file}`, "latin1"));
        return found.map((word) => `${pid} ${file} ${word}: ${readFileSync(`/proc/${pid}/comm`, "utf8").trim()}`);
      } catch {
        return []; // it has ended, or is somebody else's
      }
    }),
  );
}

describe("secrets", { concurrency: false }, () => {
  const there = scratch("secrets"), told = [];
  let lane;

  before(async () => {
    writeFileSync(join(there, "one"), canary.fileIn);
    mkdirSync(join(there, "tree", "sub"), { recursive: true });
    writeFileSync(join(there, "tree", "sub", "two"), canary.treeIn);
    process.env.E2E_CALLERS_OWN = canary.callerEnv;
    lane = await openOwnLane({ env: { LANE_TOKEN: canary.laneEnv }, onEvent: (event) => told.push(inspect(event, { depth: 9 })) });
  }, { timeout: 5 * MINUTES });
  after(async () => {
    delete process.env.E2E_CALLERS_OWN;
    await lane?.close();
  }, { timeout: 2 * MINUTES });

  /** The call fails; what is thrown is kept. */
  async function failing(code, work) {
    const error = await work().then(() => assert.fail("it succeeded"), (e) => e);
    assert.match(error.code, code, error.message);
    told.push(error.message, String(error.cure), error.stack, inspect(error.cause, { depth: 9 }));
  }

  it("come to the guest", { timeout: 5 * MINUTES }, async () => {
    const { stdout } = await lane.exec("printf '%s %s %s ' \"$LANE_TOKEN\" \"$CALL_TOKEN\" \"${E2E_CALLERS_OWN-none}\"; cat", {
      env: { CALL_TOKEN: canary.callEnv }, stdin: canary.stdin,
    });
    assert.equal(stdout, `${canary.laneEnv} ${canary.callEnv} none ${canary.stdin}`);
    await lane.copyIn(join(there, "one"), `${lane.worktreePath}/in/one`);
    await lane.copyIn(join(there, "tree"), `${lane.worktreePath}/in/tree`);
    assert.equal((await lane.exec("cat in/one in/tree/sub/two")).stdout, canary.fileIn + canary.treeIn);
    await lane.exec(`mkdir -p out/tree; printf %s '${canary.fileOut}' >out/one; printf %s '${canary.treeOut}' >out/tree/two`);
    await lane.copyFileOut(`${lane.worktreePath}/out/one`, join(there, "got-one"));
    await lane.copyOut(`${lane.worktreePath}/out/tree`, join(there, "got-tree"));
    assert.equal(readFileSync(join(there, "got-one"), "utf8") + readFileSync(join(there, "got-tree", "two"), "utf8"), canary.fileOut + canary.treeOut);
  });

  it("are in no process, no file and no word of a lane that is at work with them", { timeout: 5 * MINUTES }, async () => {
    const child = lane.spawn(["sh", "-c", `echo '${canary.output}'; echo '# ${canary.command}' >&2; sleep 600`, "sh", canary.argument], {
      env: { CALL_TOKEN: canary.callEnv }, tty: true,
    });
    const ended = child.exited.catch((error) => error);
    let said = "";
    child.stdout.on("data", (data) => (said += data)).on("error", () => undefined);
    await until("what it says", 60, () => said.includes(canary.output) && said.includes(canary.command));
    assert.deepEqual(inProcesses(), []);
    assert.deepEqual(inHome({ disk: false }), []);
    for (const args of [["ls", "--json"], ["inspect", lane.name, "--json"], ["logs", lane.name, "--json"], ["events"], ["runs", "--json"]]) {
      const { code, out, errors } = agentLane(args);
      assert.equal(code, 0, errors);
      assert.deepEqual(within(`${out}${errors ?? ""}`), [], args.join(" "));
    }
    await child[Symbol.asyncDispose]();
    await ended;
  });

  it("are in no error", { timeout: 5 * MINUTES }, async () => {
    const env = { CALL_TOKEN: canary.callEnv }, stdin = canary.stdin;
    await failing(/^(TIMEOUT)$/, () => lane.exec("cat >/dev/null; sleep 60", { env, stdin, timeoutMs: 1000 }));
    await failing(/^(OUTPUT_LIMIT)$/, () => lane.exec("cat; yes", { env, stdin, maxOutputBytes: 10_000 }));
    await failing(/^(BAD_OPTION)$/, () => lane.exec("true", { env: { "NOT A NAME": canary.callEnv } }));
    await failing(/^(BAD_OPTION)$/, () => lane.exec("true", { env: { CALL_TOKEN: `${canary.callEnv}\0` } }));
    await failing(/^(BAD_OPTION)$/, () => openOwnLane({ env: { "NOT A NAME": canary.laneEnv } }));
    await failing(/^(BAD_OPTION)$/, () => openOwnLane({ env: { LANE_TOKEN: `${canary.laneEnv}\0` } }));
    await failing(/^[A-Z_]+$/, () => lane.copyIn(join(there, "one"), "/proc/none/one"));
    assert.deepEqual(within(told.join("\n"), values), []);
  });

  it("are nowhere in the home when the lane is gone, nor is the prompt of a run of Sandcastle", { timeout: 10 * MINUTES }, async () => {
    await lane.close();
    const repo = makeRepo();
    const agent = scriptedAgent(
      `cat >prompt.txt; printf %s "$SECRET" >>prompt.txt; git add -A; git commit -qm done; echo "RESULT done <promise>COMPLETE</promise>"`,
    );
    const sandbox = provider({ env: { SECRET: canary.sandcastleEnv }, onEvent: (event) => told.push(inspect(event, { depth: 9 })) });
    const logging = { type: "file", path: join(repo, ".sandcastle", "e2e.log") };
    const { commits } = await run({ cwd: repo, agent, sandbox, prompt: canary.prompt, logging });
    assert.equal(commits.length, 1);
    assert.equal(readFileSync(join(repo, "prompt.txt"), "utf8"), canary.prompt + canary.sandcastleEnv);
    await nothingLeft();
    assert.deepEqual(inHome({ disk: true }), []);
    assert.deepEqual(inProcesses(), []);
    const { out } = agentLane(["inspect", lane.name, "--json"]);
    assert.deepEqual(within(out), []);
    assert.match(out, /"LANE_TOKEN"/); // the name is there, and the search has searched what it should
    assert.deepEqual(within(told.join("\n"), values), []);
  });

  it("would be found", () => {
    const planted = join(productHome(), "run", "planted");
    try {
      writeFileSync(planted, `\0\0${canary.prompt}`);
      assert.deepEqual(inHome({ disk: true }), [planted]);
    } finally {
      rmSync(planted, { force: true });
    }
  });
});
