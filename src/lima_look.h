/* SPDX-License-Identifier: Apache-2.0 */
/* Looking at lanes from outside: their processes, what they take of the host's memory and disk, and what was recorded of
 * how they were started. Reads only; synchronous, on any thread that may block. */
#ifndef AL_LIMA_LOOK_H
#define AL_LIMA_LOOK_H

#include "home.h"
#include "val.h"
#include <stdbool.h>
#include <stdint.h>

/* What a lane's directory takes of the disk: allocated blocks, not lengths, since disk images have holes. */
typedef struct al_lane_disk_s {
  bool there;        /* it has a directory */
  uint64_t all;      /* bytes of all its files */
  uint64_t logs;     /* bytes of those of its logs that nobody else bounds among them */
} al_lane_disk_t;

typedef struct al_look_s {
  char name[AL_NAME_LEN + 1]; /* filled in by the caller */
  int processes;              /* of every kind */
  bool vm;                    /* its QEMU is among them */
  uint64_t memory;            /* bytes that QEMU holds now */
  al_lane_disk_t disk;
} al_look_t;

/* -errno when the directory is there and cannot be read. */
int
al_lima_disk(const al_home_t *home, const char *name, al_lane_disk_t *out);
/* All of `looks` with one walk over this user's processes. 0, or -errno when they cannot be listed. */
int
al_lima_look(const al_home_t *home, al_look_t *looks, size_t count);
/* 1 while something runs that may write to the lane's disk (QEMU, its warden, and the host agent, which on vz is the VM),
 * else 0; or -errno. */
int
al_lima_vm_runs(const al_home_t *home, const char *name);
/* The lane's processes as a list of {pid, kind, program, memoryBytes, owner?}. */
int
al_lima_processes(const al_home_t *home, const char *name, al_val_t **out, al_err_t *err);
/* The values of its lima.yaml as a map from dotted names to texts, without the lane's secret. NULL when there is no
 * such file any more. */
int
al_lima_settings(const al_home_t *home, const char *name, al_val_t **out, al_err_t *err);
/* The arguments that QEMU was started with, as the warden wrote them down: a list of texts. NULL when it wrote none. */
int
al_lima_argv(const al_home_t *home, const char *name, al_val_t **out, al_err_t *err);

/* Empties those logs of a lane that nobody follows any more. Lima's host agent writes without O_APPEND, so it goes on
 * where it was: what lies before is a hole, which takes no space. */
int
al_lima_cut_logs(const al_home_t *home, const char *name);

#define AL_LOG_LINES_MAX 10000
#define AL_LOG_LINE_MAX 4096   /* bytes of one line that are shown */

/* The last `lines` lines of each log of the lane, as a list of {file, what, bytes, cut, lines: [text]}. Whatever stands in
 * them is made printable: other bytes as \xNN. Links and whatever is no plain file are left out. */
int
al_lima_logs(const al_home_t *home, const char *name, size_t lines, al_val_t **out, al_err_t *err);

#endif
