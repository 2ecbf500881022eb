/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the channel against a scripted peer: the proof, every violation, what is dropped. */
#include "chan_peer.h"

static void
test_chan_nothing_but_hello_before_the_proof(void **state) {
  (void) state;
  rig_t r;
  al_frame_t f;
  user_t u = { .r = &r };
  al_err_t err = { 0 };
  const char *argv[] = { "x", NULL };
  al_exec_req_t req = { .argv = argv };
  peer_start(&r, NULL);
  assert_int_equal(al_stream_exec(r.chan, &req, &cbs, &u, &u.s, &err), AL_ECHANNEL_CLOSED);
  assert_int_equal(al_chan_config(r.chan, "agent", "/w", 0, NULL, NULL), -EINVAL);
  assert_int_equal(al_chan_ping(r.chan, NULL, NULL), AL_ECHANNEL_CLOSED);
  expect(&r, &f, AL_F_HELLO);
  assert_memory_equal(f.payload, AL_PROTO_MAGIC, 4);
  assert_false(next(&r, &f, 100));
  assert_false(r.ready);
  rig_end(&r);
}

static void
unproven(const char *magic, uint16_t version, bool right, int code) {
  rig_t r;
  al_frame_t f;
  peer_start(&r, NULL);
  expect(&r, &f, AL_F_HELLO);
  answer(&r, &f, magic, version, right);
  rig_wait(&r, &r.closed, 2000);
  assert_int_equal(r.why.code, code);
  assert_false(r.ready);
  fill(&r);
  assert_int_equal(got.len, got.at); /* and nothing more was written */
  rig_end(&r);
}

static void
test_chan_proof_must_hold(void **state) {
  (void) state;
  unproven("ALCX", AL_PROTO_VERSION, true, AL_EPEER_UNPROVEN);
  unproven(AL_PROTO_MAGIC, AL_PROTO_VERSION + 1, true, AL_EPEER_INCOMPATIBLE);
  unproven(AL_PROTO_MAGIC, 0, true, AL_EPEER_INCOMPATIBLE);
  unproven(AL_PROTO_MAGIC, AL_PROTO_VERSION, false, AL_EPEER_UNPROVEN);
}

static void
before_proof(const void *bytes, size_t n, bool frames, int code) {
  rig_t r;
  peer_start(&r, NULL);
  rig_idle(&r, 5);
  if (!frames) assert_int_equal(send(r.peer, bytes, n, 0), (ssize_t) n);
  else put(&r, n == 40 ? 0 : 1, n == 40 ? AL_F_HELLO : AL_F_DATA, 0, bytes, n);
  rig_wait(&r, &r.closed, 2000);
  assert_int_equal(r.why.code, code);
  rig_end(&r);
}

static void
test_chan_other_talk_before_the_proof_is_unproven(void **state) {
  (void) state;
  before_proof("Last login: Sun Nov 29 from 10.0.2.2\n", 36, false, AL_EPEER_UNPROVEN);
  before_proof("\0\1\2\3\4\5\6\7\10\11\12\13\14", 13, false, AL_EPEER_UNPROVEN);
  before_proof("ALCH\1\0\1\0..................................", 40, true, AL_EPEER_UNPROVEN); /* an echo */
  before_proof("data", 4, true, AL_EPEER_UNPROVEN);
}

static void
test_chan_handshake_has_a_deadline_and_may_be_refused(void **state) {
  (void) state;
  rig_t r;
  al_frame_t f;
  peer_start(&r, &(al_chan_opts_t){ .handshake_ms = 60 });
  rig_wait(&r, &r.closed, 1000);
  assert_int_equal(r.why.code, AL_ECHANNEL_CLOSED);
  assert_non_null(strstr(r.why.msg, "60 ms"));
  rig_end(&r);
  for (uint32_t code = 2; code <= 4; code += 2) {
    uint8_t p[20];
    peer_start(&r, NULL);
    expect(&r, &f, AL_F_HELLO);
    al_put32(p, code);
    memcpy(p + 4, "not \033[1mtoday", 13);
    put(&r, 0, AL_F_REJECT, 0, p, 17);
    rig_wait(&r, &r.closed, 1000);
    assert_int_equal(r.why.code, code == 2 ? AL_EPEER_INCOMPATIBLE : AL_ECHANNEL_CLOSED);
    assert_non_null(strstr(r.why.msg, "not ?[1mtoday"));
    rig_end(&r);
  }
  peer_start(&r, NULL);
  shutdown(r.peer, SHUT_WR);
  rig_wait(&r, &r.closed, 1000);
  assert_int_equal(r.why.code, AL_ECHANNEL_CLOSED);
  rig_end(&r);
}

/* Each is sent after the handshake, with an EXEC (stream 1, stdin) and a READ (stream 2) open and everything
 * acknowledged. */
static void v_never_opened(rig_t *r) { put(r, 3, AL_F_DATA, 1, "x", 1); }
static void v_never_opened_exit(rig_t *r) { put_exit(r, 9, 0, 0, ""); }
static void v_from_guest_bit(rig_t *r) { put(r, 0x80000001u, AL_F_DATA, 1, "x", 1); }
static void v_stream_zero(rig_t *r) { put(r, 0, AL_F_DATA, 1, "x", 1); }
static void v_data_on_stdin(rig_t *r) { put(r, 1, AL_F_DATA, 0, "x", 1); }
static void v_data_on_sub_3(rig_t *r) { put(r, 1, AL_F_DATA, 3, "x", 1); }
static void v_read_has_no_stderr(rig_t *r) { put(r, 2, AL_F_DATA, 2, "x", 1); }
static void v_read_has_no_stdin(rig_t *r) { put(r, 2, AL_F_END, 0, NULL, 0); }
static void v_end_twice(rig_t *r) { for (int i = 0; i < 2; i++) put(r, 1, AL_F_END, 1, NULL, 0); }
static void v_stdin_end_twice(rig_t *r) { for (int i = 0; i < 2; i++) put(r, 1, AL_F_END, 0, NULL, 0); }
static void v_end_on_sub_9(rig_t *r) { put(r, 1, AL_F_END, 9, NULL, 0); }
static void v_data_after_end(rig_t *r) { put(r, 1, AL_F_END, 2, NULL, 0); put(r, 1, AL_F_DATA, 2, "x", 1); }
static void
v_window(rig_t *r) {
  for (int i = 0; i < 4; i++) put(r, 2, AL_F_DATA, 1, NULL, 65536);
  put(r, 2, AL_F_DATA, 1, "x", 1);
}
static void v_window_at_once(rig_t *r) { for (int i = 0; i < 5; i++) put(r, 2, AL_F_DATA, 1, NULL, 65000); }
static void v_credit_giant(rig_t *r) { put32(r, 1, AL_F_CREDIT, 0, AL_WINDOW_MAX - AL_WINDOW_DEFAULT + 1); }
static void v_credit_max(rig_t *r) { put32(r, 1, AL_F_CREDIT, 0, 0xffffffffu); }
static void v_credit_sum(rig_t *r) { for (int i = 0; i < 4; i++) put32(r, 1, AL_F_CREDIT, 0, 262144); }
static void v_credit_wrong_sub(rig_t *r) { put32(r, 1, AL_F_CREDIT, 1, 1); }
static void v_credit_for_read(rig_t *r) { put32(r, 2, AL_F_CREDIT, 0, 1); }
static void v_exit_kind(rig_t *r) { put_exit(r, 1, 3, 0, ""); }
static void v_exit_code(rig_t *r) { put_exit(r, 1, AL_EXIT_CODE, 256, ""); }
static void v_exit_signal(rig_t *r) { put_exit(r, 1, AL_EXIT_SIGNAL, 0, ""); }
static void v_exit_signal_65(rig_t *r) { put_exit(r, 1, AL_EXIT_SIGNAL, 65, ""); }
static void v_exit_errno(rig_t *r) { put_exit(r, 1, AL_EXIT_ERROR, 0, ""); }
static void v_read_by_signal(rig_t *r) { put_exit(r, 2, AL_EXIT_SIGNAL, 9, ""); }
static void v_ack_too_much(rig_t *r) { put64(r, AL_F_ACK, got.counted + 1); }
static void v_ack_back(rig_t *r) { put64(r, AL_F_ACK, got.counted); put64(r, AL_F_ACK, got.counted - 1); }
static void v_pong(rig_t *r) { put64(r, AL_F_PONG, 1); }
static void
v_pong_wrong(rig_t *r) {
  al_frame_t f;
  al_chan_ping(r->chan, NULL, NULL);
  expect(r, &f, AL_F_PING);
  put64(r, AL_F_PONG, al_get64(f.payload) + 1);
}
static void v_config_ack(rig_t *r) { put32(r, 0, AL_F_CONFIG_ACK, 0, 0); }
static void v_hello_ack(rig_t *r) { put(r, 0, AL_F_HELLO_ACK, 0, NULL, 80); }
static void v_host_frame(rig_t *r) { put(r, 1, AL_F_EXEC, 0, "x", 1); }
static void v_host_ping(rig_t *r) { put64(r, AL_F_PING, 1); }
static void v_reserved_type(rig_t *r) { put(r, 1, AL_F_TCP, 0, "x", 1); }
static void v_unknown_type(rig_t *r) { put(r, 1, 99, 0, "x", 1); }
static void v_empty_data(rig_t *r) { put(r, 1, AL_F_DATA, 1, NULL, 0); }
static void v_credit_of_nothing(rig_t *r) { put32(r, 1, AL_F_CREDIT, 0, 0); }
static void v_ack_again(rig_t *r) { for (int i = 0; i < 2; i++) put64(r, AL_F_ACK, got.counted); }
static void v_length(rig_t *r) { put(r, 1, AL_F_CREDIT, 0, "12345", 5); }
static void
v_huge(rig_t *r) {
  uint8_t h[12];
  al_frame_header(h, 1, AL_F_DATA, 1, 65537);
  (void) !write(r->peer, h, 12);
}
static void
v_reserved_field(rig_t *r) {
  uint8_t h[12];
  al_frame_header(h, 1, AL_F_END, 1, 0);
  h[6] = 1;
  (void) !write(r->peer, h, 12);
}

static void
test_chan_each_violation_closes(void **state) {
  (void) state;
#define V(name) { #name, name }
  static const struct { const char *name; void (*run)(rig_t *r);
  } all[] = {
    V(v_never_opened),
    V(v_never_opened_exit),
    V(v_from_guest_bit),
    V(v_stream_zero),
    V(v_data_on_stdin),
    V(v_data_on_sub_3),
    V(v_read_has_no_stderr),
    V(v_read_has_no_stdin),
    V(v_end_twice),
    V(v_stdin_end_twice),
    V(v_end_on_sub_9),
    V(v_data_after_end),
    V(v_window),
    V(v_window_at_once),
    V(v_credit_giant),
    V(v_credit_max),
    V(v_credit_sum),
    V(v_credit_wrong_sub),
    V(v_credit_for_read),
    V(v_exit_kind),
    V(v_exit_code),
    V(v_exit_signal),
    V(v_exit_signal_65),
    V(v_exit_errno),
    V(v_read_by_signal),
    V(v_ack_too_much),
    V(v_ack_back),
    V(v_pong),
    V(v_pong_wrong),
    V(v_config_ack),
    V(v_hello_ack),
    V(v_host_frame),
    V(v_host_ping),
    V(v_reserved_type),
    V(v_unknown_type),
    V(v_empty_data),
    V(v_credit_of_nothing),
    V(v_ack_again),
    V(v_length),
    V(v_huge),
    V(v_reserved_field),
  };
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    rig_t r;
    al_frame_t f;
    user_t u, v = { .r = &r };
    al_err_t err = { 0 };
    peer_ready(&r, NULL);
    open_exec(&r, &u, true);
    expect(&r, &f, AL_F_EXEC);
    assert_int_equal(f.stream, 1);
    assert_int_equal(al_stream_read(r.chan, "/f", "agent", &cbs, &v, &v.s, &err), 0);
    expect(&r, &f, AL_F_READ);
    assert_int_equal(f.stream, 2);
    all[i].run(&r);
    rig_idle(&r, 20);
    if (!r.closed || r.why.code != AL_EPROTOCOL_VIOLATION)
      fail_msg("%s: %s %s", all[i].name, r.closed ? al_err_name(r.why.code) : "still open", r.why.msg);
    assert_true(u.done && v.done);
    assert_int_equal(u.exit.kind, -1);
    assert_int_equal(u.exit.err.code, AL_EPROTOCOL_VIOLATION);
    rig_end(&r);
  }
}

/* EXIT and RESET are a guest's last frame of a stream. */
static void
test_chan_nothing_follows_the_last_frame(void **state) {
  (void) state;
  for (int how = 0; how < 5; how++) {
    rig_t r;
    al_frame_t f;
    user_t u;
    peer_ready(&r, NULL);
    open_exec(&r, &u, true);
    expect(&r, &f, AL_F_EXEC);
    if (how == 4) put(&r, 1, AL_F_RESET, 0, NULL, 0);
    else put_exit(&r, 1, AL_EXIT_CODE, 5, "");
    rig_wait(&r, &u.done, 1000);
    assert_false(r.closed);
    if (how == 0 || how == 4) put_exit(&r, 1, AL_EXIT_CODE, 5, "");
    if (how == 1) put(&r, 1, AL_F_DATA, 1, "late", 4);
    if (how == 2) put(&r, 1, AL_F_END, 1, NULL, 0);
    if (how == 3) put(&r, 1, AL_F_RESET, 0, NULL, 0);
    rig_wait(&r, &r.closed, 1000);
    assert_int_equal(r.why.code, AL_EPROTOCOL_VIOLATION);
    assert_non_null(strstr(r.why.msg, "has ended"));
    rig_end(&r);
  }
}

/* What may have crossed our RESET is dropped: as much as the stream's windows allow, and until the guest has
 * acknowledged the RESET. */
static void
test_chan_what_crossed_a_reset_is_bounded(void **state) {
  (void) state;
  for (int how = 0; how < 6; how++) {
    rig_t r;
    al_frame_t f;
    user_t u;
    static uint8_t block[65536];
    peer_ready(&r, NULL);
    open_exec(&r, &u, true);
    expect(&r, &f, AL_F_EXEC);
    put(&r, 1, AL_F_DATA, 1, block, 65536);
    al_stream_reset(u.s, NULL);
    rig_wait(&r, &u.done, 1000);
    expect(&r, &f, AL_F_RESET);
    for (int i = 0; i < 3; i++) put(&r, 1, AL_F_DATA, 1, block, 65536);
    put(&r, 1, AL_F_DATA, 2, "x", 1);
    put32(&r, 1, AL_F_CREDIT, 0, 1000);
    put(&r, 1, AL_F_END, 1, NULL, 0);
    while (next(&r, &f, 30)) assert_int_equal(f.type, AL_F_ACK);
    assert_alive(&r);
    assert_int_equal(u.got[1] + u.ends[1] * 1000, 0); /* reset before the first of it was parsed */
    if (how == 0) put(&r, 1, AL_F_DATA, 1, "x", 1); /* after its end */
    if (how == 1) for (int i = 0; i < 5; i++) put(&r, 1, AL_F_DATA, 2, block, 65536);
    if (how == 2) put32(&r, 1, AL_F_CREDIT, 0, AL_WINDOW_MAX);
    if (how == 3) for (int i = 0; i < 2; i++) put_exit(&r, 1, AL_EXIT_SIGNAL, 9, "");
    if (how == 4) put_exit(&r, 1, 7, 9, "");
    if (how == 5) {
      put64(&r, AL_F_ACK, got.counted); /* it has read the RESET, so it knows */
      put(&r, 1, AL_F_DATA, 2, "x", 1);
    }
    rig_wait(&r, &r.closed, 1000);
    assert_int_equal(r.why.code, AL_EPROTOCOL_VIOLATION);
    rig_end(&r);
  }
}

static void
test_chan_frames_of_reset_streams_are_dropped(void **state) {
  (void) state;
  rig_t r;
  al_frame_t f;
  user_t u;
  peer_ready(&r, NULL);
  open_exec(&r, &u, true);
  expect(&r, &f, AL_F_EXEC);
  put(&r, 1, AL_F_DATA, 1, "out", 3);
  put(&r, 1, AL_F_END, 1, NULL, 0);
  put_exit(&r, 1, AL_EXIT_CODE, 4, "a\001b");
  rig_wait(&r, &u.done, 1000);
  assert_int_equal(u.exit.kind, AL_EXIT_CODE);
  assert_int_equal(u.exit.value, 4);
  assert_int_equal(u.exit.ns, 77);
  assert_string_equal(u.exit.text, "a?b");
  assert_int_equal(u.got[1], 3);
  assert_int_equal(u.ends[1], 1);
  assert_int_equal(u.ends[2], 0); /* EXIT without END of stderr */
  assert_alive(&r);
  open_exec(&r, &u, true);
  expect(&r, &f, AL_F_EXEC);
  assert_int_equal(f.stream, 2);
  al_err_t why = { 0 };
  al_err_set(&why, AL_ELANE_EXPIRED, "over");
  al_stream_reset(u.s, &why);
  assert_false(u.done);
  put(&r, 2, AL_F_DATA, 1, "crossed", 7);
  rig_wait(&r, &u.done, 1000);
  assert_int_equal(u.exit.kind, -1);
  assert_int_equal(u.exit.err.code, AL_ELANE_EXPIRED);
  assert_int_equal(u.got[1], 0);
  expect(&r, &f, AL_F_RESET);
  assert_int_equal(f.stream, 2);
  put_exit(&r, 2, AL_EXIT_SIGNAL, 9, "");
  assert_alive(&r);
  open_exec(&r, &u, true);
  al_stream_reset(u.s, NULL); /* never went out: neither does a RESET */
  rig_wait(&r, &u.done, 1000);
  assert_false(next(&r, &f, 50));
  open_exec(&r, &u, false);
  expect(&r, &f, AL_F_EXEC);
  assert_int_equal(f.stream, 3);
  put(&r, 3, AL_F_RESET, 0, NULL, 0);
  rig_wait(&r, &u.done, 1000);
  assert_int_equal(u.exit.err.code, AL_EEXEC_FAILED);
  assert_alive(&r);
  rig_end(&r);
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_chan_nothing_but_hello_before_the_proof),
    cmocka_unit_test(test_chan_proof_must_hold),
    cmocka_unit_test(test_chan_other_talk_before_the_proof_is_unproven),
    cmocka_unit_test(test_chan_handshake_has_a_deadline_and_may_be_refused),
    cmocka_unit_test(test_chan_each_violation_closes),
    cmocka_unit_test(test_chan_nothing_follows_the_last_frame),
    cmocka_unit_test(test_chan_what_crossed_a_reset_is_bounded),
    cmocka_unit_test(test_chan_frames_of_reset_streams_are_dropped),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
