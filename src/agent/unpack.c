/* SPDX-License-Identifier: Apache-2.0 */
/* Unpacking: a pax archive from stdin into a temporary sibling of its target, then in place. A program of its own, in
 * the command's cgroup and with its user's rights. */
#include "agent.h"
#include "unpack.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DEPTH_MAX 1024
#define DIR_FLAGS (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
#define DIRECT_LEAST 65536u /* bytes of a file that are worth the moving past our buffer */

/* The directories from the root of the tree to the one that is being filled. The archive has what is in a directory
 * right behind it, so each gets its mode and its times when the first path that is not below it comes. */
typedef struct level_s {
  int fd;           /* -1 = not opened: an empty one need not be */
  size_t name, end; /* in `here` */
  mode_t mode;
  bool chmod;       /* it was not made with its mode */
  struct timespec mtime; /* UTIME_OMIT: the archive does not say */
} level_t;

static level_t levels[DEPTH_MAX];
static size_t depth; /* levels[0] is the root */
static char here[AL_UNTAR_PATH + 1];
static al_untar_t archive;
static al_untar_entry_t entry;
static al_place_t place;
static volatile sig_atomic_t stop_asked;
static sigset_t while_reading;

static void
on_signal(int signo) {
  (void) signo;
  stop_asked = 1;
}

/* Signals come only while we wait for bytes, so none is missed and no directory is left half made. */
static int
wait_for_bytes(void) {
  struct pollfd p = {.fd = 0, .events = POLLIN};
  while (!stop_asked) {
    if (ppoll(&p, 1, NULL, &while_reading) > 0) return stop_asked ? -EINTR : 0;
    if (errno != EINTR) return -errno;
  }
  return -EINTR;
}

static ssize_t
take(void *data, void *p, size_t n) {
  (void) data;
  for (;;) {
    int r = wait_for_bytes();
    if (r < 0) return r;
    ssize_t got = read(0, p, n);
    if (got >= 0) return got;
    if (errno != EINTR && errno != EAGAIN) return -errno;
  }
}

/* ---- directories ---- */

/* Of the deepest directory, whose name is the end of `here`. */
static int
open_deepest(void) {
  level_t *l = &levels[depth - 1];
  if (l->fd < 0) l->fd = openat(levels[depth - 2].fd, here + l->name, DIR_FLAGS);
  return l->fd >= 0 ? 0 : -errno;
}

static int
leave(void) {
  level_t *l = &levels[depth - 1];
  const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, l->mtime};
  int dir = levels[depth - 2].fd, r = 0;
  const char *name = here + l->name;
  if (l->fd >= 0) {
    if ((l->chmod && fchmod(l->fd, l->mode) != 0) || futimens(l->fd, times) != 0) r = -errno;
    close(l->fd);
  } else if ((l->chmod && fchmodat(dir, name, l->mode, 0) != 0) ||
             utimensat(dir, name, times, AT_SYMLINK_NOFOLLOW) != 0) {
    r = -errno;
  }
  depth--;
  here[levels[depth - 1].end] = 0;
  return r;
}

/* Makes the directory `name` in the deepest one, and goes there. */
static int
enter(const char *name, size_t n, mode_t mode, struct timespec mtime) {
  if (depth == DEPTH_MAX) return -ENAMETOOLONG;
  int r = open_deepest();
  if (r < 0) return r;
  level_t *l = &levels[depth];
  size_t end = levels[depth - 1].end, at = end + (end > 0);
  if (at + n >= sizeof(here)) return -ENAMETOOLONG;
  here[end] = '/';
  memcpy(here + at, name, n);
  here[at + n] = 0;
  *l = (level_t) {.fd = -1, .name = at, .end = at + n, .mode = mode, .chmod = (mode & 07700) != 0700, .mtime = mtime};
  int made = mkdirat(levels[depth - 1].fd, here + at, l->chmod ? 0700 : mode);
  int err = errno;
  depth++;
  if (made == 0) return 0;
  l->chmod = true;
  r = err == EEXIST ? open_deepest() : -err;
  if (r < 0) {
    depth--;
    here[end] = 0;
  }
  return r;
}

static bool
is_below(const char *path, size_t n) {
  size_t end = levels[depth - 1].end;
  return end == 0 || (end <= n && memcmp(path, here, end) == 0 && (end == n || path[end] == '/'));
}

/* Goes to the directory that `path` is in and opens it; *name is path's last part. What the archive has not named is
 * made with the usual mode. */
static int
go_to(const char *path, const char **name) {
  const char *slash = strrchr(path, '/');
  size_t n = slash != NULL ? (size_t) (slash - path) : 0;
  int r = 0;
  *name = slash != NULL ? slash + 1 : path;
  while (r == 0 && !is_below(path, n)) r = leave();
  while (r == 0 && levels[depth - 1].end < n) {
    size_t at = levels[depth - 1].end + (levels[depth - 1].end > 0);
    const char *end = memchr(path + at, '/', n - at);
    size_t len = end != NULL ? (size_t) (end - path) - at : n - at;
    r = enter(path + at, len, 0755, (struct timespec) {.tv_nsec = UTIME_OMIT});
  }
  return r == 0 ? open_deepest() : r;
}

/* ---- entries ---- */

static int
broken(const char *why) {
  archive.why = why;
  return -EINVAL;
}

static int
write_range(int fd, off_t at, uint64_t n) {
  static bool no_splice;
  while (n > 0) {
    const uint8_t *p;
    uint64_t direct = no_splice ? 0 : al_untar_direct(&archive);
    if (direct > n) direct = n;
    if (direct >= DIRECT_LEAST) {
      int r = wait_for_bytes();
      if (r < 0) return r;
      ssize_t moved = splice(0, NULL, fd, &at, direct, SPLICE_F_MOVE);
      if (moved < 0 && errno != EINVAL) return -errno;
      if (moved == 0) return broken("the archive ends early");
      no_splice = moved < 0; /* not a pipe, or not on this file system */
      if (moved < 0) continue;
      al_untar_moved(&archive, (uint64_t) moved);
      n -= (uint64_t) moved;
      continue;
    }
    ssize_t got = al_untar_data(&archive, &p, n);
    if (got < 0) return (int) got;
    n -= (uint64_t) got;
    while (got > 0) {
      ssize_t done = pwrite(fd, p, (size_t) got, at);
      if (done < 0) return -errno;
      p += done;
      at += done;
      got -= done;
    }
  }
  return 0;
}

static int
write_file(int fd) {
  const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {entry.mtime, (long) entry.mtime_ns}};
  uint64_t end = 0;
  for (uint32_t i = 0; i < entry.ranges_len; i++) {
    const al_untar_range_t *r = &entry.ranges[i];
    int err = write_range(fd, (off_t) r->at, r->len);
    if (err < 0) return err;
    end = r->at + r->len;
  }
  if (end < entry.size && ftruncate(fd, (off_t) entry.size) != 0) return -errno;
  return futimens(fd, times) == 0 ? 0 : -errno;
}

/* A file is made with its mode, which counts for those who open it later. Not setuid and setgid: its owner is another.
 */
static int
put_file(int dir, const char *name) {
  int fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, entry.mode & 0777);
  if (fd < 0) return -errno;
  int r = write_file(fd);
  if (close(fd) != 0 && r == 0) r = -errno;
  return r;
}

static int
put_link(int dir, const char *name) {
  const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {entry.mtime, (long) entry.mtime_ns}};
  if (symlinkat(entry.link, dir, name) != 0) return -errno;
  return utimensat(dir, name, times, AT_SYMLINK_NOFOLLOW) == 0 ? 0 : -errno;
}

/* To a file that came before. The way there is walked without following links. */
static int
put_hard(int dir, const char *name) {
  int from = levels[0].fd, r = 0;
  char *at = entry.link;
  for (char *slash; r == 0 && (slash = strchr(at, '/')) != NULL; at = slash + 1) {
    *slash = 0;
    int fd = openat(from, at, DIR_FLAGS);
    if (fd < 0) r = -errno;
    if (from != levels[0].fd) close(from);
    from = fd;
  }
  if (r == 0 && linkat(from, at, dir, name, 0) != 0) r = -errno;
  if (from >= 0 && from != levels[0].fd) close(from);
  return r;
}

static int
put_entry(void) {
  const char *name;
  const struct timespec mtime = {entry.mtime, (long) entry.mtime_ns};
  if (entry.path[0] == 0) {
    levels[0].mode = entry.mode;
    levels[0].mtime = mtime;
    return 0;
  }
  int r = go_to(entry.path, &name);
  if (r < 0) return r;
  int dir = levels[depth - 1].fd;
  switch (entry.kind) {
  case AL_UNTAR_FILE: return put_file(dir, name);
  case AL_UNTAR_LINK: return put_link(dir, name);
  case AL_UNTAR_HARD: return put_hard(dir, name);
  case AL_UNTAR_DIR: return enter(name, strlen(name), entry.mode, mtime);
  }
  return -EINVAL;
}

static int
put_tree(void) {
  int r;
  levels[0] = (level_t) {.fd = place.fd, .mode = 0755, .mtime.tv_nsec = UTIME_OMIT};
  depth = 1;
  while ((r = al_untar_next(&archive, &entry)) == 1) {
    r = stop_asked ? -EINTR : put_entry();
    if (r < 0) return r;
  }
  entry.path[0] = 0;
  while (r == 0 && depth > 1) r = leave();
  return r;
}

static int
put_single(void) {
  int r = al_untar_next(&archive, &entry);
  if (r == 0 || (r == 1 && entry.kind != AL_UNTAR_FILE)) r = broken("no file");
  if (r < 0) return r;
  r = write_file(place.fd);
  if (r == 0 && fchmod(place.fd, entry.mode & 0777) != 0) r = -errno;
  if (r == 0) r = al_untar_next(&archive, &entry);
  return r == 1 ? broken("more than one file") : r;
}

/* ---- the program ---- */

static int
become(const char *name) {
  const al_user_t *u;
  int r = al_users_find(name, &u);
  if (r < 0) return r;
  if (syscall(SYS_setgroups, u->groups_len, u->groups) != 0 || syscall(SYS_setresgid, u->gid, u->gid, u->gid) != 0 ||
      syscall(SYS_setresuid, u->uid, u->uid, u->uid) != 0)
    return -errno;
  return 0;
}

static void
set_up(void) {
  static const int ending[] = {SIGTERM, SIGHUP, SIGINT};
  struct sigaction a = {.sa_handler = on_signal};
  sigset_t blocked;
  sigemptyset(&blocked);
  sigprocmask(SIG_SETMASK, NULL, &while_reading);
  for (size_t i = 0; i < sizeof(ending) / sizeof(ending[0]); i++) {
    sigaction(ending[i], &a, NULL);
    sigaddset(&blocked, ending[i]);
    sigdelset(&while_reading, ending[i]);
  }
  sigprocmask(SIG_BLOCK, &blocked, NULL);
  signal(SIGPIPE, SIG_IGN);
  struct rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
    files.rlim_cur = files.rlim_max < 8192 ? files.rlim_max : 8192;
    (void) setrlimit(RLIMIT_NOFILE, &files);
  }
  umask(0);
  archive.read = take;
}

/* What went wrong, with the path in the guest where it did. */
static int
failed(int err, const char *target, const char *at) {
  const char *why = err == -EINVAL && archive.why != NULL ? archive.why : strerror(-err);
  if (err == -EINTR) why = "it was ended";
  dprintf(2, "%s%s%s: %s", target, at[0] != 0 ? "/" : "", at, why);
  return 1;
}

int
al_unpack_main(int argc, char **argv) {
  if (argc != 5 || (strcmp(argv[3], "tree") != 0 && strcmp(argv[3], "file") != 0)) {
    dprintf(2, "agent: --unpack USER tree|file PATH");
    return 2;
  }
  bool tree = argv[3][0] == 't';
  const char *path = argv[4];
  set_up();
  int r = argv[2][0] != 0 ? become(argv[2]) : 0;
  if (r < 0) return failed(r, "user ", argv[2]);
  r = al_place_open(&place, path, tree);
  const char *at = place.at;
  if (r == 0) {
    r = tree ? put_tree() : put_single();
    at = entry.path;
    if (r == 0) {
      const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, levels[0].mtime};
      r = al_place_commit(&place, levels[0].mode, times);
      at = place.at;
    }
  }
  if (r == -EEXIST && place.kinds[0] != 0) {
    dprintf(1, "%.2s%s", place.kinds, place.at);
    r = AL_UNPACK_CLASH;
  } else if (r < 0) {
    r = failed(r, path, tree ? at : "");
  }
  al_place_undo(&place);
  return r;
}
