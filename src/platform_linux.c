/* SPDX-License-Identifier: Apache-2.0 */
/* Platform primitives of Linux: clocks, files, and safe opening; processes are in platform_linux_proc.c. */
#include "platform_priv.h"
#include "mem.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_openat2
#define SYS_openat2 437
#endif
/* Of <linux/openat2.h>, which older headers lack. */
#define HOW_NO_SYMLINKS 0x04u
#define HOW_BENEATH 0x08u

struct open_how_s {
  uint64_t flags, mode, resolve;
};

int
al_plat_boot_id(char out[AL_BOOT_ID_MAX]) {
  AL_AUTO_FREE char *text = NULL;
  size_t len;

  int rc = al_plat_read_file(AT_FDCWD, "/proc/sys/kernel/random/boot_id", AL_BOOT_ID_MAX - 1, &text, &len);
  if (rc) return rc;
  len = strcspn(text, "\n");
  if (len == 0) return -EIO;
  memcpy(out, text, len);
  out[len] = 0;
  return 0;
}

int
al_plat_random(void *p, size_t n) {
  uint8_t *at = p;

  while (n > 0) {
    ssize_t r = getrandom(at, n, 0);
    if (r < 0 && errno == EINTR) continue;
    if (r <= 0) return r < 0 ? -errno : -EIO;
    at += r, n -= (size_t) r;
  }
  return 0;
}

uint64_t
al_plat_boot_ms(void) {
  struct timespec ts;

  clock_gettime(CLOCK_BOOTTIME, &ts);
  return (uint64_t) ts.tv_sec * 1000 + (uint64_t) ts.tv_nsec / 1000000;
}

int
al_plat_exe_path(char *out, size_t cap) {
  if (cap == 0) return -EINVAL;
  ssize_t n = readlink("/proc/self/exe", out, cap);
  if (n < 0) return -errno;
  if ((size_t) n >= cap) return -ENAMETOOLONG;
  out[n] = 0;
  return 0;
}

int
al_plat_fsync(int fd) {
  while (fsync(fd))
    if (errno != EINTR) return -errno;
  return 0;
}

int
al_plat_sync_fs(int fd) {
  while (syncfs(fd))
    if (errno != EINTR) return -errno;
  return 0;
}

bool
al__plat_group_trusted(gid_t gid) {
  (void) gid;
  return false;
}

/* A FUSE file system says nothing about where its files are, so its type is looked up in the mount table: those named
 * here are remote, or shared with another kernel, which is as bad for locks and pids. Ordinary local ones (ntfs-3g,
 * fuse-overlayfs, encfs) pass; one that is not in the table does not. */
static int
fuse_is_network(int fd) {
  static const char *const remote[] = {"fuse.sshfs", "fuse.rclone", "fuse.glusterfs", "fuse.ceph-fuse", "fuse.ceph",
    "fuse.s3fs", "fuse.gcsfuse", "fuse.davfs", "fuse.davfs2", "fuse.curlftpfs", "fuse.smbnetfs", "fuse.juicefs",
    "fuse.mfs", "fuse.gvfsd-fuse", "fuse.vmhgfs-fuse", "fuse.grpcfuse", "virtiofs", NULL};
  struct stat st;
  char dev[32], line[8192];
  int result = 1;

  if (fstat(fd, &st)) return -errno;
  snprintf(dev, sizeof dev, "%u:%u", major(st.st_dev), minor(st.st_dev));
  FILE *f = fopen("/proc/self/mountinfo", "re");
  if (!f) return -errno;
  while (fgets(line, sizeof line, f)) {
    char id[32];
    /* 36 35 98:0 /root /mount options [optional fields] - type source options */
    char *dash = strstr(line, " - ");
    if (!dash || sscanf(line, "%*s %*s %31s", id) != 1 || strcmp(id, dev) != 0) continue;
    dash += 3;
    dash[strcspn(dash, " \n")] = 0;
    result = 0;
    for (int i = 0; remote[i]; i++) result |= strcmp(dash, remote[i]) == 0;
    break;
  }
  fclose(f);
  return result;
}

int
al_plat_is_network_fs(int fd) {
  struct statfs fs;

  while (fstatfs(fd, &fs))
    if (errno != EINTR) return -errno;
  switch ((uint32_t) fs.f_type) {
    case 0x6969:     /* nfs */
    case 0x517b:     /* smb */
    case 0xfe534d42: /* smb2 */
    case 0xff534d42: /* cifs */
    case 0x01021997: /* 9p */
    case 0x00c36400: /* ceph */
    case 0x5346414f: /* afs */
    case 0x6b414653: /* kafs */
    case 0x73757245: /* coda */
    case 0x0bd00bd0: /* lustre */
    case 0x01161970: /* gfs2 */
    case 0x7461636f: /* ocfs2 */
    case 0x47504653: /* gpfs */
    case 0x786f4256: /* vboxsf */
    case 0xbacbacbc: /* vmhgfs */
      return 1;
    case 0x65735546: /* fuse, virtiofs too */
      return fuse_is_network(fd);
    default:
      return 0;
  }
}

int
al_plat_open_beneath(int dirfd, const char *path, int flags, mode_t mode) {
  struct open_how_s how = {
    .flags = (uint64_t) (unsigned) (flags | O_CLOEXEC),
    .mode = flags & O_CREAT ? mode & 07777 : 0,
    .resolve = HOW_NO_SYMLINKS | HOW_BENEATH,
  };

  int rc = al__plat_beneath_check(path);
  if (rc) return rc;
  for (int i = 0; i < 16; i++) {
    long fd = syscall(SYS_openat2, dirfd, path, &how, sizeof how);
    if (fd >= 0) return (int) fd;
    /* EPERM: container filters written before the call existed answer so. The walk gives the same promise. */
    if (errno == ENOSYS || errno == EPERM) return al__plat_open_walk(dirfd, path, flags, mode);
    /* EAGAIN: a rename elsewhere in the system; the kernel asks for another try. */
    if (errno != EINTR && errno != EAGAIN) return -errno;
  }
  return -EAGAIN;
}

void
al_plat_stat_times(const struct stat *st, int64_t *mtime_ns, int64_t *ctime_ns) {
  *mtime_ns = (int64_t) st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec;
  *ctime_ns = (int64_t) st->st_ctim.tv_sec * 1000000000 + st->st_ctim.tv_nsec;
}

int
al_plat_clone_file(const char *from, const char *to, mode_t mode) {
  struct stat st;

  AL_AUTO_FD int in = open(from, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (in < 0 || fstat(in, &st)) return -errno;
  if (!S_ISREG(st.st_mode)) return -EINVAL;
  AL_AUTO_FD int out = open(to, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode & 0700);
  if (out < 0) return -errno;
  int rc = ioctl(out, FICLONE, in) ? al__plat_copy_data(in, out) : 0;
  if (!rc && fchmod(out, mode)) rc = -errno;
  if (rc) unlink(to);
  return rc;
}
