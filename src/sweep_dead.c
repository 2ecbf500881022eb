/* SPDX-License-Identifier: Apache-2.0 */
/* Sweep: ends lanes that are dead already, many at a time. */
#include "sweep.h"
#include "mem.h"
#include "run_log.h"
#include "teardown.h"
#include <string.h>
#include <unistd.h>

/* Theory of operation. Of a lane whose owner is gone, and of which a look that came after that has found no process,
 * there is at most a directory: nobody begins anything for it any more. So nothing of it has to be waited for: one job
 * removes many directories, then one transaction closes the rows of those that are proven gone, and the disk is waited
 * for once, not for each. Whatever cannot be removed so is left to the whole routine, which says why. What a look has
 * seen is not relied on for long: before each batch there is a new one, when the last is a second old. */

#define BATCH 64
#define LOOK_MS 1000

typedef struct dead_s {
  al_job_t job;
  al_sweep_dead_t how;
  al_sweep_look_t look;
  uint64_t looked_ms;
  size_t at, end; /* the batch at hand */
} dead_t;

static void
next(dead_t *d);

static void
over(dead_t *d) {
  al_sweep_look_free(&d->look);
  d->how.cb(d->how.data);
  al_free(d);
}

/* ---- a batch: removed, then closed ---- */

/* Before its row is closed: whoever ends between the two leaves a row that is swept again. */
static void
end_manifest(const dead_t *d, const al_sweep_corpse_t *c) {
  al_val_t *event = al_run_end_event("sweep", (int64_t) getpid(), NULL, c->reason);
  (void) al_run_end(d->how.home, c->name, event, NULL); /* what could not be written is tidied up by a later sweep */
  al_val_free(event);
}

static int
remove_all(al_job_t *job) {
  dead_t *d = job->data;
  al_teardown_t *t = al_malloc(sizeof *t);
  if (!t) return -ENOMEM;
  for (size_t i = d->at; i < d->end; i++) {
    al_sweep_corpse_t *c = &d->how.list[i];
    if (!d->look.whole || al_sweep_said(&d->look, c->name)) continue;
    c->gone = al_teardown_init(t, d->how.home->lima, c->name) == 0 && al_teardown_prove(t) == 0;
    if (c->gone) end_manifest(d, c);
  }
  al_free(t);
  return 0;
}

static void
closed(void *data, int status, const al_err_t *err) {
  dead_t *d = data;
  (void) err; /* the whole routine finds it, too, and says so */
  for (size_t i = d->at; i < d->end; i++) d->how.list[i].gone &= status == 0;
  d->at = d->end;
  next(d);
}

static void
removed(al_job_t *job, int status) {
  dead_t *d = job->data;
  al_registry_end_t ends[BATCH];
  size_t count = 0;
  for (size_t i = d->at; i < d->end; i++) {
    const al_sweep_corpse_t *c = &d->how.list[i];
    if (c->gone) ends[count++] = (al_registry_end_t) {.id = c->id, .reason = c->reason};
  }
  if (count) al_registry_close_gone(d->how.registry, ends, count, closed, d);
  else closed(d, status, NULL);
}

/* ---- the look ---- */

static int
look(al_job_t *job) {
  dead_t *d = job->data;
  al_sweep_look_free(&d->look);
  return al_sweep_look(d->how.home, &d->look);
}

static void
looked(al_job_t *job, int status) {
  dead_t *d = job->data;
  if (status < 0) d->look.whole = false;
  d->looked_ms = al_plat_mono_ms();
  next(d);
}

static void
next(dead_t *d) {
  if (d->at == d->how.count || !d->how.go_on(d->how.data)) {
    over(d);
  } else if (!d->looked_ms || al_plat_mono_ms() - d->looked_ms >= LOOK_MS) {
    al_worker_post(d->how.io, &d->job, look, looked);
  } else {
    d->end = d->how.count - d->at < BATCH ? d->how.count : d->at + BATCH;
    al_worker_post(d->how.io, &d->job, remove_all, removed);
  }
}

void
al_sweep_dead(const al_sweep_dead_t *how) {
  dead_t *d = how->count ? al_calloc(1, sizeof *d) : NULL;
  if (!d) { /* without memory they are left to the whole routine, too */
    how->cb(how->data);
    return;
  }
  d->how = *how;
  d->job.data = d;
  next(d);
}
