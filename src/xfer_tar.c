/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers, in: a host file or tree written as a pax archive, on a worker thread. */
#include "mem.h"
#include "xfer_int.h"
#include <archive.h>
#include <archive_entry.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The walk is our own, by descriptors, and libarchive writes the archive. Its own walker (archive_read_disk) changes
 * the working directory while it runs, and in somebody else's process that directory is not ours to change. */

#define BLOCK 65536u
#define DEPTH_MAX 500      /* nested directories; each holds a descriptor while it is walked */
#define RANGES_MAX 4096    /* a file with more holes is sent without them */

typedef struct walk_s {
  al_tar_t *t;
  struct archive *a;
  struct archive_entry *entry;
  struct archive_entry_linkresolver *links;
  al_buf_t path; /* name in the archive of what is being looked at */
  uint8_t *block;
  unsigned depth;
  int failed; /* of the pipe, or -ECANCELED after any failure: nothing more is put into it */
} walk_t;

/* The path on the host of the thing at w->path, for messages. */
static int
refuse(walk_t *w, int code, const char *what) {
  al_tar_t *t = w->t;
  const char *below = t->is_dir && w->path.len > 1 ? (const char *) w->path.data + 1 : "";
  return al_err_set(&t->err, code, "%s%s: %s", t->host_path, below, what);
}

static int
unreadable(walk_t *w, int error) {
  if (error == ENOMEM) return al_err_set(&w->t->err, AL_ENO_MEMORY, "out of memory while %s was read", w->t->host_path);
  return refuse(w, AL_ESOURCE_UNREADABLE, strerror(error));
}

/* Bytes that can go nowhere any more are dropped, and the failure is noted: an error from here would make libarchive
 * skip its own close, which leaks its buffer and is not needed. */
static la_ssize_t
on_write(struct archive *a, void *data, const void *p, size_t n) {
  walk_t *w = data;
  (void) a;
  if (w->failed == 0) w->failed = al__pipe_put(w->t->pipe, p, n, &w->t->stats);
  return (la_ssize_t) n;
}

/* After each call of libarchive's: 0, or the error, which is in t->err unless the pipe was broken. */
static int
checked(walk_t *w, bool ok) {
  if (w->failed == -ENOMEM) return unreadable(w, ENOMEM);
  if (w->failed < 0) return w->failed;
  if (ok) return 0;
  if (archive_errno(w->a) == ENOMEM) return unreadable(w, ENOMEM);
  const char *text = archive_error_string(w->a);
  return refuse(w, AL_ESOURCE_UNSUPPORTED, text ? text : "cannot be put into an archive");
}

/* Names of users, inode numbers, times other than the last change and extended attributes stay on the host. */
static void
fill_entry(walk_t *w, const struct stat *st) {
  struct archive_entry *e = w->entry;
  archive_entry_clear(e);
  archive_entry_copy_stat(e, st);
  archive_entry_set_uid(e, 0);
  archive_entry_set_gid(e, 0);
  archive_entry_unset_atime(e);
  archive_entry_unset_ctime(e);
  archive_entry_unset_birthtime(e);
  archive_entry_copy_pathname(e, (const char *) w->path.data);
}

/* A warning of libarchive's means that a name or a number would arrive changed; that is not a copy. */
static int
put_header(walk_t *w) {
  w->t->stats.files++;
  archive_entry_set_dev(w->entry, 0);
  archive_entry_set_ino64(w->entry, 0);
  archive_entry_set_nlink(w->entry, 1);
  return checked(w, archive_write_header(w->a, w->entry) == ARCHIVE_OK);
}

/* Tells libarchive where a sparse file has data. A file system that cannot say is a file without holes. */
static void
find_holes(walk_t *w, int fd, const struct stat *st) {
  if (st->st_size == 0 || st->st_blocks >= (st->st_size + 511) / 512) return;
  unsigned ranges = 0;
  for (off_t at = 0; at < st->st_size;) {
    off_t data = lseek(fd, at, SEEK_DATA);
    if (data < 0 && errno == ENXIO) break; /* a hole up to the end */
    off_t hole = data < 0 ? -1 : lseek(fd, data, SEEK_HOLE);
    if (data < 0 || hole <= data || ranges++ >= RANGES_MAX) {
      archive_entry_sparse_clear(w->entry);
      return;
    }
    if (hole > st->st_size) hole = st->st_size;
    if (data < hole) archive_entry_sparse_add_entry(w->entry, data, hole - data);
    at = hole;
  }
  if (ranges == 0) archive_entry_sparse_add_entry(w->entry, st->st_size, 0);
}

static int
put_bytes(walk_t *w, const uint8_t *p, size_t n) {
  while (n > 0) {
    la_ssize_t r = archive_write_data(w->a, p, n);
    int failed = checked(w, r > 0);
    if (failed < 0) return failed;
    p += r;
    n -= (size_t) r;
  }
  return 0;
}

/* Exactly st_size bytes, as the header has announced. A file that grew is cut there; one that shrank is an error. */
static int
put_data(walk_t *w, int fd, const struct stat *st) {
  for (off_t at = 0; at < st->st_size;) {
    size_t want = st->st_size - at < (off_t) BLOCK ? (size_t) (st->st_size - at) : BLOCK;
    ssize_t n = pread(fd, w->block, want, at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return unreadable(w, errno);
    if (n == 0) return refuse(w, AL_ESOURCE_UNREADABLE, "it shrank while it was read");
    int r = put_bytes(w, w->block, (size_t) n);
    if (r < 0) return r;
    at += n;
    w->t->stats.bytes += (uint64_t) n;
  }
  return 0;
}

/* `fd` is the opened file, or -1: then it is opened here, unless it is another name of one that went before. */
static int
put_file(walk_t *w, int dir, const char *name, const struct stat *seen, int fd) {
  struct stat st = *seen;
  struct archive_entry *spare = NULL;
  AL_AUTO_FD int own = -1;
  fill_entry(w, &st);
  if (st.st_nlink > 1 && fd < 0) {
    archive_entry_linkify(w->links, &w->entry, &spare);
    if (archive_entry_hardlink(w->entry)) return put_header(w);
  }
  if (fd < 0) {
    fd = own = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (fd < 0 || fstat(fd, &st) < 0) return unreadable(w, errno);
    if (!S_ISREG(st.st_mode)) return refuse(w, AL_ESOURCE_UNREADABLE, "it changed while it was read");
    archive_entry_set_size(w->entry, st.st_size);
  }
  find_holes(w, fd, &st);
  int r = put_header(w);
  return r < 0 ? r : put_data(w, fd, &st);
}

static int
put_link(walk_t *w, int dir, const char *name, const struct stat *st) {
  char target[AL_PATH_MAX + 1];
  ssize_t n = readlinkat(dir, name, target, sizeof target);
  if (n < 0) return unreadable(w, errno);
  if (n == (ssize_t) sizeof target) return unreadable(w, ENAMETOOLONG);
  target[n] = 0;
  fill_entry(w, st);
  archive_entry_copy_symlink(w->entry, target);
  archive_entry_set_size(w->entry, 0);
  return put_header(w);
}

static int
walk_dir(walk_t *w, int fd);

static int
put_dir(walk_t *w, int dir, const char *name) {
  if (w->depth >= DEPTH_MAX) return refuse(w, AL_ESOURCE_UNSUPPORTED, "directories are nested too deeply");
  int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  return fd < 0 ? unreadable(w, errno) : walk_dir(w, fd);
}

static int
put_any(walk_t *w, int dir, const char *name) {
  struct stat st;
  if (al__pipe_broken(w->t->pipe)) return -ECANCELED;
  if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
    return errno == ENOENT ? 0 : unreadable(w, errno); /* gone: not in the tree */
  if (S_ISDIR(st.st_mode)) return put_dir(w, dir, name);
  if (S_ISREG(st.st_mode)) return put_file(w, dir, name, &st, -1);
  if (S_ISLNK(st.st_mode)) return put_link(w, dir, name, &st);
  if (S_ISSOCK(st.st_mode)) return refuse(w, AL_ESOURCE_UNSUPPORTED, "is a socket");
  return refuse(w, AL_ESOURCE_UNSUPPORTED, S_ISFIFO(st.st_mode) ? "is a FIFO" : "is a device");
}

/* Takes the descriptor. w->path is the directory's own name. */
static int
walk_dir(walk_t *w, int fd) {
  struct stat st;
  DIR *d = NULL;
  if (fstat(fd, &st) < 0 || !(d = fdopendir(fd))) {
    int error = errno;
    close(fd);
    return unreadable(w, error);
  }
  fill_entry(w, &st);
  int r = put_header(w);
  size_t len = w->path.len;
  w->depth++;
  while (r == 0) {
    errno = 0;
    struct dirent *e = readdir(d);
    if (!e) {
      if (errno) r = unreadable(w, errno);
      break;
    }
    if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
    if (al_buf_append(&w->path, "/", 1) < 0 || al_buf_append(&w->path, e->d_name, strlen(e->d_name)) < 0)
      r = unreadable(w, ENOMEM);
    else r = put_any(w, dirfd(d), e->d_name);
    if (r < 0) break; /* the path stays as it is for the message */
    w->path.len = len;
    w->path.data[len] = 0;
  }
  w->depth--;
  closedir(d);
  return r;
}

static int
put_root(walk_t *w) {
  al_tar_t *t = w->t;
  struct stat st;
  const char *name = t->is_dir ? "." : t->name;
  if (al_buf_append(&w->path, name, strlen(name)) < 0) return unreadable(w, ENOMEM);
  if (fstat(t->fd, &st) < 0) return unreadable(w, errno);
  if (!t->is_dir) return put_file(w, -1, NULL, &st, t->fd);
  int fd = fcntl(t->fd, F_DUPFD_CLOEXEC, 0);
  return fd < 0 ? unreadable(w, errno) : walk_dir(w, fd);
}

static int
open_archive(walk_t *w) {
  w->block = al_malloc(BLOCK);
  w->a = archive_write_new();
  w->entry = archive_entry_new();
  w->links = archive_entry_linkresolver_new();
  if (!w->block || !w->a || !w->entry || !w->links) return unreadable(w, ENOMEM);
  archive_entry_linkresolver_set_strategy(w->links, ARCHIVE_FORMAT_TAR_PAX_INTERCHANGE);
  /* Names are bytes: whatever locale the process has, they must not be converted. */
  bool ok = archive_write_set_format_pax(w->a) == ARCHIVE_OK && archive_write_add_filter_none(w->a) == ARCHIVE_OK &&
            archive_write_set_format_option(w->a, "pax", "hdrcharset", "BINARY") == ARCHIVE_OK &&
            archive_write_set_bytes_per_block(w->a, (int) BLOCK) == ARCHIVE_OK &&
            archive_write_set_bytes_in_last_block(w->a, 1) == ARCHIVE_OK &&
            archive_write_open(w->a, w, NULL, on_write, NULL) == ARCHIVE_OK;
  return checked(w, ok);
}

int
al__tar_write(al_tar_t *t) {
  walk_t w = { .t = t };
  al_buf_init(&w.path, 0);
  int r = open_archive(&w);
  if (r == 0) r = put_root(&w);
  if (r == 0) r = checked(&w, archive_write_close(w.a) == ARCHIVE_OK);
  /* Freeing an open archive writes its end; nobody may get it and take the torso for the whole. */
  if (r < 0 && w.failed == 0) w.failed = -ECANCELED;
  if (w.a) archive_write_free(w.a);
  if (w.entry) archive_entry_free(w.entry);
  if (w.links) archive_entry_linkresolver_free(w.links);
  al_buf_deinit(&w.path);
  al_free(w.block);
  return r;
}

int
al__tar_look(al_tar_t *t) {
  struct stat st;
  walk_t w = { .t = t };
  /* stat before open: opening a device may do things, and a root that is a link is followed. */
  if (stat(t->host_path, &st) < 0) {
    if (errno == ENOENT || errno == ENOTDIR)
      return al_err_set(&t->err, AL_ESOURCE_MISSING, "%s does not exist", t->host_path);
    return unreadable(&w, errno);
  }
  if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
    return refuse(&w, AL_ESOURCE_UNSUPPORTED, "is neither a file nor a directory");
  t->is_dir = S_ISDIR(st.st_mode);
  t->fd = open(t->host_path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY | (t->is_dir ? O_DIRECTORY : 0));
  if (t->fd < 0 || fstat(t->fd, &st) < 0) return unreadable(&w, errno);
  if (t->is_dir ? !S_ISDIR(st.st_mode) : !S_ISREG(st.st_mode))
    return refuse(&w, AL_ESOURCE_UNREADABLE, "it changed while it was opened");
  return 0;
}

void
al__tar_close(al_tar_t *t) {
  if (t->fd >= 0) close(t->fd);
  t->fd = -1;
}
