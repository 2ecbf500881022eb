/* SPDX-License-Identifier: Apache-2.0 */
/* Database: opening and checking the file, migrations, one transaction per job on a thread of its own. */
#include "db.h"
#include "mem.h"
#include "platform.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sqlite3.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BUSY_MS 5000
#define RETRY_MS 20

typedef struct open_s { /* on the stack of al_db_open, which waits */
  const char *const *migrations;
  int count;
  al_err_t *err;
  int rc;
  uv_sem_t over;
} open_t;

struct al_db_s {
  al_worker_t *worker;
  sqlite3 *sql; /* database thread */
  char *path;
  open_t *opening;
  al_job_t open_job, close_job;
  bool closing;
  void (*close_cb)(void *data);
  void *close_data;
};

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

/* Locks that SQLite takes while it opens a file are not all covered by its busy timeout; so these are tried again. */
static int
exec(sqlite3 *sql, const char *text) {
  uint64_t end = al_plat_mono_ms() + BUSY_MS;

  for (;;) {
    int rc = sqlite3_exec(sql, text, NULL, NULL, NULL);
    if ((rc & 0xff) != SQLITE_BUSY || al_plat_mono_ms() >= end) return rc;
    sqlite3_sleep(RETRY_MS);
  }
}

/* The first column of the first row, as text. */
static int
query(sqlite3 *sql, const char *text, char *out, size_t cap) {
  uint64_t end = al_plat_mono_ms() + BUSY_MS;
  sqlite3_stmt *stmt;
  int rc;

  for (;;) {
    rc = sqlite3_prepare_v2(sql, text, -1, &stmt, NULL);
    if (rc == SQLITE_OK) rc = sqlite3_step(stmt);
    if (rc == SQLITE_ROW) {
      const unsigned char *value = sqlite3_column_text(stmt, 0);
      snprintf(out, cap, "%s", value ? (const char *) value : "");
    } else if (rc == SQLITE_DONE) {
      out[0] = 0;
    }
    if (rc == SQLITE_ROW || rc == SQLITE_DONE) rc = SQLITE_OK;
    int end_rc = sqlite3_finalize(stmt);
    if (rc == SQLITE_OK) rc = end_rc;
    if ((rc & 0xff) != SQLITE_BUSY || al_plat_mono_ms() >= end) return rc;
    sqlite3_sleep(RETRY_MS);
  }
}

/* Whether the file that is there is ours alone. */
static int
judge_file(const char *path, const struct stat *st, al_err_t *err) {
  if (S_ISLNK(st->st_mode)) return al_err_set(err, -ELOOP, "The registry %s is a symbolic link.", path);
  if (!S_ISREG(st->st_mode)) return al_err_set(err, -EINVAL, "The registry %s is not a regular file.", path);
  if (st->st_uid != geteuid()) return al_err_set(err, -EPERM, "The registry %s belongs to another user.", path);
  if (st->st_mode & 077)
    return al_err_set(
      err, -EPERM, "The registry %s is open to others (mode %o instead of 600).", path, (unsigned) st->st_mode & 07777);
  /* Asked here since SQLite would name the shared-memory file that it could not make as missing. */
  if (faccessat(AT_FDCWD, path, R_OK | W_OK, AT_EACCESS)) {
    int e = errno;
    return al_err_set(err, -e, "The registry %s cannot be written: %s.", path, strerror(e));
  }
  return 0;
}

/* A log without its database: SQLite would throw the log away, and with it what was written last. Looked at in this
 * order, since who makes a registry now makes the log after the file. */
static int
check_log(const char *path, al_err_t *err) {
  char log[PATH_MAX + 8];
  struct stat st;

  snprintf(log, sizeof log, "%s-wal", path);
  if (lstat(log, &st) || st.st_size == 0) return 0;
  if (lstat(path, &st) ? errno != ENOENT : st.st_size > 0) return 0;
  al_err_set(err, AL_EREGISTRY_DAMAGED, "%s is there, and the registry %s that it belongs to is not.", log, path);
  al_err_cure(err, "End the programs that use this home, then put registry.db back, or move it aside, too.");
  return AL_EREGISTRY_DAMAGED;
}

/* Creates the file for us alone, or checks that the one that is there is ours alone. An existing file is not opened
 * here: closing a descriptor of it would drop the locks another connection of this process holds. */
static int
check_file(const char *path, al_err_t *err) {
  struct stat st;

  int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd >= 0) {
    int rc = fchmod(fd, 0600) ? -errno : 0; /* whatever the umask */
    close(fd);
    return rc ? al_err_set(err, rc, "The registry %s cannot be created: %s.", path, strerror(-rc)) : 0;
  }
  if (errno != EEXIST || lstat(path, &st)) {
    int e = errno;
    return al_err_set(err, -e, "The registry %s cannot be created: %s.", path, strerror(e));
  }
  return judge_file(path, &st, err);
}

/* SQLite refuses links anywhere in the path; those of the directory were the owner's choice, so they are resolved. */
static int
real_path(const char *path, char out[PATH_MAX], al_err_t *err) {
  char dir[PATH_MAX], real[PATH_MAX];

  const char *slash = strrchr(path, '/');
  int n = slash ? (slash == path ? 1 : (int) (slash - path)) : 1;
  int len = snprintf(dir, sizeof dir, "%.*s", n, slash ? path : ".");
  if (len < 0 || (size_t) len >= sizeof dir)
    return al_err_set(err, -ENAMETOOLONG, "The path of the registry is too long.");
  if (!realpath(dir, real)) {
    int e = errno;
    return al_err_set(err, -e, "The directory of the registry %s: %s.", path, strerror(e));
  }
  len = snprintf(out, PATH_MAX, "%s/%s", strcmp(real, "/") == 0 ? "" : real, slash ? slash + 1 : path);
  return len > 0 && len < PATH_MAX ? 0 : al_err_set(err, -ENAMETOOLONG, "The path of the registry is too long.");
}

/* Reads only: a file that is not ours or not whole must stay as it is, for somebody to look at. */
static int
check_content(al_db_t *db, int *version, al_err_t *err) {
  const open_t *o = db->opening;
  char text[256];

  int rc = query(db->sql, "PRAGMA quick_check(1)", text, sizeof text);
  if (rc) return al_db_error(db->sql, rc, "Checking the registry", err);
  if (strcmp(text, "ok") != 0)
    return al_err_set(err, AL_EREGISTRY_DAMAGED, "The registry %s is damaged: %s.", db->path, text);
  rc = query(db->sql, "PRAGMA user_version", text, sizeof text);
  if (rc) return al_db_error(db->sql, rc, "Reading the registry's version", err);
  *version = atoi(text);
  if (*version < 0 || *version > o->count) {
    al_err_set(err, AL_EREGISTRY_DAMAGED,
      "The registry %s was made by a newer version of Agent Lane (its schema is %d, ours %d).", db->path, *version,
      o->count);
    al_err_cure(err, "Use the newer version, or another home.");
    return AL_EREGISTRY_DAMAGED;
  }
  if (*version > 0) return 0;
  rc = query(db->sql, "SELECT count(*) FROM sqlite_master", text, sizeof text);
  if (rc) return al_db_error(db->sql, rc, "Reading the registry's schema", err);
  /* Another process may have migrated it between the two reads; then it has a version now. */
  if (strcmp(text, "0") == 0) return 0;
  rc = query(db->sql, "PRAGMA user_version", text, sizeof text);
  if (rc) return al_db_error(db->sql, rc, "Reading the registry's version", err);
  *version = atoi(text);
  return *version > 0
    ? 0
    : al_err_set(err, AL_EREGISTRY_DAMAGED, "%s is a database, but not Agent Lane's registry.", db->path);
}

static int
set_modes(al_db_t *db, al_err_t *err) {
  char mode[32];

  int rc = query(db->sql, "PRAGMA journal_mode=WAL", mode, sizeof mode);
  if (!rc && strcmp(mode, "wal") != 0)
    return al_err_set(err, -ENOTSUP, "The file system of %s cannot hold a registry (journal mode %s).", db->path, mode);
  /* FULL: a lane's row is the only trace of what is about to be created, so it must be on the disk first. */
  if (!rc) rc = exec(db->sql, "PRAGMA synchronous=FULL; PRAGMA fullfsync=1; PRAGMA trusted_schema=OFF");
  return rc ? al_db_error(db->sql, rc, "Opening the registry", err) : 0;
}

static int
migrate_in(al_db_t *db, al_err_t *err) {
  const open_t *o = db->opening;
  char text[64];

  /* Read again under the write lock: of two processes that start at once only one migrates. */
  int rc = query(db->sql, "PRAGMA user_version", text, sizeof text);
  int version = atoi(text);
  for (int i = version; !rc && i >= 0 && i < o->count; i++)
    rc = sqlite3_exec(db->sql, o->migrations[i], NULL, NULL, NULL);
  if (!rc && version < o->count) {
    snprintf(text, sizeof text, "PRAGMA user_version=%d", o->count);
    rc = sqlite3_exec(db->sql, text, NULL, NULL, NULL);
  }
  return rc ? al_db_error(db->sql, rc, "Migrating the registry", err) : 0;
}

static int
transaction_end(al_db_t *db, int rc, const char *what, al_err_t *err) {
  /* Some errors end the transaction by themselves. */
  if (sqlite3_get_autocommit(db->sql))
    return rc ? rc : al_err_set(err, AL_EINTERNAL, "%s: the transaction was lost.", what);
  if (!rc) {
    int sql_rc = sqlite3_exec(db->sql, "COMMIT", NULL, NULL, NULL);
    if (sql_rc == SQLITE_OK) return 0;
    rc = al_db_error(db->sql, sql_rc, what, err);
  }
  if (!sqlite3_get_autocommit(db->sql)) sqlite3_exec(db->sql, "ROLLBACK", NULL, NULL, NULL);
  return rc;
}

static int
migrate(al_db_t *db, al_err_t *err) {
  int rc = exec(db->sql, "BEGIN IMMEDIATE");

  if (rc) return al_db_error(db->sql, rc, "Migrating the registry", err);
  rc = transaction_end(db, migrate_in(db, err), "Migrating the registry", err);
  if (rc) return rc;
  rc = exec(db->sql, "PRAGMA foreign_keys=ON");
  return rc ? al_db_error(db->sql, rc, "Opening the registry", err) : 0;
}

static int
open_file(al_db_t *db, al_err_t *err) {
  char path[PATH_MAX];
  int version = 0;

  int rc = real_path(db->path, path, err);
  if (!rc) rc = check_log(path, err);
  if (!rc) rc = check_file(path, err);
  if (rc) return rc;
  int sql_rc = sqlite3_open_v2(path, &db->sql,
    SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE | SQLITE_OPEN_NOFOLLOW, NULL);
  if (sql_rc) return al_db_error(db->sql, sql_rc, "Opening the registry", err);
  sqlite3_extended_result_codes(db->sql, 1);
  sqlite3_busy_timeout(db->sql, BUSY_MS);
  sqlite3_db_config(db->sql, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
  rc = check_content(db, &version, err);
  if (!rc) rc = set_modes(db, err);
  if (!rc) rc = migrate(db, err);
  return rc;
}

int
al_db_look(const char *path, int count, int (*run)(void *data, sqlite3 *sql, al_err_t *err), void *data,
  al_err_t *err) {
  char real[PATH_MAX];
  open_t o = {.count = count};
  al_db_t db = {.path = real, .opening = &o};
  struct stat st;
  int version = 0;

  int rc = real_path(path, real, err);
  if (rc || (rc = check_log(real, err))) return rc;
  if (lstat(real, &st)) return -errno == -ENOENT ? -ENOENT : al_err_set(err, -errno, "%s: %s.", real, strerror(errno));
  if ((rc = judge_file(real, &st, err))) return rc;
  int sql_rc = sqlite3_open_v2(real, &db.sql,
    SQLITE_OPEN_READONLY | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE | SQLITE_OPEN_NOFOLLOW, NULL);
  if (sql_rc) rc = al_db_error(db.sql, sql_rc, "Opening the registry", err);
  else sqlite3_busy_timeout(db.sql, BUSY_MS);
  if (!rc) rc = check_content(&db, &version, err);
  if (!rc && version > 0) rc = run(data, db.sql, err);
  sqlite3_close_v2(db.sql);
  return rc;
}

static void
close_sql(al_db_t *db) {
  /* _v2: a statement that a job forgot must not keep the file open for ever in somebody's process. */
  sqlite3_close_v2(db->sql);
  db->sql = NULL;
}

static int
run_open(al_job_t *job) {
  al_db_t *db = job->data;
  open_t *o = db->opening;

  o->rc = open_file(db, o->err);
  if (o->rc) close_sql(db);
  uv_sem_post(&o->over);
  return 0;
}

static void
nothing(al_job_t *job, int status) {
  (void) job;
  (void) status;
}

static void
on_worker_gone(void *data) {
  al_db_t *db = data;
  void (*cb)(void *) = db->close_cb;
  void *cb_data = db->close_data;

  al_free(db->path);
  al_free(db);
  if (cb) cb(cb_data);
}

int
al_db_open(uv_loop_t *loop, const char *path, const char *const *migrations, int count, al_db_t **out, al_err_t *err) {
  open_t o = {.migrations = migrations, .count = count, .err = err};

  *out = NULL;
  al_db_t *db = al_calloc(1, sizeof *db);
  if (!db || !(db->path = al_strdup(path))) {
    al_free(db);
    return al_err_set(err, -ENOMEM, "Out of memory.");
  }
  int rc = uv_sem_init(&o.over, 0);
  if (!rc && (rc = al_worker_open(loop, &db->worker))) uv_sem_destroy(&o.over);
  if (rc) {
    al_free(db->path);
    al_free(db);
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
run_job(al_job_t *job) {
  al_db_job_t *j = (al_db_job_t *) (void *) ((char *) job - offsetof(al_db_job_t, job));
  al_db_t *db = j->db;

  if (!db->sql) return UV_ECANCELED;
  int sql_rc = exec(db->sql, "BEGIN IMMEDIATE");
  if (sql_rc) return al_db_error(db->sql, sql_rc, "Using the registry", &j->err);
  int rc = j->run(j, db->sql);
  rc = transaction_end(db, rc, "Writing the registry", &j->err);
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
  close_sql(job->data);
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
