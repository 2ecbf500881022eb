/* SPDX-License-Identifier: Apache-2.0 */
/* Calls into a ready lane: exec with its input and signals, copies, ping, close. Each open call is an al_op_t. */
#include "lane_life.h"
#include "mem.h"
#include <signal.h>
#include <stdio.h>
#include <string.h>

static al_op_t *
find_op(al_engine_t *e, uint32_t id) {
  for (al_lane_t *l = e->lanes; l; l = l->next)
    for (al_op_t *op = l->ops; op; op = op->next)
      if (op->id == id) return op;
  return NULL;
}

static void
free_op(al_op_t *op) {
  al_lane_t *lane = op->lane;
  for (al_op_t **at = &lane->ops; *at; at = &(*at)->next)
    if (*at == op) {
      *at = op->next;
      break;
    }
  al_free(op);
  al_lane_op_ended(lane);
}

static al_op_t *
new_op(al_lane_t *lane, uint32_t id, al_op_kind_t kind) {
  al_op_t *op = al_calloc(1, sizeof *op);
  if (!op) return NULL;
  op->id = id;
  op->kind = kind;
  op->lane = lane;
  op->next = lane->ops;
  lane->ops = op;
  return op;
}

static void
fail(al_engine_t *e, uint32_t id, al_err_t *err, const char *lane) {
  if (lane && !err->lane[0]) snprintf(err->lane, sizeof err->lane, "%s", lane);
  al_engine_fail(e, id, err);
}

/* The ready lane that params name; answers the request itself when there is none. */
static al_lane_t *
ready_lane(al_engine_t *e, const al_request_t *r) {
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
  fail(e, r->id, &err, al_name_valid(name) ? name : NULL);
  return NULL;
}

/* ---- exec ---- */

static void
on_lines(al_exec_t *x, void *data, const uint8_t *p, size_t n) {
  al_op_t *op = data;
  (void) x;
  al_engine_emit(op->lane->engine, AL_EVENT_LINES, op->id, AL_SUB_STDOUT, al_val_bytes(p, n));
}

static void
on_bytes(al_exec_t *x, void *data, int sub, const uint8_t *p, size_t n) {
  al_op_t *op = data;
  (void) x;
  al_engine_emit(op->lane->engine, AL_EVENT_BYTES, op->id, sub, al_val_bytes(p, n));
}

static void
on_drain(al_exec_t *x, void *data) {
  al_op_t *op = data;
  (void) x;
  al_engine_emit(op->lane->engine, AL_EVENT_DRAIN, op->id, 0, NULL);
}

static al_val_t *
exec_value(al_exec_result_t *r) {
  al_val_t *v = al_val_map();
  if (!v) {
    al_free(r->out);
    al_free(r->errs);
    return NULL;
  }
  int rc = al_val_set(v, "exitCode", al_val_int(r->exit_code)) | al_val_set(v, "signal", al_val_int(r->signal));
  rc |= al_val_set(v, "stdout", al_val_bytes_take(r->out, r->out_len));
  rc |= al_val_set(v, "stderr", al_val_bytes_take(r->errs, r->errs_len));
  rc |= al_val_set(v, "stdoutDropped", al_val_int((int64_t) r->out_dropped));
  rc |= al_val_set(v, "stderrDropped", al_val_int((int64_t) r->errs_dropped));
  rc |= al_val_set(v, "spawnNs", al_val_int((int64_t) r->spawn_ns));
  if (rc) {
    al_val_free(v);
    return NULL;
  }
  return v;
}

static void
on_done(al_exec_t *x, void *data, al_exec_result_t *result, const al_err_t *err) {
  al_op_t *op = data;
  al_engine_t *e = op->lane->engine;
  (void) x;
  al_err_t why = *err;
  al_val_t *v = why.code ? NULL : exec_value(result);
  if (!why.code && !v) al_err_set(&why, -ENOMEM, "exec: out of memory for the result");
  if (v) al_engine_done(e, op->id, v);
  else fail(e, op->id, &why, op->lane->spec.name);
  free_op(op);
}

static int
text_list(const al_val_t *list, const char **out, size_t max, const char *key, al_err_t *err) {
  if (list->kind != AL_LIST || list->len == 0 || list->len >= max)
    return al_err_set(err, AL_EBAD_OPTION, "%s must be a list of 1 to %zu texts", key, max - 1);
  for (size_t i = 0; i < list->len; i++) {
    const al_val_t *v = list->items[i];
    if (v->kind != AL_TEXT || strlen(v->text) != v->len) return al_err_set(err, AL_EBAD_OPTION, "%s[%zu] must be text without NUL", key, i);
    out[i] = v->text;
  }
  out[list->len] = NULL;
  return 0;
}

/* The lane's environment, then the call's own: a name given twice counts with its last value. Points into both; free
 * the array only. */
static const char **
merge_env(char *const *base, char *const *own) {
  size_t n = 0, used = 0;
  for (char *const *s = base; *s; s++) n++;
  for (char *const *s = own; s && *s; s++) n++;
  const char **all = al_calloc(n + 2, sizeof *all);
  if (!all) return NULL;
  bool lang = false;
  for (char *const *s = base; *s; s++) {
    size_t len = (size_t) (strchr(*s, '=') - *s) + 1;
    bool hidden = false;
    for (char *const *o = own; o && *o; o++) hidden |= strncmp(*s, *o, len) == 0;
    if (!hidden) all[used++] = *s;
  }
  for (char *const *o = own; o && *o; o++) all[used++] = *o;
  for (size_t i = 0; i < used; i++) lang |= strncmp(all[i], "LANG=", 5) == 0;
  if (!lang) all[used] = "LANG=C.UTF-8";
  return all;
}

#define ARGV_MAX 1024

typedef struct exec_call_s {
  const char *argv[ARGV_MAX + 1];
  const char **env;
  char **own_env;
  al_exec_opts_t opts;
} exec_call_t;

static int
read_exec(al_lane_t *lane, const al_val_t *p, exec_call_t *c, al_err_t *err) {
  const char *command, *cwd, *mode;
  bool sudo, open;
  int rc;
  if (
    (rc = al_val_get_text(p, "command", NULL, &command, err)) || (rc = al_val_get_text(p, "cwd", lane->worktree, &cwd, err))
    || (rc = al_val_get_text(p, "mode", "whole", &mode, err)) || (rc = al_val_get_bool(p, "sudo", false, &sudo, err))
    || (rc = al_val_get_bool(p, "inputOpen", false, &open, err))
  )
    return rc;
  const al_val_t *argv = al_val_get(p, "argv"), *input = al_val_get(p, "stdin"), *env = al_val_get(p, "env");
  if (!command == !argv) return al_err_set(err, AL_EBAD_OPTION, "exec takes either command or argv");
  if (cwd[0] != '/') return al_err_set(err, AL_EBAD_OPTION, "cwd must be an absolute path in the guest");
  if (input && input->kind != AL_BYTES && input->kind != AL_TEXT) return al_err_set(err, AL_EBAD_OPTION, "stdin must be text or bytes");
  if (argv && (rc = text_list(argv, c->argv, ARGV_MAX, "argv", err))) return rc;
  if (command) {
    c->argv[0] = "/bin/sh";
    c->argv[1] = "-c";
    c->argv[2] = command;
  }
  if (env && !(c->own_env = al_env_list(env, err))) return err->code;
  if (!(c->env = merge_env(lane->env, c->own_env))) return al_err_set(err, -ENOMEM, "out of memory");
  c->opts.req = (al_exec_req_t) {
    .argv = c->argv, .env = c->env, .cwd = cwd, .user = sudo ? "root" : "agent", .with_stdin = input || open
  };
  c->opts.lines = strcmp(mode, "lines") == 0;
  c->opts.stream = strcmp(mode, "stream") == 0;
  if (!c->opts.lines && !c->opts.stream && strcmp(mode, "whole")) return al_err_set(err, AL_EBAD_OPTION, "mode must be whole, lines or stream");
  c->opts.input = input ? input->text : NULL;
  c->opts.input_len = input ? input->len : 0;
  c->opts.input_open = open;
  c->opts.budget = &lane->budget;
  return 0;
}

void
al_do_exec(al_engine_t *e, al_request_t *r) {
  static const al_exec_cbs_t cbs = { on_lines, on_bytes, on_drain, on_done };
  al_lane_t *lane = ready_lane(e, r);
  if (!lane) return;
  al_err_t err = { 0 };
  exec_call_t *c = al_calloc(1, sizeof *c);
  int rc = c ? read_exec(lane, r->params, c, &err) : al_err_set(&err, -ENOMEM, "out of memory");
  al_op_t *op = rc ? NULL : new_op(lane, r->id, AL_OP_EXEC);
  if (!rc && !op) rc = al_err_set(&err, -ENOMEM, "out of memory");
  if (!rc && (rc = al_exec_start(lane->chan, &c->opts, &cbs, op, &op->exec, &err))) {
    if (!err.code) al_err_set(&err, AL_EEXEC_FAILED, "exec: the command could not be sent: %s", rc > -4096 ? strerror(-rc) : al_err_name(rc));
    free_op(op);
  }
  if (rc) fail(e, r->id, &err, lane->spec.name);
  if (!c) return;
  al_env_free(c->own_env);
  al_free(c->env);
  al_free(c);
}

/* The exec that params key "exec" names; answers the request itself when there is none. */
static al_op_t *
exec_op(al_engine_t *e, const al_request_t *r) {
  al_err_t err = { 0 };
  int64_t id;
  if (al_val_get_int(r->params, "exec", 0, 1, UINT32_MAX, &id, &err) == 0) {
    al_op_t *op = find_op(e, (uint32_t) id);
    if (op) return op;
    al_err_set(&err, AL_EBAD_OPTION, "%s: that command has ended", r->op);
  }
  al_engine_fail(e, r->id, &err);
  return NULL;
}

void
al_do_write(al_engine_t *e, al_request_t *r) {
  al_op_t *op = exec_op(e, r);
  if (!op) return;
  al_err_t err = { 0 };
  bool end;
  const al_val_t *data = al_val_get(r->params, "data");
  int64_t queued = 0;
  int rc = al_val_get_bool(r->params, "end", false, &end, &err);
  if (!rc && op->kind != AL_OP_EXEC) rc = al_err_set(&err, AL_EBAD_OPTION, "write: a copy takes no input");
  if (!rc && data && data->kind != AL_BYTES && data->kind != AL_TEXT) rc = al_err_set(&err, AL_EBAD_OPTION, "data must be text or bytes");
  if (!rc && data && (queued = al_exec_write(op->exec, data->text, data->len)) < 0)
    rc = al_err_set(&err, (int) queued, "write: the command's input could not be queued");
  if (rc) {
    fail(e, r->id, &err, op->lane->spec.name);
    return;
  }
  if (end) al_exec_end(op->exec);
  al_val_t *v = al_val_map();
  if (v) al_val_set(v, "queued", al_val_int(queued));
  al_engine_done(e, r->id, v);
}

void
al_do_signal(al_engine_t *e, al_request_t *r) {
  al_op_t *op = exec_op(e, r);
  if (!op) return;
  al_err_t err = { 0 };
  int64_t signo;
  bool tree;
  int rc = al_val_get_int(r->params, "signal", SIGTERM, 1, 64, &signo, &err);
  if (!rc) rc = al_val_get_bool(r->params, "tree", false, &tree, &err);
  if (!rc && op->kind != AL_OP_EXEC) rc = al_err_set(&err, AL_EBAD_OPTION, "signal: a copy takes no signals");
  if (rc) {
    fail(e, r->id, &err, op->lane->spec.name);
    return;
  }
  al_exec_signal(op->exec, (int) signo, tree);
  al_engine_done(e, r->id, NULL);
}

static void
cancel_op(al_op_t *op, const al_err_t *why) {
  if (op->exec) al_exec_cancel(op->exec, why);
  else if (op->xfer) al_xfer_cancel(op->xfer, why);
}

void
al_do_cancel(al_engine_t *e, al_request_t *r) {
  al_op_t *op = exec_op(e, r);
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

void
al_calls_taken(al_engine_t *e, uint32_t id, int sub, size_t n) {
  al_op_t *op = find_op(e, id);
  if (op && op->exec) al_exec_taken(op->exec, sub, n);
}

/* ---- copies ---- */

static void
on_copied(al_xfer_t *x, void *data, const al_xfer_stats_t *stats, const al_err_t *err) {
  al_op_t *op = data;
  al_engine_t *e = op->lane->engine;
  (void) x;
  al_err_t why = *err;
  al_val_t *v = why.code ? NULL : al_val_map();
  if (v) {
    al_val_set(v, "bytes", al_val_int((int64_t) stats->bytes));
    al_val_set(v, "files", al_val_int((int64_t) stats->files));
  }
  if (why.code) fail(e, op->id, &why, op->lane->spec.name);
  else al_engine_done(e, op->id, v);
  free_op(op);
}

static int
copy_paths(const al_val_t *p, const char **host, const char **guest, al_err_t *err) {
  int rc = al_val_get_text(p, "hostPath", "", host, err);
  if (rc || (rc = al_val_get_text(p, "guestPath", "", guest, err))) return rc;
  if (**host != '/') return al_err_set(err, AL_EBAD_OPTION, "hostPath must be an absolute path");
  if (strlen(*host) >= AL_PATH_MAX) return al_err_set(err, AL_EBAD_OPTION, "hostPath is longer than %d bytes", AL_PATH_MAX - 1);
  return al_guest_path_check(*guest, strlen(*guest), err);
}

static void
do_copy(al_engine_t *e, al_request_t *r, al_op_kind_t kind) {
  al_lane_t *lane = ready_lane(e, r);
  if (!lane) return;
  al_err_t err = { 0 };
  const char *host, *guest, *root = NULL;
  int64_t max = (int64_t) lane->max_copy_out;
  al_op_t *op = NULL;
  int rc = copy_paths(r->params, &host, &guest, &err);
  if (!rc) rc = al_val_get_text(r->params, "root", NULL, &root, &err);
  if (!rc) rc = al_val_get_int(r->params, "maxBytes", max, 1, 4ll << 30, &max, &err);
  if (!rc && !(op = new_op(lane, r->id, kind))) rc = al_err_set(&err, -ENOMEM, "out of memory");
  if (!rc) {
    rc = kind == AL_OP_IN ? al_xfer_in(lane->chan, host, guest, on_copied, op, &op->xfer, &err)
                          : al_xfer_out(lane->chan, guest, host, root, (uint64_t) max, on_copied, op, &op->xfer, &err);
    if (rc) free_op(op);
  }
  if (rc) fail(e, r->id, &err, lane->spec.name);
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
  al_lane_t *lane = ready_lane(e, r);
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
    if (v) al_val_set(v, "ns", al_val_int((int64_t) ns));
    al_engine_done(p->engine, p->id, v);
  }
  al_free(p);
}

void
al_do_ping(al_engine_t *e, al_request_t *r) {
  al_lane_t *lane = ready_lane(e, r);
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
  fail(e, r->id, &err, lane->spec.name);
  al_free(p);
}

void
al_do_close(al_engine_t *e, al_request_t *r) {
  al_err_t err = { 0 }, why = { 0 };
  const char *name, *reason;
  int rc = al_val_get_text(r->params, "lane", "", &name, &err);
  if (!rc) rc = al_val_get_text(r->params, "reason", "closed by its owner", &reason, &err);
  if (!rc && !al_name_valid(name)) rc = al_err_set(&err, AL_EBAD_NAME, "close: \"%.40s\" is not the name of a lane", name);
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
