/* SPDX-License-Identifier: Apache-2.0 */
/* Images as archives: what is exported can be imported, and an archive that is anything else leaves nothing behind. */
#include "image_fixture.h"
#include "tar_make.h"
#include <signal.h>
#include <sys/wait.h>

static tar_make_t tar;

static void
put_file(const char *name) {
  char *text = NULL, path[4200];
  size_t len;
  snprintf(path, sizeof path, "%s/src/%s", dir, name);
  assert_int_equal(al_plat_read_file(AT_FDCWD, path, sizeof tar.bytes, &text, &len), 0);
  tar_put(&tar, '0', name, "", 0644, text, len);
  al_free(text);
}

/* An archive with these entries, as they are in the directory. */
static void
begin(const char *const *names) {
  tar.len = 0;
  for (; *names; names++) put_file(*names);
}

static void
write_tar(void) {
  FILE *f = fopen(in("x.tar"), "we");
  assert_int_equal(fwrite(tar.bytes, 1, tar.len, f), tar.len);
  assert_int_equal(fclose(f), 0);
}

static int
try_import(al_err_t *err) {
  al_image_t a;
  write_tar();
  return al_image_import(&home, in("x.tar"), NULL, NULL, &a, err);
}

static void
expect_refused(int code, const char *what) {
  al_err_t err = {0};
  int rc = try_import(&err);
  if (rc != code || err.code != rc || !strstr(err.msg, what))
    fail_msg("%d %s; %d with %s was expected", rc, err.msg, code, what);
  assert_int_equal(entries(home.images, NULL), 0);
  assert_int_equal(entries(dir, NULL), 3); /* h, src, x.tar: nothing beside them */
}

static const char *const whole[] = {"manifest.json", "disk.qcow2", "vmlinuz", "initrd.img", "sbom.spdx.json", NULL};

static void
test_image_archive_of_an_image_is_imported(void **state) {
  static const char *const other[] = {"manifest.json", "sbom.spdx.json", "initrd.img", "vmlinuz", "disk.qcow2", NULL};
  static const char *const dotted[] = {"manifest.json", "disk.qcow2", "vmlinuz", "initrd.img", NULL};
  al_image_t from_dir, from_tar;
  al_err_t err = {0};
  (void) state;
  make_tiny(in("src"), NULL);
  begin(whole), tar_end(&tar), write_tar();
  if (al_image_import(&home, in("x.tar"), NULL, NULL, &from_tar, &err)) fail_msg("%s", err.msg);
  import_from(in("src"), &from_dir);
  assert_string_equal(from_dir.id, from_tar.id);
  assert_int_equal(al_image_check(&home, from_tar.id, NULL, NULL, NULL, &from_tar, &err), 0);
  assert_int_equal(al_image_import_checked(&home, in("x.tar"), NULL, NULL, NULL, &from_tar, &err), 0);
  begin(other), tar_end(&tar); /* in any order, and as `tar -c ./…` names them */
  assert_int_equal(try_import(&err), 0);
  begin(dotted), tar_put(&tar, '0', "./sbom.spdx.json", "", 0600, "{}", 2), tar_end(&tar);
  assert_int_equal(try_import(&err), 0);
}

static void
test_image_export_gives_the_same_image_elsewhere(void **state) {
  al_home_t second;
  al_image_t a, b;
  al_err_t err = {0};
  char one[65], two[65];
  al_val_t *list;
  (void) state;
  make_image(in("src"), NULL);
  al_test_write(in("src"), "manifest.json.minisig", SIGNATURE);
  import_from(in("src"), &a);
  mkdir(in("out"), 0700);
  if (al_image_export(&home, a.id, in("out/a.tar"), NULL, NULL, &err)) fail_msg("%s", err.msg);
  if (al_image_export(&home, a.id, in("out/b.tar"), NULL, NULL, &err)) fail_msg("%s", err.msg);
  assert_int_equal(entries(in("out"), NULL), 2);
  hash_file(in("out/a.tar"), one), hash_file(in("out/b.tar"), two);
  assert_string_equal(one, two);
  assert_int_equal(al_image_export(&home, a.id, in("out/a.tar"), NULL, NULL, &err), -EEXIST);
  assert_int_equal(al_image_export(&home, "base-000000000000", in("out/c.tar"), NULL, NULL, &err), AL_EIMAGE_MISSING);
  assert_int_equal(al_image_export(&home, a.id, in("nowhere/c.tar"), NULL, NULL, &err), -ENOENT);
  if (al_home_open(in("h2"), &second, &err)) fail_msg("%s", err.msg);
  if (al_image_import(&second, in("out/a.tar"), NULL, NULL, &b, &err)) fail_msg("%s", err.msg);
  assert_string_equal(a.id, b.id);
  assert_int_equal(al_image_check(&second, b.id, NULL, NULL, NULL, &b, &err), 0);
  assert_int_equal(al_image_signed(&second, NULL, &list, &err), 0);
  assert_int_equal(list->len, 1);
  al_val_free(list);
  /* What has changed in the store is not passed on. */
  assert_int_equal(chmod(a.initrd, 0600), 0);
  al_test_write(a.dir, "initrd.img", "Initrd");
  assert_int_equal(al_image_export(&home, a.id, in("out/c.tar"), NULL, NULL, &err), AL_EIMAGE_CORRUPT);
  assert_int_equal(entries(in("out"), NULL), 2);
}

static int
killed(void *data, uint64_t done, uint64_t total) {
  (void) data, (void) done, (void) total;
  kill(getpid(), SIGKILL);
  return 0;
}

/* Another export to the same directory, in the middle of one. */
static int
export_beside(void *data, uint64_t done, uint64_t total) {
  al_err_t err = {0};
  (void) done, (void) total;
  if (entries(in("out"), NULL) > 1) return 0;
  if (al_image_export(&home, data, in("out/beside.tar"), NULL, NULL, &err)) fail_msg("%s", err.msg);
  return 0;
}

/* What a killed export has left goes with the next one; what one that is at work has made does not, nor what is others'. */
static void
test_image_export_removes_what_killed_ones_left(void **state) {
  al_image_t a;
  al_err_t err = {0};
  int status;
  (void) state;
  make_image(in("src"), NULL);
  import_from(in("src"), &a);
  mkdir(in("out"), 0700);
  for (int i = 0; i < 2; i++) {
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) _exit(al_image_export(&home, a.id, in("out/a.tar"), killed, NULL, &err) ? 1 : 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(entries(in("out"), NULL), 1); /* the second has taken away what the first left */
  }
  if (al_image_export(&home, a.id, in("out/a.tar"), NULL, NULL, &err)) fail_msg("%s", err.msg);
  assert_int_equal(entries(in("out"), NULL), 1);
  assert_int_equal(unlink(in("out/a.tar")), 0);
  if (al_image_export(&home, a.id, in("out/a.tar"), export_beside, a.id, &err)) fail_msg("%s", err.msg);
  assert_int_equal(entries(in("out"), NULL), 2);
  al_test_write(in("out"), ".agent-lane-0123456789abcdef.tmpx", "");
  if (al_image_export(&home, a.id, in("out/c.tar"), NULL, NULL, &err)) fail_msg("%s", err.msg);
  assert_int_equal(entries(in("out"), NULL), 4);
}

/* Every name that could lead out of the store, every kind of entry that is not a file, and what the manifest does not
 * say. */
static void
test_image_hostile_archives_leave_nothing(void **state) {
  static const char *const names[] = {"../evil", "/tmp/evil", "x/../../evil", "disk.qcow2/x", ".verified", "evil", "",
    "manifest.json", "manifest.json.minisig", "./../evil"};
  static const char kinds[] = "123456"; /* hard link, symbolic link, character, block, directory, FIFO */
  static const char *const head[] = {"manifest.json", NULL}, *const last[] = {"disk.qcow2", "manifest.json", NULL};
  (void) state;
  make_tiny(in("src"), NULL);
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    begin(head), tar_put(&tar, '0', names[i], "", 0644, "evil", 4), tar_end(&tar);
    expect_refused(AL_EIMAGE_INVALID, "");
    begin(whole), tar_put(&tar, '0', names[i], "", 0644, "evil", 4), tar_end(&tar);
    expect_refused(AL_EIMAGE_INVALID, "");
  }
  for (const char *kind = kinds; *kind; kind++) {
    begin(head), tar_put(&tar, *kind, "vmlinuz", "/etc/passwd", 0644, NULL, 0), tar_end(&tar);
    expect_refused(AL_EIMAGE_INVALID, "not a plain file");
    tar.len = 0, tar_put(&tar, *kind, "manifest.json", "/etc/passwd", 0644, NULL, 0), tar_end(&tar);
    expect_refused(AL_EIMAGE_INVALID, "not a plain file");
  }
  begin(last), tar_end(&tar);
  expect_refused(AL_EIMAGE_INVALID, "first entry");
  begin(whole), put_file("vmlinuz"), tar_end(&tar);
  expect_refused(AL_EIMAGE_INVALID, "twice");
  begin(head), tar_end(&tar);
  expect_refused(AL_ESOURCE_MISSING, "ends without");
  begin(head), tar_put(&tar, '0', "vmlinuz", "", 0644, "longer than it is", 17), tar_end(&tar);
  expect_refused(AL_EIMAGE_INVALID, "17 bytes");
  begin(head), tar_put(&tar, '0', "vmlinuz", "", 0644, "Kernel", 6), tar_end(&tar);
  expect_refused(AL_EIMAGE_INVALID, "has sha256");
  tar.len = 0, tar_end(&tar);
  expect_refused(AL_EIMAGE_INVALID, "");
  tar.len = 0;
  expect_refused(AL_EIMAGE_INVALID, "");
  tar.len = 5000, memset(tar.bytes, 'x', tar.len);
  expect_refused(AL_EIMAGE_INVALID, "no tar archive");
}

/* A size that no memory or disk has, as the header of any entry can claim it. */
static void
test_image_archives_with_giant_sizes_are_refused(void **state) {
  static const char *const head[] = {"manifest.json", NULL};
  (void) state;
  make_tiny(in("src"), NULL);
  tar.len = 0;
  uint8_t *h = tar_put(&tar, '0', "manifest.json", "", 0644, "{}", 2);
  memcpy(h + 124, "77777777777", 11), tar_sum(h), tar_end(&tar);
  expect_refused(AL_EIMAGE_INVALID, "too large");
  begin(head);
  h = tar_put(&tar, '0', "vmlinuz", "", 0644, "kernel", 6);
  memcpy(h + 124, "77777777777", 11), tar_sum(h), tar_end(&tar);
  expect_refused(AL_EIMAGE_INVALID, "bytes");
  /* and sparse, which a few bytes make long */
  static const char *const sparse[] = {"GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.name=vmlinuz",
    "GNU.sparse.realsize=6", NULL};
  static const char map[512] = "1\n0\n6\n";
  begin(head), tar_pax(&tar, sparse);
  tar_put(&tar, '0', "GNUSparseFile.0/vmlinuz", "", 0644, map, sizeof map), tar_put(&tar, '0', "rest", "", 0644, NULL, 0);
  tar_end(&tar);
  al_err_t err = {0};
  assert_true(try_import(&err) < 0);
  assert_int_equal(entries(home.images, NULL), 0);
}

/* Cut anywhere, and with any block of it overwritten. */
static void
test_image_damaged_archives_leave_nothing(void **state) {
  static tar_make_t good;
  al_image_t a;
  (void) state;
  make_tiny(in("src"), NULL);
  begin(whole);
  size_t content = tar.len;
  tar_end(&tar), good = tar;
  for (size_t at = 0; at < content; at += 113) {
    al_err_t err = {0};
    tar.len = at;
    if (try_import(&err) == 0) fail_msg("cut at %zu of %zu: it was imported", at, content);
    assert_int_equal(entries(home.images, NULL), 0);
  }
  unsigned refused = 0;
  for (size_t at = 0; at < content; at += 7) {
    al_err_t err = {0};
    tar = good;
    tar.bytes[at] = (uint8_t) (tar.bytes[at] ^ (1u << at % 8));
    int rc = try_import(&err);
    /* Padding and what a header says beside name and size may be anything; then it is the image. So may words of the
     * manifest be: then it is another one, with another id. */
    refused += rc != 0;
    assert_int_equal(entries(home.images, NULL), rc == 0);
    if (rc) continue;
    int hold = 0;
    al_val_t *list;
    assert_int_equal(al_image_list(&home, &list, &err), 0);
    const char *id = al_val_get(list->items[0], "id")->text;
    assert_int_equal(al_image_check(&home, id, NULL, NULL, NULL, &a, &err), 0);
    assert_int_equal(al_image_lock(&home, id, &hold, &err), 0);
    assert_int_equal(al_image_remove(&home, id, &hold, &err), 0);
    al_image_release(&hold);
    al_val_free(list);
  }
  assert_true(refused > 300);
}

static void
test_image_import_takes_directories_and_files_only(void **state) {
  al_image_t a;
  al_err_t err = {0};
  (void) state;
  assert_int_equal(mkfifo(in("fifo"), 0600), 0);
  assert_int_equal(al_image_import(&home, in("fifo"), NULL, NULL, &a, &err), AL_EIMAGE_INVALID);
  assert_int_equal(al_image_import(&home, in("none.tar"), NULL, NULL, &a, &err), AL_ESOURCE_MISSING);
  assert_int_equal(al_image_import(&home, "/dev/zero", NULL, NULL, &a, &err), AL_EIMAGE_INVALID);
}

int
main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
  const struct CMUnitTest tests[] = {T(test_image_archive_of_an_image_is_imported),
    T(test_image_export_gives_the_same_image_elsewhere), T(test_image_export_removes_what_killed_ones_left), T(test_image_hostile_archives_leave_nothing),
    T(test_image_archives_with_giant_sizes_are_refused), T(test_image_damaged_archives_leave_nothing),
    T(test_image_import_takes_directories_and_files_only)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
