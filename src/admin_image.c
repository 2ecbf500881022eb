/* SPDX-License-Identifier: Apache-2.0 */
/* Requests about the store of images, but for those that remove: one job each, with progress where it may take long. */
#include "engine.h"
#include "mem.h"
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define TELL_MS 200

typedef struct errand_s errand_t;
struct errand_s {
  al_job_t job;
  al_engine_t *engine;
  uint32_t id;
  al_home_t home;
  int (*run)(errand_t *t);
  char *from, *image, *to; /* of the request; NULL: not said */
  al_image_trust_t *trust;
  bool progress;
  uv_timer_t timer;        /* with progress: looks at what the worker has counted, and whether it is to stop */
  atomic_uint_fast64_t done, total;
  atomic_bool stop;
  uint64_t told;
  al_val_t *value;
  al_err_t err;
};

static void
errand_free(errand_t *t) {
  al_free(t->from);
  al_free(t->image);
  al_free(t->to);
  al_free(t->trust);
  al_free(t);
}

static void
errand_ended(errand_t *t) {
  al_engine_t *e = t->engine;
  errand_free(t);
  e->busy--;
  al_engine_check_end(e);
}

static void
timer_closed(uv_handle_t *h) {
  errand_ended(h->data);
}

static void
on_done(al_job_t *job, int status) {
  errand_t *t = job->data;
  al_engine_conclude(t->engine, t->id, t->value, status, &t->err);
  if (t->progress) uv_close((uv_handle_t *) &t->timer, timer_closed);
  else errand_ended(t);
}

static int
run(al_job_t *job) {
  errand_t *t = job->data;
  return t->run(t);
}

/* Worker thread. */
static int
count(void *data, uint64_t done, uint64_t total) {
  errand_t *t = data;
  atomic_store(&t->total, total);
  atomic_store(&t->done, done);
  return atomic_load(&t->stop);
}

static void
tell(uv_timer_t *timer) {
  errand_t *t = timer->data;
  uint64_t done = atomic_load(&t->done), total = atomic_load(&t->total);
  if (t->engine->refuse) atomic_store(&t->stop, true); /* the engine is being closed: what is half done goes */
  if (done == t->told) return;
  t->told = done;
  al_val_t *v = al_val_map();
  int rc = al_val_set(v, "bytes", al_val_int((int64_t) done)) | al_val_set(v, "files", al_val_int(0)) |
    al_val_set(v, "totalBytes", al_val_int((int64_t) total));
  /* Without memory it is left out: the next one says more. */
  if (rc) al_val_free(v);
  else (void) al_engine_emit(t->engine, AL_EVENT_PROGRESS, t->id, 0, v);
}

static int
read_params(errand_t *t, const al_val_t *p, al_err_t *err) {
  int rc = al_val_copy_text(p, "from", &t->from, err);
  if (!rc) rc = al_val_copy_text(p, "image", &t->image, err);
  if (!rc) rc = al_val_copy_text(p, "to", &t->to, err);
  if (!rc) rc = al_val_get_bool(p, "progress", false, &t->progress, err);
  if (!rc) rc = al_image_trust_read(al_val_get(p, "imageDigests"), &t->trust, err);
  if (!rc && ((t->from && t->from[0] != '/') || (t->to && t->to[0] != '/')))
    rc = al_err_set(err, AL_EBAD_OPTION, "from and to must be absolute paths");
  return rc;
}

/* Starts the job; `image` and `to` say which parameters it cannot do without. */
static void
start(al_engine_t *e, al_request_t *r, int (*work)(errand_t *t), bool image, bool to) {
  al_err_t err = { 0 };
  al_site_t *site = NULL;
  errand_t *t = al_calloc(1, sizeof *t);
  int rc = t ? read_params(t, r->params, &err) : al_err_set(&err, -ENOMEM, "out of memory");
  if (!rc && image && (!t->image || !t->image[0])) rc = al_err_set(&err, AL_EBAD_OPTION, "image must be an image's id");
  if (!rc && to && !t->to) rc = al_err_set(&err, AL_EBAD_OPTION, "to must be the absolute path of an archive");
  if (!rc) rc = al_site_get(e, r->params, &site, &err);
  if (rc) {
    if (t) errand_free(t);
    al_engine_fail(e, r->id, &err);
    return;
  }
  t->engine = e;
  t->id = r->id;
  t->home = site->home;
  t->run = work;
  t->job.data = t;
  if (t->progress) {
    (void) uv_timer_init(&e->loop, &t->timer); /* cannot fail */
    t->timer.data = t;
    uv_timer_start(&t->timer, tell, TELL_MS, TELL_MS);
  }
  e->busy++;
  al_worker_post(site->store, &t->job, run, on_done);
}

/* ---- the jobs ---- */

static int
answer_image(errand_t *t, const al_image_t *image) {
  t->value = al_val_map();
  int rc = al_val_set(t->value, "id", al_val_text(image->id)) | al_val_set(t->value, "dir", al_val_text(image->dir)) |
    al_val_set(t->value, "arch", al_val_text(image->arch)) |
    al_val_set(t->value, "manifestSha256", al_val_text(image->manifest_sha256));
  return rc ? al_err_set(&t->err, -ENOMEM, "out of memory") : 0;
}

static int
do_import(errand_t *t) {
  al_image_t image;
  int rc = t->from ? 0 : al_err_set(&t->err, AL_EBAD_OPTION, "from must be the path of an image directory or archive");
  if (!rc) rc = al_image_import_checked(&t->home, t->from, t->trust, count, t, &image, &t->err);
  return rc ? rc : answer_image(t, &image);
}

static int
do_list(errand_t *t) {
  return al_image_list(&t->home, &t->value, &t->err);
}

static int
do_inspect(errand_t *t) {
  return al_image_inspect(&t->home, t->image, &t->value, &t->err);
}

static int
do_signed(errand_t *t) {
  return al_image_signed(&t->home, t->from, &t->value, &t->err);
}

static int
do_verify(errand_t *t) {
  char id[AL_IMAGE_ID_MAX];
  al_image_t image;
  int rc = al_image_id(&t->home, t->image, id, &t->err);
  if (!rc) rc = al_image_check(&t->home, id, t->trust, count, t, &image, &t->err);
  return rc ? rc : answer_image(t, &image);
}

static int
do_export(errand_t *t) {
  char id[AL_IMAGE_ID_MAX];
  int rc = al_image_id(&t->home, t->image, id, &t->err);
  if (!rc) rc = al_image_export(&t->home, id, t->to, count, t, &t->err);
  if (rc) return rc;
  t->value = al_val_map();
  rc = al_val_set(t->value, "id", al_val_text(id)) | al_val_set(t->value, "to", al_val_text(t->to));
  return rc ? al_err_set(&t->err, -ENOMEM, "out of memory") : 0;
}

void
al_do_image_import(al_engine_t *e, al_request_t *r) {
  start(e, r, do_import, false, false);
}

void
al_do_image_list(al_engine_t *e, al_request_t *r) {
  start(e, r, do_list, false, false);
}

void
al_do_image_inspect(al_engine_t *e, al_request_t *r) {
  start(e, r, do_inspect, true, false);
}

void
al_do_image_signed(al_engine_t *e, al_request_t *r) {
  start(e, r, do_signed, false, false);
}

void
al_do_image_verify(al_engine_t *e, al_request_t *r) {
  start(e, r, do_verify, true, false);
}

void
al_do_image_export(al_engine_t *e, al_request_t *r) {
  start(e, r, do_export, true, true);
}
