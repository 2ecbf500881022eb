/* SPDX-License-Identifier: Apache-2.0 */
/* Image import: copies and hashes a directory's files beside the store, and renames the whole in. */
#include "image_int.h"
#include "mem.h"
#include "platform.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#define ASIDE ".import."
#define ASIDE_AGE_S (24 * 3600) /* an import that began longer ago has been abandoned */
#define LARGE (64u << 20)
#define SETTLE_US 2100000 /* see image_verify.c: a hashing is remembered when the files are older than that */
#define ROOM_SPARE (256ull << 20)

typedef struct import_s {
  int from, to; /* directories */
  const al__manifest_t *m;
  al_image_progress_cb progress;
  void *data;
  uint64_t done, left; /* left: of the file, by the manifest */
} import_t;

/* A file that grows under us must not fill the disk. */
static int
advance(void *data, uint64_t bytes) {
  import_t *im = data;
  if (bytes > im->left) return -EFBIG;
  im->left -= bytes;
  im->done += bytes;
  if (im->progress) im->progress(im->data, im->done, im->m->bytes);
  return 0;
}

/* A descriptor of the file that is to be imported: a regular one, of the size in the manifest. */
static int
open_source(const import_t *im, const al__image_file_t *f, al_err_t *err) {
  struct stat st;

  AL_AUTO_FD int in = openat(im->from, f->name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (in < 0 && errno == ENOENT) return al_err_set(err, AL_ESOURCE_MISSING, "The image's file %s is missing.", f->name);
  if (in < 0 && errno == ELOOP) {
    return al_err_set(err, AL_EIMAGE_INVALID, "The image's file %s is a symbolic link, and links are refused.", f->name);
  }
  if (in < 0 || fstat(in, &st)) {
    return al_err_set(err, AL_ESOURCE_UNREADABLE, "The image's file %s cannot be opened: %s.", f->name,
      strerror(errno));
  }
  if (!S_ISREG(st.st_mode)) {
    return al_err_set(err, AL_EIMAGE_INVALID, "The image's file %s is not a regular file.", f->name);
  }
  if ((uint64_t) st.st_size != f->size) {
    return al_err_set(err, AL_EIMAGE_INVALID, "The image's file %s has %lld bytes, but the manifest says %llu.",
      f->name,
      (long long) st.st_size, (unsigned long long) f->size);
  }
  int found = in;
  in = -1; /* al_steal would leave descriptor 0 to be closed */
  return found;
}

static int
judge_digest(const al__image_file_t *f, const char *hex, al_err_t *err) {
  if (strcmp(hex, f->sha256) == 0) return 0;
  return al_err_set(err, AL_EIMAGE_INVALID, "The image's file %s has sha256 %s, but the manifest says %s.", f->name,
    hex, f->sha256);
}

/* Of an image that the store has already: whoever imports a directory wants to know whether it is whole. */
static int
check_file(import_t *im, const al__image_file_t *f, al_err_t *err) {
  char hex[AL_SHA256_HEX];

  AL_AUTO_FD int in = open_source(im, f, err);
  if (in < 0) return in;
  im->left = f->size;
  int rc = al__image_hash(in, -1, hex, advance, im);
  if (rc == -EFBIG) return al_err_set(err, AL_EIMAGE_INVALID, "The image's file %s grew while it was read.", f->name);
  if (rc) return al_err_set(err, rc, "The image's file %s cannot be read: %s.", f->name, strerror(-rc));
  return judge_digest(f, hex, err);
}

static int
copy_file(import_t *im, const al__image_file_t *f, al_err_t *err) {
  char hex[AL_SHA256_HEX];

  AL_AUTO_FD int in = open_source(im, f, err);
  if (in < 0) return in;
  AL_AUTO_FD int out = openat(im->to, f->name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (out < 0) return al_err_set(err, -errno, "%s cannot be made in the store: %s.", f->name, strerror(errno));
  im->left = f->size;
  int rc = al__image_hash(in, out, hex, advance, im);
  if (rc == -EFBIG) return al_err_set(err, AL_EIMAGE_INVALID, "The image's file %s grew while it was copied.", f->name);
  if (!rc && fchmod(out, 0400)) rc = -errno;
  if (!rc) rc = al_plat_fsync(out);
  if (rc) return al_err_set(err, rc, "%s cannot be copied into the store: %s.", f->name, strerror(-rc));
  if ((rc = judge_digest(f, hex, err)) || strcmp(f->role, "disk")) return rc;
  return al__image_check_qcow2(out, f->name, im->m->virtual_size, err);
}

static int
check_room(int fd, uint64_t need, al_err_t *err) {
  struct statvfs vfs;

  if (fstatvfs(fd, &vfs)) return 0; /* the copy will say */
  uint64_t room = (uint64_t) vfs.f_bavail * vfs.f_frsize;
  if (room >= need + ROOM_SPARE) return 0;
  return al_err_set(err, -ENOSPC, "The image needs %llu MiB, and the store's disk has %llu MiB left.",
    (unsigned long long) ((need + ROOM_SPARE) >> 20), (unsigned long long) (room >> 20));
}

/* Only names of ours, and only old ones: another process may be importing now. */
void
al_image_sweep(const al_home_t *home) {
  struct dirent *e;
  struct stat st;

  AL_AUTO_FD int images = open(home->images, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  int fd = images < 0 ? -1 : openat(images, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
  if (!dir) {
    if (fd >= 0) close(fd);
    return;
  }
  while ((e = readdir(dir))) {
    if (strncmp(e->d_name, ASIDE, sizeof ASIDE - 1) || strlen(e->d_name) != sizeof ASIDE - 1 + 16) continue;
    if (fstatat(images, e->d_name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISDIR(st.st_mode)) continue;
    if (time(NULL) - st.st_mtime > ASIDE_AGE_S) (void) al_plat_remove_tree(images, e->d_name);
  }
  closedir(dir);
}

static int
fill(import_t *im, const char *text, size_t len, al_err_t *err) {
  int rc = check_room(im->to, im->m->bytes, err);
  for (size_t i = 0; rc == 0 && i < im->m->count; i++) rc = copy_file(im, &im->m->files[i], err);
  if (rc) return rc;
  rc = al_plat_write_new(im->to, "manifest.json", text, len, 0400);
  return rc ? al_err_set(err, rc, "manifest.json cannot be written: %s.", strerror(-rc)) : 0;
}

/* Renames the finished directory in. When another process was faster with the same image, its copy is as good. */
static int
publish(int images, const char *aside, const char *id, al_err_t *err) {
  if (renameat(images, aside, images, id) == 0) {
    int rc = al_plat_fsync(images);
    return rc == -EINVAL || rc == -ENOTSUP ? 0 : rc;
  }
  if (errno == EEXIST || errno == ENOTEMPTY) return al_plat_remove_tree(images, aside);
  return al_err_set(err, -errno, "Image %s cannot be put into the store: %s.", id, strerror(errno));
}

static int
import_new(const al_home_t *home, import_t *im, const char *id, const char *text, size_t len, al_err_t *err) {
  char aside[sizeof ASIDE + 16];
  uint64_t r;

  AL_AUTO_FD int images = open(home->images, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (images < 0) return al_err_set(err, -errno, "%s cannot be opened: %s.", home->images, strerror(errno));
  int rc = al_plat_random(&r, sizeof r);
  if (rc) return rc;
  al_image_sweep(home);
  snprintf(aside, sizeof aside, ASIDE "%016llx", (unsigned long long) r);
  if (mkdirat(images, aside, 0700)) {
    return al_err_set(err, -errno, "%s: no directory can be made: %s.", home->images, strerror(errno));
  }
  AL_AUTO_FD int to = openat(images, aside, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  im->to = to;
  rc = to < 0 ? al_err_set(err, -errno, "%s: %s.", aside, strerror(errno)) : fill(im, text, len, err);
  if (!rc) rc = publish(images, aside, id, err);
  if (rc) (void) al_plat_remove_tree(images, aside);
  return rc;
}

/* An intact image of this id: nothing to do. A damaged one goes: that is what importing it again asks for. */
static int
look_for_old(const al_home_t *home, const char *id, bool *there, al_err_t *err) {
  al__manifest_t old;
  al_err_t why = {0};

  int rc = al__image_load(home, id, &old, &why);
  if (!rc) rc = al__image_verify(home, id, &old, &why);
  *there = rc == 0;
  if (rc == 0 || rc == -ENOENT) return 0;
  if (rc != AL_EIMAGE_CORRUPT) {
    if (err) *err = why;
    return rc;
  }
  AL_AUTO_FD int images = open(home->images, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (images < 0) return -errno;
  rc = al_plat_remove_tree(images, id);
  return rc ? al_err_set(err, rc, "The damaged image %s cannot be removed: %s.", id, strerror(-rc)) : 0;
}

static int
import(const al_home_t *home, const char *from, bool again, al_image_progress_cb progress, void *data, al_image_t *out,
  al_err_t *err) {
  AL_AUTO_FREE al__manifest_t *m = al_calloc(1, sizeof *m);
  AL_AUTO_FREE char *text = NULL;
  char id[72];
  size_t len;
  bool there;

  if (!m) return al_err_set(err, -ENOMEM, "Out of memory.");
  AL_AUTO_FD int dir = open(from, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (dir < 0) {
    return al_err_set(err, AL_ESOURCE_MISSING, "%.300s cannot be opened as a directory: %s.", from, strerror(errno));
  }
  int rc = al_plat_read_file(dir, "manifest.json", AL_IMAGE_MANIFEST_MAX, &text, &len);
  if (rc == -ENOENT) {
    return al_err_set(err, AL_ESOURCE_MISSING, "%.300s holds no image: there is no manifest.json in it.", from);
  }
  if (rc == -ENOMEM) return al_err_set(err, rc, "Out of memory.");
  if (rc) return al_err_set(err, AL_EIMAGE_INVALID, "%.300s/manifest.json cannot be read: %s.", from, strerror(-rc));
  if ((rc = al__manifest_parse(text, len, m, err))) return rc;
  al__manifest_id(m, id);
  if ((rc = look_for_old(home, id, &there, err))) return rc;
  import_t im = {.from = dir, .to = -1, .m = m, .progress = progress, .data = data};
  for (size_t i = 0; there && rc == 0 && again && i < m->count; i++) rc = check_file(&im, &m->files[i], err);
  if (rc) return rc;
  if (there) return al__manifest_image(m, home, NULL, out, err);
  if ((rc = import_new(home, &im, id, text, len, err))) {
    if (err && !err->code) al_err_set(err, rc, "Image %s cannot be imported: %s.", id, strerror(-rc));
    return rc;
  }
  if (m->bytes >= LARGE) { /* read back what the disk holds, now and not when somebody waits for the first lane */
    usleep(SETTLE_US);
    if ((rc = al__image_verify(home, id, m, err))) return rc;
  }
  return al__manifest_image(m, home, NULL, out, err);
}

int
al_image_import(const al_home_t *home, const char *from, al_image_progress_cb progress, void *data, al_image_t *out,
  al_err_t *err) {
  return import(home, from, false, progress, data, out, err);
}

int
al_image_import_checked(const al_home_t *home, const char *from, al_image_t *out, al_err_t *err) {
  return import(home, from, true, NULL, NULL, out, err);
}
