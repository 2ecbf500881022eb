/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of exec against the real lane agent on this machine: output, lines, stdin, overlap. */
#include "exec_test.h"

static void
test_exec_output_is_returned_whole_and_untrimmed(void **state) {
  (void) state;
  START(r);
  run_t u = { 0 };
  run(&r, &u, "printf '\\n a \\n\\n'; printf 'err\\n' >&2; printf '%s' \"$MARK\" >&2; pwd >&2; exit 3",
    (al_exec_opts_t){0});
  assert_int_equal(u.result.exit_code, 3);
  assert_int_equal(u.result.signal, 0);
  assert_string_equal(u.result.out, "\n a \n\n");
  assert_non_null(strstr(u.result.errs, "err\nfrom the request"));
  assert_non_null(strstr(u.result.errs, r.dir));
  assert_true(u.result.spawn_ns > 0);
  clear(&u);
  run(&r, &u, "cat; printf x", (al_exec_opts_t){ 0 }); /* no stdin: end of file at once */
  assert_string_equal(u.result.out, "x");
  assert_string_equal(u.result.errs, "");
  clear(&u);
  run(&r, &u, "printf 'a\\000b'; head -c 3 /dev/zero", (al_exec_opts_t){ 0 });
  assert_int_equal(u.result.out_len, 6);
  assert_memory_equal(u.result.out, "a\0b\0\0\0", 7);
  clear(&u);
  rig_end(&r);
}

static void
test_exec_20_mb_of_output_is_exact(void **state) {
  (void) state;
  START(r);
  run_t u = { 0 };
  char hex[AL_SHA256_HEX], want[AL_SHA256_HEX];
  uint8_t digest[AL_SHA256_LEN];
  run(&r, &u, "head -c 20000000 /dev/urandom > f; sha256sum < f >&2; cat f", (al_exec_opts_t){ 0 });
  assert_int_equal(u.result.out_len, 20000000);
  al_sha256_t s;
  al_sha256_init(&s);
  al_sha256_update(&s, u.result.out, u.result.out_len);
  al_sha256_final(&s, digest);
  al_sha256_hex(digest, hex);
  snprintf(want, sizeof want, "%.64s", u.result.errs);
  assert_string_equal(hex, want);
  clear(&u);
  rig_end(&r);
}

static void
test_exec_stdin_of_5_mb_arrives(void **state) {
  (void) state;
  START(r);
  run_t u = { 0 };
  size_t n = 5000000;
  char *in = malloc(n);
  for (size_t i = 0; i < n; i++) in[i] = (char) (i * 7 + i / 251);
  run(&r, &u, "cat", (al_exec_opts_t){ .req.with_stdin = true, .input = in, .input_len = n });
  assert_int_equal(u.result.out_len, n);
  assert_memory_equal(u.result.out, in, n);
  clear(&u);
  run(&r, &u, "head -c 3",
    (al_exec_opts_t){.req.with_stdin = true, .input = in, .input_len = n}); /* closes stdin early */
  assert_int_equal(u.result.out_len, 3);
  clear(&u);
  run(&r, &u, "exec <&-; sleep 0.2; echo ok", (al_exec_opts_t){ .req.with_stdin = true, .input = in, .input_len = n });
  assert_string_equal(u.result.out, "ok\n");
  clear(&u);
  run(&r, &u, "wc -c", (al_exec_opts_t){ .req.with_stdin = true, .input = "", .input_len = 0 });
  assert_string_equal(u.result.out, "0\n");
  clear(&u);
  free(in);
  rig_end(&r);
}

static void
test_exec_input_may_follow(void **state) {
  (void) state;
  START(r);
  run_t u = { 0 };
  char block[65536];
  memset(block, 'b', sizeof block);
  start(&r, &u, "wc -c", (al_exec_opts_t){.req.with_stdin = true, .input = "abc", .input_len = 3, .input_open = true});
  size_t sent = 3;
  unsigned drains = 0;
  while (sent < 3000000) {
    int64_t q = al_exec_write(u.e, al_memdup(block, sizeof block), sizeof block);
    assert_true(q >= 0);
    sent += sizeof block;
    if (q < 65536) continue;
    for (int i = 0; i < 500 && u.drains == drains; i++) rig_idle(&r, 5);
    assert_int_not_equal(u.drains, drains);
    drains = u.drains;
  }
  assert_false(u.done);
  al_exec_end(u.e);
  finish(&r, &u);
  assert_int_equal(strtoul(u.result.out, NULL, 10), sent);
  clear(&u);
  rig_end(&r);
}

static void
test_exec_lines_are_whole_and_the_tail_is_joined(void **state) {
  (void) state;
  START(r);
  run_t u = { 0 };
  run(&r, &u,
    "printf 'one\\r\\n\\ntw'; sleep 0.1; printf 'o\\303'; sleep 0.1; printf '\\244\\nlast'; echo e >&2; exit 1",
    (al_exec_opts_t){.lines = true});
  assert_string_equal(u.lines, "one\n\ntwo\xc3\xa4\nlast\n");
  assert_string_equal(u.result.out, "one\n\ntwo\xc3\xa4\nlast");
  assert_string_equal(u.result.errs, "e\n");
  assert_int_equal(u.result.exit_code, 1);
  clear(&u);
  run(&r, &u, "seq 1 200000", (al_exec_opts_t){ .lines = true });
  assert_int_equal(u.lines_len, 1288895);
  assert_int_equal(u.result.out_len, 65536);
  assert_string_equal(u.result.out + 65536 - 13, "199999\n200000");
  assert_int_equal(u.result.out_dropped, 1288894 - 65536);
  clear(&u);
  start(&r, &u, "printf last; exec >&-; sleep 5", (al_exec_opts_t){ .lines = true });
  for (int i = 0; i < 100 && u.batches == 0; i++) rig_idle(&r, 10);
  assert_false(u.done); /* at the end of stdout, not of the command */
  assert_string_equal(u.lines, "last\n");
  al_exec_cancel(u.e, NULL);
  rig_wait(&r, &u.done, 1000);
  clear(&u);
  run(&r, &u, "true", (al_exec_opts_t){ .lines = true });
  assert_string_equal(u.result.out, "");
  assert_int_equal(u.batches, 0);
  clear(&u);
  rig_end(&r);
}

static void
test_exec_overlong_line_is_cut(void **state) {
  (void) state;
  START(r);
  run_t u = { 0 };
  run(&r, &u, "head -c 17000000 /dev/zero | tr '\\000' x; echo; echo next", (al_exec_opts_t){ .lines = true });
  assert_int_equal(u.lines_len, 17000000 + 2 + 5); /* two pieces, each ended, and "next" */
  assert_int_equal(u.lines[16 << 20], '\n');
  clear(&u);
  rig_end(&r);
}

static void
test_exec_result_waits_until_lines_are_taken(void **state) {
  (void) state;
  START(r);
  run_t u = { .hold = true };
  start(&r, &u, "echo one; echo two", (al_exec_opts_t){ .lines = true });
  rig_idle(&r, 300);
  assert_string_equal(u.lines, "one\ntwo\n");
  assert_false(u.done);
  al_exec_taken(u.e, AL_SUB_STDOUT, u.untaken - 1);
  rig_idle(&r, 50);
  assert_false(u.done);
  al_exec_taken(u.e, AL_SUB_STDOUT, 1);
  al_exec_taken(u.e, AL_SUB_STDOUT, 1); /* one too many, while it settles already */
  assert_false(u.done); /* never from inside a call */
  finish(&r, &u);
  clear(&u);
  u.hold = true; /* and cancelling one that only waits */
  start(&r, &u, "echo one", (al_exec_opts_t){ .lines = true });
  rig_idle(&r, 300);
  assert_false(u.done);
  al_exec_cancel(u.e, NULL);
  al_exec_cancel(u.e, NULL);
  assert_false(u.done);
  rig_wait(&r, &u.done, 1000);
  assert_int_equal(u.err.code, AL_EABORTED);
  clear(&u);
  rig_end(&r);
}

static void
test_exec_stalled_receiver_stops_only_itself(void **state) {
  (void) state;
  START(r);
  run_t slow = { .hold = true }, quick = { 0 };
  start(&r, &slow, "yes 0123456789", (al_exec_opts_t){ .lines = true });
  rig_idle(&r, 300);
  size_t held = slow.untaken;
  assert_true(held > 100000 && held <= AL_WINDOW_DEFAULT + 11);
  rig_idle(&r, 100);
  assert_int_equal(slow.untaken, held);
  for (int i = 0; i < 20; i++) {
    run(&r, &quick, "head -c 300000 /dev/zero", (al_exec_opts_t){ 0 });
    assert_int_equal(quick.result.out_len, 300000);
    clear(&quick);
  }
  assert_int_equal(slow.untaken, held);
  slow.untaken = 0;
  al_exec_taken(slow.e, AL_SUB_STDOUT, held);
  rig_idle(&r, 100);
  assert_true(slow.untaken > 100000);
  al_exec_cancel(slow.e, NULL);
  rig_wait(&r, &slow.done, 1000);
  clear(&slow);
  rig_end(&r);
}

static void
test_exec_25_overlap_with_their_own_stdin(void **state) {
  (void) state;
  START(r);
  enum { N = 25 };
  static run_t u[N];
  static char in[N][60000];
  char script[64];
  for (int i = 0; i < N; i++) {
    memset(&u[i], 0, sizeof u[i]);
    memset(in[i], 'a' + i, sizeof in[i]);
    snprintf(script, sizeof script, "sleep 0.1; cat; exit %d", i);
    start(&r, &u[i], script, (al_exec_opts_t){ .req.with_stdin = true, .input = in[i], .input_len = sizeof in[i] });
  }
  for (int i = 0; i < N; i++) {
    finish(&r, &u[i]);
    assert_int_equal(u[i].result.exit_code, i);
    assert_int_equal(u[i].result.out_len, sizeof in[i]);
    assert_memory_equal(u[i].result.out, in[i], sizeof in[i]);
    clear(&u[i]);
  }
  rig_end(&r);
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_exec_output_is_returned_whole_and_untrimmed),
    cmocka_unit_test(test_exec_20_mb_of_output_is_exact),
    cmocka_unit_test(test_exec_stdin_of_5_mb_arrives),
    cmocka_unit_test(test_exec_input_may_follow),
    cmocka_unit_test(test_exec_lines_are_whole_and_the_tail_is_joined),
    cmocka_unit_test(test_exec_overlong_line_is_cut),
    cmocka_unit_test(test_exec_result_waits_until_lines_are_taken),
    cmocka_unit_test(test_exec_stalled_receiver_stops_only_itself),
    cmocka_unit_test(test_exec_25_overlap_with_their_own_stdin),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
