/* SPDX-License-Identifier: Apache-2.0 */
/* The end of engines with their process: those with work stand still, those without can still be closed. */
#include "al.h"
#include "al_test.h"
#include "val.h"
#include <grp.h>

#define NOBODY 65534
#define LONG_MS 600000 /* whoever waits that long does not end in time for the test */

static atomic_int answers;

static void
on_event(void *data, al_event_t *event) {
  (void) data;
  al_event_free(event);
  atomic_fetch_add(&answers, 1);
}

static al_engine_t *
open_engine(const char *package_dir) {
  al_engine_opts_t opts = { .package_dir = package_dir, .on_event = on_event };
  al_engine_t *e = NULL;
  al_err_t err = { 0 };
  return al_engine_open(&opts, &e, &err) == 0 ? e : NULL;
}

static void
test_engine_end_idle_is_closed_after_it_too(void **state) {
  (void) state;
  al_engine_t *e = open_engine("/"), *other = open_engine("/");
  assert_non_null(e);
  assert_non_null(other);
  assert_int_equal(al_engines_leave(AL_TEST_PATIENCE_MS), 0);
  assert_int_equal(al_engine_close(e, AL_TEST_PATIENCE_MS), 0);
  assert_int_equal(al_engines_leave(AL_TEST_PATIENCE_MS), 0);
  assert_int_equal(al_engine_close(other, AL_TEST_PATIENCE_MS), 0);
  assert_int_equal(al_engines_leave(0), 0);
}

/* In a process of its own: leaves while a limactl is asked, which answers then; nobody hears of it. Ends by exit(). */
static void
leave_with_work(const char *dir, const char *asked) {
  if (geteuid() == 0 && (setgroups(0, NULL) || setresgid(NOBODY, NOBODY, NOBODY) || setresuid(NOBODY, NOBODY, NOBODY)))
    _exit(1);
  al_engine_t *e = open_engine(dir), *idle = open_engine(dir);
  al_val_t *params = al_val_map();
  if (!e || !idle || !params) _exit(2);
  if (al_val_set(params, "limactlPath", al_val_text(al_test_path(dir, "limactl"))) ||
    al_val_set(params, "home", al_val_text(al_test_path(dir, "h"))) || al_engine_post(e, 1, "doctor", params))
    _exit(3);
  for (int i = 0; access(asked, F_OK); i++) {
    if (i > AL_TEST_PATIENCE_MS / 5) _exit(4);
    usleep(5000);
  }
  if (al_engines_leave(AL_TEST_PATIENCE_MS)) _exit(5);
  (void) al_engine_close(e, LONG_MS);
  if (al_engine_close(idle, LONG_MS)) _exit(6);
  al_test_write(dir, "go", "");
  for (int i = 0; i < 75 && atomic_load(&answers) == 0; i++) usleep(20000);
  exit(atomic_load(&answers) ? 8 : 7);
}

static void
test_engine_end_with_work_stands_still(void **state) {
  (void) state;
  char dir[64], asked[128];
  al_test_dir(dir);
  if (geteuid() == 0) assert_int_equal(chown(dir, NOBODY, NOBODY), 0);
  snprintf(asked, sizeof asked, "%s/asked", dir);
  FILE *f = fopen(al_test_path(dir, "limactl"), "we");
  assert_non_null(f);
  fprintf(f, "#!/bin/sh\n: >%s\nuntil [ -e %s/go ]; do sleep 0.02; done\necho limactl version 2.2.0\n", asked, dir);
  assert_int_equal(fclose(f), 0);
  assert_int_equal(chmod(al_test_path(dir, "limactl"), 0755), 0);
  pid_t pid = al_test_fork();
  if (pid == 0) leave_with_work(dir, asked);
  int status = 0;
  for (int i = 0; waitpid(pid, &status, WNOHANG) == 0; i++) {
    if (i == AL_TEST_PATIENCE_MS * 2 / 5) kill(pid, SIGKILL);
    usleep(5000);
  }
  assert_int_equal(WIFSIGNALED(status) ? WTERMSIG(status) : 0, 0);
  assert_int_equal(WEXITSTATUS(status), 7);
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_engine_end_idle_is_closed_after_it_too),
    cmocka_unit_test(test_engine_end_with_work_stands_still),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
