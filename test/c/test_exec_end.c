/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of exec against the real lane agent on this machine: exit codes, limits, cancelling, the end of the channel. */
#include "exec_test.h"

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
  assert_int_equal(u.result.exit_code, -1);
  assert_string_equal(u.result.out, "");
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
  assert_int_equal(al_exec_start(r.chan, &o, &cbs, &u, &u.e, &u.err), AL_EBAD_OPTION);
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
  run(&r, &u, "head -c 100000 /dev/zero | tr '\\000' e >&2",
    (al_exec_opts_t){.lines = true, .max_output = 1000}); /* a tail has no limit */
  assert_int_equal(u.result.errs_len, 65536);
  clear(&u);
  rig_end(&r);
}

static void
test_exec_budget_is_shared_and_stops_only_who_passes_it(void **state) {
  (void) state;
  START(r);
  static run_t u[3];
  memset(u, 0, sizeof u);
  al_budget_t budget = { .max = 300000 };
  al_exec_opts_t o = { .budget = &budget };
  start(&r, &u[0], "head -c 100000 /dev/zero; sleep 1.5; echo", o);
  start(&r, &u[1], "head -c 100000 /dev/zero >&2; sleep 1.5; echo", o);
  for (int i = 0; i < 200 && budget.used < 200000; i++) rig_idle(&r, 10);
  assert_int_equal(budget.used, 200000);
  start(&r, &u[2], "echo $$ > pid; yes", o);
  rig_wait(&r, &u[2].done, 5000);
  assert_int_equal(u[2].err.code, AL_EOUTPUT_LIMIT);
  assert_non_null(strstr(u[2].err.msg, "maxBufferedBytes"));
  assert_non_null(strstr(u[2].err.msg, "300000"));
  assert_true(budget.used <= 200002);
  clear(&u[2]);
  run(&r, &u[2], "sleep 0.1; kill -0 $(cat pid)", o);
  assert_int_not_equal(u[2].result.exit_code, 0);
  clear(&u[2]);
  for (int i = 0; i < 2; i++) {
    finish(&r, &u[i]);
    assert_int_equal(u[i].result.out_len + u[i].result.errs_len, 100001);
    clear(&u[i]);
  }
  assert_int_equal(budget.used, 0);
  run(&r, &u[0], "head -c 300000 /dev/zero", o); /* exactly all of it */
  assert_int_equal(u[0].result.out_len, 300000);
  clear(&u[0]);
  start(&r, &u[0], "head -c 300001 /dev/zero", o);
  rig_wait(&r, &u[0].done, 5000);
  assert_int_equal(u[0].err.code, AL_EOUTPUT_LIMIT);
  clear(&u[0]);
  rig_end(&r);
}

static void
test_exec_budget_counts_what_lines_keep(void **state) {
  (void) state;
  START(r);
  run_t u = { 0 };
  al_budget_t budget = { .max = 300000 };
  run(&r, &u, "seq 1 300000; seq 1 100000 >&2",
    (al_exec_opts_t){.lines = true, .budget = &budget}); /* goes through, but for tails */
  assert_int_equal(u.result.out_len, 65536);
  clear(&u);
  run(&r, &u, "head -c 400000 /dev/zero", (al_exec_opts_t){ .stream = true, .budget = &budget });
  assert_int_equal(u.bytes[1], 400000);
  clear(&u);
  start(&r, &u, "head -c 400000 /dev/zero; sleep 100",
    (al_exec_opts_t){.lines = true, .budget = &budget}); /* one unfinished line */
  rig_wait(&r, &u.done, 5000);
  assert_int_equal(u.err.code, AL_EOUTPUT_LIMIT);
  assert_int_equal(u.batches, 0);
  clear(&u);
  start(&r, &u, "head -c 100000 /dev/zero; sleep 100", (al_exec_opts_t){ .budget = &budget });
  for (int i = 0; i < 200 && budget.used < 100000; i++) rig_idle(&r, 10);
  al_exec_cancel(u.e, NULL);
  rig_wait(&r, &u.done, 5000);
  assert_int_equal(budget.used, 0);
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
  static run_t u[6];
  memset(u, 0, sizeof u);
  u[5].hold = true; /* one that has ended, but whose line nobody takes */
  start(&r, &u[5], "echo one", (al_exec_opts_t){ .lines = true });
  rig_idle(&r, 300);
  assert_string_equal(u[5].lines, "one\n");
  for (int i = 0; i < 5; i++) start(&r, &u[i], i % 2 ? "yes" : "sleep 100", (al_exec_opts_t){ .lines = i % 2 });
  u[3].hold = true; /* one whose lines nobody takes */
  rig_idle(&r, 100);
  assert_false(u[5].done);
  kill(r.agent, SIGKILL);
  rig_wait(&r, &r.closed, 5000);
  assert_int_equal(r.why.code, AL_ECHANNEL_CLOSED);
  for (int i = 0; i < 6; i++) {
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

static void
on_config(void *data, int status, const al_err_t *err) {
  run_t *u = data;
  u->done = true;
  u->err = *err;
  assert_int_equal(status, err->code);
}

static void
on_pong(void *data, int status, uint64_t ns) {
  run_t *u = data;
  assert_int_equal(status, 0);
  assert_true(ns > 0);
  u->done = true;
}

static void
test_exec_agent_takes_its_configuration(void **state) {
  (void) state;
  START(r);
  run_t u = { 0 };
  char dir[128];
  snprintf(dir, sizeof dir, "%s/job/tree", r.dir);
  assert_int_equal(al_chan_config(r.chan, NULL, dir, 0, on_config, &u), 0);
  rig_wait(&r, &u.done, 5000);
  if (u.err.code) fail_msg("%s", u.err.msg);
  assert_int_equal(access(dir, W_OK), 0);
  u.done = false;
  assert_int_equal(al_chan_ping(r.chan, on_pong, &u), 0);
  rig_wait(&r, &u.done, 5000);
  clear(&u);
  rig_end(&r);
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_exec_signals_are_128_plus_n),
    cmocka_unit_test(test_exec_what_cannot_start_says_why),
    cmocka_unit_test(test_exec_output_limit_kills_the_tree),
    cmocka_unit_test(test_exec_budget_is_shared_and_stops_only_who_passes_it),
    cmocka_unit_test(test_exec_budget_counts_what_lines_keep),
    cmocka_unit_test(test_exec_cancel_kills_and_hands_on_nothing_more),
    cmocka_unit_test(test_exec_background_child_does_not_hold_the_result),
    cmocka_unit_test(test_exec_raw_stream_hands_on_both),
    cmocka_unit_test(test_exec_all_settle_when_the_channel_dies),
    cmocka_unit_test(test_exec_close_settles_with_its_reason),
    cmocka_unit_test(test_exec_agent_takes_its_configuration),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
