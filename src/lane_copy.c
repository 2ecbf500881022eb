/* SPDX-License-Identifier: Apache-2.0 */
/* The calls copyIn, copyOut and copyTreeOut: what is asked for, how far it is, what came of it. */
#include "frame.h"
#include "hook.h"
#include "ignore.h"
#include "lane_manifest.h"
#include "mem.h"
#include <errno.h>
#include <string.h>

#define ENTRIES_MOST 10000000

static int
set_counts(al_val_t *v, const al_xfer_stats_t *stats) {
  return al_val_set(v, "bytes", al_val_int((int64_t) stats->bytes))
    | al_val_set(v, "files", al_val_int((int64_t) (stats->files - stats->skipped)));
}

static int
set_path(al_val_t *v, const char *key, uint64_t count, const char *path_key, const char *path) {
  int rc = al_val_set(v, key, al_val_int((int64_t) count));
  return path[0] ? rc | al_val_set(v, path_key, al_val_text(path)) : rc;
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
answer(al_op_t *op) {
  al_engine_answer(op->lane->engine, op->id, "copy", op->answer, op->answer_rc);
  al_op_free(op);
}

static void
on_copied(al_xfer_t *x, void *data, const al_xfer_stats_t *stats, const al_err_t *err) {
  al_op_t *op = data;
  al_engine_t *e = op->lane->engine;
  al_err_t why = *err;
  if (why.code) {
    al_op_fail(e, op->id, &why, op->lane->spec.name);
  } else {
    al_val_t *v = al_val_map();
    int rc = set_counts(v, stats);
    if (op->kind != AL_OP_OUT) rc |= set_path(v, "changed", stats->changed, "changedPath", stats->changed_path);
    if (op->kind == AL_OP_TREE) rc |= set_path(v, "skipped", stats->skipped, "skippedPath", stats->skipped_path);
    op->answer = v;
    op->answer_rc = rc;
    op->xfer = NULL; /* too late to cancel */
    if (op->kind == AL_OP_IN) answer(op);
    else al_manifest_copied(op, x, stats, answer);
    return;
  }
  al_op_free(op);
}

typedef struct copy_call_s {
  const char *host, *guest, *root;
  const char *ignore[AL_IGNORE_MAX + 1];
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
  return list ? al_op_texts(list, c->ignore, AL_IGNORE_MAX + 1, "ignore", err) : 0;
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
read_tree(const al_val_t *p, al_xfer_limits_t *limits, al_err_t *err) {
  int64_t entries, depth;
  int rc = al_val_get_int(p, "maxEntries", AL_TREE_ENTRIES, 1, ENTRIES_MOST, &entries, err);
  if (!rc) rc = al_val_get_int(p, "maxDepth", AL_TREE_DEPTH, 1, AL_TREE_DEPTH_MAX, &depth, err);
  if (!rc) rc = al_val_get_bool(p, "executables", false, &limits->executables, err);
  if (rc) return rc;
  limits->max_entries = (uint32_t) entries;
  limits->max_depth = (uint32_t) depth;
  return 0;
}

static int
read_call(al_op_kind_t kind, al_lane_t *lane, const al_val_t *p, copy_call_t *c, al_err_t *err) {
  int rc = read_paths(p, c, err);
  if (!rc) rc = kind == AL_OP_IN ? read_ignore(p, c, err) : read_out(lane, p, c, err);
  return rc || kind != AL_OP_TREE ? rc : read_tree(p, &c->limits, err);
}

static int
begin(al_op_t *op, const copy_call_t *c, al_err_t *err) {
  al_chan_t *chan = op->lane->chan;
  if (op->kind == AL_OP_IN)
    return al_xfer_in(chan, c->host, c->guest, c->ignore[0] ? c->ignore : NULL, &c->cbs, op, &op->xfer, err);
  return (op->kind == AL_OP_TREE ? al_xfer_tree : al_xfer_out)(chan, c->guest, c->host, c->root, &c->limits, &c->cbs, op,
    &op->xfer, err);
}

static void
do_copy(al_engine_t *e, al_request_t *r, al_op_kind_t kind) {
  al_lane_t *lane = al_op_lane(e, r);
  if (!lane) return;
  al_err_t err = { 0 };
  copy_call_t *c = al_calloc(1, sizeof *c);
  int rc = c ? read_call(kind, lane, r->params, c, &err) : al_err_set(&err, -ENOMEM, "out of memory");
  al_op_t *op = rc ? NULL : al_op_new(lane, r->id, kind);
  if (!rc && !op) rc = al_err_set(&err, -ENOMEM, "out of memory");
  if (!rc && (rc = begin(op, c, &err))) al_op_free(op);
  if (!rc && kind == AL_OP_IN) AL_HOOK("copy-in");
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

void
al_do_copy_tree_out(al_engine_t *e, al_request_t *r) {
  do_copy(e, r, AL_OP_TREE);
}
