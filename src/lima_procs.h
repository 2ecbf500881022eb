/* SPDX-License-Identifier: Apache-2.0 */
/* Which processes belong to a lane. Synchronous, any thread; no libuv, since the keeper uses it, too. */
#ifndef AL_LIMA_PROCS_H
#define AL_LIMA_PROCS_H

#include "home.h"
#include "platform.h"

typedef enum {
  AL__PROC_NONE,
  AL__PROC_HOSTAGENT,
  AL__PROC_WARDEN,
  AL__PROC_QEMU,
  AL__PROC_SSH_MASTER,
  AL__PROC_SHELL,
  AL__PROC_START
} al__lima_kind_t;

typedef struct al__lima_proc_s {
  al_ident_t id;
  al__lima_kind_t kind;
} al__lima_proc_t;

#define AL__LIMA_PROCS_MAX 64

typedef struct al__lima_procs_s {
  al__lima_proc_t list[AL__LIMA_PROCS_MAX];
  size_t count;
  size_t nameless; /* processes of this user that are between two programs: nobody can say yet whose they are */
} al__lima_procs_t;

const char *
al__lima_kind_name(al__lima_kind_t kind);
/* What a command line (argv joined by NUL) is to the lane whose directory is `dir`. */
al__lima_kind_t
al__lima_classify(const char *dir, const char *name, const char *cmdline, size_t len);
/* All processes of the lane now. */
int
al__lima_scan(const char *dir, const char *name, al__lima_procs_t *out);

#endif
