/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of copying in what changes at the worst moment: between the look at a thing and its opening, and while it is
 * read. The moments are those of the calls below, which stand in libc's place. */
#include "xfer_test.h"
#include <dlfcn.h>
#include <fcntl.h>

/* What happens once in the directory that is walked: when `name` has been looked at, or before the first bytes are read.
 * What a regular file says of itself, where it is not 0. */
static struct trap_s {
  const char *dir, *name; /* dir: the scratch directory */
  const char *looked, *read;
  int64_t mtime, size;
} trap;

static void
spring(const char **how) {
  char cmd[1024];
  if (!*how) return;
  snprintf(cmd, sizeof cmd, "cd %s/from && %s", trap.dir, *how);
  *how = NULL;
  if (system(cmd) != 0) abort();
}

int
fstatat(int dir, const char *restrict name, struct stat *restrict st, int flags) {
  int (*real)(int, const char *, struct stat *, int);
  *(void **) &real = dlsym(RTLD_NEXT, "fstatat");
  int r = real(dir, name, st, flags);
  if (r == 0 && trap.name && strcmp(name, trap.name) == 0) spring(&trap.looked);
  return r;
}

ssize_t
pread(int fd, void *p, size_t n, off_t at) {
  ssize_t (*real)(int, void *, size_t, off_t);
  *(void **) &real = dlsym(RTLD_NEXT, "pread");
  spring(&trap.read);
  return real(fd, p, n, at);
}

int
fstat(int fd, struct stat *st) {
  int (*real)(int, struct stat *);
  *(void **) &real = dlsym(RTLD_NEXT, "fstat");
  int r = real(fd, st);
  if (r == 0 && S_ISREG(st->st_mode) && trap.mtime) st->st_mtim.tv_sec = trap.mtime;
  if (r == 0 && S_ISREG(st->st_mode) && trap.size) st->st_size = trap.size;
  return r;
}

static void
copy(rig_t *r, const char *what, const struct trap_s *t, outcome_t *o) {
  const al_xfer_cbs_t cbs = { .on_end = on_xfer }; /* without progress nothing is counted beforehand */
  al_xfer_t *x;
  memset(o, 0, sizeof *o);
  trap = *t;
  trap.dir = r->dir;
  assert_int_equal(al_xfer_in(r->chan, path(r, what), path(r, "to"), NULL, &cbs, o, &x, &o->err), 0);
  rig_wait(r, &o->done, 20000);
  assert_null(trap.looked);
  assert_null(trap.read);
  trap = (struct trap_s){ 0 };
  assert_int_equal(leftovers(r->dir), 0);
}

/* What is gone when its turn comes is not in the tree, whatever it was. */
static void
test_xfer_in_race_what_is_gone_is_left_out(void **state) {
  (void) state;
  START(r);
  static const char *const make[] = { "mkdir -p from/gone/sub", "ln -s kept from/gone", "mkfifo from/gone" };
  for (size_t i = 0; i < sizeof make / sizeof make[0]; i++) {
    outcome_t o;
    sh(&r, "rm -rf from to && mkdir from && printf k > from/kept && %s", make[i]);
    copy(&r, "from", &(struct trap_s){ .name = "gone", .looked = "rm -r gone" }, &o);
    if (i == 2) { /* what it was is enough */
      assert_fails(&o, AL_ESOURCE_UNSUPPORTED, "from/gone: is a FIFO");
      continue;
    }
    assert_ok(&o);
    sh(&r, "test \"$(cat to/kept)\" = k && test ! -e to/gone");
  }
  rig_end(&r);
}

/* What became something else is not followed, and not sent as what it was. */
static void
test_xfer_in_race_what_changes_its_kind_is_refused(void **state) {
  (void) state;
  START(r);
  static const struct { const char *make, *how; } cases[] = {
    { "mkdir from/x && printf own > from/x/f", "mv x y && ln -s ../outside x" },
    { "mkdir from/x", "rmdir x && printf f > x" },
    { "ln -s kept from/x", "rm x && printf f > x" },
    { "ln -s kept from/x", "rm x && mkdir x" },
  };
  sh(&r, "mkdir outside && printf secret > outside/f");
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    outcome_t o;
    sh(&r, "rm -rf from to && mkdir from && printf k > from/kept && %s", cases[i].make);
    copy(&r, "from", &(struct trap_s){ .name = "x", .looked = cases[i].how }, &o);
    assert_fails(&o, AL_ESOURCE_UNREADABLE, "from/x: it changed while it was read");
    sh(&r, "test ! -e to");
  }
  rig_end(&r);
}

/* Wherever the end of a file lies in the blocks that are sent. The headers before a single file are 1.5 KiB. */
static void
test_xfer_in_race_growing_is_told_of_any_size(void **state) {
  (void) state;
  START(r);
  static const int sizes[] = { 1, 4096, 126976, 129535, 129536, 129537, 131072, 129536 + 131072, 129537 + 131072 };
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    outcome_t o;
    sh(&r, "rm -rf from to was && mkdir from && head -c %d /dev/urandom > from/f && cp from/f was", sizes[i]);
    copy(&r, "from/f", &(struct trap_s){ .read = "printf more >> f" }, &o);
    assert_ok(&o);
    sh(&r, "cmp to was");
    if (o.stats.changed != 1) fail_msg("a file of %d bytes: %d", sizes[i], (int) o.stats.changed);
  }
  rig_end(&r);
}

/* Times that no file system of the guest's keeps are brought to those it has, and do not end the copy. */
static void
test_xfer_in_race_takes_any_time(void **state) {
  (void) state;
  START(r);
  static const int64_t times[] = { INT64_MAX, INT64_MAX - 5, INT64_MIN, INT64_MIN + 1, INT64_MAX / 2, -1, 8589934592 };
  for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
    outcome_t o;
    sh(&r, "rm -rf from to && mkdir from && printf x > from/f");
    copy(&r, "from", &(struct trap_s){ .mtime = times[i] }, &o);
    if (o.err.code) fail_msg("%lld: %s", (long long) times[i], o.err.msg);
    sh(&r, "cmp to/f from/f");
  }
  rig_end(&r);
}

/* A giant of holes ends as what it is, without its zeros on the way. */
static void
test_xfer_in_race_giants_are_refused_at_once(void **state) {
  (void) state;
  START(r);
  static const int64_t sizes[] = { INT64_MAX, INT64_MAX - 600, INT64_MAX / 2, (1ll << 50) + 1, 1ll << 50 };
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    outcome_t o;
    sh(&r, "rm -rf from to && mkdir from && printf x > from/f");
    copy(&r, "from", &(struct trap_s){ .size = sizes[i] }, &o);
    if (sizes[i] > 1ll << 50) assert_fails(&o, AL_ESOURCE_UNSUPPORTED, "from/f: it is larger than a pebibyte");
    else assert_fails(&o, AL_ECOPY_IN_FAILED, "/to/f: File too large"); /* what the guest says of it */
    sh(&r, "test ! -e to");
  }
  rig_end(&r);
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_xfer_in_race_what_is_gone_is_left_out),
    cmocka_unit_test(test_xfer_in_race_what_changes_its_kind_is_refused),
    cmocka_unit_test(test_xfer_in_race_growing_is_told_of_any_size),
    cmocka_unit_test(test_xfer_in_race_takes_any_time),
    cmocka_unit_test(test_xfer_in_race_giants_are_refused_at_once),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
