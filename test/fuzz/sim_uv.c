/* SPDX-License-Identifier: Apache-2.0 */
/* What the channel needs of libuv and the platform, under a simulated clock. Linked before libuv, it takes its place. */
#include "sim.h"
#include "mem.h"
#include "platform.h"
#include <string.h>

#define TIMERS_MAX 512
#define CLOSING_MAX 512
#define BUFS_MAX 128

uint64_t sim_seed, sim_now, sim_progress;
uv_loop_t sim_loop;
uv_pipe_t sim_pipe;

static struct { uv_timer_t *t; uv_timer_cb cb; uint64_t due, order; } timers[TIMERS_MAX];
static size_t timers_len;
static uint64_t timers_order;
static struct { uv_handle_t *h; uv_close_cb cb; } closing[CLOSING_MAX];
static size_t closing_len;
static struct { uv_stream_t *s; uv_alloc_cb alloc; uv_read_cb read; } reader;
static struct { uv_write_t *req; uv_write_cb cb; uv_buf_t bufs[BUFS_MAX]; unsigned at, nbufs; } writer;

void
sim_uv_reset(void) {
  timers_len = closing_len = 0;
  reader.s = NULL;
  writer.req = NULL;
  sim_now = UINT64_C(1000000000000);
  memset(&sim_loop, 0, sizeof sim_loop);
  memset(&sim_pipe, 0, sizeof sim_pipe);
}

/* ---- libuv's side ---- */

uint64_t
uv_hrtime(void) {
  return sim_now;
}

void
uv_update_time(uv_loop_t *loop) {
  (void) loop;
}

int
uv_gettimeofday(uv_timeval64_t *tv) {
  tv->tv_sec = 1800000000;
  tv->tv_usec = 0;
  return 0;
}

const char *
uv_strerror(int err) {
  return err == UV_EOF ? "end of file" : "an error";
}

int
uv_timer_init(uv_loop_t *loop, uv_timer_t *t) {
  t->loop = loop;
  return 0;
}

int
uv_timer_stop(uv_timer_t *t) {
  for (size_t i = 0; i < timers_len; i++)
    if (timers[i].t == t) timers[i--] = timers[--timers_len];
  return 0;
}

int
uv_timer_start(uv_timer_t *t, uv_timer_cb cb, uint64_t ms, uint64_t repeat) {
  (void) repeat;
  uv_timer_stop(t);
  AL_ASSERT(timers_len < TIMERS_MAX);
  timers[timers_len].t = t;
  timers[timers_len].cb = cb;
  timers[timers_len].due = sim_now + ms * 1000000u;
  timers[timers_len++].order = ++timers_order;
  return 0;
}

void
uv_close(uv_handle_t *h, uv_close_cb cb) {
  uv_timer_stop((uv_timer_t *) h);
  AL_ASSERT(closing_len < CLOSING_MAX);
  closing[closing_len].h = h;
  closing[closing_len++].cb = cb;
}

int
uv_read_start(uv_stream_t *s, uv_alloc_cb alloc, uv_read_cb read) {
  reader.s = s;
  reader.alloc = alloc;
  reader.read = read;
  return 0;
}

int
uv_read_stop(uv_stream_t *s) {
  if (reader.s == s) reader.s = NULL;
  return 0;
}

int
uv_write(uv_write_t *req, uv_stream_t *s, const uv_buf_t bufs[], unsigned n, uv_write_cb cb) {
  (void) s;
  AL_ASSERT(n > 0 && n <= BUFS_MAX && !writer.req);
  for (unsigned i = 0; i < n; i++) AL_ASSERT(bufs[i].len > 0);
  writer.req = req;
  writer.cb = cb;
  memcpy(writer.bufs, bufs, n * sizeof *bufs);
  writer.at = 0;
  writer.nbufs = n;
  sim_progress++;
  return 0;
}

int
al_plat_random(void *p, size_t n) {
  memset(p, 0x5a, n);
  return 0;
}

/* ---- the simulation's side ---- */

static size_t
earliest(void) {
  size_t best = 0;
  for (size_t i = 1; i < timers_len; i++)
    if (timers[i].due < timers[best].due || (timers[i].due == timers[best].due && timers[i].order < timers[best].order))
      best = i;
  return best;
}

bool
sim_uv_run(void) {
  bool any = false;
  /* A timer that is set again in its own callback belongs to the next turn. */
  for (uint64_t last = timers_order; timers_len > 0;) {
    size_t i = earliest();
    if (timers[i].due > sim_now || timers[i].order > last) break;
    uv_timer_t *t = timers[i].t;
    uv_timer_cb cb = timers[i].cb;
    timers[i] = timers[--timers_len];
    cb(t);
    any = true;
  }
  for (size_t n = closing_len; n > 0; n--) {
    uv_handle_t *h = closing[0].h;
    uv_close_cb cb = closing[0].cb;
    memmove(closing, closing + 1, --closing_len * sizeof *closing);
    if (cb) cb(h);
    any = true;
  }
  if (any) sim_progress++;
  return any;
}

uint64_t
sim_uv_due(void) {
  return closing_len > 0 ? sim_now : timers_len > 0 ? timers[earliest()].due : UINT64_MAX;
}

bool
sim_uv_reading(void) {
  return reader.s != NULL;
}

void
sim_uv_feed(const uint8_t *p, size_t n) {
  while (n > 0 && reader.s) {
    uv_buf_t b = {0};
    reader.alloc((uv_handle_t *) reader.s, 65536, &b);
    AL_ASSERT(b.len > 0);
    size_t take = n < b.len ? n : b.len;
    memcpy(b.base, p, take);
    p += take, n -= take;
    sim_progress++;
    reader.read(reader.s, (ssize_t) take, &b);
  }
}

void
sim_uv_feed_end(int status) {
  uv_buf_t b = {0};
  if (!reader.s) return;
  reader.alloc((uv_handle_t *) reader.s, 65536, &b);
  sim_progress++;
  reader.read(reader.s, status, &b);
}

const uint8_t *
sim_uv_written(size_t *n) {
  *n = writer.req ? writer.bufs[writer.at].len : 0;
  return writer.req ? (const uint8_t *) writer.bufs[writer.at].base : NULL;
}

static void
end_write(int status) {
  uv_write_t *req = writer.req;
  writer.req = NULL;
  sim_progress++;
  writer.cb(req, status);
}

void
sim_uv_take(size_t n) {
  uv_buf_t *b = &writer.bufs[writer.at];
  AL_ASSERT(writer.req && n <= b->len);
  b->base += n;
  b->len -= n;
  if (n > 0) sim_progress++;
  if (b->len == 0 && ++writer.at == writer.nbufs) end_write(0);
}

void
sim_uv_fail_write(int status) {
  if (writer.req) end_write(status);
}
