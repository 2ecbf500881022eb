/* SPDX-License-Identifier: Apache-2.0 */
/* The built warden beside a script in QEMU's place: whose end is QEMU's, what QEMU inherits, what of its log stays. */
#include "warden_run.h"

static void
test_warden_owner_and_keeper_gone_kill_qemu(void **state) {
  line_t l;
  char text[2048], pidfile[256];
  (void) state;
  for (int keeper_first = 0; keeper_first < 2; keeper_first++) {
    start_line(&l, "none", "kvm");
    unlink(in("seen"));
    run_t r = start(&l);
    until_seen();
    pid_t pid = qemu_pid();
    snprintf(text, sizeof text, "%ld\n", (long) pid);
    al_test_write(inst, "qemu.pid", text);
    snprintf(pidfile, sizeof pidfile, "%s/qemu.pid", inst);
    al_test_kill(keeper_first ? keeper : owner);
    usleep(500000);
    assert_int_equal(kill(pid, 0), 0); /* either is enough for it to live */
    uint64_t t = al_plat_mono_ms();
    al_test_kill(keeper_first ? owner : keeper);
    assert_int_equal(finish(&r, text, sizeof text), 128 + SIGKILL);
    assert_true(al_plat_mono_ms() - t < 2000);
    until_gone(pid);
    assert_non_null(strstr(text, "the owner is gone, and its keeper"));
    assert_int_equal(access(pidfile, F_OK), -1); /* nobody is left whom it could name */
    new_owner(0);
  }
}

static void
test_warden_starts_nothing_without_its_owner(void **state) {
  line_t l;
  (void) state;
  start_line(&l, "none", "kvm");
  al_test_kill(owner);
  expect_no_qemu(&l, "warden: not started: ", "the owner of this lane is gone", "an owner that was gone before");
  new_owner(1);
  start_line(&l, "none", "kvm");
  expect_no_qemu(&l, "warden: not started: ", "the owner of this lane is gone", "another process with the owner's pid");
}

/* A warden whose QEMU, of which *pid is told when that is wanted, is up. */
static run_t
running(pid_t *pid) {
  line_t l;
  start_line(&l, "none", "kvm");
  run_t r = start(&l);
  until_seen();
  pid_t qemu_is = qemu_pid();
  if (pid) *pid = qemu_is;
  return r;
}

/* Another process has the keeper's pid: that is as good as none. */
static void
test_warden_knows_its_keeper(void **state) {
  char text[2048];
  (void) state;
  snprintf(keeper_word, sizeof keeper_word, "%ld:%llu", (long) keeper, (unsigned long long) start_of(keeper) + 1);
  run_t r = running(NULL);
  al_test_kill(owner);
  assert_int_equal(finish(&r, text, sizeof text), 128 + SIGKILL);
  assert_non_null(strstr(text, "the owner is gone, and its keeper (status"));
}

static void
test_warden_waits_for_no_keeper_that_stands_still(void **state) {
  char text[2048];
  (void) state;
  run_t r = running(NULL);
  kill(keeper, SIGSTOP);
  al_test_kill(owner);
  usleep(9000000); /* beyond the 8 s that it has */
  assert_int_equal(finish(&r, text, sizeof text), 128 + SIGKILL);
  assert_non_null(strstr(text, "its keeper has not ended the lane"));
}

static void
test_warden_killed_ends_qemu(void **state) {
  char text[2048];
  (void) state;
  pid_t pid;
  run_t r = running(&pid);
  kill(r.pid, SIGKILL);
  assert_int_equal(finish(&r, text, sizeof text), 128 + SIGKILL);
  until_gone(pid);
}

static void
test_warden_hostagent_killed_ends_qemu(void **state) {
  line_t l;
  (void) state;
  start_line(&l, "none", "kvm");
  pid_t hostagent = fork();
  if (hostagent == 0) {
    start(&l);
    for (;;) pause();
  }
  until_seen();
  pid_t pid = qemu_pid();
  al_test_kill(hostagent);
  until_gone(pid);
  for (int i = 0; i < 500; i++, usleep(2000)) {
    char *log = slurp(logfile);
    bool said = log && strstr(log, "the hostagent is gone");
    al_free(log);
    if (said) return;
  }
  fail_msg("the log does not say why");
}

static void
test_warden_passes_signals_and_status(void **state) {
  line_t l;
  char text[2048];
  (void) state;
  snprintf(text, sizeof text, "trap 'exit 9' TERM; >%s/trapped; while :; do sleep 0.05; done", dir);
  write_qemu(text);
  run_t r = running(NULL);
  until_there("trapped");
  kill(r.pid, SIGTERM);
  assert_int_equal(finish(&r, text, sizeof text), 9);
  assert_non_null(strstr(text, "asked to stop"));
  write_qemu("exit 0");
  start_line(&l, "none", "kvm");
  assert_int_equal(run(&l, text, sizeof text), 0);
  char *log = slurp(logfile);
  assert_true(strncmp(log, "{\"warden\":", 10) == 0 && strstr(log, "\"argv\":[\"") &&
    strstr(log, "warden: ended: QEMU ended (status 0)"));
  assert_null(strstr(log, "asked to stop")); /* the log is of this start only */
  al_free(log);
}

static void
test_warden_qemu_inherits_nothing(void **state) {
  line_t l;
  char text[4096];
  (void) state;
  write_qemu("ls -l /proc/self/fd; env");
  start_line(&l, "none", "kvm");
  int secret = open("/etc/passwd", O_RDONLY); /* no O_CLOEXEC */
  setenv("AL_TEST_SECRET", "hunter2", 1);
  assert_int_equal(run(&l, text, sizeof text), 0);
  close(secret);
  unsetenv("AL_TEST_SECRET");
  if (strstr(text, "passwd") || strstr(text, "hunter2") || !strstr(text, "PATH=/usr/bin:/bin")) fail_msg("%s", text);
}

static void
test_warden_serial_log_is_bounded(void **state) {
  line_t l;
  char text[2048], path[256];
  struct stat now, old;
  (void) state;
  write_qemu(
    "for a in \"$@\"; do case $a in *char-serial,*logfile=*) f=${a##*logfile=};; esac; done; head -c 3000000 /dev/zero | tr '\\0' x >$f; echo last >$f");
  start_line(&l, "none", "kvm");
  assert_int_equal(run(&l, text, sizeof text), 0);
  snprintf(path, sizeof path, "%s/serial.log", inst);
  assert_int_equal(stat(path, &now), 0);
  char *log = slurp(path);
  assert_non_null(log);
  assert_string_equal(log + strlen(log) - 5, "last\n");
  al_free(log);
  snprintf(path, sizeof path, "%s/serial.log.1", inst);
  assert_int_equal(stat(path, &old), 0);
  assert_true(now.st_size <= 524288 && old.st_size <= 524288 && old.st_size > 500000);
  assert_int_equal(now.st_mode & 07777, 0600);
}

int
main(void) {
  if (!find_warden()) return 1;
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
  const struct CMUnitTest tests[] = {
    T(test_warden_owner_and_keeper_gone_kill_qemu),
    T(test_warden_starts_nothing_without_its_owner),
    T(test_warden_knows_its_keeper),
    T(test_warden_waits_for_no_keeper_that_stands_still),
    T(test_warden_killed_ends_qemu),
    T(test_warden_hostagent_killed_ends_qemu),
    T(test_warden_passes_signals_and_status),
    T(test_warden_qemu_inherits_nothing),
    T(test_warden_serial_log_is_bounded),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
