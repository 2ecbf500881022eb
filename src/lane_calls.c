/* SPDX-License-Identifier: Apache-2.0 */
/* Open calls into ready lanes: what all kinds share, and the small ones: cancel, copies, ping, sync-in, close. */
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
    al_err_set(&err, AL_EBAD_OPTION, "%s: that command has ended", r->op);
  }
  al_engine_fail(e, r->id, &err);
  return NULL;
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

/* ---- copies ---- */

static void
on_copied(al_xfer_t *x, void *data, const al_xfer_stats_t *stats, const al_err_t *err) {
  al_op_t *op = data;
  al_engine_t *e = op->lane->engine;
  (void) x;
  al_err_t why = *err;
  if (why.code) {
    al_op_fail(e, op->id, &why, op->lane->spec.name);
  } else {
    al_val_t *v = al_val_map();
    int rc = al_val_set(v, "bytes", al_val_int((int64_t) stats->bytes))
      | al_val_set(v, "files", al_val_int((int64_t) stats->files));
    al_engine_answer(e, op->id, op->kind == AL_OP_IN ? "copyIn" : "copyOut", v, rc);
  }
  al_op_free(op);
}

static int
copy_paths(const al_val_t *p, const char **host, const char **guest, al_err_t *err) {
  int rc = al_val_get_text(p, "hostPath", "", host, err);
  if (rc || (rc = al_val_get_text(p, "guestPath", "", guest, err))) return rc;
  if (**host != '/') return al_err_set(err, AL_EBAD_OPTION, "hostPath must be an absolute path");
  if (strlen(*host) >= AL_PATH_MAX)
    return al_err_set(err, AL_EBAD_OPTION, "hostPath is longer than %d bytes", AL_PATH_MAX - 1);
  return al_guest_path_check(*guest, strlen(*guest), err);
}

static void
do_copy(al_engine_t *e, al_request_t *r, al_op_kind_t kind) {
  static const al_xfer_cbs_t cbs = { .on_end = on_copied };
  al_lane_t *lane = al_op_lane(e, r);
  if (!lane) return;
  al_err_t err = { 0 };
  const char *host, *guest, *root = NULL;
  int64_t max = (int64_t) lane->max_copy_out;
  al_op_t *op = NULL;
  int rc = copy_paths(r->params, &host, &guest, &err);
  if (!rc) rc = al_val_get_text(r->params, "root", NULL, &root, &err);
  if (!rc) rc = al_val_get_int(r->params, "maxBytes", max, 1, 4ll << 30, &max, &err);
  if (!rc && !(op = al_op_new(lane, r->id, kind))) rc = al_err_set(&err, -ENOMEM, "out of memory");
  if (!rc) {
    al_xfer_limits_t limits = { .max_bytes = (uint64_t) max };
    rc = kind == AL_OP_IN ? al_xfer_in(lane->chan, host, guest, NULL, &cbs, op, &op->xfer, &err)
                          : al_xfer_out(lane->chan, guest, host, root, &limits, &cbs, op, &op->xfer, &err);
    if (rc) al_op_free(op);
  }
  if (rc) al_op_fail(e, r->id, &err, lane->spec.name);
}

void
al_do_copy_in(al_engine_t *e, al_request_t *r) {
  do_copy(e, r, AL_OP_IN);
}

void
al_do_copy_out(al_engine_t *e, al_request_t *r) {
  do_copy(e, r, AL_OP_OUT);
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
