// SPDX-License-Identifier: Apache-2.0
// Checks: what is copied follows no link on either side, and lands nowhere but where it was sent.
import { existsSync, lstatSync, mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { LaneError } from "../../errors.js";
import { broken, held, notRun, unless, type Verdict } from "../answers.js";
import { CanaryFile, token } from "../canary.js";
import type { Check } from "../check.js";
import type { Scene } from "../scene.js";

type Copy = readonly [what: string, code: readonly string[], work: () => Promise<unknown>];

/** Each copy is refused with its code. One that succeeds, or fails for another reason, is told. */
export async function refused(copies: readonly Copy[]): Promise<{ wrong: string[]; details: string[] }> {
  const wrong: string[] = [], details: string[] = [];
  for (const [what, codes, work] of copies) {
    try {
      await work();
      wrong.push(`${what} was copied`);
    } catch (error) {
      const code = error instanceof LaneError ? error.code : "an error";
      details.push(`${what}: ${code}`);
      if (!codes.includes(code)) wrong.push(`${what} ended with ${code}, not ${codes.join(" or ")}`);
    }
  }
  return { wrong, details };
}

async function guestLinks(scene: Scene): Promise<Verdict> {
  const lane = await scene.attacker();
  const dir = await scene.scratch("guest-links"), to = join(dir, "got");
  const made = await lane.exec(
    "rm -rf t; mkdir -p t/real && cd t && echo x >real/file && ln -s /etc/passwd file && ln -s real dir && mkfifo pipe && ln -s loop loop && printf ready",
    { cwd: "/home/agent", timeoutMs: 60_000 },
  );
  if (made.stdout !== "ready") return notRun("the guest could not make its links");
  const out = (path: string) => () => lane.copyFileOut(`/home/agent/t/${path}`, to, { signal: AbortSignal.timeout(60_000) });
  const { wrong, details } = await refused([
    ["a link to a file", ["IS_LINK"], out("file")],
    ["a file below a link", ["IS_LINK"], out("dir/file")],
    ["a link to itself", ["IS_LINK"], out("loop")],
    ["a FIFO", ["NOT_A_FILE"], out("pipe")],
    ["a directory as a file", ["NOT_A_FILE"], out("real")],
  ]);
  if (existsSync(to)) wrong.push("a file came out all the same");
  // What must work does: else nothing was tried.
  await out("real/file")();
  if (readFileSync(to, "utf8") !== "x\n") return notRun("a plain file does not come out either");
  return wrong.length > 0 ? broken(wrong.join("; "), details) : held(`${details.length} were refused, a plain file came out`, details);
}

async function hostLinks(scene: Scene): Promise<Verdict> {
  const lane = await scene.attacker();
  const dir = await scene.scratch("host-links"), root = join(dir, "worktree"), other = join(dir, "other");
  for (const d of [join(root, ".git", "hooks"), other]) mkdirSync(d, { recursive: true });
  const canary = new CanaryFile(join(other, "precious"), token());
  symlinkSync("../other", join(root, "out"));
  symlinkSync("../other/precious", join(root, "file"));
  writeFileSync(join(root, ".git", "config"), "");
  const made = await lane.exec("echo x >plain && printf ready", { cwd: "/home/agent", timeoutMs: 60_000 });
  if (made.stdout !== "ready") return notRun("the guest could not write its file");
  const into = (path: string) => () => lane.copyFileOut("/home/agent/plain", join(root, path), { signal: AbortSignal.timeout(60_000) });
  const { wrong, details } = await refused([
    ["a file below a link of the host's", ["HOST_PATH_LINK"], into("out/precious")],
    ["a new file below such a link", ["HOST_PATH_LINK"], into("out/new")],
    ["a hook in .git", ["HOST_PATH_GIT"], into(".git/hooks/post-checkout")],
    ["git's configuration", ["HOST_PATH_GIT"], into(".git/config")],
  ]);
  // A link as the last component may be replaced or refused; what it leads to stays.
  await into("file")().catch(() => undefined);
  if (!canary.untouched) wrong.push("the canary behind the link was changed");
  if (readdirSync(other).join() !== "precious") wrong.push("something new lies behind the link");
  if (readdirSync(join(root, ".git", "hooks")).length > 0) wrong.push("there is a hook now");
  if (readFileSync(join(root, ".git", "config"), "utf8") !== "") wrong.push("git's configuration was written");
  await into("plain")();
  if (readFileSync(join(root, "plain"), "utf8") !== "x\n") return notRun("a plain file does not come out either");
  return wrong.length > 0 ? broken(wrong.join("; "), details) : held(`${details.length} were refused, the canary behind the link is untouched`, details);
}

async function tree(scene: Scene): Promise<Verdict> {
  const lane = await scene.attacker();
  const dir = await scene.scratch("tree"), root = join(dir, "worktree");
  mkdirSync(root);
  const canary = new CanaryFile(join(dir, "precious"), token());
  const made = await lane.exec(
    "rm -rf d g; mkdir -p d/sub g/.git/hooks && ln -s ../../precious d/up && ln -s /etc/passwd d/abs && ln -s sub d/inside && echo x >d/sub/run && chmod 6755 d/sub/run && echo x >g/.git/hooks/post-checkout && printf ready",
    { cwd: "/home/agent", timeoutMs: 60_000 },
  );
  if (made.stdout !== "ready") return notRun("the guest could not make its directory");
  const { wrong, details } = await refused([
    ["a directory with .git in it", ["TREE_REFUSED"], () => lane.copyOut("/home/agent/g", join(root, "g"), { signal: AbortSignal.timeout(60_000) })],
  ]);
  await lane.copyOut("/home/agent/d", join(root, "d"), { signal: AbortSignal.timeout(60_000) });
  const mode = lstatSync(join(root, "d", "sub", "run")).mode;
  return unless(
    [
      [wrong.length > 0, wrong.join("; ")],
      [existsSync(join(root, "g")), "a directory with .git in it is on the host"],
      [lstatSync(join(root, "d", "up"), { throwIfNoEntry: false }) !== undefined || lstatSync(join(root, "d", "abs"), { throwIfNoEntry: false }) !== undefined, "a link that leads out of the directory came along"],
      [(mode & 0o7111) !== 0, "a file came out executable, setuid or setgid"],
      [!canary.untouched, "the canary beside it was changed"],
    ],
    "links that lead out stayed behind, .git was refused, a setuid program came as a plain file",
    details,
  );
}

const OUT = "the lane agent opens through no link; the host puts what came in place by directory descriptors, below a root, and never into .git";

export const copies: readonly Check[] = [
  { id: "copy-guest-link", point: "copies", tried: "links to files, files below links, FIFOs and directories of the guest are copied out as files", by: OUT, run: guestLinks },
  { id: "copy-host-link", point: "copies", tried: "a file is copied out through links of the host's to a canary, and into .git", by: OUT, run: hostLinks },
  { id: "copy-tree", point: "copies", tried: "directories with links that lead out, with .git and with a setuid program are copied out", by: "records with names and no paths; links that lead out are left behind, files are not executable unless asked", run: tree },
];
