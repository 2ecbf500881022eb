/* SPDX-License-Identifier: Apache-2.0 */
/* Database: SQLite behind its own thread. Jobs run there one at a time, each inside one transaction. */
#ifndef AL_DB_H
#define AL_DB_H

#include "err.h"
#include "val.h"
#include "work.h"

typedef struct al_db_s al_db_t;
typedef struct al_db_job_s al_db_job_t;
struct sqlite3;

/* What a file is to be. `migrations` are SQL scripts; PRAGMA user_version counts them. A file with more of them is used
 * when its table `format` says that this many are enough (`oldest`), else refused. */
typedef struct al_db_schema_s {
  const char *const *migrations;
  int count;
  /* NULL, or: in the transaction that makes a file, puts in what is known from elsewhere. How many rows, or negative.
   * `path` has no links in it. */
  int (*fill)(struct sqlite3 *sql, const char *path, al_err_t *err);
} al_db_schema_t;

/* In the caller's memory until done. run: database thread, inside BEGIN IMMEDIATE; 0 commits, negative rolls back. It
 * may run a second time, when the first found the file damaged and that has been made up for. */
struct al_db_job_s {
  al_job_t job;
  al_db_t *db;
  int (*run)(al_db_job_t *job, struct sqlite3 *sql);
  void (*done)(al_db_job_t *job, int status);
  void *data;
  al_err_t err; /* filled by run or by the database layer */
};

/* Opens (creates, 0600) and migrates the file on the database thread; blocks the caller. WAL, busy timeout 5 s. A file
 * that SQLite finds damaged, now or later, is set aside as <path>.damaged-<date>-<n> with its log and made anew, see
 * al_db_notice; one that is merely not as ours stays as it is: AL_EREGISTRY_DAMAGED, AL_EREGISTRY_NEWER.
 * AL_EREGISTRY_LOCKED, -errno (-ELOOP a link, -EPERM not ours alone). After a failure the loop must still turn for the
 * thread to end. `schema` is borrowed until al_db_close has called back. */
int
al_db_open(uv_loop_t *loop, const char *path, const al_db_schema_t *schema, al_db_t **out, al_err_t *err);
/* Reads only, on any thread that may block: checks the file as al_db_open does and calls `run` when it has a schema.
 * -ENOENT (err unset) when there is no file. */
int
al_db_look(const char *path, const al_db_schema_t *schema, int (*run)(void *data, struct sqlite3 *sql, al_err_t *err),
  void *data, al_err_t *err);
/* Each job goes to the file that the path names when it runs. */
void
al_db_run(al_db_t *db, al_db_job_t *job, int (*run)(al_db_job_t *, struct sqlite3 *), void (*done)(al_db_job_t *, int));
/* Jobs that were queued before still run and commit; later ones end with UV_ECANCELED. */
void
al_db_close(al_db_t *db, void (*cb)(void *data), void *data);
/* What people should hear of the file: that it was damaged and where it is now. True once for each such text. Any
 * thread. */
#define AL_DB_NOTICE_MAX 640
bool
al_db_notice(al_db_t *db, char out[AL_DB_NOTICE_MAX]);

/* Maps an SQLite result to our codes and sets err. */
int
al_db_error(struct sqlite3 *sql, int rc, const char *what, al_err_t *err);

/* Parses JSON text (<= 4 MiB, depth <= 64) into values with SQLite's JSON functions, on an in-memory database; any
 * thread, no file. -EINVAL. */
int
al_json_parse(const char *text, size_t len, al_val_t **out, al_err_t *err);
/* Renders as JSON (bytes as text with invalid bytes replaced). Caller frees; NULL when out of memory. */
char *
al_json_text(const al_val_t *v);

#endif
