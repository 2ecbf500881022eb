/* SPDX-License-Identifier: Apache-2.0 */
/* The lane agent as a local process: flow control, of stdin, of output, and of the whole channel. */
#include "agent_host.h"

/* In and out through a command that writes what it reads, with both windows and the pacing kept. over_pipes: as by a
 * login; then pings and bytes of another command come in between. gap_us: after each frame; without one, every eighth is small.
 * most: of bytes unacknowledged. */
static void
through_paced(const char *command, size_t total, bool over_pipes, unsigned gap_us, uint32_t most) {
  const char *args[] = {"agent", "--local", "--secret", peer_path("secret"), NULL};
  peer_t p;
  result_t r = {0}, other = {0};
  peer_start_on(&p, args, NULL, over_pipes);
  peer_hello(&p);
  uint32_t beside = over_pipes ? peer_exec(&p, AL_EXEC_STDIN, "cat") : 0, frames = 0, small = 0, pongs = 0;
  uint8_t *in = malloc(total);
  assert_non_null(in);
  for (size_t i = 0; i < total; i++) in[i] = (uint8_t) (i * 2654435761u >> 13);
  uint32_t id = peer_exec(&p, AL_EXEC_STDIN, command);
  size_t at = 0;
  bool ended = false;
  while (!r.exited) {
    size_t window = AL_WINDOW_DEFAULT + r.credited - at, n = total - at;
    uint64_t unacked = p.sent - p.sent_acked;
    if (n > 50000) n = 50000;
    if (n > (most - AL_ACK_EVERY) / 2) n = (most - AL_ACK_EVERY) / 2; /* what may stay unacknowledged for good must not stop us */
    if (over_pipes && gap_us == 0 && frames % 8 == 7 && n > 700) n = 700;
    if (n > window) n = window;
    if (n > 0 && unacked + AL_FRAME_HEADER + n <= most) {
      peer_send(&p, id, AL_F_DATA, AL_SUB_STDIN, in + at, n);
      at += n;
      if (gap_us > 0) usleep(gap_us);
      if (over_pipes && ++frames % 25 == 0) {
        peer_send64(&p, AL_F_PING, ++small);
        peer_send(&p, beside, AL_F_DATA, AL_SUB_STDIN, "beside", 6);
      }
      continue;
    }
    if (at == total && !ended) {
      peer_send(&p, id, AL_F_END, AL_SUB_STDIN, NULL, 0), ended = true;
      if (over_pipes) peer_send(&p, beside, AL_F_END, AL_SUB_STDIN, NULL, 0);
    }
    al_frame_t f;
    assert_int_equal(peer_next(&p, &f, PEER_WAIT_MS), 1);
    if (f.stream == id) peer_take(&f, &r);
    if (f.stream == beside && beside != 0) peer_take(&f, &other);
    if (f.type == AL_F_PONG) assert_int_equal(al_get64(f.payload), ++pongs);
    assert_true(r.credited <= at + (over_pipes ? AL_WINDOW_BULK - AL_WINDOW_DEFAULT : 0));
  }
  while (over_pipes && !other.exited) {
    al_frame_t f;
    assert_int_equal(peer_next(&p, &f, PEER_WAIT_MS), 1);
    if (f.stream == beside) peer_take(&f, &other);
    if (f.type == AL_F_PONG) assert_int_equal(al_get64(f.payload), ++pongs);
  }
  assert_int_equal(pongs, small);
  assert_int_equal(other.out_len, 6 * small);
  for (uint32_t i = 0; i < small; i++) assert_memory_equal(other.out + (size_t) 6 * i, "beside", 6);
  free(other.out);
  assert_int_equal(r.out_len, total);
  assert_memory_equal(r.out, in, total);
  free(in);
  free(r.out);
  peer_stop(&p);
}

static void
through(const char *command, size_t total, bool over_pipes, unsigned gap_us) {
  through_paced(command, total, over_pipes, gap_us, AL_PACING_DEFAULT);
}

static void
test_stdin_five_megabytes_through_cat(void **state) {
  (void) state;
  through("cat", 5000000, false, 0);
}

/* Over a login large frames are moved from pipe to pipe, and the channel is left alone for moments. */
static void
test_stdin_in_bulk_over_pipes(void **state) {
  (void) state;
  through("cat", 40000000, true, 0);
  through("head -c 3000000; sleep 0.3; cat", 5000000, true, 0);
  /* Slow enough for moments, and nothing comes out before all is in: acknowledgements of output end the bulk. */
  through("f=$(mktemp) && cat >$f && cat $f && rm $f", 6000000, true, 2000);
}

/* In bulk acknowledgements are put off, but not from a host that has as little under way as one may, or as much. */
static void
test_stdin_in_bulk_at_any_pacing(void **state) {
  (void) state;
  through_paced("f=$(mktemp) && cat >$f && cat $f && rm $f", 5000000, true, 1000, AL_PACING_LEAST);
  through_paced("f=$(mktemp) && cat >$f && cat $f && rm $f", 5000000, true, 1000, AL_PACING_ALONE_HOST);
  through_paced("cat", 20000000, true, 0, AL_PACING_ALONE_HOST);
}

static void
send_block(peer_t *p, uint32_t id, size_t n) {
  static uint8_t block[32768];
  peer_send(p, id, AL_F_DATA, AL_SUB_STDIN, block, n);
}

/* A host that stops in the middle of bulk gets the acknowledgement of all but AL_ACK_EVERY, whatever it waits for. */
static void
test_stdin_in_bulk_that_stops_is_acknowledged(void **state) {
  (void) state;
  const char *args[] = {"agent", "--local", "--secret", peer_path("secret"), NULL};
  peer_t p;
  al_frame_t f;
  result_t r = {0};
  peer_start_on(&p, args, NULL, true);
  peer_hello(&p);
  uint32_t id = peer_exec(&p, AL_EXEC_STDIN, "cat >/dev/null");
  size_t at = 0;
  for (int round = 0; round < 40; round++) {
    for (int i = 0; i < 3 * 16 + round % 16; i++) {
      while (at + 32768 > AL_WINDOW_DEFAULT + r.credited || p.sent - p.sent_acked > AL_PACING_ALONE_HOST - 40000) {
        assert_int_equal(peer_next(&p, &f, PEER_WAIT_MS), 1);
        if (f.stream == id) peer_take(&f, &r);
      }
      send_block(&p, id, 32768);
      at += 32768;
      usleep(500);
    }
    while (p.sent - p.sent_acked >= AL_ACK_EVERY) {
      assert_int_equal(peer_next(&p, &f, PEER_WAIT_MS), 1);
      if (f.stream == id) peer_take(&f, &r);
    }
  }
  peer_send(&p, id, AL_F_END, AL_SUB_STDIN, NULL, 0);
  while (!r.exited) {
    assert_int_equal(peer_next(&p, &f, PEER_WAIT_MS), 1);
    if (f.stream == id) peer_take(&f, &r);
  }
  assert_true(r.credited > AL_WINDOW_BULK - AL_WINDOW_DEFAULT);
  peer_stop(&p);
}

/* The larger window is kept to, in what is taken of a host and in what waits for a command that does not read. */
static void
test_stdin_in_bulk_has_a_larger_window_and_no_more(void **state) {
  (void) state;
  const char *args[] = {"agent", "--local", "--secret", peer_path("secret"), NULL};
  peer_t p;
  al_frame_t f;
  result_t r = {0};
  peer_start_on(&p, args, NULL, true);
  peer_hello(&p);
  uint32_t id = peer_exec(&p, AL_EXEC_STDIN, "sleep 30");
  size_t at = 0;
  do {
    assert_true(at < AL_WINDOW_DEFAULT);
    send_block(&p, id, 32768);
    at += 32768;
    while (peer_next(&p, &f, 200) == 1)
      if (f.stream == id) peer_take(&f, &r);
  } while (r.credited < AL_WINDOW_BULK - AL_WINDOW_DEFAULT);
  for (; at + 32768 <= AL_WINDOW_DEFAULT + r.credited; at += 32768) {
    send_block(&p, id, 32768);
    while (peer_next(&p, &f, 20) == 1)
      if (f.stream == id) peer_take(&f, &r);
  }
  size_t rest = AL_WINDOW_DEFAULT + r.credited - at;
  if (rest > 0) send_block(&p, id, rest);
  peer_ping(&p);
  assert_int_equal(p.reject, 0);
  /* What its pipe holds is credited. */
  assert_true(at + rest >= AL_WINDOW_BULK && at + rest <= AL_WINDOW_BULK + 262144);
  send_block(&p, id, 1);
  peer_expect_reject(&p, 3);
}

/* Who reads in bits leaves both its pipe and the agent's own area full, so what waits there is moved as more comes. */
static void
slow_reader(bool over_pipes) {
  through("for i in 1 2 3 4 5 6 7 8; do sleep 0.1; dd bs=70000 count=1 iflag=fullblock 2>/dev/null; done; cat", 1500000, over_pipes, 0);
}

static void
test_stdin_of_a_slow_reader(void **state) {
  (void) state;
  slow_reader(false);
}

static void
test_stdin_of_a_slow_reader_over_pipes(void **state) {
  (void) state;
  slow_reader(true);
}

static void
test_stdin_reader_gone_bytes_are_credited(void **state) {
  (void) state;
  peer_t p;
  al_frame_t f;
  result_t r = {0};
  static uint8_t block[65536];
  peer_start(&p);
  peer_hello(&p);
  uint32_t id = peer_exec(&p, AL_EXEC_STDIN, "exec <&-; echo closed; sleep 1");
  while (r.out_len == 0) {
    assert_int_equal(peer_next(&p, &f, PEER_WAIT_MS), 1);
    peer_take(&f, &r);
  }
  for (uint64_t at = 0; at < 1000000;) {
    if (at + sizeof(block) <= AL_WINDOW_DEFAULT + r.credited) {
      peer_send(&p, id, AL_F_DATA, AL_SUB_STDIN, block, sizeof(block));
      at += sizeof(block);
    } else {
      assert_int_equal(peer_next(&p, &f, PEER_WAIT_MS), 1);
      if (f.stream == id) peer_take(&f, &r);
      assert_false(r.exited);
    }
  }
  while (!r.exited) {
    assert_int_equal(peer_next(&p, &f, PEER_WAIT_MS), 1);
    if (f.stream == id) peer_take(&f, &r);
  }
  assert_true(r.credited == 16 * sizeof(block)); /* every byte, taken or not */
  assert_true(r.ended[AL_SUB_STDIN]); /* said once, so that the host may stop */
  assert_int_equal(r.value, 0);
  free(r.out);
  peer_stop(&p);
}

static void
test_output_never_exceeds_credit(void **state) {
  (void) state;
  peer_t p;
  result_t r;
  peer_start(&p);
  peer_hello(&p);
  p.no_credit = true;
  uint32_t id = peer_exec(&p, 0, "head -c 300001 /dev/zero");
  assert_int_equal(peer_data(&p, id, AL_WINDOW_DEFAULT), AL_WINDOW_DEFAULT);
  peer_ping(&p);
  peer_send32(&p, id, AL_F_CREDIT, 1, 1);
  assert_int_equal(peer_data(&p, id, 1), 1);
  peer_expect(&p, peer_exec(&p, 0, "echo other"), AL_EXIT_CODE, 0, "other\n"); /* a stalled stream stops nobody else */
  usleep(2500000); /* longer than the grace: the bytes wait for credit, so they must not be lost */
  p.no_credit = false;
  peer_send32(&p, id, AL_F_CREDIT, 1, 100000);
  peer_result(&p, id, &r);
  assert_int_equal(r.out_len, 300001 - AL_WINDOW_DEFAULT - 1);
  free(r.out);
  peer_stop(&p);
}

/* Bytes that come until the agent stops for want of an acknowledgement, which is then given `ms` later. */
static size_t
burst(peer_t *p, int ms) {
  al_frame_t f;
  uint64_t before = p->acked;
  while (peer_next(p, &f, 100) == 1) assert_int_not_equal(f.type, AL_F_EXIT);
  usleep((unsigned) ms * 1000);
  p->acked = p->received;
  peer_send64(p, AL_F_ACK, p->received);
  return p->received - before;
}

static void
test_output_follows_the_channel(void **state) {
  (void) state;
  peer_t p;
  al_frame_t f;
  size_t slow = 0, fast = 0;
  peer_start(&p);
  peer_hello(&p);
  p.no_ack = true;
  uint32_t id = peer_exec(&p, 0, "exec cat /dev/zero");
  for (int i = 0; i < 8; i++) slow = burst(&p, 0); /* it has waited long by then */
  assert_true(slow <= AL_PACING_ALONE_GUEST && slow > AL_ACK_EVERY);
  /* On a busy machine an acknowledgement may be late at any time, and what is under way is less again. */
  for (int i = 0; i < 50 && fast <= AL_PACING_ALONE_GUEST; i++) {
    p.no_ack = false;
    for (size_t n = 0; n < 20000000;) {
      assert_int_equal(peer_next(&p, &f, PEER_WAIT_MS), 1);
      if (f.type == AL_F_DATA && f.stream == id) n += f.len;
    }
    p.no_ack = true;
    fast = burst(&p, 0);
    assert_true(fast <= AL_PACING_MAX);
  }
  assert_true(fast > AL_PACING_ALONE_GUEST);
  peer_stop(&p);
}

static void
test_output_never_exceeds_pacing(void **state) {
  (void) state;
  peer_t p;
  al_frame_t f;
  peer_start(&p);
  peer_hello(&p);
  p.no_ack = true;
  uint32_t id = peer_exec(&p, 0, "head -c 1000000 /dev/zero");
  peer_data(&p, id, 90000);
  assert_true(p.received <= AL_PACING_ALONE_GUEST);
  assert_true(p.received > AL_PACING_DEFAULT - 40000);
  peer_ping(&p); /* also when everything is stalled */
  p.no_ack = false;
  peer_send64(&p, AL_F_ACK, p.received);
  p.acked = p.received;
  do assert_int_equal(peer_next(&p, &f, PEER_WAIT_MS), 1);
  while (f.type != AL_F_EXIT);
  assert_true(p.received > 1000000);
  peer_stop(&p);
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_stdin_five_megabytes_through_cat),
    cmocka_unit_test(test_stdin_in_bulk_over_pipes),
    cmocka_unit_test(test_stdin_in_bulk_at_any_pacing),
    cmocka_unit_test(test_stdin_in_bulk_that_stops_is_acknowledged),
    cmocka_unit_test(test_stdin_in_bulk_has_a_larger_window_and_no_more),
    cmocka_unit_test(test_stdin_of_a_slow_reader),
    cmocka_unit_test(test_stdin_of_a_slow_reader_over_pipes),
    cmocka_unit_test(test_stdin_reader_gone_bytes_are_credited),
    cmocka_unit_test(test_output_never_exceeds_credit),
    cmocka_unit_test(test_output_follows_the_channel),
    cmocka_unit_test(test_output_never_exceeds_pacing),
  };
  return cmocka_run_group_tests(tests, peer_setup, peer_teardown);
}
