/* SPDX-License-Identifier: Apache-2.0 */
/* Reaper: one sweep of a home: takes over lost lanes, ends those that nobody owns, tidies up what is left. */
#include "lane_life.h"
#include "mem.h"
#include "sweep.h"
#include <stdio.h>
#include <string.h>
#include <time.h>

/* Theory of operation. A sweep is a chain of steps on the loop, each of which ends in the next: lease, look (worker),
 * adopt, list, the dead, the other victims, tidy (worker), strays, answer. The lease keeps two from doing the same work;
 * nothing is wrong when they do (a row is claimed by compare-and-set, the end of a lane may be run twice).
 * The look comes before the list: what it saw and the list does not know has no row. Victims whose owner is gone and
 * that have no process any more end many at a time (sweep_dead.c), all others one by one, a few side by side
 * (lane_evict.c). Every row is closed only after the proof.
 *
 * A site runs one sweep at a time. A silent one that comes meanwhile is content with the one that runs, or, when that
 * only waits for another process, with the sweep of that process; a request waits for its turn. */

#define LEASE "sweep"
#define LEASE_S 40       /* longer than any one end takes */
#define RENEW_MS 10000
#define LEASE_POLL_MS 50
#define LEASE_WAIT_MS 60000 /* of a request, for the sweep of another process */
#define RELEASE_MS 5000
#define WIDTH 4

typedef struct victim_s {
  al_lane_row_t row;
  char reason[128];
  bool alone;   /* its owner is gone: nobody begins anything for it */
  bool foreign; /* it may have an owner that lives, elsewhere: that one hears of it first */
  bool over;
} victim_t;

typedef struct reap_s reap_t;

typedef struct slot_s {
  reap_t *r;
  const victim_t *v;
  bool busy;
} slot_t;

struct reap_s {
  al_site_t *site;
  al_driver_t *driver;
  bool force, dry;
  bool leased, lost;       /* lost: another process has taken it over */
  uint64_t begun_ms, renewed_ms, release_until_ms;
  uv_timer_t timer;
  al_sweep_look_t look;    /* before the list of rows */
  al_lane_row_t *rows;     /* open ones when they were listed */
  size_t row_count;
  bool booting;            /* one that is kept may be starting */
  victim_t *victims;
  size_t count, at;
  al_sweep_corpse_t *dead; /* victims that may be dead already: they come first */
  size_t dead_count;
  bool dead_over;
  slot_t slots[WIDTH];
  int running;
  bool ended;              /* of the victims */
  al_err_t err;
  al_sweep_report_t report;
  al_job_t job;
  uint32_t id;
  void (*cb)(void *data);
  void *data;
  reap_t *next;            /* waits behind the one that runs */
};

static void
queue(reap_t *r);
static void
next_victims(reap_t *r);

static void
note(reap_t *r, al_val_t *list, const char *name, const char *reason, int ok, const char *message) {
  al_sweep_report_note(&r->report, list, name, reason, ok, message);
}

static void
answer(reap_t *r) {
  al_engine_t *e = r->site->engine;
  char text[AL_DB_NOTICE_MAX];
  int rc = 0;
  if (r->cb) {
    r->cb(r->data);
  } else if (r->err.code) {
    al_engine_fail(e, r->id, &r->err);
  } else {
    if (al_registry_notice(&r->site->registry, text)) rc = al_val_add(r->report.notices, al_val_text(text));
    r->report.rc |= rc;
    al_val_t *v = al_sweep_report_take(&r->report, &rc);
    al_engine_answer(e, r->id, "reap", v, rc);
  }
}

static void
reap_free(reap_t *r) {
  al_sweep_look_free(&r->look);
  al_free(r->dead);
  al_sweep_report_free(&r->report);
  al_free(r->rows);
  al_free(r->victims);
  al_free(r);
}

/* ---- its end, and the next one ---- */

static void
timer_closed(uv_handle_t *h) {
  reap_t *r = h->data, *next = r->next;
  al_site_t *site = r->site;
  al_engine_t *e = site->engine;
  site->sweep = NULL;
  answer(r);
  reap_free(r);
  while (next && next->cb) {
    reap_t *silent = next;
    next = silent->next;
    silent->cb(silent->data);
    al_free(silent);
    e->busy--;
  }
  if (next) queue(next);
  e->busy--;
  al_engine_check_end(e);
}

static void
release(uv_timer_t *timer);

/* What could not be written for a moment is tried again; in the end a lease goes with its time, or with its process. */
static void
released(void *data, int status, const al_err_t *err) {
  reap_t *r = data;
  (void) err;
  if (status < 0 && al_plat_mono_ms() < r->release_until_ms && !r->site->engine->refuse)
    uv_timer_start(&r->timer, release, LEASE_POLL_MS, 0);
  else uv_close((uv_handle_t *) &r->timer, timer_closed);
}

static void
release(uv_timer_t *timer) {
  reap_t *r = timer->data;
  al_engine_t *e = r->site->engine;
  al_registry_lease_release(&r->site->registry, LEASE, &e->self, e->env_id, released, r);
}

static void
end(reap_t *r) {
  r->release_until_ms = al_plat_mono_ms() + RELEASE_MS;
  if (r->leased) release(&r->timer);
  else released(r, 0, NULL);
}

/* ---- what is left ---- */

static int
find_strays(al_job_t *job) {
  reap_t *r = job->data;
  return al_registry_strays(&r->site->home, &r->report.strays, &r->err);
}

static void
found_strays(al_job_t *job, int status) {
  reap_t *r = job->data;
  if (status < 0 && !r->err.code) al_err_set(&r->err, status, "lane directories without a row could not be looked for");
  end(r);
}

/* People are told of what no row leads to, since nothing else here would ever find it. */
static void
tell_strays(reap_t *r) {
  if (r->cb || r->err.code) end(r);
  else al_worker_post(r->site->store, &r->job, find_strays, found_strays);
}

static int
tidy(al_job_t *job) {
  reap_t *r = job->data;
  al_sweep_open_t open = {.rows = r->rows, .count = r->row_count, .booting = r->booting};
  return al_sweep_tidy(&r->site->home, &r->look, &open, r->report.removed);
}

static void
tidied(al_job_t *job, int status) {
  reap_t *r = job->data;
  if (status == -ENOMEM) r->report.rc = status;
  tell_strays(r);
}

static void
victims_over(reap_t *r) {
  if (r->dry || r->lost || r->err.code || r->site->engine->refuse) tell_strays(r);
  else al_worker_post(r->site->io, &r->job, tidy, tidied);
}

/* ---- one victim ---- */

static void
slot_over(slot_t *s) {
  reap_t *r = s->r;
  s->busy = false;
  r->running--;
  next_victims(r);
}

/* Somebody else was quicker: then it is not ours to tell. */
static void
evicted(void *data, int status, const al_err_t *err, const char *by) {
  slot_t *s = data;
  reap_t *r = s->r;
  if (status < 0 || strcmp(by, AL_EVICTED_BY_ANOTHER))
    note(r, r->report.reaped, s->v->row.name, s->v->reason, status == 0, status ? err->msg : NULL);
  slot_over(s);
}

static void
start_victim(slot_t *s, const victim_t *v) {
  reap_t *r = s->r;
  s->v = v;
  s->busy = true;
  r->running++;
  al_evict(r->site, r->driver, &v->row, "sweep", v->reason, v->foreign, evicted, s);
}

/* True when that was all there is to do about it. */
static bool
spared(reap_t *r, const victim_t *v) {
  if (v->over) return true;
  if (r->dry) {
    note(r, r->report.reaped, v->row.name, v->reason, -1, NULL);
    return true;
  }
  al_lane_t *own = al_lane_find(r->site->engine, v->row.name); /* it ends by its own machine, once */
  if (!own || own->state == AL_LANE_STUCK) return false;
  al_err_t why = { 0 };
  al_err_set(&why, AL_ELANE_CLOSED, "the lane was reaped: %s", v->reason);
  al_lane_event(own, AL_LANE_ON_CLOSE, &why, v->reason);
  note(r, r->report.reaped, v->row.name, v->reason, 1, NULL);
  return true;
}

static void
renewed(void *data, int status, const al_err_t *err) {
  reap_t *r = data;
  (void) err;
  if (status == 1) r->lost = true; /* this process stood still; another one goes on */
  r->running--;
  if (r->dead_over) next_victims(r);
}

static void
renew(reap_t *r) {
  al_engine_t *e = r->site->engine;
  uint64_t now = al_plat_mono_ms();
  if (!r->leased || now - r->renewed_ms <= RENEW_MS) return;
  r->renewed_ms = now;
  r->running++;
  al_registry_lease_renew(&r->site->registry, LEASE, &e->self, e->env_id, LEASE_S, renewed, r);
}

static void
next_victims(reap_t *r) {
  renew(r);
  if (r->lost || r->site->engine->refuse) r->at = r->count;
  for (size_t i = 0; i < WIDTH; i++) {
    while (!r->slots[i].busy && r->at < r->count) {
      const victim_t *v = &r->victims[r->at++];
      if (!spared(r, v)) start_victim(&r->slots[i], v);
    }
  }
  if (r->running || r->at < r->count || r->ended) return;
  r->ended = true; /* without memory an answer comes at once, from inside of this */
  victims_over(r);
}

/* ---- those that are dead already ---- */

static bool
may_go_on(void *data) {
  reap_t *r = data;
  renew(r);
  return !r->lost && !r->site->engine->refuse;
}

static void
dead_over(void *data) {
  reap_t *r = data;
  for (size_t i = 0; i < r->dead_count; i++) {
    victim_t *v = &r->victims[r->dead[i].index];
    v->over = r->dead[i].gone;
    if (v->over) note(r, r->report.reaped, v->row.name, v->reason, 1, NULL);
  }
  r->dead_over = true;
  next_victims(r);
}

static void
end_dead(reap_t *r) {
  r->dead = r->count && !r->dry ? al_calloc(r->count, sizeof *r->dead) : NULL; /* without memory all end one by one */
  for (size_t i = 0; r->dead && i < r->count; i++) {
    const victim_t *v = &r->victims[i];
    if (v->alone)
      r->dead[r->dead_count++] =
        (al_sweep_corpse_t) {.name = v->row.name, .reason = v->reason, .id = v->row.id, .index = i};
  }
  al_sweep_dead_t how = {.home = &r->site->home, .registry = &r->site->registry, .io = r->site->io, .list = r->dead,
    .count = r->dead_count, .go_on = may_go_on, .cb = dead_over, .data = r};
  al_sweep_dead(&how);
}

/* ---- who they are ---- */

/* A row of this very engine without a lane: its end could not be written, since the disk was full or the like. */
static bool
is_forgotten(const reap_t *r, const al_lane_row_t *row) {
  const al_engine_t *e = r->site->engine;
  if (strcmp(row->owner_env, e->env_id)) return false;
  for (const al_lane_t *l = e->lanes; l; l = l->next)
    if (!l->finished && strcmp(l->spec.name, row->name) == 0) return false;
  return true;
}

static void
judge(reap_t *r, const al_lane_row_t *row) {
  al_sweep_rules_t rules = {.boot_ms = al_plat_boot_ms(), .now_s = time(NULL), .force = r->force, .patient = r->cb};
  const char *why = "";
  bool forgotten = is_forgotten(r, row);
  al_sweep_verdict_t verdict = al_sweep_judge(&rules, row, forgotten, &why);
  if (verdict == AL_SWEEP_END) {
    victim_t *v = &r->victims[r->count++];
    v->row = *row;
    v->alone = al_plat_ident_alive(&row->owner) == 0;
    v->foreign = !v->alone && !forgotten;
    snprintf(v->reason, sizeof v->reason, "%s", why);
    return;
  }
  r->booting |= row->state < AL_LANE_READY;
  note(r, r->report.kept, row->name, why, -1, row->state == AL_LANE_STUCK ? row->reason : NULL);
  if (verdict == AL_SWEEP_ORPHAN && !r->dry)
    al_registry_note_orphan(&r->site->registry, row->id, (int64_t) rules.boot_ms);
}

static int
look(al_job_t *job) {
  reap_t *r = job->data;
  return al_sweep_look(&r->site->home, &r->look);
}

static void
listed(void *data, int status, const al_err_t *err, const al_lane_row_t *rows, size_t count) {
  reap_t *r = data;
  if (status < 0) r->err = *err;
  r->victims = count ? al_calloc(count, sizeof *r->victims) : NULL;
  r->rows = count ? al_calloc(count, sizeof *r->rows) : NULL;
  if (count && (!r->victims || !r->rows)) al_err_set(&r->err, -ENOMEM, "out of memory");
  if (!r->err.code && count) memcpy(r->rows, rows, count * sizeof *rows);
  for (size_t i = 0; i < count && !r->err.code; i++) {
    r->row_count = i + 1;
    judge(r, &rows[i]);
  }
  end_dead(r);
}

static void
adopted(void *data, int status, const al_err_t *err) {
  reap_t *r = data;
  (void) status; /* a directory that cannot be read stays a stray, which is told */
  (void) err;
  al_registry_list(&r->site->registry, false, listed, r);
}

static void
looked(al_job_t *job, int status) {
  reap_t *r = job->data;
  if (status < 0) {
    al_err_set(&r->err, status, "the home could not be looked at");
    end(r);
  } else if (r->dry) {
    al_registry_list(&r->site->registry, false, listed, r);
  } else {
    al_registry_adopt(&r->site->registry, &r->site->home, adopted, r);
  }
}

/* ---- the lease ---- */

static void
take_lease(uv_timer_t *timer);

static void
leased(void *data, int status, const al_err_t *err) {
  reap_t *r = data;
  if (status == 0) {
    r->leased = true;
    r->renewed_ms = al_plat_mono_ms();
    al_worker_post(r->site->io, &r->job, look, looked);
    return;
  }
  if (status < 0) r->err = *err;
  bool wait = status == 1 && !r->cb && !r->site->engine->refuse && al_plat_mono_ms() - r->begun_ms < LEASE_WAIT_MS;
  if (wait) {
    uv_timer_start(&r->timer, take_lease, LEASE_POLL_MS, 0);
    return;
  }
  if (status == 1 && !r->cb) al_err_set(&r->err, AL_EBUSY, "another process is sweeping this home");
  end(r); /* a silent one is content with the sweep of that process */
}

static void
take_lease(uv_timer_t *timer) {
  reap_t *r = timer->data;
  al_engine_t *e = r->site->engine;
  al_registry_lease_take(&r->site->registry, LEASE, &e->self, e->env_id, LEASE_S, leased, r);
}

static void
begin(reap_t *r) {
  r->site->sweep = r;
  r->begun_ms = al_plat_mono_ms();
  r->job.data = r;
  for (size_t i = 0; i < WIDTH; i++) r->slots[i].r = r;
  uv_timer_init(&r->site->engine->loop, &r->timer);
  r->timer.data = r;
  if (r->dry) al_worker_post(r->site->io, &r->job, look, looked);
  else take_lease(&r->timer);
}

/* `r` may have others behind it. */
static void
queue(reap_t *r) {
  reap_t *running = r->site->sweep;
  if (!running) {
    begin(r);
    return;
  }
  while (running->next) running = running->next;
  running->next = r;
}

static void
start(reap_t *r) {
  r->site->engine->busy++;
  queue(r);
}

void
al_reaper_sweep(al_site_t *site, al_driver_t *driver, void (*cb)(void *data), void *data) {
  reap_t *r = al_calloc(1, sizeof *r);
  if (!r) {
    cb(data); /* no sweep this time; the next create tries again */
    return;
  }
  *r = (reap_t) { .site = site, .driver = driver, .cb = cb, .data = data };
  reap_t *running = site->sweep;
  if (!running) {
    start(r);
  } else if (running->leased) { /* told when it is over, before requests that wait for their turn */
    r->next = running->next;
    running->next = r;
    site->engine->busy++;
  } else {
    al_free(r);
    cb(data);
  }
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
  if (!rc && al_sweep_report_init(&r->report)) rc = al_err_set(&err, -ENOMEM, "out of memory");
  if (!rc) {
    start(r);
    return;
  }
  if (r) al_sweep_report_free(&r->report);
  al_free(r);
  al_engine_fail(e, req->id, &err);
}
