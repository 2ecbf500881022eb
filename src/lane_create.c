/* SPDX-License-Identifier: Apache-2.0 */
/* The way to a ready lane: options, checks, admission, build, verify, boot, connect, configure. */
#include "lane_ops.h"
#include "mem.h"
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define RESERVE_MS 45000 /* a place is taken only while a boot can still be expected to finish in time */
#define ADMIT_POLL_MS 250
#define TCG_SILENCE_MS 60000

static void
admit(al_lane_t *lane);
static void
on_life(uv_timer_t *t);

/* ---- options ---- */

static bool
env_name_valid(const char *s) {
  if (!(*s == '_' || (*s >= 'A' && *s <= 'Z') || (*s >= 'a' && *s <= 'z'))) return false;
  for (; *s; s++)
    if (!(*s == '_' || (*s >= 'A' && *s <= 'Z') || (*s >= 'a' && *s <= 'z') || (*s >= '0' && *s <= '9'))) return false;
  return true;
}

char **
al_env_list(const al_val_t *map, al_err_t *err) {
  size_t n = map && map->kind == AL_MAP ? map->len : 0;
  char **list = al_calloc(n + 2, sizeof *list);
  if (!list) {
    al_err_set(err, -ENOMEM, "out of memory");
    return NULL;
  }
  for (size_t i = 0; i < n; i++) {
    const al_val_t *v = map->items[i];
    const char *name = map->keys[i];
    if (!env_name_valid(name) || v->kind != AL_TEXT || strlen(v->text) != v->len) {
      al_err_set(err, AL_EBAD_OPTION, "env: \"%s\" must be a name of letters, digits and _ with a text value without NUL", name);
    } else if (!(list[i] = al_asprintf("%s=%s", name, v->text))) {
      al_err_set(err, -ENOMEM, "out of memory");
    }
    if (list[i]) continue;
    for (size_t k = 0; k < i; k++) al_free(list[k]);
    al_free(list);
    return NULL;
  }
  return list;
}

static int
read_enum(const al_val_t *p, const char *key, const char *a, const char *b, bool *second, al_err_t *err) {
  const char *text;
  int rc = al_val_get_text(p, key, a, &text, err);
  if (rc) return rc;
  *second = strcmp(text, b) == 0;
  if (!*second && strcmp(text, a)) return al_err_set(err, AL_EBAD_OPTION, "%s must be \"%s\" or \"%s\"", key, a, b);
  return 0;
}

static int
read_numbers(al_lane_t *lane, const al_val_t *p, al_err_t *err) {
  int64_t cpus, disk, minutes, start, sync, vms, out, buffered;
  double memory;
  int rc;
  if (
    (rc = al_val_get_int(p, "cpus", 4, 1, 64, &cpus, err)) || (rc = al_val_get_double(p, "memoryGiB", 8, 1, 256, &memory, err))
    || (rc = al_val_get_int(p, "diskGiB", 30, 1, 2048, &disk, err))
    || (rc = al_val_get_int(p, "timeoutMinutes", 60, 1, 1440, &minutes, err))
    || (rc = al_val_get_int(p, "startTimeoutSeconds", 110, 5, 600, &start, err))
    || (rc = al_val_get_int(p, "syncInTimeoutSeconds", 0, 0, 3600, &sync, err))
    || (rc = al_val_get_int(p, "maxConcurrentVms", 2, 1, 32, &vms, err))
    || (rc = al_val_get_int(p, "maxCopyOutBytes", AL_COPY_OUT_MAX, 1, 4ll << 30, &out, err))
    || (rc = al_val_get_int(p, "maxBufferedBytes", AL_BUFFERED_MAX, AL_BUFFERED_LEAST, AL_BUFFERED_MOST, &buffered, err))
  )
    return rc;
  lane->spec.cpus = (int) cpus;
  lane->spec.memory_mib = (int64_t) (memory * 1024);
  lane->spec.disk_gib = disk;
  lane->timeout_minutes = (int) minutes;
  lane->start_timeout_s = (int) start;
  lane->sync_in_s = (int) sync;
  lane->max_vms = (int) vms;
  lane->max_copy_out = (uint64_t) out;
  lane->budget.max = (uint64_t) buffered;
  return 0;
}

static int
read_options(al_lane_t *lane, const al_val_t *p, al_err_t *err) {
  const char *image, *worktree;
  bool none, tcg;
  int rc;
  if (
    (rc = read_numbers(lane, p, err)) || (rc = al_val_get_bool(p, "guestSudo", true, &lane->sudo, err))
    || (rc = read_enum(p, "network", "open", "none", &none, err)) || (rc = read_enum(p, "accelerator", "auto", "tcg", &tcg, err))
    || (rc = al_val_get_text(p, "image", NULL, &image, err))
    || (rc = al_val_get_text(p, "worktreePath", "/home/agent/workspace", &worktree, err))
    || (rc = al_guest_path_check(worktree, strlen(worktree), err))
  )
    return rc;
  if (strlen(worktree) >= sizeof lane->worktree) return al_err_set(err, AL_EBAD_OPTION, "worktreePath is too long");
  if (image && strlen(image) >= sizeof lane->image_want) return al_err_set(err, AL_EBAD_OPTION, "image is too long");
  snprintf(lane->worktree, sizeof lane->worktree, "%s", worktree);
  snprintf(lane->image_want, sizeof lane->image_want, "%s", image ? image : "");
  lane->spec.network = none ? AL_NETWORK_NONE : AL_NETWORK_OPEN;
  lane->accel_auto = !tcg;
  lane->env = al_env_list(al_val_get(p, "env"), err);
  return lane->env ? 0 : err->code;
}

static int
fill_names(al_lane_t *lane, al_err_t *err) {
  uint8_t random[8 + 32];
  al_lane_spec_t *s = &lane->spec;
  time_t now = time(NULL);
  int rc = al_plat_random(random, sizeof random);
  if (rc || (rc = al_name_make(s->name, (uint64_t) now, random))) return al_err_set(err, rc, "no random numbers to be had");
  int n = snprintf(s->dir, sizeof s->dir, "%s/%s", lane->site->home.lima, s->name);
  AL_ASSERT(n > 0 && (size_t) n < sizeof s->dir);
  for (size_t i = 0; i < 32; i++) snprintf(s->proof + 2 * i, 3, "%02x", random[8 + i]);
  s->owner = lane->engine->self;
  al_lane_row_t *row = &lane->row;
  memcpy(row->name, s->name, sizeof row->name);
  row->owner = s->owner;
  memcpy(row->owner_env, lane->engine->env_id, sizeof row->owner_env);
  row->cpus = s->cpus;
  row->memory_mib = s->memory_mib;
  row->disk_gib = s->disk_gib;
  snprintf(row->network, sizeof row->network, "%s", s->network == AL_NETWORK_NONE ? "none" : "open");
  return 0;
}

/* ---- checks before admission ---- */

static void
fail_step(al_lane_t *lane, const al_err_t *err) {
  al_err_t e = *err;
  if (lane->step && !e.step[0]) snprintf(e.step, sizeof e.step, "%s", lane->step);
  al_lane_give_up(lane, &e);
}

static void
prelude_answer(al_lane_t *lane, int status, const al_err_t *err) {
  if (status < 0 && !lane->prelude_err.code) {
    lane->prelude_err = *err;
    if (!lane->prelude_err.code) al_err_set(&lane->prelude_err, status, "a check before the start failed");
  }
  if (--lane->prelude) {
    if (lane->cause.code) al_lane_give_up(lane, &lane->cause); /* who waits may be told now */
    return;
  }
  if (lane->cause.code) al_lane_give_up(lane, &lane->cause); /* timed out or interrupted meanwhile */
  else if (lane->prelude_err.code) fail_step(lane, &lane->prelude_err);
  else admit(lane);
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
  return al_image_open(&lane->site->home, lane->image_want[0] ? lane->image_want : NULL, l->vm_type, l->arch, &lane->spec.image,
    &lane->image_job.err);
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
  al_reaper_sweep(lane->site, lane->driver, swept, lane);
}

/* ---- admission ---- */

static int64_t
left_ms(const al_lane_t *lane) {
  return (int64_t) lane->deadline_ms - (int64_t) al_plat_mono_ms();
}

static void
on_retry(uv_timer_t *t) {
  admit(t->data);
}

static void
admitted(void *data, int status, const al_err_t *err) {
  al_lane_t *lane = data;
  lane->step_busy = false;
  if (status < 0) {
    fail_step(lane, err);
    return;
  }
  if (status == 0) {
    lane->ticket = 0;
    lane->state = AL_LANE_REGISTERED;
    lane->spec.row = lane->row.id;
    on_life(&lane->life_timer);
    if (lane->cause.code) al_lane_event(lane, AL_LANE_ON_CLOSE, &lane->cause, "ended while it was admitted");
    else al_lane_event(lane, AL_LANE_ON_START, NULL, NULL);
    return;
  }
  if (lane->cause.code) {
    al_lane_give_up(lane, &lane->cause);
    return;
  }
  int64_t reserve = (int64_t) lane->start_timeout_s * 500 < RESERVE_MS ? (int64_t) lane->start_timeout_s * 500 : RESERVE_MS;
  if (left_ms(lane) < reserve) {
    al_err_t busy = { 0 };
    al_err_set(&busy, AL_EBUSY, "no place for another VM within startTimeoutSeconds (%d): maxConcurrentVms is %d and these are open: %.400s",
      lane->start_timeout_s, lane->max_vms, lane->holders[0] ? lane->holders : "earlier waiters");
    fail_step(lane, &busy);
    return;
  }
  uv_timer_start(&lane->retry_timer, on_retry, ADMIT_POLL_MS, 0);
}

static void
admit(al_lane_t *lane) {
  bool first = lane->ticket == 0;
  /* A lifetime counts from the place taken: waiting for one is nobody's life. */
  lane->life_end_boot_ms = al_plat_boot_ms() + (uint64_t) lane->timeout_minutes * 60000;
  lane->row.expires_boot_ms = (int64_t) lane->life_end_boot_ms;
  lane->row.created_s = time(NULL);
  lane->row.expires_s = lane->row.created_s + (int64_t) lane->timeout_minutes * 60;
  lane->step = "admission";
  lane->step_busy = true;
  if (first) al_lane_emit(lane, "queued", NULL);
  al_registry_admit(&lane->site->registry, &lane->row, lane->max_vms, &lane->ticket, lane->holders, sizeof lane->holders, admitted, lane);
}

/* ---- build, verify, boot ---- */

static void
step_end(al_lane_t *lane, int status, const al_err_t *err, int event) {
  lane->step_busy = false;
  if (lane->destroy_wanted) al_lane_do_destroy(lane);
  else if (status < 0) al_lane_event(lane, AL_LANE_ON_FAIL, err, NULL);
  else al_lane_event(lane, event, NULL, NULL);
}

static void
verified(void *data, int status, const al_err_t *err) {
  step_end(data, status, err, AL_LANE_ON_CREATED);
}

static void
built(void *data, int status, const al_err_t *err) {
  al_lane_t *lane = data;
  if (status < 0 || lane->destroy_wanted) {
    step_end(lane, status, err, AL_LANE_ON_CREATED);
    return;
  }
  lane->step = "verify";
  al_lima_verify(&lane->driver->lima, &lane->spec, verified, lane);
}

void
al_lane_do_create(al_lane_t *lane) {
  lane->step_busy = true;
  al_lima_build(&lane->driver->lima, &lane->spec, built, lane);
}

static void
booted(al_boot_t *b, void *data, int status, const al_err_t *err, uint16_t port) {
  al_lane_t *lane = data;
  (void) b;
  lane->ssh_port = port;
  if (status < 0) al_lane_event(lane, AL_LANE_ON_FAIL, err, NULL);
  else al_lane_event(lane, AL_LANE_ON_BANNER, NULL, NULL);
}

void
al_lane_do_boot(al_lane_t *lane) {
  int64_t left = left_ms(lane) - 500; /* its own deadline comes first: it knows what it was waiting for */
  int rc = al_lima_boot(&lane->driver->lima, &lane->spec, left > 0 ? (uint64_t) left : 1, booted, lane, &lane->boot);
  if (rc == 0) return;
  al_err_t err = { 0 };
  al_err_set(&err, rc, "limactl start could not be run");
  al_lane_event(lane, AL_LANE_ON_FAIL, &err, NULL);
}

/* ---- connect, prove, configure ---- */

static void
configured(void *data, int status, const al_err_t *err) {
  al_lane_t *lane = data;
  if (status < 0) al_lane_event(lane, AL_LANE_ON_FAIL, err, NULL);
  else al_lane_event(lane, AL_LANE_ON_PROVEN, NULL, NULL);
}

static void
on_ready(al_chan_t *c, void *data) {
  al_lane_t *lane = data;
  lane->step = "configure";
  uint32_t flags = AL_CONFIG_POWEROFF | (lane->sudo ? AL_CONFIG_SUDO : 0u);
  int rc = al_chan_config(c, lane->agent_user, lane->worktree, flags, configured, lane);
  if (rc == 0) return;
  al_err_t err = { 0 };
  al_err_set(&err, rc, "the guest could not be configured");
  al_lane_event(lane, AL_LANE_ON_FAIL, &err, NULL);
}

static void
on_chan_closed(al_chan_t *c, void *data, const al_err_t *err) {
  al_lane_t *lane = data;
  (void) c;
  al_lane_chan_ended(lane);
  if (!err->code || lane->destroying) return;
  al_err_t why = *err;
  const char *text = lane->transport ? al_transport_stderr(lane->transport) : NULL;
  if (why.code == AL_ECHANNEL_CLOSED && text && *text) {
    size_t n = strlen(why.msg);
    snprintf(why.msg + n, sizeof why.msg - n, " (%.200s)", text);
  }
  al_lane_event(lane, lane->state == AL_LANE_READY ? AL_LANE_ON_LOST : AL_LANE_ON_FAIL, &why, NULL);
}

static void
transport_open(al_transport_t *t, void *data, uv_stream_t *in, uv_stream_t *out) {
  al_lane_t *lane = data;
  (void) t;
  static const al_chan_cbs_t cbs = { on_ready, on_chan_closed };
  /* An emulated guest on a busy machine may well be silent for longer than the channel's usual 15 s without being
   * dead. */
  int64_t left = left_ms(lane);
  al_chan_opts_t opts = {
    .in = in, .out = out, .handshake_ms = left > 0 ? (uint64_t) left : 1, .silence_ms = lane->spec.accel == AL_ACCEL_TCG ? TCG_SILENCE_MS : 0
  };
  for (size_t i = 0; i < 32; i++) {
    unsigned byte;
    sscanf(lane->spec.proof + 2 * i, "%2x", &byte);
    opts.secret[i] = (uint8_t) byte;
  }
  lane->step = "prove";
  int rc = al_chan_open(&lane->engine->loop, &opts, &cbs, lane, &lane->chan);
  if (rc == 0) return;
  al_err_t err = { 0 };
  al_err_set(&err, rc, "the channel could not be opened");
  al_lane_event(lane, AL_LANE_ON_FAIL, &err, NULL);
}

static void
transport_failed(al_transport_t *t, void *data, const al_err_t *err) {
  (void) t;
  al_lane_event(data, AL_LANE_ON_FAIL, err, NULL);
}

void
al_lane_do_connect(al_lane_t *lane) {
  static const al_transport_cbs_t cbs = { transport_open, transport_failed };
  int64_t left = left_ms(lane);
  int rc = al_transport_shell(&lane->driver->lima, &lane->spec, left > 0 ? (uint64_t) left : 1, &cbs, lane, &lane->transport);
  if (rc == 0) return;
  al_err_t err = { 0 };
  al_err_set(&err, rc, "limactl shell could not be run");
  al_lane_event(lane, AL_LANE_ON_FAIL, &err, NULL);
}

/* ---- time ---- */

static void
on_start_timeout(uv_timer_t *t) {
  al_lane_t *lane = t->data;
  al_err_t err = { 0 };
  al_err_set(&err, AL_ESTART_TIMEOUT, "the lane was not ready within startTimeoutSeconds (%d); it was in step %s", lane->start_timeout_s,
    lane->step ? lane->step : "check");
  if (lane->step) snprintf(err.step, sizeof err.step, "%s", lane->step);
  if (lane->state >= 0) al_lane_event(lane, AL_LANE_ON_FAIL, &err, NULL);
  else al_lane_give_up(lane, &err);
}

static void
on_life(uv_timer_t *t) {
  al_lane_t *lane = t->data;
  uint64_t now = al_plat_boot_ms();
  if (now >= lane->life_end_boot_ms) {
    al_err_t err = { 0 };
    al_err_set(&err, AL_ELANE_EXPIRED, "the lane's lifetime of %d minutes is over", lane->timeout_minutes);
    al_lane_event(lane, AL_LANE_ON_EXPIRE, &err, "lifetime over");
    return;
  }
  /* libuv's clock stands still while the host sleeps; boot time does not. So look often, and near the end exactly. */
  uint64_t left = lane->life_end_boot_ms - now;
  uv_timer_start(t, on_life, left < 2000 ? left : 2000, 0);
}

static void
on_sync_timeout(uv_timer_t *t) {
  al_lane_t *lane = t->data;
  al_err_t err = { 0 };
  al_err_set(&err, AL_ELANE_CLOSED,
    "the repository was not copied in within syncInTimeoutSeconds (%d), so the lane was taken for lost and closed", lane->sync_in_s);
  al_lane_event(lane, AL_LANE_ON_CLOSE, &err, "sync-in never succeeded");
}

void
al_lane_watch_sync_in(al_lane_t *lane) {
  if (lane->sync_in_s) uv_timer_start(&lane->sync_timer, on_sync_timeout, (uint64_t) lane->sync_in_s * 1000, 0);
}

/* ---- the request ---- */

static void
init_timers(al_lane_t *lane) {
  uv_timer_t *timers[] = { &lane->start_timer, &lane->life_timer, &lane->sync_timer, &lane->retry_timer };
  for (size_t i = 0; i < sizeof timers / sizeof *timers; i++) {
    uv_timer_init(&lane->engine->loop, timers[i]);
    timers[i]->data = lane;
    lane->timers++;
  }
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
  int rc = read_options(lane, r->params, &err);
  /* Before the home is touched: root would leave one of its own behind. */
  if (!rc && geteuid() == 0) rc = al_err_set(&err, AL_ELIMA_ROOT, "this process runs as root and limactl refuses root");
  if (!rc) rc = al_site_get(e, r->params, &lane->site, &err);
  if (!rc) rc = al_site_lima(lane->site, r->params, &lane->driver, &err);
  if (!rc && lane->spec.network == AL_NETWORK_NONE && strcmp(lane->driver->lima.vm_type, "qemu"))
    rc = al_err_set(&err, AL_ENETWORK_UNENFORCEABLE, "network: \"none\" cannot be enforced with vmType %s", lane->driver->lima.vm_type);
  if (!rc) rc = fill_names(lane, &err);
  if (rc) {
    snprintf(err.step, sizeof err.step, "check");
    al_engine_fail(e, r->id, &err);
    al_lane_free(lane);
    return;
  }
  lane->deadline_ms = lane->begun_ms + (uint64_t) lane->start_timeout_s * 1000;
  init_timers(lane);
  lane->next = e->lanes;
  e->lanes = lane;
  uv_timer_start(&lane->start_timer, on_start_timeout, (uint64_t) lane->start_timeout_s * 1000, 0);
  start_prelude(lane);
}
