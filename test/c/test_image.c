/* SPDX-License-Identifier: Apache-2.0 */
/* The image store: a manifest is never believed, an import is whole or not there, a changed byte is found. */
#include "al_test.h"
#include "image.h"
#include "image_int.h"
#include "image_make.h"
#include <sys/file.h>

static char dir[64];
static al_home_t home;

static const char *
in(const char *name) {
  return al_test_path(dir, name);
}

static int
setup(void **state) {
  al_err_t err = {0};
  (void) state;
  umask(022);
  al_test_dir(dir);
  return al_home_open(in("h"), &home, &err);
}

static int
teardown(void **state) {
  (void) state;
  al_test_dir_remove(dir);
  return 0;
}

/* Nothing half-made may lie in the store. */
static int
entries(const char *path) {
  char command[4300], text[32] = "";
  snprintf(command, sizeof command, "ls -A '%s' | wc -l", path);
  FILE *p = popen(command, "re");
  assert_non_null(fgets(text, sizeof text, p));
  pclose(p);
  return atoi(text);
}

static void
test_image_import_then_open(void **state) {
  al_image_t a, b;
  al_err_t err = {0};
  struct stat st;
  (void) state;
  make_image(in("src"), NULL);
  if (al_image_import(&home, in("src"), NULL, NULL, &a, &err)) fail_msg("%s", err.msg);
  assert_true(strncmp(a.id, "base-", 5) == 0 && strlen(a.id) == 17);
  assert_true(strncmp(a.id + 5, a.manifest_sha256, 12) == 0);
  assert_int_equal(al_image_open(&home, NULL, "qemu", "x86_64", &b, &err), 0);
  assert_string_equal(b.id, a.id);
  assert_string_equal(b.disk_format, "qcow2");
  assert_string_equal(b.cmdline, "console=ttyS0 quiet");
  assert_string_equal(b.login_user, "lane");
  assert_string_equal(b.agent_user, "agent");
  assert_string_equal(b.probe_marker, "agent-lane-probe-ok");
  assert_int_equal(b.virtual_size, 4294967296);
  assert_int_equal(stat(b.disk, &st), 0);
  assert_int_equal(st.st_mode & 07777, 0400);
  assert_int_equal(st.st_size, DISK_SIZE);
  assert_true(st.st_blocks * 512 < DISK_SIZE / 2); /* the hole stayed one */
  char hex[65];
  hash_file(b.disk, hex);
  assert_string_equal(hex, b.disk_sha256);
  assert_int_equal(stat(b.kernel, &st) | stat(b.initrd, &st), 0);
  assert_int_equal(stat(b.dir, &st), 0);
  assert_int_equal(st.st_mode & 07777, 0700);
  assert_int_equal(al_image_import(&home, in("src"), NULL, NULL, &a, &err), 0); /* a second time: nothing happens */
  assert_int_equal(al_image_import_checked(&home, in("src"), NULL, NULL, NULL, &a, &err), 0);
  al_test_write(in("src"), "initrd.img", "Initrd");
  assert_int_equal(al_image_import_checked(&home, in("src"), NULL, NULL, NULL, &a, &err), AL_EIMAGE_INVALID);
  assert_non_null(strstr(err.msg, "initrd.img has sha256"));
  unlink(in("src/initrd.img"));
  assert_int_equal(al_image_import_checked(&home, in("src"), NULL, NULL, NULL, &a, &err), AL_ESOURCE_MISSING);
  assert_int_equal(entries(home.images), 1);
}

static void
test_image_choice(void **state) {
  static const parts_t other = {"\"name\":\"base\"", "\"name\":\"mine\""}, later = {"2026-01-02", "2026-01-03"},
                       arm = {"x86_64", "aarch64"};
  al_image_t a, b, c, got;
  al_err_t err = {0};
  (void) state;
  assert_int_equal(al_image_open(&home, NULL, "qemu", "x86_64", &got, &err), AL_EIMAGE_MISSING);
  assert_non_null(strstr(err.msg, "No image has been imported"));
  make_image(in("other"), &other);
  assert_int_equal(al_image_import(&home, in("other"), NULL, NULL, &a, &err), 0);
  assert_int_equal(al_image_open(&home, NULL, "qemu", "x86_64", &got, &err), 0);
  assert_string_equal(got.id, a.id);
  make_image(in("base1"), NULL);
  assert_int_equal(al_image_import(&home, in("base1"), NULL, NULL, &b, &err), 0);
  assert_int_equal(al_image_open(&home, NULL, "qemu", "x86_64", &got, &err), 0);
  assert_string_equal(got.id, b.id);
  make_image(in("base2"), &later);
  assert_int_equal(al_image_open(&home, in("base2"), "qemu", "x86_64", &c, &err), 0); /* a path imports */
  assert_int_equal(al_image_open(&home, "base", "qemu", "x86_64", &got, &err), 0);
  assert_string_equal(got.id, c.id);
  assert_int_equal(al_image_open(&home, b.id, "qemu", "x86_64", &got, &err), 0);
  assert_string_equal(got.id, b.id);
  assert_int_equal(al_image_open(&home, "mine", "qemu", "x86_64", &got, &err), 0);
  assert_string_equal(got.id, a.id);
  assert_int_equal(al_image_open(&home, "nope", "qemu", "x86_64", &got, &err), AL_EIMAGE_MISSING);
  assert_non_null(strstr(err.msg, a.id));
  assert_int_equal(al_image_open(&home, "../images", "qemu", "x86_64", &got, &err), AL_EIMAGE_MISSING);
  assert_int_equal(al_image_open(&home, NULL, "qemu", "aarch64", &got, &err), AL_EIMAGE_MISSING);
  make_image(in("arm"), &arm);
  assert_int_equal(al_image_import(&home, in("arm"), NULL, NULL, &a, &err), 0);
  assert_int_equal(al_image_open(&home, NULL, "qemu", "aarch64", &got, &err), 0);
  assert_int_equal(al_image_open(&home, NULL, "vz", "x86_64", &got, &err), AL_EIMAGE_INVALID);
  assert_non_null(strstr(err.msg, "disk-raw"));
}

/* What an image can do is told by its manifest; what a later version says there is nothing to us. */
static void
test_image_features(void **state) {
  static const parts_t said[] = {{"shell-transport", "shell-transport"}, {"shell-transport", "port-transport"},
    {"shell-transport", "warp-transport\",\"port-transport"}, {"\"features\"", "\"feature\""}};
  static const bool port[] = {false, true, true, false};
  al_image_t a, got;
  (void) state;
  for (size_t i = 0; i < sizeof said / sizeof said[0]; i++) {
    al_err_t err = {0};
    make_image(in("src"), &said[i]);
    assert_int_equal(al_image_import(&home, in("src"), NULL, NULL, &a, &err), 0);
    assert_int_equal(a.port, port[i]);
    assert_int_equal(al_image_open(&home, a.id, "qemu", "x86_64", &got, &err), 0);
    assert_int_equal(got.port, port[i]);
  }
}

static void
test_image_list_says_what_there_is(void **state) {
  al_image_t a;
  al_val_t *list;
  al_err_t err = {0};
  const char *text;
  (void) state;
  assert_int_equal(al_image_list(&home, &list, &err), 0);
  assert_int_equal(list->len, 0);
  al_val_free(list);
  make_image(in("src"), NULL);
  assert_int_equal(al_image_import(&home, in("src"), NULL, NULL, &a, &err), 0);
  mkdir(in("h/images/broken-000000000000"), 0700);
  al_test_write(in("h/images/broken-000000000000"), "manifest.json", "{");
  al_test_write(in("h/images"), "stray", "");
  assert_int_equal(al_image_list(&home, &list, &err), 0);
  assert_int_equal(list->len, 2);
  for (size_t i = 0; i < 2; i++) {
    const al_val_t *row = list->items[i];
    assert_int_equal(al_val_get_text(row, "id", NULL, &text, &err), 0);
    bool broken = text[1] == 'r';
    assert_true(broken == (al_val_get(row, "problem") != NULL));
    if (broken) continue;
    assert_string_equal(text, a.id);
    assert_int_equal(al_val_get(row, "bytes")->i, IMAGE_SIZE);
    assert_int_equal(al_val_get_text(row, "created", NULL, &text, &err), 0);
    assert_string_equal(text, "2026-01-02T03:04:05Z");
  }
  al_val_free(list);
}

static void
test_image_bad_manifests_are_refused(void **state) {
  static const parts_t bad[] = {{"\"agent-lane-image/1\"", "1"}, {"\"agent-lane-image/1\"", "\"agent-lane/1\""},
    {"{\"format\"", "{\"formal\""}, {"{\"format\"", "\"format\""}, {"\"name\":\"base\"", "\"name\":\"../base\""},
    {"\"name\":\"base\"", "\"name\":\"\""}, {"\"name\":\"base\"", "\"name\":7"},
    {"\"name\":\"base\"", "\"name\":\"-base\""}, {"x86_64", "sparc"},
    {"\"name\":\"base\"", "\"name\":\"abcdefghijklmnopqrstuvwxyz0123456789\""}, {"2026-01-02T03:04:05Z", "yesterday"},
    {"4294967296", "-1"}, {"4294967296", "1e300"}, {"\"name\":\"vmlinuz\"", "\"name\":\"../vmlinuz\""},
    {"\"name\":\"vmlinuz\"", "\"name\":\".vmlinuz\""}, {"\"name\":\"vmlinuz\"", "\"name\":\"/etc/passwd\""},
    {"\"name\":\"vmlinuz\"", "\"name\":\"DISK.QCOW2\""}, {"\"name\":\"vmlinuz\"", "\"name\":\"manifest.json\""},
    {"\"name\":\"vmlinuz\"", "\"name\":\".verified\""}, {"\"size\":6", "\"size\":0"}, {"\"size\":6", "\"size\":-6"},
    {"\"size\":6", "\"size\":6.5"}, {"\"size\":6", "\"size\":9223372036854775807"}, {"\"size\":6", "\"size\":\"6\""},
    {"\"sha256\":\"", "\"sha256\":\"0"},
    {
      "\"sha256\":\"",
      "\"sha256\":\"",
    },
    {"\"role\":\"kernel\"", "\"role\":\"disk\""}, {"\"role\":\"disk\"", "\"role\":\"other\""},
    {"\"kernel\":\"vmlinuz\"", "\"kernel\":\"other\""}, {"\"kernel\":\"vmlinuz\"", "\"kernel\":\"../vmlinuz\""},
    {"quiet", "qu\\u0000iet"}, {"quiet", "qu\\niet"}, {"quiet", "{{.Env}}"}, {"quiet", "\xc3\xa4"},
    {"\"disk_format\":\"qcow2\"", "\"disk_format\":\"raw\""}, {"\"login\":\"lane\"", "\"login\":\"root\""},
    {"\"login\":\"lane\"", "\"login\":\"agent\""}, {"\"login\":\"lane\"", "\"login\":\"la ne\""},
    {"\"login\":\"lane\"", "\"login\":\"-lane\""}, {"\"login\":\"lane\"", "\"login\":\"Lane\""},
    {"[\"shell-transport\"]", "\"port-transport\""}, {"[\"shell-transport\"]", "[7]"},
    {"\"shell-transport\"", "\"shell transport\""}, {"\"shell-transport\"", "\"-shell\""},
    {"2026-01-02T03:04:05Z", "2026-01-02 03:04:05Z"}, {"\"created\":\"2026-01-02T03:04:05Z\"", "\"created\":1767323045"},
    {"\"recipe_sha256\":\"0", "\"recipe_sha256\":\""}, {"\"recipe_sha256\"", "\"recipe\""},
    {"\"role\":\"sbom\"", "\"role\":\"packages\""}, {"\"role\":\"initrd\"", "\"role\":\"sbom\""},
    {"\"name\":\"vmlinuz\"", "\"name\":\"manifest.json.minisig\""}, {"\"name\":\"vmlinuz\"", "\"name\":\"Manifest.JSON2\""},
    {"\"inputs\":[", "\"inputs\":[7,"}, {"\"inputs\":[{", "\"inputs\":{\"a\":[{"},
    {"\"kind\":\"deb\"", "\"kind\":\"rpm\""}, {"\"kind\":\"deb\",", ""}, {"\"version\":\"5.2-1\"", "\"version\":\"\""},
    {"\"name\":\"bash\"", "\"name\":\"ba\\u0007sh\""}, {"\"digest\":\"sha256:0", "\"digest\":\"sha256:"},
    {"\"digest\":\"sha256:", "\"digest\":\"md5:"}, {"\"digest\":\"sha256:", "\"digest\":\"sha256:G"},
    {"\"name\":\"base\"", "\"name\":\"project-1\""}, {"\"users\"", "\"untrusted_setup\":true,\"users\""},
    {"\"users\"", "\"untrusted_setup\":1,\"users\""}, {"\"users\"", "\"project\":\"" SOME_SHA256 "\",\"users\""},
    {"\"users\"", "\"inputs_key\":\"" SOME_SHA256 "\",\"users\""},
    {"\"users\"", "\"user\""}, {"\"boot\"", "\"boots\""}, {"\"files\"", "\"file\""}, {"agent-lane-probe-ok", "a b"}};
  al_image_t a;
  (void) state;
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    al_err_t err = {0};
    if (strcmp(bad[i].from, bad[i].to) == 0) continue;
    make_image(in("src"), &bad[i]);
    int rc = al_image_import(&home, in("src"), NULL, NULL, &a, &err);
    if (rc != AL_EIMAGE_INVALID || err.code != rc || !err.msg[0])
      fail_msg("%s -> %s: %d %s", bad[i].from, bad[i].to, rc, err.msg);
    assert_int_equal(entries(home.images), 0);
  }
}

static void
test_image_files_must_be_what_the_manifest_says(void **state) {
  al_image_t a;
  al_err_t err = {0};
  (void) state;
  make_image(in("src"), NULL);
  al_test_write(in("src"), "initrd.img", "Initrd");
  assert_int_equal(al_image_import(&home, in("src"), NULL, NULL, &a, &err), AL_EIMAGE_INVALID);
  assert_non_null(strstr(err.msg, "initrd.img has sha256"));
  al_test_write(in("src"), "initrd.img", "longer than it was");
  assert_int_equal(al_image_import(&home, in("src"), NULL, NULL, &a, &err), AL_EIMAGE_INVALID);
  assert_non_null(strstr(err.msg, "18 bytes"));
  unlink(in("src/initrd.img"));
  assert_int_equal(al_image_import(&home, in("src"), NULL, NULL, &a, &err), AL_ESOURCE_MISSING);
  assert_int_equal(symlink("vmlinuz", in("src/initrd.img")), 0);
  assert_int_equal(al_image_import(&home, in("src"), NULL, NULL, &a, &err), AL_EIMAGE_INVALID);
  assert_non_null(strstr(err.msg, "initrd.img is a symbolic link, and links are refused"));
  unlink(in("src/initrd.img"));
  assert_int_equal(mkfifo(in("src/initrd.img"), 0600), 0);
  assert_int_equal(al_image_import(&home, in("src"), NULL, NULL, &a, &err), AL_EIMAGE_INVALID);
  unlink(in("src/manifest.json"));
  assert_int_equal(al_image_import(&home, in("src"), NULL, NULL, &a, &err), AL_ESOURCE_MISSING);
  assert_int_equal(al_image_import(&home, in("nowhere"), NULL, NULL, &a, &err), AL_ESOURCE_MISSING);
  assert_int_equal(entries(home.images), 0);
}

static void
test_image_disk_must_stand_alone(void **state) {
  static const int tweaks[] = {
    0, 7, 8, 15, 35, 79, 31}; /* magic, version, backing file (both ends), encryption, external data file, size */
  al_image_t a;
  (void) state;
  for (size_t i = 0; i < sizeof tweaks / sizeof tweaks[0]; i++) {
    al_err_t err = {0};
    make_image(in("src"), NULL);
    make_disk(in("src/disk.qcow2"), tweaks[i]);
    make_manifest(in("src"), NULL);
    int rc = al_image_import(&home, in("src"), NULL, NULL, &a, &err);
    if (rc != AL_EIMAGE_INVALID || !strstr(err.msg, "disk.qcow2")) fail_msg("byte %d: %d %s", tweaks[i], rc, err.msg);
    assert_int_equal(entries(home.images), 0);
  }
}

static void
flip(const char *path) {
  struct stat st;
  stat(path, &st);
  assert_int_equal(chmod(path, 0600), 0);
  int fd = open(path, O_RDWR | O_CLOEXEC);
  char c;
  assert_int_equal(pread(fd, &c, 1, st.st_size / 2), 1);
  c ^= 1;
  assert_int_equal(pwrite(fd, &c, 1, st.st_size / 2), 1);
  close(fd);
  assert_int_equal(chmod(path, 0400), 0);
  struct timespec times[2] = {{.tv_sec = st.st_atime}, {.tv_sec = st.st_mtime}};
#ifdef __linux__
  times[0] = st.st_atim, times[1] = st.st_mtim;
#endif
  assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static void
expect_corrupt(const al_image_t *a, const char *file, const char *expected) {
  al_image_t got;
  al_err_t err = {0};
  char found[65], path[AL_HOME_MAX + 160];
  assert_int_equal(al_image_open(&home, a->id, "qemu", "x86_64", &got, &err), AL_EIMAGE_CORRUPT);
  snprintf(path, sizeof path, "%s/%s", a->dir, file);
  hash_file(path, found);
  if (!strstr(err.msg, file) || !strstr(err.msg, expected) || !strstr(err.msg, found)) fail_msg("%s", err.msg);
}

static void
test_image_changed_byte_is_found(void **state) {
  al_image_t a;
  al_err_t err = {0};
  char record[AL_HOME_MAX + 100];
  struct stat before, after;
  (void) state;
  make_image(in("src"), NULL);
  assert_int_equal(al_image_import(&home, in("src"), NULL, NULL, &a, &err), 0);
  snprintf(record, sizeof record, "%s/.verified", a.dir);
  assert_int_equal(al_image_open(&home, NULL, "qemu", "x86_64", &a, &err), 0);
  assert_int_equal(access(record, F_OK), -1); /* too fresh to be believed later */
  flip(a.disk);
  expect_corrupt(&a, "disk.qcow2", a.disk_sha256);
  flip(a.disk);
  usleep(2300000);
  assert_int_equal(al_image_open(&home, NULL, "qemu", "x86_64", &a, &err), 0);
  assert_int_equal(stat(record, &before), 0);
  assert_int_equal(before.st_mode & 07777, 0600);
  assert_int_equal(al_image_open(&home, NULL, "qemu", "x86_64", &a, &err), 0);
  assert_int_equal(stat(record, &after), 0);
  assert_true(before.st_ino == after.st_ino); /* the record was believed: a hashing writes a new one */
  flip(a.kernel); /* with the old size and mtime */
  expect_corrupt(&a, "vmlinuz", a.kernel_sha256);
  flip(a.kernel);
  usleep(2300000);
  assert_int_equal(al_image_open(&home, NULL, "qemu", "x86_64", &a, &err), 0);
  /* the same bytes under another inode are hashed again, too */
  FILE *f = fopen(record, "we");
  fputs("agent-lane-verified 1 forged\n", f);
  fclose(f);
  flip(a.initrd);
  assert_int_equal(al_image_open(&home, NULL, "qemu", "x86_64", &a, &err), AL_EIMAGE_CORRUPT);
}

static void
test_image_damage_is_told_and_healed_by_import(void **state) {
  al_image_t a, got;
  al_err_t err = {0};
  char path[AL_HOME_MAX + 160];
  (void) state;
  make_image(in("src"), NULL);
  assert_int_equal(al_image_import(&home, in("src"), NULL, NULL, &a, &err), 0);
  unlink(a.initrd[0] ? a.initrd : "");
  snprintf(path, sizeof path, "%s/initrd.img", a.dir);
  unlink(path);
  assert_int_equal(al_image_open(&home, a.id, "qemu", "x86_64", &got, &err), AL_EIMAGE_CORRUPT);
  assert_non_null(strstr(err.msg, "initrd.img is missing"));
  assert_int_equal(symlink("/etc/hostname", path), 0);
  assert_int_equal(al_image_open(&home, a.id, "qemu", "x86_64", &got, &err), AL_EIMAGE_CORRUPT);
  assert_int_equal(al_image_import(&home, in("src"), NULL, NULL, &a, &err), 0);
  assert_int_equal(al_image_open(&home, a.id, "qemu", "x86_64", &got, &err), 0);
  snprintf(path, sizeof path, "%s/manifest.json", a.dir);
  flip(path);
  assert_int_equal(al_image_open(&home, a.id, "qemu", "x86_64", &got, &err), AL_EIMAGE_CORRUPT);
  flip(path);
  char *text = NULL, *quiet;
  assert_int_equal(al_plat_read_file(AT_FDCWD, path, 1 << 20, &text, NULL), 0);
  quiet = strstr(text, "quiet");
  memcpy(quiet, "debug", 5); /* a manifest that is right in itself, but not the imported one */
  assert_int_equal(chmod(path, 0600), 0);
  al_test_write(a.dir, "manifest.json", text);
  assert_int_equal(al_image_open(&home, a.id, "qemu", "x86_64", &got, &err), AL_EIMAGE_CORRUPT);
  assert_non_null(strstr(err.msg, "name contradicts"));
  memcpy(quiet, "quiet", 5);
  al_test_write(a.dir, "manifest.json", text);
  al_free(text);
  assert_int_equal(al_image_open(&home, a.id, "qemu", "x86_64", &got, &err), 0);
  assert_int_equal(chmod(a.dir, 0777), 0);
  assert_int_equal(al_image_open(&home, a.id, "qemu", "x86_64", &got, &err), AL_EHOME_UNSAFE);
}

static int
note(void *data, uint64_t done, uint64_t total) {
  uint64_t *last = data;
  assert_true(done > last[0] && done <= total);
  last[0] = done, last[1] = total;
  return 0;
}

/* What is left over goes; what somebody is at, who holds its lock, stays. */
static void
test_image_import_reports_progress_and_sweeps(void **state) {
  al_image_t a;
  al_err_t err = {0};
  uint64_t last[2] = {0};
  (void) state;
  mkdir(in("h/images/.aside.0123456789abcdef"), 0700);
  mkdir(in("h/images/.aside.fedcba9876543210"), 0700);
  al_test_write(in("h/images/.aside.0123456789abcdef"), "disk", "left behind");
  int held = open(in("h/images/.aside.fedcba9876543210"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  assert_int_equal(flock(held, LOCK_EX | LOCK_NB), 0);
  make_image(in("src"), NULL);
  assert_int_equal(al_image_import(&home, in("src"), note, last, &a, &err), 0);
  assert_true(last[0] == last[1] && last[1] == IMAGE_SIZE);
  assert_int_equal(access(in("h/images/.aside.0123456789abcdef"), F_OK), -1);
  assert_int_equal(access(in("h/images/.aside.fedcba9876543210"), F_OK), 0);
  close(held);
  assert_int_equal(al_image_sweep(&home), 1);
  assert_int_equal(entries(in("h/images")), 1);
}

/* One of another version says so, when it is imported and when it lies in the store, and is no damage. */
static void
test_image_of_another_version_is_refused_with_its_cure(void **state) {
  static const parts_t old = {"\"format\":\"agent-lane-image/1\"", "\"schema\":1"},
                       newer = {"agent-lane-image/1", "agent-lane-image/2"};
  const parts_t *const both[] = {&old, &newer};
  char id[32], sha[65], path[512];
  al_image_t a;
  (void) state;
  for (size_t i = 0; i < 2; i++) {
    al_err_t err = {0};
    make_image(in("src"), both[i]);
    assert_int_equal(al_image_import(&home, in("src"), NULL, NULL, &a, &err), AL_EIMAGE_FORMAT);
    assert_non_null(strstr(err.msg, i ? "agent-lane-image/2" : "earlier version"));
    assert_int_equal(entries(home.images), (int) i);
    hash_file(in("src/manifest.json"), sha);
    snprintf(id, sizeof id, "base-%.12s", sha);
    snprintf(path, sizeof path, "%s/%s", home.images, id);
    assert_int_equal(rename(in("src"), path), 0);
    assert_int_equal(al_image_open(&home, NULL, "qemu", "x86_64", &a, &err), AL_EIMAGE_FORMAT);
    assert_int_equal(al_image_open(&home, id, "qemu", "x86_64", &a, &err), AL_EIMAGE_FORMAT);
    assert_non_null(strstr(err.msg, id));
    assert_non_null(strstr(al_err_cure_text(&err), "image/build"));
  }
}

static int
grow(void *data, uint64_t done, uint64_t total) {
  uint64_t *last = data;
  last[0] = done, last[1] = total;
  if (done < 64u << 20) assert_int_equal(truncate(in("src/disk.qcow2"), (off_t) (done + (8u << 20))), 0);
  return 0;
}

static void
test_image_file_that_grows_is_not_copied_for_ever(void **state) {
  al_image_t a;
  al_err_t err = {0};
  uint64_t last[2] = {0};
  (void) state;
  make_image(in("src"), NULL);
  assert_int_equal(al_image_import(&home, in("src"), grow, last, &a, &err), AL_EIMAGE_INVALID);
  assert_non_null(strstr(err.msg, "grew"));
  assert_true(last[0] <= last[1]);
  assert_int_equal(entries(in("h/images")), 0);
}

static int
oom_open(void *data) {
  al_image_t a;
  al_err_t err = {0};
  (void) data;
  return al_image_open(&home, NULL, "qemu", "x86_64", &a, &err);
}

static void
test_image_open_survives_no_memory(void **state) {
  al_image_t a;
  al_err_t err = {0};
  (void) state;
  make_image(in("src"), NULL);
  assert_int_equal(al_image_import(&home, in("src"), NULL, NULL, &a, &err), 0);
  al_test_oom_each(oom_open, NULL);
}

int
main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
  const struct CMUnitTest tests[] = {T(test_image_import_then_open), T(test_image_choice),
    T(test_image_list_says_what_there_is), T(test_image_bad_manifests_are_refused),
    T(test_image_files_must_be_what_the_manifest_says), T(test_image_disk_must_stand_alone),
    T(test_image_features), T(test_image_of_another_version_is_refused_with_its_cure),
    T(test_image_changed_byte_is_found), T(test_image_damage_is_told_and_healed_by_import),
    T(test_image_import_reports_progress_and_sweeps), T(test_image_file_that_grows_is_not_copied_for_ever),
    T(test_image_open_survives_no_memory)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
