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

int
al__image_write_sparse(int fd, const uint8_t *p, size_t n) {
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
al__image_hash(int fd, int out, char hex[AL_SHA256_HEX], al__image_step_cb step, void *data) {
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
    if (!rc && out >= 0) rc = al__image_write_sparse(out, chunk, (size_t) n);
    if (rc) return rc;
  }
  if (out >= 0 && ftruncate(out, total)) return -errno;
  al_sha256_final(&sum, digest);
  al_sha256_hex(digest, hex);
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
hash_all(int dir, const char *id, const al__manifest_t *m, al__image_step_cb step, void *data, al_err_t *err) {
  char hex[AL_SHA256_HEX];

  for (size_t i = 0; i < m->count; i++) {
    const al__image_file_t *f = &m->files[i];
    AL_AUTO_FD int fd = openat(dir, f->name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
      return al_err_set(err, AL_EIMAGE_CORRUPT, "Image %s: %s cannot be opened: %s.", id, f->name, strerror(errno));
    }
    int rc = al__image_hash(fd, -1, hex, step, data);
    if (rc == -ECANCELED) return al_err_set(err, AL_EINTERRUPTED, "The check of image %s was interrupted.", id);
    if (rc) return al_err_set(err, rc, "Image %s: %s cannot be read: %s.", id, f->name, strerror(-rc));
    if (strcmp(hex, f->sha256)) {
      return al_err_set(err, AL_EIMAGE_CORRUPT, "Image %s: %s has sha256 %s, expected %s.", id, f->name, hex,
        f->sha256);
    }
  }
  return 0;
}

bool
al__image_id_valid(const char *id) {
  size_t len = strlen(id), name = len - 13;

  if (len < 14 || name > 32 || id[name] != '-' || id[0] == '-') return false;
  for (size_t i = 0; i < name; i++) {
    if (!strchr("abcdefghijklmnopqrstuvwxyz0123456789-", id[i])) return false;
  }
  return strspn(id + name + 1, "0123456789abcdef") == 12;
}

bool
al__image_is_named(const char *id, const char *name) {
  size_t len = strlen(name);
  return strlen(id) == len + 13 && memcmp(id, name, len) == 0;
}

int
al__image_dir(const al_home_t *home, const char *id, al_err_t *err) {
  char path[AL_HOME_MAX + AL_IMAGE_ID_MAX + 8];
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

/* The digest comes first: what is not what was imported is damaged, whatever it says now. */
static int
parse(const char *id, const char *text, size_t len, al__manifest_t *out, al_err_t *err) {
  char real[AL_IMAGE_ID_MAX], hex[AL_SHA256_HEX];

  al_sha256_text(text, len, hex);
  if (strlen(id) < 12 || memcmp(id + strlen(id) - 12, hex, 12)) {
    return al_err_set(err, AL_EIMAGE_CORRUPT,
      "Image %s: manifest.json has sha256 %s, which the image's name contradicts.", id, hex);
  }
  int rc = al__manifest_parse(text, len, out, err);
  if (rc == -ENOMEM || rc == AL_EIMAGE_FORMAT) {
    al_err_wrap(err, "Image %s", id);
    return rc;
  }
  if (rc) return al_err_set(err, AL_EIMAGE_CORRUPT, "Image %s: manifest.json is not what was imported.", id);
  al__manifest_id(out, real);
  if (strcmp(real, id) == 0) return 0;
  return al_err_set(err, AL_EIMAGE_CORRUPT, "Image %s: manifest.json is that of image %s.", id, real);
}

int
al__image_load(const al_home_t *home, const char *id, al__manifest_t *out, char **text, size_t *len, al_err_t *err) {
  AL_AUTO_FREE char *read = NULL;
  size_t n;

  AL_AUTO_FD int dir = al__image_dir(home, id, err);
  if (dir < 0) return dir;
  int rc = al_plat_read_file(dir, "manifest.json", AL_IMAGE_MANIFEST_MAX, &read, &n);
  if (rc == -ENOMEM) return al_err_set(err, rc, "Out of memory.");
  if (rc) {
    return al_err_set(err, rc == -ENOENT ? rc : AL_EIMAGE_CORRUPT, "Image %s: manifest.json cannot be read: %s.", id,
      strerror(-rc));
  }
  if ((rc = parse(id, read, n, out, err)) || !text) return rc;
  *text = al_steal(&read);
  *len = n;
  return 0;
}

static int
check_signature(int dir, const char *id, al_err_t *err) {
  AL_AUTO_FREE char *signature = NULL;
  return al__signature_load(dir, id, &signature, NULL, err);
}

typedef struct look_s {
  int dir;
  const char *id;
  const al__manifest_t *m;
  al_buf_t before, after; /* the record, before the hashing and behind it */
} look_t;

/* Hashes, and keeps the result when it may be believed later. */
static int
prove(look_t *l, int64_t latest, al__image_step_cb step, void *data, al_err_t *err) {
  struct timespec now;

  clock_gettime(CLOCK_REALTIME, &now);
  int64_t hashed_at = (int64_t) now.tv_sec * 1000000000 + now.tv_nsec;
  int rc = hash_all(l->dir, l->id, l->m, step, data, err);
  if (!rc) rc = survey(l->dir, l->id, l->m, &l->after, &latest, err);
  if (rc) return rc;
  if (l->before.len != l->after.len || memcmp(l->before.data, l->after.data, l->after.len))
    return al_err_set(err, AL_EIMAGE_CORRUPT, "Image %s changed while it was checked.", l->id);
  /* Without the record the next check is slower, not wrong. */
  if (hashed_at - latest >= SETTLED_NS)
    (void) al_plat_write_replace(l->dir, ".verified", l->after.data, l->after.len, 0600);
  return 0;
}

static int
look(look_t *l, bool believe, al__image_step_cb step, void *data, al_err_t *err) {
  AL_AUTO_FREE char *kept = NULL;
  int64_t latest = 0;
  size_t len = 0;

  int rc = check_signature(l->dir, l->id, err);
  if (!rc) rc = survey(l->dir, l->id, l->m, &l->before, &latest, err);
  if (rc) return rc;
  rc = believe ? al_plat_read_file(l->dir, ".verified", RECORD_MAX, &kept, &len) : -ENOENT;
  if (rc == -ENOMEM || (rc == 0 && len == l->before.len && memcmp(kept, l->before.data, len) == 0)) return rc;
  return prove(l, latest, step, data, err);
}

static int
verify(const al_home_t *home, const char *id, const al__manifest_t *m, bool believe, al__image_step_cb step, void *data,
  al_err_t *err) {
  look_t l = {.id = id, .m = m};

  AL_AUTO_FD int dir = al__image_dir(home, id, err);
  if (dir < 0) return dir;
  l.dir = dir;
  al_buf_init(&l.before, RECORD_MAX);
  al_buf_init(&l.after, RECORD_MAX);
  int rc = look(&l, believe, step, data, err);
  if (rc == -ENOMEM) al_err_set(err, rc, "Out of memory.");
  /* A disk may give other bytes without any trace in the times: an earlier result must not outlive that. */
  if (rc && rc != AL_EINTERRUPTED) (void) unlinkat(dir, ".verified", 0);
  al_buf_deinit(&l.before);
  al_buf_deinit(&l.after);
  return rc;
}

int
al__image_verify(const al_home_t *home, const char *id, const al__manifest_t *m, al_err_t *err) {
  return verify(home, id, m, true, NULL, NULL, err);
}

int
al__image_verify_all(const al_home_t *home, const char *id, const al__manifest_t *m, al__image_step_cb step, void *data,
  al_err_t *err) {
  return verify(home, id, m, false, step, data, err);
}
