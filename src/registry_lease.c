/* SPDX-License-Identifier: Apache-2.0 */
/* Registry: leases, by which one process at a time does what two would only do twice. */
#include "registry_int.h"
#include "mem.h"
#include <string.h>

/* Theory of operation. A lease is held by an identity and an environment (a process may have several engines) and ends
 * at a time. The time is boot time, which no change of the clock moves; it needs no boot of its own beside it, since a
 * holder of another boot is gone by its identity. So the lease of a process that died is free at once, and one whose
 * holder stands still is free when its time is over. A lease is a courtesy between processes, never a proof: what is
 * done under it must be right also when two do it. */

typedef struct lease_s {
  al__reg_call_t call;
  char name[24];
  al_ident_t holder;
  char env[33];
  int seconds;
} lease_t;

typedef enum { FREE, OURS, THEIRS } held_t;

static int
look(lease_t *l, sqlite3 *sql, held_t *held) {
  al_db_job_t *job = &l->call.job;
  sqlite3_stmt *st;
  al_ident_t id;
  *held = FREE;
  int rc =
    al__reg_prepare(job, sql, "SELECT pid, start, boot, exe, env, until_boot_ms FROM leases WHERE name = ?", &st);
  if (rc) return rc;
  al__reg_bind_text(st, 1, l->name);
  if ((rc = sqlite3_step(st)) == SQLITE_ROW) {
    al__reg_read_ident(st, 0, &id);
    bool ours = id.pid == l->holder.pid && id.start == l->holder.start && strcmp(id.boot, l->holder.boot) == 0 &&
      strcmp(al__reg_column(st, 4), l->env) == 0;
    bool over = sqlite3_column_int64(st, 5) < (int64_t) al_plat_boot_ms();
    if (!over) *held = ours ? OURS : al_plat_ident_alive(&id) == 0 ? FREE : THEIRS;
  }
  int end = sqlite3_finalize(st);
  if (rc == SQLITE_ROW) rc = end ? end : SQLITE_DONE;
  return rc == SQLITE_DONE ? 0 : al_db_error(sql, rc, "read a lease", &job->err);
}

static int
write_lease(lease_t *l, sqlite3 *sql) {
  al_db_job_t *job = &l->call.job;
  sqlite3_stmt *st;
  int rc = al__reg_prepare(job, sql,
    "INSERT OR REPLACE INTO leases (name, pid, start, boot, exe, env, until_boot_ms) VALUES (?, ?, ?, ?, ?, ?, ?)",
    &st);
  if (rc) return rc;
  al__reg_bind_text(st, 1, l->name);
  al__reg_bind_ident(st, 2, &l->holder, l->call.start);
  al__reg_bind_text(st, 6, l->env);
  sqlite3_bind_int64(st, 7, (int64_t) al_plat_boot_ms() + (int64_t) l->seconds * 1000);
  return al__reg_finish(job, sql, st, "write a lease");
}

static int
run_take(al_db_job_t *job, sqlite3 *sql) {
  lease_t *l = job->data;
  held_t held;
  int rc = look(l, sql, &held);
  if (rc) return rc;
  l->call.outcome = held == THEIRS;
  return held == THEIRS ? 0 : write_lease(l, sql);
}

static int
run_renew(al_db_job_t *job, sqlite3 *sql) {
  lease_t *l = job->data;
  held_t held;
  int rc = look(l, sql, &held);
  if (rc) return rc;
  l->call.outcome = held != OURS;
  return held == OURS ? write_lease(l, sql) : 0;
}

static int
run_release(al_db_job_t *job, sqlite3 *sql) {
  lease_t *l = job->data;
  sqlite3_stmt *st;
  held_t held;
  int rc = look(l, sql, &held);
  if (rc || held != OURS) return rc;
  if ((rc = al__reg_prepare(job, sql, "DELETE FROM leases WHERE name = ?", &st))) return rc;
  al__reg_bind_text(st, 1, l->name);
  return al__reg_finish(job, sql, st, "give a lease back");
}

static void
start(al_registry_t *r, const char *name, const al_ident_t *holder, const char *env, int seconds, al_registry_cb cb,
  void *data, int (*run)(al_db_job_t *, sqlite3 *)) {
  lease_t *l = al__reg_call(sizeof *l, cb, data);
  if (!l) return;
  al__reg_copy(l->name, sizeof l->name, name);
  l->holder = *holder;
  al__reg_copy(l->env, sizeof l->env, env);
  l->seconds = seconds;
  al__reg_run(r, &l->call, run);
}

void
al_registry_lease_take(al_registry_t *r, const char *name, const al_ident_t *holder, const char *env, int seconds,
  al_registry_cb cb, void *data) {
  start(r, name, holder, env, seconds, cb, data, run_take);
}

void
al_registry_lease_renew(al_registry_t *r, const char *name, const al_ident_t *holder, const char *env, int seconds,
  al_registry_cb cb, void *data) {
  start(r, name, holder, env, seconds, cb, data, run_renew);
}

void
al_registry_lease_release(al_registry_t *r, const char *name, const al_ident_t *holder, const char *env,
  al_registry_cb cb, void *data) {
  start(r, name, holder, env, 0, cb, data, run_release);
}
