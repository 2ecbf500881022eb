/* SPDX-License-Identifier: Apache-2.0 */
/* Doctor: scripts in the programs' places, good, old, silent, hanging and unsafe ones. */
#include "al_test.h"
#include "doctor.h"
#include "image_make.h"
#include <sys/utsname.h>

static char dir[64], old_path[4096];
static bool linux_host;

static const char *
in(const char *name) {
  return al_test_path(dir, name);
}

static void
program(const char *name, const char *body) {
  char text[512];
  snprintf(text, sizeof text, "#!/bin/sh\n%s\n", body);
  al_test_write(in("bin"), name, text);
  char path[600];
  snprintf(path, sizeof path, "%s/%s", in("bin"), name);
  assert_int_equal(chmod(path, 0755), 0);
}

static const char *
emulator(void) {
  struct utsname u;
  uname(&u);
  return strcmp(u.machine, "aarch64") == 0 ? "qemu-system-aarch64" : "qemu-system-x86_64";
}

static int
setup(void **state) {
  struct utsname u;
  (void) state;
  umask(022);
  uname(&u);
  linux_host = strcmp(u.sysname, "Linux") == 0;
  al_test_dir(dir);
  assert_int_equal(mkdir(in("bin"), 0755), 0);
  program("limactl", "[ \"$1\" = --version ] && echo 'limactl version 2.2.0'");
  program(emulator(), "echo 'QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)'; echo more");
  program("qemu-img", "echo 'qemu-img version 7.2.22 (Debian)'");
  program("ssh", ":"), program("ssh-keygen", ":"), program("git", ":");
  snprintf(old_path, sizeof old_path, "%s", getenv("PATH"));
  unsetenv("AGENT_LANE_LIMACTL");
  unsetenv("AGENT_LANE_HOME");
  return setenv("PATH", in("bin"), 1);
}

static int
teardown(void **state) {
  (void) state;
  setenv("PATH", old_path, 1);
  al_test_dir_remove(dir);
  return 0;
}

static al_val_t *
examine(const al_doctor_opts_t *more) {
  al_doctor_opts_t opts = more ? *more : (al_doctor_opts_t) {0};
  al_err_t err = {0};
  al_val_t *report = NULL;
  if (!opts.home) opts.home = in("h");
  if (al_doctor_run(&opts, &report, &err)) fail_msg("%s", err.msg);
  return report;
}

static bool
is_ok(const al_val_t *report) {
  return al_val_get(report, "ok")->b;
}

/* The check's status, with a word that its detail must have; every one that is not good has a cure. */
static void
expect(const al_val_t *report, const char *name, const char *status, const char *word) {
  const al_val_t *checks = al_val_get(report, "checks");
  for (size_t i = 0; i < checks->len; i++) {
    const al_val_t *c = checks->items[i];
    if (strcmp(al_val_get(c, "name")->text, name)) continue;
    const char *got = al_val_get(c, "status")->text, *detail = al_val_get(c, "detail")->text;
    if (strcmp(got, status) || !strstr(detail, word))
      fail_msg("%s: %s (%s), not %s (%s)", name, got, detail, status, word);
    bool good = strcmp(status, "found") == 0 || strcmp(status, "skipped") == 0;
    if (!good && !al_val_get(c, "cure")) fail_msg("%s: no cure", name);
    return;
  }
  fail_msg("no check named %s", name);
}

static void
test_doctor_says_root_is_unsafe(void **state) {
  (void) state;
  al_val_t *r = examine(NULL);
  expect(r, "user", "unsafe", "root");
  assert_false(is_ok(r));
  al_val_free(r);
}

static void
test_doctor_finds_everything(void **state) {
  al_home_t home;
  al_image_t image;
  al_err_t err = {0};
  struct utsname u;
  static const parts_t arm = {"x86_64", "aarch64"};
  (void) state;
  uname(&u);
  if (!linux_host) skip(); /* the little image has no raw disk for vz */
  assert_int_equal(al_home_open(in("h"), &home, &err), 0);
  make_image(in("src"), strcmp(u.machine, "aarch64") ? NULL : &arm);
  assert_int_equal(al_image_import(&home, in("src"), NULL, NULL, &image, &err), 0);
  al_val_t *r = examine(NULL);
  expect(r, "platform", "found", u.sysname);
  expect(r, "user", "found", "not root");
  expect(r, "home", "found", in("h"));
  expect(r, "limactl", "found", "2.2.0");
  expect(r, emulator(), "found", "7.2.22");
  expect(r, "qemu-img", "found", "7.2.22");
  expect(r, "ssh", "found", "/ssh");
  expect(r, "ssh-keygen", "found", "/ssh-keygen");
  expect(r, "git", "found", "/git");
  expect(r, "image", "found", image.id);
  expect(r, "disk space", "found", "GiB free");
  expect(r, "memory", sysconf(_SC_PHYS_PAGES) / 1024 * sysconf(_SC_PAGESIZE) >= 8 * 1024 * 1024 ? "found" : "skipped",
    "a lane has 8 GiB");
  assert_true(is_ok(r)); /* whatever is with KVM */
  al_val_free(r);
  chmod(image.initrd, 0600);
  al_test_write(image.dir, "initrd.img", "Initrd");
  r = examine(NULL);
  expect(r, "image", "unsafe", "initrd.img");
  assert_false(is_ok(r));
  al_val_free(r);
}

static void
test_doctor_misses_each_program(void **state) {
  static const char *const names[] = {"limactl", "qemu-img", "ssh", "ssh-keygen", "git"};
  (void) state;
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    char path[600], aside[620];
    if (!linux_host && i == 1) continue;
    snprintf(path, sizeof path, "%s/%s", in("bin"), names[i]);
    snprintf(aside, sizeof aside, "%s.aside", path);
    assert_int_equal(rename(path, aside), 0);
    al_val_t *r = examine(NULL);
    expect(r, names[i], "missing", names[i]);
    assert_false(is_ok(r));
    al_val_free(r);
    assert_int_equal(rename(aside, path), 0);
  }
  al_val_t *r = examine(NULL);
  expect(r, "image", "missing", "No image has been imported");
  assert_false(is_ok(r));
  al_val_free(r);
}

static void
test_doctor_judges_versions(void **state) {
  static const struct {
    const char *says, *status;
  } lima[] = {{"limactl version 2.1.9", "too old"}, {"limactl version 1.9.9", "too old"},
    {"limactl version 2.2.0-rc.1", "too old"}, {"limactl version 2.2.0-beta.0", "too old"},
    {"limactl version 2.2.1", "found"}, {"limactl version v2.3.0", "found"}, {"limactl version 3.0.0", "found"},
    {"limactl version 2.2.0-15-gabcdef0", "found"}, {"limactl version 2.2.0-15-gabcdef0.m", "found"},
    {"limactl version 10.0.0", "found"}, {"limactl version abcdef0", "unsafe"}, {"", "unsafe"}};
  (void) state;
  for (size_t i = 0; i < sizeof lima / sizeof lima[0]; i++) {
    char body[128];
    snprintf(body, sizeof body, "echo '%s'", lima[i].says);
    program("limactl", body);
    al_val_t *r = examine(NULL);
    expect(r, "limactl", lima[i].status, lima[i].says);
    al_val_free(r);
  }
  al_val_t *r = examine(&(al_doctor_opts_t) {.allow_unknown_lima = true});
  expect(r, "limactl", "unsafe", ""); /* the last one said nothing: that is no limactl */
  al_val_free(r);
  program("limactl", "echo limactl version abcdef0");
  r = examine(NULL);
  expect(r, "limactl", "unsafe", "no version that can be compared");
  al_val_free(r);
  r = examine(&(al_doctor_opts_t) {.allow_unknown_lima = true});
  expect(r, "limactl", "found", "abcdef0");
  al_val_free(r);
  if (!linux_host) return;
  program(emulator(), "echo 'QEMU emulator version 6.1.0'");
  r = examine(NULL);
  expect(r, emulator(), "too old", "6.1.0");
  al_val_free(r);
}

static void
test_doctor_survives_bad_programs(void **state) {
  (void) state;
  program("limactl", "echo broken >&2; exit 3");
  al_val_t *r = examine(NULL);
  expect(r, "limactl", "unsafe", "failed: broken");
  al_val_free(r);
  program("limactl",
    "i=0; while [ $i -lt 20000 ]; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx || exit 0; i=$((i+1)); done");
  r = examine(NULL);
  expect(r, "limactl", "unsafe", "");
  al_val_free(r);
  assert_int_equal(chmod(in("bin/limactl"), 0777), 0);
  r = examine(NULL);
  assert_false(is_ok(r));
  al_val_free(r);
  r = examine(&(al_doctor_opts_t) {.limactl = in("bin/limactl")});
  expect(r, "limactl", "unsafe", "world-writable");
  al_val_free(r);
}

static void
test_doctor_does_not_wait_for_ever(void **state) {
  char path[512];
  (void) state;
  program("limactl", "/bin/sleep 60 & echo $! >${0%limactl}child; wait");
  uint64_t t = al_plat_mono_ms();
  al_val_t *r = examine(NULL);
  uint64_t took = al_plat_mono_ms() - t;
  expect(r, "limactl", "unsafe", "did not answer within 5 s");
  al_val_free(r);
  assert_true(took >= 4900 && took < 15000);
  snprintf(path, sizeof path, "%s", in("bin/child"));
  char *text = NULL;
  assert_int_equal(al_plat_read_file(AT_FDCWD, path, 64, &text, NULL), 0);
  al_ident_t id;
  pid_t child = (pid_t) strtol(text, NULL, 10);
  al_free(text);
  for (int i = 0; i < 500 && al_plat_ident(child, &id) == 0; i++) usleep(2000);
  assert_int_equal(al_plat_ident(child, &id), -ESRCH); /* the whole group was ended */
}

/* A damaged registry, and directories that an empty one does not know. */
static void
test_doctor_looks_at_the_registry(void **state) {
  static const char lost[] = "agent-lane-0000abcd-0000wxyz";
  char path[600];
  al_home_t home;
  al_err_t err = {0};
  (void) state;
  assert_int_equal(al_home_open(in("h"), &home, &err), 0);
  al_val_t *r = examine(NULL);
  expect(r, "registry", "found", "none yet");
  expect(r, "lanes", "found", "");
  al_val_free(r);
  snprintf(path, sizeof path, "%s/%s", home.lima, lost);
  assert_int_equal(mkdir(path, 0700), 0);
  r = examine(NULL);
  expect(r, "lanes", "unsafe", lost);
  assert_false(is_ok(r));
  al_val_free(r);
  al_test_write(home.root, "registry.db", "this is no database, and it is long enough to be looked at as one. ........");
  assert_int_equal(chmod(home.registry, 0600), 0);
  r = examine(NULL);
  expect(r, "home", "found", "");
  expect(r, "registry", "unsafe", "damaged");
  expect(r, "lanes", "skipped", "cannot be read");
  al_val_free(r);
}

static void
test_doctor_names_registries_that_were_set_aside(void **state) {
  al_home_t home;
  al_err_t err = {0};
  size_t named = 0;
  (void) state;
  assert_int_equal(al_home_open(in("h"), &home, &err), 0);
  al_test_write(home.root, "registry.db.damaged-20260101-1", "");
  al_test_write(home.root, "registry.db.damaged-20260101-1-wal", "");
  al_test_write(home.root, "registry.db.damaged-20260102-1", "");
  al_val_t *r = examine(NULL);
  const al_val_t *checks = al_val_get(r, "checks");
  for (size_t i = 0; i < checks->len; i++) {
    const al_val_t *c = checks->items[i];
    if (strcmp(al_val_get(c, "name")->text, "damaged registry")) continue;
    assert_non_null(strstr(al_val_get(c, "detail")->text, "registry.db.damaged-2026010"));
    assert_null(strstr(al_val_get(c, "detail")->text, "-wal"));
    assert_string_equal(al_val_get(c, "status")->text, "skipped"); /* nothing is wrong now */
    assert_non_null(al_val_get(c, "cure"));
    named++;
  }
  assert_int_equal(named, 2);
  al_val_free(r);
}

static void
test_doctor_bad_home_is_a_finding(void **state) {
  (void) state;
  al_val_t *r = examine(&(al_doctor_opts_t) {.home = "relative"});
  expect(r, "home", "unsafe", "absolute");
  expect(r, "image", "skipped", "home");
  expect(r, "disk space", "skipped", "home");
  assert_false(is_ok(r));
  al_val_free(r);
}

int
main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
  const struct CMUnitTest root[] = {T(test_doctor_says_root_is_unsafe)};
  const struct CMUnitTest user[] = {T(test_doctor_finds_everything), T(test_doctor_misses_each_program),
    T(test_doctor_judges_versions), T(test_doctor_survives_bad_programs), T(test_doctor_does_not_wait_for_ever), T(test_doctor_looks_at_the_registry),
    T(test_doctor_names_registries_that_were_set_aside),
    T(test_doctor_bad_home_is_a_finding)};
  int failed = 0;
  if (geteuid() == 0) { /* the rest is for ordinary users */
    failed = cmocka_run_group_tests(root, NULL, NULL);
    if (setgid(65534) || setuid(65534)) return 1;
  }
  return failed + cmocka_run_group_tests(user, NULL, NULL);
}
