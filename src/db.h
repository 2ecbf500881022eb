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

/* In the caller's memory until done. run: database thread, inside BEGIN IMMEDIATE; 0 commits, negative rolls back. */
struct al_db_job_s {
  al_job_t job;
  al_db_t *db;
  int (*run)(al_db_job_t *job, struct sqlite3 *sql);
  void (*done)(al_db_job_t *job, int status);
  void *data;
  al_err_t err; /* filled by run or by the database layer */
};

/* Opens (creates, 0600) and migrates the file on the database thread; blocks the caller. WAL, busy timeout 5 s.
 * AL_EREGISTRY_DAMAGED (also: newer, or not a registry; the file stays as it is), AL_EREGISTRY_LOCKED, -errno (-ELOOP a
 * link, -EPERM not ours alone). After a failure the loop must still turn for the thread to end. `migrations` are SQL
 * scripts; PRAGMA user_version counts them. */
int
al_db_open(uv_loop_t *loop, const char *path, const char *const *migrations, int count, al_db_t **out, al_err_t *err);
/* Reads only, on any thread that may block: checks the file as al_db_open does and calls `run` when it has a schema.
 * -ENOENT (err unset) when there is no file. */
int
al_db_look(const char *path, int count, int (*run)(void *data, struct sqlite3 *sql, al_err_t *err), void *data,
  al_err_t *err);
void
al_db_run(al_db_t *db, al_db_job_t *job, int (*run)(al_db_job_t *, struct sqlite3 *), void (*done)(al_db_job_t *, int));
/* Jobs that were queued before still run and commit; later ones end with UV_ECANCELED. */
void
al_db_close(al_db_t *db, void (*cb)(void *data), void *data);

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
