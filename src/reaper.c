/* SPDX-License-Identifier: Apache-2.0 */
/* Reaper: ends registered lanes whose owner is gone or whose time is over. Only rows of the registry, one validated
 * name at a time. */
#include "lane_life.h"
#include "mem.h"
#include <stdio.h>
#include <string.h>

#define EXPIRY_GRACE_MS 30000 /* a living owner ends its own lanes; only well past that time others do */

typedef struct victim_s {
  al_lane_row_t row;
  char reason[128];
} victim_t;

typedef struct reap_s {
  al_site_t *site;
  al_driver_t *driver;
  bool force, dry;
  victim_t *victims;
  size_t count, at;
  al_err_t err;
  al_val_t *reaped, *kept, *strays; /* NULL for the silent sweep */
  al_job_t job;
  int report;              /* -ENOMEM: they are not whole */
  uint32_t id;
  void (*cb)(void *data);
  void *data;
} reap_t;

static void
next_victim(reap_t *r);

/* A row of this very engine without a lane: its end could not be written, since the disk was full or the like. */
static bool
is_forgotten(const reap_t *r, const al_lane_row_t *row) {
  const al_engine_t *e = r->site->engine;
  if (strcmp(row->owner_env, e->env_id)) return false;
  for (const al_lane_t *l = e->lanes; l; l = l->next)
    if (!l->finished && strcmp(l->spec.name, row->name) == 0) return false;
  return true;
}

/* Why a row may be ended, or NULL to keep it (then *why says why). */
static const char *
verdict(const reap_t *r, const al_lane_row_t *row, const char **why) {
  int alive = al_plat_ident_alive(&row->owner);
  if (!al_name_valid(row->name)) {
    *why = "its name is not one of ours";
    return NULL;
  }
  if (alive == 0) return "its owner is gone";
  if (row->state == AL_LANE_STUCK) return "an earlier close could not be proven";
  if (alive > 0 && (int64_t) al_plat_boot_ms() > row->expires_boot_ms + EXPIRY_GRACE_MS) return "its lifetime is over";
  if (alive > 0 && is_forgotten(r, row)) return "an earlier end could not be written";
  if (r->force) return "asked for with --force";
  *why = alive > 0 ? "in use by a living process" : "its owner could not be looked at";
  return NULL;
}

static void
note(reap_t *r, al_val_t *list, const char *name, const char *reason, int ok, const char *message) {
  if (!list) return;
  al_val_t *v = al_val_map();
  int rc = al_val_set(v, "name", al_val_text(name)) | al_val_set(v, "reason", al_val_text(reason));
  if (ok >= 0) rc |= al_val_set(v, "ok", al_val_bool(ok));
  if (message && *message) rc |= al_val_set(v, "message", al_val_text(message));
  if (rc) al_val_free(v);
  else rc = al_val_add(list, v);
  if (rc) r->report = rc;
}

static void
reap_answer(reap_t *r) {
  al_engine_t *e = r->site->engine;
  e->busy--;
  if (r->cb) {
    r->cb(r->data);
  } else if (r->err.code) {
    al_val_free(r->reaped);
    al_val_free(r->kept);
    al_val_free(r->strays);
    al_engine_fail(e, r->id, &r->err);
  } else {
    al_val_t *v = al_val_map();
    int rc = al_val_set(v, "reaped", r->reaped) | al_val_set(v, "kept", r->kept) |
      al_val_set(v, "unlisted", r->strays);
    al_engine_answer(e, r->id, "reap", v, rc | r->report);
  }
  al_free(r->victims);
  al_free(r);
  al_engine_check_end(e);
}

static int
find_strays(al_job_t *job) {
  reap_t *r = job->data;
  return al_registry_strays(&r->site->home, &r->strays, &r->err);
}

static void
found_strays(al_job_t *job, int status) {
  reap_t *r = job->data;
  if (status < 0 && !r->err.code) al_err_set(&r->err, status, "lane directories without a row could not be looked for");
  reap_answer(r);
}

/* People are told of what no row leads to, since nothing else here would ever find it. */
static void
reap_end(reap_t *r) {
  if (r->cb || r->err.code) {
    reap_answer(r);
    return;
  }
  r->job.data = r;
  al_worker_post(r->site->store, &r->job, find_strays, found_strays);
}

static void
row_written(void *data, int status, const al_err_t *err) {
  reap_t *r = data;
  (void) status; /* another process may have closed the row in the same moment: the lane is gone in either case */
  (void) err;
  r->at++;
  next_victim(r);
}

static void
destroyed(void *data, int status, const al_err_t *err) {
  reap_t *r = data;
  const victim_t *v = &r->victims[r->at];
  note(r, r->reaped, v->row.name, v->reason, status == 0, status ? err->msg : NULL);
  al_registry_move(&r->site->registry, v->row.id, AL_LANE_CLOSING, status ? AL_LANE_STUCK : AL_LANE_CLOSED,
    status ? err->msg : v->reason, row_written, r);
}

static void
claimed(void *data, int status, const al_err_t *err) {
  reap_t *r = data;
  const victim_t *v = &r->victims[r->at];
  if (status == AL_ELANE_CLOSED) { /* somebody else was quicker */
    row_written(r, 0, NULL);
    return;
  }
  if (status < 0) {
    note(r, r->reaped, v->row.name, v->reason, 0, err->msg);
    row_written(r, 0, NULL);
    return;
  }
  al_lima_destroy(&r->driver->lima, v->row.name, destroyed, r);
}

static void
next_victim(reap_t *r) {
  if (r->at >= r->count) {
    reap_end(r);
    return;
  }
  const victim_t *v = &r->victims[r->at];
  if (r->dry) {
    note(r, r->reaped, v->row.name, v->reason, -1, NULL);
    r->at++;
    next_victim(r);
    return;
  }
  al_lane_t *own = al_lane_find(r->site->engine, v->row.name);
  if (own && own->state != AL_LANE_STUCK) { /* a lane of this very engine ends by its own machine, once */
    al_err_t why = { 0 };
    al_err_set(&why, AL_ELANE_CLOSED, "the lane was reaped: %s", v->reason);
    al_lane_event(own, AL_LANE_ON_CLOSE, &why, v->reason);
    note(r, r->reaped, v->row.name, v->reason, 1, NULL);
    r->at++;
    next_victim(r);
    return;
  }
  al_registry_claim_close(&r->site->registry, v->row.id, v->reason, claimed, r);
}

static void
listed(void *data, int status, const al_err_t *err, const al_lane_row_t *rows, size_t count) {
  reap_t *r = data;
  if (status < 0) r->err = *err;
  r->victims = count ? al_calloc(count, sizeof *r->victims) : NULL;
  if (count && !r->victims) al_err_set(&r->err, -ENOMEM, "out of memory");
  for (size_t i = 0; i < count && !r->err.code; i++) {
    const char *why = NULL, *reason = verdict(r, &rows[i], &why);
    if (!reason) {
      note(r, r->kept, rows[i].name, why, -1, NULL);
      continue;
    }
    r->victims[r->count].row = rows[i];
    snprintf(r->victims[r->count++].reason, sizeof r->victims->reason, "%s", reason);
  }
  next_victim(r);
}

static void
start(reap_t *r) {
  r->site->engine->busy++;
  al_registry_list(&r->site->registry, false, listed, r);
}

void
al_reaper_sweep(al_site_t *site, al_driver_t *driver, void (*cb)(void *data), void *data) {
  reap_t *r = al_calloc(1, sizeof *r);
  if (!r) {
    cb(data); /* no sweep this time; the next create tries again */
    return;
  }
  *r = (reap_t) { .site = site, .driver = driver, .cb = cb, .data = data };
  start(r);
}

void
al_do_reap(al_engine_t *e, al_request_t *req) {
  al_err_t err = { 0 };
  reap_t *r = al_calloc(1, sizeof *r);
  int rc = r ? 0 : al_err_set(&err, -ENOMEM, "out of memory");
  if (!rc) {
    r->id = req->id;
    rc = al_site_get(e, req->params, &r->site, &err);
  }
  if (!rc) rc = al_site_lima(r->site, req->params, &r->driver, &err);
  if (!rc) rc = al_val_get_bool(req->params, "force", false, &r->force, &err);
  if (!rc) rc = al_val_get_bool(req->params, "dryRun", false, &r->dry, &err);
  if (!rc && (!(r->reaped = al_val_list()) || !(r->kept = al_val_list())))
    rc = al_err_set(&err, -ENOMEM, "out of memory");
  if (!rc) {
    start(r);
    return;
  }
  if (r) {
    al_val_free(r->reaped);
    al_free(r);
  }
  al_engine_fail(e, req->id, &err);
}
