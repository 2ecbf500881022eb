// SPDX-License-Identifier: Apache-2.0
// Checks: a lane reaches neither the lane beside it nor a worktree that is not its own.
import { existsSync, mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { Lane } from "../../lane.js";
import { notRun, unless, type Verdict } from "../answers.js";
import { CanaryFile, token } from "../canary.js";
import type { Check } from "../check.js";
import { canLook, openFiles } from "../host.js";
import type { Scene } from "../scene.js";

const EXEC = { timeoutMs: 60_000 } as const;

/** What the guest finds below its own directories under a name, and what it holds. */
async function find(lane: Lane, name: string): Promise<string> {
  const command = `find / -xdev -path /usr -prune -o -name '${name}' -exec head -c 200 {} + 2>/dev/null | head -c 2000; echo; echo done`;
  const r = await lane.exec(command, { ...EXEC, sudo: true, cwd: "/" });
  return r.stdout.endsWith("\ndone\n") ? r.stdout : "cut short";
}

async function otherLane(scene: Scene): Promise<Verdict> {
  const [lane, other] = await Promise.all([scene.attacker(), scene.neighbour()]);
  const name = `canary-${token()}`, word = token();
  const planted = await other.exec(`mkdir -p '${other.worktreePath}' && printf %s ${word} >'${other.worktreePath}/${name}' && sync && printf ready`, { ...EXEC, cwd: "/home/agent" });
  if (planted.stdout !== "ready") return notRun("the canary could not be planted in the lane beside");
  // The worktree has the same path in every lane: what is written there lands in one lane only.
  const mine = token();
  await lane.exec(`mkdir -p '${lane.worktreePath}' && printf %s ${mine} >'${lane.worktreePath}/${name}-2'`, { ...EXEC, cwd: "/home/agent" });
  const found = await find(lane, name);
  const back = await other.exec(`cat '${other.worktreePath}/${name}'; ls '${other.worktreePath}'`, { ...EXEC, cwd: "/home/agent" });
  if (found === "cut short") return notRun("the search in the guest did not end");
  const files = await Promise.all([lane, other].map(async (l) => openFiles((await scene.hypervisor(l)) ?? -1) ?? []));
  if (canLook && files.some((list) => list.length === 0)) return notRun("a lane's QEMU could not be looked at");
  const dirs = [lane, other].map((l) => `${String(l.facts["dir"])}/`);
  const crossed = files.some((list, i) => list.some((f) => f.path.startsWith(dirs[1 - i] ?? "/")));
  const shared = (files[0] ?? []).filter((f) => f.kind === "file" && f.writable && (files[1] ?? []).some((g) => g.path === f.path));
  return unless(
    [
      [found.includes(word), "the guest read a file of the lane beside it"],
      [!back.stdout.startsWith(word), "the canary in the lane beside was changed"],
      [back.stdout.includes(`${name}-2`), "a file that one lane wrote is in the other"],
      [crossed, "a lane's QEMU has files of the other lane open"],
      [shared.length > 0, "both lanes' QEMUs can write to the same file"],
    ],
    canLook ? "the canary beside was not found and is untouched; the two QEMUs share no file that one of them could write" : "the canary beside was not found and is untouched",
  );
}

async function otherWorktree(scene: Scene): Promise<Verdict> {
  const lane = await scene.attacker();
  const dir = await scene.scratch("worktrees"), own = join(dir, "task-1"), other = join(dir, "task-2");
  for (const d of [own, other]) mkdirSync(d, { recursive: true });
  const canary = new CanaryFile(join(other, `canary-${token()}`), token());
  const name = canary.path.split("/").at(-1) ?? "";
  writeFileSync(join(own, "a.txt"), "hello\n");
  // As every worktree of git's: from here down no link is followed.
  writeFileSync(join(own, ".git"), "gitdir: /nowhere\n");
  symlinkSync("../task-2", join(own, "sibling"));
  symlinkSync(canary.path, join(own, "precious"));
  await lane.copyIn(own, "/home/agent/task-1", { signal: AbortSignal.timeout(60_000) });
  const arrived = await lane.exec("cat task-1/a.txt; ls task-1/sibling/ task-1/precious 2>&1 | wc -l", { ...EXEC, cwd: "/home/agent" });
  if (!arrived.stdout.startsWith("hello\n")) return notRun("the lane's own worktree did not come in");
  const found = await find(lane, name);
  if (found === "cut short") return notRun("the search in the guest did not end");
  // The guest writes through the links that came with the worktree, at the very places that they name.
  await lane.exec(`mkdir -p task-2 '${other}'; printf x >task-2/new; printf x >'${canary.path}'`, { ...EXEC, sudo: true, cwd: "/home/agent" });
  await lane.copyFileOut("/home/agent/task-2/new", join(own, "sibling", "new"), { signal: AbortSignal.timeout(60_000) }).catch(() => undefined);
  return unless(
    [
      [found.includes(canary.word), "a file of the other worktree came in"],
      [!canary.untouched, "the canary in the other worktree was changed"],
      [readdirSync(other).join() !== name, "something new lies in the other worktree"],
      [!existsSync(own) || readFileSync(join(own, "a.txt"), "utf8") !== "hello\n", "the lane's own worktree was changed without a copy"],
    ],
    "links to the other worktree came in as links; its canary was not found and is untouched",
  );
}

export const lanes: readonly Check[] = [
  {
    id: "other-lane", beside: true,
    point: "other lanes",
    tried: "a canary in the worktree of a lane beside is searched for, files are written at its path; the open files of both QEMUs are compared",
    by: "each lane has a disk, a network and a QEMU of its own; of the image they share, nobody can write",
    run: otherLane,
  },
  {
    id: "other-worktree",
    point: "other worktrees",
    tried: "a worktree with links into another one is copied in; the guest reads and writes through them, a file is copied out through one",
    by: "copies follow no link; nothing else crosses",
    run: otherWorktree,
  },
];
