/* SPDX-License-Identifier: Apache-2.0 */
/* An image as a tar archive that can be imported elsewhere: whole or not there, and the same bytes from anybody. */
#include "image_int.h"
#include "leftover.h"
#include "mem.h"
#include "platform.h"
#include "tmp_name.h"
#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define CHUNK ((size_t) 1 << 20)
#define LOCK_WAIT_MS 10000u
#define TRIES 8

typedef struct export_s {
  const char *id, *to;
  const char *name;   /* of `to` in its directory */
  char tmp[AL_TMP_NAME];
  int dir, into, out; /* into: the directory of `to` */
  struct archive *a;
  time_t created;
  const al__manifest_t *m;
  al_image_progress_cb progress;
  void *data;
  uint64_t done;
} export_t;

static int
unwritten(const export_t *x, al_err_t *err) {
  int rc = archive_errno(x->a);
  return al_err_set(err, rc > 0 ? -rc : -EIO, "%.300s cannot be written: %.200s.", x->to,
    archive_error_string(x->a) ? archive_error_string(x->a) : "no reason is known");
}

/* The same image gives the same archive: nothing in a header depends on who exports it, or when. */
static int
put_header(export_t *x, const char *name, uint64_t size, al_err_t *err) {
  struct archive_entry *e = archive_entry_new();

  if (!e) return al_err_set(err, -ENOMEM, "Out of memory.");
  archive_entry_set_pathname(e, name);
  archive_entry_set_filetype(e, AE_IFREG);
  archive_entry_set_perm(e, 0644);
  archive_entry_set_size(e, (la_int64_t) size);
  archive_entry_set_mtime(e, x->created, 0);
  int r = archive_write_header(x->a, e);
  archive_entry_free(e);
  return r == ARCHIVE_OK ? 0 : unwritten(x, err);
}

static int
put_text(export_t *x, const char *name, const char *text, size_t len, al_err_t *err) {
  int rc = put_header(x, name, len, err);
  if (rc) return rc;
  return archive_write_data(x->a, text, len) == (la_ssize_t) len ? 0 : unwritten(x, err);
}

static int
changed(const export_t *x, const al__image_file_t *f, al_err_t *err) {
  return al_err_set(err, AL_EIMAGE_CORRUPT, "Image %s: %s is not what was imported.", x->id, f->name);
}

static int
put_file(export_t *x, const al__image_file_t *f, al_err_t *err) {
  AL_AUTO_FREE uint8_t *chunk = al_malloc(CHUNK);
  uint8_t digest[AL_SHA256_LEN];
  char hex[AL_SHA256_HEX];
  uint64_t left = f->size;
  al_sha256_t sum;

  AL_AUTO_FD int fd = openat(x->dir, f->name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return changed(x, f, err);
  int rc = chunk ? put_header(x, f->name, f->size, err) : al_err_set(err, -ENOMEM, "Out of memory.");
  al_sha256_init(&sum);
  while (!rc) {
    ssize_t n = read(fd, chunk, CHUNK);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return al_err_set(err, -errno, "Image %s: %s cannot be read: %s.", x->id, f->name, strerror(errno));
    if (n == 0) break;
    if ((uint64_t) n > left) return changed(x, f, err);
    left -= (uint64_t) n;
    al_sha256_update(&sum, chunk, (size_t) n);
    if (archive_write_data(x->a, chunk, (size_t) n) != n) return unwritten(x, err);
    x->done += (uint64_t) n;
    if (x->progress && x->progress(x->data, x->done, x->m->bytes))
      return al_err_set(err, AL_EINTERRUPTED, "The export was interrupted; nothing of it is left.");
  }
  if (rc) return rc;
  al_sha256_final(&sum, digest);
  al_sha256_hex(digest, hex);
  return left == 0 && strcmp(hex, f->sha256) == 0 ? 0 : changed(x, f, err);
}

static int
put_all(export_t *x, const char *text, size_t len, al_err_t *err) {
  AL_AUTO_FREE char *signature = NULL;

  int rc = al__signature_load(x->dir, x->id, &signature, NULL, err);
  if (!rc) rc = put_text(x, "manifest.json", text, len, err);
  if (!rc && signature) rc = put_text(x, AL_IMAGE_SIGNATURE, signature, strlen(signature), err);
  for (size_t i = 0; !rc && i < x->m->count; i++) rc = put_file(x, &x->m->files[i], err);
  if (rc) return rc;
  return archive_write_close(x->a) == ARCHIVE_OK ? 0 : unwritten(x, err);
}

/* Gives the whole archive its name, unless there is something of that name by now. */
static int
publish(const export_t *x, al_err_t *err) {
  struct stat st;

  int rc = al_plat_fsync(x->out);
  if (rc) return al_err_set(err, rc, "%.300s cannot be written: %s.", x->to, strerror(-rc));
  if (linkat(x->into, x->tmp, x->into, x->name, 0) == 0) {
    unlinkat(x->into, x->tmp, 0);
    return 0;
  }
  /* Not every file system has links; there the look comes a moment before. */
  if (errno == EEXIST || fstatat(x->into, x->name, &st, AT_SYMLINK_NOFOLLOW) == 0)
    return al_err_set(err, -EEXIST, "There is something at %.300s already.", x->to);
  return renameat(x->into, x->tmp, x->into, x->name) ? al_err_set(err, -errno, "%.300s cannot be made: %s.", x->to, strerror(errno)) : 0;
}

/* Opens the directory, in which exports that were killed may have left something. */
static int
open_place(export_t *x, al_err_t *err) {
  const char *slash = strrchr(x->to, '/');
  size_t head = slash ? (size_t) (slash - x->to) : 0;
  AL_AUTO_FREE char *path = slash ? al_asprintf("%.*s/", (int) head, x->to) : al_asprintf(".");
  struct stat st;

  if (!path) return al_err_set(err, -ENOMEM, "Out of memory.");
  x->name = slash ? slash + 1 : x->to;
  x->into = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (x->into < 0) return al_err_set(err, -errno, "%.300s cannot be made: %s.", x->to, strerror(errno));
  if (fstatat(x->into, x->name, &st, AT_SYMLINK_NOFOLLOW) == 0)
    return al_err_set(err, -EEXIST, "There is something at %.300s already.", x->to);
  al_leftover_sweep(x->into);
  return 0;
}

/* Between making and locking another export may take the file for left over; then it is made again. */
static int
make_tmp(export_t *x, al_err_t *err) {
  int error = EBUSY;
  for (int i = 0; i < TRIES; i++) {
    uint64_t r;
    int rc = al_plat_random(&r, sizeof r);
    if (rc) return al_err_set(err, rc, "There are no random numbers to be had.");
    al_tmp_name(x->tmp, r);
    x->out = openat(x->into, x->tmp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (x->out >= 0 && al_leftover_lock(x->into, x->tmp, x->out)) return 0;
    error = x->out < 0 ? errno : EBUSY;
    if (x->out < 0 && error != EEXIST) break;
    if (x->out >= 0) close(x->out);
    x->out = -1;
  }
  return al_err_set(err, -error, "%.300s cannot be made: %s.", x->to, strerror(error));
}

static int
begin(export_t *x, al_err_t *err) {
  struct tm tm = {0};

  int rc = open_place(x, err);
  if (rc) return rc;
  if (!strptime(x->m->created, "%Y-%m-%dT%H:%M:%SZ", &tm))
    return al_err_set(err, AL_EIMAGE_INVALID, "The image's manifest has no date that exists.");
  x->created = timegm(&tm);
  if ((rc = make_tmp(x, err))) return rc;
  x->a = archive_write_new();
  bool ok = x->a && archive_write_set_format_pax_restricted(x->a) == ARCHIVE_OK &&
    archive_write_add_filter_none(x->a) == ARCHIVE_OK && archive_write_open_fd(x->a, x->out) == ARCHIVE_OK;
  return ok ? 0 : al_err_set(err, -ENOMEM, "Out of memory.");
}

static int
export_to(export_t *x, const char *text, size_t len, al_err_t *err) {
  x->out = x->into = -1;
  int rc = begin(x, err);
  if (!rc) rc = put_all(x, text, len, err);
  if (!rc) rc = publish(x, err);
  if (x->a) archive_write_free(x->a);
  if (rc && x->out >= 0) unlinkat(x->into, x->tmp, 0);
  if (x->out >= 0) close(x->out);
  if (x->into >= 0) close(x->into);
  return rc;
}

int
al_image_export(const al_home_t *home, const char *id, const char *to, al_image_progress_cb progress, void *data,
  al_err_t *err) {
  AL_AUTO_FREE al__manifest_t *m = al_calloc(1, sizeof *m);
  AL_AUTO_FREE export_t *x = al_calloc(1, sizeof *x);
  AL_AUTO_FREE char *text = NULL;
  size_t len = 0;

  if (!m || !x) return al_err_set(err, -ENOMEM, "Out of memory.");
  if (!al__image_id_valid(id)) return al_err_set(err, AL_EIMAGE_MISSING, "There is no image %.80s.", id);
  AL_AUTO_FD int lock = al__image_lock(home, id, true, LOCK_WAIT_MS, err);
  if (lock == -ENOENT) return al_err_set(err, AL_EIMAGE_MISSING, "There is no image %s.", id);
  if (lock < 0) return lock;
  int rc = al__image_load(home, id, m, &text, &len, err);
  if (rc) return rc;
  if (m->parent.id[0]) {
    al_err_set(err, AL_EIMAGE_INVALID,
      "Image %s was derived from image %s: it belongs to one project on this machine, and is not exported.", id,
      m->parent.id);
    al_err_cure(err, "Export the image that it was derived from.");
    return AL_EIMAGE_INVALID;
  }
  AL_AUTO_FD int dir = al__image_dir(home, id, err);
  if (dir < 0) return dir;
  x->id = id, x->to = to, x->dir = dir, x->m = m, x->progress = progress, x->data = data;
  return export_to(x, text, len, err);
}
