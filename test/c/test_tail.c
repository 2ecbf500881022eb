/* SPDX-License-Identifier: Apache-2.0 */
/* Tail: the last bytes whatever the chunks, the count of the others. */
#include "al_test.h"
#include "tail.h"

static void
expect(const al_tail_t *t, const char *want, uint64_t dropped) {
  size_t len;
  char *got = al_tail_copy(t, &len);
  assert_non_null(got);
  assert_int_equal(len, strlen(want));
  assert_string_equal(got, want);
  assert_int_equal(t->dropped, dropped);
  al_free(got);
}

static void
test_tail_boundaries(void **state) {
  (void) state;
  for (size_t n = 0; n <= 3; n++) {
    al_tail_t t;
    al_tail_init(&t, 4);
    expect(&t, "", 0);
    assert_int_equal(al_tail_append(&t, "abcdef", 3 + n), 0); /* cap-1, cap, cap+1, cap+2 */
    expect(&t, n == 0 ? "abc" : n == 1 ? "abcd" : n == 2 ? "bcde" : "cdef", n > 1 ? n - 1 : 0);
    al_tail_deinit(&t);
  }
}

static void
test_tail_equals_the_end_for_all_chunkings(void **state) {
  char all[64];
  (void) state;
  for (size_t i = 0; i < sizeof all; i++) all[i] = (char) ('0' + i);
  for (size_t cap = 1; cap <= 9; cap++)
    for (size_t chunk = 1; chunk <= 20; chunk++) {
      al_tail_t t;
      char want[16] = {0};
      al_tail_init(&t, cap);
      for (size_t i = 0; i < sizeof all; i += chunk)
        al_tail_append(&t, all + i, chunk < sizeof all - i ? chunk : sizeof all - i);
      memcpy(want, all + sizeof all - cap, cap);
      expect(&t, want, sizeof all - cap);
      al_tail_deinit(&t);
    }
}

static void
test_tail_copy_starts_at_a_sequence(void **state) {
  al_tail_t t;
  (void) state;
  al_tail_init(&t, 4);
  al_tail_append(&t, "x\xf0\x9f\x98\x80z", 6); /* keeps the last three bytes of the smiley and z */
  expect(&t, "z", 2);
  al_tail_deinit(&t);
  al_tail_init(&t, 4);
  al_tail_append(&t, "\x80\x80zz", 4); /* nothing dropped: nothing skipped */
  expect(&t, "\x80\x80zz", 0);
  al_tail_append(&t, "\x80\x80\x80\x80\x80", 5); /* no UTF-8: at most three are skipped */
  expect(&t, "\x80", 5);
  al_tail_deinit(&t);
}

static void
test_tail_cap_zero_only_counts(void **state) {
  al_tail_t t;
  (void) state;
  al_tail_init(&t, 0);
  assert_int_equal(al_tail_append(&t, "abc", 3), 0);
  expect(&t, "", 3);
  al_tail_deinit(&t);
}

static int
scenario(void *data) {
  al_tail_t t;
  char *copy = NULL;
  (void) data;
  al_tail_init(&t, 8);
  int rc = al_tail_append(&t, "abc", 3);
  if (!rc && !(copy = al_tail_copy(&t, NULL))) rc = -ENOMEM;
  al_free(copy);
  al_tail_deinit(&t);
  return rc;
}

static void
test_tail_out_of_memory_is_told(void **state) {
  (void) state;
  assert_int_equal(al_test_oom_each(scenario, NULL), 2);
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_tail_boundaries),
    cmocka_unit_test(test_tail_equals_the_end_for_all_chunkings),
    cmocka_unit_test(test_tail_copy_starts_at_a_sequence),
    cmocka_unit_test(test_tail_cap_zero_only_counts),
    cmocka_unit_test(test_tail_out_of_memory_is_told),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
