/* SPDX-License-Identifier: Apache-2.0 */
/* The request events: changes of lanes' states since a number, for who follows them. */
#include "admin.h"
#include "mem.h"

#define EVENTS_MAX 500

typedef struct events_s {
  al_engine_t *engine;
  uint32_t id;
} events_t;

static al_val_t *
change_value(const al_change_t *c) {
  al_val_t *v = al_val_map();
  int rc = al_val_set(v, "number", al_val_int(c->number)) | al_val_set(v, "atMs", al_val_int(c->at_ms)) |
    al_val_set(v, "lane", al_val_text(c->name)) |
    al_val_set(v, "from", c->from < 0 ? al_val_null() : al_val_text(al_lane_state_name(c->from))) |
    al_val_set(v, "to", al_val_text(al_lane_state_name(c->to))) | al_val_set(v, "reason", al_val_text(c->reason));
  if (!rc) return v;
  al_val_free(v);
  return NULL;
}

static void
changed(void *data, int status, const al_err_t *err, int64_t last, const al_change_t *rows, size_t count) {
  events_t *ev = data;
  al_engine_t *e = ev->engine;
  if (status < 0) {
    al_engine_fail(e, ev->id, err);
  } else {
    al_val_t *v = al_val_map(), *list = al_val_list();
    int rc = list ? 0 : -ENOMEM;
    for (size_t i = 0; i < count && !rc; i++) rc = al_val_add(list, change_value(&rows[i]));
    rc |= al_val_set(v, "last", al_val_int(last)) | al_val_set(v, "changes", list);
    al_engine_answer(e, ev->id, "events", v, rc);
  }
  al_free(ev);
  e->busy--;
  al_engine_check_end(e);
}

void
al_do_events(al_engine_t *e, al_request_t *r) {
  al_err_t err = { 0 };
  al_site_t *site = NULL;
  int64_t after;
  int rc = al_val_get_int(r->params, "after", -1, -1, INT64_MAX, &after, &err);
  if (!rc) rc = al_site_get(e, r->params, &site, &err);
  events_t *ev = rc ? NULL : al_calloc(1, sizeof *ev);
  if (!rc && !ev) rc = al_err_set(&err, -ENOMEM, "out of memory");
  if (rc) {
    al_engine_fail(e, r->id, &err);
    return;
  }
  ev->engine = e;
  ev->id = r->id;
  e->busy++;
  al_registry_changes(&site->registry, after, EVENTS_MAX, changed, ev);
}
