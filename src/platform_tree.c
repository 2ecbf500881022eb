/* SPDX-License-Identifier: Apache-2.0 */
/* Removal of a directory tree by descriptors: any depth with three descriptors, no link followed, one file system. */
#include "platform_priv.h"
#include "mem.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEPTH_MAX 65536 /* levels; beyond, somebody is playing with us */

/* A directory on the way down: who it is, and the name under which its parent knows the next one. */
typedef struct level_s {
  dev_t dev;
  ino_t ino;
  char *child;
} level_t;

typedef struct walk_s {
  int fd; /* the directory being emptied */
  dev_t dev;
  level_t *levels;
  size_t depth, room;
} walk_t;

/* Opens a directory for emptying. Without permissions of its own it is given them, if it is ours. */
static int
open_dir(int at, const char *name, dev_t *dev) {
  struct stat st;

  int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0 && errno == EACCES) {
    if (fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW)) return -errno;
    if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid()) return -EACCES;
    if (fchmodat(at, name, 0700, AT_SYMLINK_NOFOLLOW)
      /* Old libcs cannot; what is changed in that case is what fstatat saw, or something else of ours. */
      && (errno != ENOTSUP || fchmodat(at, name, 0700, 0))) return -errno;
    fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  }
  if (fd < 0) return -errno;
  int rc = fstat(fd, &st) ? -errno : 0;
  if (!rc && *dev == 0) *dev = st.st_dev;
  if (!rc && st.st_dev != *dev) rc = -EXDEV;
  if (!rc && (st.st_mode & 0700) != 0700 && st.st_uid == geteuid() && fchmod(fd, 0700)) rc = -errno;
  if (!rc) return fd;
  close(fd);
  return rc;
}

/* Removes what can be removed in w->fd. 1 and *child (caller frees) at the first directory that is not empty, 0 when
 * nothing is left. Starting anew after each such directory is cheap, because what came before it is gone. */
static int
clear_dir(walk_t *w, char **child) {
  struct dirent *e;
  struct stat st;
  int rc = 0;

  int fd = openat(w->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return -errno;
  DIR *dir = fdopendir(fd);
  if (!dir) {
    rc = -errno;
    close(fd);
    return rc;
  }
  while (!rc) {
    errno = 0;
    if (!(e = readdir(dir))) {
      rc = -errno;
      break;
    }
    if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
    if (fstatat(w->fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW)) {
      if (errno != ENOENT) rc = -errno;
    } else if (!S_ISDIR(st.st_mode)) {
      if (unlinkat(w->fd, e->d_name, 0) && errno != ENOENT) rc = -errno;
    } else if (unlinkat(w->fd, e->d_name, AT_REMOVEDIR) && errno != ENOENT) {
      if (errno != ENOTEMPTY && errno != EEXIST) rc = -errno;
      else rc = (*child = al_strdup(e->d_name)) ? 1 : -ENOMEM;
    }
  }
  closedir(dir);
  return rc;
}

static int
descend(walk_t *w, char *child) {
  struct stat st;

  if (w->depth == DEPTH_MAX) return -ELOOP;
  if (fstat(w->fd, &st)) return -errno;
  if (w->depth == w->room) {
    size_t room = w->room ? w->room * 2 : 32;
    level_t *levels = al_reallocarray(w->levels, room, sizeof *levels);
    if (!levels) return -ENOMEM;
    w->levels = levels;
    w->room = room;
  }
  int fd = open_dir(w->fd, child, &w->dev);
  if (fd < 0) return fd;
  w->levels[w->depth++] = (level_t) {st.st_dev, st.st_ino, child};
  close(w->fd);
  w->fd = fd;
  return 0;
}

/* Back to the parent through "..", which must be the very directory we came from: else somebody moved ours. */
static int
ascend(walk_t *w) {
  level_t *level = &w->levels[w->depth - 1];
  struct stat st;

  int fd = openat(w->fd, "..", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return -errno;
  close(w->fd);
  w->fd = fd;
  if (fstat(fd, &st)) return -errno;
  if (st.st_dev != level->dev || st.st_ino != level->ino) return -EXDEV;
  if (unlinkat(fd, level->child, AT_REMOVEDIR) && errno != ENOENT && errno != ENOTEMPTY && errno != EEXIST)
    return -errno;
  al_free(level->child);
  w->depth--;
  return 0;
}

static int
empty(walk_t *w) {
  for (;;) {
    char *child = NULL;
    int rc = clear_dir(w, &child);
    if (rc == 1) {
      rc = descend(w, child);
      if (rc) al_free(child);
    } else if (rc == 0) {
      if (w->depth == 0) return 0;
      rc = ascend(w);
    }
    if (rc) return rc;
  }
}

int
al_plat_remove_tree(int dirfd, const char *name) {
  walk_t w = {.fd = -1};
  struct stat st;

  if (!name[0] || strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || strchr(name, '/')) return -EINVAL;
  if (fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW)) return -errno;
  if (!S_ISDIR(st.st_mode)) return unlinkat(dirfd, name, 0) ? -errno : 0;
  w.fd = open_dir(dirfd, name, &w.dev);
  if (w.fd < 0) return w.fd;
  int rc = empty(&w);
  close(w.fd);
  while (w.depth > 0) al_free(w.levels[--w.depth].child);
  al_free(w.levels);
  if (rc) return rc;
  return unlinkat(dirfd, name, AT_REMOVEDIR) ? -errno : 0;
}
