/* SPDX-License-Identifier: Apache-2.0 */
/* An image from a tar archive, which is hostile until every byte of it has been checked. */
#include "image_int.h"
#include "mem.h"
#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * Theory of operation. The first entry is the manifest; nothing is read from the rest that the manifest does not name,
 * and a name of an archive is only compared with those of the manifest, never used as a path. Each file is there once,
 * regular, with the manifest's size, so the manifest bounds what is written. libarchive reads plain tar only: none of
 * its other formats and no compression is compiled in by the calls below.
 */

#define BLOCK ((size_t) 64 << 10)

struct al__image_tar_s {
  int fd;
  const char *path;
  struct archive *a;
  struct archive_entry *entry; /* the one whose data come next, borrowed; NULL at the end */
  bool seen[AL_IMAGE_FILES_MAX];
};

static int
broken(const al__image_tar_t *t, al_err_t *err) {
  const char *why = archive_error_string(t->a);
  return al_err_set(err, AL_EIMAGE_INVALID, "%.200s is no tar archive of an image, or a damaged one: %.200s.", t->path,
    why ? why : "it cannot be read");
}

/* The next entry's name; NULL and 0 at the end. */
static int
next(al__image_tar_t *t, const char **name, al_err_t *err) {
  *name = NULL;
  int r = archive_read_next_header(t->a, &t->entry);
  if (r == ARCHIVE_EOF) {
    t->entry = NULL;
    return 0;
  }
  if (r < ARCHIVE_WARN) return broken(t, err);
  const char *path = archive_entry_pathname(t->entry);
  if (path && strncmp(path, "./", 2) == 0) path += 2;
  bool plain = path && path[0] && archive_entry_filetype(t->entry) == AE_IFREG && !archive_entry_hardlink(t->entry) &&
    !archive_entry_symlink(t->entry) && archive_entry_size_is_set(t->entry) && archive_entry_size(t->entry) >= 0 &&
    archive_entry_sparse_count(t->entry) == 0;
  if (!plain) {
    return al_err_set(err, AL_EIMAGE_INVALID,
      "The archive's entry %.100s is not a plain file, and an image has nothing else.", path ? path : "without a name");
  }
  *name = path;
  return 0;
}

/* All of the entry's data, as text. */
static int
read_text(al__image_tar_t *t, const char *name, size_t cap, char **out, size_t *len, al_err_t *err) {
  int64_t size = archive_entry_size(t->entry);
  size_t used = 0;

  if ((uint64_t) size > cap) return al_err_set(err, AL_EIMAGE_INVALID, "The archive's %s is too large.", name);
  AL_AUTO_FREE char *text = al_malloc((size_t) size + 1);
  if (!text) return al_err_set(err, -ENOMEM, "Out of memory.");
  while (used < (size_t) size) {
    la_ssize_t n = archive_read_data(t->a, text + used, (size_t) size - used);
    if (n < 0) return broken(t, err);
    if (n == 0) return al_err_set(err, AL_EIMAGE_INVALID, "The archive's %s ends too early.", name);
    used += (size_t) n;
  }
  text[used] = 0;
  *out = al_steal(&text);
  *len = used;
  return 0;
}

static int
read_head(al__image_tar_t *t, al__import_t *im, al_err_t *err) {
  AL_AUTO_FREE char *signature = NULL;
  const char *name;
  size_t len;

  int rc = next(t, &name, err);
  if (rc) return rc;
  if (!name || strcmp(name, "manifest.json")) {
    al_err_set(err, AL_EIMAGE_INVALID, "%.200s is no archive of an image: its first entry is not manifest.json.",
      t->path);
    al_err_cure(err, "Make it with `agent-lane image export`, or with tar and manifest.json named first.");
    return AL_EIMAGE_INVALID;
  }
  rc = read_text(t, name, AL_IMAGE_MANIFEST_MAX, &im->text, &im->len, err);
  if (!rc) rc = next(t, &name, err);
  if (rc || !name || strcmp(name, AL_IMAGE_SIGNATURE)) return rc;
  rc = read_text(t, name, AL_IMAGE_SIGNATURE_MAX, &signature, &len, err);
  if (!rc) rc = al__signature_keep(signature, len, &im->signature, err);
  return rc ? rc : next(t, &name, err);
}

int
al__image_tar_open(const char *path, al__image_tar_t **out, al__import_t *im, al_err_t *err) {
  struct stat st;

  al__image_tar_t *t = al_calloc(1, sizeof *t);
  if (!t) return al_err_set(err, -ENOMEM, "Out of memory.");
  t->path = path;
  t->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  int rc = 0;
  if (t->fd < 0 || fstat(t->fd, &st)) {
    rc = al_err_set(err, AL_ESOURCE_UNREADABLE, "%.300s cannot be opened: %s.", path, strerror(errno));
  } else if (!S_ISREG(st.st_mode)) {
    rc = al_err_set(err, AL_EIMAGE_INVALID, "%.300s is neither a directory nor a file.", path);
  } else if (!(t->a = archive_read_new()) || archive_read_support_format_tar(t->a) < ARCHIVE_WARN) {
    rc = al_err_set(err, -ENOMEM, "Out of memory.");
  } else if (archive_read_open_fd(t->a, t->fd, BLOCK) < ARCHIVE_WARN) {
    rc = broken(t, err);
  }
  if (!rc) rc = read_head(t, im, err);
  if (rc) al__image_tar_close(t);
  else *out = t;
  return rc;
}

void
al__image_tar_close(al__image_tar_t *t) {
  if (!t) return;
  if (t->a) archive_read_free(t->a);
  if (t->fd >= 0) close(t->fd);
  al_free(t);
}

static int64_t
read_entry(void *data, void *p, size_t n) {
  const al__image_tar_t *t = data;
  la_ssize_t r = archive_read_data(t->a, p, n);
  return r < 0 ? -EIO : r;
}

static int
take_entry(al__image_tar_t *t, al__import_t *im, const char *name, al_err_t *err) {
  const al__image_file_t *f = al__manifest_file(im->m, name);

  if (!f)
    return al_err_set(err, AL_EIMAGE_INVALID, "The archive has a file %.100s, which the manifest does not name.", name);
  size_t i = (size_t) (f - im->m->files);
  if (t->seen[i]) return al_err_set(err, AL_EIMAGE_INVALID, "The archive has the file %s twice.", f->name);
  t->seen[i] = true;
  return al__import_file(im, f, (uint64_t) archive_entry_size(t->entry), read_entry, t, err);
}

int
al__image_tar_files(al__image_tar_t *t, al__import_t *im, al_err_t *err) {
  const char *name = t->entry ? archive_entry_pathname(t->entry) : NULL;

  if (name && strncmp(name, "./", 2) == 0) name += 2;
  while (name) {
    int rc = take_entry(t, im, name, err);
    if (!rc) rc = next(t, &name, err);
    if (rc) return rc;
  }
  for (size_t i = 0; i < im->m->count; i++) {
    if (!t->seen[i])
      return al_err_set(err, AL_ESOURCE_MISSING, "The archive ends without the image's file %s.", im->m->files[i].name);
  }
  return 0;
}
