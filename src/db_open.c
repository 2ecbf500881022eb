/* SPDX-License-Identifier: Apache-2.0 */
/* Database: opens one file: checks that it is whole and ours, sets SQLite up, migrates. */
#include "db_int.h"
#include "mem.h"
#include "platform.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Locks that SQLite takes while it opens a file are not all covered by its busy timeout; so these are tried again. */
int
al__db_exec(sqlite3 *sql, const char *text) {
  uint64_t end = al_plat_mono_ms() + AL__DB_BUSY_MS;

  for (;;) {
    int rc = sqlite3_exec(sql, text, NULL, NULL, NULL);
    if ((rc & 0xff) != SQLITE_BUSY || al_plat_mono_ms() >= end) return rc;
    sqlite3_sleep(AL__DB_RETRY_MS);
  }
}

int
al__db_query(sqlite3 *sql, const char *text, char *out, size_t cap) {
  uint64_t end = al_plat_mono_ms() + AL__DB_BUSY_MS;
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
    sqlite3_sleep(AL__DB_RETRY_MS);
  }
}

/* Sets err, and remembers whether it is the file itself that is damaged. */
static int
failed(al_db_t *db, int sql_rc, const char *what, al_err_t *err) {
  int kind = sql_rc & 0xff;

  if (kind == SQLITE_CORRUPT || kind == SQLITE_NOTADB) db->damaged = true;
  return al_db_error(db->sql, sql_rc, what, err);
}

/* A file with more migrations than we have says itself whether ours are enough for it. */
static int
judge_newer(al_db_t *db, int version, al_err_t *err) {
  char text[32];

  int rc = al__db_query(db->sql, "SELECT max(oldest) FROM format", text, sizeof text);
  if (!rc && atoi(text) > 0 && atoi(text) <= db->schema->count) return 0;
  return al_err_set(err, AL_EREGISTRY_NEWER,
    "The registry %s was made by a newer version of Agent Lane (its schema is %d, ours %d).", db->path, version,
    db->schema->count);
}

/* Reads only: a file that is not ours or not whole must stay as it is, for somebody to look at. */
static int
check_content(al_db_t *db, int *version, al_err_t *err) {
  char text[256];

  int rc = al__db_query(db->sql, "PRAGMA quick_check(1)", text, sizeof text);
  if (rc) return failed(db, rc, "Checking the registry", err);
  if (strcmp(text, "ok") != 0) {
    db->damaged = true;
    return al_err_set(err, AL_EREGISTRY_DAMAGED, "The registry %s is damaged: %s.", db->path, text);
  }
  rc = al__db_query(db->sql, "PRAGMA user_version", text, sizeof text);
  if (rc) return failed(db, rc, "Reading the registry's version", err);
  *version = atoi(text);
  if (*version > db->schema->count) return judge_newer(db, *version, err);
  if (*version > 0) return 0;
  rc = al__db_query(db->sql, "SELECT count(*) FROM sqlite_master", text, sizeof text);
  if (rc) return failed(db, rc, "Reading the registry's schema", err);
  /* Another process may have migrated it between the two reads; then it has a version now. */
  if (*version == 0 && strcmp(text, "0") == 0) return 0;
  rc = al__db_query(db->sql, "PRAGMA user_version", text, sizeof text);
  if (rc) return failed(db, rc, "Reading the registry's version", err);
  *version = atoi(text);
  return *version > 0
    ? 0
    : al_err_set(err, AL_EREGISTRY_DAMAGED, "%s is a database, but not Agent Lane's registry.", db->path);
}

/* Settings of a connection; each for a reason.
 *   synchronous FULL, fullfsync: a lane's row is the only trace of what is about to be created, so it must be on the
 *     disk first, on macOS through the drive's own cache, too. checkpoint_fullfsync: the log is not reused before that.
 *   mmap_size 0: an error of the disk is an error code, never SIGBUS in somebody's process.
 *   cell_size_check: damage is found when a page is read, before it is believed.
 *   journal_size_limit: the log goes back to this size after something large; else it keeps its largest.
 *   temp_store: nothing of the registry lies in a directory for temporary files.
 *   trusted_schema OFF: a schema that somebody else wrote calls none of SQLite's functions that have effects. */
static const char settings[] =
  "PRAGMA synchronous=FULL; PRAGMA fullfsync=1; PRAGMA checkpoint_fullfsync=1; PRAGMA mmap_size=0;"
  "PRAGMA cell_size_check=1; PRAGMA journal_size_limit=1048576; PRAGMA temp_store=MEMORY; PRAGMA trusted_schema=OFF";

static int
set_modes(al_db_t *db, al_err_t *err) {
  char mode[32];

  /* WAL: who reads waits for nobody, and a transaction costs one fsync. It also needs memory shared between processes,
   * which a network file system does not have; the home is refused there. */
  int rc = al__db_query(db->sql, "PRAGMA journal_mode=WAL", mode, sizeof mode);
  if (!rc && strcmp(mode, "wal") != 0)
    return al_err_set(err, -ENOTSUP, "The file system of %s cannot hold a registry (journal mode %s).", db->path, mode);
  if (!rc) rc = al__db_exec(db->sql, settings);
  return rc ? failed(db, rc, "Opening the registry", err) : 0;
}

static int
migrate_in(al_db_t *db, al_err_t *err) {
  const al_db_schema_t *s = db->schema;
  char text[64];

  /* Read again under the write lock: of two processes that start at once only one migrates. */
  int rc = al__db_query(db->sql, "PRAGMA user_version", text, sizeof text);
  int version = atoi(text);
  for (int i = version; !rc && i >= 0 && i < s->count; i++)
    rc = sqlite3_exec(db->sql, s->migrations[i], NULL, NULL, NULL);
  if (!rc && version < s->count) {
    snprintf(text, sizeof text, "PRAGMA user_version=%d", s->count);
    rc = sqlite3_exec(db->sql, text, NULL, NULL, NULL);
  }
  if (rc) return failed(db, rc, "Migrating the registry", err);
  db->filled = version == 0 && s->fill ? s->fill(db->sql, db->real, err) : 0;
  return db->filled < 0 ? db->filled : 0;
}

int
al__db_end(sqlite3 *sql, int rc, const char *what, al_err_t *err) {
  /* Some errors end the transaction by themselves. */
  if (sqlite3_get_autocommit(sql))
    return rc ? rc : al_err_set(err, AL_EINTERNAL, "%s: the transaction was lost.", what);
  if (!rc) {
    int sql_rc = sqlite3_exec(sql, "COMMIT", NULL, NULL, NULL);
    if (sql_rc == SQLITE_OK) return 0;
    rc = al_db_error(sql, sql_rc, what, err);
  }
  if (!sqlite3_get_autocommit(sql)) sqlite3_exec(sql, "ROLLBACK", NULL, NULL, NULL);
  return rc;
}

static int
migrate(al_db_t *db, al_err_t *err) {
  int rc = al__db_exec(db->sql, "BEGIN IMMEDIATE");

  if (rc) return failed(db, rc, "Migrating the registry", err);
  rc = al__db_end(db->sql, migrate_in(db, err), "Migrating the registry", err);
  if (rc) return rc;
  rc = al__db_exec(db->sql, "PRAGMA foreign_keys=ON"); /* a history of no lane is a fault of ours */
  return rc ? failed(db, rc, "Opening the registry", err) : 0;
}

void
al__db_close_sql(al_db_t *db) {
  /* What is damaged is kept as it was found: the log is neither copied into it nor removed. */
  if (db->damaged && db->sql) sqlite3_db_config(db->sql, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
  /* _v2: a statement that a job forgot must not keep the file open for ever in somebody's process. */
  sqlite3_close_v2(db->sql);
  db->sql = NULL;
}

static int
open_sql(al_db_t *db, int flags, al_err_t *err) {
  int rc = sqlite3_open_v2(
    db->real, &db->sql, flags | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE | SQLITE_OPEN_NOFOLLOW, NULL);

  if (rc) return failed(db, rc, "Opening the registry", err);
  sqlite3_extended_result_codes(db->sql, 1);
  sqlite3_busy_timeout(db->sql, AL__DB_BUSY_MS);
  sqlite3_db_config(db->sql, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
  return 0;
}

int
al__db_open_file(al_db_t *db, al_err_t *err) {
  struct stat st;
  int version = 0;

  db->damaged = false;
  int rc = al__db_real_path(db->path, db->real, err);
  if (!rc) rc = al__db_check_log(db->real, err);
  if (!rc) rc = al__db_check_file(db->real, err);
  if (rc) return rc;
  if (lstat(db->real, &st)) return al_err_set(err, -errno, "%s: %s.", db->real, strerror(errno));
  db->dev = (uint64_t) st.st_dev;
  db->ino = (uint64_t) st.st_ino;
  rc = open_sql(db, SQLITE_OPEN_READWRITE, err);
  if (!rc) rc = check_content(db, &version, err);
  if (!rc) rc = set_modes(db, err);
  if (!rc) rc = migrate(db, err);
  if (rc) al__db_close_sql(db);
  return rc;
}

int
al_db_look(const char *path, const al_db_schema_t *schema, int (*run)(void *data, sqlite3 *sql, al_err_t *err),
  void *data, al_err_t *err) {
  al_db_t db = {.schema = schema};
  struct stat st;
  int version = 0;

  db.path = db.real;
  int rc = al__db_real_path(path, db.real, err);
  AL_AUTO_FD int lock = rc ? -1 : al__db_lock_shared(db.real);
  (void) lock; /* held until the return */
  if (rc || (rc = al__db_check_log(db.real, err))) return rc;
  if (lstat(db.real, &st)) {
    int e = errno;
    return e == ENOENT ? -ENOENT : al_err_set(err, -e, "%s: %s.", db.real, strerror(e));
  }
  if ((rc = al__db_judge_file(db.real, &st, err))) return rc;
  rc = open_sql(&db, SQLITE_OPEN_READONLY, err);
  if (!rc) rc = check_content(&db, &version, err);
  if (!rc && version > 0) rc = run(data, db.sql, err);
  al__db_close_sql(&db);
  return rc;
}
