/* SPDX-License-Identifier: Apache-2.0 */
/* Registry: the SQL about lanes, each call one transaction on the database thread. */
#include "registry.h"
#include "registry_int.h"
#include "mem.h"
#include <inttypes.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* PRAGMA user_version counts these; never change one that has been released, add the next. */
static const char *const migrations[] = {
  "CREATE TABLE lanes ("
  " id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, state TEXT NOT NULL,"
  " owner_pid INTEGER NOT NULL, owner_start TEXT NOT NULL, owner_boot TEXT NOT NULL, owner_exe TEXT NOT NULL,"
  " owner_env TEXT NOT NULL, created_s INTEGER NOT NULL, expires_s INTEGER NOT NULL, expires_boot_ms INTEGER NOT NULL,"
  " cpus INTEGER NOT NULL, memory_mib INTEGER NOT NULL, disk_gib INTEGER NOT NULL,"
  " image TEXT NOT NULL, network TEXT NOT NULL, accel TEXT NOT NULL, reason TEXT NOT NULL DEFAULT '');"
  "CREATE INDEX lanes_open ON lanes (id) WHERE state <> 'closed';"
  "CREATE TABLE history ("
  " id INTEGER PRIMARY KEY AUTOINCREMENT, lane INTEGER NOT NULL REFERENCES lanes (id), at_ms INTEGER NOT NULL,"
  " from_state TEXT NOT NULL, to_state TEXT NOT NULL, reason TEXT NOT NULL DEFAULT '');"
  "CREATE INDEX history_lane ON history (lane);"
  "CREATE TABLE waiters ("
  " ticket INTEGER PRIMARY KEY AUTOINCREMENT, pid INTEGER NOT NULL, start TEXT NOT NULL, boot TEXT NOT NULL,"
  " exe TEXT NOT NULL, since_s INTEGER NOT NULL);",
};

#define RENEW_S 10  /* how often a waiter says that it still asks */
#define SILENT_S 60 /* one that has not said so for longer has lost its turn */

#define LANE_COLUMNS \
  "id, name, state, owner_pid, owner_start, owner_boot, owner_exe, owner_env, created_s, expires_s, expires_boot_ms," \
  " cpus, memory_mib, disk_gib, image, network, accel, reason"

typedef struct call_s {
  al_db_job_t job;
  al_registry_t *r;
  /* admit */
  al_lane_row_t *row;
  int max;
  int64_t *ticket;
  char *holders;
  size_t holders_cap;
  /* move, claim */
  int64_t id;
  int from, to;
  char reason[256];
  char start[24]; /* of an identity that is bound */
  /* list */
  bool all;
  al_lane_row_t *rows;
  size_t count;
  int outcome; /* positive answer of a committed job */
  al_registry_cb cb;
  al_registry_list_cb list_cb;
  void *data;
} call_t;

static int64_t
now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return (int64_t) t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void
copy_text(char *out, size_t cap, const char *s) {
  snprintf(out, cap, "%s", s ? s : "");
}

static int
prepare(call_t *c, sqlite3 *sql, const char *text, sqlite3_stmt **out) {
  int rc = sqlite3_prepare_v2(sql, text, -1, out, NULL);
  return rc == SQLITE_OK ? 0 : al_db_error(sql, rc, "prepare", &c->job.err);
}

static int
run_to_end(call_t *c, sqlite3 *sql, sqlite3_stmt *st, const char *what) {
  int rc = sqlite3_step(st);
  sqlite3_finalize(st);
  return rc == SQLITE_DONE || rc == SQLITE_ROW ? 0 : al_db_error(sql, rc, what, &c->job.err);
}

/* All texts are bound as they stand until the statement is done: a copy that failed would be written as nothing. */
static void
bind_ident(call_t *c, sqlite3_stmt *st, int at, const al_ident_t *id) {
  snprintf(c->start, sizeof c->start, "%" PRIu64, id->start);
  sqlite3_bind_int64(st, at, id->pid);
  sqlite3_bind_text(st, at + 1, c->start, -1, SQLITE_STATIC);
  sqlite3_bind_text(st, at + 2, id->boot, -1, SQLITE_STATIC);
  sqlite3_bind_text(st, at + 3, id->exe, -1, SQLITE_STATIC);
}

static const char *
column(sqlite3_stmt *st, int i) {
  const char *s = (const char *) sqlite3_column_text(st, i);
  return s ? s : "";
}

static void
read_ident(sqlite3_stmt *st, int at, al_ident_t *id) {
  memset(id, 0, sizeof *id);
  id->pid = (pid_t) sqlite3_column_int64(st, at);
  sscanf(column(st, at + 1), "%" SCNu64, &id->start);
  copy_text(id->boot, sizeof id->boot, column(st, at + 2));
  copy_text(id->exe, sizeof id->exe, column(st, at + 3));
}

static void
read_row(sqlite3_stmt *st, al_lane_row_t *row) {
  memset(row, 0, sizeof *row);
  row->id = sqlite3_column_int64(st, 0);
  copy_text(row->name, sizeof row->name, column(st, 1));
  row->state = al_lane_state_from_name(column(st, 2));
  read_ident(st, 3, &row->owner);
  copy_text(row->owner_env, sizeof row->owner_env, column(st, 7));
  row->created_s = sqlite3_column_int64(st, 8);
  row->expires_s = sqlite3_column_int64(st, 9);
  row->expires_boot_ms = sqlite3_column_int64(st, 10);
  row->cpus = sqlite3_column_int(st, 11);
  row->memory_mib = sqlite3_column_int64(st, 12);
  row->disk_gib = sqlite3_column_int64(st, 13);
  copy_text(row->image, sizeof row->image, column(st, 14));
  copy_text(row->network, sizeof row->network, column(st, 15));
  copy_text(row->accel, sizeof row->accel, column(st, 16));
  copy_text(row->reason, sizeof row->reason, column(st, 17));
}

static int
add_history(call_t *c, sqlite3 *sql, int64_t id, const char *from, const char *to, const char *reason) {
  sqlite3_stmt *st;
  int rc =
    prepare(c, sql, "INSERT INTO history (lane, at_ms, from_state, to_state, reason) VALUES (?, ?, ?, ?, ?)", &st);
  if (rc) return rc;
  sqlite3_bind_int64(st, 1, id);
  sqlite3_bind_int64(st, 2, now_ms());
  sqlite3_bind_text(st, 3, from, -1, SQLITE_STATIC);
  sqlite3_bind_text(st, 4, to, -1, SQLITE_STATIC);
  sqlite3_bind_text(st, 5, reason, -1, SQLITE_STATIC);
  return run_to_end(c, sql, st, "write history");
}

int
al__registry_schema(void) {
  return (int) (sizeof migrations / sizeof *migrations);
}

int
al_registry_open(uv_loop_t *loop, const char *path, al_registry_t *r, al_err_t *err) {
  return al_db_open(loop, path, migrations, al__registry_schema(), &r->db, err);
}

void
al_registry_close(al_registry_t *r, void (*cb)(void *data), void *data) {
  al_db_close(r->db, cb, data);
  r->db = NULL;
}

static call_t *
new_call(al_registry_t *r, al_registry_cb cb, void *data) {
  call_t *c = al_calloc(1, sizeof *c);
  if (!c) return NULL;
  c->r = r;
  c->cb = cb;
  c->data = data;
  c->job.data = c;
  return c;
}

static void
answer(al_db_job_t *job, int status) {
  call_t *c = job->data;
  if (status < 0 && !job->err.code) al_err_set(&job->err, status, "the registry job did not run");
  if (c->cb) c->cb(c->data, status < 0 ? status : c->outcome, &job->err);
  al_free(c);
}

/* Drops tickets that nobody asks for any more, since the process is gone or stands still or could not write that it has
 * left, and tells whether an older one than ours is still waiting. */
static int
older_waiter(call_t *c, sqlite3 *sql, bool *older) {
  sqlite3_stmt *st;
  int rc =
    prepare(c, sql, "SELECT ticket, pid, start, boot, exe, since_s FROM waiters WHERE ticket < ? ORDER BY ticket", &st);
  if (rc) return rc;
  sqlite3_bind_int64(st, 1, *c->ticket);
  int64_t dead[64];
  int count = 0;
  *older = false;
  while ((rc = sqlite3_step(st)) == SQLITE_ROW) {
    al_ident_t id;
    read_ident(st, 1, &id);
    bool silent = now_ms() / 1000 - sqlite3_column_int64(st, 5) > SILENT_S;
    if (silent || al_plat_ident_alive(&id) == 0) {
      if (count < 64) dead[count++] = sqlite3_column_int64(st, 0);
    } else {
      *older = true;
    }
  }
  sqlite3_finalize(st);
  if (rc != SQLITE_DONE) return al_db_error(sql, rc, "read the queue", &c->job.err);
  for (int i = 0; i < count; i++) {
    rc = prepare(c, sql, "DELETE FROM waiters WHERE ticket = ?", &st);
    if (rc) return rc;
    sqlite3_bind_int64(st, 1, dead[i]);
    if ((rc = run_to_end(c, sql, st, "drop a waiter"))) return rc;
  }
  return 0;
}

/* Says that its owner still asks; not at every poll, since each time is a write to the disk. */
static int
renew_ticket(call_t *c, sqlite3 *sql) {
  sqlite3_stmt *st;
  int rc = prepare(c, sql, "UPDATE waiters SET since_s = ?1 WHERE ticket = ?2 AND since_s < ?1 - ?3", &st);
  if (rc) return rc;
  sqlite3_bind_int64(st, 1, now_ms() / 1000);
  sqlite3_bind_int64(st, 2, *c->ticket);
  sqlite3_bind_int(st, 3, RENEW_S);
  return run_to_end(c, sql, st, "stay in the queue");
}

static int
take_ticket(call_t *c, sqlite3 *sql) {
  if (*c->ticket) return renew_ticket(c, sql);
  sqlite3_stmt *st;
  int rc = prepare(c, sql, "INSERT INTO waiters (pid, start, boot, exe, since_s) VALUES (?, ?, ?, ?, ?)", &st);
  if (rc) return rc;
  bind_ident(c, st, 1, &c->row->owner);
  sqlite3_bind_int64(st, 5, now_ms() / 1000);
  if ((rc = run_to_end(c, sql, st, "join the queue"))) return rc;
  *c->ticket = sqlite3_last_insert_rowid(sql);
  return 0;
}

/* Counts the open lanes and lists their names. */
static int
count_open(call_t *c, sqlite3 *sql, int *open) {
  sqlite3_stmt *st;
  int rc = prepare(c, sql, "SELECT name, state, owner_pid FROM lanes WHERE state <> 'closed' ORDER BY id", &st);
  if (rc) return rc;
  size_t used = 0;
  c->holders[0] = '\0';
  *open = 0;
  while ((rc = sqlite3_step(st)) == SQLITE_ROW) {
    ++*open;
    int n = snprintf(c->holders + used, c->holders_cap - used, "%s%s (%s, process %lld)", used ? ", " : "",
      column(st, 0), column(st, 1), (long long) sqlite3_column_int64(st, 2));
    if (n > 0 && (size_t) n < c->holders_cap - used) used += (size_t) n;
    else c->holders[used] = '\0';
  }
  sqlite3_finalize(st);
  return rc == SQLITE_DONE ? 0 : al_db_error(sql, rc, "count lanes", &c->job.err);
}

static int
insert_lane(call_t *c, sqlite3 *sql) {
  const al_lane_row_t *row = c->row;
  sqlite3_stmt *st;
  int rc = prepare(c, sql,
    "INSERT INTO lanes (name, state, owner_pid, owner_start, owner_boot, owner_exe, owner_env, created_s, expires_s,"
    " expires_boot_ms, cpus, memory_mib, disk_gib, image, network, accel)"
    " VALUES (?, 'registered', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    &st);
  if (rc) return rc;
  sqlite3_bind_text(st, 1, row->name, -1, SQLITE_STATIC);
  bind_ident(c, st, 2, &row->owner);
  sqlite3_bind_text(st, 6, row->owner_env, -1, SQLITE_STATIC);
  sqlite3_bind_int64(st, 7, row->created_s);
  sqlite3_bind_int64(st, 8, row->expires_s);
  sqlite3_bind_int64(st, 9, row->expires_boot_ms);
  sqlite3_bind_int(st, 10, row->cpus);
  sqlite3_bind_int64(st, 11, row->memory_mib);
  sqlite3_bind_int64(st, 12, row->disk_gib);
  sqlite3_bind_text(st, 13, row->image, -1, SQLITE_STATIC);
  sqlite3_bind_text(st, 14, row->network, -1, SQLITE_STATIC);
  sqlite3_bind_text(st, 15, row->accel, -1, SQLITE_STATIC);
  if ((rc = run_to_end(c, sql, st, "register the lane"))) return rc;
  c->row->id = sqlite3_last_insert_rowid(sql);
  c->row->state = AL_LANE_REGISTERED;
  return add_history(c, sql, c->row->id, "", "registered", "");
}

static int
run_admit(al_db_job_t *job, sqlite3 *sql) {
  call_t *c = job->data;
  bool older;
  int open, rc;
  if ((rc = take_ticket(c, sql)) || (rc = older_waiter(c, sql, &older)) || (rc = count_open(c, sql, &open))) return rc;
  if (older || open >= c->max) {
    c->outcome = 1;
    return 0;
  }
  sqlite3_stmt *st;
  if ((rc = insert_lane(c, sql)) || (rc = prepare(c, sql, "DELETE FROM waiters WHERE ticket = ?", &st))) return rc;
  sqlite3_bind_int64(st, 1, *c->ticket);
  return run_to_end(c, sql, st, "leave the queue");
}

static void
refuse_no_memory(al_registry_cb cb, void *data) {
  al_err_t err = { 0 };
  al_err_set(&err, -ENOMEM, "out of memory");
  if (cb) cb(data, -ENOMEM, &err);
}

void
al_registry_admit(al_registry_t *r, al_lane_row_t *row, int max, int64_t *ticket, char *holders, size_t cap,
  al_registry_cb cb, void *data) {
  call_t *c = new_call(r, cb, data);
  if (!c) {
    refuse_no_memory(cb, data);
    return;
  }
  c->row = row;
  c->max = max;
  c->ticket = ticket;
  c->holders = holders;
  c->holders_cap = cap;
  al_db_run(r->db, &c->job, run_admit, answer);
}

static int
run_leave(al_db_job_t *job, sqlite3 *sql) {
  call_t *c = job->data;
  sqlite3_stmt *st;
  int rc = prepare(c, sql, "DELETE FROM waiters WHERE ticket = ?", &st);
  if (rc) return rc;
  sqlite3_bind_int64(st, 1, c->id);
  return run_to_end(c, sql, st, "leave the queue");
}

void
al_registry_leave(al_registry_t *r, int64_t ticket) {
  call_t *c = ticket ? new_call(r, NULL, NULL) : NULL;
  if (!c) return; /* a ticket that stays is dropped with its process */
  c->id = ticket;
  al_db_run(r->db, &c->job, run_leave, answer);
}

static int
read_state(call_t *c, sqlite3 *sql, int *state) {
  sqlite3_stmt *st;
  int rc = prepare(c, sql, "SELECT state FROM lanes WHERE id = ?", &st);
  if (rc) return rc;
  sqlite3_bind_int64(st, 1, c->id);
  rc = sqlite3_step(st);
  *state = rc == SQLITE_ROW ? al_lane_state_from_name(column(st, 0)) : -1;
  int end = sqlite3_finalize(st); /* of a column that could not be read */
  if (rc == SQLITE_ROW && end) rc = end;
  if (rc == SQLITE_DONE)
    return al_err_set(&c->job.err, AL_ENO_SUCH_LANE, "lane %" PRId64 " is not in the registry", c->id);
  return rc == SQLITE_ROW ? 0 : al_db_error(sql, rc, "read a lane", &c->job.err);
}

static int
write_state(call_t *c, sqlite3 *sql, int from, int to) {
  sqlite3_stmt *st;
  int rc =
    prepare(c, sql, "UPDATE lanes SET state = ?, reason = CASE WHEN ? = '' THEN reason ELSE ? END WHERE id = ?", &st);
  if (rc) return rc;
  sqlite3_bind_text(st, 1, al_lane_state_name(to), -1, SQLITE_STATIC);
  sqlite3_bind_text(st, 2, c->reason, -1, SQLITE_STATIC);
  sqlite3_bind_text(st, 3, c->reason, -1, SQLITE_STATIC);
  sqlite3_bind_int64(st, 4, c->id);
  if ((rc = run_to_end(c, sql, st, "write a lane's state"))) return rc;
  return add_history(c, sql, c->id, al_lane_state_name(from), al_lane_state_name(to), c->reason);
}

static int
run_move(al_db_job_t *job, sqlite3 *sql) {
  call_t *c = job->data;
  int state, rc;
  if ((rc = read_state(c, sql, &state))) return rc;
  if (state >= AL_LANE_CLOSING && c->from < AL_LANE_CLOSING)
    return al_err_set(
      &job->err, AL_ELANE_CLOSED, "another process has ended the lane, as `agent-lane reap --force` does");
  if (state != c->from)
    return al_err_set(&job->err, AL_EINTERNAL, "lane %" PRId64 " is %s in the registry, not %s", c->id,
      al_lane_state_name(state), al_lane_state_name(c->from));
  return write_state(c, sql, c->from, c->to);
}

static int
run_claim(al_db_job_t *job, sqlite3 *sql) {
  call_t *c = job->data;
  int state, rc;
  if ((rc = read_state(c, sql, &state))) return rc;
  if (state == AL_LANE_CLOSED) return al_err_set(&job->err, AL_ELANE_CLOSED, "the lane is already closed");
  return state == AL_LANE_CLOSING ? 0 : write_state(c, sql, state, AL_LANE_CLOSING);
}

static void
start_move(al_registry_t *r, int64_t id, int from, int to, const char *reason, al_registry_cb cb, void *data,
  int (*run)(al_db_job_t *, sqlite3 *)) {
  call_t *c = new_call(r, cb, data);
  if (!c) {
    refuse_no_memory(cb, data);
    return;
  }
  c->id = id;
  c->from = from;
  c->to = to;
  copy_text(c->reason, sizeof c->reason, reason);
  al_db_run(r->db, &c->job, run, answer);
}

void
al_registry_move(al_registry_t *r, int64_t id, int from, int to, const char *reason, al_registry_cb cb, void *data) {
  start_move(r, id, from, to, reason, cb, data, run_move);
}

void
al_registry_claim_close(al_registry_t *r, int64_t id, const char *reason, al_registry_cb cb, void *data) {
  start_move(r, id, 0, AL_LANE_CLOSING, reason, cb, data, run_claim);
}

static int
run_list(al_db_job_t *job, sqlite3 *sql) {
  call_t *c = job->data;
  sqlite3_stmt *st;
  int rc = prepare(c, sql,
    c->all ? "SELECT " LANE_COLUMNS " FROM lanes ORDER BY id DESC LIMIT 1000"
           : "SELECT " LANE_COLUMNS " FROM lanes WHERE state <> 'closed' ORDER BY id DESC",
    &st);
  if (rc) return rc;
  while ((rc = sqlite3_step(st)) == SQLITE_ROW) {
    al_lane_row_t *rows = al_reallocarray(c->rows, c->count + 1, sizeof *rows);
    if (!rows) {
      sqlite3_finalize(st);
      return al_err_set(&job->err, -ENOMEM, "out of memory");
    }
    c->rows = rows;
    read_row(st, &rows[c->count++]);
  }
  sqlite3_finalize(st);
  return rc == SQLITE_DONE ? 0 : al_db_error(sql, rc, "list lanes", &job->err);
}

static void
answer_list(al_db_job_t *job, int status) {
  call_t *c = job->data;
  if (status < 0 && !job->err.code) al_err_set(&job->err, status, "the registry job did not run");
  c->list_cb(c->data, status, &job->err, c->rows, status ? 0 : c->count);
  al_free(c->rows);
  al_free(c);
}

void
al_registry_list(al_registry_t *r, bool all, al_registry_list_cb cb, void *data) {
  call_t *c = new_call(r, NULL, data);
  if (!c) {
    al_err_t err = { 0 };
    al_err_set(&err, -ENOMEM, "out of memory");
    cb(data, -ENOMEM, &err, NULL, 0);
    return;
  }
  c->all = all;
  c->list_cb = cb;
  al_db_run(r->db, &c->job, run_list, answer_list);
}
