/* SPDX-License-Identifier: Apache-2.0 */
/* Lima driver: finds and drives limactl. Everything asynchronous on the loop; each child has a deadline. */
#ifndef AL_LIMA_H
#define AL_LIMA_H

#include "home.h"
#include "image.h"
#include "platform.h"
#include "proc.h"
#include "sha256.h"
#include "work.h"

typedef struct al_lima_s {
  uv_loop_t *loop;
  al_worker_t *io;          /* blocking file work; borrowed */
  const al_home_t *home;    /* borrowed */
  char limactl[1024], qemu[1024], qemu_img[1024], ssh_keygen[1024]; /* absolute, checked */
  char path_env[512];       /* PATH of every child: where the checked look-up found QEMU and ssh, then /usr/bin and /bin */
  char warden[1024];        /* installed copy */
  char agent[2][1024];      /* host paths of the guest agents: [0] x86_64, [1] aarch64 */
  char version[32];         /* "2.2.0" */
  uint64_t version_key[4];  /* private: device, inode, size, mtime of the limactl that said so */
  char vm_type[8], arch[16];
  uint32_t delete_ms;       /* private: deadline of limactl delete; 5 s, less in tests */
} al_lima_t;

typedef enum { AL_NETWORK_OPEN, AL_NETWORK_NONE } al_network_t;
typedef enum { AL_ACCEL_TCG, AL_ACCEL_KVM, AL_ACCEL_HVF } al_accel_t;

/* What one lane is; filled by lane_create.c, constant afterwards. */
typedef struct al_lane_spec_s {
  char name[AL_NAME_LEN + 1];
  char dir[AL_HOME_MAX + AL_NAME_LEN + 2]; /* <home>/lima/<name> */
  int64_t row;                             /* registry id, for the sealed record */
  int cpus;
  int64_t memory_mib, disk_gib;
  al_network_t network;
  al_accel_t accel;
  bool port;                               /* the channel is a virtio port (QEMU), not a login shell */
  al_image_t image;
  char proof[65];                          /* 64 hex digits */
  al_ident_t owner, keeper;
  char owner_env[33];                      /* the rest is for the sealed record, as in the row */
  int64_t created_s, expires_s, expires_boot_ms;
} al_lane_spec_t;

/* Exactly once, never from inside the call, except when there is no memory for the operation itself (-ENOMEM, told at
 * once). */
typedef void (*al_lima_cb)(void *data, int status, const al_err_t *err);

typedef struct al_lima_opts_s {
  const char *limactl;        /* option, else AGENT_LANE_LIMACTL, else PATH */
  bool allow_root_for_tests;  /* C tests with a scripted limactl only; not reachable from JavaScript */
  const char *warden, *agent_x86_64, *agent_aarch64; /* from the package */
} al_lima_opts_t;

/* Finds limactl, QEMU, ssh-keygen, installs the warden; synchronous. AL_ELIMA_MISSING, AL_EQEMU_MISSING,
 * AL_EPROGRAM_UNSAFE, AL_ELIMA_ROOT. */
int
al_lima_open(
  al_lima_t *l, uv_loop_t *loop, al_worker_t *io, const al_home_t *home, const al_lima_opts_t *opts, al_err_t *err);
/* HOME of children: the user's directory as the system has it on record. `buf`: room for the record. */
const char *
al_lima_user_home(char *buf, size_t cap);
/* Whether what open installed is still there; it may have been removed under our feet. */
bool
al_lima_complete(const al_lima_t *l);
/* `limactl --version` (5 s): AL_ELIMA_TOO_OLD, AL_ELIMA_UNKNOWN_VERSION. Remembers the answer while the file's identity
 * stays. */
void
al_lima_check_version(al_lima_t *l, bool allow_unknown, al_lima_cb cb, void *data);
/* What the first line of `limactl --version` means: 0, AL_ELIMA_TOO_OLD, or AL_ELIMA_UNKNOWN_VERSION, which
 * `allow_unknown` forgives when the line is limactl's at all. `version`: what it calls itself, cut to fit. */
int
al_lima_judge_version(const char *line, bool allow_unknown, char *version, size_t cap);
/* _config/user{,.pub} and networks.yaml made once under a lock; anything else in _config is AL_ECONFIG_REFUSED with its
 * name. */
void
al_lima_prepare(al_lima_t *l, al_lima_cb cb, void *data);
/* auto: KVM after the probe (spec->image's kernel prints its marker within 5 s; cached by boot id, QEMU and kernel
 * digest in <home>/run), else TCG. */
void
al_lima_choose_accel(
  al_lima_t *l, const al_image_t *image, void (*cb)(void *data, al_accel_t accel, const char *notice), void *data);
/* Instance directory built in <lima>/_tmp.NAME (underscore: ignored by Lima) and renamed in: lima.yaml, lima-version,
 * disk overlay, sealed record agent-lane.json (name, registry id, device, inode). */
void
al_lima_build(al_lima_t *l, const al_lane_spec_t *spec, al_lima_cb cb, void *data);
/* Reads the effective configuration back and compares: AL_ECONFIG_REFUSED names the key. `digest` (NULL: not wanted; must
 * live until cb, which finds it filled after success): SHA-256 of that configuration, see al__lima_config_digest. */
void
al_lima_verify(al_lima_t *l, const al_lane_spec_t *spec, char digest[AL_SHA256_HEX], al_lima_cb cb, void *data);

/* One boot: `limactl start` in the background. Without spec->port `booted` comes once, when the ssh banner was seen or it
 * failed. With it `booted` comes as soon as the channel's socket is there: the guest is only beginning to boot, so a
 * failure (limactl, the host agent, the deadline) may still follow, until al_lima_boot_settle. The child goes on after
 * that (Lima waits for its own signs). */
typedef struct al_boot_s al_boot_t;
typedef void (*al_boot_cb)(al_boot_t *b, void *data, int status, const al_err_t *err, uint16_t ssh_port);
int
al_lima_boot(
  al_lima_t *l, const al_lane_spec_t *spec, uint64_t deadline_ms, al_boot_cb on_booted, void *data, al_boot_t **out);
/* The lane is ready: nothing is watched any more. The ssh port, 0 while Lima has not said it. */
uint16_t
al_lima_boot_settle(al_boot_t *b);
/* Stops following; kills the `limactl start` child if it still runs. cb when its memory may go. */
void
al_lima_boot_close(al_boot_t *b, void (*cb)(void *data), void *data);

/* On a worker: the secret of a lane, from its directory in `home`, when that carries the sealed record of the row.
 * AL_ENO_SUCH_LANE, -errno. */
int
al_lima_read_proof(const al_home_t *home, const char *name, int64_t row, char proof[65], al_err_t *err);

/* Destroy: (1) each pid file checked by identity, stale ones unlinked; (2) limactl delete -f (5 s) where it is needed
 * (teardown.h); (3) proof: no hostagent, warden, QEMU, ssh master or shell of this lane is left (killed by identity when
 * they are), directory gone (removed by descriptor when it is not). Idempotent, resumable from any half-made state.
 * AL_EDESTROY_FAILED says what is left. Only takes a valid name, only below <home>/lima. */
void
al_lima_destroy(al_lima_t *l, const char *name, al_lima_cb cb, void *data);

#endif
