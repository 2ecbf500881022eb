/* SPDX-License-Identifier: Apache-2.0 */
/* Warden: the small program that Lima starts in QEMU's place. Shared between its files; no heap, no libuv, nothing of
 * the core. */
#ifndef AL_WARDEN_H
#define AL_WARDEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define AL_WARDEN_POLICY "1"
#define AL_WARDEN_ARGS_MAX 192      /* arguments of Lima's and of QEMU's */
#define AL_WARDEN_BYTES_MAX 65536u  /* bytes of all arguments together */
#define AL_WARDEN_PATH_MAX 1024
#define AL_WARDEN_SINKS 3           /* serial, PCI serial, virtio console */
#define AL_WARDEN_SINK_MAX 524288u  /* a serial log file turns over at this size; one old file is kept */
#define AL_WARDEN_SOCKET "lane.sock"  /* the channel's host end, in the instance directory */
#define AL_WARDEN_PORT "agent-lane"   /* the port's name in the guest: image/lane-init looks for it */
#define AL_WARDEN_KEEPER_MS 8000    /* how long a keeper may take to end the lane of an owner that is gone */
#define AL_WARDEN_TERM_MS 10000     /* how long QEMU may take to follow a TERM before it is killed */

typedef enum { AL_WARDEN_TCG, AL_WARDEN_KVM, AL_WARDEN_HVF } al_warden_accel_t;

typedef struct al_warden_policy_s {
  char *qemu, *log; /* absolute paths; borrowed from argv */
  bool network_open, port;
  al_warden_accel_t accel;
  pid_t owner, keeper;
  uint64_t owner_start, keeper_start; /* in the unit of al_ident_t */
} al_warden_policy_t;

/* One serial log: QEMU writes into a pipe, the warden into a file that cannot grow without end. */
typedef struct al_warden_sink_s {
  char path[AL_WARDEN_PATH_MAX];
  int read_fd, write_fd, file_fd; /* -1: none */
  uint32_t size;
} al_warden_sink_t;

/* The channel's port. Descriptors are -1 where there is none. */
typedef struct al_warden_channel_s {
  int listen_fd, qemu_fd, monitor_fd; /* the first two are QEMU's */
  size_t len;
  char line[1024]; /* of the monitor */
} al_warden_channel_t;

/* A checked VM start. Everything lives in this one block. */
typedef struct al_warden_vm_s {
  char dir[AL_WARDEN_PATH_MAX]; /* instance directory */
  const char *name;             /* its last component */
  char *argv[AL_WARDEN_ARGS_MAX + 1];
  int argc;
  char bytes[AL_WARDEN_BYTES_MAX];
  size_t used;
  al_warden_sink_t sinks[AL_WARDEN_SINKS];
  int sink_count;
  bool port; /* the channel is a port, not a login shell */
  al_warden_channel_t channel;
  char why[512]; /* the sentence of a refusal */
} al_warden_vm_t;

/* policy.c: words before "--". Returns the index of the first word after it, or -1 with `why` filled. */
int
al_warden_policy_parse(int argc, char **argv, al_warden_policy_t *out, char *why, size_t cap);

/* Where QEMU is for a question of Lima's, which comes without our words: this machine's QEMU in PATH, checked as --qemu
 * is. -1: none. */
int
al_warden_probe_qemu(char *out, size_t cap);

/* rules.c: true for exactly one of the questions that Lima asks QEMU before it starts a VM. */
bool
al_warden_is_probe(int argc, char **argv);
/* Checks every argument against the list of what Lima passes and builds QEMU's own in vm->argv. 0, or -1 with
 * vm->why. */
int
al_warden_check(const al_warden_policy_t *policy, int argc, char **argv, al_warden_vm_t *vm);
/* Adds one argument made by printf to vm->argv; -1 with vm->why when the room is used up. */
int
al_warden_add(al_warden_vm_t *vm, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* match.c: whether the comma list `value` has exactly the items of `pattern`, in any order but the first. %d instance
 * directory, %N its name, %n number, %p port, %m MAC address, %c CPU, %t printable text, %f firmware file. */
bool
al_warden_match(
  const char *pattern, const char *value, const al_warden_policy_t *policy, const char *dir, const char *name);

/* log.c: the log file (truncated at the start, 0600, never through a link), stderr, and the serial sinks. */
int
al_warden_log_open(const char *path);
void
al_warden_log(int fd, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void
al_warden_log_argv(int fd, const al_warden_vm_t *vm, pid_t qemu);
void
al_warden_sink_pump(al_warden_sink_t *sink); /* moves what is there; closes the pipe at its end */

/* channel.c: makes the socket and adds the devices; -1 with vm->why. */
int
al_warden_channel_open(al_warden_vm_t *vm);
void
al_warden_channel_started(al_warden_channel_t *channel);
/* Reads what the monitor says; true when the guest has closed the port. */
bool
al_warden_channel_pump(al_warden_channel_t *channel);

/* watch_linux.c, watch_darwin.c: what differs. */
/* Closes what Lima may have left open beyond the three standard streams: none of it is QEMU's to have. */
void
al_warden_close_stray(void);
/* Options that only this system's QEMU knows, and pipes in place of serial log files. 0 or -1 with vm->why. */
int
al_warden_extra(al_warden_vm_t *vm);
/* Starts QEMU, stays its parent, ends it when the hostagent is gone, or the owner and
 * its keeper are. Returns the exit status for main. */
int
al_warden_run(const al_warden_policy_t *policy, al_warden_vm_t *vm, int log_fd);

#endif
