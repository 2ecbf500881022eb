/* SPDX-License-Identifier: Apache-2.0 */
/* Channel, host side: the streams as their users see them. */
#include "chan_int.h"
#include "mem.h"
#include <errno.h>
#include <string.h>

al_stream_t *
al__stream_find(al_chan_t *c, uint32_t id) {
  for (unsigned i = 0; i < c->nstreams; i++) {
    if (c->streams[i]->id == id) return c->streams[i];
  }
  return NULL;
}

al_stream_t *
al__stream_crossed(al_chan_t *c, uint32_t id) {
  al_stream_t *s = c->crossed;
  while (s && s->id != id) s = s->next_crossed;
  return s;
}

void
al__stream_forget(al_chan_t *c, uint64_t acked) {
  for (al_stream_t **at = &c->crossed; *at;) {
    al_stream_t *s = *at;
    if (acked == UINT64_MAX || s->last || (s->reset_at && s->reset_at <= acked)) {
      *at = s->next_crossed;
      al_free(s);
    } else {
      at = &s->next_crossed;
    }
  }
}

/* Its number must be known until nothing of the guest can be on its way any more. Few can be here: each has cost an
 * open request and a RESET, and of those no more go out unacknowledged than the pacing allows. */
static void
keep_crossed(al_stream_t *s) {
  al_stream_t **at = &s->c->crossed;
  while (*at) at = &(*at)->next_crossed;
  *at = s;
}

void
al__stream_finish(al_stream_t *s) {
  al_chan_t *c = s->c;
  unsigned i = 0;
  while (i < c->nstreams && c->streams[i] != s) i++;
  AL_ASSERT(i < c->nstreams);
  c->nstreams--;
  for (int sub = 0; sub < AL_SUBS; sub++) c->grown -= s->sub[sub].grown;
  memmove(c->streams + i, c->streams + i + 1, (c->nstreams - i) * sizeof *c->streams);
  if (c->next > i) c->next--;
  s->over = true; /* what the receiver still calls on it does nothing */
  s->cbs.on_exit(s, s->data, &s->exit);
  al_buf_deinit(&s->open);
  al_queue_deinit(&s->q);
  bool acked = s->reset_at && s->reset_at <= c->acked;
  if (s->begun && !s->last && !acked && c->state == AL_CHAN_READY) keep_crossed(s);
  else al_free(s);
}

int
al__tlv_append(al_buf_t *b, uint16_t tag, const void *p, size_t n) {
  uint8_t h[6];
  if (n > AL_OPEN_MAX) return -ENOBUFS;
  al_put16(h, tag);
  al_put32(h + 2, (uint32_t) n);
  int r = al_buf_append(b, h, sizeof h);
  return r < 0 || n == 0 ? r : al_buf_append(b, p, n);
}

static int
append_text(al_buf_t *b, uint16_t tag, const char *text) {
  return al__tlv_append(b, tag, text, strlen(text));
}

/* Room for one more stream? The request itself is built by the caller into s->open. */
static int
new_stream(al_chan_t *c, uint8_t kind, const al_stream_cbs_t *cbs, void *data, al_stream_t **out, al_err_t *err) {
  if (c->state != AL_CHAN_READY) {
    if (c->why.code) return al_err_set(err, AL_ECHANNEL_CLOSED, "%s", c->why.msg);
    return al_err_set(err, AL_ECHANNEL_CLOSED, "the channel to the guest is not open");
  }
  if (c->nstreams >= AL_STREAMS_MAX) {
    al_err_set(err, AL_EBUSY, "%d commands and transfers are running in the lane at once", AL_STREAMS_MAX);
    al_err_cure(err, "Wait for some of them to end.");
    return AL_EBUSY;
  }
  if (c->last_id >= AL_STREAM_FROM_GUEST - 1 - AL_STREAMS_MAX) {
    al_err_set(err, AL_EBUSY, "the lane has had as many commands and transfers as it can");
    al_err_cure(err, "Create a new lane.");
    return AL_EBUSY;
  }
  al_stream_t *s = al_calloc(1, sizeof *s);
  if (!s) return al_err_set(err, -ENOMEM, "out of memory");
  s->c = c;
  s->kind = kind;
  s->cbs = *cbs;
  s->data = data;
  al_buf_init(&s->open, AL_OPEN_MAX);
  s->room = AL_WINDOW_DEFAULT;
  for (int i = 0; i < AL_SUBS; i++) s->sub[i].window = AL_WINDOW_DEFAULT;
  *out = s;
  return 0;
}

static int
add_stream(al_chan_t *c, al_stream_t *s, int r, al_stream_t **out, al_err_t *err) {
  if (r < 0) {
    al_buf_deinit(&s->open);
    al_free(s);
    if (r != -ENOBUFS) return al_err_set(err, r, "out of memory");
    al_err_set(err, AL_EBAD_OPTION,
      "the request (command and environment, or path) is too long: at most %u bytes", AL_OPEN_MAX);
    al_err_cure(err, "Give large input as stdin, or copy it in as a file.");
    return AL_EBAD_OPTION;
  }
  al__chan_owe(c);
  c->streams[c->nstreams++] = s;
  al__chan_rearm(c);
  al__chan_turn(c);
  *out = s;
  return 0;
}

static uint32_t
grace(int ms) {
  return ms == 0 ? AL_GRACE_DEFAULT_MS : ms < 0 ? 0 : (uint32_t) ms;
}

static int
build_limits(al_buf_t *b, const al_exec_req_t *req) {
  uint8_t p[16];
  int r = 0;
  al_put32(p, grace(req->hold_ms));
  al_put32(p + 4, grace(req->kill_ms));
  if (req->hold_ms || req->kill_ms) r = al__tlv_append(b, AL_TLV_GRACE, p, 8);
  al_put32(p, req->max_processes);
  al_put32(p + 4, req->max_cpu_milli);
  al_put64(p + 8, req->max_memory);
  if (r < 0 || (!req->max_processes && !req->max_cpu_milli && !req->max_memory)) return r;
  return al__tlv_append(b, AL_TLV_LIMITS, p, 16);
}

static int
build_exec(al_buf_t *b, const al_exec_req_t *req) {
  uint8_t p[4];
  int r = append_text(b, AL_TLV_USER, req->user ? req->user : "agent");
  if (r == 0 && req->cwd) r = append_text(b, AL_TLV_CWD, req->cwd);
  al_put32(p, (req->with_stdin ? AL_EXEC_STDIN : 0u) | (req->tty ? AL_EXEC_TTY : 0u)
                | (req->end_tree ? AL_EXEC_END_TREE : 0u) | (req->unpack ? AL_EXEC_UNPACK : 0u));
  if (r == 0) r = al__tlv_append(b, AL_TLV_FLAGS, p, sizeof p);
  if (r == 0) r = build_limits(b, req);
  al_put16(p, req->rows);
  al_put16(p + 2, req->cols);
  if (r == 0 && req->tty) r = al__tlv_append(b, AL_TLV_SIZE, p, sizeof p);
  for (const char *const *a = req->argv; r == 0 && *a; a++) r = append_text(b, AL_TLV_ARG, *a);
  for (const char *const *e = req->env; r == 0 && e && *e; e++) r = append_text(b, AL_TLV_ENV, *e);
  return r;
}

int
al_stream_exec(
  al_chan_t *c, const al_exec_req_t *req, const al_stream_cbs_t *cbs, void *data, al_stream_t **out, al_err_t *err) {
  if (!req->argv || !req->argv[0]) return al_err_set(err, -EINVAL, "no command given");
  al_stream_t *s;
  int r = new_stream(c, AL_F_EXEC, cbs, data, &s, err);
  if (r < 0) return r;
  s->with_stdin = req->with_stdin || req->tty;
  return add_stream(c, s, build_exec(&s->open, req), out, err);
}

static int
open_path(al_chan_t *c, uint8_t kind, const char *path, const char *user, const al_stream_cbs_t *cbs, void *data,
  al_stream_t **out, al_err_t *err) {
  al_stream_t *s;
  int r = new_stream(c, kind, cbs, data, &s, err);
  if (r < 0) return r;
  r = append_text(&s->open, AL_TLV_PATH, path);
  if (r == 0) r = append_text(&s->open, AL_TLV_USER, user ? user : "agent");
  if (r == 0 && s->open.len > AL_CHUNK_MAX) r = -ENOBUFS; /* it must fit into one frame */
  return add_stream(c, s, r, out, err);
}

int
al_stream_read(al_chan_t *c, const char *path, const char *user, const al_stream_cbs_t *cbs, void *data,
  al_stream_t **out, al_err_t *err) {
  return open_path(c, AL_F_READ, path, user, cbs, data, out, err);
}

int
al_stream_tree(al_chan_t *c, const char *path, const char *user, const al_stream_cbs_t *cbs, void *data,
  al_stream_t **out, al_err_t *err) {
  return open_path(c, AL_F_TREE, path, user, cbs, data, out, err);
}

static bool
takes_stdin(const al_stream_t *s) {
  return s->with_stdin && !s->over && !s->deaf && !s->end_wanted;
}

static int64_t
queued(al_stream_t *s, int r) {
  if (r < 0) return r;
  al__chan_turn(s->c);
  if (s->q.len >= AL_STDIN_QUEUE_LOW) s->drain_armed = true;
  return (int64_t) s->q.len;
}

int64_t
al_stream_write(al_stream_t *s, const void *p, size_t n) {
  if (!takes_stdin(s)) return 0;
  if (s->q.len + n > AL_STDIN_QUEUE_MAX) return -ENOBUFS;
  return queued(s, al_queue_append(&s->q, p, n));
}

int64_t
al_stream_give(al_stream_t *s, void *p, size_t n) {
  if (takes_stdin(s)) return queued(s, al_queue_take(&s->q, p, n));
  al_free(p);
  return 0;
}

size_t
al_stream_queued(const al_stream_t *s) {
  return s->q.len;
}

/* The first credit means that half a window has come and was consumed. From there on the window must cover the way from
 * the guest to the receiver and back, or the guest waits for credit while everybody else waits for the guest. */
void
al__stream_grow(al_stream_t *s, al_sub_t *sub) {
  if (sub->grown || s->c->grown >= AL_GROWN_MAX) return;
  sub->grown = true;
  s->c->grown++;
  sub->due += AL_WINDOW_GROWN - AL_WINDOW_DEFAULT;
}

/* Whoever waits for room need not wait any more. */
void
al__stream_deaf(al_stream_t *s) {
  s->deaf = true;
  s->drain_due = s->drain_armed;
  s->drain_armed = false;
  al_queue_deinit(&s->q);
}

void
al_stream_end(al_stream_t *s) {
  if (s->over || s->end_wanted || !s->with_stdin) return;
  s->end_wanted = true;
  al__chan_turn(s->c);
}

void
al_stream_consumed(al_stream_t *s, int sub, size_t n) {
  if (s->over) return;
  AL_ASSERT(sub >= 0 && sub < AL_SUBS && n <= s->sub[sub].held);
  s->sub[sub].held -= (uint32_t) n;
  s->sub[sub].due += (uint32_t) n;
  if (s->sub[sub].due >= AL_CREDIT_EVERY && !s->sub[sub].ended) al__chan_turn(s->c);
}

void
al_stream_signal(al_stream_t *s, int signo, bool tree) {
  if (s->over || signo < 1 || signo > 64 || s->kind != AL_F_EXEC) return;
  s->signals[tree ? AL_SIGNAL_TREE : AL_SIGNAL_GROUP] |= UINT64_C(1) << (signo - 1);
  al__chan_turn(s->c);
}

void
al_stream_resize(al_stream_t *s, uint16_t rows, uint16_t cols) {
  if (s->over || s->kind != AL_F_EXEC) return;
  s->rows = rows;
  s->cols = cols;
  s->resize_due = true;
  al__chan_turn(s->c);
}

void
al_stream_cancel(al_stream_t *s, uint32_t grace_ms) {
  if (s->over || s->kind != AL_F_EXEC) return;
  if (!s->begun) {
    al_stream_reset(s, NULL);
    return;
  }
  /* Nor is END sent: the end of half its input may mean anything to a command, such as a shell that reads a script. */
  al__stream_deaf(s);
  if (!s->cancel_due || grace_ms < s->cancel_ms) s->cancel_ms = grace_ms;
  s->cancel_due = true;
  al__chan_turn(s->c);
}

void
al_stream_reset(al_stream_t *s, const al_err_t *why) {
  if (s->over) return;
  s->over = true;
  s->exit.kind = -1;
  if (why && why->code) s->exit.err = *why;
  else al_err_set(&s->exit.err, AL_EABORTED, "the caller cancelled it");
  al_chan_t *c = s->c;
  if (s->begun && c->state == AL_CHAN_READY && al__chan_ctl(c, s->id, AL_F_RESET, 0, NULL, 0) < 0) {
    al__chan_fail(c, AL_ECHANNEL_CLOSED, "the guest takes nothing any more");
  }
  al__chan_turn(c);
}
