/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of exec against the real lane agent on this machine: output, lines, stdin, exit codes, limits, overlap, the end of the channel. */
#include "chan_test.h"
#include "exec.h"
#include "sha256.h"
#include <sys/stat.h>

typedef struct run_s {
  al_exec_t *e;
  bool done;
  al_exec_result_t result;
  al_err_t err;
  char *lines; /* everything on_lines got */
  size_t lines_len, batches, untaken;
  size_t bytes[3];
  bool hold;   /* do not take */
  bool cancel_in_line;
  unsigned drains;
} run_t;

static void
on_lines(al_exec_t *e, void *data, const uint8_t *p, size_t n) {
  run_t *u = data;
  assert_false(u->done);
  assert_int_equal(p[n - 1], '\n');
  u->lines = realloc(u->lines, u->lines_len + n + 1);
  memcpy(u->lines + u->lines_len, p, n);
  u->lines_len += n;
  u->lines[u->lines_len] = 0;
  u->batches++;
  if (u->hold) u->untaken += n;
  else al_exec_taken(e, AL_SUB_STDOUT, n);
  if (u->cancel_in_line) al_exec_cancel(e, NULL);
}

static void
on_bytes(al_exec_t *e, void *data, int sub, const uint8_t *p, size_t n) {
  run_t *u = data;
  (void) p;
  u->bytes[sub] += n;
  al_exec_taken(e, sub, n);
}

static void
on_drain(al_exec_t *e, void *data) {
  (void) e;
  ((run_t *) data)->drains++;
}

static void
on_done(al_exec_t *e, void *data, al_exec_result_t *result, const al_err_t *err) {
  run_t *u = data;
  (void) e;
  assert_false(u->done);
  u->done = true;
  u->result = *result;
  u->err = *err;
}

static const al_exec_cbs_t cbs = { .on_lines = on_lines, .on_bytes = on_bytes, .on_drain = on_drain, .on_done = on_done };
static const char *const env[] = { "PATH=/usr/bin:/bin", "LC_ALL=C.UTF-8", "MARK=from the request", NULL };

static void
clear(run_t *u) {
  al_free(u->result.out);
  al_free(u->result.errs);
  free(u->lines);
  memset(u, 0, sizeof *u);
}

static void
start(rig_t *r, run_t *u, const char *script, al_exec_opts_t o) {
  const char *argv[] = { "sh", "-c", script, NULL };
  o.req.argv = argv;
  o.req.env = env;
  if (!o.req.cwd) o.req.cwd = r->dir;
  o.req.user = "agent";
  assert_int_equal(al_exec_start(r->chan, &o, &cbs, u, &u->e, &u->err), 0);
  assert_false(u->done);
}

static void
finish(rig_t *r, run_t *u) {
  rig_wait(r, &u->done, 60000);
  if (u->err.code) fail_msg("%s: %s", al_err_name(u->err.code), u->err.msg);
}

static void
run(rig_t *r, run_t *u, const char *script, al_exec_opts_t o) {
  start(r, u, script, o);
  finish(r, u);
}

#define START(r) \
  rig_t r; \
  if (!rig_agent_start(&r)) skip()

static void
test_exec_output_is_returned_whole_and_untrimmed(void **state) {
  (void) state;
  START(r);
  run_t u = { 0 };
  run(&r, &u, "printf '\\n a \\n\\n'; printf 'err\\n' >&2; printf '%s' \"$MARK\" >&2; pwd >&2; exit 3", (al_exec_opts_t){ 0 });
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
  run(&r, &u, "head -c 3", (al_exec_opts_t){ .req.with_stdin = true, .input = in, .input_len = n }); /* closes stdin early */
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
  start(&r, &u, "wc -c", (al_exec_opts_t){ .req.with_stdin = true, .input = "abc", .input_len = 3, .input_open = true });
  size_t sent = 3;
  unsigned drains = 0;
  while (sent < 3000000) {
    int64_t q = al_exec_write(u.e, block, sizeof block);
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
  run(&r, &u, "printf 'one\\r\\n\\ntw'; sleep 0.1; printf 'o\\303'; sleep 0.1; printf '\\244\\nlast'; echo e >&2; exit 1", (al_exec_opts_t){ .lines = true });
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

static void
test_exec_signals_are_128_plus_n(void **state) {
  (void) state;
  START(r);
  run_t u = { 0 };
  run(&r, &u, "kill -KILL $$", (al_exec_opts_t){ 0 });
  assert_int_equal(u.result.exit_code, 137);
  assert_int_equal(u.result.signal, 9);
  clear(&u);
  start(&r, &u, "trap 'echo got; exit 7' TERM; while :; do sleep 0.05; done", (al_exec_opts_t){ 0 });
  rig_idle(&r, 200);
  al_exec_signal(u.e, SIGTERM, false);
  finish(&r, &u);
  assert_int_equal(u.result.exit_code, 7);
  assert_string_equal(u.result.out, "got\n");
  clear(&u);
  rig_end(&r);
}

static void
test_exec_what_cannot_start_says_why(void **state) {
  (void) state;
  START(r);
  run_t u = { 0 };
  const char *argv[] = { "no-such-program", NULL };
  al_exec_opts_t o = { .req = { .argv = argv, .env = env, .cwd = "/", .user = "agent" } };
  assert_int_equal(al_exec_start(r.chan, &o, &cbs, &u, &u.e, &u.err), 0);
  rig_wait(&r, &u.done, 5000);
  assert_int_equal(u.err.code, AL_EEXEC_FAILED);
  assert_non_null(strstr(u.err.msg, "No such file"));
  assert_null(u.result.out);
  clear(&u);
  start(&r, &u, "true", (al_exec_opts_t){ .req.cwd = "/no/such/place" });
  rig_wait(&r, &u.done, 5000);
  assert_int_equal(u.err.code, AL_EEXEC_FAILED);
  clear(&u);
  const char *none[] = { NULL };
  o.req.argv = none;
  assert_int_equal(al_exec_start(r.chan, &o, &cbs, &u, &u.e, &u.err), -EINVAL);
  char *big = malloc(AL_OPEN_MAX + 1);
  memset(big, 'x', AL_OPEN_MAX);
  big[AL_OPEN_MAX] = 0;
  const char *too_long[] = { "true", big, NULL };
  o.req.argv = too_long;
  assert_int_equal(al_exec_start(r.chan, &o, &cbs, &u, &u.e, &u.err), -E2BIG);
  big[120000] = 0; /* one argument of 120 kB goes over several frames */
  const char *echo[] = { "sh", "-c", "printf %s \"$1\" | wc -c", "sh", big, NULL };
  o.req.argv = echo;
  memset(&u, 0, sizeof u);
  assert_int_equal(al_exec_start(r.chan, &o, &cbs, &u, &u.e, &u.err), 0);
  finish(&r, &u);
  assert_string_equal(u.result.out, "120000\n");
  clear(&u);
  free(big);
  rig_end(&r);
}

static void
test_exec_output_limit_kills_the_tree(void **state) {
  (void) state;
  START(r);
  run_t u = { 0 };
  start(&r, &u, "echo $$ > pid; yes", (al_exec_opts_t){ .max_output = 100000 });
  rig_wait(&r, &u.done, 5000);
  assert_int_equal(u.err.code, AL_EOUTPUT_LIMIT);
  assert_non_null(strstr(u.err.msg, "stdout"));
  clear(&u);
  run(&r, &u, "sleep 0.1; kill -0 $(cat pid)", (al_exec_opts_t){ 0 });
  assert_int_not_equal(u.result.exit_code, 0);
  clear(&u);
  start(&r, &u, "yes >&2", (al_exec_opts_t){ .max_output = 100000 });
  rig_wait(&r, &u.done, 5000);
  assert_int_equal(u.err.code, AL_EOUTPUT_LIMIT);
  assert_non_null(strstr(u.err.msg, "stderr"));
  clear(&u);
  run(&r, &u, "head -c 100000 /dev/zero", (al_exec_opts_t){ .max_output = 100000 }); /* exactly at the limit */
  assert_int_equal(u.result.out_len, 100000);
  clear(&u);
  run(&r, &u, "head -c 100000 /dev/zero | tr '\\000' e >&2", (al_exec_opts_t){ .lines = true, .max_output = 1000 }); /* a tail has no limit */
  assert_int_equal(u.result.errs_len, 65536);
  clear(&u);
  rig_end(&r);
}

static void
test_exec_cancel_kills_and_hands_on_nothing_more(void **state) {
  (void) state;
  START(r);
  run_t u = { .cancel_in_line = true };
  start(&r, &u, "echo $$ > pid; yes", (al_exec_opts_t){ .lines = true });
  rig_wait(&r, &u.done, 5000);
  assert_int_equal(u.err.code, AL_EABORTED);
  assert_int_equal(u.batches, 1);
  clear(&u);
  run(&r, &u, "sleep 0.1; kill -0 $(cat pid)", (al_exec_opts_t){ 0 });
  assert_int_not_equal(u.result.exit_code, 0);
  clear(&u);
  al_err_t why = { 0 };
  al_err_set(&why, AL_ECALLBACK_THREW, "the callback threw");
  start(&r, &u, "sleep 100", (al_exec_opts_t){ 0 });
  al_exec_cancel(u.e, &why); /* before anything was sent */
  rig_wait(&r, &u.done, 1000);
  assert_int_equal(u.err.code, AL_ECALLBACK_THREW);
  clear(&u);
  run(&r, &u, "echo fine", (al_exec_opts_t){ 0 });
  assert_string_equal(u.result.out, "fine\n");
  clear(&u);
  rig_end(&r);
}

static void
test_exec_background_child_does_not_hold_the_result(void **state) {
  (void) state;
  START(r);
  run_t u = { 0 };
  uint64_t t = uv_hrtime();
  run(&r, &u, "sleep 30 & echo out", (al_exec_opts_t){ 0 });
  assert_string_equal(u.result.out, "out\n");
  assert_true(uv_hrtime() - t < 10000000000u);
  clear(&u);
  rig_end(&r);
}

static void
test_exec_raw_stream_hands_on_both(void **state) {
  (void) state;
  START(r);
  run_t u = { 0 };
  run(&r, &u, "head -c 700000 /dev/zero; head -c 600000 /dev/zero >&2; exit 2", (al_exec_opts_t){ .stream = true });
  assert_int_equal(u.bytes[1], 700000);
  assert_int_equal(u.bytes[2], 600000);
  assert_int_equal(u.result.exit_code, 2);
  clear(&u);
  rig_end(&r);
}

static void
test_exec_all_settle_when_the_channel_dies(void **state) {
  (void) state;
  START(r);
  static run_t u[5];
  memset(u, 0, sizeof u);
  for (int i = 0; i < 5; i++) start(&r, &u[i], i % 2 ? "yes" : "sleep 100", (al_exec_opts_t){ .lines = i % 2 });
  u[3].hold = true; /* one whose lines nobody takes */
  rig_idle(&r, 100);
  kill(r.agent, SIGKILL);
  rig_wait(&r, &r.closed, 5000);
  assert_int_equal(r.why.code, AL_ECHANNEL_CLOSED);
  for (int i = 0; i < 5; i++) {
    rig_wait(&r, &u[i].done, 1000);
    assert_int_equal(u[i].err.code, AL_ECHANNEL_CLOSED);
    clear(&u[i]);
  }
  rig_end(&r);
}

static void
test_exec_close_settles_with_its_reason(void **state) {
  (void) state;
  START(r);
  run_t u = { 0 }, v = { 0 };
  al_err_t why = { 0 };
  start(&r, &u, "sleep 100", (al_exec_opts_t){ 0 });
  rig_idle(&r, 50);
  al_err_set(&why, AL_ELANE_EXPIRED, "the lifetime is over");
  al_chan_close(r.chan, &why);
  al_chan_close(r.chan, NULL);
  assert_false(u.done);
  const char *argv[] = { "true", NULL };
  al_exec_opts_t o = { .req = { .argv = argv, .env = env } };
  assert_int_equal(al_exec_start(r.chan, &o, &cbs, &v, &v.e, &v.err), AL_ECHANNEL_CLOSED);
  rig_wait(&r, &r.closed, 1000);
  rig_wait(&r, &u.done, 1000);
  assert_int_equal(u.err.code, AL_ELANE_EXPIRED);
  assert_int_equal(r.why.code, 0);
  clear(&u);
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
    cmocka_unit_test(test_exec_signals_are_128_plus_n),
    cmocka_unit_test(test_exec_what_cannot_start_says_why),
    cmocka_unit_test(test_exec_output_limit_kills_the_tree),
    cmocka_unit_test(test_exec_cancel_kills_and_hands_on_nothing_more),
    cmocka_unit_test(test_exec_background_child_does_not_hold_the_result),
    cmocka_unit_test(test_exec_raw_stream_hands_on_both),
    cmocka_unit_test(test_exec_all_settle_when_the_channel_dies),
    cmocka_unit_test(test_exec_close_settles_with_its_reason),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
