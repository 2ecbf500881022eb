/* SPDX-License-Identifier: Apache-2.0 */
/* Registry: the queue for the places of VMs, and the row that a place taken becomes. */
#include "registry_int.h"
#include "mem.h"
#include <stdio.h>

#define RENEW_S 10  /* how often a waiter says that it still asks */
#define SILENT_S 60 /* one that has not said so for longer has lost its turn */

#define DEAD_MAX 64 /* dropped at one time; the next poll goes on */

typedef struct admit_s {
  al__reg_call_t call;
  al_lane_row_t *row;
  int max;
  al_queue_t *queue;
} admit_t;

static int
delete_ticket(al_db_job_t *job, sqlite3 *sql, int64_t ticket) {
  sqlite3_stmt *st;
  int rc = al__reg_prepare(job, sql, "DELETE FROM waiters WHERE ticket = ?", &st);
  if (rc) return rc;
  sqlite3_bind_int64(st, 1, ticket);
  return al__reg_finish(job, sql, st, "leave the queue");
}

/* Whether nobody asks for it any more: the process is gone or stands still or could not write that it has left. */
static bool
is_dead(sqlite3_stmt *st) {
  al_ident_t id;
  al__reg_read_ident(st, 1, &id);
  int64_t since = al_plat_wall_ms() / 1000 - sqlite3_column_int64(st, 5);
  return since > SILENT_S || since < -SILENT_S /* the clock may have gone back */ || al_plat_ident_alive(&id) == 0;
}

/* Drops the dead, and counts who waits before us and in all. */
static int
take_position(admit_t *a, sqlite3 *sql) {
  al_db_job_t *job = &a->call.job;
  al_queue_t *q = a->queue;
  int64_t dead[DEAD_MAX];
  int count = 0;
  sqlite3_stmt *st;
  int rc =
    al__reg_prepare(job, sql, "SELECT ticket, pid, start, boot, exe, since_s FROM waiters ORDER BY ticket", &st);
  if (rc) return rc;
  q->position = 1;
  q->of = 0;
  while ((rc = sqlite3_step(st)) == SQLITE_ROW) {
    int64_t ticket = sqlite3_column_int64(st, 0);
    if (ticket != q->ticket && is_dead(st)) {
      if (count < DEAD_MAX) dead[count++] = ticket;
      continue;
    }
    q->of++;
    q->position += ticket < q->ticket;
  }
  sqlite3_finalize(st);
  if (rc != SQLITE_DONE) return al_db_error(sql, rc, "read the queue", &job->err);
  for (int i = 0; i < count; i++)
    if ((rc = delete_ticket(job, sql, dead[i]))) return rc;
  return 0;
}

/* Says that its owner still asks; not at every poll, since each time is a write to the disk. A ticket that was dropped
 * meanwhile (the machine slept, the registry was lost) comes back where it was: what it has missed is only the turns
 * that passed. */
static int
renew_ticket(admit_t *a, sqlite3 *sql) {
  al_db_job_t *job = &a->call.job;
  sqlite3_stmt *st;
  int rc = al__reg_prepare(job, sql,
    "INSERT INTO waiters (pid, start, boot, exe, since_s, ticket) VALUES (?1, ?2, ?3, ?4, ?5, ?6)"
    " ON CONFLICT (ticket) DO UPDATE SET since_s = ?5 WHERE since_s < ?5 - ?7 OR since_s > ?5",
    &st);
  if (rc) return rc;
  al__reg_bind_ident(st, 1, &a->row->owner, a->call.start);
  sqlite3_bind_int64(st, 5, al_plat_wall_ms() / 1000);
  sqlite3_bind_int64(st, 6, a->queue->ticket);
  sqlite3_bind_int(st, 7, RENEW_S);
  return al__reg_finish(job, sql, st, "stay in the queue");
}

static int
take_ticket(admit_t *a, sqlite3 *sql) {
  al_db_job_t *job = &a->call.job;
  if (a->queue->ticket) return renew_ticket(a, sql);
  sqlite3_stmt *st;
  int rc =
    al__reg_prepare(job, sql, "INSERT INTO waiters (pid, start, boot, exe, since_s) VALUES (?, ?, ?, ?, ?)", &st);
  if (rc) return rc;
  al__reg_bind_ident(st, 1, &a->row->owner, a->call.start);
  sqlite3_bind_int64(st, 5, al_plat_wall_ms() / 1000);
  if ((rc = al__reg_finish(job, sql, st, "join the queue"))) return rc;
  a->queue->ticket = sqlite3_last_insert_rowid(sql);
  return 0;
}

/* Counts the open lanes and lists their names. */
static int
count_open(admit_t *a, sqlite3 *sql, int *open) {
  al_db_job_t *job = &a->call.job;
  sqlite3_stmt *st;
  int rc = al__reg_prepare(
    job, sql, "SELECT name, state, owner_pid FROM lanes WHERE state <> 'closed' ORDER BY id", &st);
  if (rc) return rc;
  size_t used = 0, cap = sizeof a->queue->holders;
  char *holders = a->queue->holders;
  holders[0] = '\0';
  *open = 0;
  while ((rc = sqlite3_step(st)) == SQLITE_ROW) {
    ++*open;
    int n = snprintf(holders + used, cap - used, "%s%s (%s, process %lld)", used ? ", " : "", al__reg_column(st, 0),
      al__reg_column(st, 1), (long long) sqlite3_column_int64(st, 2));
    if (n > 0 && (size_t) n < cap - used) used += (size_t) n;
    else holders[used] = '\0';
  }
  sqlite3_finalize(st);
  return rc == SQLITE_DONE ? 0 : al_db_error(sql, rc, "count lanes", &job->err);
}

static int
insert_lane(admit_t *a, sqlite3 *sql) {
  al_lane_row_t *row = a->row;
  al_db_job_t *job = &a->call.job;
  sqlite3_stmt *st;
  int rc = al__reg_prepare(job, sql,
    "INSERT INTO lanes (name, state, owner_pid, owner_start, owner_boot, owner_exe, owner_env, created_s, expires_s,"
    " expires_boot_ms, cpus, memory_mib, disk_gib, image, network, accel)"
    " VALUES (?, 'registered', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    &st);
  if (rc) return rc;
  al__reg_bind_text(st, 1, row->name);
  al__reg_bind_ident(st, 2, &row->owner, a->call.start);
  al__reg_bind_text(st, 6, row->owner_env);
  sqlite3_bind_int64(st, 7, row->created_s);
  sqlite3_bind_int64(st, 8, row->expires_s);
  sqlite3_bind_int64(st, 9, row->expires_boot_ms);
  sqlite3_bind_int(st, 10, row->cpus);
  sqlite3_bind_int64(st, 11, row->memory_mib);
  sqlite3_bind_int64(st, 12, row->disk_gib);
  al__reg_bind_text(st, 13, row->image);
  al__reg_bind_text(st, 14, row->network);
  al__reg_bind_text(st, 15, row->accel);
  if ((rc = al__reg_finish(job, sql, st, "register the lane"))) return rc;
  row->id = sqlite3_last_insert_rowid(sql);
  row->state = AL_LANE_REGISTERED;
  return al__reg_add_history(job, sql, row->id, "", "registered", "");
}

static int
run_admit(al_db_job_t *job, sqlite3 *sql) {
  admit_t *a = job->data;
  int open, rc;
  if ((rc = take_ticket(a, sql)) || (rc = take_position(a, sql)) || (rc = count_open(a, sql, &open))) return rc;
  a->call.outcome = a->queue->position > 1 || open >= a->max;
  if (a->call.outcome) return 0;
  if ((rc = insert_lane(a, sql))) return rc;
  return delete_ticket(job, sql, a->queue->ticket);
}

void
al_registry_admit(al_registry_t *r, al_lane_row_t *row, int max, al_queue_t *queue, al_registry_cb cb, void *data) {
  admit_t *a = al__reg_call(sizeof *a, cb, data);
  if (!a) return;
  a->row = row;
  a->max = max;
  a->queue = queue;
  al__reg_run(r, &a->call, run_admit);
}

typedef struct leave_s {
  al__reg_call_t call;
  int64_t ticket;
} leave_t;

static int
run_leave(al_db_job_t *job, sqlite3 *sql) {
  leave_t *l = job->data;
  return delete_ticket(job, sql, l->ticket);
}

void
al_registry_leave(al_registry_t *r, int64_t ticket) {
  leave_t *l = ticket ? al__reg_call(sizeof *l, NULL, NULL) : NULL;
  if (!l) return; /* a ticket that stays is dropped with its process */
  l->ticket = ticket;
  al__reg_run(r, &l->call, run_leave);
}
