/* SPDX-License-Identifier: Apache-2.0 */
/* Derived images: made of a lane's disk and nothing else, found by their key only, as whole and as trusted as what they
 * were derived from. */
#include "image_fixture.h"
#include "image_derive.h"

#define PROJECT "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define OTHER "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
#define INPUTS "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"

/* What a test may have wrong in the overlay's header. */
typedef struct header_s {
  const char *backing, *format;
  size_t at; /* of a byte that becomes `to`, unless 0 */
  uint8_t to;
} header_t;

static void
number(uint8_t *p, uint64_t v, size_t n) {
  for (size_t i = 0; i < n; i++) p[i] = (uint8_t) (v >> 8 * (n - 1 - i));
}

/* The head of an overlay as qemu-img writes it: version 3, backing format, then the backing file's name. */
static void
make_overlay(const char *path, const header_t *h) {
  uint8_t b[4096] = "QFI\xfb\0\0\0\3";
  size_t len = strlen(h->format), name = 112 + 8 + 8 + 8;
  number(b + 8, name, 8), number(b + 16, strlen(h->backing), 4), number(b + 20, 16, 4);
  number(b + 24, 6ull << 30, 8), number(b + 96, 4, 4), number(b + 100, 112, 4);
  number(b + 112, 0xe2792aca, 4), number(b + 116, len, 4);
  memcpy(b + 120, h->format, len);
  memcpy(b + name, h->backing, strlen(h->backing));
  if (h->at) b[h->at] = h->to;
  FILE *f = fopen(path, "we");
  assert_int_equal(fwrite(b, 1, sizeof b, f), sizeof b);
  for (int i = 0; i < 2000; i++) fputs("what the setup has written ", f);
  assert_int_equal(fclose(f), 0);
}

static al_image_t base;

static al_derive_t
request(const al_image_t *parent, const char *project, const char *inputs) {
  static al_derive_t d;
  memset(&d, 0, sizeof d);
  d.parent = parent, d.disk = in("disk"), d.vm_type = "qemu", d.created = "2026-02-03T04:05:06Z";
  snprintf(d.key.parent_sha256, 65, "%s", parent->manifest_sha256);
  snprintf(d.key.project, 65, "%s", project), snprintf(d.key.inputs_key, 65, "%s", inputs);
  return d;
}

static void
derive(const al_image_t *parent, const char *project, const char *inputs, al_image_t *out) {
  al_err_t err = {0};
  make_overlay(in("disk"), &(header_t) {.backing = parent->disk, .format = "qcow2"});
  al_derive_t d = request(parent, project, inputs);
  if (al_image_derive(&home, &d, NULL, NULL, out, &err)) fail_msg("%s", err.msg);
}

static int
setup_base(void **state) {
  int rc = setup(state);
  al_err_t err = {0};
  make_tiny(in("src"), NULL);
  import_from(in("src"), &base);
  assert_int_equal(al_image_open(&home, NULL, "qemu", "x86_64", &base, &err), 0);
  return rc;
}

static void
test_image_derived_is_an_overlay_of_its_parent(void **state) {
  char *text = NULL, want[256];
  al_image_t a, got;
  al_err_t err = {0};
  size_t len;
  (void) state;
  derive(&base, PROJECT, INPUTS, &a);
  assert_true(a.untrusted_setup && a.parents == 1 && !base.untrusted_setup && base.parents == 0);
  assert_string_equal(a.parent[0].id, base.id);
  assert_string_equal(a.parent[0].manifest_sha256, base.manifest_sha256);
  assert_string_equal(a.kernel, base.kernel);
  assert_string_equal(a.initrd, base.initrd);
  assert_string_equal(a.cmdline, base.cmdline);
  assert_string_equal(a.kernel_sha256, base.kernel_sha256);
  assert_string_equal(a.agent_user, "agent");
  assert_string_equal(a.recipe_sha256, base.recipe_sha256);
  assert_int_equal(a.virtual_size, 6ull << 30);
  assert_int_equal(al_plat_read_file(AT_FDCWD, a.disk, 1 << 20, &text, &len), 0);
  snprintf(want, sizeof want, "../%s/disk.qcow2", base.id);
  assert_memory_equal(text + 136, want, strlen(want) + 1);
  assert_int_equal(text[19], strlen(want));
  al_free(text);
  assert_int_equal(al_image_open(&home, a.id, "qemu", "x86_64", &got, &err), 0);
  assert_string_equal(got.disk, a.disk);
  assert_int_equal(al_image_check(&home, a.id, NULL, NULL, NULL, &got, &err), 0);
}

/* By its key only: by no name, by default never, and not by another project. */
static void
test_image_derived_is_found_by_its_key_only(void **state) {
  char id[AL_IMAGE_ID_MAX], name[33];
  al_image_t a, b, got;
  al_err_t err = {0};
  (void) state;
  al_derive_key_t key = request(&base, PROJECT, INPUTS).key;
  assert_int_equal(al_image_derived(&home, &key, id, &err), -ENOENT);
  derive(&base, PROJECT, INPUTS, &a);
  assert_int_equal(al_image_derived(&home, &key, id, &err), 0);
  assert_string_equal(id, a.id);
  derive(&base, PROJECT, INPUTS, &b); /* there is one: nothing is made */
  assert_string_equal(a.id, b.id);
  assert_int_equal(entries(home.images, "."), 2);
  char *const parts[] = {key.parent_sha256, key.project, key.inputs_key};
  for (size_t i = 0; i < 3; i++) {
    parts[i][63] = parts[i][63] == '0' ? '1' : '0';
    assert_int_equal(al_image_derived(&home, &key, id, &err), -ENOENT);
    key = request(&base, PROJECT, INPUTS).key;
    parts[i][63] = 'g';
    assert_int_equal(al_image_derived(&home, &key, id, &err), AL_EBAD_OPTION);
    key = request(&base, PROJECT, INPUTS).key;
  }
  snprintf(name, sizeof name, "%s", a.name);
  assert_int_equal(strncmp(name, "project-", 8), 0);
  assert_int_equal(al_image_open(&home, name, "qemu", "x86_64", &got, &err), AL_EIMAGE_MISSING);
  assert_int_equal(al_image_open(&home, NULL, "qemu", "x86_64", &got, &err), 0);
  assert_string_equal(got.id, base.id);
  derive(&base, OTHER, INPUTS, &b);
  assert_string_not_equal(a.id, b.id);
}

/* The disk must be an overlay of exactly that image, as qemu-img makes one; whatever else it says is refused, and the
 * disk itself is left as it is. */
static void
test_image_disks_that_are_no_overlay_are_refused(void **state) {
  char wrong[600], half[600];
  al_err_t err = {0};
  al_image_t a;
  (void) state;
  snprintf(wrong, sizeof wrong, "/etc/passwd%s", base.disk);
  snprintf(half, sizeof half, "%.*s", (int) strlen(base.disk) - 1, base.disk);
  const header_t bad[] = {{wrong, "qcow2", 0, 0}, {half, "qcow2", 0, 0}, {"", "qcow2", 0, 0},
    {"json:{}", "qcow2", 0, 0}, {base.disk, "raw", 0, 0}, {base.disk, "", 0, 0}, {base.disk, "qcow2", 0, 0},
    {base.disk, "qcow2", 3, 0}, {base.disk, "qcow2", 7, 2}, {base.disk, "qcow2", 15, 200}, {base.disk, "qcow2", 8, 1},
    {base.disk, "qcow2", 19, 255}, {base.disk, "qcow2", 23, 99}, {base.disk, "qcow2", 35, 1},
    {base.disk, "qcow2", 63, 1}, {base.disk, "qcow2", 79, 1}, {base.disk, "qcow2", 79, 2}, {base.disk, "qcow2", 79, 4},
    {base.disk, "qcow2", 72, 1}, {base.disk, "qcow2", 103, 8}, {base.disk, "qcow2", 101, 1},
    {base.disk, "qcow2", 112, 0}, {base.disk, "qcow2", 116, 255}, {base.disk, "qcow2", 119, 4},
    {base.disk, "qcow2", 27, 0}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    char before[65], after[65];
    bool good = bad[i].at == 0 && bad[i].backing == base.disk && strcmp(bad[i].format, "qcow2") == 0;
    if (good) continue;
    make_overlay(in("disk"), &bad[i]);
    hash_file(in("disk"), before);
    al_derive_t d = request(&base, PROJECT, INPUTS);
    int rc = al_image_derive(&home, &d, NULL, NULL, &a, &err);
    if (rc != AL_EIMAGE_INVALID || !strstr(err.msg, "cannot become an image"))
      fail_msg("%zu (byte %zu): %d %s", i, bad[i].at, rc, err.msg);
    hash_file(in("disk"), after);
    assert_string_equal(before, after);
    assert_int_equal(entries(home.images, ".derive"), 1);
  }
  unlink(in("disk"));
  assert_int_equal(symlink(base.disk, in("disk")), 0);
  al_derive_t d = request(&base, PROJECT, INPUTS);
  assert_true(al_image_derive(&home, &d, NULL, NULL, &a, &err) < 0);
  assert_int_equal(entries(home.images, ".derive"), 1);
}

static int
remove_image(const char *id, al_err_t *err) {
  int hold = 0;
  int rc = al_image_lock(&home, id, &hold, err);
  if (!rc) rc = al_image_remove(&home, id, &hold, err);
  al_image_release(&hold);
  return rc;
}

/* What it is made of stays as long as it does, is checked with it, and says whether it is to be trusted. */
static void
test_image_derived_depends_on_its_parent(void **state) {
  al_image_t a, b, c, d, got;
  al_err_t err = {0};
  const char *right[1];
  (void) state;
  derive(&base, PROJECT, INPUTS, &a);
  derive(&a, PROJECT, OTHER, &b);
  derive(&b, PROJECT, SOME_SHA256, &c);
  assert_int_equal(c.parents, 3);
  assert_string_equal(c.parent[2].id, base.id);
  assert_string_equal(c.kernel, base.kernel);
  al_derive_t deeper = request(&c, PROJECT, INPUTS);
  make_overlay(in("disk"), &(header_t) {.backing = c.disk, .format = "qcow2"});
  assert_int_equal(al_image_derive(&home, &deeper, NULL, NULL, &d, &err), AL_EIMAGE_INVALID);
  assert_int_equal(remove_image(base.id, &err), AL_EIMAGE_IN_USE);
  assert_non_null(strstr(err.msg, a.id));
  assert_int_equal(remove_image(a.id, &err), AL_EIMAGE_IN_USE);
  right[0] = base.manifest_sha256;
  const al_image_trust_t trust = {.sha256 = right, .count = 1};
  al_image_want_t want = {.image = c.id, .vm_type = "qemu", .arch = "x86_64", .trust = &trust};
  assert_int_equal(al_image_find(&home, &want, &got, &err), 0);
  right[0] = c.manifest_sha256; /* a derived image itself is never signed */
  assert_int_equal(al_image_find(&home, &want, &got, &err), AL_EIMAGE_UNTRUSTED);
  const char *const damaged[] = {base.disk, base.initrd, a.disk, b.disk};
  for (size_t i = 0; i < 4; i++) {
    struct stat st;
    uint8_t byte;
    assert_int_equal(stat(damaged[i], &st), 0);
    assert_int_equal(chmod(damaged[i], 0600), 0);
    int fd = open(damaged[i], O_RDWR | O_CLOEXEC);
    assert_int_equal(pread(fd, &byte, 1, st.st_size / 2), 1);
    byte ^= 4;
    assert_int_equal(pwrite(fd, &byte, 1, st.st_size / 2), 1);
    assert_int_equal(al_image_open(&home, c.id, "qemu", "x86_64", &got, &err), AL_EIMAGE_CORRUPT);
    assert_int_equal(al_image_check(&home, c.id, NULL, NULL, NULL, &got, &err), AL_EIMAGE_CORRUPT);
    byte ^= 4;
    assert_int_equal(pwrite(fd, &byte, 1, st.st_size / 2), 1);
    close(fd);
  }
  assert_int_equal(al_image_open(&home, c.id, "qemu", "x86_64", &got, &err), 0);
  assert_int_equal(remove_image(c.id, &err), 0);
  assert_int_equal(remove_image(b.id, &err), 0);
  assert_int_equal(remove_image(a.id, &err), 0);
  assert_int_equal(remove_image(base.id, &err), 0);
}

/* A manifest that says it is derived can come from here only. */
static void
test_image_derived_is_neither_exported_nor_imported(void **state) {
  al_image_t a, b;
  al_err_t err = {0};
  al_home_t second;
  (void) state;
  derive(&base, PROJECT, INPUTS, &a);
  assert_int_equal(al_image_export(&home, a.id, in("a.tar"), NULL, NULL, &err), AL_EIMAGE_INVALID);
  assert_int_equal(access(in("a.tar"), F_OK), -1);
  if (al_home_open(in("h2"), &second, &err)) fail_msg("%s", err.msg);
  assert_int_equal(al_image_import(&second, a.dir, NULL, NULL, &b, &err), AL_EIMAGE_INVALID);
  assert_non_null(strstr(err.msg, "derived"));
  assert_int_equal(al_image_import(&home, a.dir, NULL, NULL, &b, &err), AL_EIMAGE_INVALID);
  assert_int_equal(entries(second.images, NULL), 0);
}

/* Of processes that make one image at once each gets the same one; and one at a time has the claim. */
static void
test_image_derived_once_by_many(void **state) {
  char id[AL_IMAGE_ID_MAX];
  al_err_t err = {0};
  int claim = 0, other = 0;
  pid_t pids[4];
  (void) state;
  make_overlay(in("disk"), &(header_t) {.backing = base.disk, .format = "qcow2"});
  for (unsigned i = 0; i < 4; i++) {
    pids[i] = al_test_fork();
    if (pids[i]) continue;
    al_image_t a;
    char date[24];
    al_derive_t d = request(&base, PROJECT, INPUTS);
    snprintf(date, sizeof date, "2026-02-03T04:05:0%uZ", i);
    d.created = date;
    _exit(al_image_derive(&home, &d, NULL, NULL, &a, &err) ? 1 : 0);
  }
  for (unsigned i = 0; i < 4; i++) {
    int status = -1;
    assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
    assert_int_equal(status, 0);
  }
  assert_int_equal(entries(home.images, ".derive"), 2);
  al_derive_key_t key = request(&base, PROJECT, INPUTS).key;
  assert_int_equal(al_image_derived(&home, &key, id, &err), 0);
  assert_int_equal(al_image_claim(&home, &key, &claim, &err), 0);
  assert_int_equal(al_image_claim(&home, &key, &other, &err), -EAGAIN);
  al_image_release(&claim);
  assert_int_equal(al_image_claim(&home, &key, &other, &err), 0);
  al_image_release(&other);
}

static void
test_image_derive_killed_leaves_nothing_half(void **state) {
  al_image_t a;
  al_err_t err = {0};
  char id[AL_IMAGE_ID_MAX];
  uint64_t r = 12345;
  (void) state;
  make_overlay(in("disk"), &(header_t) {.backing = base.disk, .format = "qcow2"});
  for (unsigned i = 0; i < 25; i++) {
    al_derive_t d = request(&base, PROJECT, INPUTS);
    snprintf(d.key.inputs_key, 65, "%064u", i);
    pid_t pid = al_test_fork();
    if (pid == 0) _exit(al_image_derive(&home, &d, NULL, NULL, &a, &err) ? 1 : 0);
    r = r * 6364136223846793005u + 1442695040888963407u;
    usleep((useconds_t) (r >> 33) % 8000);
    al_test_kill(pid);
    if (al_image_derived(&home, &d.key, id, &err) == 0)
      assert_int_equal(al_image_check(&home, id, NULL, NULL, NULL, &a, &err), 0);
    if (al_image_derive(&home, &d, NULL, NULL, &a, &err)) fail_msg("%s", err.msg);
  }
  (void) al_image_sweep(&home);
  assert_int_equal(entries(home.images, ".derive"), 26);
}

static bool
have(const char *program) {
  char command[64];
  snprintf(command, sizeof command, "command -v %s >/dev/null 2>&1", program);
  return system(command) == 0;
}

static void
sh(const char *fmt, const char *a, const char *b) {
  char command[1400];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
  snprintf(command, sizeof command, fmt, a, b);
#pragma GCC diagnostic pop
  if (system(command)) fail_msg("%s", command);
}

/* With disks of the real qemu-img: what was written in the lane is read through the chain, and the chain is sound. */
static void
test_image_derived_of_a_real_overlay_is_read_through_the_chain(void **state) {
  char sha[65], text[128];
  al_image_t parent, a;
  al_err_t err = {0};
  (void) state;
  if (!have("qemu-img") || !have("qemu-io")) {
    print_message("skipped: qemu-img and qemu-io are not here\n");
    skip();
  }
  make_image(in("real"), NULL);
  unlink(in("real/disk.qcow2"));
  sh("qemu-img create -q -f qcow2 '%s' 4G%s", in("real/disk.qcow2"), "");
  sh("qemu-io -f qcow2 -c 'write -q -P 17 0 1M' -c 'write -q -P 18 2M 1M' '%s'%s", in("real/disk.qcow2"), "");
  struct stat st;
  assert_int_equal(stat(in("real/disk.qcow2"), &st), 0);
  make_manifest(in("real"), NULL);
  char *manifest = NULL;
  assert_int_equal(al_plat_read_file(AT_FDCWD, in("real/manifest.json"), 8192, &manifest, NULL), 0);
  char *at = strstr(manifest, "\"size\":3145728");
  assert_non_null(at);
  int n = snprintf(text, sizeof text, "\"size\":%7lld", (long long) st.st_size);
  assert_int_equal(n, 14);
  memcpy(at, text, 14);
  at = strstr(manifest, "\"base\"");
  memcpy(at, "\"real\"", 6);
  al_test_write(in("real"), "manifest.json", manifest);
  al_free(manifest);
  import_from(in("real"), &parent);
  assert_int_equal(al_image_open(&home, parent.id, "qemu", "x86_64", &parent, &err), 0);
  unlink(in("disk"));
  sh("qemu-img create -q -f qcow2 -b '%s' -F qcow2 '%s' 5G", parent.disk, in("disk"));
  sh("qemu-io -f qcow2 -c 'write -q -P 34 2M 64k' -c 'write -q -P 35 4500M 64k' '%s'%s", in("disk"), "");
  al_derive_t d = request(&parent, PROJECT, INPUTS);
  if (al_image_derive(&home, &d, NULL, NULL, &a, &err)) fail_msg("%s", err.msg);
  assert_int_equal(a.virtual_size, 5ull << 30);
  sh("qemu-img check -q -f qcow2 '%s'%s", a.disk, "");
  sh("qemu-img compare -q -f qcow2 -F qcow2 '%s' '%s'", a.disk, in("disk"));
  unlink(in("lane"));
  sh("qemu-img create -q -f qcow2 -b '%s' -F qcow2 '%s'", a.disk, in("lane"));
  sh("qemu-io -f qcow2 -c 'read -q -P 17 0 1M' -c 'read -q -P 34 2M 64k' -c 'read -q -P 18 2112k 64k' "
     "-c 'read -q -P 35 4500M 64k' '%s' | { ! grep . ; }%s", in("lane"), "");
  hash_file(a.disk, sha);
  assert_string_equal(sha, a.disk_sha256);
}

int
main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, setup_base, teardown)
  const struct CMUnitTest tests[] = {T(test_image_derived_is_an_overlay_of_its_parent),
    T(test_image_derived_is_found_by_its_key_only), T(test_image_disks_that_are_no_overlay_are_refused),
    T(test_image_derived_depends_on_its_parent), T(test_image_derived_is_neither_exported_nor_imported),
    T(test_image_derived_once_by_many), T(test_image_derive_killed_leaves_nothing_half),
    T(test_image_derived_of_a_real_overlay_is_read_through_the_chain)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
