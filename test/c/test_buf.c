/* SPDX-License-Identifier: Apache-2.0 */
/* Buffer: the cap and its neighbours, out of memory, dropping. */
#include "al_test.h"
#include "buf.h"

static void
test_buf_cap_holds(void **state) {
  al_buf_t b;
  (void) state;
  al_buf_init(&b, 10);
  assert_int_equal(al_buf_append(&b, "123456789", 9), 0);
  assert_int_equal(al_buf_append(&b, "ab", 2), -ENOBUFS);
  assert_int_equal(b.len, 9);
  assert_int_equal(al_buf_append(&b, "a", 1), 0);
  assert_string_equal((char *) b.data, "123456789a");
  assert_int_equal(al_buf_append(&b, "b", 1), -ENOBUFS);
  assert_int_equal(al_buf_printf(&b, "b"), -ENOBUFS);
  assert_int_equal(al_buf_append(&b, "", 0), 0);
  assert_int_equal(al_buf_append(&b, "", SIZE_MAX), -ENOBUFS);
  al_buf_deinit(&b);
  assert_int_equal(b.cap, 10);
  assert_int_equal(al_buf_append(&b, "12345678901", 11), -ENOBUFS);
  assert_null(b.data);
}

static void
test_buf_grows_and_stays_terminated(void **state) {
  al_buf_t b;
  (void) state;
  al_buf_init(&b, 0);
  assert_null(b.data);
  for (int i = 0; i < 10000; i++) assert_int_equal(al_buf_printf(&b, "%d,", i), 0);
  assert_int_equal(b.data[b.len], 0);
  assert_int_equal(strlen((char *) b.data), b.len);
  assert_memory_equal(b.data, "0,1,2,3,", 8);
  assert_int_equal(al_buf_append(&b, "", SIZE_MAX), -ENOMEM);
  al_buf_deinit(&b);
}

static void
test_buf_drop_moves(void **state) {
  al_buf_t b;
  (void) state;
  al_buf_init(&b, 0);
  al_buf_drop(&b, 0);
  al_buf_append(&b, "abcdef", 6);
  al_buf_drop(&b, 2);
  assert_string_equal((char *) b.data, "cdef");
  al_buf_drop(&b, 4);
  assert_int_equal(b.len, 0);
  assert_string_equal((char *) b.data, "");
  al_buf_deinit(&b);
}

static int
scenario(void *data) {
  al_buf_t b;
  int rc = 0;
  (void) data;
  al_buf_init(&b, 0);
  for (int i = 0; !rc && i < 40; i++) {
    size_t before = b.len;
    rc = i % 2 ? al_buf_append(&b, "0123456789", 10) : al_buf_printf(&b, "%05d", i);
    if (rc) assert_int_equal(b.len, before);
  }
  al_buf_deinit(&b);
  return rc;
}

static void
test_buf_out_of_memory_adds_nothing(void **state) {
  (void) state;
  assert_true(al_test_oom_each(scenario, NULL) >= 3);
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_buf_cap_holds),
    cmocka_unit_test(test_buf_grows_and_stays_terminated),
    cmocka_unit_test(test_buf_drop_moves),
    cmocka_unit_test(test_buf_out_of_memory_adds_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
