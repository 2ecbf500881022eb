/* SPDX-License-Identifier: Apache-2.0 */
/* The store between processes: any changed byte is found, what is needed stays, and whoever is killed leaves no half
 * image. */
#include "image_fixture.h"

/* ---- every byte ---- */

static void
put_byte(const char *path, size_t at, uint8_t bits) {
  uint8_t c;
  assert_int_equal(chmod(path, 0600), 0);
  int fd = open(path, O_RDWR | O_CLOEXEC);
  assert_int_equal(pread(fd, &c, 1, (off_t) at), 1);
  c = (uint8_t) (c ^ bits);
  assert_int_equal(pwrite(fd, &c, 1, (off_t) at), 1);
  close(fd);
  assert_int_equal(chmod(path, 0400), 0);
}

static void
expect_refused(const char *id, const char *file, size_t at) {
  al_image_t got;
  al_err_t err = {0};
  int rc = al_image_check(&home, id, NULL, NULL, NULL, &got, &err);
  if (rc != AL_EIMAGE_CORRUPT || err.code != rc) fail_msg("verify, %s byte %zu: %d %s", file, at, rc, err.msg);
  rc = al_image_open(&home, id, "qemu", "x86_64", &got, &err);
  if (rc != AL_EIMAGE_CORRUPT) fail_msg("a lane, %s byte %zu: %d %s", file, at, rc, err.msg);
}

/* Each byte of each file, with one to eight of its bits changed. */
static void
test_image_any_flipped_byte_is_found(void **state) {
  static const char *const files[] = {"disk.qcow2", "vmlinuz", "initrd.img", "sbom.spdx.json", "manifest.json",
    "manifest.json.minisig"};
  char path[AL_HOME_MAX + 160];
  al_image_t a, got;
  al_err_t err = {0};
  struct stat st;
  size_t tried = 0;
  (void) state;
  make_tiny(in("src"), NULL);
  al_test_write(in("src"), "manifest.json.minisig", SIGNATURE);
  make_tiny(in("src"), NULL);
  import_from(in("src"), &a);
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
    snprintf(path, sizeof path, "%s/%s", a.dir, files[i]);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0400);
    for (size_t at = 0; at < (size_t) st.st_size; at++, tried++) {
      uint8_t bits = (uint8_t) (1u << at % 8 | (at % 3 == 0 ? at * 37 % 256 : 0));
      put_byte(path, at, bits);
      expect_refused(a.id, files[i], at);
      put_byte(path, at, bits);
    }
  }
  assert_true(tried > 1500);
  if (al_image_check(&home, a.id, NULL, NULL, NULL, &got, &err)) fail_msg("%s", err.msg);
  assert_int_equal(al_image_open(&home, a.id, "qemu", "x86_64", &got, &err), 0);
}

/* As a disk does it that gives other bytes than were written: no time changes. A lane believes the earlier result until
 * verify has found out; from then on it does not. */
static void
test_image_verify_takes_an_earlier_result_back(void **state) {
  char path[AL_HOME_MAX + 160], record[1024];
  al_image_t a, got;
  al_err_t err = {0};
  int n;
  (void) state;
  make_tiny(in("src"), NULL);
  import_from(in("src"), &a);
  put_byte(a.initrd, 3, 4);
  static const char *const files[] = {"disk.qcow2", "vmlinuz", "initrd.img", "sbom.spdx.json"};
  n = snprintf(record, sizeof record, "agent-lane-verified 1 %s\n", a.manifest_sha256);
  for (size_t i = 0; i < 4; i++) {
    int64_t modified, changed;
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", a.dir, files[i]);
    assert_int_equal(stat(path, &st), 0);
    al_plat_stat_times(&st, &modified, &changed);
    n += snprintf(record + n, sizeof record - (size_t) n, "%s %lld %lld %lld %llu %llu\n", files[i],
      (long long) st.st_size, (long long) modified, (long long) changed, (unsigned long long) st.st_ino,
      (unsigned long long) st.st_dev);
  }
  al_test_write(a.dir, ".verified", record);
  assert_int_equal(al_image_open(&home, a.id, "qemu", "x86_64", &got, &err), 0);
  assert_int_equal(al_image_check(&home, a.id, NULL, NULL, NULL, &got, &err), AL_EIMAGE_CORRUPT);
  assert_int_equal(al_image_open(&home, a.id, "qemu", "x86_64", &got, &err), AL_EIMAGE_CORRUPT);
}

/* ---- signatures ---- */

static void
test_image_signature_is_kept_and_found_damaged(void **state) {
  static const char *const bad[] = {"", "untrusted comment: x\n", "a\nb\ntrusted comment: c\nd\n",
    "untrusted comment: x\nb\ncomment: c\nd\n", "untrusted comment: x\nb\ntrusted comment: c\nd\ne\n",
    "untrusted comment: x\nb\033[2J\ntrusted comment: c\nd\n"};
  char *text = NULL;
  al_image_t a, got;
  al_err_t err = {0};
  al_val_t *list = NULL;
  size_t len;
  (void) state;
  make_tiny(in("src"), NULL);
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    al_test_write(in("src"), "manifest.json.minisig", bad[i]);
    assert_int_equal(al_image_import(&home, in("src"), NULL, NULL, &a, &err), AL_EIMAGE_INVALID);
    assert_int_equal(entries(home.images, NULL), 0);
  }
  unlink(in("src/manifest.json.minisig"));
  import_from(in("src"), &a);
  assert_int_equal(al_image_signed(&home, NULL, &list, &err), 0);
  assert_int_equal(list->len, 0);
  al_val_free(list);
  al_test_write(in("src"), "manifest.json.minisig", SIGNATURE);
  import_from(in("src"), &a); /* it has been signed since */
  assert_int_equal(al_image_signed(&home, NULL, &list, &err), 0);
  assert_int_equal(list->len, 1);
  const al_val_t *signature = al_val_get(list->items[0], "signature");
  assert_int_equal(signature->kind, AL_BYTES);
  assert_non_null(strstr(signature->text, strchr(SIGNATURE, '\n'))); /* all that somebody signed is as it was */
  al_val_free(list);
  assert_int_equal(al_image_signed(&home, in("src"), &list, &err), 0);
  assert_int_equal(list->len, 1);
  al_val_free(list);
  char path[AL_HOME_MAX + 160];
  snprintf(path, sizeof path, "%s/manifest.json.minisig", a.dir);
  assert_int_equal(al_plat_read_file(AT_FDCWD, path, 8192, &text, &len), 0);
  assert_int_equal(chmod(path, 0600), 0);
  al_test_write(a.dir, "manifest.json.minisig", SIGNATURE); /* whole in itself, but not what was kept */
  assert_int_equal(al_image_open(&home, a.id, "qemu", "x86_64", &got, &err), AL_EIMAGE_CORRUPT);
  al_free(text);
  import_from(in("src"), &a);
  assert_int_equal(al_image_open(&home, a.id, "qemu", "x86_64", &got, &err), 0);
}

/* With a list of signed manifests nothing else is imported, chosen or verified; an empty list lets nothing pass. */
static void
test_image_untrusted_is_refused_everywhere(void **state) {
  static const char other[] = SOME_SHA256;
  al_image_t a, got;
  al_err_t err = {0};
  int hold = 0;
  (void) state;
  make_tiny(in("src"), NULL);
  const char *wrong[] = {other}, *right[1];
  const al_image_trust_t none = {.sha256 = wrong, .count = 0}, another = {.sha256 = wrong, .count = 1};
  const al_image_trust_t *const refused[] = {&none, &another};
  for (size_t i = 0; i < 2; i++) {
    assert_int_equal(
      al_image_import_checked(&home, in("src"), refused[i], NULL, NULL, &a, &err), AL_EIMAGE_UNTRUSTED);
    al_image_want_t want = {
      .image = in("src"), .vm_type = "qemu", .arch = "x86_64", .trust = refused[i], .hold = &hold};
    assert_int_equal(al_image_find(&home, &want, &got, &err), AL_EIMAGE_UNTRUSTED);
    assert_int_equal(entries(home.images, NULL), 0);
  }
  import_from(in("src"), &a);
  for (size_t i = 0; i < 2; i++) {
    const char *const names[] = {NULL, "base", a.id, in("src")};
    for (size_t j = 0; j < 4; j++) {
      al_image_want_t want = {
        .image = names[j], .vm_type = "qemu", .arch = "x86_64", .trust = refused[i], .hold = &hold};
      assert_int_equal(al_image_find(&home, &want, &got, &err), AL_EIMAGE_UNTRUSTED);
      assert_int_equal(hold, 0);
    }
    assert_int_equal(al_image_check(&home, a.id, refused[i], NULL, NULL, &got, &err), AL_EIMAGE_UNTRUSTED);
  }
  right[0] = a.manifest_sha256;
  const al_image_trust_t this = {.sha256 = right, .count = 1};
  al_image_want_t want = {.vm_type = "qemu", .arch = "x86_64", .trust = &this};
  assert_int_equal(al_image_find(&home, &want, &got, &err), 0);
  assert_int_equal(al_image_check(&home, a.id, &this, NULL, NULL, &got, &err), 0);
}

static void
test_image_trust_is_read_strictly(void **state) {
  static const char key[] = "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3";
  static const char pair[] = SOME_SHA256 " RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3";
  static const char *const bad[] = {"", "00", SOME_SHA256, SOME_SHA256 " ", SOME_SHA256 " RWQ",
    SOME_SHA256 "0RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3",
    SOME_SHA256 " RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3=",
    SOME_SHA256 " RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1 BM0QTaLn73Y7GFO3",
    "G0112233445566778899aabbccddeeff00112233445566778899aabbccddeeff RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3",
    "AA112233445566778899aabbccddeeff00112233445566778899aabbccddeeff RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3"};
  al_image_trust_t *t = NULL;
  al_err_t err = {0};
  (void) state;
  assert_int_equal(al_image_trust_read(NULL, &t, &err), 0);
  assert_null(t);
  al_val_t *list = al_val_list();
  assert_int_equal(al_image_trust_read(list, &t, &err), 0);
  assert_non_null(t);
  assert_int_equal(t->count, 0);
  al_free(t);
  al_val_add(list, al_val_text(pair));
  al_val_add(list, al_val_text(pair));
  assert_int_equal(al_image_trust_read(list, &t, &err), 0);
  assert_true(t->count == 2 && strcmp(t->sha256[0], SOME_SHA256) == 0 && strcmp(t->sha256[1], SOME_SHA256) == 0);
  assert_true(strcmp(t->key[0], key) == 0 && strcmp(t->key[1], key) == 0);
  al_free(t);
  al_val_free(list);
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    list = al_val_list();
    al_val_add(list, al_val_text(pair));
    al_val_add(list, al_val_text(bad[i]));
    assert_int_equal(al_image_trust_read(list, &t, &err), AL_EBAD_OPTION);
    assert_null(t);
    al_val_free(list);
  }
}

/* ---- removal ---- */

static int
remove_image(const char *id, al_err_t *err) {
  int hold = 0;
  int rc = al_image_lock(&home, id, &hold, err);
  if (!rc) rc = al_image_remove(&home, id, &hold, err);
  al_image_release(&hold);
  return rc;
}

static void
test_image_held_is_not_removed(void **state) {
  al_image_t a, got;
  al_err_t err = {0};
  int hold = 0, none = 0;
  (void) state;
  make_tiny(in("src"), NULL);
  import_from(in("src"), &a);
  al_image_want_t want = {.vm_type = "qemu", .arch = "x86_64", .hold = &hold};
  assert_int_equal(al_image_find(&home, &want, &got, &err), 0);
  assert_true(hold != 0);
  assert_int_equal(remove_image(a.id, &err), AL_EIMAGE_IN_USE);
  assert_int_equal(al_image_remove(&home, a.id, &none, &err), AL_EINTERNAL); /* never without the lock */
  assert_int_equal(al_image_check(&home, a.id, NULL, NULL, NULL, &got, &err), 0); /* readers do not mind each other */
  al_image_release(&hold);
  assert_int_equal(hold, 0);
  assert_int_equal(remove_image(a.id, &err), 0);
  assert_int_equal(entries(home.images, NULL), 0);
  assert_int_equal(remove_image(a.id, &err), AL_EIMAGE_MISSING);
  assert_int_equal(remove_image("../run", &err), AL_EIMAGE_MISSING);
  assert_int_equal(remove_image("", &err), AL_EIMAGE_MISSING);
  assert_int_equal(al_image_find(&home, &want, &got, &err), AL_EIMAGE_MISSING);
  assert_int_equal(hold, 0);
}

/* Who waits for the lock of an image that is removed meanwhile hears so, and has no lock of what is gone. */
static void
test_image_lock_of_a_removed_one_is_none(void **state) {
  al_image_t a;
  al_err_t err = {0};
  int hold = 0, pipes[2];
  char c;
  (void) state;
  make_tiny(in("src"), NULL);
  import_from(in("src"), &a);
  assert_int_equal(al_image_lock(&home, a.id, &hold, &err), 0);
  assert_int_equal(pipe(pipes), 0);
  pid_t pid = al_test_fork();
  if (pid == 0) {
    al_image_release(&hold); /* of this process: a lock ends with the last of its holders */
    (void) !write(pipes[1], "x", 1);
    int fd = al__image_lock(&home, a.id, true, 60000, &err);
    _exit(fd == -ENOENT ? 0 : 1);
  }
  assert_int_equal(read(pipes[0], &c, 1), 1);
  usleep(100000); /* it waits by now, mostly; the other order is as good */
  assert_int_equal(al_image_remove(&home, a.id, &hold, &err), 0);
  al_image_release(&hold);
  int status = -1;
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_int_equal(status, 0);
  close(pipes[0]), close(pipes[1]);
}

static void
test_image_outdated_are_those_with_a_newer_one(void **state) {
  static const parts_t later = {"2026-01-02", "2026-01-03"}, other = {"\"name\":\"base\"", "\"name\":\"mine\""},
                       arm = {"x86_64", "aarch64"};
  const parts_t *const all[] = {NULL, &later, &other, &arm};
  al_image_t a[4];
  al_val_t *list;
  al_err_t err = {0};
  (void) state;
  for (size_t i = 0; i < 4; i++) {
    make_tiny(in("src"), all[i]);
    import_from(in("src"), &a[i]);
  }
  mkdir(in("h/images/base-000000000000"), 0700); /* what cannot be read is nobody's newer one */
  al_test_write(in("h/images/base-000000000000"), "manifest.json", "{");
  assert_int_equal(al_image_outdated(&home, &list, &err), 0);
  assert_int_equal(list->len, 1);
  assert_string_equal(al_val_get(list->items[0], "id")->text, a[0].id);
  assert_non_null(strstr(al_val_get(list->items[0], "reason")->text, a[1].id));
  al_val_free(list);
}

/* ---- killed at any moment ---- */

static void
work_until_killed(unsigned seed) {
  al_image_t a = {0};
  al_err_t err;
  for (unsigned i = seed;; i++) {
    char to[128];
    snprintf(to, sizeof to, "%s/out-%u.tar", dir, i % 5);
    unlink(to);
    (void) al_image_import(&home, in(i % 2 ? "src" : "src2"), NULL, NULL, &a, &err);
    if (i % 3 == 0) (void) al_image_export(&home, a.id, to, NULL, NULL, &err);
    if (i % 3 != 1) (void) remove_image(a.id, &err);
    (void) al_image_sweep(&home);
  }
}

/* All that is listed is whole, and so is every archive; what is left over is gone after a sweep. */
static void
judge_store(void) {
  al_val_t *list;
  al_err_t err = {0};
  al_image_t got;
  al_home_t second;
  assert_int_equal(al_image_list(&home, &list, &err), 0);
  for (size_t i = 0; i < list->len; i++) {
    const al_val_t *row = list->items[i];
    assert_null(al_val_get(row, "problem"));
    if (al_image_check(&home, al_val_get(row, "id")->text, NULL, NULL, NULL, &got, &err)) fail_msg("%s", err.msg);
  }
  size_t images = list->len;
  al_val_free(list);
  (void) al_image_sweep(&home);
  assert_int_equal(entries(home.images, NULL), images);
  for (unsigned i = 0; i < 5; i++) {
    char to[128];
    snprintf(to, sizeof to, "%s/out-%u.tar", dir, i);
    if (access(to, F_OK)) continue;
    if (al_home_open(in("h2"), &second, &err)) fail_msg("%s", err.msg);
    if (al_image_import(&second, to, NULL, NULL, &got, &err)) fail_msg("%s: %s", to, err.msg);
  }
}

#define KILLS 60

static void
test_image_killed_at_random_instants_leaves_nothing_half(void **state) {
  static const parts_t later = {"2026-01-02", "2026-01-03"};
  al_image_t a, got;
  al_err_t err = {0};
  (void) state;
  make_image(in("src"), NULL);
  make_image(in("src2"), &later);
  uint64_t r = 0x9e3779b97f4a7c15u;
  for (unsigned i = 0; i < KILLS; i++) {
    pid_t pid = al_test_fork();
    if (pid == 0) work_until_killed(i);
    r = r * 6364136223846793005u + 1442695040888963407u;
    usleep((useconds_t) (r >> 33) % 60000);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    judge_store();
  }
  import_from(in("src"), &a);
  assert_int_equal(al_image_open(&home, a.id, "qemu", "x86_64", &got, &err), 0);
}

/* Processes that import, use and remove the same two images, all at once: each call succeeds or says why. */
static void
take_part(unsigned seed) {
  al_image_t a, got;
  for (unsigned i = 0; i < 25; i++) {
    al_err_t err = {0};
    int hold = 0;
    int rc = al_image_import(&home, in((seed + i) % 2 ? "src" : "src2"), NULL, NULL, &a, &err);
    if (rc == AL_EIMAGE_IN_USE) continue;
    if (rc) _exit(10);
    al_image_want_t want = {.image = a.id, .vm_type = "qemu", .arch = "x86_64", .hold = &hold};
    rc = al_image_find(&home, &want, &got, &err);
    if (rc == 0 && access(got.disk, R_OK)) _exit(11); /* what is held is there */
    if (rc && rc != AL_EIMAGE_MISSING && rc != AL_EIMAGE_IN_USE) _exit(12);
    al_image_release(&hold);
    rc = remove_image(a.id, &err);
    if (rc && rc != AL_EIMAGE_MISSING && rc != AL_EIMAGE_IN_USE) _exit(13);
    (void) al_image_sweep(&home);
  }
  _exit(0);
}

static void
test_image_many_processes_agree(void **state) {
  static const parts_t later = {"2026-01-02", "2026-01-03"};
  pid_t pids[4];
  (void) state;
  make_tiny(in("src"), NULL);
  make_tiny(in("src2"), &later);
  for (unsigned i = 0; i < 4; i++) {
    pids[i] = al_test_fork();
    if (pids[i] == 0) take_part(i);
  }
  for (unsigned i = 0; i < 4; i++) {
    int status = -1;
    assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
    if (status) fail_msg("process %u: status %x", i, (unsigned) status);
  }
  judge_store();
}

static int
stop_at_once(void *data, uint64_t done, uint64_t total) {
  (void) data, (void) done, (void) total;
  return 1;
}

/* Ctrl-C: the work ends, and takes back what it had begun. */
static void
test_image_work_can_be_ended(void **state) {
  al_image_t a;
  al_err_t err = {0};
  (void) state;
  make_image(in("src"), NULL);
  assert_int_equal(al_image_import(&home, in("src"), stop_at_once, NULL, &a, &err), AL_EINTERRUPTED);
  assert_int_equal(entries(home.images, NULL), 0);
  import_from(in("src"), &a);
  assert_int_equal(al_image_check(&home, a.id, NULL, stop_at_once, NULL, &a, &err), AL_EINTERRUPTED);
  mkdir(in("out"), 0700);
  assert_int_equal(al_image_export(&home, a.id, in("out/x.tar"), stop_at_once, NULL, &err), AL_EINTERRUPTED);
  assert_int_equal(entries(in("out"), NULL), 0);
}

int
main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
  const struct CMUnitTest tests[] = {T(test_image_any_flipped_byte_is_found),
    T(test_image_verify_takes_an_earlier_result_back), T(test_image_signature_is_kept_and_found_damaged),
    T(test_image_untrusted_is_refused_everywhere), T(test_image_trust_is_read_strictly),
    T(test_image_held_is_not_removed), T(test_image_lock_of_a_removed_one_is_none),
    T(test_image_outdated_are_those_with_a_newer_one), T(test_image_killed_at_random_instants_leaves_nothing_half),
    T(test_image_many_processes_agree), T(test_image_work_can_be_ended)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
