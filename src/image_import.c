/* SPDX-License-Identifier: Apache-2.0 */
/* Image import: copies and hashes a directory's or an archive's files beside the store, and renames the whole in. */
#include "image_int.h"
#include "mem.h"
#include "platform.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define CHUNK ((size_t) 1 << 20)
#define LARGE (64u << 20)
#define SETTLE_US 2100000 /* see image_verify.c: a hashing is remembered when the files are older than that */
#define ROOM_SPARE (256ull << 20)
#define LOCK_WAIT_MS 2000u  /* of who would remove it, which others use perhaps for long */
#define HOLD_WAIT_MS 10000u /* of a removal or a replacement that is under way */

/* ---- one file ---- */

static int
judge(const al__import_t *im, const al__image_file_t *f, const char *hex, al_err_t *err) {
  if (im->left) {
    return al_err_set(err, AL_EIMAGE_INVALID, "The image's file %s ended after %llu of %llu bytes.", f->name,
      (unsigned long long) (f->size - im->left), (unsigned long long) f->size);
  }
  if (strcmp(hex, f->sha256) == 0) return 0;
  return al_err_set(err, AL_EIMAGE_INVALID, "The image's file %s has sha256 %s, but the manifest says %s.", f->name,
    hex, f->sha256);
}

/* Reads to the end, hashes, and copies to `out` unless it is -1. A file that grows under us must not fill the disk. */
static int
transfer(al__import_t *im, const al__image_file_t *f, int out, al__import_read_cb read_cb, void *source, char *hex,
  al_err_t *err) {
  AL_AUTO_FREE uint8_t *chunk = al_malloc(CHUNK);
  uint8_t digest[AL_SHA256_LEN];
  al_sha256_t sum;
  int64_t n;

  if (!chunk) return al_err_set(err, -ENOMEM, "Out of memory.");
  al_sha256_init(&sum);
  while ((n = read_cb(source, chunk, CHUNK)) > 0) {
    if ((uint64_t) n > im->left) {
      return al_err_set(err, AL_EIMAGE_INVALID, "The image's file %s grew while it was %s.", f->name,
        out < 0 ? "read" : "copied");
    }
    im->left -= (uint64_t) n;
    im->done += (uint64_t) n;
    if (im->progress && im->progress(im->data, im->done, im->m->bytes))
      return al_err_set(err, AL_EINTERRUPTED, "The import was interrupted; nothing of it is left.");
    al_sha256_update(&sum, chunk, (size_t) n);
    int rc = out < 0 ? 0 : al__image_write_sparse(out, chunk, (size_t) n);
    if (rc) return al_err_set(err, rc, "%s cannot be copied into the store: %s.", f->name, strerror(-rc));
  }
  if (n < 0) return al_err_set(err, (int) n, "The image's file %s cannot be read: %s.", f->name, strerror((int) -n));
  al_sha256_final(&sum, digest);
  al_sha256_hex(digest, hex);
  return 0;
}

int
al__import_file(al__import_t *im, const al__image_file_t *f, uint64_t size, al__import_read_cb read_cb, void *source,
  al_err_t *err) {
  char hex[AL_SHA256_HEX];

  if (size != f->size) {
    return al_err_set(err, AL_EIMAGE_INVALID, "The image's file %s has %llu bytes, but the manifest says %llu.",
      f->name, (unsigned long long) size, (unsigned long long) f->size);
  }
  im->left = f->size;
  const int flags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  AL_AUTO_FD int out = im->to < 0 ? -1 : openat(im->to, f->name, flags, 0600);
  if (im->to >= 0 && out < 0)
    return al_err_set(err, -errno, "%s cannot be made in the store: %s.", f->name, strerror(errno));
  int rc = transfer(im, f, out, read_cb, source, hex, err);
  if (!rc) rc = judge(im, f, hex, err);
  if (rc || out < 0) return rc;
  if (ftruncate(out, (off_t) f->size) || fchmod(out, 0400)) rc = -errno;
  if (!rc) rc = al_plat_fsync(out);
  if (rc) return al_err_set(err, rc, "%s cannot be copied into the store: %s.", f->name, strerror(-rc));
  return strcmp(f->role, "disk") ? 0 : al__image_check_qcow2(out, f->name, im->m->virtual_size, err);
}

/* ---- a directory ---- */

static int64_t
read_fd(void *data, void *p, size_t n) {
  ssize_t r;
  do r = read(*(int *) data, p, n);
  while (r < 0 && errno == EINTR);
  return r < 0 ? -errno : r;
}

/* A descriptor of the file that is to be imported: a regular one. */
static int
open_source(int dir, const char *name, struct stat *st, al_err_t *err) {
  int in = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (in < 0 && errno == ENOENT) return al_err_set(err, AL_ESOURCE_MISSING, "The image's file %s is missing.", name);
  if (in < 0 && errno == ELOOP) {
    return al_err_set(err, AL_EIMAGE_INVALID, "The image's file %s is a symbolic link, and links are refused.", name);
  }
  if (in < 0 || fstat(in, st)) {
    al_err_set(err, AL_ESOURCE_UNREADABLE, "The image's file %s cannot be opened: %s.", name, strerror(errno));
    if (in >= 0) close(in);
    return AL_ESOURCE_UNREADABLE;
  }
  if (S_ISREG(st->st_mode)) return in;
  close(in);
  return al_err_set(err, AL_EIMAGE_INVALID, "The image's file %s is not a regular file.", name);
}

static int
directory_files(al__import_t *im, al_err_t *err) {
  AL_AUTO_FD int dir = open(im->from, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (dir < 0) return al_err_set(err, AL_ESOURCE_MISSING, "%.300s cannot be opened: %s.", im->from, strerror(errno));
  for (size_t i = 0; i < im->m->count; i++) {
    const al__image_file_t *f = &im->m->files[i];
    struct stat st;
    AL_AUTO_FD int in = open_source(dir, f->name, &st, err);
    if (in < 0) return in;
    int rc = al__import_file(im, f, (uint64_t) st.st_size, read_fd, &in, err);
    if (rc) return rc;
  }
  return 0;
}

static int
directory_head(al__import_t *im, int dir, al_err_t *err) {
  AL_AUTO_FREE char *signature = NULL;
  size_t len;

  int rc = al_plat_read_file(dir, "manifest.json", AL_IMAGE_MANIFEST_MAX, &im->text, &im->len);
  if (rc == -ENOENT)
    return al_err_set(err, AL_ESOURCE_MISSING, "%.300s holds no image: there is no manifest.json in it.", im->from);
  if (rc == -ENOMEM) return al_err_set(err, rc, "Out of memory.");
  if (rc)
    return al_err_set(err, AL_EIMAGE_INVALID, "%.300s/manifest.json cannot be read: %s.", im->from, strerror(-rc));
  rc = al_plat_read_file(dir, AL_IMAGE_SIGNATURE, AL_IMAGE_SIGNATURE_MAX, &signature, &len);
  if (rc == -ENOENT) return 0;
  if (rc == -ENOMEM) return al_err_set(err, rc, "Out of memory.");
  if (rc) return al_err_set(err, AL_EIMAGE_INVALID, AL_IMAGE_SIGNATURE " cannot be read: %s.", strerror(-rc));
  return al__signature_keep(signature, len, &im->signature, err);
}

/* ---- what both have ---- */

int
al__import_head(al__import_t *im, al__image_tar_t **tar, al_err_t *err) {
  AL_AUTO_FD int dir = open(im->from, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  al__image_tar_t *t = NULL;

  if (dir < 0 && errno != ENOTDIR)
    return al_err_set(err, AL_ESOURCE_MISSING, "%.300s cannot be opened: %s.", im->from, strerror(errno));
  int rc = dir >= 0 ? directory_head(im, dir, err) : al__image_tar_open(im->from, &t, im, err);
  if (!rc) rc = al__manifest_parse(im->text, im->len, im->m, err);
  if (!rc && im->m->parent.id[0]) {
    rc = al_err_set(err, AL_EIMAGE_INVALID,
      "This is an image derived from another one: it belongs to one project on one machine, and is not imported.");
    al_err_cure(err, "Let the project's setup run where it is needed; import the image that it was derived from.");
  }
  if (!rc) al__manifest_id(im->m, im->id);
  if (rc || !tar) al__image_tar_close(t);
  else *tar = t;
  return rc;
}

void
al__import_end(al__import_t *im) {
  al_free(im->text);
  al_free(im->signature);
  im->text = im->signature = NULL;
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

static int
files(al__import_t *im, al__image_tar_t *tar, al_err_t *err) {
  return tar ? al__image_tar_files(tar, im, err) : directory_files(im, err);
}

static int
fill(al__import_t *im, al__image_tar_t *tar, al_err_t *err) {
  int rc = check_room(im->to, im->m->bytes, err);
  if (!rc) rc = files(im, tar, err);
  if (rc) return rc;
  if (im->signature) rc = al_plat_write_new(im->to, AL_IMAGE_SIGNATURE, im->signature, strlen(im->signature), 0400);
  if (!rc) rc = al_plat_write_new(im->to, "manifest.json", im->text, im->len, 0400);
  if (!rc) rc = al_plat_fsync(im->to);
  return rc ? al_err_set(err, rc, "manifest.json cannot be written: %s.", strerror(-rc)) : 0;
}

static int
import_new(al__import_t *im, al__image_tar_t *tar, al_err_t *err) {
  char aside[AL_IMAGE_ASIDE_MAX];

  AL_AUTO_FD int images = al__image_store(im->home, err);
  if (images < 0) return images;
  al_image_sweep(im->home);
  int rc = al__image_aside(images, aside, &im->to, err);
  if (rc) return rc;
  rc = fill(im, tar, err);
  if (!rc) rc = al__image_publish(images, aside, im->id, err);
  if (rc) (void) al_plat_remove_tree(images, aside);
  close(im->to); /* and with it the lock */
  im->to = -1;
  return rc;
}

/* ---- an image that is there already ---- */

/* Whether the store's image of this id is whole, and this one: 0, AL_EIMAGE_CORRUPT, … */
static int
judge_old(const al__import_t *im, al_err_t *err) {
  AL_AUTO_FREE al__manifest_t *old = al_malloc(sizeof *old);

  if (!old) return al_err_set(err, -ENOMEM, "Out of memory.");
  int rc = al__image_load(im->home, im->id, old, NULL, NULL, err);
  if (rc == -ENOENT) return al_err_set(err, AL_EIMAGE_CORRUPT, "Image %s has no manifest.json any more.", im->id);
  if (!rc && strcmp(old->sha256, im->m->sha256)) {
    return al_err_set(err, AL_EIMAGE_INVALID,
      "The store has another image that is called %s: its manifest has sha256 %s, this one's %s.", im->id, old->sha256,
      im->m->sha256);
  }
  return rc ? rc : al__image_verify(im->home, im->id, old, err);
}

/* A damaged one goes: that is what importing it again asks for. Under the lock it is looked at once more, since another
 * process may just have replaced it. */
static int
replace_damaged(al__import_t *im, al_err_t *err) {
  al_err_t why = {0};

  AL_AUTO_FD int lock = al__image_lock(im->home, im->id, false, LOCK_WAIT_MS, err);
  if (lock == -ENOENT) return 0;
  if (lock < 0) return lock;
  int rc = judge_old(im, &why);
  if (rc == 0) {
    im->there = true;
    return 0;
  }
  if (rc != AL_EIMAGE_CORRUPT) {
    if (err) *err = why;
    return rc;
  }
  AL_AUTO_FD int images = al__image_store(im->home, err);
  return images < 0 ? images : al__image_retire(images, im->id, err);
}

static int
look_for_old(al__import_t *im, al_err_t *err) {
  al_err_t why = {0};
  int rc;
  {
    AL_AUTO_FD int lock = al__image_lock(im->home, im->id, true, HOLD_WAIT_MS, err);
    if (lock == -ENOENT) return 0;
    if (lock < 0) return lock;
    rc = judge_old(im, &why);
  }
  if (rc == AL_EIMAGE_CORRUPT) return replace_damaged(im, err);
  im->there = rc == 0;
  if (rc && err) *err = why;
  return rc;
}

/* The image may have been signed since. Who has it open sees the one signature or the other. */
static int
add_signature(const al__import_t *im, al_err_t *err) {
  AL_AUTO_FREE char *old = NULL;

  if (!im->signature) return 0;
  AL_AUTO_FD int dir = al__image_dir(im->home, im->id, err);
  if (dir < 0) return dir;
  int rc = al__signature_load(dir, im->id, &old, NULL, err);
  if (rc) return rc;
  if (old && strcmp(old, im->signature) == 0) return 0;
  rc = al_plat_write_replace(dir, AL_IMAGE_SIGNATURE, im->signature, strlen(im->signature), 0400);
  return rc ? al_err_set(err, rc, AL_IMAGE_SIGNATURE " cannot be written: %s.", strerror(-rc)) : 0;
}

static int
into_store(al__import_t *im, al__image_tar_t *tar, al_err_t *err) {
  int rc = look_for_old(im, err);
  if (rc) return rc;
  if (im->there) {
    if (im->again) rc = files(im, tar, err);
    return rc ? rc : add_signature(im, err);
  }
  if ((rc = import_new(im, tar, err))) {
    if (err && !err->code) al_err_set(err, rc, "Image %s cannot be imported: %s.", im->id, strerror(-rc));
    return rc;
  }
  if (im->m->bytes < LARGE) return 0;
  usleep(SETTLE_US); /* read back what the disk holds, now and not when somebody waits for the first lane */
  return al__image_verify(im->home, im->id, im->m, err);
}

static int
import(al__import_t *im, const al_image_trust_t *trust, al_image_t *out, al_err_t *err) {
  AL_AUTO_FREE al__manifest_t *m = al_calloc(1, sizeof *m);
  al__image_tar_t *tar = NULL;

  if (!m) return al_err_set(err, -ENOMEM, "Out of memory.");
  im->m = m;
  im->to = -1;
  int rc = al__import_head(im, &tar, err);
  if (!rc && !al__image_trusted(trust, m->sha256, NULL)) rc = al__image_untrusted(err, im->id);
  if (!rc) rc = into_store(im, tar, err);
  al__image_tar_close(tar);
  al__import_end(im);
  return rc ? rc : al__manifest_image(m, im->home, NULL, out, err);
}

int
al_image_import(const al_home_t *home, const char *from, al_image_progress_cb progress, void *data, al_image_t *out,
  al_err_t *err) {
  al__import_t im = {.home = home, .from = from, .progress = progress, .data = data};
  return import(&im, NULL, out, err);
}

int
al_image_import_checked(const al_home_t *home, const char *from, const al_image_trust_t *trust,
  al_image_progress_cb progress, void *data, al_image_t *out, al_err_t *err) {
  al__import_t im = {.home = home, .from = from, .again = true, .progress = progress, .data = data};
  return import(&im, trust, out, err);
}

int
al__image_import_trusted(const al_home_t *home, const char *from, const al_image_trust_t *trust, al_image_t *out,
  al_err_t *err) {
  al__import_t im = {.home = home, .from = from};
  return import(&im, trust, out, err);
}
