/* SPDX-License-Identifier: Apache-2.0 */
/* Platform files: reading, writing, opening beneath, cloning, removing trees, finding programs, clocks. */
#include "al_test.h"
#include "platform_priv.h"
#include <limits.h>
#include <sys/resource.h>

typedef struct ctx_s {
  char dir[64];
  int fd;
} ctx_t;

static int
setup(void **state) {
  ctx_t *c = calloc(1, sizeof *c);
  al_test_dir(c->dir);
  c->fd = open(c->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  *state = c;
  return 0;
}

static int
teardown(void **state) {
  ctx_t *c = *state;
  close(c->fd);
  al_test_dir_remove(c->dir);
  free(c);
  return 0;
}

static bool
exists(ctx_t *c, const char *name) {
  struct stat st;
  return fstatat(c->fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

static void
link_to(ctx_t *c, const char *target, const char *name) {
  assert_int_equal(symlinkat(target, c->fd, name), 0);
}

static void
set_mode(ctx_t *c, const char *name, mode_t mode) {
  assert_int_equal(fchmodat(c->fd, name, mode, 0), 0);
}

/* Runs `check` as an ordinary user in a child when we are root, whom no permission stops. */
static void
as_user(ctx_t *c, int (*check)(ctx_t *c)) {
  if (geteuid() != 0) {
    assert_int_equal(check(c), 0);
    return;
  }
  int status;
  assert_int_equal(fchown(c->fd, 12345, 12345), 0);
  pid_t pid = al_test_fork();
  if (pid == 0) {
    if (setgid(12345) || setuid(12345)) _exit(99);
    _exit(check(c));
  }
  waitpid(pid, &status, 0);
  assert_int_equal(status, 0);
  assert_int_equal(fchown(c->fd, 0, 0), 0);
}

static void
test_platform_read_file_cap_and_neighbours(void **state) {
  ctx_t *c = *state;
  char *text;
  size_t n;
  al_test_write(c->dir, "f", "12345");
  for (size_t cap = 4; cap <= 6; cap++) {
    int rc = al_plat_read_file(c->fd, "f", cap, &text, &n);
    assert_int_equal(rc, cap < 5 ? -EFBIG : 0);
    if (rc) continue;
    assert_int_equal(n, 5);
    assert_string_equal(text, "12345");
    al_free(text);
  }
  al_test_write(c->dir, "empty", "");
  assert_int_equal(al_plat_read_file(c->fd, "empty", 0, &text, &n), 0);
  assert_string_equal(text, "");
  al_free(text);
  assert_int_equal(
    al_plat_read_file(AT_FDCWD, "/proc/self/status", 1 << 16, &text, &n), 0); /* size 0 says nothing there */
  assert_true(n > 100);
  al_free(text);
  assert_int_equal(al_plat_read_file(AT_FDCWD, "/proc/self/status", 100, &text, &n), -EFBIG);
  assert_int_equal(al_plat_read_file(c->fd, "absent", 10, &text, &n), -ENOENT);
  assert_int_equal(al_plat_read_file(c->fd, ".", 10, &text, &n), -EISDIR);
  assert_int_equal(mkfifoat(c->fd, "fifo", 0600), 0);
  assert_int_equal(al_plat_read_file(c->fd, "fifo", 10, &text, &n), -EINVAL); /* and does not hang */
}

static void
test_platform_write_new_and_replace(void **state) {
  ctx_t *c = *state;
  struct stat st;
  char *text;
  umask(077);
  assert_int_equal(al_plat_write_new(c->fd, "f", "one", 3, 0640), 0);
  assert_int_equal(fstatat(c->fd, "f", &st, 0), 0);
  assert_int_equal(st.st_mode & 0777, 0640);
  assert_int_equal(al_plat_write_new(c->fd, "f", "two", 3, 0600), -EEXIST);
  link_to(c, "absent", "link");
  assert_int_equal(al_plat_write_new(c->fd, "link", "two", 3, 0600), -EEXIST);
  assert_false(exists(c, "absent"));
  assert_int_equal(al_plat_write_replace(c->fd, "f", "three", 5, 0600), 0);
  assert_int_equal(al_plat_write_replace(c->fd, "link", "x", 1, 0600), 0); /* the link itself is replaced */
  assert_false(exists(c, "absent"));
  assert_int_equal(al_plat_read_file(c->fd, "f", 10, &text, NULL), 0);
  assert_string_equal(text, "three");
  al_free(text);
  mkdirat(c->fd, "d", 0700);
  assert_int_equal(al_plat_write_replace(c->fd, "d", "x", 1, 0600), -EISDIR);
  assert_int_equal(al_plat_write_replace(c->fd, "d/g", "x", 1, 0600), 0);
  assert_true(exists(c, "d/g"));
  char list[256];
  snprintf(list, sizeof list, "ls -A %s | grep -c tmp", c->dir);
  FILE *p = popen(list, "r");
  assert_int_equal(fgetc(p), '0'); /* no temporary file stays */
  pclose(p);
}

static void
test_platform_mkdirs(void **state) {
  ctx_t *c = *state;
  char path[256];
  struct stat st;
  umask(022);
  snprintf(path, sizeof path, "%s/a/b/c", c->dir);
  assert_int_equal(al_plat_mkdirs(path, 0700), 0);
  assert_int_equal(al_plat_mkdirs(path, 0700), 0);
  assert_int_equal(fstatat(c->fd, "a/b", &st, 0), 0);
  assert_int_equal(st.st_mode & 0777, 0700);
  al_test_write(c->dir, "file", "");
  snprintf(path, sizeof path, "%s/file/x", c->dir);
  assert_int_equal(al_plat_mkdirs(path, 0700), -ENOTDIR);
  snprintf(path, sizeof path, "%s/file", c->dir);
  assert_int_equal(al_plat_mkdirs(path, 0700), -ENOTDIR);
  assert_int_equal(al_plat_mkdirs("", 0700), -ENOENT);
}

typedef int (*opener)(int, const char *, int, mode_t);

static void
check_beneath(ctx_t *c, opener op, const char *file) {
  struct {
    const char *path;
    int flags, rc;
  } cases[] = {
    {"d/e/f", O_RDONLY, 0},
    {"d//e/./f", O_RDONLY, 0},
    {"in-link", O_RDONLY, -ELOOP},
    {"dir-link/f", O_RDONLY, -ELOOP},
    {"out-link", O_RDONLY, -ELOOP},
    {"abs-link/passwd", O_RDONLY, -ELOOP},
    {"d/absent", O_RDONLY, -ENOENT},
    {"absent/x", O_RDONLY, -ENOENT},
    {"d/e/f/x", O_RDONLY, -ENOTDIR},
    {"dangling", O_CREAT | O_WRONLY, -ELOOP},
    {"d", O_RDONLY | O_DIRECTORY, 0},
    {file, O_CREAT | O_EXCL | O_WRONLY, 0},
    {file, O_CREAT | O_EXCL | O_WRONLY, -EEXIST},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    int fd = op(c->fd, cases[i].path, cases[i].flags, 0600);
    if (cases[i].rc ? fd != cases[i].rc : fd < 0) fail_msg("%s: %d", cases[i].path, fd);
    if (fd >= 0) {
      assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
      close(fd);
    }
  }
}

static void
test_platform_open_beneath_follows_no_link(void **state) {
  ctx_t *c = *state;
  mkdirat(c->fd, "d", 0700), mkdirat(c->fd, "d/e", 0700);
  al_test_write(c->dir, "d/e/f", "");
  link_to(c, "d/e/f", "in-link"), link_to(c, "d/e", "dir-link"), link_to(c, "/etc/passwd", "out-link");
  link_to(c, "/etc", "abs-link"), link_to(c, "nowhere", "dangling");
  check_beneath(c, al_plat_open_beneath, "d/new1");
  check_beneath(c, al__plat_open_walk, "d/new2");
  static const char *const outside[] = {"", "/etc/passwd", "..", "../x", "d/../d/e", "d/.."};
  for (size_t i = 0; i < sizeof outside / sizeof outside[0]; i++)
    assert_int_equal(al_plat_open_beneath(c->fd, outside[i], O_RDONLY, 0), -EXDEV);
  int fd = al_plat_open_beneath(c->fd, "..x", O_CREAT | O_WRONLY, 0600);
  assert_true(fd >= 0);
  close(fd);
  assert_false(exists(c, "nowhere"));
}

static void
check_clone(ctx_t *c, const char *to) {
  char a[128], b[128], buf[8];
  struct stat st;
  snprintf(a, sizeof a, "%s/sparse", c->dir);
  snprintf(b, sizeof b, "%s/%s", c->dir, to);
  assert_int_equal(al_plat_clone_file(a, b, 0444), 0);
  assert_int_equal(stat(b, &st), 0);
  assert_int_equal(st.st_size, (8 << 20) + 3);
  assert_int_equal(st.st_mode & 0777, 0444);
  assert_true(st.st_blocks * 512 < 1 << 20);
  int fd = open(b, O_RDONLY | O_CLOEXEC);
  assert_int_equal(pread(fd, buf, 4, 0), 4);
  assert_memory_equal(buf, "head", 4);
  assert_int_equal(pread(fd, buf, 8, 8 << 20), 3);
  assert_memory_equal(buf, "end", 3);
  close(fd);
  assert_int_equal(al_plat_clone_file(a, b, 0600), -EEXIST);
}

static void
test_platform_clone_keeps_holes(void **state) {
  ctx_t *c = *state;
  char link[128], to[128];
  umask(077);
  int fd = openat(c->fd, "sparse", O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  assert_int_equal(pwrite(fd, "head", 4, 0), 4);
  assert_int_equal(pwrite(fd, "end", 3, 8 << 20), 3);
  close(fd);
  check_clone(c, "copy");
  link_to(c, "sparse", "link");
  snprintf(link, sizeof link, "%s/link", c->dir), snprintf(to, sizeof to, "%s/other", c->dir);
  assert_int_equal(al_plat_clone_file(link, to, 0600), -ELOOP);
  assert_false(exists(c, "other"));
  assert_int_equal(al_plat_clone_file(c->dir, to, 0600), -EINVAL);
  /* A file that ends in a hole, and an empty one. */
  fd = openat(c->fd, "sparse", O_WRONLY | O_TRUNC | O_CLOEXEC);
  assert_int_equal(ftruncate(fd, 1 << 20), 0);
  close(fd);
  snprintf(link, sizeof link, "%s/sparse", c->dir);
  struct stat st;
  assert_int_equal(al_plat_clone_file(link, to, 0600), 0);
  assert_int_equal(stat(to, &st), 0);
  assert_int_equal(st.st_size, 1 << 20);
}

static void
test_platform_remove_tree(void **state) {
  ctx_t *c = *state;
  mkdirat(c->fd, "t", 0700), mkdirat(c->fd, "t/a", 0700), mkdirat(c->fd, "t/a/b", 0700), mkdirat(c->fd, "t/c", 0700),
    mkdirat(c->fd, "keep", 0700);
  al_test_write(c->dir, "keep/file", "x"), al_test_write(c->dir, "t/a/f", ""), al_test_write(c->dir, "t/a/b/g", "");
  link_to(c, "../keep", "t/link"), link_to(c, "../../keep/file", "t/a/link"), mkfifoat(c->fd, "t/fifo", 0600);
  assert_int_equal(al_plat_remove_tree(c->fd, "t"), 0);
  assert_false(exists(c, "t"));
  assert_true(exists(c, "keep/file"));
  assert_int_equal(al_plat_remove_tree(c->fd, "t"), -ENOENT);
  link_to(c, "keep", "l");
  assert_int_equal(al_plat_remove_tree(c->fd, "l"), 0); /* the link, not what it points to */
  assert_true(exists(c, "keep/file"));
  static const char *const bad[] = {"", ".", "..", "keep/file", "/tmp"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) assert_int_equal(al_plat_remove_tree(c->fd, bad[i]), -EINVAL);
}

static void
test_platform_remove_tree_wide(void **state) {
  ctx_t *c = *state;
  char name[32];
  mkdirat(c->fd, "w", 0700);
  for (int i = 0; i < 3000; i++) {
    snprintf(name, sizeof name, i % 3 ? "w/f%d" : "w/d%d", i);
    if (i % 3 == 0) mkdirat(c->fd, name, 0700), strcat(name, "/x");
    close(openat(c->fd, name, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  }
  assert_int_equal(al_plat_remove_tree(c->fd, "w"), 0);
  assert_false(exists(c, "w"));
}

static void
test_platform_remove_tree_deep_with_few_descriptors(void **state) {
  ctx_t *c = *state;
  int fd = dup(c->fd);
  char name[101];
  memset(name, 'n', 100);
  name[100] = 0;
  for (int i = 0; i < 4096; i++) {
    assert_int_equal(mkdirat(fd, i ? name : "deep", 0700), 0);
    int next = openat(fd, i ? name : "deep", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(next >= 0);
    if (i % 512 == 0) close(openat(next, "file", O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    close(fd);
    fd = next;
  }
  close(fd);
  struct rlimit old, few;
  getrlimit(RLIMIT_NOFILE, &old);
  few = (struct rlimit) {32, old.rlim_max};
  setrlimit(RLIMIT_NOFILE, &few);
  int rc = al_plat_remove_tree(c->fd, "deep");
  setrlimit(RLIMIT_NOFILE, &old);
  assert_int_equal(rc, 0);
  assert_false(exists(c, "deep"));
}

static int
check_permissions(ctx_t *c) {
  int in = open(c->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (mkdirat(in, "p", 0700) || mkdirat(in, "p/none", 0700) || mkdirat(in, "p/none/ro", 0700)) return 1;
  close(openat(in, "p/none/ro/f", O_CREAT | O_WRONLY | O_CLOEXEC, 0400));
  if (fchmodat(in, "p/none/ro", 0500, 0) || fchmodat(in, "p/none", 0, 0) || fchmodat(in, "p", 0, 0)) return 2;
  if (openat(in, "p/none/ro", O_RDONLY | O_CLOEXEC) >= 0) return 3; /* else this test proves nothing */
  int rc = al_plat_remove_tree(in, "p");
  return rc ? 4 : faccessat(in, "p", F_OK, 0) == 0 ? 5 : 0;
}

static void
test_platform_remove_tree_without_permissions(void **state) {
  as_user(*state, check_permissions);
}

static int
check_foreign(ctx_t *c) {
  int rc = al_plat_remove_tree(c->fd, "foreign");
  return rc == -EACCES || rc == -EPERM ? 0 : 1;
}

static void
test_platform_remove_tree_of_another_user_fails(void **state) {
  ctx_t *c = *state;
  if (geteuid() != 0) skip(); /* needs root to make one */
  mkdirat(c->fd, "foreign", 0700), mkdirat(c->fd, "foreign/x", 0700);
  as_user(c, check_foreign);
  assert_true(exists(c, "foreign/x"));
}

static void
program(ctx_t *c, const char *name, mode_t mode) {
  al_test_write(c->dir, name, "#!/bin/sh\n");
  set_mode(c, name, mode);
}

static void
test_platform_find_program(void **state) {
  ctx_t *c = *state;
  char path[1024], out[PATH_MAX], want[256];
  al_err_t err;
  static const char *const dirs[] = {"good", "group", "world", "node_modules", "node_modules/.bin", "links", "second"};
  for (size_t i = 0; i < sizeof dirs / sizeof dirs[0]; i++) mkdirat(c->fd, dirs[i], 0755), set_mode(c, dirs[i], 0755);
  set_mode(c, "group", 0775), set_mode(c, "world", 01777);
  program(c, "group/tool", 0755), program(c, "world/tool", 0755), program(c, "node_modules/.bin/tool", 0755);
  program(c, "good/plain", 0644), program(c, "good/writable", 0775);
  link_to(c, "../world/tool", "links/tool");
  const char *d = c->dir;
  snprintf(path, sizeof path, "good:.::%s/group:%s/world:%s/node_modules/.bin:%s/links:%s/absent", d, d, d, d, d);
  assert_int_equal(al_plat_find_program("tool", path, out, sizeof out, &err), -ENOENT);
  assert_non_null(strstr(err.msg, "skipped"));
  assert_string_equal(out, "");
  program(c, "second/tool", 0755);
  strcat(path, ":"), strcat(path, d), strcat(path, "/second");
  snprintf(want, sizeof want, "%s/second/tool", d);
  assert_int_equal(al_plat_find_program("tool", path, out, sizeof out, &err), 0);
  assert_string_equal(out, want);
  assert_int_equal(al_plat_find_program("tool", path, out, strlen(want), &err), -ENOENT); /* no room */
  assert_int_equal(al_plat_find_program("tool", path, out, strlen(want) + 1, &err), 0);
  snprintf(path, sizeof path, "%s/good", d);
  assert_int_equal(al_plat_find_program("plain", path, out, sizeof out, &err), -ENOENT);
  assert_int_equal(al_plat_find_program("writable", path, out, sizeof out, &err), -ENOENT);
  assert_int_equal(al_plat_find_program("sh", NULL, out, sizeof out, &err), 0);
  assert_int_equal(al_plat_find_program("", path, out, sizeof out, &err), -ENOENT);
}

static void
test_platform_find_program_checks_a_named_one(void **state) {
  ctx_t *c = *state;
  char path[256], out[PATH_MAX];
  al_err_t err;
  umask(022);
  mkdirat(c->fd, "good", 0755), mkdirat(c->fd, "world", 0755), set_mode(c, "world", 0777);
  program(c, "good/tool", 0755), program(c, "good/open", 0757), program(c, "world/tool", 0755),
    program(c, "good/plain", 0600);
  link_to(c, "tool", "good/link"), link_to(c, "../world/tool", "good/trap");
  static const struct {
    const char *name;
    int rc;
  } cases[] = {{"good/tool", 0}, {"good/link", 0}, {"good/open", AL_EPROGRAM_UNSAFE},
    {"world/tool", AL_EPROGRAM_UNSAFE}, {"good/trap", AL_EPROGRAM_UNSAFE}, {"good/plain", -ENOENT},
    {"good/absent", -ENOENT}, {"good", -ENOENT}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    snprintf(path, sizeof path, "%s/%s", c->dir, cases[i].name);
    int rc = al_plat_find_program(path, "/bin", out, sizeof out, &err);
    if (rc != cases[i].rc) fail_msg("%s: %d", path, rc);
    assert_string_equal(out, rc ? "" : path);
    if (rc) assert_int_equal(err.code, rc);
  }
  assert_int_equal(al_plat_find_program("./tool", NULL, out, sizeof out, &err), AL_EPROGRAM_UNSAFE);
  if (geteuid() != 0) return;
  snprintf(path, sizeof path, "%s/good/tool", c->dir);
  assert_int_equal(chown(path, 12345, 0), 0);
  assert_int_equal(al_plat_find_program(path, NULL, out, sizeof out, &err), AL_EPROGRAM_UNSAFE);
  assert_int_equal(chown(path, 0, 0), 0);
}

static void
test_platform_clocks_random_and_self(void **state) {
  ctx_t *c = *state;
  char boot[AL_BOOT_ID_MAX], again[AL_BOOT_ID_MAX], exe[PATH_MAX];
  uint8_t a[300] = {0}, b[300] = {0};
  assert_int_equal(al_plat_boot_id(boot), 0);
  assert_int_equal(al_plat_boot_id(again), 0);
  assert_string_equal(boot, again);
  assert_int_equal(strlen(boot), 36);
  assert_int_equal(al_plat_random(a, sizeof a), 0);
  assert_int_equal(al_plat_random(b, sizeof b), 0);
  assert_memory_not_equal(a + 268, b + 268, 32);
  uint64_t mono = al_plat_mono_ms(), since = al_plat_boot_ms();
  usleep(30000);
  assert_true(al_plat_mono_ms() - mono >= 30 && al_plat_mono_ms() - mono < 5000);
  assert_true(al_plat_boot_ms() - since >= 30 && since >= mono);
  assert_int_equal(al_plat_exe_path(exe, sizeof exe), 0);
  assert_non_null(strstr(exe, "test_platform"));
  assert_int_equal(al_plat_exe_path(exe, 5), -ENAMETOOLONG);
  assert_int_equal(al_plat_is_network_fs(c->fd), 0);
  assert_int_equal(al_plat_is_network_fs(-1), -EBADF);
  assert_int_equal(al_plat_fsync(c->fd), 0);
}

int
main(void) {
#define T(name) cmocka_unit_test_setup_teardown(test_platform_##name, setup, teardown)
  const struct CMUnitTest tests[] = {
    T(read_file_cap_and_neighbours),
    T(write_new_and_replace),
    T(mkdirs),
    T(open_beneath_follows_no_link),
    T(clone_keeps_holes),
    T(remove_tree),
    T(remove_tree_wide),
    T(remove_tree_deep_with_few_descriptors),
    T(remove_tree_without_permissions),
    T(remove_tree_of_another_user_fails),
    T(find_program),
    T(find_program_checks_a_named_one),
    T(clocks_random_and_self),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
