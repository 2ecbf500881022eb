/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the channel against a scripted peer: its end in every way, numbers, memory running out, random frames. */
#include "chan_int.h"
#include "chan_peer.h"

static void
on_dead_pong(void *data, int status, uint64_t ns) {
  (void) ns;
  assert_int_equal(status, AL_ECHANNEL_CLOSED);
  ++*(unsigned *) data;
}

static void
close_it(user_t *u) {
  al_chan_close(u->r->chan, NULL);
}

static void
reset_it(user_t *u) {
  al_stream_reset(u->s, NULL);
}

static void
open_another(user_t *u) {
  static user_t other;
  const char *argv[] = { "x", NULL };
  al_exec_req_t req = { .argv = argv };
  al_err_t err = { 0 };
  other = (user_t){ .r = u->r };
  assert_int_equal(al_stream_exec(u->r->chan, &req, &cbs, &other, &other.s, &err), AL_ECHANNEL_CLOSED);
}

static void
test_chan_everybody_learns_of_the_end_once(void **state) {
  (void) state;
  rig_t r;
  al_frame_t f;
  user_t u[3];
  unsigned pongs = 0;
  for (int how = 0; how < 5; how++) {
    pongs = 0;
    peer_ready(&r, NULL);
    for (int i = 0; i < 3; i++) {
      open_exec(&r, &u[i], true);
      expect(&r, &f, AL_F_EXEC);
    }
    for (int i = 0; i < AL_PINGS_MAX; i++) assert_int_equal(al_chan_ping(r.chan, on_dead_pong, &pongs), 0);
    assert_int_equal(al_chan_ping(r.chan, on_dead_pong, &pongs), -EAGAIN);
    u[1].act = open_another;
    if (how == 0) al_chan_close(r.chan, NULL);
    if (how == 1) shutdown(r.peer, SHUT_RDWR);
    if (how == 2) u[0].act = close_it; /* from inside on_data */
    if (how == 3) put(&r, 9, AL_F_DATA, 1, "x", 1);
    if (how == 4) {
      al_stream_reset(u[0].s, NULL);
      al_stream_reset(u[0].s, NULL);
      al_chan_close(r.chan, NULL);
    }
    if (how == 2) put(&r, 1, AL_F_DATA, 1, "x", 1);
    assert_false(r.closed || u[0].done || u[1].done);
    rig_wait(&r, &r.closed, 1000);
    assert_true(u[0].done && u[1].done && u[2].done);
    assert_int_equal(pongs, AL_PINGS_MAX);
    int code = how == 1 ? AL_ECHANNEL_CLOSED : how == 3 ? AL_EPROTOCOL_VIOLATION : AL_ELANE_CLOSED;
    assert_int_equal(u[2].exit.err.code, code);
    assert_int_equal(u[0].exit.err.code, how == 4 ? AL_EABORTED : code);
    assert_int_equal(r.why.code, code == AL_ELANE_CLOSED ? 0 : code);
    rig_end(&r);
  }
}

static void
test_chan_reset_inside_a_callback_is_safe(void **state) {
  (void) state;
  rig_t r;
  al_frame_t f;
  user_t u;
  peer_ready(&r, NULL);
  open_exec(&r, &u, true);
  expect(&r, &f, AL_F_EXEC);
  u.act = reset_it;
  uint8_t two[2 * (AL_FRAME_HEADER + 1)]; /* both in one read */
  for (int i = 0; i < 2; i++) {
    al_frame_header(two + i * 13, 1, AL_F_DATA, 1, 1);
    two[i * 13 + 12] = 'x';
  }
  assert_int_equal(write(r.peer, two, sizeof two), sizeof two);
  rig_wait(&r, &u.done, 1000);
  assert_int_equal(u.got[1], 1);
  expect(&r, &f, AL_F_RESET);
  assert_alive(&r);
  rig_end(&r);
}

static void
test_chan_ids_rise_whoever_goes_first(void **state) {
  (void) state;
  rig_t r;
  al_frame_t f;
  static user_t u[AL_STREAMS_MAX + 1];
  al_err_t err = { 0 };
  const char *argv[] = { "x", NULL };
  al_exec_req_t req = { .argv = argv };
  peer_ready(&r, NULL);
  for (int i = 0; i < 3; i++) open_exec(&r, &u[i], true);
  for (uint32_t i = 1; i <= 3; i++) {
    expect(&r, &f, AL_F_EXEC);
    assert_int_equal(f.stream, i);
  }
  for (int i = 3; i < AL_STREAMS_MAX; i++) open_exec(&r, &u[i], false);
  u[AL_STREAMS_MAX].r = &r;
  assert_int_equal(al_stream_exec(r.chan, &req, &cbs, &u[AL_STREAMS_MAX], &u[AL_STREAMS_MAX].s, &err), AL_EBUSY);
  assert_non_null(strstr(err.msg, "256 commands"));
  assert_non_null(strstr(al_err_cure_text(&err), "Wait for some"));
  for (uint32_t i = 4; i <= AL_STREAMS_MAX; i++) {
    expect(&r, &f, AL_F_EXEC);
    assert_int_equal(f.stream, i);
    put64(&r, AL_F_ACK, got.counted);
  }
  put_exit(&r, 200, 0, 0, "");
  rig_wait(&r, &u[199].done, 1000);
  uint32_t last = r.chan->last_id;
  r.chan->last_id = AL_STREAM_FROM_GUEST - 1 - AL_STREAMS_MAX; /* the numbers below must do for all that wait for one */
  assert_int_equal(al_stream_exec(r.chan, &req, &cbs, &u[199], &u[199].s, &err), AL_EBUSY);
  assert_non_null(strstr(al_err_cure_text(&err), "new lane"));
  r.chan->last_id = last;
  open_exec(&r, &u[199], false);
  expect(&r, &f, AL_F_EXEC);
  assert_int_equal(f.stream, AL_STREAMS_MAX + 1);
  rig_end(&r);
}

static int alloc_left;

static void *
failing_malloc(size_t n) {
  return alloc_left-- == 0 ? NULL : malloc(n);
}

static void *
failing_realloc(void *p, size_t n) {
  return alloc_left-- == 0 ? NULL : realloc(p, n);
}

static void
test_chan_without_memory_says_so(void **state) {
  (void) state;
  static const al_mem_table_t table = { .malloc = failing_malloc, .realloc = failing_realloc, .free = free };
  rig_t r;
  user_t u = { .r = &r };
  al_err_t err = { 0 };
  const char *argv[] = { "cmd", NULL };
  al_exec_req_t req = { .argv = argv, .with_stdin = true };
  int failures = 0;
  peer_ready(&r, NULL);
  for (int i = 0; i < 50; i++) {
    al_mem_set(&table);
    alloc_left = i;
    int rc = al_stream_exec(r.chan, &req, &cbs, &u, &u.s, &err);
    al_mem_set(NULL);
    if (rc == 0) break;
    assert_int_equal(rc, -ENOMEM);
    failures++;
  }
  assert_true(failures >= 2);
  rig_end(&r);
  static const al_chan_cbs_t chan_cbs = { .on_ready = rig_on_ready, .on_closed = rig_on_closed };
  failures = 0;
  for (int i = 0; i < 50; i++) {
    int sv[2];
    memset(&r, 0, sizeof r);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
    r.peer = sv[1];
    rig_base(&r, sv[0]);
    al_chan_opts_t o = { .in = (uv_stream_t *) &r.pipe, .out = (uv_stream_t *) &r.pipe };
    al_mem_set(&table);
    alloc_left = i;
    int rc = al_chan_open(&r.loop, &o, &chan_cbs, &r, &r.chan);
    al_mem_set(NULL);
    rig_end(&r);
    if (rc == 0) break;
    assert_int_equal(rc, -ENOMEM);
    failures++;
  }
  assert_true(failures >= 3);
}

/* A guest that mutates what it says: whatever comes, everybody hears of the end once and nothing is overrun (ASan). */
static void
test_chan_survives_random_frames(void **state) {
  (void) state;
  uint32_t x = 2463534242u;
  for (int round = 0; round < 150; round++) {
    rig_t r;
    user_t u[2];
    al_frame_t f;
    peer_ready(&r, NULL);
    for (int i = 0; i < 2; i++) {
      open_exec(&r, &u[i], true);
      expect(&r, &f, AL_F_EXEC);
      u[i].consume = round % 2 == 0;
    }
    for (int i = 0; i < 60 && !r.closed; i++) {
      static const uint8_t types[] = {
        AL_F_DATA, AL_F_DATA, AL_F_DATA, AL_F_END, AL_F_CREDIT, AL_F_EXIT, AL_F_RESET, AL_F_ACK, AL_F_PONG, 200};
      static const size_t sizes[] = { 100, 3, 40000, 0, 4, 24, 0, 8, 8, 1 };
      uint8_t p[40000], raw[8];
      for (int k = 0; k < 8; k++) {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        raw[k] = (uint8_t) (x >> 8);
      }
      memset(p, 0, sizeof p);
      if (raw[6] < 40) memcpy(p, raw, 8);
      unsigned t = raw[0] < 200 ? raw[0] % 5 : raw[0] % 10;
      put(&r, 1 + raw[1] % 2u, types[t], raw[7] < 240 ? 1 + raw[2] % 2 : raw[2], p, sizes[t]);
      if (raw[5] % 8 == 0) rig_idle(&r, 1);
    }
    rig_idle(&r, 1);
    rig_end(&r);
    assert_true(u[0].done && u[1].done);
  }
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_chan_everybody_learns_of_the_end_once),
    cmocka_unit_test(test_chan_reset_inside_a_callback_is_safe),
    cmocka_unit_test(test_chan_ids_rise_whoever_goes_first),
    cmocka_unit_test(test_chan_without_memory_says_so),
    cmocka_unit_test(test_chan_survives_random_frames),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
