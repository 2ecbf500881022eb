/* SPDX-License-Identifier: Apache-2.0 */
/* Proof that stored image files are what was imported: hashing, and when an earlier hashing may be believed. */
#include "buf.h"
#include "image_int.h"
#include "mem.h"
#include "platform.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/*
 * Theory of operation. Hashing half a gigabyte takes seconds, so its result is kept in <dir>/.verified: the manifest's
 * digest, and of every file size, times, inode and device. When these are all the same, nobody has written to the
 * files: a write changes ctime, which no program can set back. One hole is left, a write within the granularity of the
 * clock right after the hashing; so a result is kept only when every ctime is at least two seconds older than the
 * hashing.
 */

#define CHUNK ((size_t) 1 << 20)
#define ZERO_BLOCK ((size_t) 64 << 10)
#define SETTLED_NS 2000000000ll
#define RECORD_MAX 8192u

static int
write_block(int fd, const uint8_t *p, size_t n) {
  while (n > 0) {
    ssize_t w = write(fd, p, n);
    if (w < 0 && errno == EINTR) continue;
    if (w <= 0) return w < 0 ? -errno : -EIO;
    p += w, n -= (size_t) w;
  }
  return 0;
}

static int
write_sparse(int fd, const uint8_t *p, size_t n) {
  while (n > 0) {
    size_t part = n < ZERO_BLOCK ? n : ZERO_BLOCK;
    bool zero = p[0] == 0 && memcmp(p, p + 1, part - 1) == 0;
    if (zero && lseek(fd, (off_t) part, SEEK_CUR) < 0) return -errno;
    int rc = zero ? 0 : write_block(fd, p, part);
    if (rc) return rc;
    p += part, n -= part;
  }
  return 0;
}

int
al__image_hash(int fd, int out, char hex[AL_SHA256_HEX], int (*step)(void *data, uint64_t bytes), void *data) {
  AL_AUTO_FREE uint8_t *chunk = al_malloc(CHUNK);
  uint8_t digest[AL_SHA256_LEN];
  al_sha256_t sum;
  off_t total = 0;

  if (!chunk) return -ENOMEM;
  al_sha256_init(&sum);
  for (;;) {
    ssize_t n = read(fd, chunk, CHUNK);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return -errno;
    if (n == 0) break;
    total += n;
    al_sha256_update(&sum, chunk, (size_t) n);
    int rc = step ? step(data, (uint64_t) n) : 0;
    if (!rc && out >= 0) rc = write_sparse(out, chunk, (size_t) n);
    if (rc) return rc;
  }
  if (out >= 0 && ftruncate(out, total)) return -errno;
  al_sha256_final(&sum, digest);
  al_sha256_hex(digest, hex);
  return 0;
}

static uint64_t
big_endian(const uint8_t *p, size_t n) {
  uint64_t v = 0;
  for (size_t i = 0; i < n; i++) v = v << 8 | p[i];
  return v;
}

int
al__image_check_qcow2(int fd, const char *name, uint64_t virtual_size, al_err_t *err) {
  uint8_t h[104];

  if (pread(fd, h, sizeof h, 0) != (ssize_t) sizeof h || memcmp(h, "QFI\xfb", 4)) {
    return al_err_set(err, AL_EIMAGE_INVALID, "%s is not a qcow2 disk.", name);
  }
  uint64_t version = big_endian(h + 4, 4);
  if (version != 2 && version != 3) {
    return al_err_set(err, AL_EIMAGE_INVALID, "%s is qcow2 of an unknown version.", name);
  }
  if (big_endian(h + 8, 8)) {
    return al_err_set(err, AL_EIMAGE_INVALID, "%s has a backing file: an image must stand alone.", name);
  }
  if (version == 3 && (big_endian(h + 72, 8) & 4)) {
    return al_err_set(err, AL_EIMAGE_INVALID, "%s keeps its data in another file: an image must stand alone.", name);
  }
  if (big_endian(h + 32, 4)) return al_err_set(err, AL_EIMAGE_INVALID, "%s is encrypted.", name);
  if (big_endian(h + 24, 8) != virtual_size) {
    return al_err_set(err, AL_EIMAGE_INVALID, "%s is a disk of %llu bytes, but the manifest says %llu.", name,
      (unsigned long long) big_endian(h + 24, 8), (unsigned long long) virtual_size);
  }
  return 0;
}

/* The line of one file in the record, and its ctime when that is the latest so far. */
static int
describe(const al__image_file_t *f, const struct stat *st, al_buf_t *record, int64_t *latest) {
  int64_t modified, changed;

  al_plat_stat_times(st, &modified, &changed);
  if (changed > *latest) *latest = changed;
  return al_buf_printf(record, "%s %lld %lld %lld %llu %llu\n", f->name, (long long) st->st_size, (long long) modified,
    (long long) changed,
    (unsigned long long) st->st_ino, (unsigned long long) st->st_dev);
}

static int
corrupt(al_err_t *err, const char *id, const char *name, const char *what) {
  return al_err_set(err, AL_EIMAGE_CORRUPT, "Image %s: %s %s.", id, name, what);
}

/* Checks what stat can tell of every file and writes the record that a good hashing of these very files would leave. */
static int
survey(int dir, const char *id, const al__manifest_t *m, al_buf_t *record, int64_t *latest, al_err_t *err) {
  struct stat st;

  int rc = al_buf_printf(record, "agent-lane-verified 1 %s\n", m->sha256);
  for (size_t i = 0; rc == 0 && i < m->count; i++) {
    const al__image_file_t *f = &m->files[i];
    if (fstatat(dir, f->name, &st, AT_SYMLINK_NOFOLLOW)) return corrupt(err, id, f->name, "is missing");
    if (!S_ISREG(st.st_mode)) return corrupt(err, id, f->name, "is not a regular file any more");
    if ((uint64_t) st.st_size != f->size) {
      return al_err_set(err, AL_EIMAGE_CORRUPT, "Image %s: %s has %lld bytes instead of %llu (expected sha256 %s).",
        id, f->name,
        (long long) st.st_size, (unsigned long long) f->size, f->sha256);
    }
    rc = describe(f, &st, record, latest);
  }
  return rc;
}

static int
hash_all(int dir, const char *id, const al__manifest_t *m, al_err_t *err) {
  char hex[AL_SHA256_HEX];

  for (size_t i = 0; i < m->count; i++) {
    const al__image_file_t *f = &m->files[i];
    AL_AUTO_FD int fd = openat(dir, f->name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
      return al_err_set(err, AL_EIMAGE_CORRUPT, "Image %s: %s cannot be opened: %s.", id, f->name, strerror(errno));
    }
    int rc = al__image_hash(fd, -1, hex, NULL, NULL);
    if (rc) return al_err_set(err, rc, "Image %s: %s cannot be read: %s.", id, f->name, strerror(-rc));
    if (strcmp(hex, f->sha256)) {
      return al_err_set(err, AL_EIMAGE_CORRUPT, "Image %s: %s has sha256 %s, expected %s.", id, f->name, hex,
        f->sha256);
    }
  }
  return 0;
}

static int
open_dir(const al_home_t *home, const char *id, al_err_t *err) {
  char path[AL_HOME_MAX + 80];
  struct stat st;

  snprintf(path, sizeof path, "%s/%s", home->images, id);
  AL_AUTO_FD int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0 || fstat(fd, &st)) return -errno;
  if (st.st_uid != geteuid() || (st.st_mode & 022)) {
    return al_err_set(err, AL_EHOME_UNSAFE, "%s may be changed by other users.", path);
  }
  int open_fd = fd;
  fd = -1; /* al_steal would leave descriptor 0 to be closed */
  return open_fd;
}

int
al__image_load(const al_home_t *home, const char *id, al__manifest_t *out, al_err_t *err) {
  AL_AUTO_FREE char *text = NULL;
  char real[72];
  size_t len;

  AL_AUTO_FD int dir = open_dir(home, id, err);
  if (dir < 0) return dir;
  int rc = al_plat_read_file(dir, "manifest.json", AL_IMAGE_MANIFEST_MAX, &text, &len);
  if (rc == -ENOMEM) return al_err_set(err, rc, "Out of memory.");
  if (rc) {
    return al_err_set(err, rc == -ENOENT ? rc : AL_EIMAGE_CORRUPT, "Image %s: manifest.json cannot be read: %s.", id,
      strerror(-rc));
  }
  rc = al__manifest_parse(text, len, out, err);
  if (rc == -ENOMEM) return rc;
  if (rc) return al_err_set(err, AL_EIMAGE_CORRUPT, "Image %s: manifest.json is not what was imported.", id);
  al__manifest_id(out, real);
  if (strcmp(real, id)) {
    return al_err_set(err, AL_EIMAGE_CORRUPT,
      "Image %s: manifest.json has sha256 %s, which the image's name contradicts.", id, out->sha256);
  }
  return 0;
}

int
al__image_verify(const al_home_t *home, const char *id, const al__manifest_t *m, al_err_t *err) {
  AL_AUTO_FREE char *kept = NULL;
  struct timespec now;
  al_buf_t before, after;
  int64_t latest = 0;
  size_t len = 0;

  AL_AUTO_FD int dir = open_dir(home, id, err);
  if (dir < 0) return dir;
  al_buf_init(&before, RECORD_MAX);
  al_buf_init(&after, RECORD_MAX);
  int rc = survey(dir, id, m, &before, &latest, err);
  if (rc) goto done;
  rc = al_plat_read_file(dir, ".verified", RECORD_MAX, &kept, &len);
  if (rc == -ENOMEM || (rc == 0 && len == before.len && memcmp(kept, before.data, len) == 0)) goto done;
  clock_gettime(CLOCK_REALTIME, &now);
  int64_t hashed_at = (int64_t) now.tv_sec * 1000000000 + now.tv_nsec;
  rc = hash_all(dir, id, m, err);
  if (!rc) rc = survey(dir, id, m, &after, &latest, err);
  if (rc) goto done;
  if (before.len != after.len || memcmp(before.data, after.data, after.len)) {
    rc = al_err_set(err, AL_EIMAGE_CORRUPT, "Image %s changed while it was checked.", id);
  } else if (hashed_at - latest >= SETTLED_NS) {
    /* Without the record the next check is slower, not wrong. */
    (void) al_plat_write_replace(dir, ".verified", after.data, after.len, 0600);
  }
done:
  if (rc == -ENOMEM) al_err_set(err, rc, "Out of memory.");
  al_buf_deinit(&before);
  al_buf_deinit(&after);
  return rc;
}
