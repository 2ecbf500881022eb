/* SPDX-License-Identifier: Apache-2.0 */
/* Database: opening, refusing what is damaged, newer or not ours, transactions, locks, closing. */
#include "al_test.h"
#include "db.h"
#include <sqlite3.h>

static const char *const schema[] = {
  "CREATE TABLE a(id INTEGER PRIMARY KEY, t TEXT NOT NULL UNIQUE);",
  "CREATE TABLE b(a INTEGER NOT NULL REFERENCES a(id)); INSERT INTO a VALUES(1, 'migrated');",
};

static const al_db_schema_t *
with(int count) {
  static al_db_schema_t s[3];
  s[count] = (al_db_schema_t) {.migrations = schema, .count = count};
  return &s[count];
}

typedef struct ctx_s {
  uv_loop_t loop;
  char dir[64], path[128];
  al_db_t *db;
  al_err_t err;
} ctx_t;

static int
setup(void **state) {
  ctx_t *c = calloc(1, sizeof *c);
  uv_loop_init(&c->loop);
  al_test_dir(c->dir);
  snprintf(c->path, sizeof c->path, "%s/registry.db", c->dir);
  *state = c;
  return 0;
}

static void
set_flag(void *data) {
  *(bool *) data = true;
}

static void
close_db(ctx_t *c) {
  bool gone = false;
  if (!c->db) return;
  al_db_close(c->db, set_flag, &gone);
  assert_false(gone);
  al_test_until(&c->loop, &gone, 10000);
  c->db = NULL;
}

static int
teardown(void **state) {
  ctx_t *c = *state;
  close_db(c);
  al_test_loop_close(&c->loop);
  al_test_dir_remove(c->dir);
  free(c);
  return 0;
}

static int
open_db(ctx_t *c, int count) {
  memset(&c->err, 0, sizeof c->err);
  int rc = al_db_open(&c->loop, c->path, with(count), &c->db, &c->err);
  assert_int_equal(rc, c->err.code);
  if (rc) assert_null(c->db);
  return rc;
}

typedef struct job_s {
  al_db_job_t job;
  const char *sql;
  int result, sleep_ms, status;
  bool done;
  char text[128];
} job_t;

static int
run_sql(al_db_job_t *job, sqlite3 *sql) {
  job_t *j = (job_t *) job;
  sqlite3_stmt *stmt;
  if (j->sleep_ms) usleep((useconds_t) j->sleep_ms * 1000);
  int rc = sqlite3_prepare_v2(sql, j->sql, -1, &stmt, NULL);
  while (rc == SQLITE_OK && (rc = sqlite3_step(stmt)) == SQLITE_ROW) {
    snprintf(j->text, sizeof j->text, "%s", (const char *) sqlite3_column_text(stmt, 0));
    rc = SQLITE_OK;
  }
  sqlite3_finalize(stmt);
  if (rc != SQLITE_DONE) return al_db_error(sql, rc, "Testing", &job->err);
  return j->result;
}

static void
on_done(al_db_job_t *job, int status) {
  job_t *j = (job_t *) job;
  j->status = status;
  j->done = true;
}

static int
sql(ctx_t *c, const char *text, int result, job_t *j) {
  *j = (job_t) {.sql = text, .result = result};
  al_db_run(c->db, &j->job, run_sql, on_done);
  assert_false(j->done);
  al_test_until(&c->loop, &j->done, 20000);
  return j->status;
}

static const char *
value(ctx_t *c, const char *text) {
  static job_t j;
  assert_int_equal(sql(c, text, 0, &j), 0);
  return j.text;
}

static void
test_db_creates_migrates_and_opens_again(void **state) {
  ctx_t *c = *state;
  struct stat st;
  mode_t old = umask(0);
  assert_int_equal(open_db(c, 1), 0);
  umask(old);
  assert_int_equal(stat(c->path, &st), 0);
  assert_int_equal(st.st_mode & 0777, 0600);
  assert_string_equal(value(c, "PRAGMA user_version"), "1");
  close_db(c);
  assert_int_equal(open_db(c, 2), 0);
  assert_string_equal(value(c, "PRAGMA user_version"), "2");
  assert_string_equal(value(c, "SELECT t FROM a"), "migrated");
  assert_string_equal(value(c, "PRAGMA journal_mode"), "wal");
  assert_string_equal(value(c, "PRAGMA synchronous"), "2");
  assert_string_equal(value(c, "PRAGMA foreign_keys"), "1");
  close_db(c);
  assert_int_equal(open_db(c, 2), 0);
  assert_string_equal(value(c, "SELECT count(*) FROM a"), "1");
}

static void
test_db_commits_or_rolls_back(void **state) {
  ctx_t *c = *state;
  job_t j;
  assert_int_equal(open_db(c, 2), 0);
  assert_int_equal(sql(c, "INSERT INTO a VALUES(2, 'kept')", 0, &j), 0);
  assert_int_equal(sql(c, "INSERT INTO a VALUES(3, 'dropped')", AL_EBUSY, &j), AL_EBUSY);
  assert_int_equal(j.job.err.code, AL_EBUSY);
  assert_int_equal(sql(c, "INSERT INTO a VALUES(4, 'kept')", 0, &j), -EEXIST);
  assert_non_null(strstr(j.job.err.msg, "UNIQUE"));
  assert_int_equal(sql(c, "INSERT INTO b VALUES(99)", 0, &j), -EEXIST); /* foreign key */
  assert_int_equal(sql(c, "nonsense", 0, &j), AL_EINTERNAL);
  assert_int_equal(sql(c, "COMMIT", 0, &j), AL_EINTERNAL); /* a job must not end the transaction */
  assert_string_equal(value(c, "SELECT group_concat(id) FROM a"), "1,2");
}

static void
refused(ctx_t *c, int code, const char *text) {
  assert_int_equal(open_db(c, 2), code);
  if (!strstr(c->err.msg, text)) fail_msg("%s", c->err.msg);
  if (!strstr(c->err.msg, "registry.db")) fail_msg("no path: %s", c->err.msg);
}

static void
make_file(ctx_t *c, const void *p, size_t n) {
  assert_int_equal(al_plat_write_replace(AT_FDCWD, c->path, p, n, 0600), 0);
}

static void
test_db_damage_inside_is_found(void **state) {
  ctx_t *c = *state;
  job_t j;
  assert_int_equal(open_db(c, 2), 0);
  sql(c,
    "WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i+1 FROM n WHERE i<3000) INSERT INTO a SELECT i, 'row number '||i FROM n",
    0, &j);
  assert_int_equal(j.status, 0);
  close_db(c);
  int fd = open(c->path, O_RDWR | O_CLOEXEC);
  char junk[64];
  memset(junk, 0x5a, sizeof junk);
  for (off_t at = 4096 * 3; at < 4096 * 12; at += 4096)
    assert_int_equal(pwrite(fd, junk, sizeof junk, at), sizeof junk);
  close(fd);
  char notice[AL_DB_NOTICE_MAX];
  assert_int_equal(open_db(c, 2), 0);
  assert_string_equal(value(c, "SELECT count(*) FROM a"), "1");
  assert_true(al_db_notice(c->db, notice));
  assert_non_null(strstr(notice, "registry.db.damaged-"));
  assert_false(al_db_notice(c->db, notice)); /* once */
}

static void
outside(ctx_t *c, const char *text) {
  sqlite3 *other;
  assert_int_equal(sqlite3_open(c->path, &other), SQLITE_OK);
  assert_int_equal(sqlite3_exec(other, text, NULL, NULL, NULL), SQLITE_OK);
  sqlite3_close(other);
  chmod(c->path, 0600);
}

static void
test_db_newer_or_foreign_is_refused(void **state) {
  ctx_t *c = *state;
  outside(c, "CREATE TABLE theirs(x); PRAGMA user_version=0");
  refused(c, AL_EREGISTRY_DAMAGED, "not Agent Lane's registry");
  outside(c, "PRAGMA user_version=3");
  refused(c, AL_EREGISTRY_NEWER, "newer version");
  assert_non_null(strstr(al_err_cure_text(&c->err), "newer version"));
  outside(c, "CREATE TABLE format (oldest INTEGER NOT NULL); INSERT INTO format VALUES (3)");
  refused(c, AL_EREGISTRY_NEWER, "newer version");
  outside(c, "PRAGMA user_version=-1");
  assert_int_equal(open_db(c, 2), AL_EREGISTRY_DAMAGED);
}

/* One that has only been added to says so, and stays as it is. */
static void
test_db_newer_that_allows_it_is_used(void **state) {
  ctx_t *c = *state;
  assert_int_equal(open_db(c, 2), 0);
  close_db(c);
  outside(c,
    "ALTER TABLE a ADD COLUMN more INTEGER NOT NULL DEFAULT 7; PRAGMA user_version=5;"
    "CREATE TABLE format (oldest INTEGER NOT NULL); INSERT INTO format VALUES (2)");
  assert_int_equal(open_db(c, 2), 0);
  assert_string_equal(value(c, "INSERT INTO a (id, t) VALUES (9, 'x') RETURNING more"), "7");
  assert_string_equal(value(c, "PRAGMA user_version"), "5");
  close_db(c);
  assert_int_equal(open_db(c, 1), AL_EREGISTRY_NEWER);
}

static void
test_db_without_its_tables_is_damaged(void **state) {
  (void) state;
  sqlite3 *sql;
  al_err_t err = {0};
  assert_int_equal(sqlite3_open(":memory:", &sql), SQLITE_OK);
  for (int i = 0; i < 2; i++) {
    const char *text = i ? "SELECT x FROM sqlite_master" : "SELECT x FROM lanes";
    int rc = sqlite3_exec(sql, text, NULL, NULL, NULL);
    assert_int_equal(al_db_error(sql, rc, "list", &err), AL_EREGISTRY_DAMAGED);
  }
  int rc = sqlite3_exec(sql, "nonsense", NULL, NULL, NULL);
  assert_int_equal(al_db_error(sql, rc, "list", &err), AL_EINTERNAL);
  sqlite3_close(sql);
}

static void
test_db_log_without_its_database_is_kept(void **state) {
  ctx_t *c = *state;
  char log[160];
  struct stat st;
  al_test_write(c->dir, "registry.db-wal", "the last rows");
  snprintf(log, sizeof log, "%s-wal", c->path);
  assert_int_equal(open_db(c, 2), AL_EREGISTRY_DAMAGED);
  assert_non_null(strstr(al_err_cure_text(&c->err), "put registry.db back"));
  assert_int_not_equal(lstat(c->path, &st), 0);
  make_file(c, "", 0);
  assert_int_equal(open_db(c, 2), AL_EREGISTRY_DAMAGED);
  assert_int_equal(lstat(log, &st), 0);
  assert_int_equal(st.st_size, 13);
  unlink(log);
  assert_int_equal(open_db(c, 2), 0);
}

static void
test_db_does_not_depend_on_the_umask(void **state) {
  ctx_t *c = *state;
  struct stat st;
  mode_t old = umask(0777);
  int rc = open_db(c, 2);
  umask(old);
  assert_int_equal(rc, 0);
  assert_int_equal(lstat(c->path, &st), 0);
  assert_int_equal(st.st_mode & 07777, 0600);
}

static void
test_db_failed_migration_leaves_nothing(void **state) {
  ctx_t *c = *state;
  static const char *const bad[] = {"CREATE TABLE a(id)", "CREATE TABLE b(id); CREATE TABLE a(id)"};
  static const al_db_schema_t wrong = {.migrations = bad, .count = 2};
  assert_int_equal(al_db_open(&c->loop, c->path, &wrong, &c->db, &c->err), AL_EINTERNAL);
  assert_int_equal(open_db(c, 2), 0);
  assert_string_equal(value(c, "SELECT t FROM a"), "migrated");
}

static void
test_db_unsafe_files_are_refused(void **state) {
  ctx_t *c = *state;
  char other[128];
  snprintf(other, sizeof other, "%s/other", c->dir);
  al_test_write(c->dir, "other", "");
  assert_int_equal(symlink(other, c->path), 0);
  refused(c, -ELOOP, "symbolic link");
  unlink(c->path);
  assert_int_equal(symlink("/nonexistent/x", c->path), 0);
  refused(c, -ELOOP, "symbolic link");
  unlink(c->path);
  mkdir(c->path, 0700);
  refused(c, -EINVAL, "regular file");
  rmdir(c->path);
  make_file(c, "", 0);
  chmod(c->path, 0640);
  refused(c, -EPERM, "open to others");
  chmod(c->path, 0600);
  if (geteuid() == 0) {
    assert_int_equal(chown(c->path, 12345, (gid_t) -1), 0);
    refused(c, -EPERM, "another user");
    assert_int_equal(chown(c->path, 0, (gid_t) -1), 0);
  }
  assert_int_equal(open_db(c, 2), 0); /* an empty file of ours is what a crash at creation leaves */
  close_db(c);
  snprintf(c->path, sizeof c->path, "%s/absent/registry.db", c->dir);
  assert_int_equal(open_db(c, 2), -ENOENT);
}

static void
test_db_directory_may_be_reached_through_a_link(void **state) {
  ctx_t *c = *state;
  char link[128];
  snprintf(link, sizeof link, "%s/link", c->dir);
  assert_int_equal(symlink(c->dir, link), 0);
  snprintf(c->path, sizeof c->path, "%s/link/registry.db", c->dir);
  assert_int_equal(open_db(c, 2), 0);
}

static void
test_db_lock_of_another_process_is_waited_for_then_told(void **state) {
  ctx_t *c = *state;
  sqlite3 *other;
  job_t j;
  assert_int_equal(open_db(c, 2), 0);
  assert_int_equal(sqlite3_open(c->path, &other), SQLITE_OK);
  assert_int_equal(sqlite3_exec(other, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
  uint64_t start = al_plat_mono_ms();
  assert_int_equal(sql(c, "INSERT INTO a VALUES(2, 'x')", 0, &j), AL_EREGISTRY_LOCKED);
  uint64_t took = al_plat_mono_ms() - start;
  assert_true(took >= 4500 && took < 14000);
  assert_non_null(strstr(j.job.err.msg, "locked"));
  j = (job_t) {.sql = "INSERT INTO a VALUES(2, 'x')"};
  al_db_run(c->db, &j.job, run_sql, on_done);
  al_test_spin(&c->loop, 200);
  assert_false(j.done);
  sqlite3_exec(other, "COMMIT", NULL, NULL, NULL);
  sqlite3_close(other);
  al_test_until(&c->loop, &j.done, 10000);
  assert_int_equal(j.status, 0);
}

static void
test_db_two_openers_migrate_once(void **state) {
  ctx_t *c = *state;
  pid_t pids[4];
  for (int i = 0; i < 4; i++) {
    pids[i] = al_test_fork();
    if (pids[i] == 0) {
      uv_loop_t loop;
      al_db_t *db;
      uv_loop_init(&loop);
      _exit(al_db_open(&loop, c->path, with(2), &db, NULL) ? 1 : 0);
    }
  }
  for (int i = 0; i < 4; i++) {
    int status;
    waitpid(pids[i], &status, 0);
    assert_int_equal(status, 0);
  }
  assert_int_equal(open_db(c, 2), 0);
  assert_string_equal(value(c, "SELECT count(*) FROM a"), "1");
}

static void
test_db_close_still_writes_what_was_queued(void **state) {
  ctx_t *c = *state;
  static job_t jobs[10];
  static char text[10][64];
  assert_int_equal(open_db(c, 2), 0);
  for (int i = 0; i < 10; i++) {
    snprintf(text[i], sizeof text[i], "INSERT INTO a VALUES(%d, 'q%d')", i + 10, i);
    jobs[i] = (job_t) {.sql = text[i], .sleep_ms = 10};
    al_db_run(c->db, &jobs[i].job, run_sql, on_done);
  }
  bool gone = false;
  job_t late = {.sql = "INSERT INTO a VALUES(50, 'late')"};
  al_db_close(c->db, set_flag, &gone);
  al_db_run(c->db, &late.job, run_sql, on_done);
  al_test_until(&c->loop, &gone, 20000);
  c->db = NULL;
  for (int i = 0; i < 10; i++) assert_int_equal(jobs[i].status, 0);
  assert_true(late.done);
  assert_int_equal(late.status, UV_ECANCELED);
  assert_int_equal(late.job.err.code, UV_ECANCELED);
  assert_int_equal(open_db(c, 2), 0);
  assert_string_equal(value(c, "SELECT count(*) FROM a"), "11");
}

static int
oom(void *data) {
  ctx_t *c = data;
  int rc = open_db(c, 2);
  close_db(c);
  al_test_spin(&c->loop, 20); /* the worker of a failed open ends on the loop */
  return rc;
}

static void
test_db_open_out_of_memory(void **state) {
  assert_int_equal(al_test_oom_each(oom, *state), 3);
}

int
main(void) {
#define T(name) cmocka_unit_test_setup_teardown(test_db_##name, setup, teardown)
  const struct CMUnitTest tests[] = {
    T(creates_migrates_and_opens_again),
    T(commits_or_rolls_back),
    T(damage_inside_is_found),
    T(newer_or_foreign_is_refused),
    T(newer_that_allows_it_is_used),
    T(without_its_tables_is_damaged),
    T(log_without_its_database_is_kept),
    T(does_not_depend_on_the_umask),
    T(failed_migration_leaves_nothing),
    T(unsafe_files_are_refused),
    T(directory_may_be_reached_through_a_link),
    T(lock_of_another_process_is_waited_for_then_told),
    T(two_openers_migrate_once),
    T(close_still_writes_what_was_queued),
    T(open_out_of_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
