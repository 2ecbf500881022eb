/* SPDX-License-Identifier: Apache-2.0 */
/* Each call of the registry into its files fails once, in a whole engine on stand-ins: a lane's life, and a sweep.
 * Nothing crashes, what is told is clear, and the next sweep leaves nothing. AL_FAULTS=all: each, not one in some. */
#include "engine_test.h"
#include "fault_vfs.h"

static const struct {
  int code;
  const char *name;
} kinds[] = {{SQLITE_BUSY, "busy"}, {SQLITE_IOERR, "I/O error"}, {SQLITE_FULL, "full"}, {SQLITE_CORRUPT, "corrupt"}};

static al_val_t *
home_params(void) {
  return stage_map("home", stage.home, NULL);
}

static void
assert_clear(const char *what, const char *kind, long n, const al_err_t *err) {
  if (err->code == 0) return;
  if (err->code == AL_EINTERNAL || !err->msg[0] || !al_err_cure_text(err)[0])
    fail_msg("%s, %s at call %ld: %s: %s", what, kind, n, al_err_name(err->code), err->msg);
}

static void
life(const char *kind, long n) {
  al_err_t err = {0};
  assert_int_equal(stage_open(), 0);
  if (stage_create(&err) == 0) err = stage_ask("close", stage_map("reason", "the test", NULL))->err;
  assert_clear("a life", kind, n, &err);
}

/* A row whose owner is of another boot, with what a lane of it would have left. */
static void
dead_row(void) {
  char path[300];
  snprintf(path, sizeof path, "%s/lima/agent-lane-00000000-0000000a", stage.home);
  assert_true(mkdir(path, 0700) == 0 || errno == EEXIST);
  stage_sql("INSERT OR REPLACE INTO lanes (id, name, state, owner_pid, owner_start, owner_boot, owner_exe, owner_env,"
    " created_s, expires_s, expires_boot_ms, cpus, memory_mib, disk_gib, image, network, accel)"
    " VALUES ((SELECT id FROM lanes WHERE name = 'agent-lane-00000000-0000000a'), 'agent-lane-00000000-0000000a',"
    " 'ready', 1, '1', 'another', '', '', 1, 2, 3, 1, 1, 1, '', '', '')");
}

static void
sweep(const char *kind, long n) {
  assert_int_equal(stage_open(), 0);
  reply_t *r = stage_wait(stage_post("reap", home_params()));
  assert_clear("a sweep", kind, n, &r->err);
}

static int
set_aside(void) {
  int n = 0;
  DIR *d = opendir(stage.home);
  for (struct dirent *e; (e = readdir(d));) n += strncmp(e->d_name, "registry.db.damaged-", 20) == 0;
  closedir(d);
  return n;
}

/* The next sweep of the same engine, which alone can know that a row of its own has no lane any more. */
static void
heal(const char *kind, long n, int fds) {
  char when[96];
  fault_none();
  snprintf(when, sizeof when, "%s at call %ld", kind, n);
  reply_t *r = stage_wait(stage_post("reap", home_params()));
  if (r->err.code) fail_msg("%s: %s", when, r->err.msg);
  stage_close();
  stage_clean(when, fds);
  if (set_aside()) fail_msg("%s: a fault of the moment set the registry aside", when);
}

static void
each_call(const char *what, void (*prepare)(void), void (*scenario)(const char *kind, long n)) {
  const char *all = getenv("AL_FAULTS");
  stage_make();
  int fds = stage_fds();
  life("nothing", 0); /* a home as it is after the first lane */
  heal("nothing", 0, fds);
  for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
    if (prepare) prepare();
    fault_set(kinds[k].code, LONG_MAX / 2, 0);
    scenario("nothing", 0);
    long calls = atomic_load(&fault.calls), step = all ? 1 : calls / 12 + 1, hits = 0;
    fault_none();
    heal("nothing", 0, fds);
    for (long n = 0; n < calls; n += step) {
      if (prepare) prepare();
      fault_set(kinds[k].code, n, 0);
      scenario(kinds[k].name, n);
      hits += atomic_load(&fault.hit);
      heal(kinds[k].name, n, fds);
    }
    printf("%s, %s: %ld calls, %ld of them failed\n", what, kinds[k].name, calls, hits);
    assert_true(hits > 0);
  }
  stage_remove();
}

static void
test_faults_in_a_life(void **state) {
  (void) state;
  each_call("a life", NULL, life);
}

static void
test_faults_in_a_sweep(void **state) {
  (void) state;
  each_call("a sweep", dead_row, sweep);
}

/* For good, not for a moment. */
static void
test_faults_that_stay(void **state) {
  (void) state;
  static const int codes[] = {SQLITE_IOERR, SQLITE_FULL};
  stage_make();
  int fds = stage_fds();
  life("nothing", 0);
  heal("nothing", 0, fds);
  for (size_t i = 0; i < 2; i++) {
    for (long n = 0; n < 60; n += 20) {
      fault_set(codes[i], n, LONG_MAX / 2);
      life("one that stays", n);
      heal("one that stays", n, fds);
    }
  }
  stage_remove();
}

int
main(int argc, char **argv) {
  int code;
  if (stand_in(argc, argv, &code)) return code;
  if (!stage_start()) return 1;
  fault_install();
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_faults_in_a_life),
    cmocka_unit_test(test_faults_in_a_sweep),
    cmocka_unit_test(test_faults_that_stay),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
