/* SPDX-License-Identifier: Apache-2.0 */
/* The lane agent ends trees: CANCEL, its grace and its kill, END_TREE, the hold of pipes, limits. As root in a jail where
 * cgroups matter, which is skipped without root. */
#include "agent_jail.h"

static uint32_t
exec_with(peer_t *p, const char *script, uint32_t flags, uint32_t hold_ms, uint32_t kill_ms) {
  uint8_t grace[8];
  peer_tlvs.len = 0;
  tlv_text(&peer_tlvs, AL_TLV_ARG, "sh");
  tlv_text(&peer_tlvs, AL_TLV_ARG, "-c");
  tlv_text(&peer_tlvs, AL_TLV_ARG, script);
  tlv_text(&peer_tlvs, AL_TLV_CWD, "/");
  tlv_u32(&peer_tlvs, AL_TLV_FLAGS, flags);
  al_put32(grace, hold_ms);
  al_put32(grace + 4, kill_ms);
  tlv_add(&peer_tlvs, AL_TLV_GRACE, grace, sizeof(grace));
  return peer_exec_tlvs(p, &peer_tlvs, AL_FRAME_MAX);
}

static void
cancel(peer_t *p, uint32_t id, uint32_t grace_ms) {
  peer_send32(p, id, AL_F_CANCEL, 0, grace_ms);
}

/* At EXIT the tree is gone already: nobody has to wait for it. */
static void
expect_no_sleeps(peer_t *p) {
  expect_as(p, "agent", count_sleeps, "0\n");
}

static void
test_cancel_ends_whoever_got_away(void **state) {
  (void) state;
  static const char *const ways[] = {
    "exec sleep 61", "sleep 61 & wait", "setsid sleep 61 & sleep 62",
    "(setsid sh -c 'sleep 61 & sleep 62 &') & sleep 0.2; exec sleep 63", "nohup sleep 61 >/dev/null 2>&1 & exec sleep 62",
    "sleep 61 | sleep 62 | sleep 63", "setsid setsid setsid sleep 61 & kill -STOP $$",
    "sleep 61 & kill -STOP $!; exec sleep 62"};
  peer_t p;
  start(&p);
  for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
    char script[256];
    snprintf(script, sizeof(script), "echo up; %s", ways[i]);
    uint32_t id = exec_with(&p, script, 0, 2000, 2000);
    await_data(&p);
    usleep(300000);
    cancel(&p, id, 10000);
    peer_expect(&p, id, AL_EXIT_SIGNAL, SIGTERM, "");
    expect_no_sleeps(&p);
  }
  /* Everybody is told, not only the main process and its session. */
  uint32_t id = exec_with(&p,
    "setsid sh -c \"trap 'echo child; exit' TERM; echo up; while :; do sleep 0.1; done\" 2>/dev/null & exec sleep 61", 0, 2000, 2000);
  await_data(&p);
  cancel(&p, id, 10000);
  peer_expect(&p, id, AL_EXIT_SIGNAL, SIGTERM, "child\n");
  peer_stop(&p);
}

static void
test_cancel_kills_after_the_grace_and_not_before(void **state) {
  (void) state;
  peer_t p;
  start(&p);
  const struct { const char *script; uint32_t kind, value; } cases[] = {
    {"trap '' TERM; echo up; sleep 61; sleep 62", AL_EXIT_SIGNAL, SIGKILL},
    /* the main process obeys at once, a child of it that nobody hears of does not */
    {"sh -c \"trap '' TERM; sleep 61; sleep 62\" >/dev/null 2>&1 & echo up; exec sleep 63", AL_EXIT_SIGNAL, SIGTERM},
    {"trap 'exit 9' TERM; (trap '' TERM; setsid sleep 61; sleep 62) & echo up; while :; do sleep 0.1; done", AL_EXIT_CODE, 9},
  };
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    uint32_t id = exec_with(&p, cases[i].script, 0, 2000, 2000);
    await_data(&p);
    usleep(200000);
    uint64_t t = peer_now_ms();
    cancel(&p, id, 700);
    peer_expect(&p, id, cases[i].kind, cases[i].value, NULL);
    assert_true(peer_now_ms() - t >= 690);
    expect_no_sleeps(&p);
  }
  uint32_t id = exec_with(&p, cases[0].script, 0, 2000, 2000);
  await_data(&p);
  cancel(&p, id, 600000);
  cancel(&p, id, 900000); /* does not delay it */
  cancel(&p, id, 0);      /* hurries it */
  peer_expect(&p, id, AL_EXIT_SIGNAL, SIGKILL, "");
  expect_no_sleeps(&p);
  id = exec_with(&p, "echo up; exec sleep 61", 0, 2000, 2000);
  await_data(&p);
  cancel(&p, id, 0); /* without a word before */
  peer_expect(&p, id, AL_EXIT_SIGNAL, SIGKILL, "");
  peer_stop(&p);
}

static void
test_cancel_does_not_wait_for_credit(void **state) {
  (void) state;
  peer_t p;
  start(&p);
  p.no_credit = true;
  uint32_t id = exec_with(&p, "trap 'exit 3' TERM; yes & wait", 0, 200, 2000);
  assert_int_equal(peer_data(&p, id, AL_WINDOW_DEFAULT), AL_WINDOW_DEFAULT);
  cancel(&p, id, 5000);
  result_t r;
  peer_result(&p, id, &r);
  assert_int_equal(r.value, 3);
  free(r.out);
  peer_stop(&p);
}

static void
test_end_tree_is_for_those_who_want_it(void **state) {
  (void) state;
  peer_t p;
  start(&p);
  static const char script[] = "setsid sleep 61 >/dev/null 2>&1 & trap '' TERM; sleep 62 >/dev/null 2>&1 & exit 4";
  uint64_t t = peer_now_ms();
  peer_expect(&p, exec_with(&p, script, AL_EXEC_END_TREE, 2000, 500), AL_EXIT_CODE, 4, "");
  assert_true(peer_now_ms() - t >= 490);
  expect_no_sleeps(&p);
  peer_expect(&p, exec_with(&p, script, 0, 2000, 500), AL_EXIT_CODE, 4, "");
  expect_sleeps(&p, "2\n");
  /* What the main process wrote is not lost with its tree, however slow the host takes it. */
  p.no_credit = true;
  uint32_t id = exec_with(&p, "head -c 300000 /dev/zero; sleep 63 & exit 5", AL_EXEC_END_TREE, 200, 100);
  size_t n = peer_data(&p, id, AL_WINDOW_DEFAULT);
  assert_int_equal(n, AL_WINDOW_DEFAULT);
  usleep(600000);
  peer_send32(&p, id, AL_F_CREDIT, AL_SUB_STDOUT, 100000);
  result_t r;
  peer_result(&p, id, &r);
  assert_int_equal(r.out_len, 300000 - n);
  assert_int_equal(r.value, 5);
  free(r.out);
  peer_stop(&p);
}

static void
test_hold_of_pipes_is_the_requests(void **state) {
  (void) state;
  peer_t p;
  peer_start(&p);
  peer_hello(&p);
  uint64_t t = peer_now_ms();
  peer_expect(&p, exec_with(&p, "sleep 20 & echo out", 0, 0, 2000), AL_EXIT_CODE, 0, "out\n");
  assert_true(peer_now_ms() - t < 1500);
  t = peer_now_ms();
  peer_expect(&p, exec_with(&p, "sleep 20 & echo out", 0, 3000, 2000), AL_EXIT_CODE, 0, "out\n");
  assert_true(peer_now_ms() - t >= 2990);
  peer_stop(&p);
}

static void
limited(peer_t *p, uint32_t processes, uint32_t cpu, uint64_t memory, const char *says) {
  uint8_t l[16];
  result_t r;
  peer_tlvs.len = 0;
  tlv_text(&peer_tlvs, AL_TLV_ARG, "true");
  al_put32(l, processes);
  al_put32(l + 4, cpu);
  al_put64(l + 8, memory);
  tlv_add(&peer_tlvs, AL_TLV_LIMITS, l, sizeof(l));
  peer_result(p, peer_exec_tlvs(p, &peer_tlvs, AL_FRAME_MAX), &r);
  if (says == NULL) {
    assert_int_equal(r.kind, AL_EXIT_CODE);
    return;
  }
  assert_int_equal(r.kind, AL_EXIT_ERROR);
  assert_int_equal(r.value, EOPNOTSUPP);
  if (strstr(r.text, says) == NULL) fail_msg("\"%s\" does not say \"%s\"", r.text, says);
}

/* In the jail nobody has enabled a controller, as on a kernel without them. What limits do is shown on real VMs. */
static void
test_limits_that_cannot_be_enforced_are_refused(void **state) {
  (void) state;
  peer_t p;
  peer_start(&p);
  peer_hello(&p);
  limited(&p, 5, 0, 0, "need cgroups");
  limited(&p, 0, 0, 0, NULL);
  peer_stop(&p);
  start(&p);
  limited(&p, 5, 0, 0, "pids.max");
  limited(&p, 0, 500, 0, "cpu.max");
  limited(&p, 0, 0, 1 << 24, "memory.max");
  limited(&p, 0, 0, 0, NULL);
  peer_stop(&p);
}

static void
test_malformed_requests_are_refused(void **state) {
  (void) state;
  peer_t p;
  peer_start(&p);
  peer_hello(&p);
  for (uint16_t tag = AL_TLV_GRACE; tag <= AL_TLV_LIMITS; tag++) {
    for (uint32_t len = 0; len <= 20; len += 4) {
      uint8_t zero[20] = {0};
      peer_tlvs.len = 0;
      tlv_text(&peer_tlvs, AL_TLV_ARG, "true");
      tlv_add(&peer_tlvs, tag, zero, len);
      bool right = len == (tag == AL_TLV_GRACE ? 8 : 16);
      peer_expect(&p, peer_exec_tlvs(&p, &peer_tlvs, AL_FRAME_MAX), right ? AL_EXIT_CODE : AL_EXIT_ERROR,
        right ? 0 : EINVAL, NULL);
    }
  }
  peer_send64(&p, AL_F_CLOCK, 1000000000); /* --local: the machine's clock is not ours */
  cancel(&p, p.last_id, 0);                /* has ended: dropped */
  peer_ping(&p);
  peer_send32(&p, peer_exec(&p, 0, "sleep 5"), AL_F_CANCEL, 1, 0);
  peer_expect_reject(&p, 3);
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_cancel_ends_whoever_got_away),
    cmocka_unit_test(test_cancel_kills_after_the_grace_and_not_before),
    cmocka_unit_test(test_cancel_does_not_wait_for_credit),
    cmocka_unit_test(test_end_tree_is_for_those_who_want_it),
    cmocka_unit_test(test_hold_of_pipes_is_the_requests),
    cmocka_unit_test(test_limits_that_cannot_be_enforced_are_refused),
    cmocka_unit_test(test_malformed_requests_are_refused),
  };
  return cmocka_run_group_tests(tests, peer_setup, peer_teardown);
}
