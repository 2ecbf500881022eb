/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers, in: the walk over a host file or tree that becomes an archive, on a worker thread. */
#include "mem.h"
#include "xfer_int.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The walk is our own, by descriptors. That of libarchive (archive_read_disk) changes the working directory while it
 * runs, and in somebody else's process that directory is not ours to change. */

#define DEPTH_MAX 500      /* nested directories; each holds a descriptor while it is walked */
#define SIZE_MOST (1ll << 50) /* of a file: more than any disk of a guest, and no end of zeros to count through */
#define RANGES_MAX 4096    /* a file with more holes is sent without them */
#define HOLE_LEAST 4096    /* no file system's holes are smaller */
#define PATH_SHOWN 400     /* of a longer path both ends are in a message, so that there is room for the reason */
#define COUNT_NS 2000000000ull /* looking how much there is may take that long */

typedef struct walk_s {
  al_tar_t *t;
  al_pax_t pax;
  al_buf_t path; /* name in the archive of what is being looked at: "." and what is below, or a file's own */
  unsigned depth;
  uint64_t until; /* of the count */
} walk_t;

/* The path on the host of the thing at w->path. */
static const char *
below(const walk_t *w) {
  return w->t->is_dir && w->path.len > 1 ? (const char *) w->path.data + 1 : "";
}

static int
refuse(walk_t *w, int code, const char *what) {
  const char *host = w->t->host_path, *rest = below(w);
  size_t n = strlen(host) + strlen(rest);
  if (n <= PATH_SHOWN) return al_err_set(&w->t->err, code, "%s%s: %s", host, rest, what);
  const char *tail = strlen(rest) >= PATH_SHOWN / 2 ? rest + strlen(rest) - PATH_SHOWN / 2 : rest;
  return al_err_set(&w->t->err, code, "%.*s...%s: %s", PATH_SHOWN / 2, host, tail, what);
}

static int
unreadable(walk_t *w, int error) {
  if (error == ENOMEM) return al_err_set(&w->t->err, AL_ENO_MEMORY, "out of memory while %s was read", w->t->host_path);
  return refuse(w, AL_ESOURCE_UNREADABLE, strerror(error));
}

static int
changed(walk_t *w) {
  return refuse(w, AL_ESOURCE_UNREADABLE, "it changed while it was read");
}

/* Of an entry that is not any more what it was when its directory was read. */
static int
lost(walk_t *w, int error) {
  if (error == ENOENT) return 0; /* gone: not in the tree */
  return error == ELOOP || error == ENXIO || error == ENOTDIR || error == EINVAL ? changed(w) : unreadable(w, error);
}

/* What the writer says: -ECANCELED goes up without a text, since the pipe was broken by somebody who has one. */
static int
written(walk_t *w, int r) {
  if (r == -ENOMEM) return unreadable(w, ENOMEM);
  if (r != -EINVAL) return r;
  return refuse(w, AL_ESOURCE_UNSUPPORTED, w->pax.why ? w->pax.why : "cannot be put into an archive");
}

static int
put_header(walk_t *w) {
  w->t->stats.files++;
  return written(w, al__pax_header(&w->pax));
}

/* ---- files ---- */

typedef struct source_s {
  int fd;
  off_t size; /* as the header announces it */
  bool changed, ended;
} source_t;

/* Bytes [at, at + n) of a file. Where it has ended, zeros take the place of what was announced. One byte more is asked
 * for at the end: whether there is one tells that the file has grown, without another system call. So there must be room
 * for it: an end that would just fit takes two reads. */
static int
put_bytes(walk_t *w, source_t *s, off_t at, off_t n) {
  while (n > 0) {
    uint8_t *p;
    size_t room;
    int r = al__pax_room(&w->pax, (uint64_t) n, &p, &room);
    if (r < 0) return written(w, r);
    bool last = at + n == s->size;
    size_t want = (off_t) room > n ? (size_t) n + last : room - (last && (off_t) room == n);
    ssize_t got = s->ended ? 0 : pread(s->fd, p, want, at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return unreadable(w, errno);
    if (got > n) s->changed = true;
    if (got == 0) {
      s->changed = s->ended = true;
      got = (off_t) room > n ? (ssize_t) n : (ssize_t) room;
      memset(p, 0, (size_t) got);
    }
    if (got > n) got = (ssize_t) n;
    w->t->stats.bytes += (uint64_t) got;
    if ((r = al__pax_data(&w->pax, p, (uint64_t) got)) < 0) return written(w, r);
    at += got;
    n -= got;
  }
  return 0;
}

typedef struct range_s {
  off_t at, end;
} range_t;

/* Where a sparse file has data. A file system that cannot say is a file without holes. */
static size_t
find_ranges(const source_t *s, range_t *ranges) {
  size_t n = 0;
  ranges[0] = (range_t){ 0, s->size };
  for (off_t at = 0; at < s->size;) {
    off_t data = lseek(s->fd, at, SEEK_DATA);
    if (data < 0 && errno == ENXIO) break; /* a hole up to the end */
    off_t hole = data < 0 ? -1 : lseek(s->fd, data, SEEK_HOLE);
    if (data < 0 || hole <= data || n == RANGES_MAX) {
      ranges[0] = (range_t){ 0, s->size };
      return 1;
    }
    if (data >= s->size) break;
    ranges[n++] = (range_t){ data, hole < s->size ? hole : s->size };
    at = hole;
  }
  return n;
}

/* Holes are told to the writer, but neither read nor sent. */
static int
put_sparse(walk_t *w, source_t *s, const range_t *ranges, size_t count) {
  off_t at = 0;
  for (size_t i = 0; i < count; i++) al__pax_range(&w->pax, ranges[i].at, ranges[i].end - ranges[i].at);
  if (count == 0) al__pax_range(&w->pax, s->size, 0);
  int r = put_header(w);
  for (size_t i = 0; i <= count && r == 0; i++) {
    off_t hole = (i < count ? ranges[i].at : s->size) - at;
    w->t->stats.bytes += (uint64_t) hole;
    r = written(w, al__pax_data(&w->pax, NULL, (uint64_t) hole));
    if (i == count || r < 0) break;
    r = put_bytes(w, s, ranges[i].at, ranges[i].end - ranges[i].at);
    at = ranges[i].end;
  }
  struct stat st;
  if (r == 0 && (fstat(s->fd, &st) < 0 || st.st_size != s->size)) s->changed = true;
  return r;
}

static void
note_change(walk_t *w) {
  al_xfer_stats_t *s = &w->t->stats;
  if (s->changed++ > 0) return;
  const char *host = w->t->host_path, *rest = below(w);
  size_t a = strlen(host), b = strlen(rest);
  if (a >= sizeof s->changed_path) a = 0;
  if (b >= sizeof s->changed_path - a) b = 0;
  memcpy(s->changed_path, host, a);
  memcpy(s->changed_path + a, rest, b);
  s->changed_path[a + b] = 0;
}

static int
put_content(walk_t *w, int fd, const struct stat *st) {
  source_t s = { .fd = fd, .size = st->st_size };
  AL_AUTO_FREE range_t *ranges = NULL;
  size_t count = 1;
  if (st->st_size > SIZE_MOST) return refuse(w, AL_ESOURCE_UNSUPPORTED, "it is larger than a pebibyte");
  if (st->st_size > HOLE_LEAST && st->st_blocks < (st->st_size + 511) / 512) {
    ranges = al_calloc(RANGES_MAX, sizeof *ranges);
    if (!ranges) return unreadable(w, ENOMEM);
    count = find_ranges(&s, ranges);
  }
  int r;
  if (ranges && (count != 1 || ranges[0].at > 0 || ranges[0].end < s.size)) {
    r = put_sparse(w, &s, ranges, count);
  } else {
    r = put_header(w);
    if (r == 0) r = put_bytes(w, &s, 0, s.size);
  }
  /* Also an empty file may have grown, or may be one of which the size says nothing, as in /proc. */
  if (r == 0 && s.size == 0 && pread(fd, &(char){ 0 }, 1, 0) > 0) s.changed = true;
  if (r == 0 && s.changed) note_change(w);
  return r;
}

static const char *
archive_path(const walk_t *w) {
  return (const char *) w->path.data;
}

/* Whatever it was when its directory was read, it counts what it is when it is opened. */
static int
put_file(walk_t *w, int dir, const char *name) {
  struct stat st;
  AL_AUTO_FD int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
  if (fd < 0) return lost(w, errno);
  if (fstat(fd, &st) < 0) return unreadable(w, errno);
  if (!S_ISREG(st.st_mode)) return changed(w);
  al__pax_begin(&w->pax, archive_path(w), &st);
  if (st.st_nlink > 1 && al__pax_linked(&w->pax, archive_path(w), &st)) return put_header(w);
  return put_content(w, fd, &st);
}

static int
put_link(walk_t *w, int dir, const char *name, const struct stat *st) {
  char target[AL_PATH_MAX + 1];
  ssize_t n = readlinkat(dir, name, target, sizeof target);
  if (n < 0) return lost(w, errno);
  if (n == (ssize_t) sizeof target) return unreadable(w, ENAMETOOLONG);
  target[n] = 0;
  al__pax_begin(&w->pax, archive_path(w), st);
  al__pax_symlink(&w->pax, target);
  if (st->st_nlink > 1) (void) al__pax_linked(&w->pax, archive_path(w), st); /* the header says it */
  return put_header(w);
}

/* ---- directories ---- */

static int
each(walk_t *w, int fd, int (*fn)(walk_t *w, int dir, const struct dirent *e));

/* Sums up how much will come. What cannot be looked at is not counted; the walk that counts will say so. */
static int
count_one(walk_t *w, int dir, const struct dirent *e) {
  struct stat st;
  if (al__pipe_broken(w->t->pipe) || uv_hrtime() > w->until) return -ECANCELED;
  if (e->d_type == DT_LNK || fstatat(dir, e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0) return 0;
  if (al_ignore_matches(w->t->ignore, archive_path(w) + 2, S_ISDIR(st.st_mode))) return 0;
  /* What is larger than may be is refused by the walk; here the sum must not pass what a number can hold. */
  if (S_ISREG(st.st_mode) && st.st_size <= SIZE_MOST) w->t->stats.total += (uint64_t) st.st_size;
  if (!S_ISDIR(st.st_mode) || w->depth >= DEPTH_MAX) return 0;
  int fd = openat(dir, e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  return fd < 0 ? 0 : each(w, fd, count_one);
}

static int
put_dir(walk_t *w, int fd);

static int
put_any(walk_t *w, int dir, const struct dirent *e) {
  struct stat st = { 0 };
  const char *name = e->d_name, *path = archive_path(w) + 2;
  if (al__pipe_broken(w->t->pipe)) return -ECANCELED;
  if (al_tmp_name_is(name)) return 0; /* what a copy out has not put in place */
  if (w->path.len - 2 > AL_PATH_MAX) return refuse(w, AL_ESOURCE_UNSUPPORTED, "its path is longer than 4096 bytes");
  /* A file is opened anyway, which says the rest. */
  bool is_file = e->d_type == DT_REG;
  if (!is_file && fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0) return lost(w, errno);
  if (al_ignore_matches(w->t->ignore, path, S_ISDIR(st.st_mode))) return 0;
  if (is_file || S_ISREG(st.st_mode)) return put_file(w, dir, name);
  if (S_ISLNK(st.st_mode)) return put_link(w, dir, name, &st);
  if (S_ISSOCK(st.st_mode)) return refuse(w, AL_ESOURCE_UNSUPPORTED, "is a socket");
  if (!S_ISDIR(st.st_mode))
    return refuse(w, AL_ESOURCE_UNSUPPORTED, S_ISFIFO(st.st_mode) ? "is a FIFO" : "is a device");
  if (w->depth >= DEPTH_MAX) return refuse(w, AL_ESOURCE_UNSUPPORTED, "directories are nested too deeply");
  int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  return fd < 0 ? lost(w, errno) : put_dir(w, fd);
}

/* Takes the descriptor. w->path is the directory's own; after a failure it is that of what failed. */
static int
each(walk_t *w, int fd, int (*fn)(walk_t *w, int dir, const struct dirent *e)) {
  DIR *d = fdopendir(fd);
  if (!d) {
    int error = errno;
    close(fd);
    return unreadable(w, error);
  }
  int r = 0;
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
    else r = fn(w, dirfd(d), e);
    if (r < 0) break;
    w->path.len = len;
    w->path.data[len] = 0;
  }
  w->depth--;
  closedir(d);
  return r;
}

static int
put_dir(walk_t *w, int fd) {
  struct stat st;
  if (fstat(fd, &st) < 0) {
    int error = errno;
    close(fd);
    return unreadable(w, error);
  }
  al__pax_begin(&w->pax, archive_path(w), &st);
  int r = put_header(w);
  if (r == 0) return each(w, fd, put_any);
  close(fd);
  return r;
}

/* ---- the root ---- */

static int
count_all(walk_t *w, int fd) {
  w->until = uv_hrtime() + COUNT_NS;
  int r = each(w, fd, count_one);
  w->path.len = 1;
  w->path.data[1] = 0;
  w->depth = 0;
  if (r < 0) w->t->stats.total = 0;
  w->t->err.code = 0; /* the walk finds it again */
  return al__pipe_broken(w->t->pipe) ? -ECANCELED : 0;
}

static int
put_root(walk_t *w) {
  al_tar_t *t = w->t;
  struct stat st;
  const char *name = t->is_dir ? "." : t->name;
  if (al_buf_append(&w->path, name, strlen(name)) < 0) return unreadable(w, ENOMEM);
  if (fstat(t->fd, &st) < 0) return unreadable(w, errno);
  if (!t->is_dir) {
    if (st.st_size <= SIZE_MOST) t->stats.total = (uint64_t) st.st_size;
    al__pax_begin(&w->pax, archive_path(w), &st);
    return put_content(w, t->fd, &st);
  }
  if (t->count) {
    int fd = openat(t->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int r = fd < 0 ? unreadable(w, errno) : count_all(w, fd);
    if (r < 0) return r;
  }
  int fd = fcntl(t->fd, F_DUPFD_CLOEXEC, 0);
  return fd < 0 ? unreadable(w, errno) : put_dir(w, fd);
}

int
al__tar_write(al_tar_t *t) {
  walk_t w = { .t = t };
  al_buf_init(&w.path, 0);
  int r = written(&w, al__pax_open(&w.pax, t->pipe, &t->stats));
  if (r == 0) r = put_root(&w);
  int closed = al__pax_close(&w.pax, r == 0);
  if (r == 0) r = written(&w, closed);
  if (r == 0) t->stats.total = t->stats.bytes;
  al_buf_deinit(&w.path);
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
