/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the accelerator: KVM only when the image's own kernel has been seen to run under it, else software emulation
 * with a notice. */
#include "lima_int.h"

#include "mem.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Theory of operation. /dev/kvm may exist and be of no use: it may be closed to this user, or it may open and never run
 * a stock kernel past its first lines. So the image's kernel and initrd are started once under KVM; the initrd prints
 * the image's probe marker when the kernel command line asks for it. The verdict is kept in <home>/run/kvm-probe for
 * this boot, this QEMU and this kernel. */

#define PROBE_MS 5000u
#define PROBE_OUT_MAX (256u << 10)
#define KEY_MAX 1400u

typedef void (*accel_cb)(void *data, al_accel_t accel, const char *notice);

typedef struct accel_s {
  al_job_t job;
  al_lima_t *l;
  al_image_t image;
  accel_cb cb;
  void *data;
  al_proc_t proc;
  al_accel_t accel;
  bool probe;
  char notice[200];
  char key[KEY_MAX];
} accel_t;

static void
end(accel_t *a) {
  accel_cb cb = a->cb;
  void *data = a->data;
  al_accel_t accel = a->accel;
  char notice[sizeof a->notice];
  memcpy(notice, a->notice, sizeof notice);
  al_free(a);
  cb(data, accel, notice[0] ? notice : NULL);
}

static int
make_key(accel_t *a) {
  char boot[AL_BOOT_ID_MAX];
  struct stat st;
  if (al_plat_boot_id(boot) != 0 || stat(a->l->qemu, &st) != 0) return -1;
  int n = snprintf(a->key, sizeof a->key, "%s %s %jd %jd %s", boot, a->l->qemu, (intmax_t) st.st_size,
    (intmax_t) st.st_mtime, a->image.kernel_sha256);
  return n > 0 && (size_t) n < sizeof a->key ? 0 : -1;
}

static void
verdict(accel_t *a, bool works) {
  a->accel = works ? AL_ACCEL_KVM : AL_ACCEL_TCG;
  if (!works)
    snprintf(a->notice, sizeof a->notice,
      "/dev/kvm opens but does not run the image's kernel; using software emulation, which is slower");
}

/* A line "KEY yes" or "KEY no"; anything else is no answer. */
static bool
cached(accel_t *a) {
  AL_AUTO_FREE char *text = NULL;
  size_t len = 0, n = strlen(a->key);
  char path[AL_HOME_MAX + 16];
  snprintf(path, sizeof path, "%s/kvm-probe", a->l->home->run);
  if (al_plat_read_file(-1, path, KEY_MAX + 16, &text, &len) != 0 || strncmp(text, a->key, n) != 0) return false;
  bool yes = strcmp(text + n, " yes\n") == 0;
  if (!yes && strcmp(text + n, " no\n") != 0) return false;
  verdict(a, yes);
  return true;
}

static int
consider(al_job_t *job) {
  accel_t *a = (accel_t *) job;
  a->accel = AL_ACCEL_TCG;
  if (strcmp(a->l->vm_type, "vz") == 0) {
    a->accel = AL_ACCEL_HVF;
  } else if (strcmp(a->image.arch, a->l->arch) != 0) {
    snprintf(a->notice, sizeof a->notice,
      "the image is for another processor (%s); using software emulation, which is slower", a->image.arch);
  } else if (access("/dev/kvm", F_OK) != 0) {
    snprintf(a->notice, sizeof a->notice, "this machine has no /dev/kvm; using software emulation, which is slower");
  } else if (access("/dev/kvm", R_OK | W_OK) != 0) {
    snprintf(a->notice, sizeof a->notice,
      "/dev/kvm is not open to this user (group kvm?); using software emulation, which is slower");
  } else if (!a->image.probe_marker[0] || make_key(a) != 0) {
    snprintf(
      a->notice, sizeof a->notice, "KVM could not be tried with this image; using software emulation, which is slower");
  } else {
    a->probe = !cached(a);
  }
  return 0;
}

static int
keep(al_job_t *job) {
  accel_t *a = (accel_t *) job;
  char path[AL_HOME_MAX + 16], line[KEY_MAX + 16];
  snprintf(path, sizeof path, "%s/kvm-probe", a->l->home->run);
  int n = snprintf(line, sizeof line, "%s %s\n", a->key, a->accel == AL_ACCEL_KVM ? "yes" : "no");
  return al_plat_write_replace(-1, path, line, (size_t) n, 0600); /* without it the next lane probes again */
}

static void
kept(al_job_t *job, int status) {
  (void) status;
  end((accel_t *) job);
}

/* QEMU could not be run: that says nothing about KVM, so it is not remembered. */
static void
untried(accel_t *a, int rc) {
  a->accel = AL_ACCEL_TCG;
  snprintf(a->notice, sizeof a->notice, "KVM could not be tried (%s); using software emulation, which is slower",
    uv_strerror(rc));
  end(a);
}

static void
probed(al_proc_t *p, int status) {
  accel_t *a = p->data;
  const char *out = (const char *) p->out.data;
  bool seen = out && memmem(out, p->out.len, a->image.probe_marker, strlen(a->image.probe_marker)) != NULL;
  verdict(a, seen); /* killed by the deadline, or ended: only the marker counts */
  al_proc_deinit(p);
  if (!seen && al_err_exhausted(status)) {
    untried(a, status);
    return;
  }
  al_worker_post(a->l->io, &a->job, keep, kept);
}

static void
considered(al_job_t *job, int status) {
  accel_t *a = (accel_t *) job;
  if (status != 0) a->accel = AL_ACCEL_TCG; /* the worker is closing: nothing will be started any more */
  if (status != 0 || !a->probe) {
    end(a);
    return;
  }
  const char *const argv[] = {a->l->qemu, "-machine", "q35,accel=kvm", "-cpu", "host", "-m", "256", "-display", "none",
    "-serial", "stdio", "-monitor", "none", "-no-reboot", "-nic", "none", "-kernel", a->image.kernel, "-initrd",
    a->image.initrd, "-append", "console=ttyS0 panic=-1 agentlane.probe", NULL};
  const char *const virt[] = {a->l->qemu, "-machine", "virt,accel=kvm", "-cpu", "host", "-m", "256", "-display", "none",
    "-serial", "stdio", "-monitor", "none", "-no-reboot", "-nic", "none", "-kernel", a->image.kernel, "-initrd",
    a->image.initrd, "-append", "console=ttyAMA0 panic=-1 agentlane.probe", NULL};
  a->proc.data = a;
  int rc = al__lima_spawn(
    a->l, NULL, &a->proc, strcmp(a->l->arch, "aarch64") == 0 ? virt : argv, PROBE_MS, PROBE_OUT_MAX, probed);
  if (rc) untried(a, rc);
}

void
al_lima_choose_accel(al_lima_t *l, const al_image_t *image, accel_cb cb, void *data) {
  accel_t *a = al_calloc(1, sizeof *a);
  if (!a) { /* as with al_lima_cb: the one case that is told at once */
    cb(data, AL_ACCEL_TCG, "out of memory: KVM was not tried");
    return;
  }
  a->l = l;
  a->image = *image;
  a->cb = cb;
  a->data = data;
  al_worker_post(l->io, &a->job, consider, considered);
}
