/* SPDX-License-Identifier: Apache-2.0 */
/* Ends a lane of the registry from outside: its row is claimed, it is destroyed, its row is closed. */
#include "lane_manifest.h"
#include "mem.h"
#include <stdio.h>
#include <string.h>

/* Theory of operation. The row is claimed first, with the reason: from then on no state of it can be reached but its
 * end. A living owner that is asked sees that within a second (lane_guard.c), tells its calls LANE_CLOSED with the
 * reason and ends the lane in order; that is waited for. An owner that does not (it is stopped, or hangs) is not waited
 * for any longer: the lane is destroyed here, by the one routine that proves it, and the row closed. Both may do so at
 * once. */

#define OWNER_MS 4000
#define POLL_MS 100

typedef struct evict_s {
  al_site_t *site;
  al_driver_t *driver;
  al_lane_row_t row;
  const char *who;
  char reason[128];
  bool ask;
  uv_timer_t timer;
  uint64_t patience_ms; /* monotonic: until then its owner may end it */
  int status;
  al_err_t err;
  const char *by;
  al_evict_cb cb;
  void *data;
} evict_t;

static void
poll(uv_timer_t *t);

static void
on_timer_closed(uv_handle_t *h) {
  evict_t *x = h->data;
  x->cb(x->data, x->status, &x->err, x->by);
  al_free(x);
}

static void
finish(evict_t *x, int status, const char *by) {
  x->status = status;
  x->by = by;
  uv_close((uv_handle_t *) &x->timer, on_timer_closed);
}

static void
row_written(void *data, int status, const al_err_t *err) {
  evict_t *x = data;
  (void) status; /* its owner may have closed the row in the same moment: the lane is gone in either case */
  (void) err;
  finish(x, x->err.code, AL_EVICTED_HERE);
}

static void
destroyed(void *data, int status, const al_err_t *err) {
  evict_t *x = data;
  if (status < 0) x->err = *err;
  al_manifest_close_row(x->site, &x->row, x->who, status ? err->msg : x->reason, status == 0, row_written, x);
}

static void
looked(void *data, int status, const al_err_t *err, const al_lane_row_t *rows, size_t count) {
  evict_t *x = data;
  (void) err; /* a registry that cannot be read just now keeps no VM alive */
  if (status == 0 && (count == 0 || rows->state == AL_LANE_CLOSED)) finish(x, 0, AL_EVICTED_BY_OWNER);
  else if (al_plat_mono_ms() >= x->patience_ms || al_plat_ident_alive(&x->row.owner) == 0)
    al_lima_destroy(&x->driver->lima, x->row.name, destroyed, x);
  else uv_timer_start(&x->timer, poll, POLL_MS, 0);
}

static void
poll(uv_timer_t *t) {
  evict_t *x = t->data;
  al_registry_find(&x->site->registry, x->row.name, looked, x);
}

static void
claimed(void *data, int status, const al_err_t *err) {
  evict_t *x = data;
  if (status == AL_ELANE_CLOSED) { /* somebody else was quicker */
    finish(x, 0, AL_EVICTED_BY_ANOTHER);
    return;
  }
  if (status < 0) {
    x->err = *err;
    finish(x, status, NULL);
    return;
  }
  /* Its owner has tried already when it is stuck. */
  x->patience_ms = al_plat_mono_ms() + (x->ask && x->row.state != AL_LANE_STUCK ? OWNER_MS : 0);
  poll(&x->timer);
}

void
al_evict(al_site_t *site, al_driver_t *driver, const al_lane_row_t *row, const char *who, const char *reason, bool ask,
  al_evict_cb cb, void *data) {
  evict_t *x = al_calloc(1, sizeof *x);
  if (!x) {
    al_err_t err = { 0 };
    al_err_set(&err, -ENOMEM, "out of memory");
    cb(data, -ENOMEM, &err, NULL);
    return;
  }
  x->site = site;
  x->driver = driver;
  x->row = *row;
  x->who = who;
  x->ask = ask;
  x->cb = cb;
  x->data = data;
  snprintf(x->reason, sizeof x->reason, "%s", reason);
  uv_timer_init(&site->engine->loop, &x->timer);
  x->timer.data = x;
  al_registry_claim_close(&site->registry, row->id, x->reason, claimed, x);
}
