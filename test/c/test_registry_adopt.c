/* SPDX-License-Identifier: Apache-2.0 */
/* Lanes that the registry does not know become rows again by their sealed records, and nothing else does. */
#include "registry_test.h"
#include "seal.h"

static const char name[] = "agent-lane-00000000-0000000a";

static void
make_home(fixture_t *f, al_home_t *home) {
  memset(home, 0, sizeof *home);
  snprintf(home->lima, sizeof home->lima, "%.200s/lima", f->dir);
  snprintf(home->registry, sizeof home->registry, "%.200s", f->path);
  assert_int_equal(mkdir(home->lima, 0700), 0);
}

static al_seal_t
a_seal(const char *of, int64_t row) {
  al_seal_t s = {.row = row, .created_s = 1000, .expires_s = 4600, .expires_boot_ms = 1ll << 40, .cpus = 3,
    .memory_mib = 4096, .disk_gib = 20};
  snprintf(s.name, sizeof s.name, "%s", of);
  assert_int_equal(al_plat_ident(getpid(), &s.owner), 0);
  snprintf(s.owner_env, sizeof s.owner_env, "00112233445566778899aabbccddeeff");
  snprintf(s.image, sizeof s.image, "base-0123456789ab");
  snprintf(s.network, sizeof s.network, "none");
  snprintf(s.accel, sizeof s.accel, "kvm");
  return s;
}

static void
sealed_dir(const al_home_t *home, const char *called, const al_seal_t *seal) {
  const char *path = al_test_path(home->lima, called);
  assert_int_equal(mkdir(path, 0700), 0);
  int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (seal) assert_int_equal(al_seal_write(fd, seal), 0);
  close(fd);
}

static int
adopt(fixture_t *f, const al_home_t *home) {
  al_registry_adopt(&f->r, home, answered, f);
  run(f);
  if (f->status < 0) fail_msg("%s", f->err.msg);
  int n = f->status;
  al_registry_list(&f->r, false, listed, f);
  run(f);
  return n;
}

static void
test_adopt_takes_the_row_from_the_record(void **state) {
  fixture_t *f = *state;
  al_home_t home;
  al_seal_t seal = a_seal(name, 4711);
  make_home(f, &home);
  sealed_dir(&home, name, &seal);
  assert_int_equal(adopt(f, &home), 1);
  assert_int_equal(f->count, 1);
  const al_lane_row_t *row = &f->rows[0];
  assert_int_equal(row->id, 4711);
  assert_string_equal(row->name, name);
  assert_int_equal(row->owner.pid, getpid());
  assert_true(row->owner.start == seal.owner.start);
  assert_string_equal(row->owner.boot, seal.owner.boot);
  assert_string_equal(row->owner.exe, seal.owner.exe);
  assert_string_equal(row->owner_env, seal.owner_env);
  assert_int_equal(row->expires_s, 4600);
  assert_true(row->expires_boot_ms == 1ll << 40);
  assert_int_equal(row->cpus, 3);
  assert_string_equal(row->accel, "kvm");
  assert_int_equal(adopt(f, &home), 0); /* once */
  /* Its owner knows better what it is doing, and goes on. */
  assert_int_equal(move(f, 4711, AL_LANE_BOOTING, AL_LANE_CONNECTING), 0);
  assert_int_equal(move(f, 4711, AL_LANE_BOOTING, AL_LANE_CONNECTING), AL_EINTERNAL);
  assert_int_equal(move(f, 4711, AL_LANE_CONNECTING, AL_LANE_READY), 0);
  assert_int_equal(claim(f, 4711), 0);
  assert_int_equal(move(f, 4711, AL_LANE_CLOSING, AL_LANE_CLOSED), 0);
}

static void
test_adopt_takes_nothing_that_is_not_sealed(void **state) {
  fixture_t *f = *state;
  al_home_t home;
  char path[100], copy[700], b[] = "agent-lane-00000000-0000000b", c[] = "agent-lane-00000000-0000000c";
  al_seal_t seal = a_seal(name, 1), other = a_seal(c, 2), nobody = a_seal("agent-lane-00000000-0000000d", 3);
  nobody.owner.pid = 0;
  make_home(f, &home);
  sealed_dir(&home, b, NULL);     /* without a record */
  sealed_dir(&home, name, &other); /* another one's */
  sealed_dir(&home, "agent-lane-00000000-0000000d", &nobody); /* of a version that did not say whose */
  sealed_dir(&home, "lookalike", &seal);
  sealed_dir(&home, "agent-lane-00000000-0000000a-2", &seal);
  sealed_dir(&home, "_tmp.agent-lane-00000000-0000000a", &seal);
  snprintf(path, sizeof path, "%s/elsewhere", f->dir);
  assert_int_equal(mkdir(path, 0700), 0);
  int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  assert_int_equal(al_seal_write(fd, &other), 0);
  close(fd);
  assert_int_equal(symlink(path, al_test_path(home.lima, c)), 0); /* a link to one that is */
  assert_int_equal(adopt(f, &home), 0);
  assert_int_equal(f->count, 0);
  /* A copy of a sealed directory is another directory. */
  assert_int_equal(unlink(al_test_path(home.lima, c)), 0);
  snprintf(copy, sizeof copy, "cp -r %s %s/%s", path, home.lima, c);
  assert_int_equal(system(copy), 0);
  assert_int_equal(adopt(f, &home), 0);
}

static void
test_adopt_never_takes_a_number_of_another(void **state) {
  fixture_t *f = *state;
  al_home_t home;
  al_lane_row_t row = a_row('f');
  int64_t ticket = 0;
  char holders[256];
  make_home(f, &home);
  assert_int_equal(admit(f, &row, 2, &ticket, holders), 0);
  al_seal_t seal = a_seal(name, row.id);
  sealed_dir(&home, name, &seal);
  assert_int_equal(adopt(f, &home), 1);
  assert_int_equal(f->count, 2);
  assert_int_not_equal(f->rows[0].id, f->rows[1].id);
}

/* A row that says closed, with its directory still there: it is to be ended again, not forgotten. */
static void
test_adopt_opens_a_row_that_was_closed_too_early(void **state) {
  fixture_t *f = *state;
  al_home_t home;
  al_lane_row_t row = a_row('a');
  int64_t ticket = 0;
  char holders[256];
  make_home(f, &home);
  assert_int_equal(admit(f, &row, 2, &ticket, holders), 0);
  assert_int_equal(claim(f, row.id), 0);
  assert_int_equal(move(f, row.id, AL_LANE_CLOSING, AL_LANE_CLOSED), 0);
  al_seal_t seal = a_seal(name, row.id);
  sealed_dir(&home, name, &seal);
  assert_int_equal(adopt(f, &home), 1);
  assert_int_equal(f->count, 1);
  assert_int_equal(f->rows[0].id, row.id);
  assert_int_equal(f->rows[0].state, AL_LANE_CLOSING);
}

/* Damage, and the lanes are there again: the living keep their numbers. */
static void
test_adopt_fills_a_registry_that_is_made_anew(void **state) {
  fixture_t *f = *state;
  al_home_t home;
  al_lane_row_t row = a_row('a');
  int64_t ticket = 0;
  char holders[256], notice[AL_DB_NOTICE_MAX];
  make_home(f, &home);
  assert_int_equal(admit(f, &row, 2, &ticket, holders), 0);
  al_seal_t seal = a_seal(name, row.id);
  sealed_dir(&home, name, &seal);
  sql_int(f, "PRAGMA wal_checkpoint(TRUNCATE)");
  assert_int_equal(truncate(f->path, 3000), 0);
  assert_int_equal(move(f, row.id, AL_LANE_REGISTERED, AL_LANE_CREATING), 0);
  assert_true(al_registry_notice(&f->r, notice));
  assert_non_null(strstr(notice, "gave 1"));
  al_registry_list(&f->r, false, listed, f);
  run(f);
  assert_int_equal(f->count, 1);
  assert_int_equal(f->rows[0].id, row.id);
  assert_int_equal(f->rows[0].state, AL_LANE_CREATING);
  /* The same when it is only gone. */
  shut(f);
  assert_int_equal(unlink(f->path), 0);
  reopen(f);
  al_registry_list(&f->r, false, listed, f);
  run(f);
  assert_int_equal(f->count, 1);
  assert_int_equal(f->rows[0].id, row.id);
}

int
main(void) {
#define T(name) cmocka_unit_test_setup_teardown(test_adopt_##name, setup, teardown)
  const struct CMUnitTest tests[] = {
    T(takes_the_row_from_the_record),
    T(takes_nothing_that_is_not_sealed),
    T(never_takes_a_number_of_another),
    T(opens_a_row_that_was_closed_too_early),
    T(fills_a_registry_that_is_made_anew),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
