/* SPDX-License-Identifier: Apache-2.0 */
/* Builds a lane's instance directory aside and renames it in: a lane is either not there or whole. */
#include "lima_int.h"

#include "hook.h"
#include "mem.h"
#include "seal.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Theory of operation. Lima ignores names that begin with an underscore, so _tmp.NAME is invisible to it while files
 * are written and qemu-img makes the overlay. The rename is the moment of birth. rename(2) of a directory replaces
 * nothing but an empty directory, so no existing instance can be lost. Kernel and initrd are copies (clones where the
 * file system can): the warden wants plain files of the lane. */

#define QEMU_IMG_MS 10000u

typedef struct build_s {
  al__lima_op_t op;
  al_proc_t proc;
  const al_lane_spec_t *spec; /* copied behind this struct */
  char tmp[AL_HOME_MAX + AL_NAME_LEN + 8];
} build_t;

static int
fail(build_t *q, int rc, const char *what) {
  return al_err_set(&q->op.err, rc, "%s/%s: %s", q->tmp, what, strerror(-rc));
}

/* What Lima writes: its version as it was built, "v2.2.0"; `limactl --version` shows it without the v. */
static int
write_version(build_t *q, int dir) {
  char text[48];
  const char *v = q->op.l->version;
  int n = snprintf(text, sizeof text, "%s%s", v[0] >= '0' && v[0] <= '9' ? "v" : "", v);
  return al_plat_write_new(dir, "lima-version", text, (size_t) n, 0600);
}

static int
place_boot_file(build_t *q, const char *from, const char *name) {
  char to[sizeof q->tmp + 16];
  snprintf(to, sizeof to, "%s/%s", q->tmp, name);
  return al_plat_clone_file(from, to, 0600);
}

static int
write_files(build_t *q, int dir) {
  const al_lane_spec_t *spec = q->spec;
  al_buf_t yaml;
  al_buf_init(&yaml, 65536);
  int rc = al__lima_yaml(q->op.l, spec, &yaml, &q->op.err);
  if (rc == 0 && (rc = al_plat_write_new(dir, "lima.yaml", yaml.data, yaml.len, 0600)) != 0)
    rc = fail(q, rc, "lima.yaml");
  al_buf_deinit(&yaml);
  if (rc == 0 && (rc = write_version(q, dir)) != 0) rc = fail(q, rc, "lima-version");
  if (rc == 0 &&
    (rc = al_plat_write_new(dir, "kernel.cmdline", spec->image.cmdline, strlen(spec->image.cmdline), 0600)) != 0)
    rc = fail(q, rc, "kernel.cmdline");
  if (rc == 0 && (rc = place_boot_file(q, spec->image.kernel, "kernel")) != 0) rc = fail(q, rc, "kernel");
  if (rc == 0 && (rc = place_boot_file(q, spec->image.initrd, "initrd")) != 0) rc = fail(q, rc, "initrd");
  if (rc == 0 && strcmp(q->op.l->vm_type, "vz") == 0) {
    char to[sizeof q->tmp + 16];
    snprintf(to, sizeof to, "%s/disk", q->tmp);
    rc = al_plat_clone_file(spec->image.disk, to, 0600);
    if (rc == 0 && truncate(to, (off_t) (spec->disk_gib << 30)) != 0) rc = -errno;
    if (rc == 0) rc = al_plat_write_new(dir, "vz-identifier", "", 0, 0600);
    if (rc) rc = fail(q, rc, "disk");
  }
  return rc;
}

static int
begin(al_job_t *job) {
  build_t *q = (build_t *) job;
  struct stat st;
  if (lstat(q->spec->dir, &st) == 0) return al_err_set(&q->op.err, -EEXIST, "%s exists already", q->spec->dir);
  if ((uint64_t) q->spec->disk_gib << 30 < q->spec->image.virtual_size) {
    return al_err_set(&q->op.err, AL_EBAD_OPTION,
      "the disk of %" PRId64 " GiB is smaller than the image (%" PRIu64 " bytes)", q->spec->disk_gib,
      q->spec->image.virtual_size);
  }
  int rc = al_plat_mkdir(q->tmp, 0700);
  if (rc) return al_err_set(&q->op.err, rc, "%s: %s", q->tmp, strerror(-rc));
  AL_AUTO_FD int dir = open(q->tmp, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (dir < 0) return fail(q, -errno, "");
  return write_files(q, dir);
}

static int
seal(const al_lane_spec_t *spec, int dir) {
  static const char *const accels[] = {"tcg", "kvm", "hvf"};
  al_seal_t s = {.row = spec->row, .created_s = spec->created_s ? spec->created_s : (int64_t) time(NULL),
    .expires_s = spec->expires_s, .expires_boot_ms = spec->expires_boot_ms, .owner = spec->owner, .cpus = spec->cpus,
    .memory_mib = spec->memory_mib, .disk_gib = spec->disk_gib};
  snprintf(s.name, sizeof s.name, "%s", spec->name);
  snprintf(s.owner_env, sizeof s.owner_env, "%s", spec->owner_env);
  snprintf(s.image, sizeof s.image, "%s", spec->image.id);
  snprintf(s.network, sizeof s.network, "%s", spec->network == AL_NETWORK_NONE ? "none" : "open");
  snprintf(s.accel, sizeof s.accel, "%s", accels[spec->accel]);
  return al_seal_write(dir, &s);
}

static int
finish(al_job_t *job) {
  build_t *q = (build_t *) job;
  AL_AUTO_FD int dir = open(q->tmp, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  AL_AUTO_FD int home = open(q->op.l->home->lima, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (dir < 0 || home < 0) return fail(q, -errno, "");
  int rc = seal(q->spec, dir);
  if (rc == 0) rc = al_plat_fsync(dir);
  if (rc) return fail(q, rc, AL_SEAL_FILE);
  if (renameat(home, strrchr(q->tmp, '/') + 1, home, q->spec->name) != 0)
    return al_err_set(&q->op.err, -errno, "%s: %s", q->spec->dir, strerror(errno));
  rc = al_plat_fsync(home);
  return rc ? al_err_set(&q->op.err, rc, "%s: %s", q->op.l->home->lima, strerror(-rc)) : 0;
}

static int
discard(al_job_t *job) {
  build_t *q = (build_t *) job;
  AL_AUTO_FD int home = open(q->op.l->home->lima, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (home >= 0) al_plat_remove_tree(home, strrchr(q->tmp, '/') + 1);
  return 0;
}

static void
ended(al_job_t *job, int status) {
  build_t *q = (build_t *) job;
  al__lima_op_end(&q->op, q->op.err.code ? q->op.err.code : status);
}

/* After a failure nothing half-made stays behind; the first error is what is told. */
static void
finished(al_job_t *job, int status) {
  build_t *q = (build_t *) job;
  if (status == 0) {
    al__lima_op_end(&q->op, 0);
    return;
  }
  if (q->op.err.code == 0) al_err_set(&q->op.err, status, "%s", uv_strerror(status));
  if (q->op.err.code == -EEXIST) al__lima_op_end(&q->op, q->op.err.code); /* somebody else's: left alone */
  else al_worker_post(q->op.l->io, job, discard, ended);
}

static void
overlay_made(al_proc_t *p, int status) {
  build_t *q = p->data;
  int rc = al__lima_child_result(p, status, AL_ELIMA_FAILED, "qemu-img create", &q->op.err);
  al_proc_deinit(p);
  AL_HOOK("half-built");
  if (rc) finished(&q->op.job, rc);
  else al_worker_post(q->op.l->io, &q->op.job, finish, finished);
}

static void
begun(al_job_t *job, int status) {
  build_t *q = (build_t *) job;
  al_lima_t *l = q->op.l;
  if (status != 0) {
    finished(job, status);
    return;
  }
  if (strcmp(l->vm_type, "vz") == 0) {
    al_worker_post(l->io, job, finish, finished);
    return;
  }
  char disk[sizeof q->tmp + 8], size[32];
  snprintf(disk, sizeof disk, "%s/disk", q->tmp);
  snprintf(size, sizeof size, "%" PRId64 "G", q->spec->disk_gib);
  const char *const argv[] = {l->qemu_img, "create", "-q", "-f", "qcow2", "-b", q->spec->image.disk, "-F",
    q->spec->image.disk_format, disk, size, NULL};
  q->proc.data = q;
  int rc = al__lima_spawn(l, NULL, &q->proc, argv, QEMU_IMG_MS, 0, overlay_made);
  if (rc) finished(job, rc);
}

void
al_lima_build(al_lima_t *l, const al_lane_spec_t *spec, al_lima_cb cb, void *data) {
  build_t *q = al__lima_op_new(l, sizeof *q + sizeof *spec, cb, data);
  if (!q) return;
  al_lane_spec_t *copy = (al_lane_spec_t *) (void *) (q + 1);
  *copy = *spec;
  q->spec = copy;
  if (!al_name_valid(spec->name)) {
    int rc = al_err_set(&q->op.err, AL_EBAD_NAME, "“%.64s” is not the name of a lane", spec->name);
    al__lima_op_end_soon(&q->op, rc);
    return;
  }
  snprintf(q->tmp, sizeof q->tmp, "%s/_tmp.%s", l->home->lima, spec->name);
  al_worker_post(l->io, &q->op.job, begin, begun);
}
