/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers, out: a directory of the guest, made from its records in a temporary directory and put in place at once. */
#include "leftover.h"
#include "mem.h"
#include "platform.h"
#include "xfer_int.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Theory of operation.
 *
 * The records hold names and never paths (tree_parse.c), and every entry is made by a name below the descriptor of the
 * directory that it is in, which must not be there yet: so nothing that the guest says, and no link that anybody puts
 * there meanwhile, leads out of the temporary directory. That one is 0700 until it is put in place. Directories get
 * their modes and times when they are left. Files are not synced one by one: the file system is, once, before the
 * rename. */

#define TRIES 8
#define MTIME_MAX (UINT32_MAX * 4ll) /* the year 2514, and 1425; what lies beyond is nobody's file */
#define BLOCK 4096u /* of a file; where it is one of zeros, a hole */

static int
failed(al_tree_out_t *t, const char *doing, int error) {
  char path[AL_TREE_SHOWN];
  if (error == EEXIST)
    return al_err_set(&t->place.err, AL_ETREE_REFUSED,
      "%s comes twice, or its directory has it under another spelling that the host takes for the same",
      al_tree_shown(&t->parse, path));
  int r = al__place_failed(&t->place, doing, error);
  if (t->parse.path[0]) al_err_wrap(&t->place.err, "%s", al_tree_shown(&t->parse, path));
  return r;
}

static struct timespec
mtime_of(const al_tree_entry_t *e) {
  int64_t s = e->mtime_s < -MTIME_MAX ? -MTIME_MAX : e->mtime_s > MTIME_MAX ? MTIME_MAX : e->mtime_s;
  return (struct timespec){ .tv_sec = (time_t) s, .tv_nsec = (long) e->mtime_ns };
}

/* A time that the file system does not take is no reason to fail. */
static int
set_attrs(int fd, const al_tree_entry_t *e, mode_t mode) {
  struct timespec times[2] = { { .tv_nsec = UTIME_NOW }, mtime_of(e) };
  if (fchmod(fd, mode) < 0) return -errno;
  futimens(fd, times);
  return 0;
}

static mode_t
dir_mode(const al_tree_out_t *t, const al_tree_entry_t *e) {
  return ((mode_t) e->mode & t->mask) | 0700;
}

static mode_t
file_mode(const al_tree_out_t *t, const al_tree_entry_t *e) {
  return ((mode_t) e->mode & t->mask & (t->executables ? 0777 : 0666)) | 0400;
}

static int
on_root(void *data, const al_tree_entry_t *e) {
  al_tree_out_t *t = data;
  t->attrs[0] = *e;
  return 0;
}

static int
on_enter(void *data, const al_tree_entry_t *e) {
  al_tree_out_t *t = data;
  int parent = t->dirs[t->depth], r = al__place_room(&t->place, 0);
  if (r < 0) return r;
  if (mkdirat(parent, e->name, 0700) < 0) return failed(t, "making a directory", errno);
  int fd = openat(parent, e->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return failed(t, "opening a directory", errno);
  t->dirs[++t->depth] = fd;
  t->attrs[t->depth] = *e;
  return 0;
}

static int
on_leave(void *data) {
  al_tree_out_t *t = data;
  const al_tree_entry_t *e = &t->attrs[t->depth];
  int fd = t->dirs[t->depth--], r = set_attrs(fd, e, dir_mode(t, e));
  close(fd);
  return r < 0 ? failed(t, "setting a directory's mode", -r) : 0;
}

static int
on_file(void *data, const al_tree_entry_t *e) {
  al_tree_out_t *t = data;
  int r = al__place_room(&t->place, 0);
  if (r < 0) return r;
  t->fd = openat(t->dirs[t->depth], e->name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (t->fd < 0) return failed(t, "making a file", errno);
  t->file = *e;
  t->at = 0;
  al__noted_begin(t->noted);
  return 0;
}

static bool
all_zero(const uint8_t *p, size_t n) {
  return p[0] == 0 && memcmp(p, p + 1, n - 1) == 0;
}

/* How many of `n` bytes at `at` lie in the same block of the file. */
static size_t
in_block(uint64_t at, size_t n) {
  size_t left = BLOCK - (size_t) (at % BLOCK);
  return left < n ? left : n;
}

/* What a block has of zeros only is left out: in a new file it is there already. So holes stay holes. */
static int
on_bytes(void *data, const uint8_t *p, size_t n) {
  al_tree_out_t *t = data;
  int r = al__place_room(&t->place, n);
  if (r < 0) return r;
  al__noted_bytes(t->noted, p, n);
  while (n > 0) {
    size_t part = 0, zeros = 0;
    while (part < n && zeros == 0) {
      size_t next = in_block(t->at + part, n - part);
      if (all_zero(p + part, next)) zeros = next;
      else part += next;
    }
    ssize_t k = part > 0 ? pwrite(t->fd, p, part, (off_t) t->at) : (ssize_t) zeros;
    if (k < 0 && errno == EINTR) continue;
    if (k < 0) return failed(t, "writing", errno);
    p += k;
    n -= (size_t) k;
    t->at += (uint64_t) k;
  }
  return 0;
}

static int
on_file_end(void *data) {
  al_tree_out_t *t = data;
  int r = ftruncate(t->fd, (off_t) t->at) < 0 ? -errno : 0; /* it may end with zeros */
  if (r == 0) r = set_attrs(t->fd, &t->file, file_mode(t, &t->file));
  if (close(t->fd) < 0 && r == 0 && errno != EINTR) r = -errno;
  t->fd = -1;
  if (r < 0) return failed(t, "writing", -r);
  if (al__noted_end(t->noted, t->parse.path, t->at) == 0) return 0;
  return al_err_set(&t->place.err, AL_ENO_MEMORY, "out of memory for the hash of a file");
}

static int
on_link(void *data, const al_tree_entry_t *e, const char *target) {
  al_tree_out_t *t = data;
  int dir = t->dirs[t->depth], r = al__place_room(&t->place, 0);
  struct timespec times[2] = { { .tv_nsec = UTIME_NOW }, mtime_of(e) };
  if (r < 0) return r;
  if (symlinkat(target, dir, e->name) < 0) return failed(t, "making a link", errno);
  utimensat(dir, e->name, times, AT_SYMLINK_NOFOLLOW);
  return 0;
}

void
al__tree_init(al_tree_out_t *t) {
  static const al_tree_cbs_t cbs = { .root = on_root,
    .enter = on_enter,
    .leave = on_leave,
    .file = on_file,
    .bytes = on_bytes,
    .file_end = on_file_end,
    .link = on_link };
  memset(t, 0, sizeof *t);
  al__place_init(&t->place);
  al_tree_init(&t->parse, &cbs, t);
  t->depth = t->fd = t->spare[0] = t->spare[1] = -1;
}

/* 0 when nothing is there, or an empty directory; the rename decides again. */
static int
check_place(al_tree_out_t *t) {
  al_place_t *p = &t->place;
  struct stat st;
  if (fstatat(p->dir, p->name, &st, AT_SYMLINK_NOFOLLOW) < 0)
    return errno == ENOENT ? 0 : failed(t, "looking at the target", errno);
  if (S_ISDIR(st.st_mode)) return 0;
  if (S_ISLNK(st.st_mode))
    return al_err_set(&p->err, AL_EHOST_PATH_LINK, "the target %s is refused: it is a link", p->path);
  return al_err_set(&p->err, AL_EHOST_PATH_EXISTS, "the target %s exists, and is no directory", p->path);
}

static int
not_empty(al_tree_out_t *t) {
  return al_err_set(&t->place.err, AL_EHOST_PATH_EXISTS, "the directory %s exists, and is not empty", t->place.path);
}

/* Whether an existing directory is empty is only known by trying to put something in its place, but it is better said
 * before everything is copied. */
static int
check_empty(al_tree_out_t *t) {
  int fd = openat(t->place.dir, t->place.name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return 0;
  DIR *d = fdopendir(fd);
  if (!d) {
    close(fd);
    return 0;
  }
  bool empty = true;
  for (struct dirent *e; empty && (e = readdir(d));) empty = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0;
  closedir(d);
  return empty ? 0 : not_empty(t);
}

static int
save_spare(al_tree_out_t *t) {
  for (int i = 0; i < 2; i++) {
    t->spare[i] = fcntl(t->place.dir, F_DUPFD_CLOEXEC, 0);
    if (t->spare[i] < 0) return failed(t, "making a temporary directory", errno);
  }
  return 0;
}

/* As for a file, the directory itself shows what the umask leaves of 0777. */
static int
make_tmp(al_tree_out_t *t) {
  al_place_t *p = &t->place;
  for (int i = 0; i < TRIES; i++) {
    char name[AL_TMP_NAME];
    struct stat st;
    int rc = al__xfer_tmp_name(name);
    if (rc < 0) return failed(t, "making a temporary name", -rc);
    if (mkdirat(p->dir, name, 0777) < 0) {
      if (errno == EEXIST) continue;
      break;
    }
    int fd = openat(p->dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) continue; /* somebody took it for a leftover */
    if (fd < 0) {
      int error = errno;
      unlinkat(p->dir, name, AT_REMOVEDIR);
      return al__place_failed(p, "opening a temporary directory", error);
    }
    if (!al_leftover_lock(p->dir, name, fd)) {
      close(fd);
      errno = EBUSY;
      continue;
    }
    t->dirs[t->depth = 0] = fd;
    memcpy(t->tmp, name, sizeof name);
    if (fstat(fd, &st) < 0 || fchmod(fd, 0700) < 0) break;
    t->mask = st.st_mode & 0777;
    return 0;
  }
  return al__place_failed(p, "making a temporary directory", errno);
}

int
al__tree_open(al_tree_out_t *t, const char *path, const char *root) {
  int r = al__place_open(&t->place, path, root);
  if (r == 0) r = check_place(t);
  if (r == 0) r = check_empty(t);
  if (r == 0) r = al__place_room(&t->place, 0);
  if (r == 0) r = save_spare(t);
  return r < 0 ? r : make_tmp(t);
}

int
al__tree_take(al_tree_out_t *t, const void *p, size_t n) {
  return al_tree_feed(&t->parse, p, n, &t->place.err);
}

int
al__tree_commit(al_tree_out_t *t) {
  al_place_t *p = &t->place;
  if (!t->parse.done)
    return al_err_set(&p->err, AL_ECOPY_OUT_FAILED, "the directory came incomplete: the guest stopped before its end");
  t->parse.path[0] = 0; /* what fails now is not an entry's fault */
  int r = set_attrs(t->dirs[0], &t->attrs[0], dir_mode(t, &t->attrs[0]));
  if (r < 0) return failed(t, "setting the mode", -r);
  r = al_plat_sync_fs(t->dirs[0]);
  if (r < 0) return failed(t, "writing to disk", -r);
  r = check_place(t);
  if (r < 0) return r;
  if (renameat(p->dir, t->tmp, p->dir, p->name) < 0)
    return errno == ENOTEMPTY || errno == EEXIST ? not_empty(t) : failed(t, "putting the directory in place", errno);
  t->tmp[0] = 0;
  /* It is in place; a file system that cannot sync a directory is no reason to say that it is not. */
  al_plat_fsync(p->dir);
  return 0;
}

void
al__tree_deinit(al_tree_out_t *t) {
  if (t->fd >= 0) close(t->fd);
  t->fd = -1;
  for (int i = 0; i < 2; i++) {
    if (t->spare[i] >= 0) close(t->spare[i]);
    t->spare[i] = -1;
  }
  for (; t->depth > 0; t->depth--) close(t->dirs[t->depth]);
  if (t->tmp[0] && t->place.dir >= 0) al_plat_remove_tree(t->place.dir, t->tmp);
  t->tmp[0] = 0;
  if (t->depth == 0) close(t->dirs[0]); /* with its lock, so not before it is gone */
  t->depth = -1;
  al__place_deinit(&t->place);
}
