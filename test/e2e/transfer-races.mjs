// SPDX-License-Identifier: Apache-2.0
// Things that are swapped while the host copies: a loop in the guest, or on the host, exchanges two entries without
// pause (renameat2), so that each of them is always there as one of the two. Tests of transfer.test.mjs, which share
// one lane.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { existsSync, mkdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { it } from "node:test";
import { fails, scratch } from "./lib/lanes.mjs";
import { makeWorld, SECRET, temporaries } from "./lib/world-of-files.mjs";

const SECONDS = Number(process.env.E2E_RACE_SECONDS ?? 4);
/** Copies of a file in each race, at least; of a tree a tenth. */
const RACES = Number(process.env.E2E_RACES ?? 0);
const TIMEOUT = (SECONDS + 120 + RACES / 4) * 1000;
const SWAP = 'syscall($n, -100, $ARGV[0], -100, $ARGV[1], 2) == 0 or die "$!" for 1..200';
const EXCHANGE = `perl -e '$n = qx(uname -m) =~ /aarch64/ ? 276 : 316; while (-e "go") { ${SWAP} }'`;
const RACE = "/home/agent/race";

/** The code of an error, and the words of one of each code. */
const codeOf =
  (messages) =>
  ({ code, message }) => {
    messages[code] = message;
    return code;
  };

export function raceTests(lane) {
  /** Runs `work` until the time is over, while the guest exchanges two entries of RACE. */
  async function whileSwapped(make, pair, work, races = RACES) {
    await lane().exec(`rm -rf ${RACE} && mkdir -p ${RACE} && cd ${RACE} && ${make} && : >go`, { cwd: "/home/agent" });
    const swapper = lane().exec(`${EXCHANGE} ${pair}`, { cwd: RACE });
    const end = Date.now() + SECONDS * 1000;
    try {
      for (let i = 0; i < races || Date.now() < end; i++) await work();
    } finally {
      await lane().exec("rm -f go", { cwd: RACE });
      assert.deepEqual(await swapper, { stdout: "", stderr: "", exitCode: 0 }, "it has swapped all the time");
    }
  }

  const GUEST = [
    [
      "a directory on the way and a link",
      "mkdir d s && echo inside >d/f && echo secret >s/f && ln -s s l",
      "d l",
      "d/f",
      "IS_LINK",
    ],
    ["the file and a link", "echo inside >f && echo secret >s && ln -s s l", "f l", "f", "IS_LINK"],
    ["the file and a FIFO", "echo inside >f && mkfifo p", "f p", "f", "NOT_A_FILE"],
    ["the file and a directory", "echo inside >f && mkdir d", "f d", "f", "NOT_A_FILE"],
  ];
  for (const [what, make, pair, path, code] of GUEST)
    it(`race: the guest swaps ${what}`, { timeout: TIMEOUT }, async (t) => {
      const world = makeWorld(),
        target = join(world.repo, "target"),
        seen = {};
      await whileSwapped(make, pair, async () => {
        writeFileSync(target, "before");
        const said = await lane()
          .copyFileOut(`${RACE}/${path}`, target)
          .then(
            () => "came",
            (e) => e.code,
          );
        seen[said] = (seen[said] ?? 0) + 1;
        assert.equal(readFileSync(target, "utf8"), said === "came" ? "inside\n" : "before");
      });
      t.diagnostic(JSON.stringify(seen));
      assert.deepEqual(Object.keys(seen).sort(), ["came", code].sort());
      assert.deepEqual(temporaries(world.repo), []);
      world.untouched();
    });

  it(
    "race: the guest swaps a directory of the tree that is copied out and a link",
    { timeout: TIMEOUT },
    async (t) => {
      const world = makeWorld(),
        seen = {},
        messages = {};
      let i = 0;
      const make =
        "mkdir d s $(seq -f n%g 20) && echo inside >d/f && echo secret >s/f && ln -s ../race-secret l && " +
        "rm -rf ../race-secret && mkdir ../race-secret && echo secret >../race-secret/f";
      await whileSwapped(make, "d l", async () => {
        const to = join(world.repo, `tree-${i++}`);
        const said = await lane()
          .copyOut(RACE, to)
          .then(() => "came", codeOf(messages));
        seen[said] = (seen[said] ?? 0) + 1;
        assert.equal(existsSync(to), said === "came");
        for (const at of ["d/f", "l/f"])
          if (existsSync(join(to, at))) assert.equal(readFileSync(join(to, at), "utf8"), "inside\n");
      }, RACES / 10);
      t.diagnostic(JSON.stringify({ ...seen, ...messages }));
      assert.ok(seen.came > 0);
      assert.deepEqual(temporaries(world.repo), []);
      world.untouched();
    },
  );

  it(
    "race: a parent on the host becomes a link while the file comes",
    { timeout: TIMEOUT },
    async (t) => {
      const world = makeWorld(),
        seen = {},
        messages = {};
      await lane().exec(`head -c ${RACES > 0 ? 300_000 : 3_000_000} /dev/zero >mid`, { cwd: "/home/agent" });
      mkdirSync(join(world.repo, "p/q"), { recursive: true });
      symlinkSync(world.outside, join(world.repo, "door"));
      writeFileSync(join(world.repo, "go"), "");
      // The swapper is a program of the host here: what a build of the user's, or a second agent, may do at any time.
      const swapper = spawn("sh", ["-c", `${EXCHANGE} p door`], { cwd: world.repo, stdio: "inherit" });
      const ended = new Promise((resolve) => swapper.once("close", resolve));
      const end = Date.now() + SECONDS * 1000;
      try {
        for (let i = 0; i < RACES || Date.now() < end; i++) {
          const said = await lane()
            .copyFileOut("/home/agent/mid", join(world.repo, `p/q/r-${i % 7}/target`))
            .then(() => "came", codeOf(messages));
          seen[said] = (seen[said] ?? 0) + 1;
        }
      } finally {
        rmSync(join(world.repo, "go"));
        assert.equal(await ended, 0);
      }
      t.diagnostic(JSON.stringify({ ...seen, ...messages }));
      assert.ok(seen.came > 0 && seen.HOST_PATH_LINK > 0, JSON.stringify(seen));
      assert.deepEqual(Object.keys(seen).sort(), ["HOST_PATH_LINK", "came"]);
      assert.equal(existsSync(join(world.outside, "q")), false);
      world.untouched();
    },
  );

  it(
    "race: a directory of the host's tree becomes a link while the tree is read",
    { timeout: TIMEOUT },
    async (t) => {
      const tree = join(scratch("race"), "tree"),
        world = makeWorld(),
        seen = {};
      for (let i = 0; i < 20; i++) mkdirSync(join(tree, `a${i}`), { recursive: true });
      mkdirSync(join(tree, "d"));
      writeFileSync(join(tree, "d/secret"), "harmless\n");
      writeFileSync(join(tree, "d/f"), "harmless\n");
      symlinkSync(world.outside, join(tree, "l"));
      writeFileSync(join(tree, "go"), "");
      const swapper = spawn("sh", ["-c", `${EXCHANGE} d l`], { cwd: tree, stdio: "inherit" });
      const ended = new Promise((resolve) => swapper.once("close", resolve));
      const end = Date.now() + SECONDS * 1000;
      try {
        for (let i = 0; i < RACES / 10 || Date.now() < end; i++) {
          const said = await lane()
            .copyIn(tree, `/home/agent/race-in/${i}`)
            .then(
              () => "came",
              (e) => e.code,
            );
          seen[said] = (seen[said] ?? 0) + 1;
        }
      } finally {
        rmSync(join(tree, "go"));
        assert.equal(await ended, 0);
      }
      t.diagnostic(JSON.stringify(seen));
      assert.ok(seen.came > 0, JSON.stringify(seen));
      const found = await lane().exec(
        `grep -rlF "${SECRET.trim()}" /home/agent/race-in; find /home/agent/race-in -name '.agent-lane*'`,
        { cwd: "/" },
      );
      assert.equal(found.stdout, "");
      await fails("SOURCE_MISSING", () => lane().copyIn(join(tree, "none"), "/home/agent/race-in/none"));
      world.untouched();
    },
  );
}
