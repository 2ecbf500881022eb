/* SPDX-License-Identifier: Apache-2.0 */
/* Registry: the only SQL text about lanes. Rows are written before anything is created and closed only after the proof
 * of the end. */
#ifndef AL_REGISTRY_H
#define AL_REGISTRY_H

#include "db.h"
#include "home.h"
#include "lane.h"
#include "names.h"
#include "platform.h"

typedef struct al_lane_row_s {
  int64_t id;
  char name[AL_NAME_LEN + 1];
  int state;                 /* AL_LANE_* */
  al_ident_t owner;
  char owner_env[33];        /* hex id of the Node environment */
  int64_t created_s, expires_s; /* unix seconds, for people */
  int64_t expires_boot_ms;   /* boot time of `owner.boot`: decides */
  int cpus;
  int64_t memory_mib, disk_gib;
  char image[72], network[8], accel[8], reason[256];
  al_ident_t keeper;         /* pid 0: none is known */
  int tries;                 /* of sweeps to end it while it is stuck */
  int64_t retry_s;           /* unix seconds: no sweep tries again before */
  int64_t orphan_boot_ms;    /* when a sweep first saw that only the keeper lives; 0: none has */
} al_lane_row_t;

typedef struct al_registry_s {
  al_db_t *db;
} al_registry_t;

int
al_registry_open(uv_loop_t *loop, const char *path, al_registry_t *r, al_err_t *err);
void
al_registry_close(al_registry_t *r, void (*cb)(void *data), void *data);

/* What people should hear once, such as that it was damaged and where the old one is. */
bool
al_registry_notice(al_registry_t *r, char out[AL_DB_NOTICE_MAX]);

typedef void (*al_registry_cb)(void *data, int status, const al_err_t *err);

/* One try to take a place: the row (name, owner, expiry … filled in by the caller) is inserted as REGISTERED and
 * row->id set when fewer than `max` lanes are open and no older waiter lives; else the ticket stays in the queue
 * and status is 1 with `queue` filled. queue->ticket is 0 at first. Waiters whose process is gone, or that have not
 * asked for a minute, are dropped. Call again every 250 ms; al_registry_leave when giving up. `row` and `queue` stay
 * valid until cb. */
typedef struct al_queue_s {
  int64_t ticket;
  int position, of;   /* 1 = next; how many wait */
  char holders[1024]; /* the open lanes, comma-separated */
} al_queue_t;
void
al_registry_admit(al_registry_t *r, al_lane_row_t *row, int max, al_queue_t *queue, al_registry_cb cb, void *data);
void
al_registry_leave(al_registry_t *r, int64_t ticket);
/* Compare-and-set of the state, in one transaction with a history line. AL_EINTERNAL when the row is not in `from`,
 * AL_ELANE_CLOSED when another process ends the lane. `reason` may be NULL. */
void
al_registry_move(al_registry_t *r, int64_t id, int from, int to, const char *reason, al_registry_cb cb, void *data);
/* Any open state -> CLOSING; 0 also when it was CLOSING or STUCK; AL_ELANE_CLOSED when CLOSED. */
void
al_registry_claim_close(al_registry_t *r, int64_t id, const char *reason, al_registry_cb cb, void *data);
/* Closes the rows of lanes that are proven gone, in one transaction, each by way of CLOSING; those that are closed
 * already, or not there, stay as they are. The texts live until cb. */
typedef struct al_registry_end_s {
  int64_t id;
  const char *reason;
} al_registry_end_t;
void
al_registry_close_gone(
  al_registry_t *r, const al_registry_end_t *ends, size_t count, al_registry_cb cb, void *data);
/* Rows, newest first; open ones only unless `all`. The list is the callback's: valid during it. */
typedef void (*al_registry_list_cb)(
  void *data, int status, const al_err_t *err, const al_lane_row_t *rows, size_t count);
void
al_registry_list(al_registry_t *r, bool all, al_registry_list_cb cb, void *data);
/* The row of that name, open or closed; none (count 0) when there is no such lane. */
void
al_registry_find(al_registry_t *r, const char *name, al_registry_list_cb cb, void *data);
/* Which process outlives the owner for this lane. AL_ENO_SUCH_LANE when it is not open. `keeper` is copied. */
void
al_registry_set_keeper(al_registry_t *r, int64_t id, const al_ident_t *keeper, al_registry_cb cb, void *data);
/* A sweep has seen that the owner is gone and the keeper alone has the lane. */
void
al_registry_note_orphan(al_registry_t *r, int64_t id, int64_t boot_ms);

/* registry_history.c: what has become of a lane, closed or not, oldest first; of very many lines the newest 1,000. The
 * list is the callback's. AL_ENO_SUCH_LANE. */
typedef struct al_history_s {
  int64_t at_ms; /* unix time */
  int from, to;  /* AL_LANE_*; from -1: the row was made */
  char reason[256];
} al_history_t;
typedef void (*al_history_cb)(
  void *data, int status, const al_err_t *err, const al_history_t *rows, size_t count);
void
al_registry_history(al_registry_t *r, const char *name, al_history_cb cb, void *data);

/* registry_watch.c: which of these lanes (row ids, copied) are closing or closed: for an owner, whom another process may
 * have overruled. Only those are listed; of a row just id and reason are filled in. */
void
al_registry_watch(al_registry_t *r, const int64_t *ids, size_t count, al_registry_list_cb cb, void *data);
/* Changes of state of all lanes after the one with number `after`, oldest first, at most `max` (<= 1000). `after` -1:
 * none, only `last`, the newest number there is. The list is the callback's. */
typedef struct al_change_s {
  int64_t number, at_ms;
  char name[AL_NAME_LEN + 1];
  int from, to; /* AL_LANE_*; from -1: the row was made */
  char reason[256];
} al_change_t;
typedef void (*al_changes_cb)(
  void *data, int status, const al_err_t *err, int64_t last, const al_change_t *rows, size_t count);
void
al_registry_changes(al_registry_t *r, int64_t after, int max, al_changes_cb cb, void *data);

/* registry_lease.c. `env`: which engine of that process. take: 0 = held for `seconds` from now (also when it was held
 * by the same already), 1 = a living process has it. renew: 0, or 1 = it was lost meanwhile. The lease of a process
 * that is gone is free at once. `name` is at most 23 characters; all are copied. */
void
al_registry_lease_take(al_registry_t *r, const char *name, const al_ident_t *holder, const char *env, int seconds,
  al_registry_cb cb, void *data);
void
al_registry_lease_renew(al_registry_t *r, const char *name, const al_ident_t *holder, const char *env, int seconds,
  al_registry_cb cb, void *data);
/* Nothing happens to one that is not held. `cb` may be NULL. */
void
al_registry_lease_release(al_registry_t *r, const char *name, const al_ident_t *holder, const char *env,
  al_registry_cb cb, void *data);

/* registry_adopt.c: rows for lane directories that carry our sealed record and have no open row, with owner and expiry
 * as in the record; `status` is how many. A row that was closed is in CLOSING then. */
void
al_registry_adopt(al_registry_t *r, const al_home_t *home, al_registry_cb cb, void *data);

/* Lane directories of the home that no open row knows, as a list of names: what is left when a registry was lost.
 * Reads only, on any thread that may block. Fails as al_db_look does; without a registry every directory is one. */
int
al_registry_strays(const al_home_t *home, al_val_t **out, al_err_t *err);
/* Lanes whose end could not be proven, as a list of {name, reason}. Reads only, on any thread that may block. */
int
al_registry_stuck(const al_home_t *home, al_val_t **out, al_err_t *err);

#endif
