/* SPDX-License-Identifier: Apache-2.0 */
/* Registry: what has changed since somebody looked last: for owners, for who follows events, and lanes that are stuck. */
#include "registry_int.h"
#include "mem.h"
#include <string.h>

#define CHANGES_MAX 1000

/* ---- lanes that others end ---- */

typedef struct watch_s {
  al__reg_call_t call;
  int64_t *ids;
  size_t ids_count;
  al_lane_row_t *rows;
  size_t count;
  al_registry_list_cb cb;
} watch_t;

static int
run_watch(al_db_job_t *job, sqlite3 *sql) {
  watch_t *w = job->data;
  sqlite3_stmt *st;
  int rc = al__reg_prepare(job, sql,
    "SELECT state, reason FROM lanes WHERE id = ? AND state IN ('closing', 'stuck', 'closed')", &st);
  if (rc) return rc;
  w->count = 0; /* a job may be run again */
  for (size_t i = 0; i < w->ids_count; i++) {
    sqlite3_bind_int64(st, 1, w->ids[i]);
    rc = sqlite3_step(st);
    if (rc != SQLITE_ROW && rc != SQLITE_DONE) break;
    if (rc == SQLITE_ROW) {
      al_lane_row_t *row = &w->rows[w->count++];
      row->id = w->ids[i];
      row->state = al_lane_state_from_name(al__reg_column(st, 0));
      al__reg_copy(row->reason, sizeof row->reason, al__reg_column(st, 1));
    }
    rc = sqlite3_reset(st);
    if (rc) break;
  }
  sqlite3_finalize(st);
  return rc == SQLITE_OK || rc == SQLITE_DONE ? 0 : al_db_error(sql, rc, "look at lanes", &job->err);
}

static void
answer_watch(al_db_job_t *job, int status) {
  watch_t *w = job->data;
  al__reg_explain(job, status);
  w->cb(w->call.data, status, &job->err, w->rows, status ? 0 : w->count);
  al_free(w->ids);
  al_free(w->rows);
  al_free(w);
}

void
al_registry_watch(al_registry_t *r, const int64_t *ids, size_t count, al_registry_list_cb cb, void *data) {
  watch_t *w = al__reg_call(sizeof *w, NULL, data);
  if (w) {
    w->ids = al_memdup(ids, count * sizeof *ids);
    w->rows = al_calloc(count + 1, sizeof *w->rows);
  }
  if (!w || !w->ids || !w->rows) {
    al_err_t err = { 0 };
    if (w) {
      al_free(w->ids);
      al_free(w->rows);
      al_free(w);
    }
    al_err_set(&err, -ENOMEM, "out of memory");
    cb(data, -ENOMEM, &err, NULL, 0);
    return;
  }
  w->ids_count = count;
  w->cb = cb;
  al_db_run(r->db, &w->call.job, run_watch, answer_watch);
}

/* ---- changes ---- */

typedef struct changes_s {
  al__reg_call_t call;
  int64_t after, last;
  int max;
  al_change_t *rows;
  size_t count;
  al_changes_cb cb;
} changes_t;

static int
read_last(changes_t *c, sqlite3 *sql) {
  al_db_job_t *job = &c->call.job;
  sqlite3_stmt *st;
  int rc = al__reg_prepare(job, sql, "SELECT coalesce(max(id), 0) FROM history", &st);
  if (rc) return rc;
  if (sqlite3_step(st) == SQLITE_ROW) c->last = sqlite3_column_int64(st, 0);
  rc = sqlite3_finalize(st);
  return rc ? al_db_error(sql, rc, "read history", &job->err) : 0;
}

static int
run_changes(al_db_job_t *job, sqlite3 *sql) {
  changes_t *c = job->data;
  sqlite3_stmt *st;
  if (c->after < 0) return read_last(c, sql);
  int rc = al__reg_prepare(job, sql,
    "SELECT h.id, l.name, h.at_ms, h.from_state, h.to_state, h.reason FROM history h JOIN lanes l ON l.id = h.lane"
    " WHERE h.id > ? ORDER BY h.id LIMIT ?", &st);
  if (rc) return rc;
  sqlite3_bind_int64(st, 1, c->after);
  sqlite3_bind_int(st, 2, c->max);
  c->last = c->after;
  c->count = 0;
  while ((rc = sqlite3_step(st)) == SQLITE_ROW && c->count < (size_t) c->max) {
    al_change_t *row = &c->rows[c->count++];
    row->number = c->last = sqlite3_column_int64(st, 0);
    al__reg_copy(row->name, sizeof row->name, al__reg_column(st, 1));
    row->at_ms = sqlite3_column_int64(st, 2);
    row->from = al_lane_state_from_name(al__reg_column(st, 3));
    row->to = al_lane_state_from_name(al__reg_column(st, 4));
    al__reg_copy(row->reason, sizeof row->reason, al__reg_column(st, 5));
  }
  sqlite3_finalize(st);
  return rc == SQLITE_DONE ? 0 : al_db_error(sql, rc, "read history", &job->err);
}

static void
answer_changes(al_db_job_t *job, int status) {
  changes_t *c = job->data;
  al__reg_explain(job, status);
  c->cb(c->call.data, status, &job->err, c->last, c->rows, status ? 0 : c->count);
  al_free(c->rows);
  al_free(c);
}

void
al_registry_changes(al_registry_t *r, int64_t after, int max, al_changes_cb cb, void *data) {
  changes_t *c = al__reg_call(sizeof *c, NULL, data);
  if (max > CHANGES_MAX) max = CHANGES_MAX;
  if (c && after >= 0) c->rows = al_calloc((size_t) max, sizeof *c->rows);
  if (!c || (after >= 0 && !c->rows)) {
    al_err_t err = { 0 };
    al_free(c);
    al_err_set(&err, -ENOMEM, "out of memory");
    cb(data, -ENOMEM, &err, 0, NULL, 0);
    return;
  }
  c->after = after;
  c->max = max;
  c->cb = cb;
  al_db_run(r->db, &c->call.job, run_changes, answer_changes);
}

/* ---- lanes that are stuck ---- */

static int
list_stuck(void *data, sqlite3 *sql, al_err_t *err) {
  al_val_t *list = data;
  sqlite3_stmt *st;
  int rc = sqlite3_prepare_v2(sql, "SELECT name, reason FROM lanes WHERE state = 'stuck' ORDER BY id", -1, &st, NULL);
  if (rc != SQLITE_OK) return al_db_error(sql, rc, "list stuck lanes", err);
  int bad = 0;
  while (!bad && (rc = sqlite3_step(st)) == SQLITE_ROW) {
    al_val_t *v = al_val_map();
    bad = al_val_set(v, "name", al_val_text(al__reg_column(st, 0))) |
      al_val_set(v, "reason", al_val_text(al__reg_column(st, 1))) | al_val_add(list, v);
  }
  sqlite3_finalize(st);
  if (bad) return al_err_set(err, -ENOMEM, "out of memory");
  return rc == SQLITE_DONE ? 0 : al_db_error(sql, rc, "list stuck lanes", err);
}

int
al_registry_stuck(const al_home_t *home, al_val_t **out, al_err_t *err) {
  al_val_t *list = al_val_list();
  int rc = list ? 0 : al_err_set(err, -ENOMEM, "out of memory");
  if (!rc && (rc = al_db_look(home->registry, &al__registry_schema, list_stuck, list, err)) == -ENOENT) rc = 0;
  if (rc) al_val_free(list);
  else *out = list;
  return rc;
}
