/* SPDX-License-Identifier: Apache-2.0 */
/* The lane agent as a local process: handshake, commands and their ends. */
#include "agent_host.h"

static void
test_hello_right_secret_is_proven(void **state) {
  (void) state;
  peer_t p;
  al_frame_t f;
  peer_start(&p);
  peer_hello_range(&p, 1, 9, AL_PROTO_MAGIC);
  assert_int_equal(peer_next(&p, &f, PEER_WAIT_MS), 1);
  assert_int_equal(f.type, AL_F_HELLO_ACK);
  assert_memory_equal(f.payload, AL_PROTO_MAGIC, 4);
  assert_int_equal(al_get16(f.payload + 4), AL_PROTO_VERSION);
  assert_true(peer_proven(&f, 0xa7));
  assert_false(peer_proven(&f, 0xa8));
  peer_ping(&p);
  peer_stop(&p);
}

static void
test_hello_bad_secret_file_is_rejected(void **state) {
  (void) state;
  static const char *const texts[] = {"", "a7a7", "zz", NULL};
  for (int i = 0; i < 5; i++) {
    char bytes[80];
    size_t n = 64;
    memset(bytes, 'a', sizeof(bytes));
    if (i < 3) n = strlen(texts[i]), memcpy(bytes, texts[i], n);
    else if (i == 3) bytes[63] = 'g';
    else n = 66;
    peer_file("bad", bytes, n);
    peer_t p;
    const char *args[] = {"agent", "--local", "--secret", peer_path("bad"), NULL};
    peer_start_with(&p, args, NULL);
    peer_hello_range(&p, 1, 1, AL_PROTO_MAGIC);
    peer_expect_reject(&p, 4);
  }
}

static void
test_hello_wrong_peer_is_rejected(void **state) {
  (void) state;
  peer_t p;
  peer_start(&p);
  peer_hello_range(&p, 2, 9, AL_PROTO_MAGIC);
  peer_expect_reject(&p, 2);
  peer_start(&p);
  peer_hello_range(&p, 0, 0, AL_PROTO_MAGIC);
  peer_expect_reject(&p, 2);
  peer_start(&p);
  peer_hello_range(&p, 1, 1, "SSH-");
  peer_expect_reject(&p, 1);
  peer_start(&p);
  peer_exec(&p, 0, "true"); /* before the handshake nothing else counts */
  peer_expect_reject(&p, 1);
  peer_start(&p);
  const char garbage[] = "GET / HTTP/1.0\r\nHost: localhost\r\n\r\n";
  send(p.fd, garbage, sizeof(garbage) - 1, MSG_NOSIGNAL);
  peer_expect_reject(&p, 3);
}

static void
test_exec_output_and_status_come_back(void **state) {
  (void) state;
  peer_t p;
  result_t r;
  peer_start(&p);
  peer_hello(&p);
  peer_expect(&p, peer_exec(&p, 0, "echo hello"), AL_EXIT_CODE, 0, "hello\n");
  peer_result(&p, peer_exec(&p, 0, "echo out; echo error >&2; exit 7"), &r);
  assert_int_equal(r.kind, AL_EXIT_CODE);
  assert_int_equal(r.value, 7);
  assert_int_equal(r.err_len, 6);
  assert_int_equal(r.out_len, 10);
  assert_true(r.ended[1] && r.ended[2] && !r.ended[0]);
  assert_true(r.ns > 100000 && r.ns < 20000000000u);
  free(r.out);
  peer_expect(&p, peer_exec(&p, 0, "kill -TERM $$"), AL_EXIT_SIGNAL, SIGTERM, "");
  peer_expect(&p, peer_exec(&p, 0, "cat"), AL_EXIT_CODE, 0, ""); /* stdin is /dev/null */
  peer_expect(&p,
    peer_exec(&p, 0, "exec 2>&1; ls /proc/self/fd | wc -l; umask; grep -c '^SigBlk:.0*$' /proc/self/status"),
    AL_EXIT_CODE, 0, "4\n0022\n1\n");
  peer_stop(&p);
}

static void
test_exec_that_cannot_start_says_why(void **state) {
  (void) state;
  peer_t p;
  result_t r;
  static tlvs_t t;
  peer_start(&p);
  peer_hello(&p);
  const struct { const char *file, *cwd, *text; uint32_t err; } cases[] = {
    {"no-such-program", "/", "exec no-such-program: No such file or directory", ENOENT},
    {"/no/such", "/", "exec /no/such: No such file or directory", ENOENT},
    {"/etc/passwd", "/", "exec /etc/passwd: Permission denied", EACCES},
    {"", "/", "exec : No such file or directory", ENOENT},
    {"true", "/no/dir", "cwd /no/dir: No such file or directory", ENOENT},
    {"true", "/etc/passwd", "cwd /etc/passwd: Not a directory", ENOTDIR},
  };
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    t.len = 0;
    tlv_text(&t, AL_TLV_ARG, cases[i].file);
    tlv_text(&t, AL_TLV_CWD, cases[i].cwd);
    peer_result(&p, peer_exec_tlvs(&p, &t, AL_FRAME_MAX), &r);
    assert_int_equal(r.kind, AL_EXIT_ERROR);
    assert_int_equal(r.value, cases[i].err);
    assert_string_equal(r.text, cases[i].text);
    free(r.out);
  }
  t.len = 0;
  tlv_text(&t, AL_TLV_CWD, "/");
  peer_expect(&p, peer_exec_tlvs(&p, &t, AL_FRAME_MAX), AL_EXIT_ERROR, EINVAL, NULL); /* no argv */
  tlv_add(&t, AL_TLV_ARG, "a\0b", 3);
  peer_expect(&p, peer_exec_tlvs(&p, &t, AL_FRAME_MAX), AL_EXIT_ERROR, EINVAL, NULL);
  t.len = 0;
  tlv_text(&t, AL_TLV_ARG, "true");
  tlv_text(&t, AL_TLV_USER, "daemon");
  peer_expect(&p, peer_exec_tlvs(&p, &t, AL_FRAME_MAX), AL_EXIT_ERROR, EINVAL, NULL);
  peer_send(&p, ++p.last_id, AL_F_EXEC, 0, "\1\0\xff\xff\xff\xff", 6); /* TLV longer than the payload */
  peer_expect(&p, p.last_id, AL_EXIT_ERROR, EINVAL, NULL);
  peer_stop(&p);
}

static void
test_exec_environment_path_and_script(void **state) {
  (void) state;
  peer_t p;
  static tlvs_t t;
  peer_start(&p);
  peer_hello(&p);
  peer_file("tool", "echo script \"$@\" $MARK", 22); /* no #!, so it is sh's */
  chmod(peer_path("tool"), 0755);
  char path[256];
  snprintf(path, sizeof(path), "PATH=/no/dir:%s:/usr/bin:/bin", peer_dir);
  t.len = 0;
  tlv_text(&t, AL_TLV_ARG, "tool");
  tlv_text(&t, AL_TLV_ARG, "");
  tlv_text(&t, AL_TLV_ARG, "x y");
  tlv_text(&t, AL_TLV_ENV, path);
  tlv_text(&t, AL_TLV_ENV, "MARK=m=1");
  peer_expect(&p, peer_exec_tlvs(&p, &t, 5), AL_EXIT_CODE, 0, "script  x y m=1\n"); /* in pieces of five bytes */
  peer_stop(&p);
}

/* Requests cut into frames may be interleaved; one over the limit is answered and harms nobody. */
static void
test_exec_large_and_interleaved_requests(void **state) {
  (void) state;
  peer_t p;
  static tlvs_t t;
  static char big[100000];
  peer_start(&p);
  peer_hello(&p);
  memset(big, 'e', sizeof(big));
  big[1] = '=';
  for (int n = 4; n <= 6; n++) { /* 4 x 100 kB fits; 6 is over AL_OPEN_MAX */
    t.len = 0;
    tlv_text(&t, AL_TLV_ARG, "sh");
    tlv_text(&t, AL_TLV_ARG, "-c");
    tlv_text(&t, AL_TLV_ARG, "env | wc -c");
    for (int i = 0; i < n; i++) {
      big[0] = (char) ('a' + i);
      tlv_add(&t, AL_TLV_ENV, big, sizeof(big));
    }
    result_t r;
    peer_result(&p, peer_exec_tlvs(&p, &t, AL_FRAME_MAX), &r);
    assert_int_equal(r.kind, n < 6 ? AL_EXIT_CODE : AL_EXIT_ERROR);
    assert_int_equal(r.value, n < 6 ? 0 : E2BIG);
    if (n < 6) assert_true(atoi(r.out) > n * 100000);
    free(r.out);
  }
  t.len = 0;
  static char huge[200000]; /* one string over the kernel's 128 KiB */
  memset(huge, 'h', sizeof(huge));
  tlv_text(&t, AL_TLV_ARG, "true");
  tlv_add(&t, AL_TLV_ARG, huge, sizeof(huge));
  peer_expect(&p, peer_exec_tlvs(&p, &t, AL_FRAME_MAX), AL_EXIT_ERROR, E2BIG, NULL);

  t.len = 0;
  tlv_text(&t, AL_TLV_ARG, "echo");
  tlv_text(&t, AL_TLV_ARG, "one");
  uint32_t a = ++p.last_id, b = ++p.last_id;
  peer_send(&p, a, AL_F_EXEC, AL_FLAG_MORE, t.bytes, 8);
  peer_send(&p, b, AL_F_EXEC, AL_FLAG_MORE, t.bytes, 9);
  peer_send(&p, a, AL_F_EXEC, 0, t.bytes + 8, t.len - 8);
  peer_expect(&p, a, AL_EXIT_CODE, 0, "one\n");
  peer_send(&p, b, AL_F_EXEC, 0, t.bytes + 9, t.len - 9);
  peer_expect(&p, b, AL_EXIT_CODE, 0, "one\n");
  peer_stop(&p);
}

static void
test_signals_reach_the_group(void **state) {
  (void) state;
  peer_t p;
  al_frame_t f;
  peer_start(&p);
  peer_hello(&p);
  uint32_t id = peer_exec(&p, 0, "trap 'echo term; exit 3' TERM; echo ready; while :; do sleep 0.05; done");
  do assert_int_equal(peer_next(&p, &f, PEER_WAIT_MS), 1);
  while (f.type != AL_F_DATA);
  peer_send32(&p, id, AL_F_SIGNAL, AL_SIGNAL_GROUP, SIGTERM);
  result_t r;
  peer_result(&p, id, &r);
  assert_int_equal(r.kind, AL_EXIT_CODE);
  assert_int_equal(r.value, 3);
  assert_non_null(strstr(r.out, "term"));
  free(r.out);
  id = peer_exec(&p, 0, "sleep 100");
  peer_send32(&p, id, AL_F_SIGNAL, AL_SIGNAL_TREE, SIGKILL);
  peer_expect(&p, id, AL_EXIT_SIGNAL, SIGKILL, "");
  peer_send32(&p, id, AL_F_SIGNAL, AL_SIGNAL_GROUP, SIGTERM); /* crossed: dropped */
  peer_ping(&p);
  peer_stop(&p);
}

static void
test_background_holder_is_cut_off_after_the_grace(void **state) {
  (void) state;
  peer_t p;
  result_t r;
  peer_start(&p);
  peer_hello(&p);
  uint64_t begun = peer_now_ms();
  peer_result(&p, peer_exec(&p, 0, "sleep 60 & echo $!"), &r);
  uint64_t took = peer_now_ms() - begun;
  assert_true(took >= 1900 && took < 10000);
  assert_int_equal(r.value, 0);
  assert_true(r.ns < 1900000000u); /* the main process's own time, without the grace */
  assert_int_equal(kill(atoi(r.out), 0), 0); /* it lives on */
  pid_t pid = atoi(r.out);
  free(r.out);
  peer_stop(&p);
  assert_true(peer_gone(pid, 5000));
}

static void
test_late_bytes_restart_the_grace(void **state) {
  (void) state;
  peer_t p;
  result_t r;
  peer_start(&p);
  peer_hello(&p);
  peer_result(&p, peer_exec(&p, 0, "(sleep 0.8; echo a; sleep 0.8; echo b; sleep 0.8; echo c) & echo first"), &r);
  assert_string_equal(r.out, "first\na\nb\nc\n");
  free(r.out);
  peer_stop(&p);
}

static void
test_reset_kills_and_forgets(void **state) {
  (void) state;
  peer_t p;
  al_frame_t f;
  peer_start(&p);
  peer_hello(&p);
  uint32_t id = peer_exec(&p, AL_EXEC_STDIN, "echo $$; sleep 60 & sleep 60");
  do assert_int_equal(peer_next(&p, &f, PEER_WAIT_MS), 1);
  while (f.type != AL_F_DATA);
  pid_t pid = atoi((const char *) f.payload);
  assert_true(pid > 1);
  peer_send(&p, id, AL_F_RESET, 0, NULL, 0);
  peer_send(&p, id, AL_F_DATA, AL_SUB_STDIN, "late", 4); /* crossed: dropped */
  peer_send32(&p, id, AL_F_CREDIT, 1, 5);
  peer_ping(&p);
  assert_true(peer_gone(pid, 5000)); /* reaped too, else it would be there as a zombie */
  id = ++p.last_id;
  peer_send(&p, id, AL_F_EXEC, AL_FLAG_MORE, "", 0);
  peer_send(&p, id, AL_F_RESET, 0, NULL, 0);
  peer_expect(&p, peer_exec(&p, 0, "echo next"), AL_EXIT_CODE, 0, "next\n");
  peer_stop(&p);
}

static void
test_eof_kills_everything(void **state) {
  (void) state;
  peer_t p;
  result_t r = {0};
  al_frame_t f;
  peer_start(&p);
  peer_hello(&p);
  peer_exec(&p, 0, "setsid sleep 61 & echo $!; sh -c 'setsid sleep 62 & echo $!; exec sleep 63'");
  while (r.out == NULL || strchr(strchr(r.out, '\n') ? strchr(r.out, '\n') + 1 : "", '\n') == NULL) {
    assert_int_equal(peer_next(&p, &f, PEER_WAIT_MS), 1);
    peer_take(&f, &r);
  }
  pid_t one = atoi(r.out), two = atoi(strchr(r.out, '\n') + 1);
  assert_true(one > 1 && two > 1 && one != two);
  usleep(100000); /* both have become leaders of their own sessions */
  peer_stop(&p);
  assert_true(peer_gone(one, 5000));
  assert_true(peer_gone(two, 5000));
  free(r.out);
}

static void
test_sixty_four_at_once(void **state) {
  (void) state;
  peer_t p;
  al_frame_t f;
  peer_start(&p);
  peer_hello(&p);
  for (int round = 0; round < 3; round++) {
    uint32_t first = p.last_id + 1;
    bool done[64] = {0};
    size_t bytes[64] = {0};
    for (int i = 0; i < 64; i++) peer_exec(&p, AL_EXEC_STDIN, "head -c 20000 /dev/zero; read x; exit $x");
    for (uint32_t i = 0; i < 64; i++) {
      char text[8];
      peer_send(&p, first + i, AL_F_DATA, 0, text, (size_t) snprintf(text, sizeof(text), "%u\n", i));
    }
    for (int left = 64; left > 0;) {
      assert_int_equal(peer_next(&p, &f, PEER_WAIT_MS), 1);
      if (f.stream == 0) continue;
      uint32_t i = f.stream - first;
      assert_true(i < 64 && !done[i]);
      if (f.type == AL_F_DATA) bytes[i] += f.len;
      if (f.type != AL_F_EXIT) continue;
      assert_int_equal(al_get32(f.payload + 4), i);
      assert_int_equal(bytes[i], 20000);
      done[i] = true;
      left--;
    }
  }
  peer_stop(&p);
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_hello_right_secret_is_proven),
    cmocka_unit_test(test_hello_bad_secret_file_is_rejected),
    cmocka_unit_test(test_hello_wrong_peer_is_rejected),
    cmocka_unit_test(test_exec_output_and_status_come_back),
    cmocka_unit_test(test_exec_that_cannot_start_says_why),
    cmocka_unit_test(test_exec_environment_path_and_script),
    cmocka_unit_test(test_exec_large_and_interleaved_requests),
    cmocka_unit_test(test_signals_reach_the_group),
    cmocka_unit_test(test_background_holder_is_cut_off_after_the_grace),
    cmocka_unit_test(test_late_bytes_restart_the_grace),
    cmocka_unit_test(test_reset_kills_and_forgets),
    cmocka_unit_test(test_eof_kills_everything),
    cmocka_unit_test(test_sixty_four_at_once),
  };
  return cmocka_run_group_tests(tests, peer_setup, peer_teardown);
}
