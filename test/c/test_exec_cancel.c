/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of exec against the real lane agent on this machine: cancel, timeout, what an error carries, lines of stderr. */
#include "exec_test.h"

static void
cancelled(rig_t *r, run_t *u) {
  char ready[96];
  snprintf(ready, sizeof ready, "%s/ready", r->dir); /* the shell has set its trap and said its word */
  for (int i = 0; i < 2000 && access(ready, F_OK) != 0; i++) rig_idle(r, 10);
  assert_int_equal(unlink(ready), 0);
  rig_idle(r, 200);
  al_exec_cancel(u->e, NULL);
  al_exec_cancel(u->e, NULL);
  assert_int_equal(al_exec_write(u->e, al_strdup("x"), 1), 0);
  rig_wait(r, &u->done, 20000);
}

static void
test_cancel_gives_the_command_its_grace(void **state) {
  (void) state;
  START(r);
  run_t u = { 0 };
  uint64_t t = uv_hrtime();
  start(&r, &u, "trap 'echo bye; exit 3' TERM; echo one; printf part; touch ready; while :; do sleep 0.05; done",
    (al_exec_opts_t){ .lines = true });
  cancelled(&r, &u);
  assert_true(uv_hrtime() - t < 15000000000u); /* it did not wait for anything but the command */
  assert_int_equal(u.err.code, AL_EABORTED);
  assert_int_equal(u.result.exit_code, 3);
  assert_string_equal(u.lines, "one\n"); /* no line once it is being ended */
  assert_string_equal(u.result.out, "one\npartbye\n");
  clear(&u);
  t = uv_hrtime();
  start(&r, &u, "trap '' TERM; echo x >&2; touch ready; while :; do sleep 0.05; done", (al_exec_opts_t){ .req.kill_ms = 700 });
  cancelled(&r, &u);
  assert_true(uv_hrtime() - t >= 700000000u);
  assert_int_equal(u.result.exit_code, 137);
  assert_int_equal(u.result.signal, SIGKILL);
  assert_string_equal(u.result.errs, "x\n");
  clear(&u);
  start(&r, &u, "trap 'echo never' TERM; echo x; touch ready; while :; do sleep 0.05; done", (al_exec_opts_t){ .req.kill_ms = -1 });
  cancelled(&r, &u);
  assert_int_equal(u.result.exit_code, 137);
  assert_string_equal(u.result.out, "x\n");
  clear(&u);
  rig_end(&r);
}

static void
test_cancel_keeps_a_tail_of_what_was_whole(void **state) {
  (void) state;
  START(r);
  run_t u = { 0 };
  al_budget_t budget = { .max = 1 << 20 };
  start(&r, &u, "head -c 100000 /dev/zero | tr '\\0' a; printf end; head -c 70000 /dev/zero >&2; exec sleep 60",
    (al_exec_opts_t){ .budget = &budget });
  for (int i = 0; i < 500 && budget.used < 170003; i++) rig_idle(&r, 10);
  assert_int_equal(budget.used, 170003);
  al_exec_cancel(u.e, NULL);
  assert_int_equal(budget.used, 0); /* at once: others may need it */
  rig_wait(&r, &u.done, 20000);
  assert_int_equal(u.result.out_len, 65536);
  assert_int_equal(u.result.out_dropped, 100003 - 65536);
  assert_string_equal(u.result.out + 65536 - 4, "aend");
  assert_int_equal(u.result.errs_len, 65536);
  clear(&u);
  rig_end(&r);
}

static void
test_cancel_does_not_wait_for_a_stalled_receiver(void **state) {
  (void) state;
  START(r);
  run_t u = { .hold = true }; /* takes no line back */
  start(&r, &u, "yes; :", (al_exec_opts_t){ .lines = true });
  for (int i = 0; i < 500 && u.untaken < AL_WINDOW_DEFAULT / 2; i++) rig_idle(&r, 10);
  al_exec_cancel(u.e, NULL);
  rig_wait(&r, &u.done, 20000);
  assert_int_equal(u.err.code, AL_EABORTED);
  assert_int_equal(u.result.exit_code, 143);
  clear(&u);
  u.hold = true; /* one that has ended and waits for its line to be taken */
  start(&r, &u, "echo one", (al_exec_opts_t){ .lines = true });
  rig_idle(&r, 500);
  assert_false(u.done);
  al_exec_cancel(u.e, NULL);
  rig_wait(&r, &u.done, 1000);
  assert_int_equal(u.err.code, AL_EABORTED);
  assert_string_equal(u.result.out, "one\n");
  assert_int_equal(u.result.exit_code, 0);
  clear(&u);
  rig_end(&r);
}

static void
test_timeout_ends_only_who_is_late(void **state) {
  (void) state;
  START(r);
  run_t u = { 0 };
  start(&r, &u, "echo out; exec sleep 60", (al_exec_opts_t){ .timeout_ms = 2500 });
  rig_wait(&r, &u.done, 20000);
  assert_int_equal(u.err.code, AL_ETIMEOUT);
  assert_non_null(strstr(u.err.msg, "2.5 s"));
  assert_string_equal(u.result.out, "out\n");
  assert_int_equal(u.result.exit_code, 143);
  clear(&u);
  run(&r, &u, "echo in time", (al_exec_opts_t){ .timeout_ms = 60000 });
  assert_string_equal(u.result.out, "in time\n");
  clear(&u);
  u.hold = true; /* it is done in time, but nobody takes its line for longer */
  start(&r, &u, "echo one", (al_exec_opts_t){ .lines = true, .timeout_ms = 2500 });
  rig_idle(&r, 3000);
  assert_false(u.done);
  al_exec_taken(u.e, AL_SUB_STDOUT, u.untaken);
  rig_wait(&r, &u.done, 20000);
  assert_int_equal(u.err.code, 0);
  assert_string_equal(u.result.out, "one");
  clear(&u);
  rig_end(&r);
}

static void
test_cancel_gives_a_guest_up_that_does_not_answer(void **state) {
  (void) state;
  START(r);
  run_t u = { 0 };
  al_budget_t budget = { .max = 1000 };
  start(&r, &u, "echo said; exec sleep 60", (al_exec_opts_t){ .req.kill_ms = -1, .budget = &budget });
  for (int i = 0; i < 2000 && budget.used < 5; i++) rig_idle(&r, 10);
  kill(r.agent, SIGSTOP);
  uint64_t t = uv_hrtime();
  al_exec_cancel(u.e, NULL);
  rig_wait(&r, &u.done, 30000);
  assert_true(uv_hrtime() - t >= AL_CANCEL_MARGIN_MS * 990000ull);
  assert_int_equal(u.err.code, AL_EABORTED);
  assert_non_null(strstr(u.err.msg, "has not said that it is gone"));
  assert_int_equal(u.result.exit_code, -1);
  assert_string_equal(u.result.out, "said\n");
  kill(r.agent, SIGCONT);
  clear(&u);
  run(&r, &u, "echo the others go on", (al_exec_opts_t){ 0 });
  clear(&u);
  rig_end(&r);
}

static void
test_errors_of_the_channel_carry_the_tails_too(void **state) {
  (void) state;
  START(r);
  run_t u = { 0 };
  al_budget_t budget = { .max = 1000 };
  start(&r, &u, "echo out; echo err >&2; exec sleep 60", (al_exec_opts_t){ .budget = &budget });
  for (int i = 0; i < 2000 && budget.used < 8; i++) rig_idle(&r, 10);
  kill(r.agent, SIGKILL);
  rig_wait(&r, &u.done, 5000);
  assert_int_equal(u.err.code, AL_ECHANNEL_CLOSED);
  assert_string_equal(u.result.out, "out\n");
  assert_string_equal(u.result.errs, "err\n");
  clear(&u);
  rig_end(&r);
}

static void
test_lines_of_stderr_beside_a_whole_stdout(void **state) {
  (void) state;
  START(r);
  run_t u = { 0 };
  run(&r, &u, "seq 1 30000 >&2; seq 1 30000", (al_exec_opts_t){ .err_lines = true });
  assert_int_equal(u.err_lines_len, 168894);
  assert_int_equal(u.lines_len, 0);
  assert_int_equal(u.result.out_len, 168894);
  assert_int_equal(u.result.errs_len, 65536);
  assert_int_equal(u.result.errs_dropped, 168893 - 65536);
  clear(&u);
  run(&r, &u, "head -c 20000000 /dev/zero >&2; echo; exit 6", (al_exec_opts_t){ .lines = true, .err_lines = true });
  assert_int_equal(u.err_lines_len, 20000002);
  assert_string_equal(u.lines, "\n");
  assert_int_equal(u.result.errs_cuts, 1);
  assert_int_equal(u.result.out_cuts, 0);
  assert_int_equal(u.result.exit_code, 6);
  clear(&u);
  rig_end(&r);
}

static void
test_limits_that_the_guest_lacks_have_their_own_error(void **state) {
  (void) state;
  START(r);
  run_t u = { 0 };
  start(&r, &u, "true", (al_exec_opts_t){ .req.max_processes = 5 });
  rig_wait(&r, &u.done, 5000);
  assert_int_equal(u.err.code, AL_ELIMIT_UNENFORCEABLE);
  assert_non_null(strstr(u.err.msg, "cgroups"));
  clear(&u);
  rig_end(&r);
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_cancel_gives_the_command_its_grace),
    cmocka_unit_test(test_cancel_keeps_a_tail_of_what_was_whole),
    cmocka_unit_test(test_cancel_does_not_wait_for_a_stalled_receiver),
    cmocka_unit_test(test_timeout_ends_only_who_is_late),
    cmocka_unit_test(test_cancel_gives_a_guest_up_that_does_not_answer),
    cmocka_unit_test(test_errors_of_the_channel_carry_the_tails_too),
    cmocka_unit_test(test_lines_of_stderr_beside_a_whole_stdout),
    cmocka_unit_test(test_limits_that_the_guest_lacks_have_their_own_error),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
