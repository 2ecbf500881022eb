/* SPDX-License-Identifier: Apache-2.0 */
/* One command in a lane: feeds stdin with back-pressure, collects or hands on the output, settles once. */
#include "exec_int.h"
#include "mem.h"
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define GUEST_EOPNOTSUPP 95      /* the guest is Linux whatever this is */

static void
deinit(al_exec_t *e) {
  for (int i = 0; i < 2; i++) al__out_deinit(&e->out[i]);
  al__out_within_budget(e);
  al_free(e);
}

static void
collect(al_exec_t *e) {
  al_exec_result_t *r = &e->result;
  for (int i = 0; i < 2 && e->err.code && !e->cancelled; i++) al__out_only_tail(&e->out[i]);
  r->out_cuts = e->out[0].split.cuts;
  r->errs_cuts = e->out[1].split.cuts;
  int rc = al__out_collect(&e->out[0], &r->out, &r->out_len, &r->out_dropped);
  if (al__out_collect(&e->out[1], &r->errs, &r->errs_len, &r->errs_dropped) == 0 && rc == 0) return;
  if (!e->err.code) al_err_set(&e->err, AL_ENO_MEMORY, "out of memory for the command's output");
}

static void
on_timer_closed(uv_handle_t *h) {
  al_exec_t *e = h->data;
  collect(e);
  for (int i = 0; i < 2; i++) al__out_deinit(&e->out[i]);
  al__out_within_budget(e);
  e->budget = NULL; /* it may be gone after on_done */
  e->cbs.on_done(e, e->data, &e->result, &e->err);
  deinit(e);
}

/* A good result waits until every line that was handed on has been taken, so that nothing of this command can come
 * after its result. An error does not wait: whoever gets it has given up on the output. Nor does a stream: its receiver
 * keeps what it has not used yet, and may want to know the status first. */
static void
settle(al_exec_t *e) {
  if (!e->ended || e->settling) return;
  for (int i = 0; i < 2 && !e->err.code; i++) {
    if (e->out[i].keep != AL_KEEP_LINES || e->out[i].handed == 0) continue;
    if (!e->waiting && e->cbs.on_wait) e->cbs.on_wait(e, e->data);
    e->waiting = true;
    return;
  }
  e->settling = true;
  al_chan_unwatch(&e->watch);
  uv_close((uv_handle_t *) &e->timer, on_timer_closed);
}

static void
on_patience(uv_timer_t *t) {
  al_exec_t *e = t->data;
  if (!e->s) return;
  size_t n = strlen(e->err.msg);
  snprintf(e->err.msg + n, sizeof e->err.msg - n, " (the guest has not said that it is gone)");
  al_stream_reset(e->s, &e->err);
}

static void
cancel(al_exec_t *e, const al_err_t *why, int kill_ms) {
  if (e->settling || e->cancelled) return;
  if (!e->err.code) {
    if (why && why->code) e->err = *why;
    else al_err_set(&e->err, AL_EABORTED, "the caller cancelled it");
  }
  e->cancelled = true;
  for (int i = 0; i < 2; i++) al__out_only_tail(&e->out[i]);
  al__out_within_budget(e);
  if (!e->s) { /* it has ended and waits for its lines to be taken */
    settle(e);
    return;
  }
  uint32_t grace = kill_ms == 0 ? AL_GRACE_DEFAULT_MS : kill_ms < 0 ? 0 : (uint32_t) kill_ms;
  uv_update_time(e->timer.loop);
  uv_timer_start(&e->timer, on_patience, (uint64_t) grace + AL_CANCEL_MARGIN_MS, 0);
  al_stream_cancel(e->s, grace);
}

static void
on_timeout(uv_timer_t *t) {
  al_exec_t *e = t->data;
  al_err_t why = { 0 };
  al_err_set(&why, AL_ETIMEOUT, "the command was not done after %.3g s (timeoutMs) and was ended",
    (double) e->timeout_ms / 1000);
  cancel(e, &why, e->kill_ms);
}

static void
give_up_memory(al_exec_t *e, const char *what) {
  al_err_t why = { 0 };
  al_err_set(&why, AL_ENO_MEMORY, "out of memory for the command's %s", what);
  cancel(e, &why, -1);
}

static void
give_up_output(al_exec_t *e, const al_out_t *o) {
  al_err_t why = { 0 };
  al_err_set(&why, AL_EOUTPUT_LIMIT, "the command wrote more than %zu bytes to %s and was stopped", o->whole.cap,
    o->sub == AL_SUB_STDOUT ? "stdout" : "stderr");
  cancel(e, &why, -1);
}

/* What the command had kept is freed at once: the others, whose bytes may be next in the same read, must not pay for
 * it. */
static void
give_up_budget(al_exec_t *e) {
  al_err_t why = { 0 };
  al_err_set(&why, AL_EOUTPUT_LIMIT,
    "the commands of this lane kept more than %llu bytes of output in memory (option maxBufferedBytes); this one was stopped",
    (unsigned long long) e->budget->max);
  al_err_cure(&why,
    "Raise maxBufferedBytes, run fewer commands at a time, use onLine, or write large output to a file and copy it out.");
  cancel(e, &why, -1);
}

static void
on_data(al_stream_t *s, void *data, int sub, const uint8_t *p, size_t n) {
  al_exec_t *e = data;
  al_out_t *o = &e->out[sub - 1];
  (void) s;
  o->owed += n;
  int r = al__out_take(o, p, n);
  if (r == -ENOBUFS) {
    give_up_output(e, o);
    (void) al__out_take(o, p, n); /* for the tail */
  } else if (r < 0 && !e->cancelled) {
    give_up_memory(e, "output");
  } else if (!e->cancelled && !al__out_within_budget(e)) {
    give_up_budget(e);
  }
  al__out_credit(o);
}

static void
on_end(al_stream_t *s, void *data, int sub) {
  al_exec_t *e = data;
  (void) s;
  if (sub != AL_SUB_STDIN && al__out_finish(&e->out[sub - 1]) < 0) give_up_memory(e, "output");
}

static void
on_drain(al_stream_t *s, void *data) {
  al_exec_t *e = data;
  (void) s;
  if (!e->want_drain || !e->input_open || !e->cbs.on_drain) return;
  e->want_drain = false;
  e->cbs.on_drain(e, e->data);
}

static void
on_exit(al_stream_t *s, void *data, const al_exit_t *x) {
  al_exec_t *e = data;
  (void) s;
  bool good = x->kind == AL_EXIT_CODE || x->kind == AL_EXIT_SIGNAL;
  for (int i = 0; i < 2 && good; i++)
    if (al__out_finish(&e->out[i]) < 0 && !e->err.code)
      al_err_set(&e->err, AL_ENO_MEMORY, "out of memory for the command's output");
  e->s = NULL;
  uv_timer_stop(&e->timer); /* it was in time, however long its lines wait to be taken */
  if (good) {
    e->result.signal = x->kind == AL_EXIT_SIGNAL ? (int) x->value : 0;
    e->result.exit_code = x->kind == AL_EXIT_SIGNAL ? 128 + (int) x->value : (int) x->value;
    e->result.oom = x->oom;
    e->result.spawn_ns = x->ns;
  } else if (!e->err.code) {
    bool limit = x->kind == AL_EXIT_ERROR && x->value == GUEST_EOPNOTSUPP && e->limited;
    e->err = x->err;
    if (limit) al_err_set(&e->err, AL_ELIMIT_UNENFORCEABLE, "the guest cannot enforce it: %s", x->text);
  }
  e->ended = true;
  settle(e);
}

static void
on_chan_end(al_chan_watch_t *w, const al_err_t *why) {
  al_exec_t *e = (al_exec_t *) (void *) ((char *) w - offsetof(al_exec_t, watch));
  if (!e->err.code) e->err = *why;
  settle(e);
}

int
al_exec_start(
  al_chan_t *c, const al_exec_opts_t *opts, const al_exec_cbs_t *cbs, void *data, al_exec_t **out, al_err_t *err) {
  static const al_stream_cbs_t stream_cbs = {
    .on_data = on_data, .on_end = on_end, .on_drain = on_drain, .on_exit = on_exit
  };
  const al_exec_req_t *req = &opts->req;
  AL_AUTO_FREE void *input = opts->input;
  al_exec_t *e = al_calloc(1, sizeof *e);
  if (!e) return al_err_set(err, AL_ENO_MEMORY, "out of memory");
  e->cbs = *cbs;
  e->data = data;
  e->input_open = opts->input_open;
  e->budget = opts->budget;
  e->kill_ms = req->kill_ms;
  e->timeout_ms = opts->timeout_ms;
  e->limited = req->max_processes || req->max_cpu_milli || req->max_memory;
  e->result.exit_code = -1;
  size_t max = opts->max_output ? opts->max_output : AL_OUTPUT_MAX;
  al_keep_t whole = opts->stream ? AL_KEEP_NONE : AL_KEEP_WHOLE;
  al__out_init(e, AL_SUB_STDOUT, opts->lines && !opts->stream ? AL_KEEP_LINES : whole, max);
  al_keep_t errs = opts->err_lines ? AL_KEEP_LINES : opts->lines ? AL_KEEP_TAIL : whole;
  al__out_init(e, AL_SUB_STDERR, opts->stream ? AL_KEEP_NONE : errs, max);
  int r = al_stream_exec(c, req, &stream_cbs, e, &e->s, err);
  if (r < 0) {
    deinit(e);
    return r;
  }
  uv_timer_init(al_chan_loop(c), &e->timer);
  e->timer.data = e;
  uv_update_time(e->timer.loop);
  if (e->timeout_ms) uv_timer_start(&e->timer, on_timeout, e->timeout_ms, 0);
  e->watch.cb = on_chan_end;
  al_chan_watch(c, &e->watch);
  if (al_stream_give(e->s, al_steal(&input), opts->input_len) < 0) give_up_memory(e, "stdin");
  else if (!e->input_open) al_stream_end(e->s);
  *out = e;
  return 0;
}

void
al_exec_taken(al_exec_t *e, int sub, size_t n) {
  if (sub != AL_SUB_STDOUT && sub != AL_SUB_STDERR) return;
  al_out_t *o = &e->out[sub - 1];
  o->handed -= n < o->handed ? n : o->handed;
  al__out_credit(o);
  settle(e);
}

int64_t
al_exec_write(al_exec_t *e, void *p, size_t n) {
  AL_AUTO_FREE void *bytes = p;
  if (!e->s || !e->input_open || e->cancelled) return 0;
  if ((uint64_t) al_stream_queued(e->s) + n > AL_STDIN_QUEUE_MAX) return -ENOBUFS;
  int64_t queued = al_stream_give(e->s, al_steal(&bytes), n);
  if (queued >= AL_STDIN_QUEUE_LOW) e->want_drain = true;
  return queued;
}

void
al_exec_end(al_exec_t *e) {
  e->input_open = false;
  if (e->s) al_stream_end(e->s);
}

void
al_exec_signal(al_exec_t *e, int signo, bool tree) {
  if (e->s) al_stream_signal(e->s, signo, tree);
}

void
al_exec_resize(al_exec_t *e, uint16_t rows, uint16_t cols) {
  if (e->s) al_stream_resize(e->s, rows, cols);
}

void
al_exec_cancel(al_exec_t *e, const al_err_t *why) {
  cancel(e, why, e->kill_ms);
}
