/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the channel against a scripted peer: pacing, credits, liveness, configuration. */
#include "chan_int.h"
#include "chan_peer.h"

static void
test_chan_sends_no_more_than_pacing_allows(void **state) {
  (void) state;
  rig_t r;
  al_frame_t f;
  user_t u, v, w;
  static char block[200000];
  size_t in = 0, small = 0, other = 0;
  peer_ready(&r, NULL);
  open_exec(&r, &u, true);
  open_exec(&r, &v, true);
  open_exec(&r, &w, true);
  assert_int_equal(al_stream_write(u.s, block, sizeof block), sizeof block);
  assert_int_equal(al_stream_write(v.s, block, 5000), 5000);
  assert_int_equal(al_stream_write(w.s, block, sizeof block), sizeof block);
  while (next(&r, &f, 100)) {
    if (f.type == AL_F_DATA && f.stream == 1) in += f.len;
    if (f.type == AL_F_DATA && f.stream == 2) small += f.len;
    if (f.type == AL_F_DATA && f.stream == 3) other += f.len;
    if (f.type == AL_F_DATA) assert_true(f.len <= 32768);
    if (small == 0) assert_true(in <= 2 * 32768); /* round robin: the small one does not wait for the large one */
  }
  assert_true(got.counted <= AL_PACING_DEFAULT && got.counted > AL_PACING_DEFAULT - AL_CRUMB - AL_FRAME_HEADER);
  assert_int_equal(small, 5000);
  al_stream_signal(v.s, 15, false);
  al_stream_signal(v.s, 15, false);
  al_stream_signal(v.s, 9, true);
  assert_false(next(&r, &f, 50));
  put64(&r, AL_F_ACK, got.counted);
  expect(&r, &f, AL_F_SIGNAL); /* before the rest of the data, the two equal ones as one */
  assert_int_equal(al_get32(f.payload), 15);
  assert_int_equal(f.flags, AL_SIGNAL_GROUP);
  expect(&r, &f, AL_F_SIGNAL);
  assert_int_equal(al_get32(f.payload), 9);
  assert_int_equal(f.flags, AL_SIGNAL_TREE);
  while (in + other < 2 * sizeof block) {
    expect(&r, &f, AL_F_DATA);
    if (f.stream == 1) in += f.len;
    else other += f.len;
    put64(&r, AL_F_ACK, got.counted);
  }
  assert_int_equal(in, sizeof block);
  assert_int_equal(u.drains, 1);
  assert_false(next(&r, &f, 50));
  al_stream_end(u.s);
  expect(&r, &f, AL_F_END);
  rig_end(&r);
}

/* Nothing of others waits behind a stream that has been the only one for a while. */
static void
test_chan_lets_one_that_is_alone_have_more_under_way(void **state) {
  (void) state;
  rig_t r;
  al_frame_t f;
  user_t u;
  static char block[2 * AL_PACING_ALONE_HOST];
  size_t longest = 0;
  peer_ready(&r, NULL);
  open_exec(&r, &u, true);
  assert_int_equal(al_stream_write(u.s, block, sizeof block), sizeof block);
  put32(&r, 1, AL_F_CREDIT, 0, sizeof block - AL_WINDOW_DEFAULT);
  while (next(&r, &f, 2 * AL_PACING_ALONE_NS / 1000000))
    if (f.type == AL_F_DATA && f.len > longest) longest = f.len;
  assert_int_equal(longest, AL_FRAME_MAX); /* nor has anybody to wait behind its frames */
  assert_true(got.counted <= AL_PACING_ALONE_HOST);
  uint64_t first = got.counted;
  put64(&r, AL_F_ACK, 1000); /* makes it look again */
  while (next(&r, &f, 100)) {}
  assert_true(got.counted > first && got.counted - 1000 > AL_PACING_ALONE_HOST - AL_CRUMB - AL_FRAME_HEADER);
  assert_true(got.counted - 1000 <= AL_PACING_ALONE_HOST);
  rig_end(&r);
}

static const char input[400000]; /* more than a window */

/* A command with that much of stdin waiting. */
static void
start_fed(rig_t *r, user_t *u) {
  peer_ready(r, NULL);
  open_exec(r, u, true);
  assert_int_equal(al_stream_write(u->s, input, sizeof input), sizeof input);
}

static void
test_chan_stdin_keeps_to_its_credit(void **state) {
  (void) state;
  rig_t r;
  al_frame_t f;
  user_t u;
  size_t in = 0;
  static char too_much[AL_STDIN_QUEUE_MAX];
  start_fed(&r, &u);
  assert_int_equal(al_stream_write(u.s, too_much, sizeof too_much), -ENOBUFS);
  while (next(&r, &f, 100)) {
    if (f.type == AL_F_DATA) in += f.len;
    put64(&r, AL_F_ACK, got.counted);
  }
  assert_true(in <= AL_WINDOW_DEFAULT && in + AL_CRUMB > AL_WINDOW_DEFAULT);
  put32(&r, 1, AL_F_CREDIT, 0, (uint32_t) (in + AL_CRUMB - AL_WINDOW_DEFAULT - 1));
  assert_false(next(&r, &f, 50)); /* a crumb: all but it is on its way, so more credit is certain */
  put32(&r, 1, AL_F_CREDIT, 0, 1);
  expect(&r, &f, AL_F_DATA);
  assert_int_equal(f.len, AL_CRUMB);
  put(&r, 1, AL_F_END, 0, NULL, 0); /* the command has closed its stdin */
  put32(&r, 1, AL_F_CREDIT, 0, 1000);
  assert_false(next(&r, &f, 50));
  assert_int_equal(u.drains, 1); /* whoever waits for room learns it */
  assert_int_equal(al_stream_write(u.s, input, 10), 0);
  al_stream_end(u.s);
  assert_false(next(&r, &f, 50));
  assert_alive(&r);
  rig_end(&r);
}

/* Half of an input with an end behind it could mean anything to the command. */
static void
test_chan_cancel_drops_stdin_and_its_end(void **state) {
  (void) state;
  rig_t r;
  al_frame_t f;
  user_t u;
  size_t in = 0;
  start_fed(&r, &u);
  al_stream_end(u.s);
  while (next(&r, &f, 50)) in += f.type == AL_F_DATA ? f.len : 0;
  al_stream_cancel(u.s, 100);
  assert_int_equal(al_stream_write(u.s, input, 1), 0);
  put64(&r, AL_F_ACK, got.counted);
  expect(&r, &f, AL_F_CANCEL);
  assert_false(next(&r, &f, 50));
  assert_true(in > 0 && in < sizeof input);
  rig_end(&r);
}

static void
test_chan_credits_what_was_consumed(void **state) {
  (void) state;
  rig_t r;
  al_frame_t f;
  user_t u;
  static char part[65536];
  const size_t grown = AL_WINDOW_GROWN - AL_WINDOW_DEFAULT;
  peer_ready(&r, NULL);
  open_exec(&r, &u, false);
  expect(&r, &f, AL_F_EXEC);
  u.consume = false;
  for (int i = 0; i < 4; i++) put(&r, 1, AL_F_DATA, 1, part, sizeof part); /* the whole window */
  uint64_t acked = 0;
  while (next(&r, &f, 50)) {
    assert_int_equal(f.type, AL_F_ACK); /* read, not consumed: acknowledged and not credited */
    acked = al_get64(f.payload);
  }
  assert_true(acked > 4 * 65536 - 65536);
  assert_int_equal(u.got[1], 4 * 65536);
  al_stream_consumed(u.s, 1, 131071);
  assert_alive(&r); /* sends a ping: the small credit does not go along */
  assert_false(next(&r, &f, 50));
  al_stream_consumed(u.s, 1, 1);
  expect(&r, &f, AL_F_CREDIT);
  assert_int_equal(f.flags, 1);
  assert_int_equal(al_get32(f.payload), 131072 + grown); /* the receiver keeps up */
  al_stream_consumed(u.s, 1, 131072);
  assert_false(next(&r, &f, 50)); /* the guest has much left, so this goes with the next acknowledgement */
  put(&r, 1, AL_F_DATA, 1, part, sizeof part);
  expect(&r, &f, AL_F_ACK);
  expect(&r, &f, AL_F_CREDIT);
  assert_int_equal(al_get32(f.payload), 131072); /* once only */
  for (size_t left = 131072 + grown - sizeof part + 131072; left > 0; left -= sizeof part)
    put(&r, 1, AL_F_DATA, 1, part, sizeof part); /* exactly what is left of the credit */
  rig_idle(&r, 20);
  assert_false(r.closed);
  put(&r, 1, AL_F_DATA, 1, part, 1);
  rig_wait(&r, &r.closed, 1000);
  assert_int_equal(r.why.code, AL_EPROTOCOL_VIOLATION);
  rig_end(&r);
}

/* What comes fast is acknowledged less often, but never left without. */
static void
test_chan_acknowledges_what_comes_fast(void **state) {
  (void) state;
  rig_t r;
  al_frame_t f;
  user_t u;
  static char part[65536];
  peer_ready(&r, NULL);
  open_exec(&r, &u, false);
  expect(&r, &f, AL_F_EXEC);
  u.consume = false;
  put(&r, 1, AL_F_DATA, 1, part, sizeof part);
  expect(&r, &f, AL_F_ACK);
  uint64_t first = al_get64(f.payload);
  put(&r, 1, AL_F_DATA, 1, part, sizeof part); /* the last for now */
  expect(&r, &f, AL_F_ACK);
  assert_int_equal(al_get64(f.payload), first + AL_FRAME_HEADER + sizeof part);
  rig_end(&r);
}

/* So that receivers which stall together cannot hold much. */
static void
test_chan_few_windows_are_large(void **state) {
  (void) state;
  rig_t r;
  al_frame_t f;
  user_t users[AL_GROWN_MAX + 2];
  static char part[65536];
  peer_ready(&r, NULL);
  for (uint32_t id = 1; id <= AL_GROWN_MAX + 2; id++) {
    open_exec(&r, &users[id - 1], false);
    do assert_true(next(&r, &f, AL_TEST_PATIENCE_MS));
    while (f.type == AL_F_ACK); /* one for the stream before, which was waited with */
    assert_int_equal(f.type, AL_F_EXEC);
    users[id - 1].consume = true;
    if (id == AL_GROWN_MAX + 2) put(&r, 1, AL_F_RESET, 0, NULL, 0); /* one of the large ones is over */
    for (int i = 0; i < 2; i++) put(&r, id, AL_F_DATA, 1, part, sizeof part);
    do assert_true(next(&r, &f, AL_TEST_PATIENCE_MS));
    while (f.type == AL_F_ACK);
    assert_int_equal(f.type, AL_F_CREDIT);
    uint32_t grown = id == AL_GROWN_MAX + 1 ? 0 : AL_WINDOW_GROWN - AL_WINDOW_DEFAULT;
    assert_int_equal(al_get32(f.payload), 131072 + grown);
  }
  rig_end(&r);
}

static void
test_chan_guest_that_does_not_read_is_given_up(void **state) {
  (void) state;
  rig_t r;
  user_t u;
  static char block[250000];
  peer_ready(&r, &(al_chan_opts_t){ .ping_ms = 20, .silence_ms = 150 });
  open_exec(&r, &u, true);
  al_stream_write(u.s, block, sizeof block);
  uint64_t t = uv_hrtime();
  while (!r.closed && uv_hrtime() - t < 3000000000u) {
    put(&r, 1, AL_F_DATA, 1, "x", 1); /* it talks, but takes nothing */
    rig_idle(&r, 5);
  }
  assert_true(r.closed);
  assert_int_equal(r.why.code, AL_ECHANNEL_CLOSED);
  assert_non_null(strstr(r.why.msg, "has not read"));
  rig_end(&r);
}

static void
test_chan_silence_is_asked_and_ends_it(void **state) {
  (void) state;
  rig_t r;
  al_frame_t f;
  user_t u;
  peer_ready(&r, &(al_chan_opts_t){ .ping_ms = 50, .silence_ms = 200 });
  assert_false(next(&r, &f, 300)); /* nothing is owed: no pings, no end */
  assert_false(r.closed);
  open_exec(&r, &u, false);
  expect(&r, &f, AL_F_EXEC);
  for (int i = 0; i < 6; i++) { /* answered: it goes on */
    expect(&r, &f, AL_F_PING);
    put(&r, 0, AL_F_PONG, 0, f.payload, 8);
  }
  expect(&r, &f, AL_F_PING);
  assert_false(r.closed);
  rig_wait(&r, &r.closed, 1000);
  assert_int_equal(r.why.code, AL_ECHANNEL_CLOSED);
  assert_non_null(strstr(r.why.msg, "has not answered for 0.2 s"));
  assert_int_equal(u.exit.err.code, AL_ECHANNEL_CLOSED);
  rig_end(&r);
}

static void
test_chan_own_standstill_is_not_silence(void **state) {
  (void) state;
  rig_t r;
  al_frame_t f;
  user_t u;
  peer_ready(&r, &(al_chan_opts_t){ .ping_ms = 50, .silence_ms = 200 });
  open_exec(&r, &u, false);
  expect(&r, &f, AL_F_EXEC);
  put(&r, 1, AL_F_DATA, 1, "x", 1);
  usleep(600000);
  rig_idle(&r, 20);
  assert_false(r.closed);
  assert_int_equal(u.got[1], 1);
  rig_end(&r);
}

static void
on_config(void *data, int status, const al_err_t *err) {
  rig_t *r = data;
  assert_false(r->configured);
  r->configured = true;
  assert_int_equal(status, err->code);
  r->why = *err;
}

static void
test_chan_config_is_answered_once(void **state) {
  (void) state;
  rig_t r;
  al_frame_t f;
  peer_ready(&r, NULL);
  assert_int_equal(al_chan_config(r.chan, "agent", "/home/agent/workspace", AL_CONFIG_SUDO, on_config, &r), 0);
  assert_int_equal(al_chan_config(r.chan, "agent", "/w", 0, on_config, &r), -EINVAL);
  expect(&r, &f, AL_F_CONFIG);
  size_t pos = 0;
  unsigned seen = 0;
  uint16_t tag;
  const uint8_t *v;
  uint32_t len;
  while (al_tlv_next(f.payload, f.len, &pos, &tag, &v, &len) == 1) {
    seen |= 1u << tag;
    if (tag == AL_TLV_FLAGS) assert_int_equal(al_get32(v), AL_CONFIG_SUDO);
    if (tag == AL_TLV_PATH) assert_memory_equal(v, "/home/agent/workspace", len);
    if (tag == AL_TLV_TIME) assert_true(al_get64(v) > 1700000000000000000u);
  }
  assert_int_equal(seen, 1u << AL_TLV_FLAGS | 1u << AL_TLV_PATH | 1u << AL_TLV_TIME | 1u << AL_TLV_USER);
  put(&r, 0, AL_F_CONFIG_ACK, 0, "\15\0\0\0no\tworktree", 15);
  rig_wait(&r, &r.configured, 1000);
  assert_int_equal(r.why.code, AL_ESTART_FAILED);
  rig_end(&r);
  peer_ready(&r, &(al_chan_opts_t){ .handshake_ms = 80 });
  assert_int_equal(al_chan_config(r.chan, "agent", "/w", 0, on_config, &r), 0);
  rig_wait(&r, &r.closed, 1000);
  assert_true(r.configured);
  assert_int_equal(r.why.code, AL_ECHANNEL_CLOSED);
  rig_end(&r);
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_chan_sends_no_more_than_pacing_allows),
    cmocka_unit_test(test_chan_lets_one_that_is_alone_have_more_under_way),
    cmocka_unit_test(test_chan_stdin_keeps_to_its_credit),
    cmocka_unit_test(test_chan_cancel_drops_stdin_and_its_end),
    cmocka_unit_test(test_chan_credits_what_was_consumed),
    cmocka_unit_test(test_chan_acknowledges_what_comes_fast),
    cmocka_unit_test(test_chan_few_windows_are_large),
    cmocka_unit_test(test_chan_guest_that_does_not_read_is_given_up),
    cmocka_unit_test(test_chan_silence_is_asked_and_ends_it),
    cmocka_unit_test(test_chan_own_standstill_is_not_silence),
    cmocka_unit_test(test_chan_config_is_answered_once),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
