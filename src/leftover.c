/* SPDX-License-Identifier: Apache-2.0 */
/* What transfers and exports that were killed have left in a directory of the user's. */
#include "leftover.h"
#include "mem.h"
#include "platform.h"
#include "tmp_name.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* The lock of a process that was killed is gone with it. Nobody gets one for a name that is in use: whoever makes a
 * temporary file locks it, and looks then whether it is still there. */
bool
al_leftover_lock(int dir, const char *name, int fd) {
  struct stat mine, there;
  if (flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK) return false; /* where locks do not work, nobody has one */
  return fstat(fd, &mine) == 0 && fstatat(dir, name, &there, AT_SYMLINK_NOFOLLOW) == 0 && mine.st_ino == there.st_ino
    && mine.st_dev == there.st_dev;
}

static bool
may_be_ours(const struct stat *st) {
  return st->st_uid == geteuid() && (S_ISDIR(st->st_mode) || (S_ISREG(st->st_mode) && st->st_nlink == 1));
}

static void
remove_leftover(int dir, const char *name) {
  struct stat st, opened;
  if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !may_be_ours(&st)) return;
  AL_AUTO_FD int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0 || fstat(fd, &opened) < 0 || opened.st_ino != st.st_ino || opened.st_dev != st.st_dev) return;
  if (flock(fd, LOCK_EX | LOCK_NB) < 0) return; /* somebody is at work, or it cannot be told */
  /* It may have been put in place, or become something else, before the lock was ours. */
  if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !may_be_ours(&st)) return;
  if (opened.st_ino != st.st_ino || opened.st_dev != st.st_dev) return;
  if (S_ISDIR(st.st_mode)) al_plat_remove_tree(dir, name);
  else unlinkat(dir, name, 0);
}

/* Whatever cannot be removed is no reason not to go on. */
void
al_leftover_sweep(int dir) {
  int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *d = fd < 0 ? NULL : fdopendir(fd);
  if (!d) {
    if (fd >= 0) close(fd);
    return;
  }
  for (struct dirent *e; (e = readdir(d));)
    if (al_tmp_name_is(e->d_name)) remove_leftover(dir, e->d_name);
  closedir(d);
}
