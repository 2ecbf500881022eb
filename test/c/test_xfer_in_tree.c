/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of copying in: a tree with every kind of thing arrives as it was, by a manifest; what no copy can be; and what
 * other programs read out of our archive. */
#include "sha256.h"
#include "xfer_test.h"
#include "memory.h"
#include <fcntl.h>

/* ---- a manifest: type, mode, time, size, link, names, content and holes of everything ---- */

typedef struct manifest_s {
  char *lines[4096];
  size_t len;
} manifest_t;

/* Of all blocks that are not zeros, and where they are: a hole may be long. */
static void
hash_hex(int fd, off_t size, char out[AL_SHA256_HEX]) {
  static uint8_t bytes[1 << 16], zeros[1 << 16];
  al_sha256_t h;
  uint8_t digest[AL_SHA256_LEN];
  al_sha256_init(&h);
  for (off_t at = 0; at < size;) {
    off_t data = lseek(fd, at, SEEK_DATA);
    if (data < 0) break;
    at = data / (off_t) sizeof bytes * (off_t) sizeof bytes;
    ssize_t n = pread(fd, bytes, sizeof bytes, at);
    assert_true(n > 0);
    if (memcmp(bytes, zeros, (size_t) n) != 0) {
      al_sha256_update(&h, &at, sizeof at);
      al_sha256_update(&h, bytes, (size_t) n);
    }
    at += (off_t) sizeof bytes;
  }
  al_sha256_final(&h, digest);
  al_sha256_hex(digest, out);
}

/* Where data lies, in pages; a file system may give more than was written, but not nearly all. */
static size_t
holes(int fd, off_t size, char *out, size_t cap) {
  size_t n = 0;
  for (off_t at = 0; at < size;) {
    off_t data = lseek(fd, at, SEEK_DATA);
    if (data < 0) break;
    at = lseek(fd, data, SEEK_HOLE);
    assert_true(at > data && n + 64 < cap);
    n += (size_t) snprintf(out + n, cap - n, " %lld-%lld", (long long) data / 4096, (long long) (at + 4095) / 4096);
  }
  out[n] = 0;
  return n;
}

static void
note(manifest_t *m, int dir, const char *name, const char *path) {
  struct stat st;
  char line[20000], link[4097] = "", hash[AL_SHA256_HEX] = "", ranges[8192] = "";
  assert_int_equal(fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW), 0);
  if (S_ISLNK(st.st_mode)) assert_true(readlinkat(dir, name, link, sizeof link - 1) > 0);
  int fd = S_ISREG(st.st_mode) || S_ISDIR(st.st_mode) ? openat(dir, name, O_RDONLY | O_NOFOLLOW) : -1;
  if (S_ISREG(st.st_mode)) {
    hash_hex(fd, st.st_size, hash);
    holes(fd, st.st_size, ranges, sizeof ranges);
  }
  snprintf(line, sizeof line, "%s %o %lld.%09ld %lld %ju %s %s%s", path, st.st_mode, (long long) st.st_mtim.tv_sec,
    st.st_mtim.tv_nsec, S_ISREG(st.st_mode) ? (long long) st.st_size : 0, S_ISDIR(st.st_mode) ? 0 : (uintmax_t) st.st_nlink,
    link, hash, ranges);
  assert_true(m->len < 4096);
  assert_non_null(m->lines[m->len++] = strdup(line));
  if (S_ISDIR(st.st_mode)) {
    DIR *d = fdopendir(dup(fd));
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
      char below[8192];
      if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
      snprintf(below, sizeof below, "%s/%s", path, e->d_name);
      note(m, fd, e->d_name, below);
    }
    closedir(d);
  }
  if (fd >= 0) close(fd);
}

static int
by_text(const void *a, const void *b) {
  return strcmp(*(char *const *) a, *(char *const *) b);
}

static void
take_manifest(manifest_t *m, const char *root) {
  m->len = 0;
  note(m, AT_FDCWD, root, ".");
  qsort(m->lines, m->len, sizeof m->lines[0], by_text);
}

static void
drop_manifest(manifest_t *m) {
  while (m->len > 0) free(m->lines[--m->len]);
}

static void
assert_same_trees(const char *a, const char *b, size_t least) {
  static manifest_t x, y;
  take_manifest(&x, a);
  take_manifest(&y, b);
  for (size_t i = 0; i < x.len && i < y.len; i++) assert_string_equal(x.lines[i], y.lines[i]);
  assert_int_equal(x.len, y.len);
  assert_in_range(x.len, least, 4096);
  drop_manifest(&x);
  drop_manifest(&y);
}

/* ---- a tree with every kind ---- */

static void
make_every_kind(const rig_t *r) {
  char name[256];
  sh(r,
    "mkdir -p from/a/b/c from/empty from/modes 'from/with space' && printf one > from/a/one && : > from/a/zero && ln from/a/one from/a/b/hard && ln from/a/one from/hard2"
    " && ln -s ../one from/a/b/link && ln -s nowhere from/dangling && ln -s /etc/passwd from/absolute && ln -s . from/self && ln -s \"$(printf 'x%%.0s' $(seq 1000))\" from/longlink"
    " && ln from/dangling from/hardlink-of-link"
    " && for m in 0 1 4 444 600 640 755 777; do printf $m > from/modes/f$m; chmod $m from/modes/f$m; done"
    " && for m in 700 711 1777 2775 3755; do mkdir from/modes/d$m; chmod $m from/modes/d$m; done");
  /* Holes: in front, inside, behind, everywhere; many; and a file that is larger than any number of eleven octal digits. */
  sh(r,
    "truncate -s 1M from/hole && truncate -s 1M from/front && printf x >> from/front && printf x > from/behind && truncate -s 5M from/behind"
    " && truncate -s 9G from/huge && printf y | dd of=from/huge bs=1 seek=8589934700 conv=notrunc status=none"
    " && for i in $(seq 0 2 120); do printf z | dd of=from/many bs=64k seek=$i conv=notrunc status=none; done && truncate -s 8M from/many");
  sh(r, "head -c 1 /dev/urandom > from/b1; for n in 511 512 513 4095 4096 4097 65535 65536 131071 131072 131073 262144 1000000 3000001; do head -c $n /dev/urandom > from/b$n; done");
  for (int c = 1; c < 256; c++) { /* every byte that a name may have */
    if (c == '/') continue;
    snprintf(name, sizeof name, "%s/n%cm", path(r, "from/with space"), c);
    int fd = open(name, O_WRONLY | O_CREAT, 0644);
    assert_true(fd >= 0);
    close(fd);
  }
  memset(name, 'x', 255);
  name[255] = 0;
  sh(r, "touch from/%s && mkdir from/%.254sd && touch from/%.254sd/%s", name, name, name, name);
  sh(r,
    "touch -h -d '2001-02-03 04:05:06.123456789' from/a/b/link from/a/one && touch -d '1970-01-01 00:00:00 UTC' from/empty && touch -d '1969-12-31 23:59:58 UTC' from/b1"
    " && touch -d '1901-12-14 UTC' from/b511 && touch -d '2200-01-01 UTC' from/b512 && touch -d '2033-05-18 03:33:20.000000001 UTC' from/a/b/c");
  sh(r, "touch -d '2010-01-01' from/a from");
}

static void
test_xfer_in_tree_arrives_as_it_was(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  make_every_kind(&r);
  copy_in(&r, path(&r, "from"), path(&r, "deep/er/to"), &o);
  assert_ok(&o);
  assert_int_equal(o.stats.changed, 0);
  assert_int_equal(o.stats.total, o.stats.bytes);
  assert_same_trees(path(&r, "from"), path(&r, "deep/er/to"), 300);
  copy_in(&r, path(&r, "from"), path(&r, "deep/er/to"), &o); /* merged over itself */
  assert_ok(&o);
  assert_same_trees(path(&r, "from"), path(&r, "deep/er/to"), 300);
  assert_int_equal(leftovers(path(&r, "deep/er")), 0);
  if (getuid() == 0) { /* who is not told where it came from gets nothing but the bytes */
    sh(&r, "chown -R 12345:12346 from/a && setfattr -n user.x -v y from/a/one 2>/dev/null; chmod 6755 from/modes/f777; rm -rf to");
    copy_in(&r, path(&r, "from"), path(&r, "to"), &o);
    assert_ok(&o);
    sh(&r, "test $(stat -c %%u:%%g to/a/one) = 0:0 && test $(stat -c %%a to/modes/f777) = 755 && ! getfattr -n user.x to/a/one 2>/dev/null");
  }
  rig_end(&r);
}

/* A store of packages that is linked into a tree, as pnpm does it: names of one file stay so, and what is kept of each
 * is little. */
static void
test_xfer_in_tree_of_links_takes_little_memory(void **state) {
  (void) state;
  START(r);
  enum { FILES = 20000, MOST = 24 << 20 };
  outcome_t o;
  sh(&r, "mkdir -p store from/package from/again");
  int dirs[] = { open_dir(path(&r, "store")), open_dir(path(&r, "from/package")), open_dir(path(&r, "from/again")) };
  for (int i = 0; i < FILES; i++) {
    char name[64];
    snprintf(name, sizeof name, "some-usual-name-of-a-module-%d.js", i);
    int fd = openat(dirs[0], name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    assert_true(fd >= 0 && write(fd, name, 1) == 1 && close(fd) == 0);
    for (int k = 1; k < (i < 1000 ? 3 : 2); k++) assert_int_equal(linkat(dirs[0], name, dirs[k], name, 0), 0);
  }
  bool measured = memory_reset();
  size_t before = memory("VmRSS:");
  copy_in(&r, path(&r, "from"), path(&r, "to"), &o);
  assert_ok(&o);
  size_t peak = memory("VmHWM:");
  if (measured && peak > before + MOST) fail_msg("memory grew by %zu KiB", (peak - before) >> 10);
  sh(&r, "test $(find to -type f | wc -l) = 21000 && test $(find to -type f -links 2 | wc -l) = 2000 && diff -r from to");
  for (int i = 0; i < 3; i++) close(dirs[i]);
  rig_end(&r);
}

/* ---- paths that are too long, or too deep ---- */

static void
test_xfer_in_long_paths_are_refused_with_the_path(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  char name[200];
  memset(name, 'd', sizeof name);
  snprintf(name + 195, 5, "-end");
  /* 20 x 200 + 95 = 4095 bytes below the root; then 96 and 97 */
  for (int k = 95; k <= 97; k++) {
    sh(&r, "rm -rf from to && mkdir from");
    int dir = open(path(&r, "from"), O_RDONLY | O_DIRECTORY);
    for (int i = 0; i < 20; i++) {
      assert_int_equal(mkdirat(dir, name, 0755), 0);
      int next = openat(dir, name, O_RDONLY | O_DIRECTORY);
      close(dir);
      dir = next;
    }
    char last[128];
    memset(last, 'f', sizeof last);
    last[k] = 0;
    close(openat(dir, last, O_WRONLY | O_CREAT, 0644));
    close(dir);
    copy_in(&r, path(&r, "from"), path(&r, "to"), &o);
    if (k <= 96) assert_ok(&o);
    else {
      assert_fails(&o, AL_ESOURCE_UNSUPPORTED, "its path is longer than 4096 bytes");
      assert_fails(&o, AL_ESOURCE_UNSUPPORTED, path(&r, "from"));
      assert_fails(&o, AL_ESOURCE_UNSUPPORTED, last);
      sh(&r, "test ! -e to");
    }
  }
  sh(&r, "rm -rf from && mkdir from && cd from && for i in $(seq 498); do mkdir d && cd d; done && : > f");
  copy_in(&r, path(&r, "from"), path(&r, "to"), &o);
  assert_ok(&o);
  sh(&r, "rm -rf from to && mkdir from && cd from && for i in $(seq 501); do mkdir d && cd d; done");
  copy_in(&r, path(&r, "from"), path(&r, "to"), &o);
  assert_fails(&o, AL_ESOURCE_UNSUPPORTED, "nested too deeply");
  rig_end(&r);
}

/* ---- our archive, read by others ---- */

typedef struct writing_s {
  al_tar_t tar;
  al_pipe_t pipe;
  volatile bool done;
  int status;
} writing_t;

static void
on_block(uv_async_t *a) {
  (void) a;
}

static void
write_on_thread(void *data) {
  writing_t *w = data;
  w->status = al__tar_write(&w->tar);
  __atomic_store_n(&w->done, true, __ATOMIC_SEQ_CST);
}

static void
archive_to(rig_t *r, const char *what, const char *file) {
  writing_t w = { .tar = { .host_path = what, .name = "name", .fd = -1 } };
  uv_thread_t thread;
  FILE *f = fopen(file, "w");
  assert_non_null(f);
  assert_int_equal(al__pipe_init(&r->loop, &w.pipe, on_block), 0);
  w.tar.pipe = &w.pipe;
  assert_int_equal(al__tar_look(&w.tar), 0);
  assert_int_equal(uv_thread_create(&thread, write_on_thread, &w), 0);
  for (bool done = false;;) {
    al_block_t *b = al__pipe_take(&w.pipe);
    if (!b && done) break;
    if (!b) {
      done = __atomic_load_n(&w.done, __ATOMIC_SEQ_CST);
      if (!done) usleep(500);
      continue;
    }
    assert_int_equal(fwrite(b->bytes, 1, b->len, f), b->len);
    al_free(b->bytes);
    al_free(b);
  }
  uv_thread_join(&thread);
  assert_int_equal(fclose(f), 0);
  assert_int_equal(w.status, 0);
  al__tar_close(&w.tar);
  uv_close((uv_handle_t *) &w.pipe.async, NULL);
  uv_run(&r->loop, UV_RUN_NOWAIT);
  al__pipe_deinit(&w.pipe);
}

static void
test_xfer_in_archive_is_read_by_other_programs(void **state) {
  (void) state;
  START(r);
  static const char *const readers[] = { "tar --warning=no-unknown-keyword --warning=no-timestamp -xpf", "bsdtar -xpf" };
  int missing = 0;
  make_every_kind(&r);
  archive_to(&r, path(&r, "from"), path(&r, "archive"));
  for (size_t i = 0; i < sizeof readers / sizeof readers[0]; i++) {
    char cmd[256];
    snprintf(cmd, sizeof cmd, "command -v %.*s >/dev/null", (int) strcspn(readers[i], " "), readers[i]);
    if (system(cmd) != 0) {
      print_message("skipped: there is no %.*s\n", (int) strcspn(readers[i], " "), readers[i]);
      missing++;
      continue;
    }
    sh(&r, "rm -rf to && mkdir to && %s archive -C to && touch -r from to", readers[i]); /* bsdtar leaves the root's time */
    assert_same_trees(path(&r, "from"), path(&r, "to"), 300);
  }
  rig_end(&r);
  if (missing > 0) skip();
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_xfer_in_tree_arrives_as_it_was),
    cmocka_unit_test(test_xfer_in_tree_of_links_takes_little_memory),
    cmocka_unit_test(test_xfer_in_long_paths_are_refused_with_the_path),
    cmocka_unit_test(test_xfer_in_archive_is_read_by_other_programs),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
