/* SPDX-License-Identifier: Apache-2.0 */
/* Errors: one table of codes, one fixed struct that carries code, step, lane, sentence and cure. */
#ifndef AL_ERR_H
#define AL_ERR_H

#include <stdbool.h>

/* Functions return 0 or a negative code. Operating-system failures are -errno (which on Unix is
 * libuv's code too); ours start at -20000 and go down, so the two ranges cannot meet. */

/* X(NAME, number, meaning, cure). NAME is also the `code` people see in a LaneError; the cure is the default one, used
 * when the place that raised the error set none. Numbers are never used again. docs/ERRORS.md is made from this table
 * by scripts/generate-docs. */
#define AL_ERR_MAP(X) \
  X(BAD_OPTION, -20001, "An option or an argument is of the wrong kind or out of its bounds.", \
    "Correct the option named in the message.") \
  X(UNKNOWN_OPTION, -20002, "There is no option of that name.", \
    "Remove the option or use the suggested name.") \
  X(HOME_UNSAFE, -20003, "Agent Lane's directory may be changed by others, or is not on a local file system.", \
    "Use a directory of your own that nobody else may write to (chmod go-w), on a local file system (option home or " \
    "AGENT_LANE_HOME).") \
  X(HOME_TOO_LONG, -20004, "The path of Agent Lane's directory leaves no room for the names of sockets below it.", \
    "Use a shorter home (option home or AGENT_LANE_HOME): socket names have a fixed maximum length.") \
  X(LIMA_MISSING, -20005, "No limactl was found, or the one that was named cannot be run.", \
    "Install Lima 2.2 or newer (https://lima-vm.io/docs/installation/; macOS: brew install lima), or name limactl with " \
    "the option limactlPath or AGENT_LANE_LIMACTL.") \
  X(LIMA_TOO_OLD, -20006, "limactl is older than 2.2.0.", \
    "Upgrade Lima to 2.2.0 or newer.") \
  X(LIMA_UNKNOWN_VERSION, -20007, "limactl does not say a version that can be read.", \
    "Use a released limactl, or set allowUnknownLima: true if you built it yourself.") \
  X(LIMA_ROOT, -20008, "The process runs as root.", \
    "Run as an ordinary user: limactl refuses root.") \
  X(LIMA_FAILED, -20009, "limactl failed, or did not answer in time.", \
    "See the message of limactl above; `agent-lane doctor` checks the installation.") \
  X(QEMU_MISSING, -20010, "QEMU or qemu-img was not found.", \
    "Install QEMU (Debian: qemu-utils, and qemu-system-x86 or on arm64 qemu-system-arm).") \
  X(IMAGE_MISSING, -20011, "There is no guest image, or none of that name that fits this machine.", \
    "`agent-lane image import DIR` adds one that was built (the end of `agent-lane --help` shows how); `agent-lane image " \
    "ls` shows what is there.") \
  X(IMAGE_CORRUPT, -20012, "A file of a stored image is not what was imported.", \
    "The stored image changed after import. `agent-lane image import DIR` replaces it.") \
  X(IMAGE_INVALID, -20013, "An image's manifest or one of its files breaks the format.", \
    "Build the image again with image/build and import the result.") \
  X(BUSY, -20014, "No place became free in time: maxConcurrentVms lanes were open; or a lane has 256 calls open.", \
    "Wait for the lanes named in the message, close them, or raise maxConcurrentVms.") \
  X(CONFIG_REFUSED, -20015, "Lima's effective configuration of the lane is not the one that was asked for.", \
    "Remove the setting named in the message from Lima's configuration; a lane never starts with it.") \
  X(NETWORK_UNENFORCEABLE, -20016, "The network cannot be cut off on this machine.", \
    "network: \"none\" needs QEMU; choose network: \"open\" to run without that promise.") \
  X(START_TIMEOUT, -20017, "The lane was not ready within startTimeoutSeconds.", \
    "Raise startTimeoutSeconds, or look at the host's load; the first lane on a busy machine is slow.") \
  X(START_FAILED, -20018, "The VM or the lane agent in it did not start.", \
    "See the message; `agent-lane doctor` checks the installation.") \
  X(PEER_UNPROVEN, -20019, "What answered could not prove that it is the guest of this lane.", \
    "Something else answered in the guest's place. Look for a process that took the lane's port.") \
  X(PEER_INCOMPATIBLE, -20020, "The guest's lane agent speaks another version of the protocol.", \
    "Import a current image and use one version of Agent Lane.") \
  X(CHANNEL_CLOSED, -20021, "The connection to the guest ended, or the guest was silent for too long.", \
    "The guest or its VM is gone; create a new lane.") \
  X(PROTOCOL_VIOLATION, -20022, "The guest sent something that the protocol forbids.", \
    "The guest broke the protocol and its lane was closed; treat what ran there as hostile.") \
  X(LANE_CLOSED, -20023, "The lane is closed or closing, or there never was one of that name here.", \
    "Create a new lane; a closed one cannot be used again.") \
  X(LANE_EXPIRED, -20024, "The lane reached timeoutMinutes and was destroyed.", \
    "Raise timeoutMinutes or split the work.") \
  X(EXEC_FAILED, -20025, "The command could not be started in the guest.", \
    "Check the command, its working directory and the user.") \
  X(OUTPUT_LIMIT, -20026, "A command wrote more than is kept in memory.", \
    "Write large output to a file in the guest and copy it out, use onLine, or raise the limit: maxOutputBytes of the " \
    "command, or maxBufferedBytes of the lane.") \
  X(CALLBACK_THREW, -20027, "A callback of the caller's threw, so its command or copy was ended.", \
    "Catch errors inside the callback.") \
  X(SOURCE_MISSING, -20028, "The file or directory to copy does not exist on the host.", \
    "Check the host path.") \
  X(SOURCE_UNREADABLE, -20029, "A file on the host cannot be read, or changed while it was.", \
    "Make the file readable or leave it out.") \
  X(SOURCE_UNSUPPORTED, -20030, "The tree to copy holds what is no file, directory or link, or is too large or too deep.", \
    "Leave what is named out of the tree.") \
  X(COPY_IN_FAILED, -20031, "The guest could not unpack what was sent.", \
    "See the guest's message; check free space and permissions there.") \
  X(GUEST_FILE_MISSING, -20032, "The file to copy out does not exist in the guest.", \
    "Check the guest path.") \
  X(NOT_A_FILE, -20033, "What is to be copied out is no regular file.", \
    "Only one regular file can be copied out.") \
  X(IS_LINK, -20034, "The guest path leads over a symbolic link.", \
    "Name the file itself: no component of the path may be a symbolic link.") \
  X(FILE_TOO_LARGE, -20035, "What is to be copied out is larger than the call's maxBytes or the lane's maxCopyOutBytes.", \
    "Raise maxBytes or maxCopyOutBytes, or copy out less.") \
  X(GUEST_PATH_INVALID, -20036, "That is no path for the guest.", \
    "Use an absolute path without `.` or `..` components and without a trailing slash.") \
  X(HOST_PATH_REFUSED, -20037, "The host's target is outside the root, or there is something that is no file or directory.", \
    "Choose a target below the root where nothing stands in the way.") \
  X(HOST_PATH_INVALID, -20060, "That is no path for the target of a copy.", \
    "Use an absolute path without `.` or `..` components and without a trailing slash.") \
  X(HOST_PATH_GIT, -20061, "The host's target is in .git, by one of the names that a file system may have for it.", \
    "Choose a target outside of .git: what lies there is run by git on the host.") \
  X(HOST_PATH_LINK, -20062, "The host's target is a symbolic link, or one is on the way to it from the root.", \
    "Remove the link or choose another target: no link is followed below the root.") \
  X(HOST_PATH_DIRECTORY, -20063, "There is a directory where the file is to be put on the host.", \
    "Remove the directory or name the file in it.") \
  X(HOST_PATH_EXISTS, -20064, "There is something already where the directory is to be put on the host.", \
    "Remove it or choose another target: a directory is put where nothing is, or an empty directory.") \
  X(HOST_DISK_FULL, -20065, "The disk of the host's target is full, or nearly.", \
    "Free space there and try again; the target was left as it was.") \
  X(COPY_OUT_FAILED, -20038, "The file did not come out whole, or could not be written on the host.", \
    "See the message; the target was left as it was.") \
  X(COPY_OUT_LIMIT, -20056, "The lane has copied out as much as it may in all.", \
    "Raise maxCopyOutTotalBytes or create a new lane.") \
  X(NOT_A_DIRECTORY, -20066, "What is to be copied out as a directory is none.", \
    "Name a directory, or copy it out as a file.") \
  X(TREE_REFUSED, -20067, "The guest's directory holds something that is not taken onto the host.", \
    "Remove what the message names, or copy out the directories beside it one by one.") \
  X(TREE_TOO_LARGE, -20068, "The guest's directory has more bytes, entries or levels than may be copied out.", \
    "Raise the limit that the message names, or copy out less.") \
  X(RESOURCE_LIMIT, -20070, "The lane took more of the host than its options allow, or the host had no more space for it.", \
    "Raise the option named in the message, free space on the host, or let the lane write less.") \
  X(REGISTRY_DAMAGED, -20040, "The registry cannot be read, or is no registry of Agent Lane's.", \
    "End the programs that use this home, then move registry.db, registry.db-wal and registry.db-shm in it aside; none is " \
    "overwritten. Lanes that stood in it are found by the records in their directories.") \
  X(REGISTRY_NEWER, -20069, "The registry was made by a newer version of Agent Lane, which says that this one cannot use it.", \
    "Use the newer version, or another home (option home or AGENT_LANE_HOME).") \
  X(REGISTRY_LOCKED, -20041, "Another process held the registry for longer than we wait.", \
    "Another process holds the registry; try again.") \
  X(INTERRUPTED, -20042, "The process is ending, so nothing new is started.", \
    "The process was asked to stop; start again.") \
  X(DESTROY_FAILED, -20043, "It could not be proven that the lane is gone.", \
    "Run `agent-lane reap`, which tries again; `agent-lane doctor` shows what is left, and why.") \
  X(NO_SUCH_LANE, -20044, "The registry has no such lane.", \
    "See `agent-lane ls` for the names.") \
  X(BAD_NAME, -20045, "That is no name of a lane.", \
    "Names look like agent-lane-xxxxxxxx-xxxxxxxx.") \
  X(PROGRAM_UNSAFE, -20046, "A program was found where somebody else could have put it.", \
    "Install the program where only its owner can write, and use an absolute path.") \
  X(ABORTED, -20048, "The caller ended the operation.", \
    "The caller cancelled the operation.") \
  X(IO_ERROR, -20049, "The operating system refused something.", \
    "See the message: the operating system refused.") \
  X(NO_MEMORY, -20050, "The process got no more memory.", \
    "Free memory on the host and try again.") \
  X(WARDEN_REFUSED, -20051, "The warden found an argument for QEMU that is not on its list, and did not start it.", \
    "Lima started QEMU with something a lane must not have; see the message.") \
  X(TIMEOUT, -20053, "A command was not done within its timeoutMs, and was ended.", \
    "Raise timeoutMs, or look at the end of its output (stdout and stderr of the error) for what it waited for.") \
  X(LIMIT_UNENFORCEABLE, -20054, "The guest cannot enforce a limit that was asked for.", \
    "Use an image whose kernel has the cgroup v2 controllers cpu, memory and pids, or run without that limit.") \
  X(TRANSPORT_UNAVAILABLE, -20055, "This machine or this image does not have the transport that was asked for.", \
    "Use transport: \"auto\"; the port needs QEMU and an image built with a current image/build.") \
  X(KEEPER_FAILED, -20071, "The process that ends lanes when this one is gone did not start, or did not answer.", \
    "See the message and log/keeper.log in the home; no lane is started without its keeper.") \
  X(IMAGE_FORMAT, -20080, "The image's manifest has a format that this version does not read.", \
    "Build the image again with this version's image/build and import the result; a newer image needs a newer version.") \
  X(IMAGE_UNTRUSTED, -20081, "No key that was asked for has signed the image, or the signature is not valid.", \
    "Import an image with manifest.json.minisig beside its manifest, or add its signer's public key to imageKeys.") \
  X(IMAGE_IN_USE, -20082, "The image cannot be removed or replaced: a lane or another image needs it.", \
    "Close the lane or remove the image that the message names, then try again; `agent-lane ls` shows the lanes.") \
  X(DERIVE_FAILED, -20090, "The disk of a lane could not become an image; the lane is closed all the same.", \
    "See the message, and prepare the image again.") \
  X(MANIFEST_BROKEN, -20100, "A run manifest is not as it was written: a line was changed, removed or added.", \
    "The message names the first line that does not hold; what stands before it does.") \
  X(NO_MANIFEST, -20101, "There is no such run manifest.", \
    "See `agent-lane runs`; lanes that never became ready have none, and the option keepManifestDays says how long one is kept.") \
  X(INTERNAL, -20052, "Something happened that cannot happen.", \
    "This is a bug in Agent Lane; please report it with the message.")

enum {
#define AL_ERR_ENUM(name, number, meaning, cure) AL_E##name = number,
  AL_ERR_MAP(AL_ERR_ENUM)
#undef AL_ERR_ENUM
};

#define AL_ERR_MSG_MAX 640
#define AL_ERR_CURE_MAX 256

typedef struct al_err_s {
  int code;                    /* 0 = none; AL_E*, or -errno */
  char step[32];               /* "" or the step of create/close that failed */
  char lane[64];               /* "" or the lane's name */
  char msg[AL_ERR_MSG_MAX];    /* one sentence or more, valid UTF-8, no trailing newline */
  char cure[AL_ERR_CURE_MAX];  /* "" = the table's cure */
} al_err_t;

/* Sets `err` (may be NULL) and returns `code`. The first error wins nowhere: it overwrites. */
int
al_err_set(al_err_t *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Puts "CONTEXT: " before the message. No effect when err is NULL or has no code. */
void
al_err_wrap(al_err_t *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

void
al_err_cure(al_err_t *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* "BUSY" for AL_EBUSY; for -errno "IO_ERROR" ("NO_MEMORY" for -ENOMEM). Never NULL. */
const char *
al_err_name(int code);

/* True for the -errno of what may be there again in a moment: memory, descriptors, processes. */
bool
al_err_exhausted(int code);

/* The cure to show: the error's own, else the table's. */
const char *
al_err_cure_text(const al_err_t *err);

#endif
