/* SPDX-License-Identifier: Apache-2.0 */
/* The request derive: a ready lane is ended, and its disk becomes a derived image once its VM has ended by itself. */
#include "image_derive.h"
#include "lane_calls.h"
#include "lima_look.h"
#include "mem.h"
#include <stdio.h>
#include <string.h>

/* Theory of operation. The end is that of every lane: channel, transport and boot are closed, and the guest powers itself
 * off when its channel is gone. Only then, between that and the removal of the directory, there is a step more. It waits
 * until no VM of the lane runs, since a disk that somebody still writes to is no image, and hands the disk to the
 * store. Whatever comes of that, the lane is destroyed; the request is answered when everybody else is. Whoever asks has
 * had the guest write everything down before (lib/settle.ts): the host looks at no file system. */

#define END_MS 60000u /* from the end of the channel to that of the VM; an emulated guest takes a second */
#define LOOK_MS 50u

struct al_lane_derive_s {
  al_job_t job;
  uint32_t id; /* of the request */
  al_derive_key_t key;
  uint64_t end_ms;
  int runs;    /* the VM, at the last look; or -errno */
  al_image_t parent, image;
  void (*then)(al_lane_t *lane);
  bool made;
  al_err_t err;
};

static void
over(al_lane_t *lane, int status) {
  al_lane_derive_t *d = lane->derive;
  d->made = status == 0;
  if (!d->made && !d->err.code) al_err_set(&d->err, status, "the disk could not be looked at: %s", uv_strerror(status));
  d->then(lane);
}

/* ---- the image ---- */

/* The store's worker. */
static int
make_image(al_job_t *job) {
  al_lane_t *lane = job->data;
  al_lane_derive_t *d = lane->derive;
  const al_lane_spec_t *s = &lane->spec;
  const al_lima_t *l = &lane->driver->lima;
  const al_home_t *home = &lane->site->home;
  char disk[sizeof s->dir + 8];
  int hold = 0;

  snprintf(disk, sizeof disk, "%s/disk", s->dir);
  al_image_want_t want = {.image = s->image.id, .vm_type = l->vm_type, .arch = l->arch, .hold = &hold};
  int rc = al_image_find(home, &want, &d->parent, &d->err);
  if (!rc && strcmp(d->parent.manifest_sha256, s->image.manifest_sha256))
    rc = al_err_set(&d->err, AL_EDERIVE_FAILED, "image %s is not the one that the lane was started from", s->image.id);
  al_derive_t what = {.parent = &d->parent, .key = d->key, .disk = disk, .vm_type = l->vm_type};
  if (!rc) rc = al_image_derive(home, &what, NULL, NULL, &d->image, &d->err);
  al_image_release(&hold);
  return rc;
}

static void
made(al_job_t *job, int status) {
  over(job->data, status);
}

/* ---- the end of the VM ---- */

static int
look(al_job_t *job) {
  al_lane_t *lane = job->data;
  return lane->derive->runs = al_lima_vm_runs(&lane->site->home, lane->spec.name);
}

static void
look_again(uv_timer_t *t);

static void
looked(al_job_t *job, int status) {
  al_lane_t *lane = job->data;
  al_lane_derive_t *d = lane->derive;
  if (status == 0) {
    al_worker_post(lane->site->store, &d->job, make_image, made);
  } else if (status < 0 && !al_err_exhausted(status)) {
    over(lane, al_err_set(&d->err, status, "the processes of this user could not be listed: %s", uv_strerror(status)));
  } else if (al_plat_mono_ms() < d->end_ms) {
    uv_timer_start(&lane->retry_timer, look_again, LOOK_MS, 0);
  } else {
    over(lane, al_err_set(&d->err, AL_EDERIVE_FAILED,
      "the VM did not power itself off within %u s, so its disk was not taken", END_MS / 1000));
  }
}

static void
look_again(uv_timer_t *t) {
  al_lane_t *lane = t->data;
  al_worker_post(lane->site->io, &lane->derive->job, look, looked);
}

bool
al_lane_derive(al_lane_t *lane, void (*then)(al_lane_t *lane)) {
  al_lane_derive_t *d = lane->derive;
  if (!d) return false;
  d->then = then;
  d->job.data = lane;
  d->end_ms = al_plat_mono_ms() + END_MS;
  al_worker_post(lane->site->io, &d->job, look, looked);
  return true;
}

void
al_lane_derive_answer(al_lane_t *lane) {
  al_lane_derive_t *d = lane->derive;
  if (!d) return;
  if (d->made) {
    al_val_t *v = al_val_map();
    int rc = al_val_set(v, "image", al_val_text(d->image.id))
      | al_val_set(v, "manifestSha256", al_val_text(d->image.manifest_sha256));
    al_engine_answer(lane->engine, d->id, "derive", v, rc);
  } else {
    al_op_fail(lane->engine, d->id, &d->err, lane->spec.name);
  }
  al_lane_derive_free(lane);
}

void
al_lane_derive_free(al_lane_t *lane) {
  al_free(lane->derive);
  lane->derive = NULL;
}

/* ---- the request ---- */

static int
read_digest(const al_val_t *params, const char *key, char out[65], al_err_t *err) {
  const char *text;
  int rc = al_val_get_text(params, key, "", &text, err);
  if (rc) return rc;
  if (strlen(text) != 64 || strspn(text, "0123456789abcdef") != 64)
    return al_err_set(err, AL_EBAD_OPTION, "%s must be a digest of 64 hex digits", key);
  memcpy(out, text, 65);
  return 0;
}

int
al_derive_key_read(const al_val_t *params, al_derive_key_t *key, al_err_t *err) {
  int rc = read_digest(params, "project", key->project, err);
  return rc ? rc : read_digest(params, "inputsKey", key->inputs_key, err);
}

void
al_do_derive(al_engine_t *e, al_request_t *r) {
  al_err_t err = { 0 }, why = { 0 };
  al_lane_t *lane = al_op_lane(e, r);
  if (!lane) return;
  al_lane_derive_t *d = al_calloc(1, sizeof *d);
  int rc = d ? al_derive_key_read(r->params, &d->key, &err) : al_err_set(&err, -ENOMEM, "out of memory");
  if (!rc && lane->attached)
    rc = al_err_set(&err, AL_EBAD_OPTION, "derive: only the owner of a lane can make an image of its disk");
  if (rc) {
    al_free(d);
    al_op_fail(e, r->id, &err, lane->spec.name);
    return;
  }
  d->id = r->id;
  lane->derive = d;
  al_err_set(&why, AL_ELANE_CLOSED, "the lane was closed: its disk becomes an image");
  al_lane_event(lane, AL_LANE_ON_CLOSE, &why, "its disk becomes an image");
}
