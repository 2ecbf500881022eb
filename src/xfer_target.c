/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers, out: the place on the host where one file is put, whole or not at all, following no link below the
 * root. */
#include "mem.h"
#include "platform.h"
#include "xfer_int.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Theory of operation.
 *
 * The target's directories are divided at the root. The root is found from the top: each directory with a .git entry
 * becomes it, so the nearest one wins, and without any it is the directory the caller named, or else the deepest one
 * that exists. Once a root is found, the search stops at a link: otherwise a link that a guest committed into the
 * worktree could lead into another repository, and that one's .git would make it the root. The root is resolved once,
 * with its links, to a descriptor; from there every component is opened below its parent's descriptor without
 * following, so a link that appears meanwhile is refused and not followed. */

#define TRIES 8

static int
refuse(al_target_t *t, const char *what, const char *name) {
  return al_err_set(&t->err, AL_EHOST_PATH_REFUSED, "the target %s is refused: %s%s%s", t->path, name ? name : "",
    name ? " " : "", what);
}

static int
failed(al_target_t *t, const char *doing, int error) {
  return al_err_set(&t->err, AL_ECOPY_OUT_FAILED, "%s for %s: %s", doing, t->path, strerror(error));
}

void
al__target_init(al_target_t *t) {
  memset(t, 0, sizeof *t);
  t->dir = t->fd = -1;
}

/* The first `n` components as a path. */
static void
prefix(const al_target_t *t, unsigned n, char out[AL_PATH_MAX + 1]) {
  size_t len = n > 0 ? t->end[n - 1] : 1;
  memcpy(out, t->path, len);
  out[len] = 0;
}

static void
component(const al_target_t *t, unsigned i, char out[AL_PATH_MAX + 1]) {
  size_t from = i > 0 ? t->end[i - 1] + 1u : 1, len = t->end[i] - from;
  memcpy(out, t->path + from, len);
  out[len] = 0;
}

static int
split(al_target_t *t, const char *path) {
  size_t n = 0, len = strlen(path);
  snprintf(t->path, sizeof t->path, "%s", path);
  if (len > AL_PATH_MAX) return refuse(t, "it is too long", NULL);
  if (path[0] != '/') return refuse(t, "it is not absolute", NULL);
  if (path[len - 1] == '/') return refuse(t, "it ends with a slash", NULL);
  for (const char *p = path; *p;) {
    while (*p == '/') p++;
    size_t k = strcspn(p, "/");
    if ((k == 1 && p[0] == '.') || (k == 2 && p[0] == '.' && p[1] == '.'))
      return refuse(t, "it has a `.` or `..` component", NULL);
    if (al_is_dotgit(p, k)) return refuse(t, "it leads into a .git", NULL);
    t->path[n++] = '/';
    memmove(t->path + n, p, k);
    n += k;
    t->end[t->count++] = (uint16_t) n;
    p += k;
  }
  t->path[n] = 0;
  return 0;
}

static bool
has_git(char dir[AL_PATH_MAX + 1]) {
  struct stat st;
  size_t len = strlen(dir);
  if (len + 6 > AL_PATH_MAX) return false;
  memcpy(dir + len, "/.git", 6);
  bool has = lstat(dir, &st) == 0;
  dir[len] = 0;
  return has;
}

static bool
same_path(const char *a, const char *b) {
  size_t na = strlen(a), nb = strlen(b);
  while (na > 1 && a[na - 1] == '/') na--;
  while (nb > 1 && b[nb - 1] == '/') nb--;
  return na == nb && memcmp(a, b, na) == 0;
}

/* Sets *root to the number of components that make the root's path. */
static int
find_root(al_target_t *t, const char *option, unsigned *root) {
  char dir[AL_PATH_MAX + 1];
  bool found = false, git = false;
  *root = 0;
  for (unsigned i = 0; i < t->count; i++) {
    struct stat st;
    prefix(t, i, dir);
    if (found && lstat(dir, &st) == 0 && S_ISLNK(st.st_mode)) break;
    if (stat(dir, &st) < 0) {
      if (errno == ENOENT || errno == ELOOP || errno == ENOTDIR) break; /* the walk says what is wrong, if it is */
      return failed(t, "looking for the root", errno);
    }
    if (!S_ISDIR(st.st_mode)) break;
    if (has_git(dir)) git = found = true;
    else if (!git && option && same_path(dir, option)) found = true;
    else if (found || option) continue;
    *root = i;
  }
  return option && !found ? refuse(t, "it is not below the root", NULL) : 0;
}

static int
open_root(al_target_t *t, unsigned root) {
  char dir[AL_PATH_MAX + 1];
  prefix(t, root, dir);
  char *real = realpath(dir, NULL);
  if (!real) return failed(t, "resolving the root", errno);
  t->dir = open(real, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  int error = errno;
  free(real); /* libc's own */
  return t->dir < 0 ? failed(t, "opening the root", error) : 0;
}

static int
step(al_target_t *t, const char *name) {
  const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
  int fd = openat(t->dir, name, flags);
  if (fd < 0 && errno == ENOENT) {
    if (mkdirat(t->dir, name, 0777) < 0 && errno != EEXIST) return failed(t, "making its directory", errno);
    al_plat_fsync(t->dir); /* some file systems cannot; the file's own fsync is the one that counts */
    fd = openat(t->dir, name, flags);
  }
  if (fd < 0) {
    int error = errno;
    return error == ELOOP || error == ENOTDIR ? refuse(t, "is a link or not a directory", name)
                                              : failed(t, "opening its directory", error);
  }
  close(t->dir);
  t->dir = fd;
  return 0;
}

static int
check_place(al_target_t *t, const char *name) {
  struct stat st;
  if (fstatat(t->dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
    return errno == ENOENT ? 0 : failed(t, "looking at the target", errno);
  if (S_ISREG(st.st_mode)) return 0;
  if (S_ISDIR(st.st_mode)) return refuse(t, "is a directory", name);
  return refuse(t, S_ISLNK(st.st_mode) ? "is a link" : "is not a regular file", name);
}

/* The umask cannot be read without changing it for the whole process; but an empty file that is made with 0666 shows
 * what the umask (or the directory's default ACL) leaves of that. */
static int
make_tmp(al_target_t *t) {
  for (int i = 0; i < TRIES; i++) {
    char name[AL_TMP_NAME];
    int rc = al__xfer_tmp_name(name);
    if (rc < 0) return failed(t, "making a temporary name", -rc);
    t->fd = openat(t->dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (t->fd < 0 && errno == EEXIST) continue;
    if (t->fd < 0) break;
    memcpy(t->tmp, name, sizeof name);
    struct stat st;
    if (fstat(t->fd, &st) < 0 || fchmod(t->fd, 0600) < 0) break;
    t->mode = st.st_mode & 0777;
    return 0;
  }
  return failed(t, "making a temporary file", errno);
}

int
al__target_open(al_target_t *t, const char *path, const char *root_option) {
  char name[AL_PATH_MAX + 1];
  unsigned root;
  int r = split(t, path);
  if (r == 0) r = find_root(t, root_option, &root);
  if (r == 0) r = open_root(t, root);
  for (unsigned i = root; r == 0 && i + 1 < t->count; i++) {
    component(t, i, name);
    r = step(t, name);
  }
  if (r < 0) return r;
  component(t, t->count - 1, name);
  r = check_place(t, name);
  return r < 0 ? r : make_tmp(t);
}

int
al__target_write(al_target_t *t, const void *bytes, size_t n) {
  for (const char *p = bytes; n > 0;) {
    ssize_t k = write(t->fd, p, n);
    if (k < 0 && errno == EINTR) continue;
    if (k < 0) return failed(t, "writing", errno);
    p += k;
    n -= (size_t) k;
  }
  return 0;
}

int
al__target_commit(al_target_t *t) {
  char name[AL_PATH_MAX + 1];
  component(t, t->count - 1, name);
  if (fchmod(t->fd, t->mode) < 0) return failed(t, "setting the mode", errno);
  int r = al_plat_fsync(t->fd);
  if (r < 0) return failed(t, "writing to disk", -r);
  r = check_place(t, name);
  if (r < 0) return r;
  if (renameat(t->dir, t->tmp, t->dir, name) < 0) return failed(t, "putting the file in place", errno);
  t->tmp[0] = 0;
  /* The file is in place; a file system that cannot sync a directory is no reason to say that it is not. */
  al_plat_fsync(t->dir);
  return 0;
}

void
al__target_deinit(al_target_t *t) {
  if (t->tmp[0] && t->dir >= 0) unlinkat(t->dir, t->tmp, 0);
  t->tmp[0] = 0;
  if (t->fd >= 0) close(t->fd);
  if (t->dir >= 0) close(t->dir);
  t->fd = t->dir = -1;
}
