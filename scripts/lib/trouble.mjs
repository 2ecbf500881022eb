// SPDX-License-Identifier: Apache-2.0
// docs/TROUBLESHOOTING.md: the error codes by what a person sees, each with its usual cause. Meaning and cure come from the table of
// errors, which docs/ERRORS.md shows by the alphabet.

/** In the order in which people meet them. Every code is in exactly one group; `pages()` throws otherwise. */
export const GROUPS = [
  {
    title: "Nothing starts: the installation",
    text: "`agent-lane doctor` checks all of this at once, with the cure for what is missing.",
    causes: {
      NATIVE_LOAD_FAILED: "`node_modules` was copied from another machine, Node is of another libc, or a library is missing.",
      LIMA_MISSING: "Lima is not installed, or PATH of the process is shorter than that of your shell (cron, an editor).",
      LIMA_TOO_OLD: "The distribution's package is older than Lima's own release.",
      LIMA_UNKNOWN_VERSION: "limactl was built from a checkout, or a script stands in its place.",
      LIMA_ROOT: "The process runs in a container or under sudo.",
      LIMA_FAILED: "limactl could not write, was killed, or hung; its own words are in the message.",
      QEMU_MISSING: "Only the system emulator or only qemu-img is installed.",
      PROGRAM_UNSAFE: "A directory in PATH, or the program itself, may be written to by a group or by everybody, or lies in `node_modules`.",
      HOME_UNSAFE: "The home is on NFS, is a link of another user's, or was made with a loose umask.",
      HOME_TOO_LONG: "A deep directory (a CI's workspace) was given as `home`.",
      KEEPER_FAILED: "The package has no keeper for this system, the home is mounted `noexec`, or no more processes may be started.",
    },
  },
  {
    title: "An option is refused",
    text: "`agent-lane explain` shows what a set of options enforces before anything is started.",
    causes: {
      BAD_OPTION: "A typing error, a number that comes as text from the environment, or something that only QEMU can do on a Mac.",
      UNKNOWN_OPTION: "A typing error, or an option of a newer version.",
      BAD_NAME: "Something else than the whole name of a lane was given, such as a prefix.",
      CONFIG_REFUSED: "`_config/override.yaml` or `default.yaml` lies in the home's `lima` directory, or a newer Lima sets something by itself.",
      NETWORK_UNENFORCEABLE: "`network: \"none\"` on macOS with vz.",
      TRANSPORT_UNAVAILABLE: "`transport: \"port\"` with vz, or with an image that was built before it.",
      LIMIT_UNENFORCEABLE: "A kernel of one's own without the cgroup controllers.",
    },
  },
  {
    title: "Images",
    text: "`agent-lane image ls` shows what is there, `agent-lane image verify --all` reads every byte.",
    causes: {
      IMAGE_MISSING: "No image was imported into this home yet, or it is for another processor.",
      IMAGE_CORRUPT: "A file in the store was changed or the disk has faults.",
      IMAGE_INVALID: "The manifest was edited, a file is missing beside it, or on a Mac `image/add-raw` was not run.",
      IMAGE_FORMAT: "The image was built by an older or a newer version.",
      IMAGE_UNTRUSTED: "`imageKeys` names no key that has signed it, or the signature was not copied with the image.",
      IMAGE_IN_USE: "A lane runs from it, or a project's image was made from it.",
      IMAGE_NOT_READY: "The first run of a project whose setup takes longer than Sandcastle waits.",
      IMAGE_BUILD_FAILED: "The mirror was not reached, or the disk is full.",
      INPUT_GONE: "Package mirrors keep a version for some weeks only.",
      SETUP_FAILED: "The script needs a file that is not in `inputs`, or the network while `network` is `\"none\"`.",
      DERIVE_FAILED: "The guest did not power itself off in time, or the disk of the host is full.",
    },
  },
  {
    title: "A lane does not become ready",
    text: "`agent-lane logs NAME` shows the guest's console and the logs of warden and host agent, `agent-lane inspect NAME` all that is known.",
    causes: {
      BUSY: "Other runs have the places; or a program opens lanes and does not close them.",
      START_TIMEOUT: "Software emulation (no usable `/dev/kvm`) beside other work.",
      START_FAILED: "QEMU or Lima ended by itself: too little memory, a full disk, a kernel that does not run.",
      WARDEN_REFUSED: "A newer Lima gives QEMU an argument that we do not know.",
      PEER_UNPROVEN: "Another program took the port in the moment between Lima's choice and the VM's start.",
      PEER_INCOMPATIBLE: "The package was updated while a lane ran, and something attached to it.",
    },
  },
  {
    title: "A lane ends under a call",
    text: "`agent-lane inspect NAME` and `agent-lane runs` have the reason.",
    causes: {
      CHANNEL_CLOSED: "The VM was killed (the host's OOM killer), the guest powered itself off, or its kernel stood still.",
      PROTOCOL_VIOLATION: "Something in the guest has taken the lane agent's place.",
      LANE_CLOSED: "`close()` or `agent-lane close` came meanwhile, or the handle was used after it.",
      LANE_EXPIRED: "The run took longer than `timeoutMinutes`.",
      RESOURCE_LIMIT: "The guest wrote more than `maxDiskGrowthGiB`, or the host's disk is nearly full (`minHostFreeGiB`).",
      INTERRUPTED: "Ctrl-C, or `process.exit()` with calls open.",
      ABORTED: "The caller's `signal` was aborted.",
    },
  },
  {
    title: "A command fails to run, or is ended",
    text: "The error's `stdout`, `stderr` and `exitCode` are the last that is known of the command.",
    causes: {
      EXEC_FAILED: "`cwd` does not exist, or `sudo: true` met something that it could not become.",
      COMMAND_FAILED: "The command itself failed; `lines()` says so unless `check: false`.",
      TIMEOUT: "It waits for input, for the network, or for a lock.",
      OUTPUT_LIMIT: "A command that prints without end, or a build log without `onLine`.",
      CALLBACK_THREW: "`onLine`, `onStderrLine` or `onProgress` threw.",
      STDIN_FAILED: "The file or socket behind the stream failed.",
    },
  },
  {
    title: "Copying in",
    text: "The message names the path.",
    causes: {
      SOURCE_MISSING: "A relative path and another working directory than expected.",
      SOURCE_UNREADABLE: "A file of root's in the tree, or one that a build replaces at that moment.",
      SOURCE_UNSUPPORTED: "A socket or FIFO of an editor or a daemon lies in the tree: name it in `ignore`.",
      COPY_IN_FAILED: "The guest's disk is full, or a file stands where a directory is to be.",
      GUEST_PATH_INVALID: "A relative path, `..`, or a trailing slash.",
    },
  },
  {
    title: "Copying out",
    text: "The target is left as it was, whatever went wrong.",
    causes: {
      GUEST_FILE_MISSING: "The command that should have made it failed, or made it elsewhere.",
      NOT_A_FILE: "The path is a directory: `copyOut` takes those.",
      NOT_A_DIRECTORY: "The path is a file: `copyFileOut` takes those.",
      IS_LINK: "The guest, or a tool in it, put a link in the file's place.",
      FILE_TOO_LARGE: "A core dump, a video, or a guest that wants to fill your disk.",
      COPY_OUT_LIMIT: "Many copies in one lane's life.",
      TREE_REFUSED: "The directory holds a repository (`.git`), a socket or a device.",
      TREE_TOO_LARGE: "`node_modules` or a cache lies in the directory.",
      HOST_PATH_REFUSED: "The target is outside `copyOutRoot`, or outside the repository that encloses it.",
      HOST_PATH_INVALID: "A relative path, `..`, or a trailing slash.",
      HOST_PATH_GIT: "The target lies in `.git`, in whatever spelling.",
      HOST_PATH_LINK: "A directory of the worktree was replaced by a link, perhaps by an agent's commit.",
      HOST_PATH_DIRECTORY: "A directory has the file's name.",
      HOST_PATH_EXISTS: "An earlier result is still there.",
      HOST_DISK_FULL: "The disk is full, or has less than `minHostFreeGiB`.",
      COPY_OUT_FAILED: "The file was changed while it was read, or the host refused to write.",
    },
  },
  {
    title: "Something is left over",
    text: "`agent-lane ls` shows what is open, `agent-lane reap` ends what has no owner, `agent-lane doctor` names what it could not end.",
    causes: {
      DESTROY_FAILED: "A process in an uninterruptible wait, or a directory whose rights were changed.",
      NO_SUCH_LANE: "The lane was in another home (`--home`), or its row has been removed since.",
      REGISTRY_DAMAGED: "A disk fault, or a copy that was made while it was written to.",
      REGISTRY_NEWER: "Two versions of the package share a home.",
      REGISTRY_LOCKED: "Another process was stopped (SIGSTOP) in the middle of a write, or the disk is very slow.",
      TIMER_FAILED: "No systemd of the user (a container, `su`), or no session of launchd (ssh).",
      MANIFEST_BROKEN: "The file was edited, or cut by a full disk.",
      NO_MANIFEST: "The lane never became ready, or `keepManifestDays` have passed.",
    },
  },
  {
    title: "The host's fault, or ours",
    text: "",
    causes: {
      IO_ERROR: "Rights, a full or a broken disk; the message has the system's words.",
      NO_MEMORY: "The process or its container may take no more.",
      INTERNAL: "A fault in Agent Lane.",
    },
  },
];

/** The text of docs/TROUBLESHOOTING.md. `errors`: { CODE: { meaning, cure } }. */
export function troublePage(errors) {
  const told = GROUPS.flatMap((group) => Object.keys(group.causes));
  const missing = Object.keys(errors).filter((code) => !told.includes(code));
  const extra = told.filter((code, i) => !(code in errors) || told.indexOf(code) !== i);
  if (missing.length + extra.length > 0)
    throw new Error(`scripts/lib/trouble.mjs: no cause for ${missing.join(" ") || "none"}; unknown or twice: ${extra.join(" ") || "none"}`);
  const cell = (text) => text.replaceAll("|", "\\|");
  const rows = (causes) =>
    Object.entries(causes).map(([code, cause]) => `| \`${code}\` | ${cell(errors[code].meaning)} | ${cell(cause)} | ${cell(errors[code].cure)} |`);
  const parts = GROUPS.map(({ title, text, causes }) =>
    [`## ${title}`, text, ["| code | what happened | usual cause | what to do |", "|---|---|---|---|", ...rows(causes)].join("\n")].filter(Boolean).join("\n\n"));
  return `# Troubleshooting

Look for the code of the error: it is in \`[…]\` at the end of Sandcastle's message, after \`error\` on the command line, and in \`error.code\`. The message
itself says more than this page, and its cure may say more than the one here. By the alphabet: [ERRORS.md](ERRORS.md).

\`\`\`sh
agent-lane doctor           # what is missing on this machine, and lanes that are stuck
agent-lane ls --all         # what is open, and what has ended
agent-lane inspect NAME     # all that is known of one lane
agent-lane logs NAME        # the guest's console, the warden's and the host agent's logs
\`\`\`

${parts.join("\n\n")}

Made by \`scripts/generate-docs\` from \`src/err.h\`, \`lib/errors.ts\` and \`scripts/lib/trouble.mjs\`; change those.
`;
}
