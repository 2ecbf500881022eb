/* SPDX-License-Identifier: Apache-2.0 */
/* Database: one transaction per job on a thread of its own, and what SQLite's results mean. */
#include "db_int.h"
#include "mem.h"
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

typedef struct al__db_opening_s { /* on the stack of al_db_open, which waits */
  al_err_t *err;
  int rc;
  uv_sem_t over;
} opening_t;

int
al_db_error(sqlite3 *sql, int rc, const char *what, al_err_t *err) {
  const char *msg = sql ? sqlite3_errmsg(sql) : sqlite3_errstr(rc);
  const char *name = sql ? sqlite3_db_filename(sql, "main") : NULL;
  int sys = sql ? sqlite3_system_errno(sql) : 0;

  if (!name || !name[0]) name = "the registry";
  switch (rc & 0xff) {
    case SQLITE_OK:
    case SQLITE_ROW:
    case SQLITE_DONE: return 0;
    case SQLITE_BUSY:
    case SQLITE_LOCKED: return al_err_set(err, AL_EREGISTRY_LOCKED, "%s: %s is locked by another process.", what, name);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB: return al_err_set(err, AL_EREGISTRY_DAMAGED, "%s: %s is damaged (%s).", what, name, msg);
    case SQLITE_NOMEM: return al_err_set(err, -ENOMEM, "%s: out of memory.", what);
    case SQLITE_FULL: return al_err_set(err, -ENOSPC, "%s: the disk of %s is full.", what, name);
    case SQLITE_CONSTRAINT: return al_err_set(err, -EEXIST, "%s: %s.", what, msg);
    case SQLITE_PERM:
    case SQLITE_AUTH: return al_err_set(err, -EACCES, "%s: %s: %s.", what, name, msg);
    case SQLITE_READONLY: return al_err_set(err, -EROFS, "%s: %s: %s.", what, name, msg);
    case SQLITE_ERROR: /* our SQL is always the same: what it does not find is missing in the file */
      if (!strncmp(msg, "no such ", 8) || strstr(msg, " has no column "))
        return al_err_set(err, AL_EREGISTRY_DAMAGED, "%s: %s is not as Agent Lane makes it (%s).", what, name, msg);
      return al_err_set(err, AL_EINTERNAL, "%s: %s: %s (%d).", what, name, msg, rc);
    case SQLITE_CANTOPEN:
    case SQLITE_IOERR:
      return al_err_set(err, sys > 0 ? -sys : -EIO, "%s: %s: %s%s%s.", what, name, msg, sys > 0 ? ": " : "",
        sys > 0 ? strerror(sys) : "");
    default: return al_err_set(err, AL_EINTERNAL, "%s: %s: %s (%d).", what, name, msg, rc);
  }
}

static int
run_open(al_job_t *job) {
  al_db_t *db = job->data;
  opening_t *o = db->opening;

  o->rc = al__db_open(db, o->err);
  uv_sem_post(&o->over);
  return 0;
}

static void
nothing(al_job_t *job, int status) {
  (void) job;
  (void) status;
}

static void
db_free(al_db_t *db) {
  uv_mutex_destroy(&db->lock);
  al_free(db->path);
  al_free(db);
}

static void
on_worker_gone(void *data) {
  al_db_t *db = data;
  void (*cb)(void *) = db->close_cb;
  void *cb_data = db->close_data;

  db_free(db);
  if (cb) cb(cb_data);
}

int
al_db_open(uv_loop_t *loop, const char *path, const al_db_schema_t *schema, al_db_t **out, al_err_t *err) {
  opening_t o = {.err = err};

  *out = NULL;
  al_db_t *db = al_calloc(1, sizeof *db);
  if (!db || !(db->path = al_strdup(path)) || uv_mutex_init(&db->lock)) {
    if (db) al_free(db->path);
    al_free(db);
    return al_err_set(err, -ENOMEM, "Out of memory.");
  }
  db->schema = schema;
  int rc = uv_sem_init(&o.over, 0);
  if (!rc && (rc = al_worker_open(loop, &db->worker))) uv_sem_destroy(&o.over);
  if (rc) {
    db_free(db);
    return al_err_set(err, rc, "The registry's thread cannot be started: %s.", strerror(-rc));
  }
  db->opening = &o;
  db->open_job.data = db;
  al_worker_post(db->worker, &db->open_job, run_open, nothing);
  uv_sem_wait(&o.over);
  uv_sem_destroy(&o.over);
  db->opening = NULL;
  if (o.rc) {
    al_worker_close(db->worker, on_worker_gone, db);
    return o.rc;
  }
  *out = db;
  return 0;
}

static int
run_once(al_db_t *db, al_db_job_t *j) {
  int rc = al__db_follow(db, &j->err);
  if (rc) return rc;
  int sql_rc = al__db_exec(db->sql, "BEGIN IMMEDIATE");
  if (sql_rc) return al_db_error(db->sql, sql_rc, "Using the registry", &j->err);
  return al__db_end(db->sql, j->run(j, db->sql), "Writing the registry", &j->err);
}

static int
run_job(al_job_t *job) {
  al_db_job_t *j = (al_db_job_t *) (void *) ((char *) job - offsetof(al_db_job_t, job));
  al_db_t *db = j->db;

  if (db->over) return UV_ECANCELED;
  int rc = run_once(db, j);
  if (rc == AL_EREGISTRY_DAMAGED && db->sql) { /* opening it again finds out what it is, and makes up for it */
    db->damaged = true;
    al__db_close_sql(db);
    memset(&j->err, 0, sizeof j->err);
    rc = run_once(db, j);
  }
  if (rc && !j->err.code) al_err_set(&j->err, rc, "The registry's job failed (%s).", al_err_name(rc));
  return rc;
}

static void
job_done(al_job_t *job, int status) {
  al_db_job_t *j = (al_db_job_t *) (void *) ((char *) job - offsetof(al_db_job_t, job));

  if (status == UV_ECANCELED && !j->err.code) al_err_set(&j->err, status, "The registry was closed.");
  j->done(j, status);
}

void
al_db_run(al_db_t *db, al_db_job_t *job, int (*run)(al_db_job_t *, sqlite3 *), void (*done)(al_db_job_t *, int)) {
  job->db = db;
  job->run = run;
  job->done = done;
  memset(&job->err, 0, sizeof job->err);
  al_worker_post(db->worker, &job->job, run_job, job_done);
}

static int
run_close(al_job_t *job) {
  al_db_t *db = job->data;

  db->over = true;
  al__db_close_sql(db);
  return 0;
}

static void
on_sql_closed(al_job_t *job, int status) {
  al_db_t *db = job->data;

  (void) status;
  al_worker_close(db->worker, on_worker_gone, db);
}

/* Goes through the queue like a job: what was asked for before is still written. */
void
al_db_close(al_db_t *db, void (*cb)(void *data), void *data) {
  AL_ASSERT(!db->closing);
  db->closing = true;
  db->close_cb = cb;
  db->close_data = data;
  db->close_job.data = db;
  al_worker_post(db->worker, &db->close_job, run_close, on_sql_closed);
}

bool
al_db_notice(al_db_t *db, char out[AL_DB_NOTICE_MAX]) {
  uv_mutex_lock(&db->lock);
  bool any = db->notice[0] != 0;
  memcpy(out, db->notice, AL_DB_NOTICE_MAX);
  db->notice[0] = 0;
  uv_mutex_unlock(&db->lock);
  return any;
}
