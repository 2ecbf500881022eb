/* SPDX-License-Identifier: Apache-2.0 */
/* Destroys one lane and proves it: stale pid files first, then Lima's own delete, then by identity whatever is left. */
#include "lima_int.h"

#include "mem.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Theory of operation. One operation, a few steps, each of which can find its work done already; so it may be run again
 * from any state, by any process.
 *   1 inspect (worker): the directory must be a directory of ours directly below <home>/lima, not a link. `limactl delete -f` kills
 *     whatever stands in a pid file, so each pid file's process is identified by its command line, and the file of a stranger is unlinked.
 *   2 limactl delete -f NAME, when there is a lima.yaml for it to read. Its failure is not final.
 *   3 sweep (worker): processes of the lane are killed by identity until a scan finds none, at most 5 s.
 *   4 remove (worker): the directory, if it is still there, by descriptors; also _tmp.NAME. Then the proof: nothing may be left.
 * A directory that Lima could not read (half-made) goes straight to 3, and so does one that we cannot: its VM must end
 * whatever has become of the directory, and the proof says what is wrong with that. */

#define SWEEP_MS 5000
#define SWEEP_PAUSE_MS 5
#define NAMELESS_MS 500 /* who has no command line for longer wants none */
#define PROVE_MS 2000    /* two processes may remove one lane at once, and each finds what the other has half done */
#define PROVE_PAUSE_MS 20

typedef struct destroy_s {
  al__lima_op_t op;
  al_proc_t proc;
  uv_timer_t timer;
  uint64_t sweep_end, sweep_start, prove_end;
  char name[AL_NAME_LEN + 1];
  char dir[AL_HOME_MAX + AL_NAME_LEN + 2];
  bool whole;      /* lima.yaml is there: limactl can delete it */
  bool clean;      /* the last scan found nothing */
  bool killed_any; /* something was killed since the last clean scan */
  int status;
  char limactl_says[300];
  al__lima_procs_t procs;
} destroy_t;

/* The code of a step that failed by `rc`: DESTROY_FAILED, unless the same may work in a moment. */
static int
code_of(int rc) {
  return al_err_exhausted(rc) ? rc : AL_EDESTROY_FAILED;
}

/* ---- 1: inspect ---- */

/* -ENOENT when absent; an error when it is not a directory of ours. */
static int
open_dir(destroy_t *d, int home, const char *name) {
  int fd = openat(home, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  struct stat st;
  if (fd < 0 && errno == ENOENT) return -ENOENT;
  if (fd < 0)
    return al_err_set(
      &d->op.err, code_of(-errno), "%s is not a directory that can be opened: %s", d->dir, strerror(errno));
  if (fstat(fd, &st) != 0 || st.st_uid != geteuid()) {
    close(fd);
    return al_err_set(&d->op.err, AL_EDESTROY_FAILED, "%s is not ours", d->dir);
  }
  return fd;
}

/* True when the pid in the file is, right now, a process of this lane. */
static bool
names_ours(destroy_t *d, int dir, const char *file) {
  AL_AUTO_FREE char *text = NULL;
  size_t len = 0;
  if (al_plat_read_file(dir, file, 64, &text, &len) != 0) return false;
  char *end;
  errno = 0;
  long pid = strtol(text, &end, 10);
  if (end == text || errno || pid <= 1 || (*end != 0 && *end != '\n')) return false;
  for (size_t i = 0; i < d->procs.count; i++) {
    const al__lima_proc_t *p = &d->procs.list[i];
    if (p->id.pid != (pid_t) pid) continue;
    if (p->kind == AL__PROC_HOSTAGENT || p->kind == AL__PROC_QEMU || p->kind == AL__PROC_WARDEN) return true;
  }
  return false;
}

static int
drop_stale_pids(destroy_t *d, int fd) {
  int copy = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *dir = copy >= 0 ? fdopendir(copy) : NULL;
  if (!dir) {
    int e = errno;
    if (copy >= 0) close(copy);
    return al_err_set(&d->op.err, code_of(-e), "%s cannot be read: %s", d->dir, strerror(e));
  }
  int rc = 0;
  for (struct dirent *e; rc == 0 && (e = readdir(dir));) {
    size_t n = strlen(e->d_name);
    if (n < 4 || strcmp(e->d_name + n - 4, ".pid") != 0 || names_ours(d, fd, e->d_name)) continue;
    if (unlinkat(fd, e->d_name, 0) != 0 && errno != ENOENT)
      rc = al_err_set(
        &d->op.err, AL_EDESTROY_FAILED, "the stale %s/%s cannot be removed: %s", d->dir, e->d_name, strerror(errno));
  }
  closedir(dir);
  return rc;
}

static int
inspect(al_job_t *job) {
  destroy_t *d = (destroy_t *) job;
  struct stat st;
  AL_AUTO_FD int home = open(d->op.l->home->lima, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (home < 0) return al_err_set(&d->op.err, code_of(-errno), "%s: %s", d->op.l->home->lima, strerror(errno));
  AL_AUTO_FD int dir = open_dir(d, home, d->name);
  if (dir == -ENOENT) return 0;
  if (dir < 0) return d->op.err.code;
  int rc = al__lima_scan(d->dir, d->name, &d->procs);
  if (rc < 0)
    return al_err_set(
      &d->op.err, code_of(rc), "the processes of this user could not be listed: %s", strerror(-rc));
  rc = drop_stale_pids(d, dir);
  d->whole = rc == 0 && fstatat(dir, "lima.yaml", &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode);
  return rc;
}

/* ---- 3: sweep ---- */

static int
sweep(al_job_t *job) {
  destroy_t *d = (destroy_t *) job;
  int rc = al__lima_scan(d->dir, d->name, &d->procs);
  if (rc < 0)
    return al_err_set(
      &d->op.err, code_of(rc), "the processes of this user could not be listed: %s", strerror(-rc));
  for (size_t i = 0; i < d->procs.count; i++) (void) al_plat_ident_kill(&d->procs.list[i].id, SIGKILL);
  /* A process that was just being started escapes a scan, but not the one after the scan that found nothing. */
  bool nameless = d->procs.nameless > 0 && al_plat_mono_ms() < d->sweep_start + NAMELESS_MS;
  d->clean = d->procs.count == 0 && !d->killed_any && !nameless;
  d->killed_any = d->procs.count > 0;
  return 0;
}

/* ---- 4: remove and prove ---- */

/* 1 when the sealed record says that this very directory was built by us. Negative when it cannot be read just now. */
static int
sealed(destroy_t *d, int dir) {
  AL_AUTO_FREE char *text = NULL;
  size_t len = 0;
  struct stat st;
  al_val_t *v = NULL;
  if (fstat(dir, &st) != 0) return 0;
  int rc = al_plat_read_file(dir, "agent-lane.json", 4096, &text, &len);
  if (rc == 0) rc = al_json_parse(text, len, &v, NULL);
  if (rc) return al_err_exhausted(rc) ? rc : 0;
  const char *name = "";
  int64_t dev = -1, ino = -1;
  bool ok = v->kind == AL_MAP && al_val_get_text(v, "name", "", &name, NULL) == 0 &&
    al_val_get_int(v, "dev", -1, 0, INT64_MAX, &dev, NULL) == 0 &&
    al_val_get_int(v, "ino", -1, 0, INT64_MAX, &ino, NULL) == 0;
  ok = ok && strcmp(name, d->name) == 0 && (uint64_t) dev == (uint64_t) st.st_dev &&
    (uint64_t) ino == (uint64_t) st.st_ino;
  al_val_free(v);
  return ok;
}

/* What a delete that was interrupted leaves: the record may be gone already, and with it lima.yaml or the disk. */
static bool
half_made(int dir) {
  struct stat st;
  return fstatat(dir, "lima.yaml", &st, AT_SYMLINK_NOFOLLOW) != 0 ||
    fstatat(dir, "disk", &st, AT_SYMLINK_NOFOLLOW) != 0;
}

static int
remove_one(destroy_t *d, int home, const char *name, bool ours) {
  AL_AUTO_FD int dir = open_dir(d, home, name);
  if (dir == -ENOENT) return 0;
  if (dir < 0) return d->op.err.code;
  int rc = ours ? 1 : sealed(d, dir);
  if (rc < 0) return al_err_set(&d->op.err, rc, "%s/agent-lane.json cannot be read: %s", d->dir, strerror(-rc));
  if (rc == 0 && !half_made(dir)) {
    return al_err_set(&d->op.err, AL_EDESTROY_FAILED, "%s is left, but it does not carry our sealed record%s%s", d->dir,
      d->limactl_says[0] ? "; " : "", d->limactl_says);
  }
  rc = al_plat_remove_tree(home, name);
  if (rc != 0 && rc != -ENOENT)
    return al_err_set(
      &d->op.err, code_of(rc), "%s/%s could not be removed: %s", d->op.l->home->lima, name, strerror(-rc));
  return 0;
}

static int
left_over(destroy_t *d) {
  const al__lima_proc_t *p = &d->procs.list[0];
  return al_err_set(&d->op.err, AL_EDESTROY_FAILED, "%zu process(es) of %s are still there, the first is %s %ld%s%s",
    d->procs.count, d->name, al__lima_kind_name(p->kind), (long) p->id.pid, d->limactl_says[0] ? "; " : "",
    d->limactl_says);
}

static int
prove(al_job_t *job) {
  destroy_t *d = (destroy_t *) job;
  char tmp[AL_NAME_LEN + 8];
  struct stat st;
  if (!d->clean && d->procs.count > 0) return left_over(d);
  AL_AUTO_FD int home = open(d->op.l->home->lima, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (home < 0) return al_err_set(&d->op.err, code_of(-errno), "%s: %s", d->op.l->home->lima, strerror(errno));
  snprintf(tmp, sizeof tmp, "_tmp.%s", d->name);
  int rc = remove_one(d, home, d->name, false);
  if (rc == 0) rc = remove_one(d, home, tmp, true);
  if (rc) return rc;
  if (fstatat(home, d->name, &st, AT_SYMLINK_NOFOLLOW) == 0)
    return al_err_set(&d->op.err, AL_EDESTROY_FAILED, "%s is still there", d->dir);
  return 0;
}

/* ---- the steps on the loop ---- */

static void
on_timer_closed(uv_handle_t *h) {
  destroy_t *d = h->data;
  al__lima_op_end(&d->op, d->status);
}

static void
end(destroy_t *d, int status) {
  d->status = status;
  if (status) snprintf(d->op.err.lane, sizeof d->op.err.lane, "%s", d->name);
  uv_close((uv_handle_t *) &d->timer, on_timer_closed);
}

static void
prove_again(uv_timer_t *t);

static void
proven(al_job_t *job, int status) {
  destroy_t *d = (destroy_t *) job;
  bool again = status == AL_EDESTROY_FAILED && d->clean && al_plat_mono_ms() < d->prove_end;
  if (again) uv_timer_start(&d->timer, prove_again, PROVE_PAUSE_MS, 0);
  else end(d, status);
}

static void
prove_again(uv_timer_t *t) {
  destroy_t *d = t->data;
  d->op.err = (al_err_t) {0};
  al_worker_post(d->op.l->io, &d->op.job, prove, proven);
}

static void
begin_proof(destroy_t *d) {
  d->prove_end = al_plat_mono_ms() + PROVE_MS;
  al_worker_post(d->op.l->io, &d->op.job, prove, proven);
}

static void
swept(al_job_t *job, int status);

static void
sweep_again(uv_timer_t *t) {
  destroy_t *d = t->data;
  al_worker_post(d->op.l->io, &d->op.job, sweep, swept);
}

static void
swept(al_job_t *job, int status) {
  destroy_t *d = (destroy_t *) job;
  if (status) end(d, status);
  else if (d->clean || uv_now(d->op.l->loop) >= d->sweep_end) begin_proof(d);
  else uv_timer_start(&d->timer, sweep_again, d->procs.count + d->procs.nameless ? SWEEP_PAUSE_MS : 0, 0);
}

static void
begin_sweep(destroy_t *d) {
  uv_update_time(d->op.l->loop);
  d->sweep_end = uv_now(d->op.l->loop) + SWEEP_MS;
  d->sweep_start = al_plat_mono_ms();
  al_worker_post(d->op.l->io, &d->op.job, sweep, swept);
}

static void
deleted(al_proc_t *p, int status) {
  destroy_t *d = p->data;
  al_err_t err = {0};
  if (al__lima_child_result(p, status, AL_ELIMA_FAILED, "limactl delete", &err) != 0)
    snprintf(d->limactl_says, sizeof d->limactl_says, "%.299s", err.msg);
  al_proc_deinit(p);
  begin_sweep(d);
}

static void
inspected(al_job_t *job, int status) {
  destroy_t *d = (destroy_t *) job;
  al_lima_t *l = d->op.l;
  if (status == UV_ECANCELED) {
    end(d, status);
    return;
  }
  const char *const argv[] = {l->limactl, "--tty=false", "--log-format", "json", "delete", "-f", d->name, NULL};
  d->proc.data = d;
  if (!d->whole || al__lima_spawn(l, NULL, &d->proc, argv, l->delete_ms, 0, deleted) != 0) begin_sweep(d);
}

void
al_lima_destroy(al_lima_t *l, const char *name, al_lima_cb cb, void *data) {
  destroy_t *d = al__lima_op_new(l, sizeof *d, cb, data);
  if (!d) return;
  if (!al_name_valid(name)) {
    int rc = al_err_set(&d->op.err, AL_EBAD_NAME, "“%.64s” is not the name of a lane", name);
    al__lima_op_end_soon(&d->op, rc);
    return;
  }
  snprintf(d->name, sizeof d->name, "%s", name);
  snprintf(d->dir, sizeof d->dir, "%s/%s", l->home->lima, name);
  uv_timer_init(l->loop, &d->timer);
  d->timer.data = d;
  al_worker_post(l->io, &d->op.job, inspect, inspected);
}
