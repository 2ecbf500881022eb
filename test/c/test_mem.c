/* SPDX-License-Identifier: Apache-2.0 */
/* Memory: checked sizes, copies, cleanup. */
#include "al_test.h"

static void
test_mem_overflow_gives_null(void **state) {
  (void) state;
  assert_null(al_calloc(SIZE_MAX / 2, 3));
  char *p = al_malloc(4);
  memcpy(p, "abc", 4);
  assert_null(al_reallocarray(p, SIZE_MAX / 2, 3));
  assert_string_equal(p, "abc");
  al_free(p);
}

static void
test_mem_zero_size_is_a_block(void **state) {
  (void) state;
  void *a = al_malloc(0), *b = al_malloc(0), *c = al_calloc(0, 8), *d = al_realloc(NULL, 0);
  assert_non_null(a);
  assert_non_null(b);
  assert_non_null(c);
  assert_non_null(d);
  assert_ptr_not_equal(a, b);
  al_free(a), al_free(b), al_free(c), al_free(d);
  al_free(NULL);
}

static void
test_mem_copies_are_terminated(void **state) {
  (void) state;
  assert_null(al_strdup(NULL));
  char *s = al_strdup("abc"), *u = al_asprintf("%s-%d", "x", 42), *e = al_memdup(NULL, 0);
  assert_string_equal(s, "abc");
  assert_string_equal(u, "x-42");
  assert_string_equal(e, "");
  char *m = al_memdup("a\0b", 3);
  assert_memory_equal(m, "a\0b\0", 4);
  al_free(s), al_free(u), al_free(m), al_free(e);
}

static int
scope(bool keep, char **kept, int *kept_fd) {
  AL_AUTO_FREE char *p = al_strdup("x");
  AL_AUTO_FD int fd = open("/dev/null", O_RDONLY);
  *kept_fd = fd;
  if (!p) return -ENOMEM;
  if (keep) *kept = al_steal(&p);
  errno = EAGAIN;
  return 0;
}

static int
scope_oom(void *data) {
  char *kept = NULL;
  int fd;
  (void) data;
  int rc = scope(true, &kept, &fd);
  al_free(kept);
  return rc;
}

static void
test_mem_scope_end_frees_and_keeps_errno(void **state) {
  char *kept = NULL;
  int fd;
  (void) state;
  assert_int_equal(scope(false, &kept, &fd), 0);
  assert_int_equal(errno, EAGAIN);
  assert_int_equal(fcntl(fd, F_GETFD), -1);
  assert_int_equal(scope(true, &kept, &fd), 0);
  assert_string_equal(kept, "x");
  al_free(kept);
  assert_int_equal(al_test_oom_each(scope_oom, NULL), 1);
}

static void
test_mem_wipe_leaves_zeros(void **state) {
  char secret[8] = "hunter2";
  (void) state;
  al_wipe(secret, 6);
  assert_memory_equal(secret, "\0\0\0\0\0\0" "2", 7);
  al_wipe(NULL, 0);
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_mem_overflow_gives_null),
    cmocka_unit_test(test_mem_zero_size_is_a_block),
    cmocka_unit_test(test_mem_copies_are_terminated),
    cmocka_unit_test(test_mem_wipe_leaves_zeros),
    cmocka_unit_test(test_mem_scope_end_frees_and_keeps_errno),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
