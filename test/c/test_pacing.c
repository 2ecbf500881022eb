/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the pacing that both ends of the channel share. */
#include "al_test.h"
#include "pacing.h"

#define MS 1000000u

static void
test_pacing_grows_while_fast_and_stops_at_the_largest(void **state) {
  (void) state;
  al_pacing_t p = {.most = AL_PACING_DEFAULT, .alone = AL_PACING_ALONE_GUEST, .slow_ns = AL_PACING_SLOW_NS};
  uint64_t total = 0, now = MS;
  for (int i = 0; i < 40; i++) {
    al_pacing_full(&p, total += p.most, now);
    al_pacing_acked(&p, total, now += MS);
  }
  assert_int_equal(p.most, AL_PACING_MAX);
}

static void
test_pacing_shrinks_while_slow_and_stops_above_what_stays_unacknowledged(void **state) {
  (void) state;
  al_pacing_t p = {.most = AL_PACING_MAX, .alone = AL_PACING_ALONE_GUEST, .slow_ns = AL_PACING_SLOW_NS};
  uint64_t total = 0, now = MS;
  for (int i = 0; i < 40; i++) {
    al_pacing_full(&p, total += p.most, now);
    al_pacing_acked(&p, total, now += 9 * MS);
  }
  assert_int_equal(p.most, AL_PACING_LEAST);
  assert_true(p.most > AL_ACK_EVERY);
}

/* A large one must not take as many steps down as it took up: each of them is a ping that waits. */
static void
test_pacing_takes_large_steps_where_much_is_on_its_way(void **state) {
  (void) state;
  al_pacing_t p = {.most = AL_PACING_MAX, .alone = AL_PACING_ALONE_GUEST, .slow_ns = AL_PACING_SLOW_NS};
  uint64_t total = 0, now = MS;
  for (int i = 0; i < 20; i++) {
    al_pacing_full(&p, total += p.most, now);
    al_pacing_acked(&p, total, now += 9 * MS);
  }
  assert_true(p.most < AL_PACING_MAX / 4);
}

static void
test_pacing_counts_from_the_first_full_to_nearly_all(void **state) {
  (void) state;
  al_pacing_t p = {.most = AL_PACING_DEFAULT, .alone = AL_PACING_ALONE_GUEST, .slow_ns = AL_PACING_SLOW_NS};
  al_pacing_acked(&p, 1 << 20, 5 * MS); /* never full: nothing is learnt */
  assert_int_equal(p.most, AL_PACING_DEFAULT);
  al_pacing_full(&p, 1 << 21, 10 * MS);
  al_pacing_full(&p, 1 << 22, 18 * MS); /* still full: not a new beginning */
  al_pacing_acked(&p, (1 << 21) - AL_ACK_EVERY - 1, 19 * MS);
  assert_int_equal(p.most, AL_PACING_DEFAULT);
  al_pacing_acked(&p, (1 << 21) - AL_ACK_EVERY, 19 * MS); /* the rest need not be acknowledged: 9 ms */
  assert_true(p.most < AL_PACING_DEFAULT);
  uint32_t less = p.most;
  al_pacing_full(&p, 1 << 23, 30 * MS);
  al_pacing_acked(&p, 1 << 23, 34 * MS); /* neither fast nor slow */
  assert_int_equal(p.most, less);
}

static void
test_pacing_allows_more_to_one_that_has_been_alone(void **state) {
  (void) state;
  al_pacing_t p = {.most = AL_PACING_LEAST, .alone = AL_PACING_ALONE_GUEST, .slow_ns = AL_PACING_SLOW_NS};
  assert_int_equal(al_pacing_most(&p, 500 * MS), AL_PACING_LEAST);
  al_pacing_sent(&p, 1, 500 * MS);
  al_pacing_sent(&p, 1, 590 * MS);
  assert_int_equal(al_pacing_most(&p, 599 * MS), AL_PACING_LEAST);
  assert_int_equal(al_pacing_most(&p, 600 * MS), AL_PACING_ALONE_GUEST);
  al_pacing_sent(&p, 2, 600 * MS);
  assert_int_equal(al_pacing_most(&p, 600 * MS), AL_PACING_LEAST);
  al_pacing_sent(&p, 1, 610 * MS);
  assert_int_equal(al_pacing_most(&p, 700 * MS), AL_PACING_LEAST);
  assert_int_equal(al_pacing_most(&p, 710 * MS), AL_PACING_ALONE_GUEST);
  p.most = AL_PACING_MAX;
  assert_int_equal(al_pacing_most(&p, 710 * MS), AL_PACING_MAX);
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_pacing_grows_while_fast_and_stops_at_the_largest),
    cmocka_unit_test(test_pacing_shrinks_while_slow_and_stops_above_what_stays_unacknowledged),
    cmocka_unit_test(test_pacing_takes_large_steps_where_much_is_on_its_way),
    cmocka_unit_test(test_pacing_counts_from_the_first_full_to_nearly_all),
    cmocka_unit_test(test_pacing_allows_more_to_one_that_has_been_alone),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
