/* SPDX-License-Identifier: Apache-2.0 */
/* The calls copyIn and copyOut: what is asked for, how far it is, what came of it. */
#include "lane_calls.h"
#include "mem.h"
#include <errno.h>
#include <string.h>

#define IGNORE_MAX 1024 /* patterns of one call */

/* bytes, and files in all so far */
static int
set_counts(al_val_t *v, const al_xfer_stats_t *stats) {
  return al_val_set(v, "bytes", al_val_int((int64_t) stats->bytes))
    | al_val_set(v, "files", al_val_int((int64_t) stats->files));
}

static void
on_progress(al_xfer_t *x, void *data, const al_xfer_stats_t *stats) {
  al_op_t *op = data;
  (void) x;
  al_val_t *v = al_val_map();
  int rc = set_counts(v, stats);
  if (stats->total) rc |= al_val_set(v, "totalBytes", al_val_int((int64_t) stats->total));
  /* Without memory it is left out: the next one says more. */
  if (rc) al_val_free(v);
  else (void) al_engine_emit(op->lane->engine, AL_EVENT_PROGRESS, op->id, 0, v);
}

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
    int rc = set_counts(v, stats);
    if (op->kind == AL_OP_IN) rc |= al_val_set(v, "changed", al_val_int((int64_t) stats->changed));
    if (stats->changed_path[0]) rc |= al_val_set(v, "changedPath", al_val_text(stats->changed_path));
    al_engine_answer(e, op->id, "copy", v, rc);
  }
  al_op_free(op);
}

typedef struct copy_call_s {
  const char *host, *guest, *root;
  const char *ignore[IGNORE_MAX + 1];
  al_xfer_limits_t limits;
  al_xfer_cbs_t cbs;
} copy_call_t;

static int
read_paths(const al_val_t *p, copy_call_t *c, al_err_t *err) {
  bool progress;
  int rc = al_val_get_text(p, "hostPath", "", &c->host, err);
  if (rc || (rc = al_val_get_text(p, "guestPath", "", &c->guest, err))) return rc;
  if (*c->host != '/') return al_err_set(err, AL_EBAD_OPTION, "hostPath must be an absolute path");
  if (strlen(c->host) >= AL_PATH_MAX)
    return al_err_set(err, AL_EBAD_OPTION, "hostPath is longer than %d bytes", AL_PATH_MAX - 1);
  if ((rc = al_guest_path_check(c->guest, strlen(c->guest), err))) return rc;
  if ((rc = al_val_get_bool(p, "progress", false, &progress, err))) return rc;
  c->cbs = (al_xfer_cbs_t) { progress ? on_progress : NULL, on_copied };
  return 0;
}

static int
read_ignore(const al_val_t *p, copy_call_t *c, al_err_t *err) {
  const al_val_t *list = al_val_get(p, "ignore");
  return list ? al_op_texts(list, c->ignore, IGNORE_MAX + 1, "ignore", err) : 0;
}

static int
read_out(al_lane_t *lane, const al_val_t *p, copy_call_t *c, al_err_t *err) {
  int64_t max = (int64_t) lane->max_copy_out;
  int rc = al_val_get_text(p, "root", NULL, &c->root, err);
  if (!rc) rc = al_val_get_int(p, "maxBytes", max, 1, AL_COPY_OUT_MOST, &max, err);
  if (rc) return rc;
  c->limits = (al_xfer_limits_t) { .max_bytes = (uint64_t) max, .left = &lane->copy_out_left };
  return 0;
}

static int
begin(al_op_t *op, const copy_call_t *c, al_err_t *err) {
  al_chan_t *chan = op->lane->chan;
  if (op->kind == AL_OP_IN)
    return al_xfer_in(chan, c->host, c->guest, c->ignore[0] ? c->ignore : NULL, &c->cbs, op, &op->xfer, err);
  return al_xfer_out(chan, c->guest, c->host, c->root, &c->limits, &c->cbs, op, &op->xfer, err);
}

static void
do_copy(al_engine_t *e, al_request_t *r, al_op_kind_t kind) {
  al_lane_t *lane = al_op_lane(e, r);
  if (!lane) return;
  al_err_t err = { 0 };
  copy_call_t *c = al_calloc(1, sizeof *c);
  int rc = c ? read_paths(r->params, c, &err) : al_err_set(&err, -ENOMEM, "out of memory");
  if (!rc) rc = kind == AL_OP_IN ? read_ignore(r->params, c, &err) : read_out(lane, r->params, c, &err);
  al_op_t *op = rc ? NULL : al_op_new(lane, r->id, kind);
  if (!rc && !op) rc = al_err_set(&err, -ENOMEM, "out of memory");
  if (!rc && (rc = begin(op, c, &err))) al_op_free(op);
  al_free(c);
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
