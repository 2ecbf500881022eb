/* SPDX-License-Identifier: Apache-2.0 */
/* Channel and time: silence, standstill of the guest and of this process, CANCEL, the guest's clock. */
#include "chan_peer.h"

/* Stops this whole process for `ms`, as Ctrl-Z or a debugger does. */
static void
stand_still(unsigned ms) {
  pid_t me = getpid(), helper = fork();
  assert_true(helper >= 0);
  if (helper == 0) {
    kill(me, SIGSTOP);
    usleep(ms * 1000);
    kill(me, SIGCONT);
    _exit(0);
  }
  int status;
  while (waitpid(helper, &status, 0) != helper) continue;
}

static void
test_time_own_standstill_is_not_the_guests_silence(void **state) {
  (void) state;
  rig_t r;
  al_frame_t f;
  user_t u;
  /* Stopped at different moments: before the ping is due, while it is owed, shortly before the deadline. The peer
   * answers only after we go on, as a guest does that was stopped with us. */
  for (unsigned wait = 0; wait <= 700; wait += 350) {
    peer_ready(&r, &(al_chan_opts_t){ .ping_ms = 500, .silence_ms = 1000 });
    open_exec(&r, &u, false);
    expect(&r, &f, AL_F_EXEC);
    rig_idle(&r, wait);
    stand_still(1500);
    rig_idle(&r, 20);
    assert_false(r.closed);
    do assert_true(next(&r, &f, AL_TEST_PATIENCE_MS)); /* the ping may have gone out before */
    while (f.type != AL_F_PING);
    assert_false(r.closed);
    put(&r, 0, AL_F_PONG, 0, f.payload, 8);
    put_exit(&r, 1, AL_EXIT_CODE, 0, "");
    rig_wait(&r, &u.done, 1000);
    assert_int_equal(u.exit.kind, AL_EXIT_CODE);
    rig_end(&r);
  }
}

static void
test_time_a_guest_that_stands_still_settles_everything(void **state) {
  (void) state;
  rig_t s;
  user_t u;
  al_frame_t f;
  peer_ready(&s, &(al_chan_opts_t){ .ping_ms = 100, .silence_ms = 400 });
  uint64_t t = uv_hrtime();
  open_exec(&s, &u, false);
  expect(&s, &f, AL_F_EXEC);
  rig_wait(&s, &s.closed, 10000);
  assert_true(uv_hrtime() - t >= 390000000);
  assert_true(u.done);
  assert_int_equal(u.exit.err.code, AL_ECHANNEL_CLOSED);
  assert_non_null(strstr(s.why.msg, "has not answered for"));
  rig_end(&s);
}

static void
test_time_cancel_is_sent_once_and_may_be_hurried(void **state) {
  (void) state;
  rig_t r;
  al_frame_t f;
  user_t u, v;
  peer_ready(&r, NULL);
  open_exec(&r, &u, false);
  al_stream_cancel(u.s, 500); /* not sent yet: nothing has to be ended */
  rig_wait(&r, &u.done, 1000);
  assert_int_equal(u.exit.err.code, AL_EABORTED);
  open_exec(&r, &u, false);
  open_exec(&r, &v, false);
  expect(&r, &f, AL_F_EXEC);
  expect(&r, &f, AL_F_EXEC);
  al_stream_cancel(u.s, 500);
  al_stream_cancel(u.s, 700);
  expect(&r, &f, AL_F_CANCEL);
  assert_int_equal(f.stream, 1);
  assert_int_equal(al_get32(f.payload), 500);
  al_stream_cancel(v.s, 0);
  expect(&r, &f, AL_F_CANCEL);
  assert_int_equal(f.stream, 2);
  assert_int_equal(al_get32(f.payload), 0);
  assert_false(u.done);
  put(&r, 1, AL_F_DATA, 1, "last words", 10);
  put_exit(&r, 1, AL_EXIT_SIGNAL, SIGTERM, "");
  rig_wait(&r, &u.done, 1000);
  assert_int_equal(u.got[1], 10);
  assert_int_equal(u.exit.kind, AL_EXIT_SIGNAL);
  assert_false(u.exit.oom);
  rig_end(&r);
}

static void
test_time_exit_tells_of_oom_and_nothing_else(void **state) {
  (void) state;
  uint8_t p[24] = { AL_EXIT_SIGNAL, 0, 0, 0, SIGKILL };
  for (uint8_t flags = 1; flags <= 2; flags++) {
    rig_t r;
    al_frame_t f;
    user_t u;
    peer_ready(&r, NULL);
    open_exec(&r, &u, false);
    expect(&r, &f, AL_F_EXEC);
    put(&r, 1, AL_F_EXIT, flags, p, sizeof p);
    rig_wait(&r, &u.done, 1000);
    assert_int_equal(u.exit.kind, flags == AL_EXIT_OOM ? AL_EXIT_SIGNAL : -1);
    if (flags == AL_EXIT_OOM) assert_true(u.exit.oom);
    else assert_int_equal(u.exit.err.code, AL_EPROTOCOL_VIOLATION);
    rig_end(&r);
  }
}

static void
configured(void *data, int status, const al_err_t *err) {
  (void) err;
  assert_int_equal(status, 0);
  ((rig_t *) data)->configured = true;
}

static void
test_time_guest_clock_is_set_after_a_jump(void **state) {
  (void) state;
  const uint64_t s = 1000000000;
  rig_t r;
  al_frame_t f;
  peer_ready(&r, NULL);
  uv_timeval64_t tv;
  al_chan_time(r.chan, 5 * s, 1 * s); /* before CONFIG has told the time: nothing to compare with */
  assert_int_equal(al_chan_config(r.chan, "agent", "/w", 0, configured, &r), 0);
  uv_gettimeofday(&tv);
  uint64_t wall = (uint64_t) tv.tv_sec * s + (uint64_t) tv.tv_usec * 1000, mono = uv_hrtime();
  expect(&r, &f, AL_F_CONFIG);
  put32(&r, 0, AL_F_CONFIG_ACK, 0, 0);
  rig_wait(&r, &r.configured, 1000);
  al_chan_time(r.chan, wall + 3 * s, mono + 3 * s);
  al_chan_time(r.chan, wall + 6 * s + s / 2, mono + 6 * s); /* a clock that is not quite right */
  assert_alive(&r);                                         /* expects PING, so no CLOCK was sent */
  al_chan_time(r.chan, wall + 3606 * s, mono + 6 * s); /* an hour of sleep, which the monotonic clock does not count */
  expect(&r, &f, AL_F_CLOCK);
  assert_int_equal(f.stream, 0);
  assert_true(al_get64(f.payload) == wall + 3606 * s);
  al_chan_time(r.chan, wall + 3609 * s, mono + 9 * s);
  assert_alive(&r);
  al_chan_time(r.chan, wall + 9 * s, mono + 9 * s); /* set back by hand */
  expect(&r, &f, AL_F_CLOCK);
  al_chan_time(r.chan, wall + 18 * s, mono + 18 * s);
  assert_alive(&r);
  al_chan_time(r.chan, wall + 19 * s, mono + 19 * s); /* and every ten seconds */
  expect(&r, &f, AL_F_CLOCK);
  assert_true(al_get64(f.payload) == wall + 19 * s);
  rig_end(&r);
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_time_own_standstill_is_not_the_guests_silence),
    cmocka_unit_test(test_time_a_guest_that_stands_still_settles_everything),
    cmocka_unit_test(test_time_cancel_is_sent_once_and_may_be_hurried),
    cmocka_unit_test(test_time_exit_tells_of_oom_and_nothing_else),
    cmocka_unit_test(test_time_guest_clock_is_set_after_a_jump),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
