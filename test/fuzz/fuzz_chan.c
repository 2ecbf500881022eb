/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzer of the host's channel: arbitrary bytes and frames of a guest, cut anywhere, between everything a user of the
 * channel may do. Whatever comes: callbacks as chan.h promises, frames out that a guest may trust, no byte of memory left. */
#include "chan_int.h"
#include "fuzz.h"
#include "mem.h"
#include "sha256.h"
#include "sim.h"

#define USERS_MAX 24
#define OPS_MAX 400

typedef struct user_s {
  al_stream_t *s;
  bool opened, done, reset, drained;
  bool ended[3];
  uint64_t held[3];
} user_t;

static user_t users[USERS_MAX];
static size_t users_len;
static al_chan_t *chan;
static bool ready, closed;
static unsigned waiting; /* for PONG and CONFIG_ACK */
static long live;
static uint32_t last_seen; /* highest stream id that went out */

static void *
count_malloc(size_t n) {
  void *p = malloc(n);
  live += p != NULL;
  return p;
}
static void *
count_realloc(void *p, size_t n) {
  void *q = realloc(p, n);
  live += q && !p;
  return q;
}
static void
count_free(void *p) {
  live -= p != NULL;
  free(p);
}

static void
on_data(al_stream_t *s, void *data, int sub, const uint8_t *p, size_t n) {
  user_t *u = data;
  MUST(u->s == s && !u->done && !u->reset && !u->ended[sub] && n > 0 && (sub == 1 || sub == 2), "data where none may be");
  uint8_t sum = 0;
  for (size_t i = 0; i < n; i++) sum ^= p[i];
  u->held[sub] += n;
  MUST(u->held[sub] <= AL_WINDOW_DEFAULT, "more than the window");
  if (sum % 5 == 0) al_stream_reset(s, NULL), u->reset = true;
  else if (sum % 5 == 1) al_stream_consumed(s, sub, n), u->held[sub] = 0 + u->held[sub] - n;
  else if (sum == 42) al_chan_close(chan, NULL);
}

static void
on_end(al_stream_t *s, void *data, int sub) {
  user_t *u = data;
  MUST(u->s == s && !u->done && !u->reset && !u->ended[sub], "an end where none may be");
  u->ended[sub] = true;
}

static void
on_drain(al_stream_t *s, void *data) {
  user_t *u = data;
  MUST(u->s == s && !u->done, "a drain where none may be");
  u->drained = true;
}

static void
on_exit_(al_stream_t *s, void *data, const al_exit_t *x) {
  user_t *u = data;
  MUST(u->s == s && !u->done && !closed, "an exit where none may be");
  MUST(x->kind >= 0 || x->err.code, "an end without a reason");
  MUST(!u->reset || x->kind < 0, "an exit after a reset");
  MUST(memchr(x->text, 0, sizeof x->text), "a text without end");
  u->done = true;
  u->s = NULL;
}

static void
on_pong(void *data, int status, uint64_t ns) {
  (void) data, (void) status, (void) ns;
  MUST(waiting-- > 0, "an answer too many");
}

static void
on_config(void *data, int status, const al_err_t *err) {
  (void) data;
  MUST(waiting-- > 0 && status == err->code, "an answer too many");
}

static void
on_ready(al_chan_t *c, void *data) {
  (void) c, (void) data;
  MUST(!ready && !closed, "ready twice");
  ready = true;
}

static void
on_closed(al_chan_t *c, void *data, const al_err_t *err) {
  (void) data, (void) err;
  MUST(c == chan && !closed, "closed twice");
  for (size_t i = 0; i < users_len; i++) MUST(users[i].done, "closed before a stream's end");
  MUST(waiting == 0, "closed before an answer");
  closed = true;
}

/* Takes what the host has written and looks at it as a guest would. */
static void
take_written(size_t limit) {
  static uint8_t bytes[1 << 17];
  static size_t len;
  size_t n;
  const uint8_t *p = sim_uv_written(&n);
  if (limit == SIZE_MAX) len = 0; /* a new channel */
  if (!p || limit == SIZE_MAX) return;
  if (n > limit) n = limit;
  memcpy(bytes + len, p, n);
  len += n;
  sim_uv_take(n);
  for (;;) {
    al_frame_t f;
    const char *why = "";
    int k = al_frame_parse(bytes, len, &f, &why);
    MUST(k >= 0, why);
    if (k == 0) break;
    if (f.type == AL_F_EXEC || f.type == AL_F_READ || f.type == AL_F_TREE) {
      MUST(f.stream > 0 && f.stream <= last_seen + 1, "a stream's number that does not rise by one");
      if (f.stream > last_seen) last_seen = f.stream; /* else a further part of a request */
    } else if (f.type >= AL_F_DATA) {
      MUST(f.stream > 0 && f.stream <= last_seen, "a frame of a stream that was not opened");
    } else {
      MUST(f.stream == 0, "a frame of the channel on a stream");
    }
    memmove(bytes, bytes + k, len -= (size_t) k);
  }
  MUST(closed || chan->sent - chan->acked <= AL_PACING_MAX, "beyond the pacing");
}

static void
feed(const uint8_t *p, size_t n, size_t cut) {
  if (cut > n) cut = n;
  if (cut > 0) sim_uv_feed(p, cut);
  if (n > cut) sim_uv_feed(p + cut, n - cut);
}

/* A frame that is well-formed but for what the input decides. */
static void
feed_frame(fuzz_in_t *in) {
  static const uint8_t types[] = {AL_F_DATA, AL_F_DATA, AL_F_END, AL_F_CREDIT, AL_F_EXIT, AL_F_RESET, AL_F_ACK, AL_F_PONG,
    AL_F_CONFIG_ACK, AL_F_REJECT, AL_F_EXEC, AL_F_HELLO_ACK};
  static uint8_t frame[AL_FRAME_HEADER + AL_FRAME_MAX];
  uint8_t what = (uint8_t) fuzz_take(in, 1), type = types[what % 12];
  uint32_t stream = type < AL_F_EXEC ? 0 : what & 0x80 ? fuzz_take(in, 1) : chan->last_id;
  size_t n = what & 0x40 ? fuzz_take(in, 2) : fuzz_take(in, 1), given;
  uint8_t flags = type == AL_F_DATA || type == AL_F_END ? 1 + ((what >> 4) & 1) : 0;
  if (type == AL_F_END && (what & 0x40)) flags = 0;
  if (type == AL_F_END || type == AL_F_RESET) n = 0;
  if (type == AL_F_CREDIT) n = 4;
  if (type == AL_F_ACK || type == AL_F_PONG) n = 8;
  if (type == AL_F_EXIT && n < 24) n = 24;
  al_frame_header(frame, stream, type, flags, (uint32_t) n);
  memset(frame + AL_FRAME_HEADER, 0, n);
  given = n < in->n ? n : in->n;
  if (given > 40) given = 40;
  if (given > 0) memcpy(frame + AL_FRAME_HEADER, in->p, given);
  in->p += given, in->n -= given;
  /* An answer that is right is not found by chance. */
  if (type == AL_F_PONG && (what & 0x10) && chan->npings) al_put64(frame + AL_FRAME_HEADER, chan->pings[0].token);
  if (type == AL_F_ACK && (what & 0x10)) al_put64(frame + AL_FRAME_HEADER, chan->sent);
  feed(frame, AL_FRAME_HEADER + n, what & 0x20 ? n / 2 : 0);
}

static void
open_user(bool file, bool with_stdin, size_t size) {
  static const al_stream_cbs_t cbs = {.on_data = on_data, .on_end = on_end, .on_drain = on_drain, .on_exit = on_exit_};
  static char text[65536];
  if (users_len == USERS_MAX) return;
  user_t *u = &users[users_len];
  al_err_t err = {0};
  *u = (user_t) {.opened = true};
  memset(text, 'a', size);
  text[size] = 0;
  const char *argv[] = {"command", text, NULL};
  al_exec_req_t req = {.argv = argv, .cwd = "/", .with_stdin = with_stdin};
  int r = file ? al_stream_read(chan, text, NULL, &cbs, u, &u->s, &err) : al_stream_exec(chan, &req, &cbs, u, &u->s, &err);
  MUST(r == 0 || err.code, "refused without a reason");
  if (r == 0) users_len++;
}

static void
use(fuzz_in_t *in, user_t *u) {
  static const uint8_t bytes[65536];
  uint32_t what = fuzz_take(in, 1), n = fuzz_take(in, 2);
  if (!u->s || u->reset) return;
  switch (what % 8) {
    case 0:
    case 1: MUST(al_stream_write(u->s, bytes, n) >= -ENOBUFS, "stdin"); break;
    case 2: al_stream_end(u->s); break;
    case 3: al_stream_signal(u->s, (int) n % 70, what & 8); break;
    case 4: al_stream_resize(u->s, (uint16_t) n, 80); break;
    case 5: al_stream_cancel(u->s, n); break;
    case 6: {
      int sub = 1 + (what >> 3 & 1);
      uint64_t k = u->held[sub] < n ? u->held[sub] : n;
      u->held[sub] -= k;
      al_stream_consumed(u->s, sub, (size_t) k);
      break;
    }
    default:
      u->reset = true;
      al_stream_reset(u->s, NULL);
  }
}

static void
op(fuzz_in_t *in) {
  uint32_t what = fuzz_take(in, 1);
  switch (what % 16) {
    case 0: {
      size_t n = fuzz_take(in, 1), cut = fuzz_take(in, 1);
      if (n > in->n) n = in->n;
      feed(in->p, n, cut);
      in->p += n, in->n -= n;
      break;
    }
    case 1: open_user(false, what & 16, what & 32 ? fuzz_take(in, 2) : 10); break;
    case 2: open_user(true, false, what & 32 ? fuzz_take(in, 2) : 10); break;
    case 3:
    case 4:
    case 5:
      if (users_len > 0) use(in, &users[fuzz_take(in, 1) % users_len]);
      break;
    case 6: waiting += al_chan_ping(chan, on_pong, NULL) == 0; break;
    case 7: waiting += al_chan_config(chan, "agent", "/w", what >> 4, on_config, NULL) == 0; break;
    case 8:
      sim_now += (uint64_t) fuzz_take(in, 2) * 1000000u;
      sim_uv_run();
      break;
    case 9:
      if (what == 249) sim_uv_feed_end(fuzz_take(in, 1) & 1 ? UV_EOF : UV_ECONNRESET);
      if (what == 233) sim_uv_fail_write(UV_EPIPE);
      if (what == 217) al_chan_close(chan, NULL);
      break;
    case 10: sim_uv_run(); break;
    case 11: take_written(fuzz_take(in, 2)); break;
    default: feed_frame(in);
  }
}

/* HELLO_ACK as the lane's own agent would give it to this nonce. */
static void
prove(void) {
  uint8_t frame[AL_FRAME_HEADER + 74], text[sizeof AL_PROOF_LABEL - 1 + 64];
  const size_t label = sizeof AL_PROOF_LABEL - 1;
  al_frame_header(frame, 0, AL_F_HELLO_ACK, 0, 74);
  uint8_t *p = frame + AL_FRAME_HEADER;
  memset(p, 0, 74);
  memcpy(p, AL_PROTO_MAGIC, 4);
  al_put16(p + 4, AL_PROTO_VERSION);
  memcpy(text, AL_PROOF_LABEL, label);
  memcpy(text + label, chan->nonce, 32);
  memcpy(text + label + 32, p + 10, 32);
  al_hmac_sha256((const uint8_t *) "0123456789abcdef0123456789abcdef", 32, text, sizeof text, p + 42);
  feed(frame, sizeof frame, 30);
  MUST(ready, "the right proof is refused");
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const al_mem_table_t table = {.malloc = count_malloc, .realloc = count_realloc, .free = count_free};
  static const al_chan_cbs_t cbs = {.on_ready = on_ready, .on_closed = on_closed};
  fuzz_in_t in = {data, size};
  al_chan_opts_t o = {.in = (uv_stream_t *) &sim_pipe, .out = (uv_stream_t *) &sim_pipe};
  al_mem_set(&table);
  sim_uv_reset();
  memcpy(o.secret, "0123456789abcdef0123456789abcdef", 32);
  ready = closed = false;
  users_len = waiting = 0;
  live = 0;
  last_seen = 0;
  take_written(SIZE_MAX);
  MUST(al_chan_open(&sim_loop, &o, &cbs, NULL, &chan) == 0, "memory");
  if (fuzz_take(&in, 1) & 1) {
    sim_uv_run();
    take_written(1000);
    prove();
  }
  for (unsigned i = 0; i < OPS_MAX && in.n > 0 && !closed; i++) op(&in);
  if (!closed) al_chan_close(chan, NULL);
  for (unsigned i = 0; i < 10 && !closed; i++) sim_uv_run();
  MUST(closed, "it does not close");
  sim_uv_fail_write(UV_ECANCELED);
  MUST(live == 0, "memory is left");
  return 0;
}
