/* SPDX-License-Identifier: Apache-2.0 */
/* The request create: options, home, driver and names, then the checks before admission, side by side. */
#include "lane_guard.h"
#include "lane_manifest.h"
#include "mem.h"
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- checks ---- */

static void
prelude_answer(al_lane_t *lane, int status, const al_err_t *err) {
  if (status < 0 && !lane->prelude_err.code) {
    lane->prelude_err = *err;
    if (!lane->prelude_err.code)
      al_err_set(&lane->prelude_err, status, "a check before the start failed: %s", uv_strerror(status));
  }
  if (--lane->prelude) {
    if (lane->cause.code) al_lane_give_up(lane, &lane->cause); /* who waits may be told now */
    return;
  }
  if (lane->cause.code) al_lane_give_up(lane, &lane->cause); /* timed out or interrupted meanwhile */
  else if (lane->prelude_err.code) al_lane_give_up(lane, &lane->prelude_err);
  else al_lane_admit(lane);
}

static void
prepared(void *data, int status, const al_err_t *err) {
  ((al_lane_t *) data)->limactl_busy = false;
  prelude_answer(data, status, err);
}

static void
version_checked(void *data, int status, const al_err_t *err) {
  al_lane_t *lane = data;
  if (status < 0) prepared(lane, status, err);
  else al_lima_prepare(&lane->driver->lima, prepared, lane);
}

static void
accel_chosen(void *data, al_accel_t accel, const char *notice) {
  al_lane_t *lane = data;
  static const char *const names[] = { "tcg", "kvm", "hvf" };
  lane->spec.accel = accel;
  snprintf(lane->row.accel, sizeof lane->row.accel, "%s", names[accel]);
  if (notice && *notice) al_lane_emit(lane, "notice", notice);
  prelude_answer(lane, 0, NULL);
}

static int
open_image(al_job_t *job) {
  al_lane_t *lane = job->data;
  const al_lima_t *l = &lane->driver->lima;
  const char *want = lane->image_want[0] ? lane->image_want : NULL;
  int rc = al_guard_room(&lane->site->home, lane->min_free, &lane->image_job.err);
  if (rc) return rc;
  al_image_want_t all = {
    .image = want, .vm_type = l->vm_type, .arch = l->arch, .trust = lane->image_trust, .hold = &lane->image_hold
  };
  return al_image_find(&lane->site->home, &all, &lane->spec.image, &lane->image_job.err);
}

/* The word that tells the guest's init to take the channel from the port. */
#define PORT_WORD " agentlane.port"

/* Which transport it is. A machine or an image without the port has the other one; who asked for the port by name is
 * refused. */
static int
choose_transport(al_lane_t *lane, al_err_t *err) {
  al_image_t *image = &lane->spec.image;
  size_t n = strlen(image->cmdline);
  bool asked = lane->transport_want == AL_TRANSPORT_PORT, qemu = strcmp(lane->driver->lima.vm_type, "qemu") == 0;
  if (lane->transport_want == AL_TRANSPORT_SHELL || (!qemu && !asked)) return 0;
  if (!qemu)
    return al_err_set(err, AL_ETRANSPORT_UNAVAILABLE,
      "transport: \"port\" needs QEMU, and the VMs of this machine are %s", lane->driver->lima.vm_type);
  if (!image->port && asked)
    return al_err_set(err, AL_ETRANSPORT_UNAVAILABLE, "transport: \"port\": image %s is older than that", image->id);
  if (!image->port) {
    char text[200];
    snprintf(text, sizeof text, "image %s is older than the port transport: the channel goes over limactl shell",
      image->id);
    al_lane_emit(lane, "notice", text);
    return 0;
  }
  if (n + sizeof PORT_WORD > sizeof image->cmdline)
    return al_err_set(err, AL_EIMAGE_INVALID, "the kernel command line of image %s is too long", image->id);
  memcpy(image->cmdline + n, PORT_WORD, sizeof PORT_WORD);
  lane->spec.port = true;
  return 0;
}

/* What only QEMU can do is refused where there is none, not done in another way in silence. */
static int
without_qemu(const al_lane_t *lane, al_err_t *err) {
  const char *vm_type = lane->driver->lima.vm_type;
  if (lane->spec.network == AL_NETWORK_NONE)
    return al_err_set(err, AL_ENETWORK_UNENFORCEABLE, "network: \"none\" cannot be enforced with vmType %s", vm_type);
  if (!lane->accel_auto)
    return al_err_set(err, AL_EBAD_OPTION, "accelerator: \"tcg\" needs QEMU, and the VMs of this machine are %s", vm_type);
  return 0;
}

static void
image_opened(al_job_t *job, int status) {
  al_lane_t *lane = job->data;
  al_err_t *err = &lane->image_job.err;
  const al_image_t *image = &lane->spec.image;
  uint64_t disk = (uint64_t) lane->spec.disk_gib << 30;
  if (status >= 0 && disk < image->virtual_size)
    status = al_err_set(err, AL_EBAD_OPTION, "diskGiB must be at least %llu: the size of image %s",
      (unsigned long long) ((image->virtual_size + (1ull << 30) - 1) >> 30), image->id);
  if (status >= 0) status = choose_transport(lane, err);
  if (status < 0) {
    prelude_answer(lane, status, err);
    return;
  }
  snprintf(lane->row.image, sizeof lane->row.image, "%s", image->id);
  snprintf(lane->agent_user, sizeof lane->agent_user, "%s", image->agent_user);
  if (lane->accel_auto) al_lima_choose_accel(&lane->driver->lima, image, accel_chosen, lane);
  else accel_chosen(lane, AL_ACCEL_TCG, NULL);
}

static void
swept(void *data) {
  prelude_answer(data, 0, NULL);
}

static void
start_prelude(al_lane_t *lane) {
  lane->step = "check";
  lane->prelude = 3;
  lane->limactl_busy = true;
  lane->image_job.job.data = lane;
  al_lima_check_version(&lane->driver->lima, lane->driver->allow_unknown, version_checked, lane);
  al_worker_post(lane->site->store, &lane->image_job.job, open_image, image_opened);
  al_manifest_ask_vm(lane->site, lane->driver);
  al_reaper_sweep(lane->site, lane->driver, swept, lane);
}
/* ---- the request ---- */

static int
fill_names(al_lane_t *lane, al_err_t *err) {
  uint8_t random[8 + 32];
  al_lane_spec_t *s = &lane->spec;
  time_t now = time(NULL);
  int rc = al_plat_random(random, sizeof random);
  if (!rc) rc = al_name_make(s->name, (uint64_t) now, random);
  if (rc) return al_err_set(err, rc, "no random numbers to be had");
  int n = snprintf(s->dir, sizeof s->dir, "%s/%s", lane->site->home.lima, s->name);
  AL_ASSERT(n > 0 && (size_t) n < sizeof s->dir);
  for (size_t i = 0; i < 32; i++) snprintf(s->proof + 2 * i, 3, "%02x", random[8 + i]);
  s->owner = lane->engine->self;
  al_lane_row_t *row = &lane->row;
  memcpy(row->name, s->name, sizeof row->name);
  row->owner = s->owner;
  memcpy(row->owner_env, lane->engine->env_id, sizeof row->owner_env);
  memcpy(s->owner_env, lane->engine->env_id, sizeof s->owner_env);
  row->cpus = s->cpus;
  row->memory_mib = s->memory_mib;
  row->disk_gib = s->disk_gib;
  snprintf(row->network, sizeof row->network, "%s", s->network == AL_NETWORK_NONE ? "none" : "open");
  return 0;
}
void
al_do_create(al_engine_t *e, al_request_t *r) {
  al_err_t err = { 0 };
  al_lane_t *lane = al_calloc(1, sizeof *lane);
  if (!lane) {
    al_err_set(&err, -ENOMEM, "out of memory");
    al_engine_fail(e, r->id, &err);
    return;
  }
  lane->engine = e;
  lane->create_id = lane->watch_id = r->id;
  lane->state = -1;
  lane->begun_ms = al_plat_mono_ms();
  lane->manifest.asked_ms = al_plat_wall_ms();
  int rc = al_lane_read_options(lane, r->params, &err);
  /* Before the home is touched: root would leave one of its own behind. */
  if (!rc && geteuid() == 0) rc = al_err_set(&err, AL_ELIMA_ROOT, "this process runs as root and limactl refuses root");
  if (!rc) rc = al_site_get(e, r->params, &lane->site, &err);
  if (!rc) rc = al_site_lima(lane->site, r->params, &lane->driver, &err);
  if (!rc && strcmp(lane->driver->lima.vm_type, "qemu")) rc = without_qemu(lane, &err);
  if (!rc) rc = al_site_keeper(lane->site, &err);
  if (!rc) rc = fill_names(lane, &err);
  if (rc) {
    snprintf(err.step, sizeof err.step, "check");
    al_engine_fail(e, r->id, &err);
    al_lane_free(lane);
    return;
  }
  lane->deadline_ms = lane->begun_ms + (uint64_t) lane->start_timeout_s * 1000;
  al_lane_timers_init(lane);
  lane->next = e->lanes;
  e->lanes = lane;
  al_lane_watch_start(lane);
  start_prelude(lane);
}
