/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers, in: the writer of the archive. libarchive makes the headers; the bytes of files are read to the place from
 * which they are sent. */
#include "mem.h"
#include "xfer_int.h"
#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <limits.h>
#include <string.h>

#define ROOM_LEAST 4096u /* less at the end of a block is not worth a read */
#define TIME_MOST (INT64_MAX / 16) /* seconds before or after 1970 */
#define WHOLE 32768u     /* what is smaller is read at once */

static int
flush(al_pax_t *x) {
  if (x->failed < 0 || x->len == 0) return x->failed;
  x->failed = al__pipe_give(x->pipe, x->block, x->len, x->stats);
  x->block = NULL;
  x->len = 0;
  return x->failed;
}

static int
have_block(al_pax_t *x) {
  if (!x->block && x->failed == 0 && !(x->block = al_malloc(AL_PAX_BLOCK))) x->failed = -ENOMEM;
  return x->failed;
}

/* Bytes that can go nowhere any more are dropped, and the failure is noted: an error from here would make libarchive
 * skip its own close, which leaks its buffer and is not needed. It hands on what al__pax_data was given, so bytes that
 * lie where they are to go are known by their address. */
static la_ssize_t
on_write(struct archive *a, void *data, const void *from, size_t n) {
  al_pax_t *x = data;
  const uint8_t *p = from;
  (void) a;
  for (size_t left = n; left > 0 && have_block(x) == 0;) {
    size_t some = AL_PAX_BLOCK - x->len < left ? AL_PAX_BLOCK - x->len : left;
    if (p != x->block + x->len) memcpy(x->block + x->len, p, some);
    x->len += some;
    p += some;
    left -= some;
    if (x->len == AL_PAX_BLOCK) flush(x);
  }
  return (la_ssize_t) n;
}

/* After each call of libarchive's. A warning means that a name or a number would arrive changed; that is not a copy. */
static int
checked(al_pax_t *x, bool ok) {
  if (x->failed < 0) return x->failed;
  if (ok) return 0;
  if (archive_errno(x->a) == ENOMEM) return -ENOMEM;
  x->why = archive_error_string(x->a);
  return -EINVAL;
}

int
al__pax_open(al_pax_t *x, al_pipe_t *pipe, const al_xfer_stats_t *stats) {
  *x = (al_pax_t){ .pipe = pipe, .stats = stats, .links.paths.cap = AL_LINKS_MAX };
  x->a = archive_write_new();
  x->entry = archive_entry_new();
  if (!x->a || !x->entry) return -ENOMEM;
  /* Names are bytes: whatever locale the process has, they must not be converted. Without blocks of its own libarchive
   * gives us everything at once. */
  bool ok = archive_write_set_format_pax(x->a) == ARCHIVE_OK && archive_write_add_filter_none(x->a) == ARCHIVE_OK &&
            archive_write_set_format_option(x->a, "pax", "hdrcharset", "BINARY") == ARCHIVE_OK &&
            archive_write_set_bytes_per_block(x->a, 0) == ARCHIVE_OK &&
            archive_write_open(x->a, x, NULL, on_write, NULL) == ARCHIVE_OK;
  return checked(x, ok);
}

int
al__pax_close(al_pax_t *x, bool whole) {
  int r = 0;
  if (whole) {
    r = checked(x, archive_write_close(x->a) == ARCHIVE_OK);
    if (r == 0) r = flush(x);
  }
  /* Freeing an open archive writes its end; nobody may get it and take the torso for the whole. */
  if (x->failed == 0) x->failed = -ECANCELED;
  if (x->a) archive_write_free(x->a);
  if (x->entry) archive_entry_free(x->entry);
  al__links_deinit(&x->links);
  al_free(x->block);
  return r;
}

/* Names of users, inode numbers, times other than the last change and extended attributes stay on the host. setuid and
 * setgid of a file mean its owner, who is another there. A time that only 64 bits can say has too many digits for readers;
 * what file systems keep ends long before. */
void
al__pax_begin(al_pax_t *x, const char *path, const struct stat *st) {
  struct archive_entry *e = archive_entry_clear(x->entry);
  archive_entry_copy_stat(e, st);
  archive_entry_set_uid(e, 0);
  archive_entry_set_gid(e, 0);
  if (S_ISREG(st->st_mode)) archive_entry_set_perm(e, st->st_mode & 0777);
  /* Before 1970 libarchive gets the fraction wrong, which it writes after the sign. */
  if (st->st_mtime < 0) archive_entry_set_mtime(e, st->st_mtime < -TIME_MOST ? -TIME_MOST : st->st_mtime, 0);
  if (st->st_mtime > TIME_MOST) archive_entry_set_mtime(e, TIME_MOST, 0);
  archive_entry_unset_atime(e);
  archive_entry_unset_ctime(e);
  archive_entry_unset_birthtime(e);
  archive_entry_copy_pathname(e, path);
}

bool
al__pax_linked(al_pax_t *x, const char *path, const struct stat *st) {
  const char *first;
  int r = al__links_first(&x->links, st, path, &first);
  if (r < 0 && x->failed == 0) x->failed = r; /* the header says it */
  if (r != 1) return false;
  archive_entry_unset_size(x->entry);
  archive_entry_copy_hardlink(x->entry, first);
  return true;
}

void
al__pax_symlink(al_pax_t *x, const char *target) {
  archive_entry_copy_symlink(x->entry, target);
  archive_entry_set_size(x->entry, 0);
}

void
al__pax_range(al_pax_t *x, int64_t at, int64_t n) {
  archive_entry_sparse_add_entry(x->entry, at, n);
}

int
al__pax_header(al_pax_t *x) {
  archive_entry_set_dev(x->entry, 0);
  archive_entry_set_ino64(x->entry, 0);
  archive_entry_set_nlink(x->entry, 1);
  /* The map of a sparse file is written with its first data, even with none; it must not come where data was read. */
  return checked(
    x, archive_write_header(x->a, x->entry) == ARCHIVE_OK && archive_write_data(x->a, "", 0) == ARCHIVE_OK);
}

int
al__pax_room(al_pax_t *x, uint64_t want, uint8_t **p, size_t *n) {
  size_t room = x->block ? AL_PAX_BLOCK - x->len : AL_PAX_BLOCK;
  if (room < ROOM_LEAST || (want < WHOLE && room <= want)) flush(x);
  if (have_block(x) < 0) return x->failed;
  *p = x->block + x->len;
  *n = AL_PAX_BLOCK - x->len;
  return 0;
}

int
al__pax_data(al_pax_t *x, const uint8_t *p, uint64_t n) {
  while (n > 0) {
    la_ssize_t r = archive_write_data(x->a, p, n < INT_MAX ? (size_t) n : INT_MAX);
    int failed = checked(x, r > 0);
    if (failed < 0) return failed;
    p += p ? r : 0;
    n -= (uint64_t) r;
  }
  return 0;
}
