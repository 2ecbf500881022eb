/* SPDX-License-Identifier: Apache-2.0 */
/* Run manifests that are kept: for how long, what of a lane that was lost, and the list. */
#include "run_fixture.h"
#include "run_int.h"

static void
age(const char *name, int days) {
  char file[AL_RUN_PATH_MAX];
  run_file(&home, name, file);
  time_t then = time(NULL) - (time_t) days * 86400 - 5;
  struct timespec times[2] = {{.tv_sec = then}, {.tv_sec = then}};
  assert_int_equal(utimensat(AT_FDCWD, file, times, 0), 0);
}

static bool
is_there(const char *name) {
  char file[AL_RUN_PATH_MAX];
  struct stat st;
  run_file(&home, name, file);
  return lstat(file, &st) == 0;
}

static void
prune(void) {
  unlink(al_test_path(home.runs, ".pruned"));
  al_run_prune(&home);
}

static void
test_run_is_kept_for_its_days(void **state) {
  (void) state;
  assert_int_equal(run_begin(&home, NAME, READY("2")), 0);
  assert_int_equal(run_begin(&home, OTHER, READY("0")), 0);
  al_test_write(home.runs, "somebody-elses", "x");
  age(NAME, 1000);
  age(OTHER, 1000);
  prune();
  assert_true(is_there(NAME) && is_there(OTHER)); /* their lanes are open */
  assert_int_equal(run_end(&home, NAME), 0);
  age(NAME, 1);
  al_run_prune(&home); /* not again within the hour */
  prune();
  assert_true(is_there(NAME));
  age(NAME, 2);
  al_run_prune(&home);
  assert_true(is_there(NAME));
  assert_int_equal(run_end(&home, OTHER), 0);
  prune();
  assert_false(is_there(NAME));
  assert_false(is_there(OTHER));
  assert_int_equal(access(al_test_path(home.runs, "somebody-elses"), F_OK), 0);
}

static size_t
open_names(void) {
  al_val_t *names = al_val_list();
  assert_int_equal(al_run_open_names(&home, names), 0);
  size_t n = names->len;
  al_val_free(names);
  return n;
}

static void
test_run_of_a_lost_lane_gets_its_end(void **state) {
  (void) state;
  assert_int_equal(run_begin(&home, NAME, READY("30")), 0);
  assert_int_equal(run_begin(&home, OTHER, READY("30")), 0);
  assert_int_equal(run_end(&home, OTHER), 0);
  al_test_write(home.runs, THIRD ".jsonl", "{\"n\":0,");
  assert_int_equal(open_names(), 2);
  assert_true(al_run_close_lost(&home, NAME));
  assert_false(al_run_close_lost(&home, OTHER)); /* nothing to do */
  assert_true(al_run_close_lost(&home, THIRD));
  assert_false(is_there(THIRD));
  assert_int_equal(open_names(), 0);
  al_run_check_t c = run_check_file(&home, NAME);
  assert_true(c.ended && c.line == 0);
}

static const char *
text_at(const al_val_t *map, const char *key) {
  const al_val_t *v = al_val_get(map, key);
  return v ? v->text : "";
}

static void
test_run_list_is_newest_first(void **state) {
  (void) state;
  al_val_t *list = NULL;
  assert_int_equal(run_begin(&home, NAME, READY("30")), 0);
  assert_int_equal(run_begin(&home, OTHER, READY("30")), 0);
  assert_int_equal(run_end(&home, NAME), 0);
  al_test_write(home.runs, "agent-lane-00000000-00000000.jsonl", "nonsense\n");
  assert_int_equal(al_run_list(&home, 10, &list, NULL), 0);
  assert_int_equal(list->len, 3);
  assert_string_equal(text_at(list->items[0], "name"), OTHER);
  assert_string_equal(text_at(list->items[0], "state"), "open");
  assert_string_equal(text_at(list->items[1], "name"), NAME);
  assert_string_equal(text_at(list->items[1], "state"), "ended");
  assert_string_equal(text_at(list->items[1], "by"), "owner");
  assert_string_equal(text_at(list->items[1], "image"), "base-1");
  al_val_free(list);
  assert_int_equal(al_run_list(&home, 1, &list, NULL), 0);
  assert_int_equal(list->len, 1);
  al_val_free(list);
}

int
main(int argc, char **argv) {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
  const struct CMUnitTest tests[] = {
    T(test_run_is_kept_for_its_days),
    T(test_run_of_a_lost_lane_gets_its_end),
    T(test_run_list_is_newest_first),
  };
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
