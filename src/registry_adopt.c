/* SPDX-License-Identifier: Apache-2.0 */
/* Registry: lanes that it does not know, taken over from the sealed records in their directories. */
#include "registry_int.h"
#include "mem.h"
#include "seal.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Theory of operation. The sealed record says whose the lane is and until when, and is bound to its very directory. So
 * a lane that still lives is only counted again, and one that nobody owns is ended like any other row. It keeps the
 * number that its owner knows it by: a process whose registry was set aside under it goes on in the new one. What it
 * was doing is not in the record; `adopted` lets its owner say (registry.c).
 *
 * Order: a row is written before its directory is made and closed after that is gone. The directories are listed first,
 * then the row is looked for, then the directory is opened: one that begins or ends meanwhile is never taken over. */

typedef struct adopt_s {
  al__reg_call_t call;
  char lima[AL_HOME_MAX];
} adopt_t;

/* 1 when the directory of that name is ours, sealed for a row with an owner. */
static int
read_seal(int lima, const char *name, al_seal_t *seal) {
  AL_AUTO_FD int dir = openat(lima, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  struct stat st;
  if (dir < 0 || fstat(dir, &st) || st.st_uid != geteuid()) return 0;
  return al_seal_read(dir, seal) == 1 && strcmp(seal->name, name) == 0 && seal->owner.pid > 0;
}

/* 1 and its id when there is a row of that name; *state is its state. */
static int
find_row(al_db_job_t *job, sqlite3 *sql, const char *name, int64_t *id, int *state) {
  sqlite3_stmt *st;
  int rc = al__reg_prepare(job, sql, "SELECT id, state FROM lanes WHERE name = ?", &st);
  if (rc) return rc;
  al__reg_bind_text(st, 1, name);
  rc = sqlite3_step(st);
  if (rc == SQLITE_ROW) {
    *id = sqlite3_column_int64(st, 0);
    *state = al_lane_state_from_name(al__reg_column(st, 1));
  }
  int end = sqlite3_finalize(st);
  if (rc == SQLITE_ROW && !end) return 1;
  return rc == SQLITE_DONE ? 0 : al_db_error(sql, end ? end : rc, "look for a lane", &job->err);
}

static int
insert_row(al_db_job_t *job, sqlite3 *sql, const al_seal_t *s) {
  char start[24];
  sqlite3_stmt *st;
  int rc = al__reg_prepare(job, sql,
    "INSERT INTO lanes (id, name, state, owner_pid, owner_start, owner_boot, owner_exe, owner_env, created_s,"
    " expires_s, expires_boot_ms, cpus, memory_mib, disk_gib, image, network, accel, adopted)"
    " VALUES (CASE WHEN ?1 > 0 AND NOT EXISTS (SELECT 1 FROM lanes WHERE id = ?1) THEN ?1 END,"
    " ?2, 'ready', ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, 1)",
    &st);
  if (rc) return rc;
  sqlite3_bind_int64(st, 1, s->row);
  al__reg_bind_text(st, 2, s->name);
  al__reg_bind_ident(st, 3, &s->owner, start);
  al__reg_bind_text(st, 7, s->owner_env);
  sqlite3_bind_int64(st, 8, s->created_s);
  sqlite3_bind_int64(st, 9, s->expires_s);
  sqlite3_bind_int64(st, 10, s->expires_boot_ms);
  sqlite3_bind_int(st, 11, s->cpus);
  sqlite3_bind_int64(st, 12, s->memory_mib);
  sqlite3_bind_int64(st, 13, s->disk_gib);
  al__reg_bind_text(st, 14, s->image);
  al__reg_bind_text(st, 15, s->network);
  al__reg_bind_text(st, 16, s->accel);
  if ((rc = al__reg_finish(job, sql, st, "take a lane over"))) return rc;
  return al__reg_add_history(job, sql, sqlite3_last_insert_rowid(sql), "", "ready", AL__REG_ADOPTED);
}

/* A row that says that its lane is gone, while the directory is there: it was put back, or closed too early. */
static int
open_again(al_db_job_t *job, sqlite3 *sql, int64_t id) {
  sqlite3_stmt *st;
  int rc = al__reg_prepare(job, sql, "UPDATE lanes SET state = 'closing' WHERE id = ?", &st);
  if (rc) return rc;
  sqlite3_bind_int64(st, 1, id);
  if ((rc = al__reg_finish(job, sql, st, "open a lane again"))) return rc;
  return al__reg_add_history(job, sql, id, "closed", "closing", "its directory is there");
}

/* 1 when a row was made of it. */
static int
adopt_one(al_db_job_t *job, sqlite3 *sql, int lima, const char *name) {
  al_seal_t seal;
  int64_t id = 0;
  int state = -1;
  int known = find_row(job, sql, name, &id, &state);
  if (known < 0 || (known && state != AL_LANE_CLOSED) || !read_seal(lima, name, &seal)) return known < 0 ? known : 0;
  int rc = known ? open_again(job, sql, id) : insert_row(job, sql, &seal);
  return rc ? rc : 1;
}

static int
adopt_all(al_db_job_t *job, sqlite3 *sql, const char *lima_dir) {
  int count = 0, rc;
  AL_AUTO_FD int lima = open(lima_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (lima < 0) return errno == ENOENT ? 0 : al_err_set(&job->err, -errno, "%s: %s", lima_dir, strerror(errno));
  al_val_t *names = al_val_list();
  rc = names ? al__reg_directories(lima_dir, names, &job->err) : al_err_set(&job->err, -ENOMEM, "out of memory");
  for (size_t i = 0; rc == 0 && i < names->len; i++) {
    int one = adopt_one(job, sql, lima, names->items[i]->text);
    if (one < 0) rc = one;
    else count += one;
  }
  al_val_free(names);
  return rc ? rc : count;
}

int
al__registry_fill(sqlite3 *sql, const char *path, al_err_t *err) {
  al_db_job_t job = {.err = {0}};
  char lima[AL_HOME_MAX + 8];
  int n = snprintf(lima, sizeof lima, "%.*slima", (int) (strrchr(path, '/') + 1 - path), path);
  if (n < 0 || (size_t) n >= sizeof lima) return 0; /* no home has such a path */
  int rc = adopt_all(&job, sql, lima);
  if (rc < 0 && err) *err = job.err;
  return rc;
}

static int
run_adopt(al_db_job_t *job, sqlite3 *sql) {
  adopt_t *a = job->data;
  int rc = adopt_all(job, sql, a->lima);
  if (rc < 0) return rc;
  a->call.outcome = rc;
  return 0;
}

void
al_registry_adopt(al_registry_t *r, const al_home_t *home, al_registry_cb cb, void *data) {
  adopt_t *a = al__reg_call(sizeof *a, cb, data);
  if (!a) return;
  al__reg_copy(a->lima, sizeof a->lima, home->lima);
  al__reg_run(r, &a->call, run_adopt);
}
