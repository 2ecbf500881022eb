/* SPDX-License-Identifier: Apache-2.0 */
/* Channel, host side: what goes out. Pacing, order of sending, credits. */
#include "chan_int.h"
#include "mem.h"
#include <string.h>

int
al__chan_ctl(al_chan_t *c, uint32_t stream, uint8_t type, uint8_t flags, const void *p, uint32_t n) {
  uint8_t header[AL_FRAME_HEADER];
  if (c->ctl.len + sizeof header + n > AL_CTL_MAX) return -ENOBUFS;
  al_frame_header(header, stream, type, flags, n);
  int r = al_buf_append(&c->ctl, header, sizeof header);
  if (r == 0 && n > 0) {
    r = al_buf_append(&c->ctl, p, n);
    if (r < 0) c->ctl.len -= sizeof header; /* half a frame must not stay */
  }
  return r;
}

static int64_t
pace_left(const al_chan_t *c) {
  return (int64_t) AL_PACING_MAX - (int64_t) (c->sent - c->acked);
}

static int64_t
buffer_left(const al_chan_t *c) {
  return (int64_t) (AL_WRITE_MAX - c->w->len);
}

/* Payload bytes that one more frame may have now; negative when not even a header fits. */
static int64_t
space(const al_chan_t *c) {
  int64_t pace = pace_left(c), buffer = buffer_left(c);
  return (pace < buffer ? pace : buffer) - AL_FRAME_HEADER;
}

/* Something has to wait; remembers it when it waits for the guest's acknowledgement and not for our own buffer. */
static bool
wait_for_room(al_chan_t *c) {
  if (pace_left(c) < buffer_left(c)) c->blocked = true;
  return false;
}

/* The caller has checked the space; an ACK needs room in the buffer only. */
static void
put(al_chan_t *c, uint32_t stream, uint8_t type, uint8_t flags, const void *p, size_t n) {
  al_write_t *w = c->w;
  al_frame_header(w->bytes + w->len, stream, type, flags, (uint32_t) n);
  if (n > 0) memcpy(w->bytes + w->len + AL_FRAME_HEADER, p, n);
  w->len += AL_FRAME_HEADER + n;
  if (type != AL_F_ACK) c->sent += AL_FRAME_HEADER + n;
}

static bool
try_put(al_chan_t *c, uint32_t stream, uint8_t type, uint8_t flags, const void *p, size_t n) {
  if (space(c) < (int64_t) n) return wait_for_room(c);
  put(c, stream, type, flags, p, n);
  return true;
}

/* Everything the guest says about this stream behind an acknowledgement of this place is too late. */
static void
note_reset(al_chan_t *c, uint32_t id) {
  al_stream_t *s = al__stream_find(c, id);
  if (!s) s = al__stream_crossed(c, id);
  if (s) s->reset_at = c->sent;
}

static bool
fill_ctl(al_chan_t *c) {
  size_t at = 0;
  while (at < c->ctl.len) {
    const uint8_t *h = c->ctl.data + at;
    uint32_t n = al_get32(h + 8);
    if (!try_put(c, al_get32(h), h[4], h[5], h + AL_FRAME_HEADER, n)) break;
    if (h[4] == AL_F_RESET) note_reset(c, al_get32(h));
    at += AL_FRAME_HEADER + n;
  }
  if (at > 0) al_buf_drop(&c->ctl, at);
  return c->ctl.len == 0;
}

static bool
fill_signals(al_chan_t *c, al_stream_t *s) {
  for (uint8_t scope = AL_SIGNAL_GROUP; scope <= AL_SIGNAL_TREE; scope++) {
    while (s->signals[scope]) {
      uint8_t p[4];
      unsigned bit = (unsigned) __builtin_ctzll(s->signals[scope]);
      al_put32(p, bit + 1);
      if (!try_put(c, s->id, AL_F_SIGNAL, scope, p, sizeof p)) return false;
      s->signals[scope] &= ~(UINT64_C(1) << bit);
    }
  }
  return true;
}

/* The small frames of one stream. They wait until its open request is out. */
static bool
fill_small(al_chan_t *c, al_stream_t *s) {
  if (s->over || !s->opened) return true;
  for (uint8_t i = AL_SUB_STDOUT; i < AL_SUBS; i++) {
    al_sub_t *sub = &s->sub[i];
    if (sub->due < AL_CREDIT_EVERY || sub->ended) continue;
    uint8_t p[4];
    al_put32(p, sub->due);
    if (!try_put(c, s->id, AL_F_CREDIT, i, p, sizeof p)) return false;
    sub->window += sub->due;
    sub->due = 0;
  }
  if (!fill_signals(c, s)) return false;
  if (s->cancel_due) {
    uint8_t p[4];
    al_put32(p, s->cancel_ms);
    if (!try_put(c, s->id, AL_F_CANCEL, 0, p, sizeof p)) return false;
    s->cancel_due = false;
  }
  if (s->resize_due) {
    uint8_t p[4];
    al_put16(p, s->rows);
    al_put16(p + 2, s->cols);
    if (!try_put(c, s->id, AL_F_RESIZE, 0, p, sizeof p)) return false;
    s->resize_due = false;
  }
  return true;
}

static void
took_stdin(al_stream_t *s, size_t n) {
  s->room -= (uint32_t) n;
  s->q_off += n;
  size_t left = s->q.len - s->q_off;
  if (left == 0) {
    s->q.len = s->q_off = 0;
  } else if (s->q_off >= AL_STDIN_QUEUE_LOW && s->q_off >= left) { /* no byte is moved twice */
    al_buf_drop(&s->q, s->q_off);
    s->q_off = 0;
  }
  if (s->drain_armed && left < AL_STDIN_QUEUE_LOW) {
    s->drain_armed = false;
    s->drain_due = true;
  }
}

/* One chunk of one stream: of its open request, else of its stdin, else END. Returns true when something was put. */
static bool
fill_chunk(al_chan_t *c, al_stream_t *s) {
  if (s->over) return false;
  size_t want, left;
  if (!s->opened) want = left = s->open.len - s->open_off;
  else want = left = s->deaf ? 0 : s->q.len - s->q_off;
  if (s->opened && want > s->room) want = s->room;
  if (want > AL_CHUNK_MAX) want = AL_CHUNK_MAX;
  if (want > 0) {
    int64_t room = space(c);
    /* A READ request is one frame; and crumbs would cost more than they bring. */
    if (room < (int64_t) want && (room < 1024 || s->kind == AL_F_READ)) return wait_for_room(c);
    if (room < (int64_t) want) want = (size_t) room;
  }
  if (!s->opened) {
    /* The guest wants the numbers in rising order, so a stream gets its own when its first frame is written. */
    if (!s->begun) s->id = ++c->last_id;
    put(c, s->id, s->kind, want < left ? AL_FLAG_MORE : 0, s->open.data + s->open_off, want);
    s->begun = true;
    s->open_off += want;
    if (want < left) return true;
    s->opened = true;
    al_buf_deinit(&s->open);
    return true;
  }
  if (want > 0) {
    put(c, s->id, AL_F_DATA, AL_SUB_STDIN, s->q.data + s->q_off, want);
    took_stdin(s, want);
    return true;
  }
  if (left == 0 && s->end_wanted && !s->end_sent && !s->deaf)
    return s->end_sent = try_put(c, s->id, AL_F_END, AL_SUB_STDIN, NULL, 0);
  return false;
}

static void
fill(al_chan_t *c) {
  c->blocked = false;
  if (c->state == AL_CHAN_READY && c->received - c->ack_sent >= AL_ACK_EVERY) {
    uint8_t p[8];
    al_put64(p, c->received);
    put(c, 0, AL_F_ACK, 0, p, sizeof p);
    c->ack_sent = c->received;
  }
  if (!fill_ctl(c) || c->state != AL_CHAN_READY) return;
  for (unsigned i = 0; i < c->nstreams; i++) {
    if (!fill_small(c, c->streams[i])) return;
  }
  for (unsigned idle = 0; c->nstreams > 0 && idle < c->nstreams;) {
    if (c->next >= c->nstreams) c->next = 0;
    idle = fill_chunk(c, c->streams[c->next]) ? 0 : idle + 1;
    c->next++;
  }
}

/* Callbacks, so after the filling: a receiver may write, reset or close. */
static void
tell_drained(al_chan_t *c) {
  for (unsigned i = 0; c->state == AL_CHAN_READY && i < c->nstreams; i++) {
    al_stream_t *s = c->streams[i];
    if (!s->drain_due) continue;
    s->drain_due = false;
    if (!s->over && s->cbs.on_drain) s->cbs.on_drain(s, s->data);
  }
}

static void
on_written(uv_write_t *req, int status) {
  al_write_t *w = req->data;
  al_chan_t *c = w->c;
  w->in_flight = false;
  if (!c) {
    al_free(w);
    return;
  }
  w->len = 0;
  c->stalled_at = 0;
  if (status < 0) al__chan_fail(c, AL_ECHANNEL_CLOSED, "writing to the guest: %s", uv_strerror(status));
  else al__chan_flush(c);
}

void
al__chan_flush(al_chan_t *c) {
  if (c->state >= AL_CHAN_CLOSING) return;
  if (!c->w->in_flight) {
    fill(c);
    if (c->w->len > 0) {
      uv_buf_t b = uv_buf_init((char *) c->w->bytes, (unsigned) c->w->len);
      int r = uv_write(&c->w->req, c->out, &b, 1, on_written);
      if (r < 0) {
        al__chan_fail(c, AL_ECHANNEL_CLOSED, "writing to the guest: %s", uv_strerror(r));
        return;
      }
      c->w->in_flight = true;
    }
  }
  if (!c->w->in_flight && !c->blocked) {
    c->stalled_at = 0;
  } else if (!c->stalled_at) {
    c->stalled_at = al__chan_now();
    al__chan_rearm(c);
  }
  tell_drained(c);
}
