/* SPDX-License-Identifier: Apache-2.0 */
/* The lane agent and what it must refuse: files that are not plain, and every way in which a host can break the
 * protocol. */
#include "agent_host.h"

static void
test_read_regular_file_comes_whole(void **state) {
  (void) state;
  peer_t p;
  result_t r;
  static char bytes[700001];
  for (size_t i = 0; i < sizeof(bytes); i++) bytes[i] = (char) (i * 31 >> 3);
  peer_file("big", bytes, sizeof(bytes));
  peer_file("empty", "", 0);
  peer_start(&p);
  peer_hello(&p);
  peer_result(&p, peer_read(&p, peer_path("big")), &r);
  assert_int_equal(r.kind, AL_EXIT_CODE);
  assert_int_equal(r.length, sizeof(bytes));
  assert_int_equal(r.out_len, sizeof(bytes));
  assert_memory_equal(r.out, bytes, sizeof(bytes));
  assert_true(r.ended[1]);
  free(r.out);
  peer_result(&p, peer_read(&p, peer_path("empty")), &r);
  assert_int_equal(r.kind, AL_EXIT_CODE);
  assert_true(r.ended[1] && r.out_len == 0 && r.length == 0);
  peer_stop(&p);
}

static void
test_read_anything_else_is_refused(void **state) {
  (void) state;
  peer_t p;
  peer_file("file", "x", 1);
  assert_int_equal(symlink("file", peer_path("link")), 0);
  assert_int_equal(symlink(peer_dir, peer_path("dirlink")), 0);
  assert_int_equal(mkfifo(peer_path("fifo"), 0600), 0);
  peer_start(&p);
  peer_hello(&p);
  peer_expect(&p, peer_read(&p, peer_path("missing")), AL_EXIT_ERROR, ENOENT, NULL);
  peer_expect(&p, peer_read(&p, peer_path("file/x")), AL_EXIT_ERROR, ENOTDIR, NULL);
  peer_expect(&p, peer_read(&p, peer_dir), AL_EXIT_ERROR, EISDIR, NULL);
  peer_expect(&p, peer_read(&p, peer_path("link")), AL_EXIT_ERROR, ELOOP, NULL);
  peer_expect(&p, peer_read(&p, peer_path("dirlink/file")), AL_EXIT_ERROR, ELOOP, NULL);
  peer_expect(&p, peer_read(&p, peer_path("fifo")), AL_EXIT_ERROR, EINVAL, NULL);
  peer_expect(&p, peer_read(&p, "/dev/null"), AL_EXIT_ERROR, EINVAL, NULL);
  peer_expect(&p, peer_read(&p, "relative"), AL_EXIT_ERROR, EINVAL, NULL);
  peer_expect(&p, peer_read(&p, ""), AL_EXIT_ERROR, EINVAL, NULL);
  peer_stop(&p);
}

static void
test_read_changing_file(void **state) {
  (void) state;
  peer_t p;
  result_t r;
  static char bytes[600000];
  for (int grow = 0; grow < 2; grow++) {
    peer_file("moving", bytes, sizeof(bytes));
    peer_start(&p);
    peer_hello(&p);
    p.no_credit = true;
    uint32_t id = peer_read(&p, peer_path("moving"));
    assert_int_equal(peer_data(&p, id, AL_WINDOW_DEFAULT), AL_WINDOW_DEFAULT);
    assert_int_equal(truncate(peer_path("moving"), grow ? 900000 : 300000), 0);
    p.no_credit = false;
    peer_send32(&p, id, AL_F_CREDIT, 1, AL_WINDOW_DEFAULT);
    peer_result(&p, id, &r);
    assert_int_equal(r.kind, grow ? AL_EXIT_CODE : AL_EXIT_ERROR);
    assert_int_equal(r.value, grow ? 0 : EIO);
    assert_int_equal(r.out_len + AL_WINDOW_DEFAULT, grow ? 600000 : 300000);
    if (grow) assert_int_equal(r.length, 600000);
    free(r.out);
    peer_stop(&p);
  }
}

typedef struct breach_s {
  const char *text; /* part of the REJECT */
  void (*commit)(peer_t *p);
} breach_t;

static void
never_opened(peer_t *p) { peer_send32(p, 77, AL_F_CREDIT, 1, 1); }
static void
guest_id(peer_t *p) { peer_send(p, AL_STREAM_FROM_GUEST | 1, AL_F_EXEC, 0, "", 0); }
static void
stream_zero(peer_t *p) { peer_send(p, 0, AL_F_EXEC, 0, "", 0); }
static void
channel_frame_on_stream(peer_t *p) { peer_send(p, 1, AL_F_PING, 0, "12345678", 8); }
static void
ping_with_flags(peer_t *p) { peer_send(p, 0, AL_F_PING, 1, "12345678", 8); }
static void
unknown_type(peer_t *p) { peer_send(p, 0, 99, 0, "", 0); }
static void
reserved_type(peer_t *p) { peer_send(p, 1, AL_F_TCP, 0, "", 0); }
static void
bad_length(peer_t *p) { peer_send(p, 0, AL_F_PING, 0, "1234567", 7); }
static void
guests_frame(peer_t *p) { peer_send(p, 0, AL_F_PONG, 0, "12345678", 8); }
static void
hello_again(peer_t *p) { peer_hello_range(p, 1, 1, AL_PROTO_MAGIC); }
static void
ack_too_much(peer_t *p) { peer_send64(p, AL_F_ACK, 1000000); }

static void
empty_data(peer_t *p) { peer_send(p, peer_exec(p, AL_EXEC_STDIN, "sleep 60"), AL_F_DATA, 0, "", 0); }
static void
credit_of_nothing(peer_t *p) { peer_send32(p, peer_exec(p, 0, "sleep 60"), AL_F_CREDIT, 1, 0); }
static void
credit_for_a_files_stderr(peer_t *p) { peer_send32(p, peer_read(p, peer_path("long")), AL_F_CREDIT, 2, 1); }
static void
end_of_a_file(peer_t *p) { peer_send(p, peer_read(p, peer_path("long")), AL_F_END, 0, "", 0); }
static void
end_without_stdin(peer_t *p) { peer_send(p, peer_exec(p, 0, "sleep 60"), AL_F_END, 0, "", 0); }

static void
end_twice(peer_t *p) {
  uint32_t id = peer_exec(p, AL_EXEC_STDIN, "sleep 60");
  for (int i = 0; i < 2; i++) peer_send(p, id, AL_F_END, 0, "", 0);
}

static void
ack_again(peer_t *p) {
  for (int i = 0; i < 2; i++) peer_send64(p, AL_F_ACK, 20);
}

static void
config_twice(peer_t *p) {
  peer_send(p, 0, AL_F_CONFIG, 0, "", 0);
  peer_send(p, 0, AL_F_CONFIG, 0, "", 0);
}

static void
ack_backwards(peer_t *p) {
  peer_send64(p, AL_F_ACK, 20);
  peer_send64(p, AL_F_ACK, 19);
}

static void
id_again(peer_t *p) {
  peer_expect(p, peer_exec(p, 0, "true"), AL_EXIT_CODE, 0, "");
  p->last_id--;
  peer_exec(p, 0, "true");
}

static void
id_falls(peer_t *p) {
  p->last_id = 10;
  peer_expect(p, peer_exec(p, 0, "true"), AL_EXIT_CODE, 0, "");
  p->last_id = 4;
  peer_read(p, "/etc/passwd");
}

static void
second_whole_exec(peer_t *p) {
  uint32_t id = peer_exec(p, 0, "sleep 60");
  peer_send(p, id, AL_F_EXEC, 0, "", 0);
}

/* The command reads nothing, but its pipe takes some bytes and those are credited: the window is full when no credit
 * comes. */
static void
overrun(peer_t *p) {
  static uint8_t block[AL_FRAME_MAX];
  uint32_t id = peer_exec(p, AL_EXEC_STDIN, "sleep 60"), window = AL_WINDOW_DEFAULT;
  al_frame_t f;
  do {
    uint32_t n = window < sizeof(block) ? window : (uint32_t) sizeof(block);
    peer_send(p, id, AL_F_DATA, 0, block, n);
    window -= n;
    while (peer_next(p, &f, window > 0 ? 0 : 300) == 1)
      if (f.type == AL_F_CREDIT) window += al_get32(f.payload);
  } while (window > 0);
  peer_ping(p);
  peer_send(p, id, AL_F_DATA, 0, block, 1);
}

static void
data_without_stdin(peer_t *p) { peer_send(p, peer_exec(p, 0, "sleep 60"), AL_F_DATA, 0, "x", 1); }
static void
data_on_stdout(peer_t *p) { peer_send(p, peer_exec(p, AL_EXEC_STDIN, "sleep 60"), AL_F_DATA, 1, "x", 1); }
static void
end_of_stderr(peer_t *p) { peer_send(p, peer_exec(p, AL_EXEC_STDIN, "sleep 60"), AL_F_END, 2, "", 0); }
static void
credit_for_stdin(peer_t *p) { peer_send32(p, peer_exec(p, AL_EXEC_STDIN, "sleep 60"), AL_F_CREDIT, 0, 1); }
static void
giant_credit(peer_t *p) {
  peer_send32(p, peer_exec(p, 0, "sleep 60"), AL_F_CREDIT, 1, AL_WINDOW_MAX - AL_WINDOW_DEFAULT + 1);
}
static void
overflowing_credit(peer_t *p) { peer_send32(p, peer_exec(p, 0, "sleep 60"), AL_F_CREDIT, 1, 0xffffffffu); }
static void
signal_zero(peer_t *p) { peer_send32(p, peer_exec(p, 0, "sleep 60"), AL_F_SIGNAL, 0, 0); }
static void
signal_65(peer_t *p) { peer_send32(p, peer_exec(p, 0, "sleep 60"), AL_F_SIGNAL, 1, 65); }
static void
exec_flags(peer_t *p) { peer_send(p, 1, AL_F_EXEC, 2, "", 0); }

static void
data_after_end(peer_t *p) {
  uint32_t id = peer_exec(p, AL_EXEC_STDIN, "sleep 60");
  peer_send(p, id, AL_F_END, 0, "", 0);
  peer_send(p, id, AL_F_DATA, 0, "x", 1);
}

static void
data_for_half_a_request(peer_t *p) {
  peer_send(p, 1, AL_F_EXEC, AL_FLAG_MORE, "", 0);
  peer_send(p, 1, AL_F_DATA, 0, "x", 1);
}

static void
too_many_streams(peer_t *p) {
  for (uint32_t i = 1; i <= AL_STREAMS_MAX; i++) peer_send(p, i, AL_F_EXEC, AL_FLAG_MORE, "", 0);
  peer_ping(p);
  peer_send(p, AL_STREAMS_MAX + 1, AL_F_EXEC, AL_FLAG_MORE, "", 0);
}

static void
too_many_pings(peer_t *p) {
  uint8_t pings[200 * 20];
  for (size_t i = 0; i < 200; i++) {
    al_frame_header(pings + i * 20, 0, AL_F_PING, 0, 8);
    memset(pings + i * 20 + 12, (int) i, 8);
  }
  send(p->fd, pings, sizeof(pings), MSG_NOSIGNAL); /* one write: they come in one read */
}

static void
test_broken_protocol_is_fatal(void **state) {
  (void) state;
  static const breach_t breaches[] = {
    {"never opened", never_opened},
    {"may not use", guest_id},
    {"may not use", stream_zero},
    {"stream id or flags", channel_frame_on_stream},
    {"stream id or flags", ping_with_flags},
    {"unknown", unknown_type},
    {"reserved", reserved_type},
    {"length", bad_length},
    {"may not send", guests_frame},
    {"may not send", hello_again},
    {"not sent", ack_too_much},
    {"not sent", ack_backwards},
    {"twice", config_twice},
    {"used before", id_again},
    {"used before", id_falls},
    {"used before", second_whole_exec},
    {"beyond the window", overrun},
    {"beyond the window", data_without_stdin},
    {"not stdin", data_on_stdout},
    {"not stdin", end_of_stderr},
    {"does not send", credit_for_stdin},
    {"largest window", giant_credit},
    {"largest window", overflowing_credit},
    {"out of range", signal_zero},
    {"out of range", signal_65},
    {"flag of EXEC", exec_flags},
    {"after END", data_after_end},
    {"not whole", data_for_half_a_request},
    {"length", empty_data},
    {"of nothing", credit_of_nothing},
    {"does not send", credit_for_a_files_stderr},
    {"has ended or is none", end_of_a_file},
    {"has ended or is none", end_without_stdin},
    {"has ended or is none", end_twice},
    {"no more than before", ack_again},
    {"more streams", too_many_streams},
    {"too many pings", too_many_pings},
  };
  static const char bytes[2 * AL_WINDOW_DEFAULT]; /* more than goes out at once */
  peer_file("long", bytes, sizeof(bytes));
  for (size_t i = 0; i < sizeof(breaches) / sizeof(breaches[0]); i++) {
    peer_t p;
    peer_start(&p);
    peer_hello(&p);
    breaches[i].commit(&p);
    int code = peer_wait(&p);
    if (code != 1 || p.reject != 3 || strstr(p.reject_text, breaches[i].text) == NULL)
      fail_msg("breach %zu (%s): exit %d, reject %u: %s", i, breaches[i].text, code, p.reject, p.reject_text);
  }
}

static void
test_largest_legal_credit_is_taken(void **state) {
  (void) state;
  peer_t p;
  peer_start(&p);
  peer_hello(&p);
  uint32_t id = peer_exec(&p, 0, "sleep 60");
  peer_send32(&p, id, AL_F_CREDIT, 1, AL_WINDOW_MAX - AL_WINDOW_DEFAULT);
  peer_send32(&p, id, AL_F_RESIZE, 0, 0x00500018);
  peer_ping(&p);
  peer_stop(&p);
}

static void
test_breach_kills_the_commands(void **state) {
  (void) state;
  peer_t p;
  al_frame_t f;
  peer_start(&p);
  peer_hello(&p);
  peer_exec(&p, 0, "echo $$; exec sleep 60");
  do assert_int_equal(peer_next(&p, &f, PEER_WAIT_MS), 1);
  while (f.type != AL_F_DATA);
  pid_t pid = atoi((const char *) f.payload);
  assert_true(pid > 1);
  never_opened(&p);
  peer_expect_reject(&p, 3);
  assert_true(peer_gone(pid, 5000));
}

/* A byte stream that is no protocol at all, right after the handshake: the agent ends, in order, whatever comes. */
static void
test_random_frames_never_crash(void **state) {
  (void) state;
  uint32_t seed = 1;
  for (int round = 0; round < 60; round++) {
    peer_t p;
    peer_start(&p);
    peer_hello(&p);
    for (int k = 0; k < 40; k++) {
      static const uint8_t types[] = {AL_F_CONFIG, AL_F_ACK, AL_F_PING, AL_F_EXEC, AL_F_READ, AL_F_DATA, AL_F_END,
        AL_F_CREDIT, AL_F_SIGNAL, AL_F_RESET, AL_F_RESIZE};
      static const size_t sizes[] = {0, 8, 8, 0, 0, 0, 0, 4, 4, 0, 4};
      uint8_t bytes[64];
      for (size_t i = 0; i < sizeof(bytes); i++)
        seed = seed * 1664525u + 1013904223u, bytes[i] = (uint8_t) (seed >> 24 & ((seed & 512) ? 255 : 7));
      size_t type = (seed >> 16) % sizeof(types), n = sizes[type];
      if (n == 0 && types[type] != AL_F_END && types[type] != AL_F_RESET) n = (seed >> 8) % 64;
      peer_send(
        &p, types[type] < AL_F_EXEC ? 0 : (seed >> 20) % 4 + 1, types[type], (uint8_t) (seed >> 10 & 1), bytes, n);
    }
    shutdown(p.fd, SHUT_WR);
    int code = peer_wait(&p);
    if (code != 0 && code != 1) fail_msg("round %d: exit %d", round, code);
  }
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_read_regular_file_comes_whole),
    cmocka_unit_test(test_read_anything_else_is_refused),
    cmocka_unit_test(test_read_changing_file),
    cmocka_unit_test(test_broken_protocol_is_fatal),
    cmocka_unit_test(test_largest_legal_credit_is_taken),
    cmocka_unit_test(test_breach_kills_the_commands),
    cmocka_unit_test(test_random_frames_never_crash),
  };
  return cmocka_run_group_tests(tests, peer_setup, peer_teardown);
}
