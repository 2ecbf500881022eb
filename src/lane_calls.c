/* SPDX-License-Identifier: Apache-2.0 */
/* Open calls into ready lanes: what all kinds share, and the small ones: cancel, ping, sync-in, close. */
#include "lane_calls.h"
#include "mem.h"
#include <stdio.h>
#include <string.h>

al_op_t *
al_op_find(al_engine_t *e, uint32_t id) {
  for (al_lane_t *l = e->lanes; l; l = l->next)
    for (al_op_t *op = l->ops; op; op = op->next)
      if (op->id == id) return op;
  return NULL;
}

void
al_op_free(al_op_t *op) {
  al_lane_t *lane = op->lane;
  for (al_op_t **at = &lane->ops; *at; at = &(*at)->next)
    if (*at == op) {
      *at = op->next;
      break;
    }
  al_free(op);
  al_lane_op_ended(lane);
}

al_op_t *
al_op_new(al_lane_t *lane, uint32_t id, al_op_kind_t kind) {
  al_op_t *op = al_calloc(1, sizeof *op);
  if (!op) return NULL;
  op->id = id;
  op->kind = kind;
  op->lane = lane;
  op->next = lane->ops;
  lane->ops = op;
  return op;
}

void
al_op_fail(al_engine_t *e, uint32_t id, al_err_t *err, const char *lane) {
  if (lane && !err->lane[0]) snprintf(err->lane, sizeof err->lane, "%s", lane);
  al_engine_fail(e, id, err);
}

al_lane_t *
al_op_lane(al_engine_t *e, const al_request_t *r) {
  al_err_t err = { 0 };
  const char *name;
  if (al_val_get_text(r->params, "lane", "", &name, &err)) {
    al_engine_fail(e, r->id, &err);
    return NULL;
  }
  al_lane_t *lane = al_lane_find(e, name);
  if (lane && lane->state == AL_LANE_READY && lane->chan) return lane;
  if (lane && lane->cause.code) al_err_set(&err, lane->cause.code, "%s: %s", r->op, lane->cause.msg);
  else al_err_set(&err, AL_ELANE_CLOSED, "%s: lane %.40s is closed", r->op, name);
  al_op_fail(e, r->id, &err, al_name_valid(name) ? name : NULL);
  return NULL;
}

al_op_t *
al_op_named(al_engine_t *e, const al_request_t *r) {
  al_err_t err = { 0 };
  int64_t id;
  if (al_val_get_int(r->params, "exec", 0, 1, UINT32_MAX, &id, &err) == 0) {
    al_op_t *op = al_op_find(e, (uint32_t) id);
    if (op) return op;
    al_err_set(&err, AL_EBAD_OPTION, "%s: that call has ended", r->op);
  }
  al_engine_fail(e, r->id, &err);
  return NULL;
}

int
al_op_texts(const al_val_t *list, const char **out, size_t max, const char *key, al_err_t *err) {
  if (list->kind != AL_LIST || list->len == 0 || list->len >= max)
    return al_err_set(err, AL_EBAD_OPTION, "%s must be a list of 1 to %zu texts", key, max - 1);
  for (size_t i = 0; i < list->len; i++) {
    const al_val_t *v = list->items[i];
    if (v->kind != AL_TEXT || strlen(v->text) != v->len)
      return al_err_set(err, AL_EBAD_OPTION, "%s[%zu] must be text without NUL", key, i);
    out[i] = v->text;
  }
  out[list->len] = NULL;
  return 0;
}

/* ---- cancel ---- */

static void
cancel_op(al_op_t *op, const al_err_t *why) {
  if (op->exec) al_exec_cancel(op->exec, why);
  else if (op->xfer) al_xfer_cancel(op->xfer, why);
}

void
al_do_cancel(al_engine_t *e, al_request_t *r) {
  al_op_t *op = al_op_named(e, r);
  if (!op) return;
  al_err_t err = { 0 }, why = { 0 };
  const char *message;
  if (al_val_get_text(r->params, "message", "the caller cancelled it", &message, &err)) {
    al_engine_fail(e, r->id, &err);
    return;
  }
  al_err_set(&why, AL_EABORTED, "%s", message);
  cancel_op(op, &why);
  al_engine_done(e, r->id, NULL);
}

/* ---- the rest ---- */

void
al_do_synced_in(al_engine_t *e, al_request_t *r) {
  al_lane_t *lane = al_op_lane(e, r);
  if (!lane) return;
  uv_timer_stop(&lane->sync_timer);
  al_engine_done(e, r->id, NULL);
}

typedef struct ping_s {
  al_engine_t *engine;
  uint32_t id;
} ping_t;

static void
on_pong(void *data, int status, uint64_t ns) {
  ping_t *p = data;
  if (status < 0) {
    al_err_t err = { 0 };
    al_err_set(&err, AL_ECHANNEL_CLOSED, "ping: the guest did not answer");
    al_engine_fail(p->engine, p->id, &err);
  } else {
    al_val_t *v = al_val_map();
    al_engine_answer(p->engine, p->id, "ping", v, al_val_set(v, "ns", al_val_int((int64_t) ns)));
  }
  al_free(p);
}

void
al_do_ping(al_engine_t *e, al_request_t *r) {
  al_lane_t *lane = al_op_lane(e, r);
  if (!lane) return;
  ping_t *p = al_calloc(1, sizeof *p);
  int rc = p ? 0 : -ENOMEM;
  if (p) {
    p->engine = e;
    p->id = r->id;
    rc = al_chan_ping(lane->chan, on_pong, p);
  }
  if (rc == 0) return;
  al_err_t err = { 0 };
  al_err_set(&err, rc, "ping: it could not be sent");
  al_op_fail(e, r->id, &err, lane->spec.name);
  al_free(p);
}

void
al_do_close(al_engine_t *e, al_request_t *r) {
  al_err_t err = { 0 }, why = { 0 };
  const char *name, *reason;
  int rc = al_val_get_text(r->params, "lane", "", &name, &err);
  if (!rc) rc = al_val_get_text(r->params, "reason", "closed by its owner", &reason, &err);
  if (!rc && !al_name_valid(name))
    rc = al_err_set(&err, AL_EBAD_NAME, "close: \"%.40s\" is not the name of a lane", name);
  al_lane_t *lane = rc ? NULL : al_lane_find(e, name);
  if (!rc && !lane) { /* ended already; a lane of another process is the reaper's matter */
    al_engine_done(e, r->id, NULL);
    return;
  }
  al_waiter_t *w = rc ? NULL : al_calloc(1, sizeof *w);
  if (!rc && !w) rc = al_err_set(&err, -ENOMEM, "out of memory");
  if (rc) {
    al_engine_fail(e, r->id, &err);
    return;
  }
  w->id = r->id;
  w->next = lane->closers;
  lane->closers = w;
  al_err_set(&why, AL_ELANE_CLOSED, "the lane was closed");
  al_lane_event(lane, AL_LANE_ON_CLOSE, &why, reason);
}
