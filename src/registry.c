/* SPDX-License-Identifier: Apache-2.0 */
/* Registry: opening it, and the rows of lanes: their states, their keepers, their list. */
#include "registry_int.h"
#include "mem.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define LANE_COLUMNS \
  "id, name, state, owner_pid, owner_start, owner_boot, owner_exe, owner_env, created_s, expires_s, expires_boot_ms," \
  " cpus, memory_mib, disk_gib, image, network, accel, reason, keeper_pid, keeper_start, keeper_boot, keeper_exe," \
  " tries, retry_s, orphan_boot_ms"

int
al_registry_open(uv_loop_t *loop, const char *path, al_registry_t *r, al_err_t *err) {
  return al_db_open(loop, path, &al__registry_schema, &r->db, err);
}

void
al_registry_close(al_registry_t *r, void (*cb)(void *data), void *data) {
  al_db_close(r->db, cb, data);
  r->db = NULL;
}

bool
al_registry_notice(al_registry_t *r, char out[AL_DB_NOTICE_MAX]) {
  return al_db_notice(r->db, out);
}

/* ---- what all calls share ---- */

void
al__reg_copy(char *out, size_t cap, const char *text) {
  snprintf(out, cap, "%s", text ? text : "");
}

int
al__reg_prepare(al_db_job_t *job, sqlite3 *sql, const char *text, sqlite3_stmt **out) {
  int rc = sqlite3_prepare_v2(sql, text, -1, out, NULL);
  return rc == SQLITE_OK ? 0 : al_db_error(sql, rc, "prepare", &job->err);
}

int
al__reg_finish(al_db_job_t *job, sqlite3 *sql, sqlite3_stmt *st, const char *what) {
  int rc = sqlite3_step(st);
  sqlite3_finalize(st);
  return rc == SQLITE_DONE || rc == SQLITE_ROW ? 0 : al_db_error(sql, rc, what, &job->err);
}

void
al__reg_bind_text(sqlite3_stmt *st, int at, const char *text) {
  sqlite3_bind_text(st, at, text, -1, SQLITE_STATIC);
}

void
al__reg_bind_ident(sqlite3_stmt *st, int at, const al_ident_t *id, char start[24]) {
  snprintf(start, 24, "%" PRIu64, id->start);
  sqlite3_bind_int64(st, at, id->pid);
  al__reg_bind_text(st, at + 1, start);
  al__reg_bind_text(st, at + 2, id->boot);
  al__reg_bind_text(st, at + 3, id->exe);
}

const char *
al__reg_column(sqlite3_stmt *st, int i) {
  const char *s = (const char *) sqlite3_column_text(st, i);
  return s ? s : "";
}

void
al__reg_read_ident(sqlite3_stmt *st, int at, al_ident_t *id) {
  memset(id, 0, sizeof *id);
  id->pid = (pid_t) sqlite3_column_int64(st, at);
  sscanf(al__reg_column(st, at + 1), "%" SCNu64, &id->start);
  al__reg_copy(id->boot, sizeof id->boot, al__reg_column(st, at + 2));
  al__reg_copy(id->exe, sizeof id->exe, al__reg_column(st, at + 3));
}

void *
al__reg_call(size_t size, al_registry_cb cb, void *data) {
  al__reg_call_t *c = al_calloc(1, size);
  if (!c) {
    al_err_t err = { 0 };
    al_err_set(&err, -ENOMEM, "out of memory");
    if (cb) cb(data, -ENOMEM, &err);
    return NULL;
  }
  c->cb = cb;
  c->data = data;
  c->job.data = c;
  return c;
}

void
al__reg_explain(al_db_job_t *job, int status) {
  if (status < 0 && !job->err.code) al_err_set(&job->err, status, "the registry job did not run");
}

static void
answer(al_db_job_t *job, int status) {
  al__reg_call_t *c = job->data;
  al__reg_explain(job, status);
  if (c->cb) c->cb(c->data, status < 0 ? status : c->outcome, &job->err);
  al_free(c);
}

void
al__reg_run(al_registry_t *r, al__reg_call_t *c, int (*run)(al_db_job_t *, sqlite3 *)) {
  al_db_run(r->db, &c->job, run, answer);
}

/* ---- states ---- */

typedef struct move_s {
  al__reg_call_t call;
  int64_t id;
  int from, to;
  char reason[256];
} move_t;

/* `adopted`: whether its owner knows better. */
static int
read_state(move_t *m, sqlite3 *sql, int *state, bool *adopted) {
  al_db_job_t *job = &m->call.job;
  sqlite3_stmt *st;
  int rc = al__reg_prepare(job, sql, "SELECT state, adopted FROM lanes WHERE id = ?", &st);
  if (rc) return rc;
  sqlite3_bind_int64(st, 1, m->id);
  rc = sqlite3_step(st);
  *state = rc == SQLITE_ROW ? al_lane_state_from_name(al__reg_column(st, 0)) : -1;
  *adopted = rc == SQLITE_ROW && sqlite3_column_int(st, 1) && *state == AL_LANE_READY;
  int end = sqlite3_finalize(st); /* of a column that could not be read */
  if (rc == SQLITE_ROW && end) rc = end;
  if (rc == SQLITE_DONE)
    return al_err_set(&job->err, AL_ENO_SUCH_LANE, "lane %" PRId64 " is not in the registry", m->id);
  return rc == SQLITE_ROW ? 0 : al_db_error(sql, rc, "read a lane", &job->err);
}

static int
write_state(move_t *m, sqlite3 *sql, int from, int to) {
  al_db_job_t *job = &m->call.job;
  sqlite3_stmt *st;
  /* The first sweep tries a stuck lane again at once; after that it is left alone for a while, each time for longer. */
  int rc = al__reg_prepare(job, sql,
    "UPDATE lanes SET state = ?1, reason = CASE WHEN ?2 = '' THEN reason ELSE ?2 END,"
    " tries = tries + (?1 = 'stuck'), retry_s = CASE WHEN ?1 = 'stuck' THEN"
    " ?3 + CASE WHEN tries = 0 THEN 0 ELSE min(3600, 15 << min(tries, 8)) END ELSE retry_s END WHERE id = ?4",
    &st);
  if (rc) return rc;
  al__reg_bind_text(st, 1, al_lane_state_name(to));
  al__reg_bind_text(st, 2, m->reason);
  sqlite3_bind_int64(st, 3, al_plat_wall_ms() / 1000);
  sqlite3_bind_int64(st, 4, m->id);
  if ((rc = al__reg_finish(job, sql, st, "write a lane's state"))) return rc;
  return al__reg_add_history(job, sql, m->id, al_lane_state_name(from), al_lane_state_name(to), m->reason);
}

static int
run_move(al_db_job_t *job, sqlite3 *sql) {
  move_t *m = job->data;
  bool adopted;
  int state, rc;
  if ((rc = read_state(m, sql, &state, &adopted))) return rc;
  if (state >= AL_LANE_CLOSING && m->from < AL_LANE_CLOSING)
    return al_err_set(
      &job->err, AL_ELANE_CLOSED, "another process has ended the lane, as `agent-lane reap --force` does");
  if (state != m->from && !adopted)
    return al_err_set(&job->err, AL_EINTERNAL, "lane %" PRId64 " is %s in the registry, not %s", m->id,
      al_lane_state_name(state), al_lane_state_name(m->from));
  return write_state(m, sql, state, m->to);
}

static int
run_claim(al_db_job_t *job, sqlite3 *sql) {
  move_t *m = job->data;
  bool adopted;
  int state, rc;
  if ((rc = read_state(m, sql, &state, &adopted))) return rc;
  if (state == AL_LANE_CLOSED) return al_err_set(&job->err, AL_ELANE_CLOSED, "the lane is already closed");
  return state == AL_LANE_CLOSING ? 0 : write_state(m, sql, state, AL_LANE_CLOSING);
}

static void
start_move(al_registry_t *r, int64_t id, int from, int to, const char *reason, al_registry_cb cb, void *data,
  int (*run)(al_db_job_t *, sqlite3 *)) {
  move_t *m = al__reg_call(sizeof *m, cb, data);
  if (!m) return;
  m->id = id;
  m->from = from;
  m->to = to;
  al__reg_copy(m->reason, sizeof m->reason, reason);
  al__reg_run(r, &m->call, run);
}

void
al_registry_move(al_registry_t *r, int64_t id, int from, int to, const char *reason, al_registry_cb cb, void *data) {
  start_move(r, id, from, to, reason, cb, data, run_move);
}

void
al_registry_claim_close(al_registry_t *r, int64_t id, const char *reason, al_registry_cb cb, void *data) {
  start_move(r, id, 0, AL_LANE_CLOSING, reason, cb, data, run_claim);
}

typedef struct gone_s {
  move_t move; /* the one at hand */
  size_t count;
  al_registry_end_t ends[];
} gone_t;

static int
close_one(move_t *m, sqlite3 *sql) {
  bool adopted;
  int state, rc = read_state(m, sql, &state, &adopted);
  if (rc == AL_ENO_SUCH_LANE) m->call.job.err = (al_err_t) {0};
  if (rc == AL_ENO_SUCH_LANE || (!rc && state == AL_LANE_CLOSED)) return 0;
  if (!rc && state != AL_LANE_CLOSING) rc = write_state(m, sql, state, AL_LANE_CLOSING);
  return rc ? rc : write_state(m, sql, AL_LANE_CLOSING, AL_LANE_CLOSED);
}

static int
run_close_gone(al_db_job_t *job, sqlite3 *sql) {
  gone_t *g = job->data;
  int rc = 0;
  for (size_t i = 0; !rc && i < g->count; i++) {
    g->move.id = g->ends[i].id;
    al__reg_copy(g->move.reason, sizeof g->move.reason, g->ends[i].reason);
    rc = close_one(&g->move, sql);
  }
  return rc;
}

void
al_registry_close_gone(
  al_registry_t *r, const al_registry_end_t *ends, size_t count, al_registry_cb cb, void *data) {
  gone_t *g = al__reg_call(sizeof *g + count * sizeof *ends, cb, data);
  if (!g) return;
  memcpy(g->ends, ends, count * sizeof *ends);
  g->count = count;
  al__reg_run(r, &g->move.call, run_close_gone);
}

/* ---- the keeper ---- */

typedef struct keeper_s {
  al__reg_call_t call;
  int64_t id;
  al_ident_t keeper;
} keeper_t;

static int
run_keeper(al_db_job_t *job, sqlite3 *sql) {
  keeper_t *k = job->data;
  sqlite3_stmt *st;
  int rc = al__reg_prepare(job, sql,
    "UPDATE lanes SET keeper_pid = ?, keeper_start = ?, keeper_boot = ?, keeper_exe = ?"
    " WHERE id = ? AND state <> 'closed'", &st);
  if (rc) return rc;
  al__reg_bind_ident(st, 1, &k->keeper, k->call.start);
  sqlite3_bind_int64(st, 5, k->id);
  if ((rc = al__reg_finish(job, sql, st, "write a lane's keeper"))) return rc;
  return sqlite3_changes(sql) == 1
    ? 0
    : al_err_set(&job->err, AL_ENO_SUCH_LANE, "lane %" PRId64 " is not open in the registry", k->id);
}

void
al_registry_set_keeper(al_registry_t *r, int64_t id, const al_ident_t *keeper, al_registry_cb cb, void *data) {
  keeper_t *k = al__reg_call(sizeof *k, cb, data);
  if (!k) return;
  k->id = id;
  k->keeper = *keeper;
  al__reg_run(r, &k->call, run_keeper);
}

typedef struct orphan_s {
  al__reg_call_t call;
  int64_t id, boot_ms;
} orphan_t;

static int
run_orphan(al_db_job_t *job, sqlite3 *sql) {
  orphan_t *o = job->data;
  sqlite3_stmt *st;
  int rc = al__reg_prepare(job, sql, "UPDATE lanes SET orphan_boot_ms = ? WHERE id = ? AND state <> 'closed'", &st);
  if (rc) return rc;
  sqlite3_bind_int64(st, 1, o->boot_ms);
  sqlite3_bind_int64(st, 2, o->id);
  return al__reg_finish(job, sql, st, "note that a keeper is alone");
}

void
al_registry_note_orphan(al_registry_t *r, int64_t id, int64_t boot_ms) {
  orphan_t *o = al__reg_call(sizeof *o, NULL, NULL);
  if (!o) return; /* the next sweep notes it */
  o->id = id;
  o->boot_ms = boot_ms;
  al__reg_run(r, &o->call, run_orphan);
}

/* ---- the list ---- */

typedef struct list_s {
  al__reg_call_t call;
  bool all;
  char name[AL_NAME_LEN + 1]; /* only this one; "": every one */
  al_lane_row_t *rows;
  size_t count, cap;
  al_registry_list_cb cb;
} list_t;

static void
read_row(sqlite3_stmt *st, al_lane_row_t *row) {
  memset(row, 0, sizeof *row);
  row->id = sqlite3_column_int64(st, 0);
  al__reg_copy(row->name, sizeof row->name, al__reg_column(st, 1));
  row->state = al_lane_state_from_name(al__reg_column(st, 2));
  al__reg_read_ident(st, 3, &row->owner);
  al__reg_copy(row->owner_env, sizeof row->owner_env, al__reg_column(st, 7));
  row->created_s = sqlite3_column_int64(st, 8);
  row->expires_s = sqlite3_column_int64(st, 9);
  row->expires_boot_ms = sqlite3_column_int64(st, 10);
  row->cpus = sqlite3_column_int(st, 11);
  row->memory_mib = sqlite3_column_int64(st, 12);
  row->disk_gib = sqlite3_column_int64(st, 13);
  al__reg_copy(row->image, sizeof row->image, al__reg_column(st, 14));
  al__reg_copy(row->network, sizeof row->network, al__reg_column(st, 15));
  al__reg_copy(row->accel, sizeof row->accel, al__reg_column(st, 16));
  al__reg_copy(row->reason, sizeof row->reason, al__reg_column(st, 17));
  al__reg_read_ident(st, 18, &row->keeper);
  row->tries = sqlite3_column_int(st, 22);
  row->retry_s = sqlite3_column_int64(st, 23);
  row->orphan_boot_ms = sqlite3_column_int64(st, 24);
}

static int
add_row(list_t *l, sqlite3_stmt *st) {
  if (l->count == l->cap) {
    size_t cap = l->cap ? 2 * l->cap : 16;
    al_lane_row_t *rows = al_reallocarray(l->rows, cap, sizeof *rows);
    if (!rows) return -ENOMEM;
    l->rows = rows;
    l->cap = cap;
  }
  read_row(st, &l->rows[l->count++]);
  return 0;
}

static int
run_list(al_db_job_t *job, sqlite3 *sql) {
  list_t *l = job->data;
  sqlite3_stmt *st;
  int rc = al__reg_prepare(job, sql,
    l->name[0] ? "SELECT " LANE_COLUMNS " FROM lanes WHERE name = ?"
    : l->all   ? "SELECT " LANE_COLUMNS " FROM lanes ORDER BY id DESC LIMIT 1000"
               : "SELECT " LANE_COLUMNS " FROM lanes WHERE state <> 'closed' ORDER BY id DESC",
    &st);
  if (rc) return rc;
  l->count = 0;
  if (l->name[0]) al__reg_bind_text(st, 1, l->name);
  while ((rc = sqlite3_step(st)) == SQLITE_ROW) {
    if (add_row(l, st) == 0) continue;
    sqlite3_finalize(st);
    return al_err_set(&job->err, -ENOMEM, "out of memory");
  }
  sqlite3_finalize(st);
  return rc == SQLITE_DONE ? 0 : al_db_error(sql, rc, "list lanes", &job->err);
}

static void
answer_list(al_db_job_t *job, int status) {
  list_t *l = job->data;
  al__reg_explain(job, status);
  l->cb(l->call.data, status, &job->err, l->rows, status ? 0 : l->count);
  al_free(l->rows);
  al_free(l);
}

static void
start_list(al_registry_t *r, bool all, const char *name, al_registry_list_cb cb, void *data) {
  list_t *l = al__reg_call(sizeof *l, NULL, data);
  if (!l) {
    al_err_t err = { 0 };
    al_err_set(&err, -ENOMEM, "out of memory");
    cb(data, -ENOMEM, &err, NULL, 0);
    return;
  }
  l->all = all;
  al__reg_copy(l->name, sizeof l->name, name);
  l->cb = cb;
  al_db_run(r->db, &l->call.job, run_list, answer_list);
}

void
al_registry_list(al_registry_t *r, bool all, al_registry_list_cb cb, void *data) {
  start_list(r, all, NULL, cb, data);
}

void
al_registry_find(al_registry_t *r, const char *name, al_registry_list_cb cb, void *data) {
  AL_ASSERT(name[0]);
  start_list(r, true, name, cb, data);
}
