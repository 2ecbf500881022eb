/* SPDX-License-Identifier: Apache-2.0 */
/* What Linux and macOS share: files and directory trees by descriptor, and whether a process is still the one it
 * was. */
#include "platform_priv.h"
#include "mem.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define COPY_CHUNK (256u << 10)

uint64_t
al_plat_mono_ms(void) {
  struct timespec ts;

  clock_gettime(CLOCK_MONOTONIC, &ts);
  return (uint64_t) ts.tv_sec * 1000 + (uint64_t) ts.tv_nsec / 1000000;
}

int64_t
al_plat_wall_ms(void) {
  struct timespec ts;

  clock_gettime(CLOCK_REALTIME, &ts);
  return (int64_t) ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

int
al__plat_beneath_check(const char *path) {
  if (!path[0] || path[0] == '/') return -EXDEV;
  for (const char *p = path; *p;) {
    size_t n = strcspn(p, "/");
    if (n == 2 && p[0] == '.' && p[1] == '.') return -EXDEV;
    p += n;
    while (*p == '/') p++;
  }
  return 0;
}

int
al__plat_open_walk(int dirfd, const char *path, int flags, mode_t mode) {
  AL_AUTO_FD int held = -1;
  char part[256];
  int at = dirfd;

  for (;;) {
    size_t n = strcspn(path, "/");
    if (n >= sizeof part) return -ENAMETOOLONG;
    memcpy(part, path, n);
    part[n] = 0;
    path += n;
    bool slash = *path == '/';
    while (*path == '/') path++;
    bool last = !*path;
    int how = last ? flags | (slash ? O_DIRECTORY : 0) : O_RDONLY | O_DIRECTORY;
    int fd = openat(at, part, how | O_NOFOLLOW | O_CLOEXEC, mode);
    if (fd < 0) {
      /* O_DIRECTORY reports a link as ENOTDIR; the caller is told the same as by openat2. */
      struct stat st;
      int e = errno;
      if (e == ENOTDIR && fstatat(at, part, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(st.st_mode)) e = ELOOP;
      return -e;
    }
    if (last) return fd;
    al__cleanup_fd(&held);
    at = held = fd;
  }
}

static int
write_all(int fd, const char *p, size_t n, off_t at) {
  while (n > 0) {
    ssize_t w = pwrite(fd, p, n, at);
    if (w < 0 && errno == EINTR) continue;
    if (w <= 0) return w < 0 ? -errno : -EIO;
    p += w, n -= (size_t) w, at += w;
  }
  return 0;
}

static int
copy_range(int in, int out, char *chunk, off_t from, off_t to) {
  while (from < to) {
    size_t want = to - from < (off_t) COPY_CHUNK ? (size_t) (to - from) : COPY_CHUNK;
    ssize_t r = pread(in, chunk, want, from);
    if (r < 0 && errno == EINTR) continue;
    if (r < 0) return -errno;
    if (r == 0) return -EIO; /* the source shrank under us */
    int rc = write_all(out, chunk, (size_t) r, from);
    if (rc) return rc;
    from += r;
  }
  return 0;
}

int
al__plat_copy_data(int in, int out) {
  struct stat st;

  if (fstat(in, &st)) return -errno;
  AL_AUTO_FREE char *chunk = al_malloc(COPY_CHUNK);
  if (!chunk) return -ENOMEM;
  if (ftruncate(out, st.st_size)) return -errno;
  for (off_t at = 0; at < st.st_size;) {
    off_t from = lseek(in, at, SEEK_DATA), to = st.st_size;
    if (from < 0 && errno == ENXIO) break; /* only a hole is left */
    if (from < 0) from = at; /* no support for holes: everything is data */
    else if ((to = lseek(in, from, SEEK_HOLE)) < 0) to = st.st_size;
    int rc = copy_range(in, out, chunk, from, to);
    if (rc) return rc;
    at = to;
  }
  return 0;
}

int
al_plat_mkdir(const char *path, mode_t mode) {
  struct stat st;

  if (mkdir(path, mode)) return -errno;
  if (lstat(path, &st)) return -errno;
  if ((st.st_mode & mode & 0700) == (mode & 0700)) return 0;
  return chmod(path, (st.st_mode & 07777) | (mode & 0700)) ? -errno : 0;
}

int
al_plat_mkdirs(const char *path, mode_t mode) {
  char buf[4096];
  struct stat st;
  size_t n = strlen(path);

  if (n == 0 || n >= sizeof buf) return n ? -ENAMETOOLONG : -ENOENT;
  memcpy(buf, path, n + 1);
  for (char *p = buf + 1;; p++) {
    if (*p && *p != '/') continue;
    char kept = *p;
    *p = 0;
    int rc = al_plat_mkdir(buf, mode);
    /* A parent on a read-only or foreign file system may refuse before it says that it exists. */
    if (rc && rc != -EEXIST && (stat(buf, &st) || !S_ISDIR(st.st_mode))) return rc;
    *p = kept;
    if (!kept) break;
  }
  if (stat(buf, &st)) return -errno;
  return S_ISDIR(st.st_mode) ? 0 : -ENOTDIR;
}

int
al_plat_read_file(int dirfd, const char *path, size_t cap, char **out, size_t *len) {
  struct stat st;
  size_t used = 0, room = cap < 4096 ? cap : 4096;

  *out = NULL;
  /* O_NONBLOCK: a FIFO put in the file's place must not hang us. */
  AL_AUTO_FD int fd = openat(dirfd, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0 || fstat(fd, &st)) return -errno;
  if (!S_ISREG(st.st_mode)) return S_ISDIR(st.st_mode) ? -EISDIR : -EINVAL;
  if (st.st_size > 0 && (uint64_t) st.st_size > cap) return -EFBIG;
  if ((size_t) st.st_size > room) room = (size_t) st.st_size;
  AL_AUTO_FREE char *data = al_malloc(room + 2);
  if (!data) return -ENOMEM;
  for (;;) {
    /* One byte beyond the cap is asked for, to see that there is no more. */
    ssize_t r = read(fd, data + used, room + 1 - used);
    if (r < 0 && errno == EINTR) continue;
    if (r < 0) return -errno;
    if (r == 0) break;
    used += (size_t) r;
    if (used > cap) return -EFBIG;
    if (used <= room) continue;
    room = room > cap / 2 ? cap : room * 2;
    char *bigger = al_realloc(data, room + 2);
    if (!bigger) return -ENOMEM;
    data = bigger;
  }
  data[used] = 0;
  *out = al_steal(&data);
  if (len) *len = used;
  return 0;
}

/* Makes a new name, or its removal, survive a power loss. */
static int
sync_parent(int dirfd, const char *path) {
  char dir[4096] = ".";
  const char *slash = strrchr(path, '/');

  if (slash) {
    size_t n = slash == path ? 1 : (size_t) (slash - path);
    if (n >= sizeof dir) return -ENAMETOOLONG;
    memcpy(dir, path, n);
    dir[n] = 0;
  }
  AL_AUTO_FD int fd = openat(dirfd, dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return -errno;
  int rc = al_plat_fsync(fd);
  /* Some file systems cannot sync a directory; the file itself is safe then all the same. */
  return rc == -EINVAL || rc == -ENOTSUP ? 0 : rc;
}

static int
write_file(int dirfd, const char *path, const void *p, size_t n, mode_t mode) {
  AL_AUTO_FD int fd = openat(dirfd, path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode & 0700);
  if (fd < 0) return -errno;
  int rc = write_all(fd, p, n, 0);
  if (!rc && fchmod(fd, mode)) rc = -errno;
  if (!rc) rc = al_plat_fsync(fd);
  if (rc) unlinkat(dirfd, path, 0);
  return rc;
}

int
al_plat_write_new(int dirfd, const char *path, const void *p, size_t n, mode_t mode) {
  int rc = write_file(dirfd, path, p, n, mode);

  return rc ? rc : sync_parent(dirfd, path);
}

int
al_plat_write_replace(int dirfd, const char *path, const void *p, size_t n, mode_t mode) {
  char tmp[4096];
  uint64_t r;

  int rc = al_plat_random(&r, sizeof r);
  if (rc) return rc;
  const char *slash = strrchr(path, '/');
  int dir = slash ? (int) (slash + 1 - path) : 0;
  int len = snprintf(tmp, sizeof tmp, "%.*s.al-%016llx.tmp", dir, path, (unsigned long long) r);
  if (len < 0 || (size_t) len >= sizeof tmp) return -ENAMETOOLONG;
  rc = write_file(dirfd, tmp, p, n, mode);
  if (rc) return rc;
  if (renameat(dirfd, tmp, dirfd, path)) {
    rc = -errno;
    unlinkat(dirfd, tmp, 0);
    return rc;
  }
  return sync_parent(dirfd, path);
}

int
al_plat_ident(pid_t pid, al_ident_t *out) {
  int exe_rc;

  return al__plat_ident_now(pid, out, &exe_rc);
}

int
al_plat_ident_alive(const al_ident_t *id) {
  al_ident_t now;
  int exe_rc;

  if (id->pid <= 0 || !id->boot[0]) return -EINVAL;
  int rc = al__plat_ident_now(id->pid, &now, &exe_rc);
  if (rc == -ESRCH) return 0;
  if (rc) return rc;
  if (now.start != id->start || strcmp(now.boot, id->boot) != 0) return 0;
  if (!id->exe[0]) return 1;
  if (exe_rc) return exe_rc == -ENOENT ? 1 : exe_rc;
  return strcmp(now.exe, id->exe) == 0;
}

#ifndef SOCK_CLOEXEC
#define SOCK_CLOEXEC 0 /* where a child inherits only what it is given (libuv's POSIX_SPAWN_CLOEXEC_DEFAULT) */
#endif

int
al_plat_local_connect(const char *path) {
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  if (strlen(path) >= sizeof at.sun_path) return -ENAMETOOLONG;
  memcpy(at.sun_path, path, strlen(path));
  AL_AUTO_FD int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -errno;
  int flags = fcntl(fd, F_GETFL);
  if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0 || flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) return -errno;
  if (connect(fd, (const struct sockaddr *) &at, sizeof at) != 0) return -errno;
  int out = fd;
  fd = -1;
  return out;
}

int
al_plat_socketpair(int fds[2]) {
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) return -errno;
  for (int i = 0; i < 2; i++) {
    if (fcntl(fds[i], F_SETFD, FD_CLOEXEC) == 0) continue;
    int rc = -errno;
    close(fds[0]);
    close(fds[1]);
    return rc;
  }
  return 0;
}
