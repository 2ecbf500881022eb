// SPDX-License-Identifier: Apache-2.0
// The expected result of every scenario: equal to the plain provider, safer by a rule, or not applicable for a reason.

/** What the product does otherwise than the plain provider, on purpose. */
export const rules = {
  "guest-path": "a guest path with `..`, or one that leads through a link, is refused before anything is written on the host",
  "close-resolves": "close never rejects: when Lima's delete fails, the lane is ended by our own hand; what remains is told and left to the reaper",
  "close-bounded": "close is bounded in time: a delete that hangs is stopped, and the lane ended by our own hand",
  "no-lost-lane": "a lane never outlives its owner, whether or not anybody called close",
  "create-deadline": "create gives up and cleans up before Sandcastle does, so no handle can be lost",
  silence: "a guest that no longer answers is taken for lost: every call in flight is settled and the lane destroyed",
  "sync-in-watchdog": "a lane whose sync-in never succeeded is destroyed after syncInTimeoutSeconds, though its process lives on",
  callback: "an error thrown by onLine ends its command and rejects; it never reaches the host's process as an uncaught exception",
  interrupted: "on SIGINT calls are settled and the lane is destroyed before the process goes",
  "outcome-unknown": "a command that close cut off rejects, since its outcome is unknown; the plain provider says 137, as if it had ended so",
  "quote-path": "the image sets core.quotePath to false, so that names which are not ASCII arrive as they are and commits are not lost with them",
};

const equal = (more) => ({ kind: "equal", ...more });
const safer = (rule, differences, more) => ({ kind: "safer", rule, differences, ...more });
const notApplicable = (reason, more) => ({ kind: "n-a", reason, ...more });

/** The plain provider leaves its guest behind; the product never does. */
const guestLeft = [
  { at: /^left\.guests$/, plain: 1, product: 0 },
  { at: /^left\.processes$/, plain: (n) => n > 0, product: 0, may: true },
];
const lost = { codes: ["CHANNEL_CLOSED"] };
const resolves = (value) => "resolved" in value;
const isRejection = (code) => (value) => value?.code === code;
/** The plain provider's handle comes after Sandcastle's 120 s, and nobody has it. */
const tooLate = (call) => [
  { at: /^calls\.0\.outcome$/, plain: { worktreePath: "$WT" }, product: isRejection("START_TIMEOUT") },
  { at: new RegExp(`^notes\\.0\\.${call}\\.rejected\\.name$`), plain: /ContainerStartTimeoutError/, product: /WorktreeError/ },
];
const faultless = (what) => notApplicable(`the fault (${what}) would be the provider's own, and ours has none; both run without it`, { faultless: true });

/** Differences that are right in every scenario. */
export const everywhere = [
  {
    why: "sudo: the plain provider has no root to give, a lane has",
    matches: ({ path, plain, product }, call, provider) =>
      provider === "lima" && path.endsWith("outcome.stdout") && call?.options?.sudo === true && /^hook2\n\d+\n$/.test(plain) && product === "hook2\n0\n",
  },
  {
    why: "a command that close cut off: plain 137, ours rejects",
    matches: ({ path, plain, product }) => /^calls\.\d+\.outcome$/.test(path) && plain?.exitCode === 137 && product?.code === "LANE_CLOSED",
  },
];

/**
 * {kind, rule | reason, differences: [{at, plain, product, may?}], codes, faultless}. `differences` are what a run must
 * show (unless `may`) where it is not equal: the path in the log, and both values. `note`: what one must know of an
 * equal result. `codes`: errors of ours that may stand where the plain provider's own error stands.
 */
export const expected = {
  demo: equal(),
  "run-claude": equal(),

  abortRun: equal(),
  abortSandboxRun: equal(),
  abortDuringCreate: equal(),
  idle: equal(),
  hang: equal(),
  bufferedOnLine: faultless("lines held back until the end"),
  lateLines: equal(),
  noLateLines: equal(),
  sigintRun: safer("interrupted", [
    { at: /^calls\.12\.outcome$/, plain: "pending", product: isRejection("INTERRUPTED"), may: true },
    { at: /^calls\.13$/, plain: undefined, product: (c) => c.call === "close", may: true },
    { at: /^notes\.\d$/, plain: undefined, product: () => true, may: true },
    ...guestLeft,
  ]),
  sigintSandbox: safer("no-lost-lane", guestLeft),

  syncInFail_run: safer("no-lost-lane", guestLeft),
  syncInFail_createSandbox: safer("no-lost-lane", guestLeft, lost),
  syncInFail_interactive: safer("no-lost-lane", guestLeft, lost),
  shallow: safer("no-lost-lane", guestLeft),
  syncInWatchdog: safer("sync-in-watchdog", [
    { at: /^notes\.1\.guest$/, plain: resolves, product: (v) => /syncInTimeoutSeconds.*\[LANE_CLOSED\]/.test(v.rejected?.message) },
    ...guestLeft,
  ]),
  syncInGood: equal(),
  createThrows: equal({ codes: ["START_FAILED"] }),
  createHang_run: safer("create-deadline", [...tooLate("run"), ...guestLeft], { codes: ["START_TIMEOUT"] }),
  createHang_createSandbox: safer("create-deadline", [...tooLate("createSandbox"), ...guestLeft], { codes: ["START_TIMEOUT"] }),
  syncHang_run: safer("silence", [
    { at: /^calls\.2\.outcome$/, plain: "done", product: isRejection("CHANNEL_CLOSED") },
    { at: /^calls\.[3-7]$/, plain: (c) => c.call === "exec", product: undefined },
    { at: /^notes\.0\.run\.rejected\.name$/, plain: /SyncInTimeoutError/, product: /SyncError/ },
    ...guestLeft,
  ], lost),
  closeRejects_run: safer("close-resolves", [
    { at: /^calls\.26\.outcome$/, plain: (v) => v.rejected === "close broke", product: "done" },
    { at: /^notes\.0\.run$/, plain: (v) => v.rejected.message === "An error has occurred", product: resolves },
  ]),
  closeRejects_sandbox: safer("close-resolves", [
    { at: /^calls\.8\.outcome$/, plain: (v) => v.rejected === "close broke", product: "done" },
    { at: /^notes\.0\.close$/, plain: (v) => v.rejected.message === "close broke", product: resolves },
    { at: /^notes\.2\.worktree exists$/, plain: true, product: false },
  ]),
  closeHang_run: safer("close-bounded", [
    { at: /^calls\.26\.outcome$/, plain: "pending", product: "done" },
    { at: /^notes\.0$/, plain: undefined, product: (v) => resolves(v.run) },
    { at: /^notes\.\d$/, plain: undefined, product: () => true },
    { at: /^end\.staysAfterwards$/, plain: false, product: undefined },
    { at: /^end\.(code|signal)$/, plain: undefined, product: (v) => v === 0 || v === null },
  ]),
  useAfterClose: equal({ codes: ["LANE_CLOSED"] }),
  closeDuringRun: safer("outcome-unknown", [
    { at: /^notes\.0\.run\.rejected\.name$/, plain: "(FiberFailure) AgentError", product: "(FiberFailure) ExecError" },
    { at: /^notes\.0\.run\.rejected\.message$/, plain: /exited with code 137/, product: /\[LANE_CLOSED\]/ },
  ]),
  usingDispose: equal(),
  worktree: equal(),

  hookFail_createSandbox: equal(),
  hookFail_run: equal(),
  hookTimeout_run: equal(),
  agentExit: equal(),
  agentExecThrows: equal(lost),
  iterations: equal(),
  transient: equal(),
  gitSetupHang: equal(),
  parallel: equal(),
  stderrOnLine: equal(),
  onLineThrows: safer("callback", [
    { at: /^calls\.12\.outcome$/, plain: "pending", product: isRejection("CALLBACK_THREW") },
    { at: /^calls\.13$/, plain: undefined, product: (c) => c.call === "close" && c.outcome === "done" },
    { at: /^notes\.0\.exit event$/, plain: 1, product: undefined },
    { at: /^notes\.0\.run$/, plain: undefined, product: (v) => v.rejected.message.includes("[CALLBACK_THREW]") },
    { at: /^notes\.\d$/, plain: undefined, product: () => true },
    { at: /^end\.code$/, plain: 1, product: 0 },
    ...guestLeft,
  ]),
  agentEnv: equal(),
  overlapEnv: equal(),
  quotedName: equal(),
  resumeSandbox: equal(),
  resumeStub: equal(),
  interactive: equal(),
  interactiveMissing: notApplicable("a handle of ours always has interactiveExec"),
  interactiveAbort: equal(),
  interactiveSandbox: equal(),

  dirty: equal(),
  dirtyTwice: equal(),
  nonAscii: safer("quote-path", [
    { at: /^calls\.18\.outcome\.stdout$/, plain: '"\\303\\251.txt"\n', product: "é.txt\n" },
    { at: /^calls\.24\.(sandboxPath|hostPath)$/, plain: /\/"\\303\\251\.txt"$/, product: /\/é\.txt$/ },
    { at: /^calls\.24\.outcome$/, plain: (v) => v.code === "ENOENT", product: "done" },
    { at: /^calls\.25\.(call|inFlight|outcome|command|options)$/, plain: () => true, product: () => true },
    { at: /^calls\.26$/, plain: undefined, product: (c) => c.call === "close" },
    { at: /^notes\.0\.run 1$/, plain: (v) => v.rejected.message.startsWith("Failed to save untracked file"), product: resolves },
    { at: /^notes\.1\.host worktree$/, plain: "initial", product: "c\ninitial" },
    { at: /^notes\.2\.close\.resolved\.preservedWorktreePath$/, plain: undefined, product: /worktrees\/b$/ },
  ]),
  nonAsciiQuotepathOff: equal(),
  symlinkUntracked: equal({ codes: ["IS_LINK"] }),
  nestedRepo: equal({ codes: ["NOT_A_FILE", "GUEST_PATH_INVALID"] }),
  binaryDiff: equal(),
  latin1Diff: equal(),
  trimmedDiff: faultless("stdout without its final newline"),
  tailedDiff: faultless("only the tail of stdout"),
  crlf: faultless("CRLF, as of a terminal"),
  corruptPatch: equal(),
  amConflict: equal(),
  amFailClean: equal(),
  detachedWorktree: equal(),
  bigBundleSymlink: equal({ codes: ["IS_LINK"] }),
  traversal: safer("guest-path", [
    { at: /^calls\.19\.outcome$/, plain: "done", product: isRejection("GUEST_PATH_INVALID") },
    { at: /^notes\.0\.run$/, plain: resolves, product: (v) => v.rejected.message.includes("[GUEST_PATH_INVALID]") },
    { at: /^notes\.1\.escaped into the main checkout$/, plain: true, product: false },
  ]),
  symlinkThrough: safer("guest-path", [
    { at: /^calls\.24\.outcome$/, plain: "done", product: isRejection("IS_LINK") },
    { at: /^calls\.25\.(call|inFlight|outcome|command|options)$/, plain: () => true, product: () => true },
    { at: /^calls\.26$/, plain: (c) => c.call === "close", product: undefined },
    { at: /^notes\.0\.run$/, plain: resolves, product: (v) => v.rejected.message.includes("[IS_LINK]") },
    { at: /^notes\.1\.written outside through the link$/, plain: true, product: false },
  ]),
  symlinkEscape: equal({ note: "not prevented: the link comes with the guest's commit, and it is Sandcastle that follows it, after our copy" }),
};
