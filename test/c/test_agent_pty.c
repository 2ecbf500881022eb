/* SPDX-License-Identifier: Apache-2.0 */
/* The lane agent's terminals as a local process: size, controlling terminal, end of input, tail, hangup. */
#include "agent_host.h"

static uint32_t
tty_exec(peer_t *p, const char *script, uint16_t rows, uint16_t cols) {
  uint8_t size[4];
  al_put16(size, rows);
  al_put16(size + 2, cols);
  peer_tlvs.len = 0;
  tlv_text(&peer_tlvs, AL_TLV_ARG, "sh");
  tlv_text(&peer_tlvs, AL_TLV_ARG, "-c");
  tlv_text(&peer_tlvs, AL_TLV_ARG, script);
  tlv_u32(&peer_tlvs, AL_TLV_FLAGS, AL_EXEC_TTY);
  tlv_add(&peer_tlvs, AL_TLV_SIZE, size, sizeof(size));
  return peer_exec_tlvs(p, &peer_tlvs, AL_FRAME_MAX);
}

static void
resize(peer_t *p, uint32_t id, uint16_t rows, uint16_t cols) {
  peer_send32(p, id, AL_F_RESIZE, 0, (uint32_t) rows | (uint32_t) cols << 16);
}

static void
type(peer_t *p, uint32_t id, const char *text) {
  peer_send(p, id, AL_F_DATA, AL_SUB_STDIN, text, strlen(text));
}

/* Reads the stream's output until it ends in `text`; what came so far stays in `seen`. */
static char seen[65536];

static void
await(peer_t *p, uint32_t id, const char *text) {
  size_t len = strlen(seen), want = strlen(text);
  al_frame_t f;
  while (len < want || strcmp(seen + len - want, text) != 0) {
    if (peer_next(p, &f, PEER_WAIT_MS) != 1) fail_msg("waited for \"%s\", got \"%s\"", text, seen);
    if (f.stream == 0) continue;
    assert_int_equal(f.stream, id);
    if (f.type == AL_F_EXIT) fail_msg("ended before \"%s\": \"%s\"", text, seen);
    if (f.type != AL_F_DATA) continue;
    assert_int_equal(f.flags, AL_SUB_STDOUT); /* one output of a terminal */
    assert_true(len + f.len < sizeof(seen));
    memcpy(seen + len, f.payload, f.len);
    len += f.len;
    seen[len] = 0;
  }
  seen[0] = 0;
}

static void
begin(peer_t *p) {
  seen[0] = 0;
  peer_start(p);
  peer_hello(p);
}

static void
test_pty_is_the_controlling_terminal(void **state) {
  (void) state;
  peer_t p;
  begin(&p);
  uint32_t id = tty_exec(&p, "[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && stty size && echo there >/dev/tty; exit 5", 40, 100);
  peer_expect(&p, id, AL_EXIT_CODE, 5, "40 100\r\nthere\r\n");
  peer_expect(&p, tty_exec(&p, "stty -a | grep -cw -- '-iutf8'", 1, 1), AL_EXIT_CODE, 1, "0\r\n");
  /* its leader, and in the foreground */
  id = tty_exec(&p, "read -r _ _ _ _ group session _ fore _ </proc/$$/stat; [ $group = $$ ] && [ $session = $$ ] && "
                    "[ $fore = $$ ] && echo leader", 0, 0);
  peer_expect(&p, id, AL_EXIT_CODE, 0, "leader\r\n");
  peer_expect(&p, tty_exec(&p, "exec 0<&- 1>&- 2>&-; echo back >/dev/tty", 0, 0), AL_EXIT_CODE, 0, "back\r\n");
  peer_stop(&p);
}

static void
test_pty_size_follows_a_resize(void **state) {
  (void) state;
  peer_t p;
  begin(&p);
  uint32_t id = tty_exec(&p, "trap 'stty size' WINCH; stty size; while :; do sleep 0.05; done", 24, 80);
  await(&p, id, "24 80\r\n");
  resize(&p, id, 50, 132);
  await(&p, id, "50 132\r\n");
  resize(&p, id, 50, 132); /* the same again is no news */
  resize(&p, id, 7, 9);
  await(&p, id, "7 9\r\n");
  type(&p, id, "\x03");
  peer_expect(&p, id, AL_EXIT_SIGNAL, SIGINT, NULL);
  /* of a command without one, and of one that has ended */
  id = peer_exec(&p, 0, "echo no terminal");
  resize(&p, id, 1, 1);
  peer_expect(&p, id, AL_EXIT_CODE, 0, "no terminal\n");
  resize(&p, id, 1, 1);
  peer_ping(&p);
  peer_stop(&p);
}

static void
test_pty_resize_before_the_whole_request_counts(void **state) {
  (void) state;
  peer_t p;
  begin(&p);
  (void) tty_exec(&p, "stty size", 24, 80);
  peer_expect(&p, 1, AL_EXIT_CODE, 0, "24 80\r\n");
  peer_send(&p, 2, AL_F_EXEC, AL_FLAG_MORE, peer_tlvs.bytes, 10);
  resize(&p, 2, 33, 44);
  peer_send(&p, 2, AL_F_EXEC, 0, peer_tlvs.bytes + 10, peer_tlvs.len - 10);
  p.last_id = 2;
  peer_expect(&p, 2, AL_EXIT_CODE, 0, "33 44\r\n");
  peer_stop(&p);
}

static void
test_pty_end_of_input_is_the_character_for_it(void **state) {
  (void) state;
  static const struct { const char *typed, *out; } cases[] = {
    {"", "got\r\n"},
    {"abc\n", "got abc\r\n"},
    {"abc\r", "got abc\r\n"},
    {"abc", "got abc\r\n"}, /* the unfinished line arrives, and then the end */
    {"abc\x04", "got abc\r\n"},
  };
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    peer_t p;
    begin(&p);
    uint32_t id = tty_exec(&p, "stty -echo; printf R; x=$(cat); echo got $x", 24, 80);
    await(&p, id, "R");
    if (cases[i].typed[0] != 0) type(&p, id, cases[i].typed);
    peer_send(&p, id, AL_F_END, AL_SUB_STDIN, NULL, 0);
    peer_expect(&p, id, AL_EXIT_CODE, 0, cases[i].out);
    peer_stop(&p);
  }
  peer_t p; /* raw mode: the byte itself, once; and one of the program's own choice */
  begin(&p);
  uint32_t id = tty_exec(&p, "stty raw -echo; printf R; head -c 2 | od -An -tx1", 24, 80);
  await(&p, id, "R");
  type(&p, id, "x");
  peer_send(&p, id, AL_F_END, AL_SUB_STDIN, NULL, 0);
  peer_expect(&p, id, AL_EXIT_CODE, 0, " 78 04\n");
  id = tty_exec(&p, "stty -echo eof e; printf R; cat", 24, 80);
  await(&p, id, "R");
  type(&p, id, "x\n");
  peer_send(&p, id, AL_F_END, AL_SUB_STDIN, NULL, 0);
  peer_expect(&p, id, AL_EXIT_CODE, 0, "x\r\n");
  peer_stop(&p);
}

static void
test_pty_control_c_reaches_the_foreground(void **state) {
  (void) state;
  peer_t p;
  begin(&p);
  uint32_t id = tty_exec(&p, "printf R; exec sleep 60", 24, 80);
  await(&p, id, "R");
  type(&p, id, "\x03");
  peer_expect(&p, id, AL_EXIT_SIGNAL, SIGINT, NULL);
  id = tty_exec(&p, "trap 'echo caught; exit 3' INT; printf R; while :; do sleep 0.05; done", 24, 80);
  await(&p, id, "R");
  type(&p, id, "\x03");
  peer_expect(&p, id, AL_EXIT_CODE, 3, "^Ccaught\r\n");
  peer_stop(&p);
}

/* More than the kernel keeps for a terminal, written just before the end, while we read as it comes. */
static void
test_pty_loses_no_tail(void **state) {
  (void) state;
  peer_t p;
  begin(&p);
  for (int i = 0; i < 30; i++) {
    result_t r;
    uint32_t id = tty_exec(&p, "stty -opost; head -c 300001 /dev/zero | tr '\\0' x; printf LAST", 24, 80);
    peer_result(&p, id, &r);
    assert_int_equal(r.kind, AL_EXIT_CODE);
    assert_int_equal(r.out_len, 300005);
    assert_string_equal(r.out + 300001, "LAST");
    assert_true(r.ended[AL_SUB_STDOUT]);
    free(r.out);
  }
  peer_stop(&p);
}

/* Without credit the tail waits in the kernel while its writer is long gone. */
static void
test_pty_tail_waits_for_credit(void **state) {
  (void) state;
  peer_t p;
  begin(&p);
  p.no_credit = true;
  uint32_t id = tty_exec(&p, "stty -opost; head -c 264000 /dev/zero | tr '\\0' x; printf LAST", 24, 80);
  assert_int_equal(peer_data(&p, id, AL_WINDOW_DEFAULT), AL_WINDOW_DEFAULT);
  usleep(300000);
  peer_send32(&p, id, AL_F_CREDIT, AL_SUB_STDOUT, 100000);
  result_t r;
  peer_result(&p, id, &r);
  assert_int_equal(r.out_len, 264004 - AL_WINDOW_DEFAULT);
  assert_string_equal(r.out + r.out_len - 4, "LAST");
  free(r.out);
  peer_stop(&p);
}

static void
test_pty_reset_hangs_up(void **state) {
  (void) state;
  peer_t p;
  begin(&p);
  /* A job of its own group survives the signal to the first one's group; the hangup reaches it. */
  char script[256];
  snprintf(script, sizeof(script),
    "set -m; (trap 'echo hup >%s; exit' HUP; printf R; while :; do sleep 0.05; done); :", peer_path("hup"));
  uint32_t id = tty_exec(&p, script, 24, 80);
  await(&p, id, "R");
  peer_send(&p, id, AL_F_RESET, 0, NULL, 0);
  peer_ping(&p);
  for (int i = 0; i < 1000 && access(peer_path("hup"), F_OK) != 0; i++) usleep(10000);
  assert_int_equal(access(peer_path("hup"), F_OK), 0);
  peer_stop(&p);
}

static void
test_pty_that_others_hold_ends_after_the_grace(void **state) {
  (void) state;
  peer_t p;
  begin(&p);
  uint64_t started = peer_now_ms();
  uint32_t id = tty_exec(&p, "trap '' HUP; sleep 60 & echo $!; exit 3", 24, 80);
  result_t r;
  peer_result(&p, id, &r);
  assert_int_equal(r.value, 3);
  assert_true(peer_now_ms() - started < 15000);
  pid_t pid = (pid_t) atoi(r.out);
  assert_true(pid > 1);
  assert_int_equal(kill(pid, 0), 0); /* it lives on, without a terminal */
  kill(pid, SIGKILL);
  free(r.out);
  peer_stop(&p);
}

static void
test_pty_many_leave_nothing_open(void **state) {
  (void) state;
  peer_t p;
  begin(&p);
  for (int i = 0; i < 300; i++) peer_expect(&p, tty_exec(&p, "echo x", 24, 80), AL_EXIT_CODE, 0, "x\r\n");
  tlvs_t *t = &peer_tlvs;
  t->len = 0; /* what cannot start gives its terminal back as well */
  tlv_text(t, AL_TLV_ARG, "/no/such");
  tlv_u32(t, AL_TLV_FLAGS, AL_EXEC_TTY);
  for (int i = 0; i < 300; i++) peer_expect(&p, peer_exec_tlvs(&p, t, AL_FRAME_MAX), AL_EXIT_ERROR, ENOENT, NULL);
  char path[64];
  snprintf(path, sizeof(path), "ls /proc/%d/fd | wc -l", (int) p.pid);
  result_t r;
  peer_result(&p, peer_exec(&p, 0, path), &r);
  assert_true(atoi(r.out) < 20);
  free(r.out);
  peer_stop(&p);
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_pty_is_the_controlling_terminal),
    cmocka_unit_test(test_pty_size_follows_a_resize),
    cmocka_unit_test(test_pty_resize_before_the_whole_request_counts),
    cmocka_unit_test(test_pty_end_of_input_is_the_character_for_it),
    cmocka_unit_test(test_pty_control_c_reaches_the_foreground),
    cmocka_unit_test(test_pty_loses_no_tail),
    cmocka_unit_test(test_pty_tail_waits_for_credit),
    cmocka_unit_test(test_pty_reset_hangs_up),
    cmocka_unit_test(test_pty_that_others_hold_ends_after_the_grace),
    cmocka_unit_test(test_pty_many_leave_nothing_open),
  };
  return cmocka_run_group_tests(tests, peer_setup, peer_teardown);
}
