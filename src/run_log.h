/* SPDX-License-Identifier: Apache-2.0 */
/* Run manifests: one file of events for each lane that became ready, each line chained to the one before by its hash.
 * Synchronous; on a thread that may block. docs/RUNS.md has the form. */
#ifndef AL_RUN_LOG_H
#define AL_RUN_LOG_H

#include "home.h"
#include "sha256.h"
#include "val.h"

#define AL_RUN_SCHEMA 2 /* what is written; those before it are read, too */
#define AL_RUN_LINE_MAX (256u << 10) /* bytes of one line */
#define AL_RUN_BYTES_MAX (8u << 20)  /* of a manifest; what tells of its end still fits beyond that */
#define AL_RUN_KEEP_MAX 5000         /* manifests of one home, whatever their days */
#define AL_RUN_DAYS 30               /* default of keepManifestDays, and the bound of it */
#define AL_RUN_DAYS_MOST 3650

/* ---- run_log.c: writing. An event is a map whose first member is "event"; all are borrowed. ---- */

/* Makes the manifest with its first event, on the disk when this returns. -EEXIST, -EMSGSIZE (longer than a line may
 * be), -ENOMEM, -errno: then there is none. */
int
al_run_begin(const al_home_t *home, const char *name, const al_val_t *event, al_err_t *err);
/* Adds events, all of them or none; they survive the end of any process, not yet that of the machine. 0; 1: it has ended
 * already, nothing was added. -ENOENT (err unset): there is none. -EFBIG, -EMSGSIZE, -ETIMEDOUT (another process holds
 * it), AL_EMANIFEST_BROKEN (its last line does not hold), -errno. */
int
al_run_add(const al_home_t *home, const char *name, const al_val_t *const *events, size_t count, al_err_t *err);
/* Adds the last event, however large the manifest is, and seals the file: on the disk, read-only. As al_run_add. */
int
al_run_end(const al_home_t *home, const char *name, const al_val_t *event, al_err_t *err);
/* The last event: who has ended the lane ("owner", "sweep", "command"), in which process, and why. NULL when out of
 * memory. */
al_val_t *
al_run_end_event(const char *by, int64_t process, const char *code, const char *reason);

#define AL_RUN_PATH_MAX (AL_HOME_MAX + AL_NAME_LEN + 16)
void
al_run_path(const al_home_t *home, const char *name, char out[AL_RUN_PATH_MAX]);

/* ---- run_check.c: reading ---- */

typedef struct al_run_check_s {
  bool ended;            /* the last event is the end */
  uint64_t events;       /* lines that hold */
  char head[AL_SHA256_HEX]; /* hash of the last of them; "" = there is none */
  size_t interrupted;    /* bytes behind the last whole line: a write that was cut short */
  uint64_t line;         /* of the first line that does not hold, from 1; 0 = all hold */
  char why[300];         /* what is wrong with it */
} al_run_check_t;

/* Chain and schema of a whole manifest. `events`: NULL, or gets a list of the lines that hold. 0, also when one does
 * not; -ENOMEM. */
int
al_run_check(const char *text, size_t len, al_run_check_t *out, al_val_t **events);
/* Reads it: `path` NULL means the one of that name in the home. Caller frees. AL_ENO_MANIFEST, -errno. */
int
al_run_read(const al_home_t *home, const char *name, const char *path, char **text, size_t *len, al_err_t *err);

/* ---- run_keep.c: those that are kept ---- */

/* Names of the manifests that are not sealed yet, added to `names`. 0, -ENOMEM. */
int
al_run_open_names(const al_home_t *home, al_val_t *names);
/* The newest `max`, newest first, each with what its first and its last line say. */
int
al_run_list(const al_home_t *home, size_t max, al_val_t **out, al_err_t *err);
/* Writes the end of one whose lane is gone; one without a whole line tells of nothing and is removed. True when either
 * was done. */
bool
al_run_close_lost(const al_home_t *home, const char *name);
/* Removes those that have been kept for their days; at most once an hour and home. */
void
al_run_prune(const al_home_t *home);

#endif
