/* SPDX-License-Identifier: Apache-2.0 */
/* Where a copy into the guest goes: a temporary sibling of the target, put in place by renames when it is whole. */
#include "unpack.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Whoever unpacks holds an flock(2) on the temporary sibling, which ends with the process, however it ends: one that
 * can be locked is nobody's any more and is removed by the next copy that comes by. */

#define DIR_FLAGS (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
#define TRIES 100
#define ROUNDS 100 /* through a directory that should be empty by then; in one there may be more than a round gives */
#define RENAME_NOREPLACE_ 1

static char
kind_of(mode_t mode) {
  return S_ISDIR(mode) ? 'd' : S_ISREG(mode) ? 'f' : S_ISLNK(mode) ? 'l' : 'o';
}

static int
clash(al_place_t *p, char comes, char is) {
  p->kinds[0] = comes;
  p->kinds[1] = is;
  return -EEXIST;
}

/* Goes one name deeper in p->at; gives what it was, to go back to. */
static size_t
deeper(al_place_t *p, const char *name) {
  size_t len = strlen(p->at), n = strlen(name);
  if (len + n + 2 <= sizeof(p->at)) {
    if (len > 0) p->at[len] = '/';
    memcpy(p->at + len + (len > 0), name, n + 1);
  }
  return len;
}

static DIR *
list(int fd) {
  int own = openat(fd, ".", DIR_FLAGS);
  DIR *d = own >= 0 ? fdopendir(own) : NULL;
  if (d == NULL && own >= 0) close(own);
  return d;
}

static struct dirent *
next(DIR *d) {
  struct dirent *e;
  errno = 0;
  while ((e = readdir(d)) != NULL)
    if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) return e;
  return NULL;
}

/* Everything in the directory, as far as it can be. */
static void
empty(int fd) {
  struct stat st;
  if (fstat(fd, &st) == 0 && (st.st_mode & 0700) != 0700) (void) fchmod(fd, 0700);
  DIR *d = list(fd);
  if (d == NULL) return;
  bool any = true;
  for (int round = 0; any && round < ROUNDS; round++) {
    any = false;
    rewinddir(d);
    for (struct dirent *e; (e = next(d)) != NULL;) {
      int r = e->d_type == DT_DIR ? -1 : unlinkat(fd, e->d_name, 0);
      if (r != 0 && (e->d_type == DT_DIR || errno == EISDIR || errno == EPERM)) {
        int sub = openat(fd, e->d_name, DIR_FLAGS);
        if (sub < 0 && errno == EACCES && fchmodat(fd, e->d_name, 0700, 0) == 0) sub = openat(fd, e->d_name, DIR_FLAGS);
        if (sub < 0) continue;
        empty(sub);
        close(sub);
        r = unlinkat(fd, e->d_name, AT_REMOVEDIR);
      }
      if (r == 0) any = true;
    }
  }
  closedir(d);
}

/* The lock, on what still has that name. */
static bool
lock(int dir, const char *name, int fd) {
  struct stat a, b;
  return flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &a) == 0 && fstatat(dir, name, &b, AT_SYMLINK_NOFOLLOW) == 0 &&
    a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

static void
sweep_one(int dir, const char *name) {
  const int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  struct stat st;
  if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) != 0 || st.st_uid != geteuid()) return;
  if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) return;
  int fd = openat(dir, name, flags);
  if (fd < 0 && errno == EACCES && fchmodat(dir, name, 0700, 0) == 0) fd = openat(dir, name, flags);
  if (fd < 0) return;
  if (lock(dir, name, fd)) {
    if (S_ISDIR(st.st_mode)) empty(fd);
    (void) unlinkat(dir, name, S_ISDIR(st.st_mode) ? AT_REMOVEDIR : 0);
  }
  close(fd);
}

static void
sweep(int dir) {
  DIR *d = list(dir);
  if (d == NULL) return;
  for (struct dirent *e; (e = next(d)) != NULL;)
    if (al_tmp_name_is(e->d_name)) sweep_one(dir, e->d_name);
  closedir(d);
}

/* In p->parent. One that a sweep of somebody else's has caught before we held the lock is given up. */
static int
make_sibling(al_place_t *p) {
  for (int i = 0; i < TRIES; i++) {
    uint64_t r;
    if (getrandom(&r, sizeof(r), 0) != sizeof(r)) return -EIO;
    al_tmp_name(p->tmp, r);
    if (p->tree) p->fd = mkdirat(p->parent, p->tmp, 0700) == 0 ? openat(p->parent, p->tmp, DIR_FLAGS) : -1;
    else p->fd = openat(p->parent, p->tmp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    int err = p->fd < 0 ? errno : 0;
    if (err == 0 && lock(p->parent, p->tmp, p->fd)) return 0;
    if (p->fd >= 0) close(p->fd);
    p->fd = -1;
    p->tmp[0] = 0;
    if (err != 0 && err != EEXIST && err != ENOENT) return -err;
  }
  return -EAGAIN;
}

/* Each missing directory above the target. */
static int
make_parents(al_place_t *p) {
  for (char *slash = p->path + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
    *slash = 0;
    int err = mkdir(p->path, 0755) == 0 ? 0 : errno;
    *slash = '/';
    if (err == 0) p->made++;
    else if (err != EEXIST && err != EISDIR && p->made > 0) return -err;
    /* What is above cannot be made where it is there already, whatever mkdir says; opening will tell. */
  }
  return 0;
}

static int
open_parent(al_place_t *p) {
  char *slash = strrchr(p->path, '/');
  p->name = slash + 1;
  for (int i = 0; i < 2; i++) {
    if (slash == p->path) {
      p->target = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    } else {
      *slash = 0;
      p->target = open(p->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
      *slash = '/';
    }
    if (p->target >= 0) return 0;
    int err = errno;
    if (err != ENOENT || i > 0) return -err;
    err = make_parents(p);
    if (err != 0) return err;
  }
  return -ENOENT;
}

/* What is there now, and whether the other may come there. 0 = nothing is there, 1 = something that may be replaced or
 * merged with, -EEXIST or another error. */
static int
look(al_place_t *p, struct stat *st) {
  if (fstatat(p->target, p->name, st, AT_SYMLINK_NOFOLLOW) != 0) return errno == ENOENT ? 0 : -errno;
  if (S_ISDIR(st->st_mode) != p->tree) return clash(p, p->tree ? 'd' : 'f', kind_of(st->st_mode));
  return 1;
}

/* Where a link to a directory leads, when the target itself is one: a worktree has it from its commit, and the host's own
 * is followed too. Links below are not. */
static const char *
led_to(const char *path, char real[PATH_MAX]) {
  struct stat st;
  bool follow = lstat(path, &st) == 0 && S_ISLNK(st.st_mode) && stat(path, &st) == 0 && S_ISDIR(st.st_mode);
  return follow && realpath(path, real) != NULL ? real : path;
}

int
al_place_open(al_place_t *p, const char *path, bool tree) {
  struct stat st, above;
  char real[PATH_MAX];
  if (tree) path = led_to(path, real);
  size_t n = strlen(path);
  *p = (al_place_t) {.parent = -1, .target = -1, .fd = -1, .tree = tree};
  if (n < 2 || n > AL_UNTAR_PATH || path[0] != '/' || path[n - 1] == '/') return -EINVAL;
  memcpy(p->path, path, n + 1);
  int r = open_parent(p);
  if (r == 0) r = look(p, &st);
  if (r < 0) return r;
  bool merge = r == 1 && tree;
  if (merge && fstat(p->target, &above) != 0) return -errno;
  r = -EXDEV;
  if (!merge || st.st_dev == above.st_dev) {
    p->parent = dup(p->target);
    if (p->parent < 0) return -errno;
    sweep(p->parent);
    r = make_sibling(p);
  }
  if (!merge || (r != -EXDEV && r != -EACCES && r != -EPERM && r != -EROFS)) return r;
  /* A directory that is there already, on another file system than its parent, or in one that is not ours to write to:
   * then it has to hold what comes. */
  if (p->parent >= 0) close(p->parent);
  p->parent = openat(p->target, p->name, DIR_FLAGS);
  if (p->parent < 0) return -errno;
  sweep(p->parent);
  return make_sibling(p);
}

/* ---- into a directory that is there ---- */

static int
both(al_place_t *p, int from, int to, const char *name, int (*fn)(al_place_t *p, int from, int to)) {
  int a = openat(from, name, DIR_FLAGS), b = a >= 0 ? openat(to, name, DIR_FLAGS) : -1;
  int r = b >= 0 ? fn(p, a, b) : -errno;
  if (a >= 0) close(a);
  if (b >= 0) close(b);
  return r;
}

static int
is_dir(int dir, const struct dirent *e, char *kind) {
  struct stat st;
  if (e->d_type == DT_UNKNOWN) {
    if (fstatat(dir, e->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0) return -errno;
    *kind = kind_of(st.st_mode);
  } else {
    *kind = e->d_type == DT_DIR ? 'd' : e->d_type == DT_LNK ? 'l' : 'f';
  }
  return *kind == 'd';
}

/* Nothing is changed here. */
static int
check(al_place_t *p, int from, int to) {
  struct stat a, b;
  int r = 0;
  if (fstat(from, &a) != 0 || fstat(to, &b) != 0) return -errno;
  if (a.st_dev != b.st_dev) return -EXDEV;
  bool own = b.st_uid == geteuid() && (b.st_mode & 0500) == 0500; /* then move_into can open it */
  if (!own && faccessat(to, ".", W_OK | X_OK, 0) != 0) return -errno;
  DIR *d = list(from);
  if (d == NULL) return -errno;
  for (struct dirent *e; r == 0 && (e = next(d)) != NULL;) {
    char kind;
    size_t len = deeper(p, e->d_name);
    int dir = is_dir(from, e, &kind);
    if (dir < 0) r = dir;
    else if (fstatat(to, e->d_name, &b, AT_SYMLINK_NOFOLLOW) != 0) r = errno == ENOENT ? 0 : -errno;
    else if ((dir == 1) != S_ISDIR(b.st_mode)) r = clash(p, kind, kind_of(b.st_mode));
    else if (dir == 1) r = both(p, from, to, e->d_name, check);
    if (r == 0) p->at[len] = 0;
  }
  closedir(d);
  return r;
}

/* A directory to where nothing is. -EEXIST: something has come there meanwhile. */
static int
rename_dir(int from, const char *name, int to, const char *as) {
  if (syscall(SYS_renameat2, from, name, to, as, RENAME_NOREPLACE_) == 0) return 0;
  if (errno != ENOSYS && errno != EINVAL) return -errno;
  if (renameat(from, name, to, as) == 0) return 0;
  return errno == ENOTEMPTY ? -EEXIST : -errno;
}

/* A directory can go under another parent only when it may be written to. */
static int
move_dir(int from, int to, const char *name) {
  struct stat st;
  int r = rename_dir(from, name, to, name);
  if (r != -EACCES || fstatat(from, name, &st, AT_SYMLINK_NOFOLLOW) != 0 || (st.st_mode & 0200) ||
      fchmodat(from, name, (st.st_mode & 07777) | 0200, 0) != 0)
    return r;
  r = rename_dir(from, name, to, name);
  (void) fchmodat(r == 0 ? to : from, name, st.st_mode & 07777, 0);
  return r;
}

/* A directory that somebody else owns keeps its mode and its times. */
static int
dress(int fd, mode_t mode, const struct timespec times[2]) {
  if (fchmod(fd, mode & 07777) != 0 && errno != EPERM) return -errno;
  return futimens(fd, times) != 0 && errno != EPERM ? -errno : 0;
}

static int
merge(al_place_t *p, int from, int to);

static int
merge_one(al_place_t *p, int from, int to, const struct dirent *e) {
  struct stat st;
  char kind;
  int dir = is_dir(from, e, &kind);
  if (dir < 0) return dir;
  if (dir == 0) return renameat(from, e->d_name, to, e->d_name) == 0 ? 0 : -errno;
  if (fstatat(to, e->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0) {
    int r = errno == ENOENT ? move_dir(from, to, e->d_name) : -errno;
    if (r != -EEXIST) return r; /* another copy's, which has come meanwhile */
  }
  int r = both(p, from, to, e->d_name, merge);
  if (r == 0 && unlinkat(from, e->d_name, AT_REMOVEDIR) != 0) r = -errno;
  return r;
}

/* Until nothing is left: a directory that changes while it is read may not give everything at once. What comes back again
 * and again is somebody else's doing (a name of the very file that is at its place, which no rename moves). */
static int
move_all(al_place_t *p, int from, int to) {
  int r = 0;
  DIR *d = list(from);
  if (d == NULL) return -errno;
  bool any = true;
  for (int round = 0; any && r == 0; round++) {
    any = false;
    rewinddir(d);
    for (struct dirent *e; r == 0 && (e = next(d)) != NULL;) {
      size_t len = deeper(p, e->d_name);
      r = round < ROUNDS ? merge_one(p, from, to, e) : -EBUSY;
      if (r == 0) p->at[len] = 0;
      any = true;
    }
  }
  closedir(d);
  return r;
}

/* A directory of the user's own that it may not write to is opened for as long as that takes; dress() shuts it again. */
static int
move_into(al_place_t *p, int from, int to) {
  struct stat st;
  if (fstat(to, &st) != 0) return -errno;
  bool shut = st.st_uid == geteuid() && (st.st_mode & 0200) == 0;
  if (shut && fchmod(to, (st.st_mode & 07777) | 0200) != 0) return -errno;
  int r = move_all(p, from, to);
  if (r != 0 && shut) (void) fchmod(to, st.st_mode & 07777);
  return r;
}

static int
merge(al_place_t *p, int from, int to) {
  struct stat st;
  if (fstat(from, &st) != 0) return -errno;
  const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, st.st_mtim};
  if ((st.st_mode & 0700) != 0700 && fchmod(from, 0700) != 0) return -errno;
  int r = move_into(p, from, to);
  return r == 0 ? dress(to, st.st_mode, times) : r;
}

/* ---- the end ---- */

static int
move_tree(al_place_t *p, mode_t mode, const struct timespec times[2]) {
  if (fchmod(p->fd, mode) != 0 || futimens(p->fd, times) != 0) return -errno;
  return rename_dir(p->parent, p->tmp, p->target, p->name);
}

static int
merge_tree(al_place_t *p, mode_t mode, const struct timespec times[2]) {
  int to = openat(p->target, p->name, DIR_FLAGS);
  if (to < 0) return -errno;
  int r = fchmod(p->fd, 0700) == 0 ? check(p, p->fd, to) : -errno;
  if (r == 0) r = move_into(p, p->fd, to);
  if (r == 0) {
    (void) unlinkat(p->parent, p->tmp, AT_REMOVEDIR);
    r = dress(to, mode, times);
  }
  close(to);
  return r;
}

static int
commit_tree(al_place_t *p, mode_t mode, const struct timespec times[2]) {
  struct stat st;
  int r = look(p, &st);
  if (r == 0) {
    r = move_tree(p, mode, times);
    if (r != -EEXIST) return r;
    r = look(p, &st);
  }
  return r < 0 ? r : merge_tree(p, mode, times);
}

int
al_place_commit(al_place_t *p, mode_t mode, const struct timespec times[2]) {
  struct stat st;
  int r = p->tree ? commit_tree(p, mode, times) : look(p, &st);
  if (!p->tree && r >= 0) r = renameat(p->parent, p->tmp, p->target, p->name) == 0 ? 0 : -errno;
  if (r < 0) return r;
  p->tmp[0] = 0;
  p->made = 0;
  return 0;
}

void
al_place_undo(al_place_t *p) {
  if (p->tmp[0] != 0) {
    if (p->tree) empty(p->fd);
    (void) unlinkat(p->parent, p->tmp, p->tree ? AT_REMOVEDIR : 0);
  }
  p->tmp[0] = 0;
  for (; p->made > 0; p->made--) {
    char *slash = strrchr(p->path, '/');
    *slash = 0;
    if (p->path[0] == 0 || rmdir(p->path) != 0) break;
  }
  if (p->fd >= 0) close(p->fd);
  if (p->parent >= 0) close(p->parent);
  if (p->target >= 0) close(p->target);
  p->fd = p->parent = p->target = -1;
}
