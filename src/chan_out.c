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
  return (int64_t) al_pacing_most(&c->pacing, uv_hrtime()) - (int64_t) (c->sent - c->acked);
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
  if (pace_left(c) >= buffer_left(c)) return false;
  c->blocked = true;
  al_pacing_full(&c->pacing, c->sent, uv_hrtime());
  return false;
}

static void
add_buf(al_write_t *w, uint8_t *p, size_t n) {
  uv_buf_t *last = w->nbufs > 0 ? &w->bufs[w->nbufs - 1] : NULL;
  if (last && (uint8_t *) last->base + last->len == p) last->len += n;
  else w->bufs[w->nbufs++] = uv_buf_init((char *) p, (unsigned) n);
  w->len += n;
}

/* The header of a frame, and room for `own` bytes behind it. The caller has checked the space; an ACK needs room in the
 * buffer only. */
static uint8_t *
put_header(al_chan_t *c, uint32_t stream, uint8_t type, uint8_t flags, size_t n, size_t own) {
  al_write_t *w = c->w;
  uint8_t *at = w->bytes + w->used;
  al_frame_header(at, stream, type, flags, (uint32_t) n);
  w->used += AL_FRAME_HEADER + own;
  add_buf(w, at, AL_FRAME_HEADER + own);
  if (type != AL_F_ACK) c->sent += AL_FRAME_HEADER + n;
  return at + AL_FRAME_HEADER;
}

static void
put(al_chan_t *c, uint32_t stream, uint8_t type, uint8_t flags, const void *p, size_t n) {
  uint8_t *at = put_header(c, stream, type, flags, n, n);
  if (n > 0) memcpy(at, p, n);
}

/* At most n bytes of stdin; gives how many. Small pieces go together, as a copy. */
static size_t
put_stdin(al_chan_t *c, al_stream_t *s, size_t n) {
  const uint8_t *p = NULL;
  size_t front = al_queue_front(&s->q, &p);
  if (front < AL_WRITE_HOLD || n < AL_WRITE_HOLD) {
    if (n > AL_WRITE_HOLD) n = AL_WRITE_HOLD;
    al_queue_copy(&s->q, put_header(c, s->id, AL_F_DATA, AL_SUB_STDIN, n, n), n);
    return n;
  }
  if (n > front) n = front;
  put_header(c, s->id, AL_F_DATA, AL_SUB_STDIN, n, 0);
  c->w->held[c->w->nheld++] = al_queue_hold(&s->q);
  add_buf(c->w, (uint8_t *) (uintptr_t) p, n);
  return n;
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

/* Credit goes with an acknowledgement, as one write, while the guest has enough left to make us send the next one. */
static bool
credit_due(const al_sub_t *sub, bool with_ack) {
  if (sub->ended || sub->due < AL_ACK_EVERY) return false;
  return with_ack || (sub->due >= AL_CREDIT_EVERY && sub->window <= AL_ACK_LATEST);
}

/* The small frames of one stream. They wait until its open request is out. */
static bool
fill_small(al_chan_t *c, al_stream_t *s, bool with_ack) {
  if (s->over || !s->opened) return true;
  for (uint8_t i = AL_SUB_STDOUT; i < AL_SUBS; i++) {
    al_sub_t *sub = &s->sub[i];
    if (!credit_due(sub, with_ack)) continue;
    uint8_t p[4];
    al__stream_grow(s, sub);
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
  al_queue_drop(&s->q, n);
  if (s->drain_armed && s->q.len < AL_STDIN_QUEUE_LOW) {
    s->drain_armed = false;
    s->drain_due = true;
  }
}

/* What a stream has for us, of its open request or of its stdin, and how much of that its credit allows. */
static size_t
wanted(const al_stream_t *s, size_t *left) {
  if (!s->opened) return *left = s->open.len - s->open_off;
  *left = s->deaf ? 0 : s->q.len;
  return *left > s->room ? s->room : *left;
}

static void
note_senders(al_chan_t *c) {
  uint64_t now = uv_hrtime();
  size_t left;
  c->senders = 0;
  for (unsigned i = 0; i < c->nstreams; i++) {
    const al_stream_t *s = c->streams[i];
    if (s->over || wanted(s, &left) == 0) continue;
    al_pacing_sent(&c->pacing, s->begun ? s->id : c->last_id + 1, now);
    c->senders++;
  }
}

/* One chunk of one stream: of its open request, else of its stdin, else END. Returns true when something was put. */
static bool
fill_chunk(al_chan_t *c, al_stream_t *s) {
  if (s->over) return false;
  size_t left, want = wanted(s, &left);
  size_t most = c->senders > 1 || !s->opened ? AL_CHUNK_MAX : AL_FRAME_MAX;
  if (want > most) want = most;
  /* Crumbs cost more than they bring, and an agent that takes bulk as it comes loses its step. What we wait for is certain:
   * all but a crumb of the window, or of the pacing, is on its way, and that is more than the guest keeps to itself. */
  if (want < left && want < AL_CRUMB) return false;
  if (want > 0) {
    int64_t room = space(c);
    /* A READ or TREE request is one frame. */
    if (room < (int64_t) want && (room < (int64_t) AL_CRUMB || s->kind != AL_F_EXEC)) return wait_for_room(c);
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
    took_stdin(s, put_stdin(c, s, want));
    return true;
  }
  if (left == 0 && s->end_wanted && !s->end_sent && !s->deaf)
    return s->end_sent = try_put(c, s->id, AL_F_END, AL_SUB_STDIN, NULL, 0);
  return false;
}

static void
on_ack_wait(uv_timer_t *t) {
  al_chan_t *c = t->data;
  c->ack_late = true;
  al__chan_flush(c);
}

/* Whether an acknowledgement is put. The guest's agent keeps more unacknowledged than AL_ACK_EVERY, so while a channel is
 * fast it can go on sending until AL_ACK_LATEST have come; should it not, the wait is short. */
static bool
fill_ack(al_chan_t *c) {
  uint64_t more = c->received - c->ack_sent;
  if (c->state != AL_CHAN_READY || more < AL_ACK_EVERY) return false;
  uint64_t now = al__chan_now();
  if (more < AL_ACK_LATEST && !c->ack_late && now - c->ack_at < AL_ACK_FAST_MS) {
    if (!uv_is_active((uv_handle_t *) &c->ack)) uv_timer_start(&c->ack, on_ack_wait, AL_ACK_WAIT_MS, 0);
    return false;
  }
  uint8_t p[8];
  al_put64(p, c->received);
  put(c, 0, AL_F_ACK, 0, p, sizeof p);
  c->ack_sent = c->received;
  c->ack_at = now;
  c->ack_late = false;
  uv_timer_stop(&c->ack);
  return true;
}

static void
fill(al_chan_t *c) {
  c->blocked = false;
  note_senders(c);
  bool acked = fill_ack(c);
  if (!fill_ctl(c) || c->state != AL_CHAN_READY) return;
  for (unsigned i = 0; i < c->nstreams; i++) {
    if (!fill_small(c, c->streams[i], acked)) return;
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
let_go(al_write_t *w) {
  while (w->nheld > 0) al_piece_release(w->held[--w->nheld]);
}

static void
on_written(uv_write_t *req, int status) {
  al_write_t *w = req->data;
  al_chan_t *c = w->c;
  w->in_flight = false;
  let_go(w);
  if (!c) {
    al_free(w);
    return;
  }
  w->len = w->used = w->nbufs = 0;
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
      int r = uv_write(&c->w->req, c->out, c->w->bufs, c->w->nbufs, on_written);
      if (r < 0) {
        let_go(c->w);
        al__chan_fail(c, AL_ECHANNEL_CLOSED, "writing to the guest: %s", uv_strerror(r));
        return;
      }
      c->w->in_flight = true;
    }
  }
  /* So much a guest that reads would have acknowledged. What waits for credit alone is not in `blocked`. */
  bool unread = c->sent - c->acked >= AL_ACK_EVERY;
  if (!c->w->in_flight && !c->blocked && !unread) {
    c->stalled_at = 0;
  } else if (!c->stalled_at) {
    c->stalled_at = al__chan_now();
    al__chan_rearm(c);
  }
  tell_drained(c);
}
