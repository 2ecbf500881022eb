/* SPDX-License-Identifier: Apache-2.0 */
/* What lanes take of this machine: their processes, QEMU's memory, the blocks of their files. */
#include "lima_look.h"
#include "lima_int.h"

#include "mem.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK 512u    /* the unit of st_blocks, whatever the file system's own is */
#define DEPTH_MAX 4   /* Lima's own directories have no directory in them */

/* ---- the directory ---- */

/* What nobody but its writer bounds: Lima's host agent, and on vz the guest's console (under QEMU the warden bounds that
 * one). */
static const char *const loose_logs[] = {"ha.stderr.log", "ha.stdout.log", "serialv.log"};
#define LOOSE_LOGS (sizeof loose_logs / sizeof *loose_logs)

static bool
is_loose_log(const char *file) {
  for (size_t i = 0; i < LOOSE_LOGS; i++)
    if (strcmp(file, loose_logs[i]) == 0) return true;
  return false;
}

/* What vanishes meanwhile counts nothing. */
static uint64_t
allocated(int dir, int depth, uint64_t *logs) {
  uint64_t sum = 0;
  int copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *d = copy >= 0 ? fdopendir(copy) : NULL;
  if (!d) {
    if (copy >= 0) close(copy);
    return 0;
  }
  for (struct dirent *e; (e = readdir(d));) {
    struct stat st;
    if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
    if (fstatat(dir, e->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0) continue;
    uint64_t bytes = (uint64_t) st.st_blocks * BLOCK;
    sum += bytes;
    if (depth == 0 && is_loose_log(e->d_name)) *logs += bytes;
    if (!S_ISDIR(st.st_mode) || depth == DEPTH_MAX) continue;
    AL_AUTO_FD int child = openat(dir, e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (child >= 0) sum += allocated(child, depth + 1, logs);
  }
  closedir(d);
  return sum;
}

int
al__lima_lane_dir(const al_home_t *home, const char *name) {
  struct stat st;
  if (!al_name_valid(name)) return -EINVAL;
  AL_AUTO_FD int lima = open(home->lima, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (lima < 0) return -errno;
  AL_AUTO_FD int dir = openat(lima, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (dir < 0 || fstat(dir, &st) != 0) return -errno;
  if (st.st_uid != geteuid()) return -EPERM;
  int fd = dir;
  dir = -1;
  return fd;
}

int
al_lima_disk(const al_home_t *home, const char *name, al_lane_disk_t *out) {
  *out = (al_lane_disk_t) {0};
  AL_AUTO_FD int dir = al__lima_lane_dir(home, name);
  if (dir < 0) return dir == -ENOENT ? 0 : dir;
  out->there = true;
  out->all = allocated(dir, 0, &out->logs);
  return 0;
}

int
al_lima_cut_logs(const al_home_t *home, const char *name) {
  AL_AUTO_FD int dir = al__lima_lane_dir(home, name);
  int rc = dir < 0 ? dir : 0;
  for (size_t i = 0; rc == 0 && i < LOOSE_LOGS; i++) {
    struct stat st;
    AL_AUTO_FD int fd = openat(dir, loose_logs[i], O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) rc = errno == ENOENT ? 0 : -errno;
    else if (fstat(fd, &st) != 0) rc = -errno;
    else if (!S_ISREG(st.st_mode)) rc = -EINVAL;
    else if (ftruncate(fd, 0) != 0) rc = -errno;
  }
  return rc;
}

/* ---- processes ---- */

typedef struct search_s {
  const al_home_t *home;
  al_look_t *looks;
  size_t count;
} search_t;

static al_look_t *
find_look(const search_t *s, const char *name) {
  for (size_t i = 0; i < s->count; i++)
    if (memcmp(s->looks[i].name, name, AL_NAME_LEN) == 0) return &s->looks[i];
  return NULL;
}

static void
count_in(const search_t *s, al_look_t *look, const al_ident_t *id, const char *cmdline, size_t len) {
  char dir[AL_HOME_MAX + AL_NAME_LEN + 2];
  uint64_t bytes;
  snprintf(dir, sizeof dir, "%s/%s", s->home->lima, look->name);
  al__lima_kind_t kind = al__lima_classify(dir, look->name, cmdline, len);
  if (kind == AL__PROC_NONE) return;
  look->processes++;
  if (kind != AL__PROC_QEMU || al_plat_memory(id, &bytes) != 0) return;
  look->vm = true;
  look->memory += bytes;
}

/* A lane's processes all have its name in their words: so one walk does for any number of lanes. */
static int
on_process(void *data, const al_ident_t *id, const char *cmdline, size_t len) {
  const search_t *s = data;
  const al_look_t *last = NULL;
  char name[AL_NAME_LEN + 1];
  for (const char *at = cmdline; al_name_next(&at, cmdline + len, name);) {
    al_look_t *look = find_look(s, name);
    if (!look || look == last) continue;
    int before = look->processes;
    count_in(s, look, id, cmdline, len);
    if (look->processes > before) break; /* a process is of one lane */
    last = look;
  }
  return 0;
}

int
al_lima_look(const al_home_t *home, al_look_t *looks, size_t count) {
  search_t s = {.home = home, .looks = looks, .count = count};
  for (size_t i = 0; i < count; i++) {
    looks[i].processes = 0;
    looks[i].vm = false;
    looks[i].memory = 0;
    (void) al_lima_disk(home, looks[i].name, &looks[i].disk);
  }
  return count ? al_plat_each_process(on_process, &s) : 0;
}

int
al_lima_vm_runs(const al_home_t *home, const char *name) {
  char dir[AL_HOME_MAX + AL_NAME_LEN + 2];
  AL_AUTO_FREE al__lima_procs_t *procs = al_calloc(1, sizeof *procs);
  if (!procs) return -ENOMEM;
  snprintf(dir, sizeof dir, "%s/%s", home->lima, name);
  int rc = al__lima_scan(dir, name, procs);
  if (rc < 0) return rc;
  for (size_t i = 0; i < procs->count; i++) {
    al__lima_kind_t kind = procs->list[i].kind;
    if (kind == AL__PROC_QEMU || kind == AL__PROC_WARDEN || kind == AL__PROC_HOSTAGENT) return 1;
  }
  return 0;
}

int
al_lima_processes(const al_home_t *home, const char *name, al_val_t **out, al_err_t *err) {
  char dir[AL_HOME_MAX + AL_NAME_LEN + 2];
  AL_AUTO_FREE al__lima_procs_t *procs = al_calloc(1, sizeof *procs);
  al_val_t *list = procs ? al_val_list() : NULL;
  if (!list) return al_err_set(err, -ENOMEM, "out of memory");
  snprintf(dir, sizeof dir, "%s/%s", home->lima, name);
  int rc = al__lima_scan(dir, name, procs);
  if (rc < 0) {
    al_val_free(list);
    return al_err_set(err, rc, "the processes of this user could not be listed: %s", strerror(-rc));
  }
  rc = 0;
  for (size_t i = 0; i < procs->count; i++) {
    const al__lima_proc_t *p = &procs->list[i];
    uint64_t bytes = 0;
    if (al_plat_memory(&p->id, &bytes) == -ESRCH) continue;
    al_val_t *v = al_val_map();
    rc |= al_val_set(v, "pid", al_val_int(p->id.pid)) |
      al_val_set(v, "kind", al_val_text(al__lima_kind_name(p->kind))) |
      al_val_set(v, "program", al_val_text(p->id.exe)) | al_val_set(v, "memoryBytes", al_val_int((int64_t) bytes)) |
      al_val_add(list, v);
  }
  if (rc) {
    al_val_free(list);
    return al_err_set(err, -ENOMEM, "out of memory");
  }
  *out = list;
  return 0;
}
