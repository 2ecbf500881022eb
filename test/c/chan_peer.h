/* SPDX-License-Identifier: Apache-2.0 */
/* A scripted agent for the tests of the channel, and one user of a stream. */
#ifndef AL_CHAN_PEER_H
#define AL_CHAN_PEER_H

#include "chan_test.h"
#include "sha256.h"
#include <poll.h>

/* One stream as its user sees it. */
typedef struct user_s {
  al_stream_t *s;
  size_t got[3];
  unsigned ends[3], drains;
  bool done, consume;
  al_exit_t exit;
  void (*act)(struct user_s *u); /* done once, in the next callback */
  rig_t *r;
} user_t;

static inline void
act(user_t *u) {
  void (*f)(user_t *) = u->act;
  u->act = NULL;
  if (f) f(u);
}

static inline void
on_data(al_stream_t *s, void *data, int sub, const uint8_t *p, size_t n) {
  user_t *u = data;
  (void) p;
  assert_false(u->done);
  u->got[sub] += n;
  if (u->consume) al_stream_consumed(s, sub, n);
  act(u);
}

static inline void
on_end(al_stream_t *s, void *data, int sub) {
  (void) s;
  ((user_t *) data)->ends[sub]++;
}

static inline void
on_drain(al_stream_t *s, void *data) {
  (void) s;
  ((user_t *) data)->drains++;
}

static inline void
on_exit_(al_stream_t *s, void *data, const al_exit_t *x) {
  user_t *u = data;
  assert_false(u->done);
  assert_false(u->r->closed);
  u->done = true;
  u->exit = *x;
  act(u);
  al_stream_consumed(s, 1, 0); /* whatever is called on it now does nothing */
  assert_int_equal(al_stream_write(s, "x", 1), 0);
  al_stream_reset(s, NULL);
}

static const al_stream_cbs_t cbs = { .on_data = on_data, .on_end = on_end, .on_drain = on_drain, .on_exit = on_exit_ };

static inline void
put(rig_t *r, uint32_t stream, uint8_t type, uint8_t flags, const void *p, size_t n) {
  uint8_t frame[AL_FRAME_HEADER + AL_FRAME_MAX] = { 0 };
  al_frame_header(frame, stream, type, flags, (uint32_t) n);
  if (p && n) memcpy(frame + AL_FRAME_HEADER, p, n);
  for (size_t at = 0; at < AL_FRAME_HEADER + n;) {
    ssize_t k = send(r->peer, frame + at, AL_FRAME_HEADER + n - at, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (k > 0) at += (size_t) k;
    else if (r->closed || errno != EAGAIN) return;
    else rig_idle(r, 1);
  }
}

static inline void
put32(rig_t *r, uint32_t stream, uint8_t type, uint8_t flags, uint32_t v) {
  uint8_t p[4];
  al_put32(p, v);
  put(r, stream, type, flags, p, sizeof p);
}

static inline void
put64(rig_t *r, uint8_t type, uint64_t v) {
  uint8_t p[8];
  al_put64(p, v);
  put(r, 0, type, 0, p, sizeof p);
}

static inline void
put_exit(rig_t *r, uint32_t stream, uint32_t kind, uint32_t value, const char *text) {
  uint8_t p[1048] = { 0 };
  al_put32(p, kind);
  al_put32(p + 4, value);
  al_put64(p + 8, 77);
  memcpy(p + 24, text, strlen(text));
  put(r, stream, AL_F_EXIT, 0, p, 24 + strlen(text));
}

/* What the host has written, frame by frame. */
typedef struct got_s {
  uint8_t buf[1 << 20];
  size_t len, at;
  uint64_t counted; /* bytes of frames other than ACK, as a guest counts them */
} got_t;

static got_t got;

static inline void
fill(rig_t *r) {
  rig_idle(r, 2);
  if (got.at > 0) {
    memmove(got.buf, got.buf + got.at, got.len - got.at);
    got.len -= got.at;
    got.at = 0;
  }
  ssize_t n = recv(r->peer, got.buf + got.len, sizeof got.buf - got.len, MSG_DONTWAIT);
  if (n > 0) got.len += (size_t) n;
}

/* The next frame within `ms`, or false. */
static inline bool
next(rig_t *r, al_frame_t *f, int ms) {
  const char *why = NULL;
  for (uint64_t until = uv_hrtime() / 1000000 + (uint64_t) ms;;) {
    int n = al_frame_parse(got.buf + got.at, got.len - got.at, f, &why);
    if (n < 0) fail_msg("the host wrote a bad frame: %s", why);
    if (n > 0) {
      got.at += (size_t) n;
      if (f->type != AL_F_ACK) got.counted += (uint64_t) n;
      return true;
    }
    if (uv_hrtime() / 1000000 >= until) return false;
    fill(r);
  }
}

static inline void
expect(rig_t *r, al_frame_t *f, uint8_t type) {
  if (!next(r, f, AL_TEST_PATIENCE_MS)) fail_msg("no %s came", al_frame_name(type));
  if (f->type != type) fail_msg("expected %s, got %s", al_frame_name(type), al_frame_name(f->type));
}

static inline void
peer_start(rig_t *r, const al_chan_opts_t *o) {
  int sv[2];
  memset(r, 0, sizeof *r);
  memset(&got, 0, sizeof got);
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
  r->peer = sv[1];
  rig_base(r, sv[0]);
  rig_open(r, o);
}

static inline void
answer(rig_t *r, const al_frame_t *hello, const char *magic, uint16_t version, bool right) {
  uint8_t p[74 + 5], text[128];
  size_t label = strlen(AL_PROOF_LABEL);
  memset(p, 0, sizeof p);
  memcpy(p, magic, 4);
  al_put16(p + 4, version);
  memset(p + 10, 7, 32);
  memcpy(text, AL_PROOF_LABEL, label);
  memcpy(text + label, hello->payload + 8, 32);
  memcpy(text + label + 32, p + 10, 32);
  al_hmac_sha256(test_secret, 32, text, label + 64, p + 42);
  if (!right) p[73] ^= 1;
  memcpy(p + 74, "build", 5);
  put(r, 0, AL_F_HELLO_ACK, 0, p, sizeof p);
}

static inline void
peer_ready(rig_t *r, const al_chan_opts_t *o) {
  al_frame_t f;
  peer_start(r, o);
  expect(r, &f, AL_F_HELLO);
  answer(r, &f, AL_PROTO_MAGIC, AL_PROTO_VERSION, true);
  rig_wait(r, &r->ready, 2000);
}

static inline void
open_exec(rig_t *r, user_t *u, bool with_stdin) {
  const char *argv[] = { "cmd", NULL }, *env[] = { "A=b", NULL };
  al_exec_req_t req = { .argv = argv, .env = env, .cwd = "/", .with_stdin = with_stdin };
  al_err_t err = { 0 };
  *u = (user_t){ .r = r, .consume = true };
  assert_int_equal(al_stream_exec(r->chan, &req, &cbs, u, &u->s, &err), 0);
}

static inline void
on_pong(void *data, int status, uint64_t ns) {
  rig_t *r = data;
  assert_int_equal(status, 0);
  assert_true(ns > 0);
  r->configured = true;
}

/* The channel still works: a ping comes back. */
static inline void
assert_alive(rig_t *r) {
  al_frame_t f;
  r->configured = false;
  assert_int_equal(al_chan_ping(r->chan, on_pong, r), 0);
  expect(r, &f, AL_F_PING);
  put(r, 0, AL_F_PONG, 0, f.payload, 8);
  rig_wait(r, &r->configured, 2000);
}

#endif
