/* SPDX-License-Identifier: Apache-2.0 */
/* /etc/passwd and /etc/group, read by hand: a static program has no name service. */
#include "agent.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FILE_MAX 262144u

static char file_buf[FILE_MAX + 1];
static struct { al_user_t user; bool valid; } cache[2]; /* root and the unprivileged user */
static struct stat passwd_seen, group_seen;

static bool
same_file(const struct stat *a, const struct stat *b) {
  return a->st_ino == b->st_ino && a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
         a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static int
slurp(const char *path) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -errno;
  size_t len = 0;
  ssize_t n;
  while ((n = read(fd, file_buf + len, FILE_MAX - len)) > 0) len += (size_t) n;
  int err = n < 0 ? -errno : len == FILE_MAX ? -EFBIG : 0;
  close(fd);
  file_buf[len] = 0;
  return err;
}

/* Splits one line at ':' in place. Returns the number of fields. */
static size_t
fields(char *line, char **out, size_t max) {
  size_t n = 0;
  while (n < max) {
    out[n++] = line;
    line = strchr(line, ':');
    if (line == NULL) break;
    *line++ = 0;
  }
  return n;
}

static bool
number(const char *text, uint32_t *out) {
  char *end;
  errno = 0;
  unsigned long v = strtoul(text, &end, 10);
  if (*text < '0' || *text > '9' || *end != 0 || errno != 0 || v >= UINT32_MAX) return false;
  *out = (uint32_t) v;
  return true;
}

static int
copy(char *out, size_t room, const char *text) {
  size_t len = strlen(text);
  if (len >= room) return -ENAMETOOLONG;
  memcpy(out, text, len + 1);
  return 0;
}

static int
find_passwd(const char *name, al_user_t *u) {
  int err = slurp("/etc/passwd");
  if (err != 0) return err;
  char *save = NULL;
  for (char *line = strtok_r(file_buf, "\n", &save); line != NULL; line = strtok_r(NULL, "\n", &save)) {
    char *f[7];
    if (fields(line, f, 7) < 7 || strcmp(f[0], name) != 0) continue;
    if (!number(f[2], &u->uid) || !number(f[3], &u->gid)) return -EINVAL;
    if (copy(u->name, sizeof(u->name), f[0]) || copy(u->home, sizeof(u->home), f[5])) return -ENAMETOOLONG;
    return copy(u->shell, sizeof(u->shell), *f[6] ? f[6] : "/bin/sh");
  }
  return -ENOENT;
}

static int
find_groups(const char *name, al_user_t *u) {
  u->groups[0] = u->gid;
  u->groups_len = 1;
  int err = slurp("/etc/group");
  if (err == -ENOENT) return 0;
  if (err != 0) return err;
  char *save = NULL;
  for (char *line = strtok_r(file_buf, "\n", &save); line != NULL; line = strtok_r(NULL, "\n", &save)) {
    char *f[4], *msave = NULL;
    uint32_t gid;
    if (fields(line, f, 4) < 4 || !number(f[2], &gid) || gid == u->gid) continue;
    for (char *m = strtok_r(f[3], ",", &msave); m != NULL; m = strtok_r(NULL, ",", &msave)) {
      if (strcmp(m, name) != 0) continue;
      if (u->groups_len == AL_GROUPS_MAX) return -EMFILE;
      u->groups[u->groups_len++] = gid;
      break;
    }
  }
  return 0;
}

int
al_users_find(const char *name, const al_user_t **out) {
  struct stat passwd = {0}, group = {0};
  if (stat("/etc/passwd", &passwd) != 0) return -errno;
  (void) stat("/etc/group", &group);
  if (!same_file(&passwd, &passwd_seen) || !same_file(&group, &group_seen)) cache[0].valid = cache[1].valid = false;
  passwd_seen = passwd;
  group_seen = group;
  size_t i = strcmp(name, "root") != 0;
  if (cache[i].valid && strcmp(cache[i].user.name, name) == 0) {
    *out = &cache[i].user;
    return 0;
  }
  al_user_t u = {0};
  int err = find_passwd(name, &u);
  if (err == 0) err = find_groups(name, &u);
  if (err != 0) return err;
  cache[i].user = u;
  cache[i].valid = true;
  *out = &cache[i].user;
  return 0;
}

/* Raw system calls: they concern this thread only, whatever the C library thinks of threads. */
int
al_users_become(const al_user_t *u) {
  if (syscall(SYS_setgroups, u->groups_len, u->groups) != 0) return -errno;
  if (syscall(SYS_setresgid, -1, u->gid, -1) != 0 || syscall(SYS_setresuid, -1, u->uid, -1) != 0) {
    int err = -errno;
    al_users_restore();
    return err;
  }
  return 0;
}

void
al_users_restore(void) {
  const gid_t none = 0;
  if (syscall(SYS_setresuid, -1, 0, -1) != 0 || syscall(SYS_setresgid, -1, 0, -1) != 0 ||
      syscall(SYS_setgroups, 1, &none) != 0)
    al_stop_reject(AL_REJECT_SETUP, "the agent could not take back its own user");
}
