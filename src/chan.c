/* SPDX-License-Identifier: Apache-2.0 */
/* Channel, host side: its life from HELLO to on_closed, deadlines, liveness, configuration and pings. */
#include "chan_int.h"
#include "mem.h"
#include "platform.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define HANDSHAKE_MS 10000
#define PING_MS 5000
#define SILENCE_MS 15000
#define TICKS 5 /* the clock looks at least this often in the time of one ping, while something is owed */
#define CLOCK_STEP_NS 1000000000   /* the guest is told at once when the host's clock has moved by more against time */
#define CLOCK_EVERY_NS 10000000000u /* and else as often, since a starved or stopped guest misses time */
#define SLOW_NS (2 * (uint64_t) AL_PACING_SLOW_NS) /* fewer things wait behind our data than behind the guest's */

uint64_t
al__chan_now(void) {
  return uv_hrtime() / 1000000;
}

uv_loop_t *
al_chan_loop(al_chan_t *c) {
  return c->loop;
}

void
al_chan_watch(al_chan_t *c, al_chan_watch_t *w) {
  w->next = c->watches;
  if (w->next) w->next->at = &w->next;
  w->at = &c->watches;
  c->watches = w;
}

void
al_chan_unwatch(al_chan_watch_t *w) {
  if (!w->at) return;
  *w->at = w->next;
  if (w->next) w->next->at = w->at;
  w->at = NULL;
}

/* The optimiser may not drop these stores. */
static void
wipe(uint8_t *p, size_t n) {
  volatile uint8_t *v = p;
  while (n-- > 0) *v++ = 0;
}

static void
stop_reading(al_chan_t *c) {
  if (!c->in) return;
  uv_read_stop(c->in);
  c->in->data = c->in_data;
  c->in = c->out = NULL;
}

static void
start_closing(al_chan_t *c) {
  c->state = AL_CHAN_CLOSING;
  stop_reading(c);
  wipe(c->opts.secret, sizeof c->opts.secret);
  al__chan_turn(c);
}

void
al__chan_fail(al_chan_t *c, int code, const char *fmt, ...) {
  if (c->state >= AL_CHAN_CLOSING) return;
  char msg[AL_ERR_MSG_MAX];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(msg, sizeof msg, fmt, ap);
  va_end(ap);
  al_err_set(&c->why, code, "%s", msg);
  start_closing(c);
}

void
al_chan_close(al_chan_t *c, const al_err_t *why) {
  if (c->state >= AL_CHAN_CLOSING) return;
  c->by_user = true;
  if (why && why->code) c->why = *why;
  else al_err_set(&c->why, AL_ELANE_CLOSED, "the lane was closed");
  start_closing(c);
}

static void
on_handle_closed(uv_handle_t *h) {
  al_chan_t *c = h->data;
  if (--c->handles > 0) return;
  al_err_t none = { 0 };
  c->cbs.on_closed(c, c->data, c->by_user ? &none : &c->why);
  if (c->w->in_flight) c->w->c = NULL;
  else al_free(c->w);
  al_buf_deinit(&c->ctl);
  al_free(c->rbuf);
  al_free(c);
}

/* Tells everybody who waits, streams first; what they do in their callbacks cannot open anything any more. */
static void
end_everything(al_chan_t *c) {
  c->state = AL_CHAN_DEAD;
  while (c->nstreams > 0) {
    al_stream_t *s = c->streams[c->nstreams - 1];
    if (!s->over) {
      s->exit.kind = -1;
      s->exit.err = c->why;
    }
    al__stream_finish(s);
  }
  while (c->watches) {
    al_chan_watch_t *w = c->watches;
    al_chan_unwatch(w);
    w->cb(w, &c->why);
  }
  if (c->config_cb) {
    void (*cb)(void *, int, const al_err_t *) = c->config_cb;
    c->config_cb = NULL;
    cb(c->config_data, c->why.code, &c->why);
  }
  al__stream_forget(c, UINT64_MAX);
  for (unsigned i = 0; i < c->npings; i++) {
    if (c->pings[i].cb) c->pings[i].cb(c->pings[i].data, AL_ECHANNEL_CLOSED, 0);
  }
  c->npings = 0;
  uv_close((uv_handle_t *) &c->turn, on_handle_closed);
  uv_close((uv_handle_t *) &c->clock, on_handle_closed);
  uv_close((uv_handle_t *) &c->ack, on_handle_closed);
}

static void
on_turn(uv_timer_t *t) {
  al_chan_t *c = t->data;
  for (unsigned i = 0; c->state < AL_CHAN_CLOSING && i < c->nstreams;) {
    if (c->streams[i]->over) {
      al__stream_finish(c->streams[i]);
      i = 0; /* the callback may have changed the table */
    } else {
      i++;
    }
  }
  if (c->state == AL_CHAN_CLOSING) {
    end_everything(c);
    return;
  }
  al__chan_flush(c);
}

void
al__chan_turn(al_chan_t *c) {
  if (c->state != AL_CHAN_DEAD) uv_timer_start(&c->turn, on_turn, 0, 0);
}

bool
al__chan_owed(const al_chan_t *c) {
  return c->nstreams > 0 || c->config_cb || c->npings > 0;
}

void
al__chan_owe(al_chan_t *c) {
  if (!al__chan_owed(c)) c->rx_at = al__chan_now();
}

static int
send_ping(al_chan_t *c, void (*cb)(void *data, int status, uint64_t ns), void *data) {
  uint8_t p[8];
  al_put64(p, ++c->token);
  int r = al__chan_ctl(c, 0, AL_F_PING, 0, p, sizeof p);
  if (r < 0) return r;
  c->pings[c->npings++] = (al_ping_t){ .token = c->token, .at_ns = uv_hrtime(), .cb = cb, .data = data };
  if (!cb) c->live_ping = true;
  al__chan_turn(c);
  return 0;
}

/* Checks every deadline that is over. Returns false when the channel failed. */
static bool
check_deadlines(al_chan_t *c, uint64_t now) {
  uint64_t silence = c->opts.silence_ms;
  if (c->state == AL_CHAN_HELLO && now >= c->hello_due) {
    al__chan_fail(c, AL_ECHANNEL_CLOSED, "the guest's agent did not answer within %llu ms",
      (unsigned long long) c->opts.handshake_ms);
  } else if (c->config_cb && now >= c->config_due) {
    al__chan_fail(c, AL_ECHANNEL_CLOSED, "the guest's agent did not take its configuration within %llu ms",
      (unsigned long long) c->opts.handshake_ms);
  } else if (c->stalled_at && now >= c->stalled_at + silence) {
    al__chan_fail(c, AL_ECHANNEL_CLOSED, "the guest has not read for %.1f s", (double) (now - c->stalled_at) / 1000);
  } else if (al__chan_owed(c) && now >= c->rx_at + silence) {
    al__chan_fail(c, AL_ECHANNEL_CLOSED, "the guest has not answered for %.1f s", (double) (now - c->rx_at) / 1000);
  } else if (al__chan_owed(c) && now >= c->rx_at + c->opts.ping_ms && !c->live_ping && send_ping(c, NULL, NULL) < 0) {
    al__chan_fail(c, AL_ECHANNEL_CLOSED, "the guest takes nothing any more");
  }
  return c->state < AL_CHAN_CLOSING;
}

static void
on_clock(uv_timer_t *t) {
  al_chan_t *c = t->data;
  if (c->state >= AL_CHAN_CLOSING) return;
  uint64_t now = al__chan_now();
  /* When this very timer is late by more than a tick, it was us who stood still (a stopped process, a sleeping
   * machine), and the guest's bytes may be waiting unread: that time is not the guest's silence. Since the timer ticks
   * while something is owed, no longer standstill goes unseen. */
  uint64_t late = now > c->clock_due ? now - c->clock_due : 0;
  if (late > c->opts.ping_ms / TICKS) {
    c->rx_at += late;
    c->hello_due += late;
    c->config_due += late;
    if (c->stalled_at) c->stalled_at += late;
  }
  c->clock_due = 0;
  if (check_deadlines(c, now)) al__chan_rearm(c);
}

void
al__chan_rearm(al_chan_t *c) {
  if (c->state >= AL_CHAN_CLOSING) return;
  uint64_t due = UINT64_MAX;
  if (c->state == AL_CHAN_HELLO) due = c->hello_due;
  if (c->config_cb && c->config_due < due) due = c->config_due;
  if (c->stalled_at && c->stalled_at + c->opts.silence_ms < due) due = c->stalled_at + c->opts.silence_ms;
  if (al__chan_owed(c)) {
    uint64_t at =
      c->rx_at + (c->live_ping || c->opts.ping_ms > c->opts.silence_ms ? c->opts.silence_ms : c->opts.ping_ms);
    if (at < due) due = at;
  }
  if (due == UINT64_MAX || (c->clock_due && c->clock_due <= due))
    return; /* an early tick only looks and sets itself again */
  uint64_t now = al__chan_now(), tick = now + c->opts.ping_ms / TICKS + 1;
  if (due > tick) due = tick;
  c->clock_due = due > now ? due : now + 1;
  uv_update_time(c->loop);
  uv_timer_start(&c->clock, on_clock, c->clock_due - now, 0);
}

void
al__chan_ready(al_chan_t *c) {
  c->state = AL_CHAN_READY;
  wipe(c->opts.secret, sizeof c->opts.secret);
  c->cbs.on_ready(c, c->data);
}

static int
start(al_chan_t *c) {
  uint8_t hello[40];
  memcpy(hello, AL_PROTO_MAGIC, 4);
  al_put16(hello + 4, AL_PROTO_VERSION);
  al_put16(hello + 6, AL_PROTO_VERSION);
  memcpy(hello + 8, c->nonce, sizeof c->nonce);
  int r = al__chan_ctl(c, 0, AL_F_HELLO, 0, hello, sizeof hello);
  if (r < 0) return r;
  c->in_data = c->in->data;
  c->in->data = c;
  r = uv_read_start(c->in, al__chan_alloc_cb, al__chan_read_cb);
  if (r < 0) c->in->data = c->in_data;
  return r;
}

int
al_chan_open(uv_loop_t *loop, const al_chan_opts_t *opts, const al_chan_cbs_t *cbs, void *data, al_chan_t **out) {
  int r = -ENOMEM;
  al_chan_t *c = al_calloc(1, sizeof *c);
  if (!c) return r;
  c->loop = loop;
  c->opts = *opts;
  c->cbs = *cbs;
  c->data = data;
  c->in = opts->in;
  c->out = opts->out;
  if (!c->opts.handshake_ms) c->opts.handshake_ms = HANDSHAKE_MS;
  if (!c->opts.ping_ms) c->opts.ping_ms = PING_MS;
  if (!c->opts.silence_ms) c->opts.silence_ms = SILENCE_MS;
  al_buf_init(&c->ctl, AL_CTL_MAX);
  c->rbuf = al_malloc(AL_READ_MAX);
  c->w = al_calloc(1, sizeof *c->w);
  /* All of it now: a frame that ends one stream must not fail, which would cost the others their lane. */
  if (!c->rbuf || !c->w || al_buf_reserve(&c->ctl, AL_CTL_MAX)) goto fail;
  c->w->c = c;
  c->w->req.data = c->w;
  r = al_plat_random(c->nonce, sizeof c->nonce);
  if (r < 0) goto fail;
  r = start(c);
  if (r < 0) goto fail;
  uv_timer_init(loop, &c->turn);
  uv_timer_init(loop, &c->clock);
  uv_timer_init(loop, &c->ack);
  c->turn.data = c->clock.data = c->ack.data = c;
  c->handles = 3;
  c->pacing = (al_pacing_t) { .most = AL_PACING_DEFAULT, .alone = AL_PACING_ALONE_HOST, .slow_ns = SLOW_NS };
  c->rx_at = al__chan_now();
  c->hello_due = c->rx_at + c->opts.handshake_ms;
  al__chan_rearm(c);
  al__chan_turn(c);
  *out = c;
  return 0;
fail:
  wipe(c->opts.secret, sizeof c->opts.secret);
  al_buf_deinit(&c->ctl);
  al_free(c->w);
  al_free(c->rbuf);
  al_free(c);
  return r;
}

int
al_chan_config(al_chan_t *c, const char *user, const char *worktree, uint32_t flags,
  void (*cb)(void *data, int status, const al_err_t *err), void *data) {
  if (c->state >= AL_CHAN_CLOSING) return AL_ECHANNEL_CLOSED;
  if (c->state != AL_CHAN_READY || c->configured) return -EINVAL;
  uv_timeval64_t tv = { 0 };
  int r = uv_gettimeofday(&tv);
  if (r < 0) return r;
  uint8_t f[4], t[8];
  al_put32(f, flags);
  al_put64(t, (uint64_t) tv.tv_sec * 1000000000u + (uint64_t) tv.tv_usec * 1000u);
  al_buf_t b;
  al_buf_init(&b, AL_FRAME_MAX / 2);
  r = al__tlv_append(&b, AL_TLV_FLAGS, f, sizeof f);
  if (r == 0) r = al__tlv_append(&b, AL_TLV_TIME, t, sizeof t);
  if (r == 0 && user) r = al__tlv_append(&b, AL_TLV_USER, user, strlen(user));
  if (r == 0 && worktree) r = al__tlv_append(&b, AL_TLV_PATH, worktree, strlen(worktree));
  if (r == 0) r = al__chan_ctl(c, 0, AL_F_CONFIG, 0, b.data, (uint32_t) b.len);
  al_buf_deinit(&b);
  if (r < 0) return r;
  al__chan_owe(c);
  c->configured = true;
  c->config_cb = cb;
  c->config_data = data;
  c->config_due = al__chan_now() + c->opts.handshake_ms;
  c->clock_told = uv_hrtime();
  c->clock_base = (int64_t) al_get64(t) - (int64_t) c->clock_told;
  al__chan_rearm(c);
  al__chan_turn(c);
  return 0;
}

void
al_chan_time(al_chan_t *c, uint64_t wall_ns, uint64_t mono_ns) {
  int64_t base = (int64_t) wall_ns - (int64_t) mono_ns, off = base - c->clock_base;
  if (c->state != AL_CHAN_READY || !c->clock_base) return;
  if (off > -CLOCK_STEP_NS && off < CLOCK_STEP_NS && mono_ns - c->clock_told < CLOCK_EVERY_NS) return;
  uint8_t p[8];
  al_put64(p, wall_ns);
  if (al__chan_ctl(c, 0, AL_F_CLOCK, 0, p, sizeof p) < 0) return; /* the next call tries again */
  c->clock_base = base;
  c->clock_told = mono_ns;
  al__chan_turn(c);
}

int
al_chan_ping(al_chan_t *c, void (*cb)(void *data, int status, uint64_t ns), void *data) {
  if (c->state != AL_CHAN_READY) return AL_ECHANNEL_CLOSED;
  if (c->npings - (c->live_ping ? 1u : 0u) >= AL_PINGS_MAX) return -EAGAIN;
  al__chan_owe(c);
  int r = send_ping(c, cb, data);
  if (r == 0) al__chan_rearm(c);
  return r;
}
