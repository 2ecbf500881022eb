/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers, out: the way to the target on the host, following no link below the root; room on its disk. */
#include "leftover.h"
#include "mem.h"
#include "platform.h"
#include "xfer_int.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* Theory of operation.
 *
 * The target's directories are divided at the root. The root is found from the top: each directory with a .git entry
 * becomes it, and so does the directory the caller named, outside of which nothing is written: the nearest of them
 * wins, and without any it is the deepest one that exists. Once a root is found, the search stops at a link: otherwise a link that a guest committed into the
 * worktree could lead into another repository, and that one's .git would make it the root. The search goes from
 * descriptor to descriptor, so that what is asked for its .git is what becomes the root, whatever is in its place by
 * then; from the root every component is opened below its parent's descriptor without following, so a link that appears
 * meanwhile is refused and not followed. */

#define ROOM_EVERY (8u << 20) /* bytes between two looks at the disk */
#define ROOM_ENTRIES 1024u    /* entries likewise */
#define ROOM_KEEP (64u << 20) /* what is left for others, but no more than a 64th of the disk */
#define FILES_KEEP 4096u

static int
refuse(al_place_t *p, int code, const char *what, const char *name) {
  return al_err_set(&p->err, code, "the target %s is refused: %s%s%s", p->path, name ? name : "", name ? " " : "", what);
}

int
al__place_failed(al_place_t *p, const char *doing, int error) {
  bool full = error == ENOSPC || error == EDQUOT;
  return al_err_set(
    &p->err, full ? AL_EHOST_DISK_FULL : AL_ECOPY_OUT_FAILED, "%s for %s: %s", doing, p->path, strerror(error));
}

void
al__place_init(al_place_t *p) {
  memset(p, 0, sizeof *p);
  p->dir = -1;
  p->unchecked = ROOM_EVERY; /* so that the first bytes look */
}

void
al__place_deinit(al_place_t *p) {
  if (p->dir >= 0) close(p->dir);
  p->dir = -1;
}

static void
component(const al_place_t *p, unsigned i, char out[AL_PATH_MAX + 1]) {
  size_t from = i > 0 ? p->end[i - 1] + 1u : 1, len = p->end[i] - from;
  memcpy(out, p->path + from, len);
  out[len] = 0;
}

static int
split(al_place_t *p, const char *path) {
  size_t n = 0, len = strlen(path);
  snprintf(p->path, sizeof p->path, "%s", path);
  if (len > AL_PATH_MAX)
    return al_err_set(
      &p->err, AL_EHOST_PATH_INVALID, "the target is refused: it is longer than %d bytes: %.200s", AL_PATH_MAX, path);
  if (path[0] != '/') return refuse(p, AL_EHOST_PATH_INVALID, "it is not absolute", NULL);
  if (path[len - 1] == '/') return refuse(p, AL_EHOST_PATH_INVALID, "it ends with a slash", NULL);
  if (al__xfer_tmp_in(path))
    return refuse(p, AL_EHOST_PATH_INVALID, "it has the name of what a copy has not put in place", NULL);
  for (const char *at = path; *at;) {
    while (*at == '/') at++;
    size_t k = strcspn(at, "/");
    if ((k == 1 && at[0] == '.') || (k == 2 && at[0] == '.' && at[1] == '.'))
      return refuse(p, AL_EHOST_PATH_INVALID, "it has a `.` or `..` component", NULL);
    if (al_is_dotgit(at, k)) return refuse(p, AL_EHOST_PATH_GIT, "it leads into a .git", NULL);
    p->path[n++] = '/';
    memmove(p->path + n, at, k);
    n += k;
    p->end[p->count++] = (uint16_t) n;
    at += k;
  }
  p->path[n] = 0;
  component(p, p->count - 1, p->name);
  return 0;
}

/* The directory on the way that is the next one below `at`, to be looked into. -1 and errno */
static int
next_dir(const al_place_t *p, int at, unsigned i, bool follow) {
  char name[AL_PATH_MAX + 1];
  component(p, i, name);
  return openat(at, name, AL_O_LOOK | O_DIRECTORY | O_CLOEXEC | (follow ? 0 : O_NOFOLLOW));
}

/* Opens the root as p->dir; sets *root to the number of components that led to it. The caller's root is known by
 * what it is and not by how it is written: one of the two paths may have been resolved and the other not, as with /tmp
 * on macOS. Who names one wants nothing outside it, whatever repositories there are. Each directory is opened once,
 * below the one before, and asked by its descriptor: by its name it could be something else a moment later. */
static int
find_root(al_place_t *p, const char *option, unsigned *root) {
  bool found = false, below = !option;
  struct stat named, st;
  bool known = option && stat(option, &named) == 0;
  int error = 0;
  AL_AUTO_FD int at = open("/", AL_O_LOOK | O_DIRECTORY | O_CLOEXEC), kept = -1;
  for (unsigned i = 0; at >= 0 && i < p->count; i++) {
    bool here = fstatat(at, ".git", &st, AT_SYMLINK_NOFOLLOW) == 0;
    if (known && fstat(at, &st) == 0 && st.st_dev == named.st_dev && st.st_ino == named.st_ino) here = below = true;
    found |= here;
    int fd = i + 1 < p->count ? next_dir(p, at, i, !found) : -1;
    error = fd < 0 && i + 1 < p->count ? errno : 0;
    if (here || (!found && !option)) {
      if (kept >= 0) close(kept);
      kept = at;
      *root = i;
    } else {
      close(at);
    }
    at = fd;
  }
  /* What is missing, a link, or no directory: the walk from the root says what is wrong, if it is. */
  if (error && error != ENOENT && error != ELOOP && error != ENOTDIR)
    return al__place_failed(p, "looking for the root", error);
  if (!below) return refuse(p, AL_EHOST_PATH_REFUSED, "it is not below the root", NULL);
  p->dir = kept < 0 ? -1 : openat(kept, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  return p->dir < 0 ? al__place_failed(p, "opening the root", errno) : 0;
}

static int
step(al_place_t *p, const char *name) {
  const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
  int fd = openat(p->dir, name, flags);
  if (fd < 0 && errno == ENOENT) {
    if (mkdirat(p->dir, name, 0777) < 0 && errno != EEXIST) return al__place_failed(p, "making its directory", errno);
    al_plat_fsync(p->dir); /* some file systems cannot; the file's own fsync is the one that counts */
    fd = openat(p->dir, name, flags);
  }
  if (fd < 0) {
    struct stat st;
    int error = errno;
    /* A directory that was none a moment ago was a link then. */
    bool link = error == ELOOP || (error == ENOTDIR && fstatat(p->dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0
                                    && (S_ISLNK(st.st_mode) || S_ISDIR(st.st_mode)));
    if (link) return refuse(p, AL_EHOST_PATH_LINK, "is a link", name);
    return error == ENOTDIR ? refuse(p, AL_EHOST_PATH_REFUSED, "is not a directory", name)
                            : al__place_failed(p, "opening its directory", error);
  }
  close(p->dir);
  p->dir = fd;
  return 0;
}

int
al__place_open(al_place_t *p, const char *path, const char *root_option) {
  char name[AL_PATH_MAX + 1];
  unsigned root = 0;
  int r = split(p, path);
  if (r == 0) r = find_root(p, root_option, &root);
  for (unsigned i = root; r == 0 && i + 1 < p->count; i++) {
    component(p, i, name);
    r = step(p, name);
  }
  if (r == 0) al_leftover_sweep(p->dir);
  return r;
}

/* ---- room ---- */

static int
look(al_place_t *p) {
  struct statvfs v;
  if (fstatvfs(p->dir, &v) < 0 || v.f_blocks == 0) return 0; /* some file systems cannot say */
  uint64_t unit = v.f_frsize ? v.f_frsize : v.f_bsize, keep = (uint64_t) v.f_blocks * unit / 64;
  if (keep > ROOM_KEEP) keep = ROOM_KEEP;
  if ((uint64_t) v.f_bavail * unit < keep)
    return al_err_set(&p->err, AL_EHOST_DISK_FULL,
      "the disk of %s is full, or nearly: less than %llu KiB are free, which are left for others", p->path,
      (unsigned long long) (keep + 1023) / 1024);
  keep = (uint64_t) v.f_files / 64;
  if (keep > FILES_KEEP) keep = FILES_KEEP;
  if ((uint64_t) v.f_favail < keep)
    return al_err_set(&p->err, AL_EHOST_DISK_FULL,
      "the disk of %s is full, or nearly: it has room for less than %llu more files, which are left for others",
      p->path, (unsigned long long) keep);
  return 0;
}

int
al__place_room(al_place_t *p, uint64_t n) {
  p->unchecked += n;
  p->made += n == 0;
  if (p->unchecked < ROOM_EVERY && p->made < ROOM_ENTRIES) return 0;
  p->unchecked = p->made = 0;
  return look(p);
}
