/* SPDX-License-Identifier: Apache-2.0 */
/* Registry: admission in order, compare-and-set of states, closing, and rows that survive reopening. */
#include "registry_test.h"

static void
test_registry_row_survives_reopening_unchanged(void **state) {
  fixture_t *f = *state;
  al_lane_row_t row = a_row('a');
  int64_t ticket = 0;
  char holders[256];
  assert_int_equal(admit(f, &row, 1, &ticket, holders), 0);
  assert_true(row.id > 0);
  shut(f);
  reopen(f);
  al_registry_list(&f->r, false, listed, f);
  run(f);
  assert_int_equal(f->count, 1);
  const al_lane_row_t *got = &f->rows[0];
  assert_int_equal(got->id, row.id);
  assert_string_equal(got->name, row.name);
  assert_int_equal(got->state, AL_LANE_REGISTERED);
  assert_int_equal(got->owner.pid, row.owner.pid);
  assert_true(got->owner.start == row.owner.start);
  assert_string_equal(got->owner.boot, row.owner.boot);
  assert_string_equal(got->owner.exe, row.owner.exe);
  assert_true(got->expires_boot_ms == row.expires_boot_ms);
  assert_int_equal(got->memory_mib, 8192);
  assert_string_equal(got->image, row.image);
  assert_string_equal(got->network, "none");
  struct stat st;
  assert_int_equal(stat(f->path, &st), 0);
  assert_int_equal(st.st_mode & 0777, 0600);
}

static void
test_registry_admission_keeps_limit_and_order(void **state) {
  fixture_t *f = *state;
  al_lane_row_t a = a_row('a'), b = a_row('b'), c = a_row('c');
  int64_t ta = 0, tb = 0, tc = 0;
  char holders[256];
  assert_int_equal(admit(f, &a, 1, &ta, holders), 0);
  assert_int_equal(admit(f, &b, 1, &tb, holders), 1);
  assert_non_null(strstr(holders, a.name));
  assert_int_equal(admit(f, &c, 1, &tc, holders), 1);
  /* One place becomes free: the younger waiter does not overtake, not even with a larger number of its own. */
  assert_int_equal(claim(f, a.id), 0);
  assert_int_equal(move(f, a.id, AL_LANE_CLOSING, AL_LANE_CLOSED), 0);
  assert_int_equal(admit(f, &c, 8, &tc, holders), 1);
  assert_int_equal(admit(f, &b, 1, &tb, holders), 0);
  assert_int_equal(admit(f, &c, 2, &tc, holders), 0);
  al_registry_list(&f->r, false, listed, f);
  run(f);
  assert_int_equal(f->count, 2);
}

static void
test_registry_waiter_that_leaves_or_dies_frees_its_turn(void **state) {
  fixture_t *f = *state;
  al_lane_row_t a = a_row('a'), gone = a_row('b'), left = a_row('c'), d = a_row('d');
  int64_t ta = 0, tg = 0, tl = 0, td = 0;
  char holders[256];
  pid_t child = al_test_fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  assert_int_equal(al_plat_ident(child, &gone.owner), 0);
  assert_int_equal(admit(f, &a, 1, &ta, holders), 0);
  assert_int_equal(admit(f, &gone, 1, &tg, holders), 1);
  assert_int_equal(admit(f, &left, 1, &tl, holders), 1);
  assert_int_equal(admit(f, &d, 1, &td, holders), 1);
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  al_registry_leave(&f->r, tl);
  assert_int_equal(admit(f, &d, 2, &td, holders), 0);
}

/* As if that many seconds had passed since a waiter last asked. */
static void
age_waiters(fixture_t *f, int seconds) {
  char text[96];
  snprintf(text, sizeof text, "UPDATE waiters SET since_s = since_s - %d", seconds);
  sql_run(f, text);
}

static void
test_registry_waiter_that_asks_no_more_loses_its_turn(void **state) {
  fixture_t *f = *state;
  al_lane_row_t a = a_row('a'), b = a_row('b'), c = a_row('c');
  int64_t ta = 0, tb = 0, tc = 0;
  char holders[256];
  assert_int_equal(admit(f, &a, 1, &ta, holders), 0);
  assert_int_equal(admit(f, &b, 1, &tb, holders), 1);
  assert_int_equal(admit(f, &c, 8, &tc, holders), 1);
  age_waiters(f, 50);
  assert_int_equal(admit(f, &b, 1, &tb, holders), 1); /* it asks, so it is as new */
  age_waiters(f, 50);
  assert_int_equal(admit(f, &c, 8, &tc, holders), 1);
  age_waiters(f, 20);
  assert_int_equal(admit(f, &c, 8, &tc, holders), 0);
  assert_int_equal(admit(f, &b, 8, &tb, holders), 0); /* one that comes back after all is not lost */
}

static void
test_registry_tells_which_directories_have_no_row(void **state) {
  fixture_t *f = *state;
  al_home_t home = { 0 };
  al_lane_row_t open = a_row('a'), over = a_row('b');
  int64_t ticket = 0, second = 0;
  al_err_t err = { 0 };
  al_val_t *strays;
  char holders[256], path[300];
  snprintf(home.lima, sizeof home.lima, "%s/lima", f->dir);
  snprintf(home.registry, sizeof home.registry, "%s", f->path);
  assert_int_equal(mkdir(home.lima, 0700), 0);
  for (const char *last = "abc"; *last; last++) {
    snprintf(path, sizeof path, "%s/agent-lane-00000000-0000000%c", home.lima, *last);
    assert_int_equal(mkdir(path, 0700), 0);
  }
  snprintf(path, sizeof path, "%s/_config", home.lima);
  assert_int_equal(mkdir(path, 0700), 0);
  assert_int_equal(admit(f, &open, 2, &ticket, holders), 0);
  assert_int_equal(admit(f, &over, 2, &second, holders), 0);
  assert_int_equal(claim(f, over.id), 0);
  assert_int_equal(move(f, over.id, AL_LANE_CLOSING, AL_LANE_CLOSED), 0);
  for (int alone = 0; alone < 2; alone++) { /* beside a connection, and when none is open */
    assert_int_equal(al_registry_strays(&home, &strays, &err), 0);
    assert_int_equal(strays->len, 2);
    for (size_t i = 0; i < 2; i++) assert_null(strstr(strays->items[i]->text, "0000a"));
    al_val_free(strays);
    if (alone == 0) shut(f);
  }
  reopen(f);
}

static void
test_registry_move_is_compare_and_set(void **state) {
  fixture_t *f = *state;
  al_lane_row_t row = a_row('a');
  int64_t ticket = 0;
  char holders[256];
  assert_int_equal(admit(f, &row, 1, &ticket, holders), 0);
  assert_int_equal(move(f, row.id, AL_LANE_REGISTERED, AL_LANE_CREATING), 0);
  assert_int_equal(move(f, row.id, AL_LANE_REGISTERED, AL_LANE_CREATING), AL_EINTERNAL);
  assert_non_null(strstr(f->err.msg, "creating"));
  assert_int_equal(move(f, row.id + 1, AL_LANE_REGISTERED, AL_LANE_CREATING), AL_ENO_SUCH_LANE);
  assert_int_equal(claim(f, row.id), 0);
  /* Another process did that: it is no bug of ours, and the owner's next step says so. */
  assert_int_equal(move(f, row.id, AL_LANE_CREATING, AL_LANE_BOOTING), AL_ELANE_CLOSED);
  assert_int_equal(claim(f, row.id), 0);
  assert_int_equal(move(f, row.id, AL_LANE_CLOSING, AL_LANE_STUCK), 0);
  assert_int_equal(claim(f, row.id), 0);
  assert_int_equal(move(f, row.id, AL_LANE_CLOSING, AL_LANE_CLOSED), 0);
  assert_int_equal(claim(f, row.id), AL_ELANE_CLOSED);
  al_registry_list(&f->r, false, listed, f);
  run(f);
  assert_int_equal(f->count, 0);
  al_registry_list(&f->r, true, listed, f);
  run(f);
  assert_int_equal(f->count, 1);
  assert_string_equal(f->rows[0].reason, "because");
}

static void
test_registry_closes_many_rows_by_way_of_closing(void **state) {
  fixture_t *f = *state;
  al_lane_row_t rows[4] = {a_row('a'), a_row('b'), a_row('c'), a_row('d')};
  char holders[256];
  for (int i = 0; i < 4; i++) {
    int64_t ticket = 0;
    assert_int_equal(admit(f, &rows[i], 4, &ticket, holders), 0);
    if (i > 0) assert_int_equal(claim(f, rows[i].id), 0);
  }
  assert_int_equal(move(f, rows[1].id, AL_LANE_CLOSING, AL_LANE_CLOSED), 0);
  assert_int_equal(move(f, rows[2].id, AL_LANE_CLOSING, AL_LANE_STUCK), 0);
  al_registry_end_t ends[] = {{rows[0].id, "one"}, {rows[1].id, "two"}, {rows[2].id, "three"}, {1, "none"}};
  al_registry_close_gone(&f->r, ends, 4, answered, f);
  run(f);
  assert_int_equal(f->status, 0);
  assert_int_equal(sql_int(f, "SELECT count(*) FROM lanes WHERE state <> 'closed'"), 1); /* who was not named */
  assert_int_equal(sql_int(f, "SELECT count(*) FROM history WHERE to_state = 'closed'"), 3);
  assert_int_equal(sql_int(f, "SELECT count(*) FROM history WHERE to_state = 'closed' AND from_state <> 'closing'"), 0);
  assert_int_equal(sql_int(f, "SELECT count(*) FROM lanes WHERE reason IN ('one', 'because', 'three')"), 3);
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(test_registry_row_survives_reopening_unchanged, setup, teardown),
    cmocka_unit_test_setup_teardown(test_registry_admission_keeps_limit_and_order, setup, teardown),
    cmocka_unit_test_setup_teardown(test_registry_waiter_that_leaves_or_dies_frees_its_turn, setup, teardown),
    cmocka_unit_test_setup_teardown(test_registry_waiter_that_asks_no_more_loses_its_turn, setup, teardown),
    cmocka_unit_test_setup_teardown(test_registry_tells_which_directories_have_no_row, setup, teardown),
    cmocka_unit_test_setup_teardown(test_registry_move_is_compare_and_set, setup, teardown),
    cmocka_unit_test_setup_teardown(test_registry_closes_many_rows_by_way_of_closing, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
