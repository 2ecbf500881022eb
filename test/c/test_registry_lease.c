/* SPDX-License-Identifier: Apache-2.0 */
/* Leases: one holder at a time, free at once when its process is gone, and when its time is over. Keepers of rows. */
#include "registry_test.h"

static int
take(fixture_t *f, const al_ident_t *who, const char *env, int seconds) {
  al_registry_lease_take(&f->r, "sweep", who, env, seconds, answered, f);
  run(f);
  return f->status;
}

static int
renew(fixture_t *f, const al_ident_t *who, const char *env) {
  al_registry_lease_renew(&f->r, "sweep", who, env, 60, answered, f);
  run(f);
  return f->status;
}

static int
release(fixture_t *f, const al_ident_t *who, const char *env) {
  al_registry_lease_release(&f->r, "sweep", who, env, answered, f);
  run(f);
  return f->status;
}

static void
test_lease_has_one_holder(void **state) {
  fixture_t *f = *state;
  al_ident_t me, other;
  pid_t child = al_test_sleeper();
  assert_int_equal(al_plat_ident(getpid(), &me), 0);
  assert_int_equal(al_plat_ident(child, &other), 0);
  assert_int_equal(take(f, &me, "a", 60), 0);
  assert_int_equal(take(f, &me, "a", 60), 0);
  assert_int_equal(take(f, &other, "a", 60), 1);
  assert_int_equal(take(f, &me, "b", 60), 1); /* another engine of the same process */
  assert_int_equal(renew(f, &other, "a"), 1);
  assert_int_equal(release(f, &other, "a"), 0); /* what it does not have it cannot give back */
  assert_int_equal(renew(f, &me, "a"), 0);
  al_registry_lease_take(&f->r, "another", &other, "a", 60, answered, f);
  run(f);
  assert_int_equal(f->status, 0);
  assert_int_equal(release(f, &me, "a"), 0);
  assert_int_equal(renew(f, &me, "a"), 1);
  assert_int_equal(take(f, &other, "a", 60), 0);
  assert_int_equal(take(f, &me, "a", 60), 1);
  al_test_kill(child);
}

static void
test_lease_of_a_dead_process_is_free(void **state) {
  fixture_t *f = *state;
  al_ident_t me, other;
  pid_t child = al_test_sleeper();
  assert_int_equal(al_plat_ident(getpid(), &me), 0);
  assert_int_equal(al_plat_ident(child, &other), 0);
  assert_int_equal(take(f, &other, "a", 3600), 0);
  assert_int_equal(take(f, &me, "a", 60), 1);
  al_test_kill(child);
  assert_int_equal(take(f, &me, "a", 60), 0);
  /* The number alone is nobody: one that has it now, and one of before the last boot. */
  al_ident_t again = me;
  again.start++;
  assert_int_equal(release(f, &me, "a"), 0);
  assert_int_equal(take(f, &again, "a", 3600), 0);
  assert_int_equal(take(f, &me, "b", 60), 0);
  assert_int_equal(release(f, &me, "b"), 0);
  again = me;
  again.boot[0] ^= 1;
  assert_int_equal(take(f, &again, "a", 3600), 0);
  assert_int_equal(take(f, &me, "b", 60), 0);
}

static void
test_lease_ends_with_its_time(void **state) {
  fixture_t *f = *state;
  al_ident_t me;
  assert_int_equal(al_plat_ident(getpid(), &me), 0);
  assert_int_equal(take(f, &me, "a", 3600), 0);
  assert_int_equal(take(f, &me, "b", 60), 1);
  sql_run(f, "UPDATE leases SET until_boot_ms = until_boot_ms - 3601000");
  assert_int_equal(renew(f, &me, "a"), 1); /* it may be somebody else's by now */
  assert_int_equal(take(f, &me, "b", 60), 0);
  assert_int_equal(take(f, &me, "a", 60), 1);
}

static void
test_registry_keeper_is_of_the_open_row(void **state) {
  fixture_t *f = *state;
  al_lane_row_t row = a_row('a');
  int64_t ticket = 0;
  char holders[256];
  al_ident_t keeper = {.pid = 4711, .start = UINT64_MAX, .boot = "a boot", .exe = "/home/x/.agent-lane/bin/0/keeper"};
  assert_int_equal(admit(f, &row, 1, &ticket, holders), 0);
  al_registry_set_keeper(&f->r, row.id, &keeper, answered, f);
  run(f);
  assert_int_equal(f->status, 0);
  shut(f);
  reopen(f);
  al_registry_list(&f->r, false, listed, f);
  run(f);
  assert_int_equal(f->rows[0].keeper.pid, 4711);
  assert_true(f->rows[0].keeper.start == UINT64_MAX);
  assert_string_equal(f->rows[0].keeper.boot, "a boot");
  assert_string_equal(f->rows[0].keeper.exe, keeper.exe);
  assert_int_equal(f->rows[0].owner.pid, getpid());
  assert_int_equal(claim(f, row.id), 0);
  assert_int_equal(move(f, row.id, AL_LANE_CLOSING, AL_LANE_CLOSED), 0);
  al_registry_set_keeper(&f->r, row.id, &keeper, answered, f);
  run(f);
  assert_int_equal(f->status, AL_ENO_SUCH_LANE);
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(test_lease_has_one_holder, setup, teardown),
    cmocka_unit_test_setup_teardown(test_lease_of_a_dead_process_is_free, setup, teardown),
    cmocka_unit_test_setup_teardown(test_lease_ends_with_its_time, setup, teardown),
    cmocka_unit_test_setup_teardown(test_registry_keeper_is_of_the_open_row, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
