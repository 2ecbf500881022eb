/* SPDX-License-Identifier: Apache-2.0 */
/* The sealed record: the file by which a lane's directory is known as ours without a registry. Synchronous, any
 * thread. */
#ifndef AL_SEAL_H
#define AL_SEAL_H

#include "names.h"
#include "platform.h"

#define AL_SEAL_FILE "agent-lane.json"

/* What a row says of the lane, so that one can be made of it when the registry was lost. */
typedef struct al_seal_s {
  char name[AL_NAME_LEN + 1];
  int64_t row;       /* registry id */
  int64_t created_s, expires_s; /* unix seconds */
  int64_t expires_boot_ms;      /* boot time of owner.boot */
  al_ident_t owner;  /* exe is "" when it could not be told in plain characters */
  char owner_env[33];
  int cpus;
  int64_t memory_mib, disk_gib;
  char image[72], network[8], accel[8];
} al_seal_t;

/* Seals the directory `dir`: the record is bound to this very one by device and inode, so a copy of it elsewhere says
 * nothing. 0 or -errno; there must be none yet. */
int
al_seal_write(int dir, const al_seal_t *seal);
/* 1 with `out` filled when `dir` carries a whole record that was made for it; 0 when not; -errno when it cannot be told
 * just now (al_err_exhausted). */
int
al_seal_read(int dir, al_seal_t *out);

#endif
