/* SPDX-License-Identifier: Apache-2.0 */
/* One command in a lane: feeds stdin with back-pressure, collects or hands on the output, settles once. */
#include "exec.h"
#include "lines.h"
#include "mem.h"
#include "tail.h"
#include <errno.h>
#include <stddef.h>
#include <string.h>

#define INPUT_CHUNK 65536u
#define INPUT_AHEAD 262144u /* stdin bytes that we keep queued in the stream */

typedef struct al_taken_s {
  size_t handed; /* given to the receiver and not yet taken back with al_exec_taken */
  size_t owed;   /* bytes of the stream whose credit has not been given back */
} al_taken_t;

struct al_exec_s {
  al_stream_t *s; /* NULL after its on_exit */
  al_exec_cbs_t cbs;
  void *data;
  bool lines, stream, input_open, want_drain;
  bool ended;    /* the stream is over, `result` or `err` is set */
  bool settling; /* `handle` is being closed; on_done comes from there */
  size_t max;
  al_budget_t *budget;
  size_t kept; /* counted in budget->used */
  al_buf_t input;
  size_t input_off;
  al_buf_t out, errs, batch;
  al_tail_t out_tail, errs_tail;
  bool out_any; /* the tail has a line: the next one is joined with '\n' */
  al_lines_t split;
  al_taken_t taken[AL_SUBS];
  al_exec_result_t result;
  al_err_t err;
  al_chan_watch_t watch; /* one whose lines nobody takes must not outlive the channel */
  uv_timer_t handle; /* never started: closing it is how on_done gets to the loop */
};

/* Brings the lane's budget up to date; false when it is passed. */
static bool
within_budget(al_exec_t *e) {
  if (!e->budget) return true;
  size_t kept = e->out.len + e->errs.len + e->split.part.len + e->out_tail.len + e->errs_tail.len;
  e->budget->used = e->budget->used - e->kept + kept;
  e->kept = kept;
  return e->budget->used <= e->budget->max;
}

static void
drop_output(al_exec_t *e) {
  al_buf_deinit(&e->out);
  al_buf_deinit(&e->errs);
  al_tail_deinit(&e->out_tail);
  al_tail_deinit(&e->errs_tail);
  al_lines_deinit(&e->split);
  within_budget(e);
}

static void
deinit(al_exec_t *e) {
  drop_output(e);
  al_buf_deinit(&e->input);
  al_buf_deinit(&e->batch);
  al_free(e);
}

static int
collect(al_buf_t *b, const al_tail_t *t, char **out, size_t *len, uint64_t *dropped) {
  if (t) {
    *out = al_tail_copy(t, len);
    *dropped = t->dropped;
  } else if (b->data) {
    *out = (char *) b->data; /* a zero byte follows by al_buf's contract */
    *len = b->len;
    al_buf_init(b, 0);
  } else {
    *out = al_strdup("");
    *len = 0;
  }
  return *out ? 0 : -ENOMEM;
}

static void
on_handle_closed(uv_handle_t *h) {
  al_exec_t *e = h->data;
  al_exec_result_t *r = &e->result;
  if (!e->err.code &&
      (collect(&e->out, e->lines ? &e->out_tail : NULL, &r->out, &r->out_len, &r->out_dropped) < 0 ||
        collect(&e->errs, e->lines ? &e->errs_tail : NULL, &r->errs, &r->errs_len, &r->errs_dropped) < 0)) {
    al_free(r->out);
    al_free(r->errs);
    memset(r, 0, sizeof *r);
    al_err_set(&e->err, AL_ENO_MEMORY, "out of memory for the command's output");
  }
  drop_output(e);
  e->budget = NULL; /* it may be gone after on_done */
  e->cbs.on_done(e, e->data, r, &e->err);
  deinit(e);
}

/* A good result waits until every line that was handed on has been taken, so that nothing of this command can come
 * after its result. An error does not wait: whoever gets it has given up on the output. Nor does a stream: its receiver
 * keeps what it has not used yet, and may want to know the status first. */
static void
settle(al_exec_t *e) {
  if (!e->ended || e->settling) return;
  if (!e->err.code && !e->stream && (e->taken[AL_SUB_STDOUT].handed > 0 || e->taken[AL_SUB_STDERR].handed > 0)) return;
  e->settling = true;
  al_chan_unwatch(&e->watch);
  uv_close((uv_handle_t *) &e->handle, on_handle_closed);
}

static void
give_up(al_exec_t *e, int code, const char *what) {
  if (!e->s) return;
  al_err_t why = { 0 };
  if (code == AL_EOUTPUT_LIMIT)
    al_err_set(&why, code, "the command wrote more than %zu bytes to %s and was stopped", e->max, what);
  else al_err_set(&why, AL_ENO_MEMORY, "out of memory for the command's %s", what);
  al_stream_reset(e->s, &why);
}

/* What the command had kept is freed at once: the others, whose bytes may be next in the same read, must not pay for
 * it. */
static void
give_up_budget(al_exec_t *e) {
  al_err_t why = { 0 };
  al_err_set(&why, AL_EOUTPUT_LIMIT,
    "the commands of this lane kept more than %llu bytes of output in memory (option maxBufferedBytes); this one was stopped",
    (unsigned long long) e->budget->max);
  al_err_cure(&why, "Raise maxBufferedBytes, run fewer commands at a time, use onLine, or write large output to a file and copy it out.");
  drop_output(e);
  al_stream_reset(e->s, &why);
}

static int
on_line(void *data, const uint8_t *line, size_t len, bool cut) {
  al_exec_t *e = data;
  (void) cut; /* a piece of an overlong line is a line for the receiver */
  int r = al_buf_append(&e->batch, line, len);
  if (r == 0) r = al_buf_append(&e->batch, "\n", 1);
  if (r == 0 && e->out_any) r = al_tail_append(&e->out_tail, "\n", 1);
  if (r == 0) r = al_tail_append(&e->out_tail, line, len);
  e->out_any = true;
  return r;
}

/* Gives credit back. The bytes handed on and the bytes of the stream differ (line ends, unfinished lines), so the rule
 * is: never is more of the stream's credit withheld than the receiver still holds. */
static void
give_credit(al_exec_t *e, int sub) {
  al_taken_t *t = &e->taken[sub];
  if (t->owed <= t->handed) return;
  size_t n = t->owed - t->handed;
  t->owed = t->handed;
  if (e->s) al_stream_consumed(e->s, sub, n);
}

static void
hand_batch(al_exec_t *e) {
  if (e->batch.len == 0) return;
  size_t n = e->batch.len;
  if (e->cbs.on_lines) {
    e->taken[AL_SUB_STDOUT].handed += n;
    e->cbs.on_lines(e, e->data, e->batch.data, n);
  }
  if (e->batch.room > 2 * AL_WINDOW_DEFAULT)
    al_buf_deinit(&e->batch); /* one giant line must not cost its memory for ever */
  else e->batch.len = 0;
}

static void
on_data(al_stream_t *s, void *data, int sub, const uint8_t *p, size_t n) {
  al_exec_t *e = data;
  const char *what = sub == AL_SUB_STDOUT ? "stdout" : "stderr";
  e->taken[sub].owed += n;
  int r = 0;
  if (e->stream) {
    e->taken[sub].handed += n;
    e->cbs.on_bytes(e, e->data, sub, p, n);
  } else if (e->lines && sub == AL_SUB_STDOUT) {
    r = al_lines_feed(&e->split, p, n, on_line, e);
    if (r == 0) hand_batch(e);
  } else if (e->lines) {
    r = al_tail_append(&e->errs_tail, p, n);
  } else {
    r = al_buf_append(sub == AL_SUB_STDOUT ? &e->out : &e->errs, p, n);
  }
  if (r == -ENOBUFS) give_up(e, AL_EOUTPUT_LIMIT, what);
  else if (r < 0) give_up(e, AL_ENO_MEMORY, what);
  else if (!within_budget(e)) give_up_budget(e);
  else give_credit(e, sub);
  (void) s;
}

static int
finish_lines(al_exec_t *e) {
  if (!e->lines) return 0;
  int r = al_lines_finish(&e->split, on_line, e);
  if (r == 0) hand_batch(e);
  return r;
}

static void
on_end(al_stream_t *s, void *data, int sub) {
  al_exec_t *e = data;
  (void) s;
  if (sub == AL_SUB_STDOUT && finish_lines(e) < 0) give_up(e, AL_ENO_MEMORY, "stdout");
}

/* Moves stdin from `input` into the stream as long as that has room. */
static void
pump(al_exec_t *e) {
  while (e->s && e->input_off < e->input.len) {
    size_t n = e->input.len - e->input_off;
    if (n > INPUT_CHUNK) n = INPUT_CHUNK;
    int64_t queued = al_stream_write(e->s, e->input.data + e->input_off, n);
    if (queued < 0) {
      give_up(e, AL_ENO_MEMORY, "stdin");
      return;
    }
    e->input_off += n;
    if (queued >= INPUT_AHEAD) break;
  }
  if (e->input_off < e->input.len) return;
  al_buf_deinit(&e->input);
  e->input_off = 0;
  if (!e->input_open && e->s) al_stream_end(e->s);
}

static void
on_drain(al_stream_t *s, void *data) {
  al_exec_t *e = data;
  (void) s;
  pump(e);
  if (e->input.len == 0 && e->want_drain && e->input_open && e->cbs.on_drain) {
    e->want_drain = false;
    e->cbs.on_drain(e, e->data);
  }
}

static void
on_exit(al_stream_t *s, void *data, const al_exit_t *x) {
  al_exec_t *e = data;
  (void) s;
  bool good = x->kind == AL_EXIT_CODE || x->kind == AL_EXIT_SIGNAL;
  if (good && finish_lines(e) < 0) al_err_set(&e->err, AL_ENO_MEMORY, "out of memory for the command's stdout");
  e->s = NULL;
  if (!good) e->err = x->err;
  e->result.signal = x->kind == AL_EXIT_SIGNAL ? (int) x->value : 0;
  e->result.exit_code = x->kind == AL_EXIT_SIGNAL ? 128 + (int) x->value : (int) x->value;
  e->result.spawn_ns = x->ns;
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
  al_exec_t *e = al_calloc(1, sizeof *e);
  if (!e) return al_err_set(err, AL_ENO_MEMORY, "out of memory");
  e->cbs = *cbs;
  e->data = data;
  e->lines = opts->lines && !opts->stream;
  e->stream = opts->stream;
  e->input_open = opts->input_open;
  e->max = opts->max_output ? opts->max_output : AL_OUTPUT_MAX;
  e->budget = opts->budget;
  al_buf_init(&e->input, 0);
  al_buf_init(&e->out, e->max);
  al_buf_init(&e->errs, e->max);
  al_buf_init(&e->batch, 0);
  al_tail_init(&e->out_tail, AL_TAIL_DEFAULT);
  al_tail_init(&e->errs_tail, AL_TAIL_DEFAULT);
  al_lines_init(&e->split, AL_LINE_MAX);
  int r = opts->req.with_stdin && opts->input_len > 0 ? al_buf_append(&e->input, opts->input, opts->input_len) : 0;
  if (r < 0) al_err_set(err, AL_ENO_MEMORY, "out of memory for the command's stdin");
  else r = al_stream_exec(c, &opts->req, &stream_cbs, e, &e->s, err);
  if (r < 0) {
    deinit(e);
    return r;
  }
  uv_timer_init(al_chan_loop(c), &e->handle);
  e->handle.data = e;
  e->watch.cb = on_chan_end;
  al_chan_watch(c, &e->watch);
  pump(e);
  *out = e;
  return 0;
}

void
al_exec_taken(al_exec_t *e, int sub, size_t n) {
  if (sub != AL_SUB_STDOUT && sub != AL_SUB_STDERR) return;
  al_taken_t *t = &e->taken[sub];
  t->handed -= n < t->handed ? n : t->handed;
  give_credit(e, sub);
  settle(e);
}

int64_t
al_exec_write(al_exec_t *e, const void *p, size_t n) {
  if (!e->s || !e->input_open) return 0;
  int64_t queued = 0;
  if (e->input.len > 0) { /* what was given at the start goes first */
    int r = e->input.len - e->input_off + n > AL_STDIN_QUEUE_MAX ? -ENOBUFS : al_buf_append(&e->input, p, n);
    if (r < 0) return r;
    queued = (int64_t) (e->input.len - e->input_off);
  } else {
    queued = al_stream_write(e->s, p, n);
  }
  if (queued >= AL_STDIN_QUEUE_LOW) e->want_drain = true;
  return queued;
}

void
al_exec_end(al_exec_t *e) {
  e->input_open = false;
  if (e->s && e->input.len == 0) al_stream_end(e->s);
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
  if (e->s) {
    al_stream_reset(e->s, why);
  } else if (!e->settling) { /* it has ended and waits for its lines to be taken */
    if (why && why->code) e->err = *why;
    else al_err_set(&e->err, AL_EABORTED, "the caller cancelled it");
    settle(e);
  }
}
