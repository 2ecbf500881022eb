/* SPDX-License-Identifier: Apache-2.0 */
/* READ: opens one regular file with the user's rights, following no link at all; for TREE a directory. */
#include "agent.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PATH_SIZE 4096
#define SYS_OPENAT2 437 /* the same number on every architecture */
#define NO_SYMLINKS 0x04 /* RESOLVE_NO_SYMLINKS */
#define OPEN_FLAGS (O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY)

/* Before Linux 5.6: component by component. With O_DIRECTORY a link is ENOTDIR, which must be told from a file. */
static int
walk(char *path, int flags) {
  int dir = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (dir < 0) return -errno;
  char *save = NULL, *name = strtok_r(path, "/", &save);
  while (name != NULL) {
    char *next = strtok_r(NULL, "/", &save);
    int fd = openat(dir, name, next != NULL ? O_PATH | O_NOFOLLOW | O_CLOEXEC : flags);
    int err = fd < 0 ? -errno : 0;
    struct stat st;
    if (err == -ENOTDIR && fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(st.st_mode)) err = -ELOOP;
    if (err == 0 && next != NULL && fstat(fd, &st) == 0 && !S_ISDIR(st.st_mode)) {
      err = S_ISLNK(st.st_mode) ? -ELOOP : -ENOTDIR;
      close(fd);
    }
    close(dir);
    if (err != 0) return err;
    dir = fd;
    name = next;
  }
  return dir;
}

static int
open_beneath(char *path, int flags) {
  /* Without O_NOFOLLOW, which the other implies: with it a link is ENOTDIR when a directory is wanted. */
  struct { uint64_t flags, mode, resolve; } how = {.flags = (uint64_t) (flags & ~O_NOFOLLOW), .resolve = NO_SYMLINKS};
  static bool missing;
  if (!missing) {
    long fd = syscall(SYS_OPENAT2, AT_FDCWD, path, &how, sizeof(how));
    if (fd >= 0) return (int) fd;
    if (errno != ENOSYS) return -errno;
    missing = true;
  }
  return walk(path, flags);
}

static int
open_as(char *path, int flags, const al_user_t *u, const char **what) {
  int err = 0;
  *what = "user";
  if (u != NULL && (err = al_users_become(u)) != 0) return err;
  int fd = open_beneath(path, flags);
  if (u != NULL) al_users_restore();
  *what = "open";
  return fd == -ENXIO ? -EINVAL : fd; /* a socket, or a fifo's like */
}

/* Closes it when it is no regular file. */
static int
check_file(int fd, uint64_t *size) {
  struct stat st;
  int err = 0;
  if (fstat(fd, &st) != 0) err = -errno;
  else if (S_ISDIR(st.st_mode)) err = -EISDIR;
  else if (!S_ISREG(st.st_mode)) err = -EINVAL;
  /* As in /proc: nobody can say how much has to come. */
  else if (st.st_size == 0 && read(fd, &(char) {0}, 1) > 0) err = -EINVAL;
  if (err == 0) *size = (uint64_t) st.st_size;
  else close(fd);
  return err;
}

static int
parse(const uint8_t *p, uint32_t n, char path[PATH_SIZE], bool *root) {
  size_t pos = 0;
  uint16_t tag;
  const uint8_t *value;
  uint32_t len;
  int more;
  path[0] = 0;
  *root = false;
  while ((more = al_tlv_next(p, n, &pos, &tag, &value, &len)) == 1) {
    if (tag == AL_TLV_PATH) {
      if (len >= PATH_SIZE) return -ENAMETOOLONG;
      if (memchr(value, 0, len) != NULL) return -EINVAL;
      memcpy(path, value, len);
      path[len] = 0;
    } else if (tag == AL_TLV_USER) {
      *root = len == 4 && memcmp(value, "root", 4) == 0;
      if (!*root && !(len == 5 && memcmp(value, "agent", 5) == 0)) return -EINVAL;
    } else {
      return -EINVAL;
    }
  }
  return more < 0 || path[0] != '/' ? -EINVAL : 0;
}

static int
finish(al_slot_t *s, int error, const char *what) {
  char text[AL_FAIL_TEXT];
  const char *why = error == -ELOOP    ? "a symbolic link is in the path"
    : error == -EINVAL && *what == 'o' ? "not a regular file"
                                       : strerror(-error);
  snprintf(text, sizeof(text), "%s: %s", what, why);
  al_stream_finish(s, AL_EXIT_ERROR, (uint32_t) -error, text);
  return -1;
}

int
al_read_request(al_slot_t *s, const uint8_t *tlvs, uint32_t len, int flags, bool *root) {
  char path[PATH_SIZE];
  const char *what = "request";
  const al_user_t *u = NULL;
  int fd = parse(tlvs, len, path, root);
  if (fd == 0 && !al_agent.local) {
    what = "user";
    fd = al_users_find(*root ? "root" : al_agent.user_name, &u);
  }
  if (fd == 0) fd = open_as(path, flags, u, &what);
  return fd < 0 ? finish(s, fd, what) : fd;
}

void
al_read_open(al_slot_t *s, const uint8_t *tlvs, uint32_t len) {
  bool root;
  int fd = al_read_request(s, tlvs, len, OPEN_FLAGS, &root);
  if (fd < 0) return;
  int err = check_file(fd, &s->size);
  if (err != 0) {
    finish(s, err, "open");
    return;
  }
  s->state = AL_SLOT_READ;
  s->fd[AL_SUB_STDOUT] = fd;
  s->credit[AL_SUB_STDOUT] = AL_WINDOW_DEFAULT;
  s->started_ns = al_main_now();
}
