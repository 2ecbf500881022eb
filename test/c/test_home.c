/* SPDX-License-Identifier: Apache-2.0 */
/* The home: what is made, what is refused, and programs installed in it. */
#include "al_test.h"
#include "home.h"
#include "sha256.h"

static char dir[64];

static int
setup(void **state) {
  (void) state;
  umask(022);
  al_test_dir(dir);
  return 0;
}

static int
teardown(void **state) {
  (void) state;
  al_test_dir_remove(dir);
  return 0;
}

static const char *
in(const char *name) {
  return al_test_path(dir, name);
}

static void
expect(const char *path, int code, const char *word) {
  al_home_t home;
  al_err_t err = {0};
  int rc = al_home_open(path, &home, &err);
  if (rc != code || (word && !strstr(err.msg, word)))
    fail_msg("%s: %d (%s), not %d with \"%s\"", path, rc, err.msg, code, word ? word : "");
}

static void
test_home_fresh_is_made_closed(void **state) {
  al_home_t home;
  al_err_t err = {0};
  (void) state;
  assert_int_equal(al_home_open(in("a/h"), &home, &err), 0);
  assert_string_equal(home.root, in("a/h"));
  const char *const dirs[] = {home.root, home.lima, home.images, home.bin, home.run, home.runs, in("a/h/lima/_config")};
  for (size_t i = 0; i < sizeof dirs / sizeof dirs[0]; i++) assert_int_equal(al_test_mode(dirs[i]), 0700);
  assert_string_equal(home.registry, in("a/h/registry.db"));
  assert_int_equal(access(home.registry, F_OK), -1);
  assert_int_equal(al_home_open(in("a/h"), &home, &err), 0);
}

static void
test_home_does_not_depend_on_the_umask(void **state) {
  al_home_t home;
  al_err_t err = {0};
  (void) state;
  umask(0777);
  int rc = al_home_open(in("a/h"), &home, &err);
  umask(022);
  assert_int_equal(rc, 0);
  const char *const dirs[] = {in("a"), home.root, home.lima, in("a/h/lima/_config"), home.run};
  for (size_t i = 0; i < sizeof dirs / sizeof dirs[0]; i++) assert_int_equal(al_test_mode(dirs[i]), 0700);
}

static void
test_home_name_comes_from_environment(void **state) {
  al_home_t home;
  al_err_t err = {0};
  char *kept = getenv("HOME") ? strdup(getenv("HOME")) : NULL;
  (void) state;
  setenv("HOME", dir, 1);
  unsetenv("AGENT_LANE_HOME");
  assert_int_equal(al_home_open(NULL, &home, &err), 0);
  assert_string_equal(home.root, in(".agent-lane"));
  assert_int_equal(al_home_open("~/x", &home, &err), 0);
  assert_string_equal(home.root, in("x"));
  setenv("AGENT_LANE_HOME", in("y"), 1);
  assert_int_equal(al_home_open(NULL, &home, &err), 0);
  assert_string_equal(home.root, in("y"));
  unsetenv("AGENT_LANE_HOME");
  if (kept) setenv("HOME", kept, 1);
  free(kept);
}

static void
test_home_bad_spelling_is_refused(void **state) {
  (void) state;
  expect("relative/x", AL_EHOME_UNSAFE, "absolute");
  expect("~other/x", AL_EHOME_UNSAFE, "absolute");
  static const char *const odd[] = {"a,b", "a:b", "a{{b", "a\"b", "a'b", "a\\b", "a%b", "a$b", "a\nb", "a`b"};
  for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
    expect(in(odd[i]), AL_EHOME_UNSAFE, NULL);
    assert_int_equal(access(in(odd[i]), F_OK), -1);
  }
  al_test_write(dir, "file", "");
  expect(in("file"), AL_EHOME_UNSAFE, "not a directory");
}

static void
test_home_open_to_others_is_refused(void **state) {
  (void) state;
  mkdir(in("h"), 0755);
  expect(in("h"), 0, NULL);
  chmod(in("h"), 0770);
  expect(in("h"), AL_EHOME_UNSAFE, "0770");
  chmod(in("h"), 01777); /* a sticky one is fine above the home, never as the home */
  expect(in("h"), AL_EHOME_UNSAFE, "1777");
  chmod(in("h"), 0755);
  chmod(in("h/lima"), 0722);
  expect(in("h"), AL_EHOME_UNSAFE, "lima");
  /* A directory that we would have made 0700 is somebody's: refused, and left as it is. */
  chmod(in("h/bin"), 0755);
  chmod(in("h/lima"), 0700);
  expect(in("h"), AL_EHOME_UNSAFE, "h/bin");
  assert_int_equal(al_test_mode(in("h/bin")), 0755);
  mkdir(in("open"), 0777);
  chmod(in("open"), 0777);
  expect(in("open/h"), AL_EHOME_UNSAFE, "/open may be changed");
  assert_int_equal(access(in("open/h"), F_OK), -1);
}

static void
test_home_links_inside_are_refused(void **state) {
  (void) state;
  mkdir(in("h"), 0700);
  mkdir(in("elsewhere"), 0700);
  assert_int_equal(symlink(in("elsewhere"), in("h/images")), 0);
  expect(in("h"), AL_EHOME_UNSAFE, "images");
}

static void
test_home_own_link_is_resolved(void **state) {
  al_home_t home;
  al_err_t err = {0};
  (void) state;
  mkdir(in("real"), 0700);
  assert_int_equal(symlink(in("real"), in("link")), 0);
  assert_int_equal(al_home_open(in("link/h"), &home, &err), 0);
  assert_string_equal(home.root, in("real/h"));
}

static void
test_home_of_another_user_is_refused(void **state) {
  (void) state;
  if (geteuid() != 0) skip(); /* only root can give files away */
  mkdir(in("theirs"), 0755);
  assert_int_equal(chown(in("theirs"), 4242, 4242), 0);
  expect(in("theirs"), AL_EHOME_UNSAFE, "uid 4242");
  expect(in("theirs/h"), AL_EHOME_UNSAFE, "uid 4242");
  mkdir(in("real"), 0700);
  assert_int_equal(symlink(in("real"), in("link")), 0);
  assert_int_equal(lchown(in("link"), 4242, 4242), 0);
  expect(in("link/h"), AL_EHOME_UNSAFE, "link that another user");
  mkdir(in("h"), 0700);
  mkdir(in("h/bin"), 0700);
  assert_int_equal(chown(in("h/bin"), 4242, 4242), 0);
  expect(in("h"), AL_EHOME_UNSAFE, "/bin belongs");
}

static void
test_home_length_has_a_limit(void **state) {
  char path[256];
  size_t lima_max = (access("/proc/self", F_OK) == 0 ? 80 : 76) - AL_NAME_LEN; /* Linux, macOS */
  size_t longest = lima_max - strlen("/lima"), have = strlen(dir) + 1;
  (void) state;
  snprintf(path, sizeof path, "%s/", dir);
  memset(path + have, 'x', longest - have);
  path[longest] = 0;
  expect(path, 0, NULL);
  path[longest] = 'x';
  path[longest + 1] = 0;
  expect(path, AL_EHOME_TOO_LONG, "1 bytes too long");
  expect(path, AL_EHOME_TOO_LONG, lima_max == 52 ? "would have 108 bytes, and this system allows 107" : "allows 103");
}

static void
test_home_install_copies_and_heals(void **state) {
  char out[512], again[512], want[512];
  al_home_t home;
  al_err_t err = {0};
  (void) state;
  assert_int_equal(al_home_open(in("h"), &home, &err), 0);
  al_test_write(dir, "prog", "#!/bin/sh\necho hello\n");
  assert_int_equal(al_home_install(&home, in("prog"), out, sizeof out, &err), 0);
  uint8_t digest[32];
  char hex[65];
  al_sha256_t sum;
  al_sha256_init(&sum);
  al_sha256_update(&sum, "#!/bin/sh\necho hello\n", 21);
  al_sha256_final(&sum, digest);
  al_sha256_hex(digest, hex);
  snprintf(want, sizeof want, "%s/%s/prog", home.bin, hex);
  assert_string_equal(out, want);
  assert_int_equal(al_test_mode(out), 0700);
  assert_int_equal(system(out), 0);
  struct stat a, b;
  stat(out, &a);
  assert_int_equal(al_home_install(&home, in("prog"), again, sizeof again, &err), 0);
  assert_string_equal(again, out);
  stat(out, &b);
  assert_true(a.st_ino == b.st_ino); /* nothing was written a second time */
  FILE *f = fopen(out, "we");
  fputs("#!/bin/sh\nexit 1 # tampered\n", f);
  fclose(f);
  assert_int_equal(al_home_install(&home, in("prog"), again, sizeof again, &err), 0);
  assert_int_equal(system(out), 0);
  unlink(out);
  assert_int_equal(symlink("/bin/true", out), 0);
  assert_int_equal(al_home_install(&home, in("prog"), again, sizeof again, &err), 0);
  assert_true(S_ISREG((lstat(out, &b), b.st_mode)));
  assert_int_equal(al_home_install(&home, in("absent"), again, sizeof again, &err), -ENOENT);
  assert_int_equal(al_home_install(&home, in("prog"), again, 20, &err), -ENAMETOOLONG);
}

static int
oom_install(void *data) {
  char out[512];
  al_err_t err = {0};
  return al_home_install(data, in("prog"), out, sizeof out, &err);
}

static void
test_home_install_survives_no_memory(void **state) {
  al_home_t home;
  al_err_t err = {0};
  char out[512];
  (void) state;
  assert_int_equal(al_home_open(in("h"), &home, &err), 0);
  al_test_write(dir, "prog", "#!/bin/sh\n");
  assert_int_equal(al_home_install(&home, in("prog"), out, sizeof out, &err), 0);
  /* Without memory the installed copy cannot be checked, which must not pass for a good one. */
  static const al_mem_table_t table = {al_test_oom_malloc, al_test_oom_realloc, al_test_oom_free};
  al_mem_set(&table);
  atomic_store(&al_test_oom_left, 0);
  int rc = oom_install(&home);
  atomic_store(&al_test_oom_left, -1);
  al_mem_set(NULL);
  assert_int_equal(rc, -ENOMEM);
}

int
main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
  const struct CMUnitTest tests[] = {T(test_home_fresh_is_made_closed),
    T(test_home_does_not_depend_on_the_umask), T(test_home_name_comes_from_environment),
    T(test_home_bad_spelling_is_refused), T(test_home_open_to_others_is_refused), T(test_home_links_inside_are_refused),
    T(test_home_own_link_is_resolved), T(test_home_of_another_user_is_refused), T(test_home_length_has_a_limit),
    T(test_home_install_copies_and_heals), T(test_home_install_survives_no_memory)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
