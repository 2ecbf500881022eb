/* SPDX-License-Identifier: Apache-2.0 */
/* The request end: destroys one lane of the registry, whoever owns it. */
#include "admin.h"
#include "lane_life.h"
#include "mem.h"
#include <stdio.h>
#include <string.h>

/* Theory of operation. The row is claimed first, with the reason: from then on no state of it can be reached but its end.
 * A living owner sees that within a second (lane_guard.c), tells its calls LANE_CLOSED with the reason and ends the lane
 * in order; that is waited for. An owner that does not (it is stopped, or hangs) is not waited for any longer: the lane
 * is destroyed here, by the one routine that proves it, and the row closed. Both may do so at once. */

#define OWNER_MS 4000
#define POLL_MS 100

typedef struct end_s {
  al_admin_t a;
  al_driver_t *driver;
  uv_timer_t timer;
  uint64_t patience_ms; /* monotonic: until then its owner may end it */
  char reason[128];
  int status;
} end_t;

static void
poll(uv_timer_t *t);

static void
on_timer_closed(uv_handle_t *h) {
  end_t *x = h->data;
  al_admin_end(&x->a, x->status);
}

static void
finish(end_t *x, int status, const char *how) {
  x->status = status;
  if (status == 0) {
    x->a.value = al_val_map();
    int rc = al_val_set(x->a.value, "lane", al_val_text(x->a.name)) | al_val_set(x->a.value, "by", al_val_text(how));
    if (rc) x->status = al_err_set(&x->a.err, -ENOMEM, "end: out of memory for the answer");
  }
  uv_close((uv_handle_t *) &x->timer, on_timer_closed);
}

static void
row_written(void *data, int status, const al_err_t *err) {
  end_t *x = data;
  (void) status; /* its owner may have closed the row in the same moment: the lane is gone in either case */
  (void) err;
  finish(x, x->a.err.code, "this command");
}

static void
destroyed(void *data, int status, const al_err_t *err) {
  end_t *x = data;
  if (status < 0) x->a.err = *err;
  al_registry_move(&x->a.site->registry, x->a.row.id, AL_LANE_CLOSING, status ? AL_LANE_STUCK : AL_LANE_CLOSED,
    status ? err->msg : x->reason, row_written, x);
}

static void
looked(void *data, int status, const al_err_t *err, const al_lane_row_t *rows, size_t count) {
  end_t *x = data;
  (void) err; /* a registry that cannot be read just now keeps no VM alive */
  if (status == 0 && (count == 0 || rows->state == AL_LANE_CLOSED)) finish(x, 0, "its owner");
  else if (al_plat_mono_ms() >= x->patience_ms || al_plat_ident_alive(&x->a.row.owner) == 0)
    al_lima_destroy(&x->driver->lima, x->a.name, destroyed, x);
  else uv_timer_start(&x->timer, poll, POLL_MS, 0);
}

static void
poll(uv_timer_t *t) {
  end_t *x = t->data;
  al_registry_find(&x->a.site->registry, x->a.name, looked, x);
}

static void
claimed(void *data, int status, const al_err_t *err) {
  end_t *x = data;
  if (status == AL_ELANE_CLOSED) { /* somebody else was quicker */
    finish(x, 0, "another process");
    return;
  }
  if (status < 0) {
    x->a.err = *err;
    finish(x, status, NULL);
    return;
  }
  /* Its owner has tried already when it is stuck. */
  x->patience_ms = al_plat_mono_ms() + (x->a.row.state == AL_LANE_STUCK ? 0 : OWNER_MS);
  poll(&x->timer);
}

static void
found(al_admin_t *a) {
  end_t *x = (end_t *) a;
  uv_timer_init(&a->engine->loop, &x->timer);
  x->timer.data = x;
  snprintf(x->reason, sizeof x->reason, "closed with `agent-lane close` by process %d", (int) a->engine->self.pid);
  if (a->row.state == AL_LANE_CLOSED) finish(x, 0, "an earlier end");
  else al_registry_claim_close(&a->site->registry, a->row.id, x->reason, claimed, x);
}

void
al_do_end(al_engine_t *e, al_request_t *r) {
  al_err_t err = { 0 };
  const char *name = "";
  al_site_t *site;
  int rc = al_val_get_text(r->params, "lane", "", &name, &err);
  if (!rc && al_lane_find(e, name)) { /* one of this very engine ends by its own machine, once */
    al_do_close(e, r);
    return;
  }
  al_driver_t *driver = NULL;
  if (!rc) rc = al_site_get(e, r->params, &site, &err);
  if (!rc) rc = al_site_lima(site, r->params, &driver, &err);
  end_t *x = rc ? NULL : al_calloc(1, sizeof *x);
  if (rc) {
    al_engine_fail(e, r->id, &err);
    return;
  }
  if (x) x->driver = driver;
  al_admin_find(e, r, x ? &x->a : NULL, "end", found);
}
