/* SPDX-License-Identifier: Apache-2.0 */
/* Platform primitives of macOS: clocks, files, and safe opening; processes are in platform_darwin_proc.c. */
#include "platform_priv.h"
#include "mem.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <mach-o/dyld.h>
#include <mach/mach_time.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/clonefile.h>
#include <sys/mount.h>
#include <sys/param.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/sysctl.h>
#include <unistd.h>

#define GID_ADMIN 80
#define RANDOM_MAX 256 /* of one getentropy */

int
al_plat_boot_id(char out[AL_BOOT_ID_MAX]) {
  size_t n = AL_BOOT_ID_MAX - 1;

  memset(out, 0, AL_BOOT_ID_MAX);
  if (sysctlbyname("kern.bootsessionuuid", out, &n, NULL, 0)) return -errno;
  return out[0] ? 0 : -EIO;
}

int
al_plat_random(void *p, size_t n) {
  uint8_t *at = p;

  while (n > 0) {
    size_t take = n < RANDOM_MAX ? n : RANDOM_MAX;
    if (getentropy(at, take)) return -errno;
    at += take, n -= take;
  }
  return 0;
}

/* Goes on while the machine sleeps, unlike mach_absolute_time. */
uint64_t
al_plat_boot_ms(void) {
  mach_timebase_info_data_t base;

  mach_timebase_info(&base);
  return (uint64_t) ((unsigned __int128) mach_continuous_time() * base.numer / base.denom / 1000000);
}

int
al_plat_exe_path(char *out, size_t cap) {
  char raw[PATH_MAX], real[PATH_MAX];
  uint32_t n = sizeof raw;

  if (_NSGetExecutablePath(raw, &n)) return -ENAMETOOLONG;
  if (!realpath(raw, real)) return -errno;
  if (strlen(real) >= cap) return -ENAMETOOLONG;
  memcpy(out, real, strlen(real) + 1);
  return 0;
}

/* fsync only hands the data to the drive on macOS; F_FULLFSYNC waits until it is stored. Not every file system has
 * it. */
int
al_plat_fsync(int fd) {
  while (fcntl(fd, F_FULLFSYNC)) {
    if (errno == EINTR) continue;
    if (errno != ENOTSUP && errno != EINVAL && errno != ENOTTY) return -errno;
    while (fsync(fd))
      if (errno != EINTR) return -errno;
    return 0;
  }
  return 0;
}

int
al_plat_sync_fs(int fd) {
  sync();
  return al_plat_fsync(fd);
}

/* Homebrew keeps its directories writable for the group admin, whose members may use sudo for everything anyway. */
bool
al__plat_group_trusted(gid_t gid) {
  return gid == GID_ADMIN;
}

int
al_plat_is_network_fs(int fd) {
  struct statfs fs;

  while (fstatfs(fd, &fs))
    if (errno != EINTR) return -errno;
  return (fs.f_flags & MNT_LOCAL) == 0;
}

int
al_plat_open_beneath(int dirfd, const char *path, int flags, mode_t mode) {
  int rc = al__plat_beneath_check(path);

  return rc ? rc : al__plat_open_walk(dirfd, path, flags, mode);
}

void
al_plat_stat_times(const struct stat *st, int64_t *mtime_ns, int64_t *ctime_ns) {
  *mtime_ns = (int64_t) st->st_mtimespec.tv_sec * 1000000000 + st->st_mtimespec.tv_nsec;
  *ctime_ns = (int64_t) st->st_ctimespec.tv_sec * 1000000000 + st->st_ctimespec.tv_nsec;
}

int
al_plat_clone_file(const char *from, const char *to, mode_t mode) {
  struct stat st;

  AL_AUTO_FD int in = open(from, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (in < 0 || fstat(in, &st)) return -errno;
  if (!S_ISREG(st.st_mode)) return -EINVAL;
  if (fclonefileat(in, AT_FDCWD, to, CLONE_NOOWNERCOPY) == 0) {
    if (chmod(to, mode) == 0) return 0;
    int rc = -errno;
    unlink(to);
    return rc;
  }
  if (errno != ENOTSUP && errno != EXDEV) return -errno;
  AL_AUTO_FD int out = open(to, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode & 0700);
  if (out < 0) return -errno;
  int rc = al__plat_copy_data(in, out);
  if (!rc && fchmod(out, mode)) rc = -errno;
  if (rc) unlink(to);
  return rc;
}
