/* SPDX-License-Identifier: Apache-2.0 */
/* Ends one lane, step by step: stale pid files, the lane's processes by identity, its directory by descriptors, the
 * proof. */
#include "teardown.h"
#include "mem.h"
#include "seal.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAMELESS_MS 500 /* who has no command line for longer wants none */

int
al_teardown_init(al_teardown_t *t, const char *lima, const char *name) {
  memset(t, 0, sizeof *t);
  if (!al_name_valid(name))
    return al_err_set(&t->err, AL_EBAD_NAME, "“%.64s” is not the name of a lane", name);
  int n = snprintf(t->lima, sizeof t->lima, "%s", lima);
  if (n < 0 || (size_t) n >= sizeof t->lima) return al_err_set(&t->err, -ENAMETOOLONG, "the home's path is too long");
  snprintf(t->name, sizeof t->name, "%s", name);
  snprintf(t->dir, sizeof t->dir, "%s/%s", t->lima, t->name);
  return 0;
}

/* The code of a step that failed by `rc`: DESTROY_FAILED, unless the same may work in a moment. */
static int
code_of(int rc) {
  return al_err_exhausted(rc) ? rc : AL_EDESTROY_FAILED;
}

/* ---- 1: inspect ---- */

/* -ENOENT when absent; an error when it is not a directory of ours. */
static int
open_dir(al_teardown_t *t, int home, const char *name) {
  int fd = openat(home, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  struct stat st;
  if (fd < 0 && errno == ENOENT) return -ENOENT;
  if (fd < 0)
    return al_err_set(
      &t->err, code_of(-errno), "%s is not a directory that can be opened: %s", t->dir, strerror(errno));
  if (fstat(fd, &st) != 0 || st.st_uid != geteuid()) {
    close(fd);
    return al_err_set(&t->err, AL_EDESTROY_FAILED, "%s is not ours", t->dir);
  }
  return fd;
}

/* True when the pid in the file is, right now, a process of this lane. */
static bool
names_ours(al_teardown_t *t, int dir, const char *file) {
  AL_AUTO_FREE char *text = NULL;
  size_t len = 0;
  if (al_plat_read_file(dir, file, 64, &text, &len) != 0) return false;
  char *end;
  errno = 0;
  long pid = strtol(text, &end, 10);
  if (end == text || errno || pid <= 1 || (*end != 0 && *end != '\n')) return false;
  for (size_t i = 0; i < t->procs.count; i++) {
    const al__lima_proc_t *p = &t->procs.list[i];
    if (p->id.pid != (pid_t) pid) continue;
    if (p->kind == AL__PROC_HOSTAGENT || p->kind == AL__PROC_QEMU || p->kind == AL__PROC_WARDEN) return true;
  }
  return false;
}

static int
drop_stale_pids(al_teardown_t *t, int fd) {
  int copy = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *dir = copy >= 0 ? fdopendir(copy) : NULL;
  if (!dir) {
    int e = errno;
    if (copy >= 0) close(copy);
    return al_err_set(&t->err, code_of(-e), "%s cannot be read: %s", t->dir, strerror(e));
  }
  int rc = 0;
  for (struct dirent *e; rc == 0 && (e = readdir(dir));) {
    size_t n = strlen(e->d_name);
    if (n < 4 || strcmp(e->d_name + n - 4, ".pid") != 0 || names_ours(t, fd, e->d_name)) continue;
    if (unlinkat(fd, e->d_name, 0) != 0 && errno != ENOENT)
      rc = al_err_set(
        &t->err, AL_EDESTROY_FAILED, "the stale %s/%s cannot be removed: %s", t->dir, e->d_name, strerror(errno));
  }
  closedir(dir);
  return rc;
}

/* 1 when the sealed record says that this very directory was built by us. Negative when it cannot be read just now. */
static int
sealed(const al_teardown_t *t, int dir) {
  al_seal_t seal;
  int rc = al_seal_read(dir, &seal);
  return rc == 1 ? strcmp(seal.name, t->name) == 0 : rc;
}

static bool
needs_limactl(const al_teardown_t *t, int dir) {
  struct stat st;
  if (fstatat(dir, "lima.yaml", &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode)) return false;
  /* Who has no command line just now may be the lane's. */
  bool alone = t->procs.count == 0 && t->procs.nameless == 0;
  return !alone || sealed(t, dir) != 1;
}

int
al_teardown_inspect(al_teardown_t *t) {
  AL_AUTO_FD int home = open(t->lima, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (home < 0) return al_err_set(&t->err, code_of(-errno), "%s: %s", t->lima, strerror(errno));
  AL_AUTO_FD int dir = open_dir(t, home, t->name);
  if (dir == -ENOENT) return 0;
  if (dir < 0) return t->err.code;
  int rc = al__lima_scan(t->dir, t->name, &t->procs);
  if (rc < 0)
    return al_err_set(
      &t->err, code_of(rc), "the processes of this user could not be listed: %s", strerror(-rc));
  rc = drop_stale_pids(t, dir);
  t->needs_limactl = rc == 0 && needs_limactl(t, dir);
  return rc;
}

/* ---- 3: sweep ---- */

int
al_teardown_sweep(al_teardown_t *t) {
  if (t->sweep_start == 0) t->sweep_start = al_plat_mono_ms();
  int rc = al__lima_scan(t->dir, t->name, &t->procs);
  if (rc < 0)
    return al_err_set(
      &t->err, code_of(rc), "the processes of this user could not be listed: %s", strerror(-rc));
  for (size_t i = 0; i < t->procs.count; i++) (void) al_plat_ident_kill(&t->procs.list[i].id, SIGKILL);
  /* A process that was just being started escapes a scan, but not the one after the scan that found nothing. */
  bool nameless = t->procs.nameless > 0 && al_plat_mono_ms() < t->sweep_start + NAMELESS_MS;
  t->clean = t->procs.count == 0 && !t->killed_any && !nameless;
  t->killed_any = t->procs.count > 0;
  return 0;
}

/* ---- 4: remove and prove ---- */

/* What a delete that was interrupted leaves: the record may be gone already, and with it lima.yaml or the disk. */
static bool
half_made(int dir) {
  struct stat st;
  return fstatat(dir, "lima.yaml", &st, AT_SYMLINK_NOFOLLOW) != 0 ||
    fstatat(dir, "disk", &st, AT_SYMLINK_NOFOLLOW) != 0;
}

static int
remove_one(al_teardown_t *t, int home, const char *name, bool ours) {
  AL_AUTO_FD int dir = open_dir(t, home, name);
  if (dir == -ENOENT) return 0;
  if (dir < 0) return t->err.code;
  int rc = ours ? 1 : sealed(t, dir);
  if (rc < 0) return al_err_set(&t->err, rc, "%s/agent-lane.json cannot be read: %s", t->dir, strerror(-rc));
  if (rc == 0 && !half_made(dir)) {
    return al_err_set(&t->err, AL_EDESTROY_FAILED, "%s is left, but it does not carry our sealed record%s%s", t->dir,
      t->limactl_says[0] ? "; " : "", t->limactl_says);
  }
  rc = al_plat_remove_tree(home, name);
  if (rc != 0 && rc != -ENOENT)
    return al_err_set(
      &t->err, code_of(rc), "%s/%s could not be removed: %s", t->lima, name, strerror(-rc));
  return 0;
}

static int
left_over(al_teardown_t *t) {
  const al__lima_proc_t *p = &t->procs.list[0];
  return al_err_set(&t->err, AL_EDESTROY_FAILED, "%zu process(es) of %s are still there, the first is %s %ld%s%s",
    t->procs.count, t->name, al__lima_kind_name(p->kind), (long) p->id.pid, t->limactl_says[0] ? "; " : "",
    t->limactl_says);
}

int
al_teardown_prove(al_teardown_t *t) {
  t->err = (al_err_t) {0};
  char tmp[AL_NAME_LEN + 8];
  struct stat st;
  if (!t->clean && t->procs.count > 0) return left_over(t);
  AL_AUTO_FD int home = open(t->lima, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (home < 0) return al_err_set(&t->err, code_of(-errno), "%s: %s", t->lima, strerror(errno));
  snprintf(tmp, sizeof tmp, "_tmp.%s", t->name);
  int rc = remove_one(t, home, t->name, false);
  if (rc == 0) rc = remove_one(t, home, tmp, true);
  if (rc) return rc;
  if (fstatat(home, t->name, &st, AT_SYMLINK_NOFOLLOW) == 0)
    return al_err_set(&t->err, AL_EDESTROY_FAILED, "%s is still there", t->dir);
  return 0;
}
