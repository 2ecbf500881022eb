/* SPDX-License-Identifier: Apache-2.0 */
/* Database: what its own files share. All of it is database thread, but for the lock around `notice`. */
#ifndef AL_DB_INT_H
#define AL_DB_INT_H

#include "db.h"
#include <limits.h>
#include <sqlite3.h>
#include <sys/stat.h>

#define AL__DB_BUSY_MS 5000 /* how long a lock of another process is waited for */
#define AL__DB_RETRY_MS 20

struct al_db_s {
  al_worker_t *worker;
  const al_db_schema_t *schema;
  sqlite3 *sql;          /* NULL: opened again by the next job */
  char *path;            /* as it was given */
  char real[PATH_MAX];   /* the same without links in its directory */
  uint64_t dev, ino;     /* of the file that `sql` is open in */
  bool damaged;          /* the last open failed since SQLite found the file damaged */
  bool over;             /* closed for good */
  int filled;            /* rows that came from elsewhere into a file made anew */
  uv_mutex_t lock;       /* guards notice */
  char notice[AL_DB_NOTICE_MAX];
  struct al__db_opening_s *opening;
  al_job_t open_job, close_job;
  bool closing;
  void (*close_cb)(void *data);
  void *close_data;
};

/* db_file.c. Whether the file that is there is ours alone. */
int
al__db_judge_file(const char *path, const struct stat *st, al_err_t *err);
/* A log without its database: SQLite would throw the log away, and with it what was written last. */
int
al__db_check_log(const char *path, al_err_t *err);
/* Creates the file for us alone, or checks that the one that is there is ours alone. */
int
al__db_check_file(const char *path, al_err_t *err);
int
al__db_real_path(const char *path, char out[PATH_MAX], al_err_t *err);

/* db_open.c. sqlite3_exec, and the first column of the first row as text; both wait for locks that SQLite's busy
 * timeout does not cover. SQLite's result codes. */
int
al__db_exec(sqlite3 *sql, const char *text);
int
al__db_query(sqlite3 *sql, const char *text, char *out, size_t cap);
/* Opens, checks and migrates db->path into db->sql. After a failure nothing is open, and db->damaged says of which
 * kind it was. */
int
al__db_open_file(al_db_t *db, al_err_t *err);
/* Ends the transaction that is open: COMMIT when `rc` is 0 and it is still there. */
int
al__db_end(sqlite3 *sql, int rc, const char *what, al_err_t *err);
void
al__db_close_sql(al_db_t *db);

/* db_aside.c. The same under the lock that all openers share; a damaged file is set aside and made anew. */
int
al__db_open(al_db_t *db, al_err_t *err);
/* Opens what the path names now, when that is another file than the one that is open. */
int
al__db_follow(al_db_t *db, al_err_t *err);
/* The shared lock for a reader, when there is a lock file: its descriptor, or -1. */
int
al__db_lock_shared(const char *real);

#endif
