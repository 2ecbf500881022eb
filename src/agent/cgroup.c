/* SPDX-License-Identifier: Apache-2.0 */
/* One cgroup for each running command: so that a whole tree can be ended however it daemonizes. Empty ones are
 * reused. */
#include "agent.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CGROUP_ROOT "/sys/fs/cgroup/lane"
#define LEFT_MAX 4096 /* non-empty cgroups whose directory we still try to remove; older ones just stay */
#define LEFT_TRIES 4

static al_cgroup_t pool[AL_STREAMS_MAX];
static size_t pool_len;
static uint32_t left[LEFT_MAX];
static size_t left_off, left_len;
static uint32_t next_number;
static int root_dir = -1;

static void
name_of(uint32_t number, char out[12]) {
  snprintf(out, 12, "%u", number);
}

/* An attached agent's groups are below one of its own: it ends its own commands, the owner's agent ends all. */
static const char *
root_path(void) {
  static char path[sizeof(CGROUP_ROOT) + 16];
  if (al_agent.attached) snprintf(path, sizeof(path), CGROUP_ROOT "/attach-%d", al_agent.attach_place);
  return al_agent.attached ? path : CGROUP_ROOT;
}

int
al_cgroup_init(void) {
  if (root_dir >= 0) return 0;
  if (mkdir(CGROUP_ROOT, 0755) != 0 && errno != EEXIST) return -errno;
  const char *root = root_path();
  if (al_agent.attached && mkdir(root, 0755) != 0 && errno != EEXIST) return -errno;
  int fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return -errno;
  if (faccessat(fd, "cgroup.events", R_OK, 0) != 0) { /* a plain directory: no cgroup2 is mounted there */
    close(fd);
    return -ENOTSUP;
  }
  root_dir = fd;
  if (al_agent.attached) {
    int control = openat(fd, "cgroup.subtree_control", O_WRONLY | O_CLOEXEC);
    if (control >= 0) {
      (void) !write(control, "+cpu +memory +pids", 18); /* without them only limits fail, and those say so */
      close(control);
    }
  }
  return 0;
}

void
al_cgroup_remove(void) {
  if (root_dir < 0 || !al_agent.attached) return;
  for (uint32_t i = 1; i <= next_number; i++) {
    char name[12];
    name_of(i, name);
    (void) unlinkat(root_dir, name, AT_REMOVEDIR);
  }
  (void) rmdir(root_path());
}

/* Directories of commands that left processes behind go once those have ended. */
static void
sweep(void) {
  for (size_t i = 0; i < LEFT_TRIES && left_len > 0; i++) {
    uint32_t number = left[left_off];
    char name[12];
    name_of(number, name);
    left_off = (left_off + 1) % LEFT_MAX;
    left_len--;
    if (unlinkat(root_dir, name, AT_REMOVEDIR) == 0 || errno != EBUSY) continue;
    left[(left_off + left_len++) % LEFT_MAX] = number;
  }
}

static void
leave(uint32_t number) {
  sweep();
  if (left_len == LEFT_MAX) {
    left_off = (left_off + 1) % LEFT_MAX;
    left_len--;
  }
  left[(left_off + left_len++) % LEFT_MAX] = number;
}

int
al_cgroup_take(al_cgroup_t *out) {
  *out = (al_cgroup_t) {.dir = -1, .events = -1, .memory = -1};
  if (al_agent.no_cgroup) return 0;
  int err = al_cgroup_init();
  if (err != 0) return err;
  if (pool_len > 0) {
    *out = pool[--pool_len];
    return 0;
  }
  sweep();
  char name[12];
  do name_of(++next_number, name);
  while (mkdirat(root_dir, name, 0755) != 0 && errno == EEXIST); /* an earlier agent's */
  out->number = next_number;
  out->dir = openat(root_dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (out->dir < 0) return -errno;
  out->events = openat(out->dir, "cgroup.events", O_RDONLY | O_CLOEXEC);
  out->memory = openat(out->dir, "memory.events", O_RDONLY | O_CLOEXEC);
  if (out->events >= 0) return 0;
  err = -errno;
  close(out->dir);
  if (out->memory >= 0) close(out->memory);
  unlinkat(root_dir, name, AT_REMOVEDIR);
  out->dir = out->memory = -1;
  return err;
}

bool
al_cgroup_empty(const al_cgroup_t *cg) {
  char text[128];
  ssize_t n = pread(cg->events, text, sizeof(text) - 1, 0);
  if (n <= 0) return false;
  text[n] = 0;
  return strncmp(text, "populated 0", 11) == 0 || strstr(text, "\npopulated 0") != NULL;
}

bool
al_cgroup_oom(al_cgroup_t *cg) {
  char text[256];
  ssize_t n = cg->memory >= 0 ? pread(cg->memory, text, sizeof(text) - 1, 0) : 0;
  if (n <= 0) return false;
  text[n] = 0;
  const char *at = strstr(text, "\noom_kill ");
  uint64_t ooms = at != NULL ? strtoull(at + 10, NULL, 10) : 0;
  bool more = ooms > cg->ooms;
  cg->ooms = ooms;
  return more;
}

/* One that was killed is never used again: newer kernels (seen on 6.18) also kill what is cloned into it afterwards,
 * since they compare the count of kills of our own cgroup with that of the new one. */
void
al_cgroup_give(al_cgroup_t *cg) {
  if (cg->dir < 0) return;
  if (!cg->spent && pool_len < AL_STREAMS_MAX && al_cgroup_empty(cg)) {
    pool[pool_len++] = *cg;
  } else {
    close(cg->dir);
    close(cg->events);
    if (cg->memory >= 0) close(cg->memory);
    leave(cg->number);
  }
  cg->dir = cg->events = cg->memory = -1;
}

static bool
write_one(int dir, const char *name) {
  int fd = openat(dir, name, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  bool ok = write(fd, "1", 1) == 1;
  close(fd);
  return ok;
}

/* The pids are read in one go; a process that forks meanwhile is caught by the next round. */
static bool
signal_listed(const al_cgroup_t *cg, int signo) {
  static char text[65536];
  int fd = openat(cg->dir, "cgroup.procs", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  size_t len = 0;
  ssize_t n;
  while (len < sizeof(text) - 1 && (n = read(fd, text + len, sizeof(text) - 1 - len)) > 0) len += (size_t) n;
  close(fd);
  if (len == sizeof(text) - 1) while (len > 0 && text[len - 1] != '\n') len--;
  text[len] = 0;
  bool any = false;
  for (char *p = text, *end; *p != 0; p = end + strspn(end, "\n")) {
    long pid = strtol(p, &end, 10);
    if (end == p) break;
    if (pid > 1 && kill((pid_t) pid, signo) == 0) any = true;
  }
  return any;
}

void
al_cgroup_signal(al_cgroup_t *cg, int signo) {
  if (cg->dir < 0) return;
  cg->spent = cg->spent || signo == SIGKILL;
  if (signo != SIGKILL) signal_listed(cg, signo);
  else if (!write_one(cg->dir, "cgroup.kill")) /* before Linux 5.14 */
    for (int i = 0; i < 64 && signal_listed(cg, SIGKILL); i++) continue;
}

void
al_cgroup_kill_all(void) {
  if (root_dir < 0 || write_one(root_dir, "cgroup.kill")) return;
  for (size_t i = 0; i < al_agent.slots_high; i++)
    if (al_agent.slots[i].state == AL_SLOT_RUN) al_cgroup_signal(&al_agent.slots[i].cgroup, SIGKILL);
}

void
al_cgroup_kill_attached(int place) {
  char name[16];
  if (root_dir < 0) return;
  snprintf(name, sizeof(name), "attach-%d", place);
  int fd = openat(root_dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return; /* it ended in good order */
  (void) write_one(fd, "cgroup.kill");
  close(fd);
}
