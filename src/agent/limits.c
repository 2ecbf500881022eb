/* SPDX-License-Identifier: Apache-2.0 */
/* Limits of one command, set in its cgroup before it starts. What cannot be enforced is refused, never ignored. */
#include "agent.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CPU_PERIOD_US 100000u

bool
al_limits_any(const al_limits_t *l) {
  return l->processes != 0 || l->cpu_milli != 0 || l->memory != 0;
}

static int
put(const al_cgroup_t *cg, const char *name, const char *text) {
  int fd = openat(cg->dir, name, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return errno == ENOENT ? -EOPNOTSUPP : -errno; /* the kernel lacks the controller, or nobody enabled it */
  size_t n = strlen(text);
  ssize_t done = write(fd, text, n);
  int err = done == (ssize_t) n ? 0 : done < 0 ? -errno : -EIO;
  close(fd);
  return err;
}

static int
put_memory(const al_cgroup_t *cg, uint64_t bytes) {
  char text[32];
  snprintf(text, sizeof(text), "%" PRIu64, bytes);
  int err = put(cg, "memory.max", text);
  if (err == 0) err = put(cg, "memory.oom.group", "1"); /* half a command is worth nothing */
  if (err != 0) return err;
  err = put(cg, "memory.swap.max", "0");
  return err == -EOPNOTSUPP ? 0 : err; /* a kernel without swap */
}

int
al_limits_set(const al_cgroup_t *cg, const al_limits_t *l, const char **what) {
  char text[48];
  int err = 0;
  if (!al_limits_any(l)) return 0;
  *what = "limits need cgroups";
  if (cg->dir < 0) return -EOPNOTSUPP;
  if (l->processes != 0) {
    *what = "limit of processes (pids.max)";
    snprintf(text, sizeof(text), "%u", l->processes);
    err = put(cg, "pids.max", text);
  }
  if (err == 0 && l->memory != 0) {
    *what = "limit of memory (memory.max)";
    err = put_memory(cg, l->memory);
  }
  if (err == 0 && l->cpu_milli != 0) {
    *what = "limit of CPU (cpu.max)";
    snprintf(text, sizeof(text), "%" PRIu64 " %u", (uint64_t) l->cpu_milli * (CPU_PERIOD_US / 1000), CPU_PERIOD_US);
    err = put(cg, "cpu.max", text);
  }
  return err;
}
