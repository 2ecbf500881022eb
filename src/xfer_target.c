/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers, out: the place on the host where one file is put, whole or not at all. */
#include "leftover.h"
#include "mem.h"
#include "platform.h"
#include "xfer_int.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TRIES 8

static int
failed(al_target_t *t, const char *doing, int error) {
  return al__place_failed(&t->place, doing, error);
}

void
al__target_init(al_target_t *t) {
  memset(t, 0, sizeof *t);
  al__place_init(&t->place);
  t->fd = -1;
}

static int
refuse(al_target_t *t, int code, const char *what) {
  return al_err_set(&t->place.err, code, "the target %s is refused: it %s", t->place.path, what);
}

static int
check_place(al_target_t *t) {
  struct stat st;
  if (fstatat(t->place.dir, t->place.name, &st, AT_SYMLINK_NOFOLLOW) < 0)
    return errno == ENOENT ? 0 : failed(t, "looking at the target", errno);
  if (S_ISREG(st.st_mode)) return 0;
  if (S_ISDIR(st.st_mode)) return refuse(t, AL_EHOST_PATH_DIRECTORY, "is a directory");
  if (S_ISLNK(st.st_mode)) return refuse(t, AL_EHOST_PATH_LINK, "is a link");
  return refuse(t, AL_EHOST_PATH_REFUSED, "is not a regular file");
}

/* The umask cannot be read without changing it for the whole process; but an empty file that is made with 0666 shows
 * what the umask (or the directory's default ACL) leaves of that. */
static int
make_tmp(al_target_t *t) {
  for (int i = 0; i < TRIES; i++) {
    char name[AL_TMP_NAME];
    struct stat st;
    int rc = al__xfer_tmp_name(name);
    if (rc < 0) return failed(t, "making a temporary name", -rc);
    t->fd = openat(t->place.dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (t->fd < 0 && errno == EEXIST) continue;
    if (t->fd < 0) break;
    if (!al_leftover_lock(t->place.dir, name, t->fd)) {
      close(t->fd);
      t->fd = -1;
      errno = EBUSY;
      continue;
    }
    memcpy(t->tmp, name, sizeof name);
    if (fstat(t->fd, &st) < 0 || fchmod(t->fd, 0600) < 0) break;
    t->mode = st.st_mode & 0777;
    return 0;
  }
  return failed(t, "making a temporary file", errno);
}

int
al__target_open(al_target_t *t, const char *path, const char *root) {
  int r = al__place_open(&t->place, path, root);
  if (r == 0) r = check_place(t);
  if (r == 0) r = al__place_room(&t->place, 0);
  return r < 0 ? r : make_tmp(t);
}

int
al__target_write(al_target_t *t, const void *bytes, size_t n) {
  int r = al__place_room(&t->place, n);
  if (r < 0) return r;
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
  if (fchmod(t->fd, t->mode) < 0) return failed(t, "setting the mode", errno);
  int r = al_plat_fsync(t->fd);
  if (r < 0) return failed(t, "writing to disk", -r);
  r = check_place(t);
  if (r < 0) return r;
  if (renameat(t->place.dir, t->tmp, t->place.dir, t->place.name) < 0)
    return failed(t, "putting the file in place", errno);
  t->tmp[0] = 0;
  /* The file is in place; a file system that cannot sync a directory is no reason to say that it is not. */
  al_plat_fsync(t->place.dir);
  return 0;
}

void
al__target_deinit(al_target_t *t) {
  if (t->tmp[0] && t->place.dir >= 0) unlinkat(t->place.dir, t->tmp, 0);
  t->tmp[0] = 0;
  if (t->fd >= 0) close(t->fd);
  t->fd = -1;
  al__place_deinit(&t->place);
}
