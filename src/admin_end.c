/* SPDX-License-Identifier: Apache-2.0 */
/* The request end: destroys one lane of the registry, whoever owns it. */
#include "admin.h"
#include "lane_life.h"
#include "mem.h"
#include <stdio.h>
#include <string.h>

typedef struct end_s {
  al_admin_t a;
  al_driver_t *driver;
} end_t;

static void
finish(end_t *x, int status, const char *by) {
  if (status == 0) {
    x->a.value = al_val_map();
    int rc = al_val_set(x->a.value, "lane", al_val_text(x->a.name)) | al_val_set(x->a.value, "by", al_val_text(by));
    if (rc) status = al_err_set(&x->a.err, -ENOMEM, "end: out of memory for the answer");
  }
  al_admin_end(&x->a, status);
}

static void
evicted(void *data, int status, const al_err_t *err, const char *by) {
  end_t *x = data;
  if (status < 0) x->a.err = *err;
  finish(x, status, by);
}

static void
found(al_admin_t *a) {
  end_t *x = (end_t *) a;
  char reason[128];
  snprintf(reason, sizeof reason, "closed with `agent-lane close` by process %d", (int) a->engine->self.pid);
  if (a->row.state == AL_LANE_CLOSED) finish(x, 0, "an earlier end");
  else al_evict(a->site, x->driver, &a->row, "command", reason, true, evicted, x);
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
