/* SPDX-License-Identifier: Apache-2.0 */
/* Registry: the history of a lane, written with each change and read for people. */
#include "registry_int.h"
#include "mem.h"
#include <string.h>

#define HISTORY_MAX 1000 /* a lane that is stuck gains two lines at each try */

typedef struct history_s {
  al__reg_call_t call;
  char name[AL_NAME_LEN + 1];
  al_history_t *rows;
  size_t count;
  al_history_cb cb;
} history_t;

int
al__reg_add_history(al_db_job_t *job, sqlite3 *sql, int64_t id, const char *from, const char *to, const char *reason) {
  sqlite3_stmt *st;
  int rc = al__reg_prepare(
    job, sql, "INSERT INTO history (lane, at_ms, from_state, to_state, reason) VALUES (?, ?, ?, ?, ?)", &st);
  if (rc) return rc;
  sqlite3_bind_int64(st, 1, id);
  sqlite3_bind_int64(st, 2, al_plat_wall_ms());
  al__reg_bind_text(st, 3, from);
  al__reg_bind_text(st, 4, to);
  al__reg_bind_text(st, 5, reason);
  return al__reg_finish(job, sql, st, "write history");
}

static int
find(history_t *h, sqlite3 *sql, int64_t *id) {
  al_db_job_t *job = &h->call.job;
  sqlite3_stmt *st;
  int rc = al__reg_prepare(job, sql, "SELECT id FROM lanes WHERE name = ?", &st);
  if (rc) return rc;
  al__reg_bind_text(st, 1, h->name);
  rc = sqlite3_step(st);
  *id = rc == SQLITE_ROW ? sqlite3_column_int64(st, 0) : 0;
  sqlite3_finalize(st);
  if (rc == SQLITE_DONE) return al_err_set(&job->err, AL_ENO_SUCH_LANE, "%s is not in the registry", h->name);
  return rc == SQLITE_ROW ? 0 : al_db_error(sql, rc, "find a lane", &job->err);
}

static int
run_history(al_db_job_t *job, sqlite3 *sql) {
  history_t *h = job->data;
  sqlite3_stmt *st;
  int64_t id;
  int rc = find(h, sql, &id);
  if (rc) return rc;
  rc = al__reg_prepare(job, sql,
    "SELECT at_ms, from_state, to_state, reason FROM"
    " (SELECT * FROM history WHERE lane = ? ORDER BY id DESC LIMIT ?) ORDER BY id", &st);
  if (rc) return rc;
  sqlite3_bind_int64(st, 1, id);
  sqlite3_bind_int(st, 2, HISTORY_MAX);
  h->count = 0;
  if (!h->rows) h->rows = al_calloc(HISTORY_MAX, sizeof *h->rows);
  if (!h->rows) {
    sqlite3_finalize(st);
    return al_err_set(&job->err, -ENOMEM, "out of memory");
  }
  while ((rc = sqlite3_step(st)) == SQLITE_ROW && h->count < HISTORY_MAX) {
    al_history_t *row = &h->rows[h->count++];
    row->at_ms = sqlite3_column_int64(st, 0);
    row->from = al_lane_state_from_name(al__reg_column(st, 1));
    row->to = al_lane_state_from_name(al__reg_column(st, 2));
    al__reg_copy(row->reason, sizeof row->reason, al__reg_column(st, 3));
  }
  sqlite3_finalize(st);
  return rc == SQLITE_DONE ? 0 : al_db_error(sql, rc, "read history", &job->err);
}

static void
answer(al_db_job_t *job, int status) {
  history_t *h = job->data;
  al__reg_explain(job, status);
  h->cb(h->call.data, status, &job->err, h->rows, status ? 0 : h->count);
  al_free(h->rows);
  al_free(h);
}

void
al_registry_history(al_registry_t *r, const char *name, al_history_cb cb, void *data) {
  history_t *h = al__reg_call(sizeof *h, NULL, data);
  if (!h) {
    al_err_t err = { 0 };
    al_err_set(&err, -ENOMEM, "out of memory");
    cb(data, -ENOMEM, &err, NULL, 0);
    return;
  }
  al__reg_copy(h->name, sizeof h->name, name);
  h->cb = cb;
  al_db_run(r->db, &h->call.job, run_history, answer);
}
