/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that remove images: one by its id, or all of which there is a newer one; never one that a lane needs. */
#include "engine.h"
#include "mem.h"
#include <stdio.h>
#include <string.h>

/* Theory of operation. Lost rows are made again first, from the records in the lanes' directories. Then, for each
 * image: lock it (whoever makes a lane of it holds it until the lane's row is there), look at the open rows, remove it. */

typedef struct removal_s {
  al_job_t job;
  al_engine_t *engine;
  al_site_t *site;
  uint32_t id;
  bool prune, dry;
  char image[AL_IMAGE_ID_MAX]; /* the one that is being looked at */
  int hold;
  al_val_t *list; /* of {id, …}: what is to go */
  size_t at, leftovers;
  al_val_t *removed, *kept;
  al_err_t err;
} removal_t;

static void
look_at(removal_t *x);

static void
end(removal_t *x, int status) {
  al_engine_t *e = x->engine;
  al_image_release(&x->hold);
  al_val_free(x->list);
  if (status < 0) {
    if (!x->err.code) al_err_set(&x->err, status, "the operation did not run to its end");
    al_val_free(x->removed);
    al_val_free(x->kept);
    al_engine_fail(e, x->id, &x->err);
  } else {
    al_val_t *v = al_val_map();
    int rc = al_val_set(v, "removed", x->removed) | al_val_set(v, "kept", x->kept) |
      al_val_set(v, "leftovers", al_val_int((int64_t) x->leftovers)) | al_val_set(v, "dryRun", al_val_bool(x->dry));
    al_engine_answer(e, x->id, "image", v, rc);
  }
  al_free(x);
  e->busy--;
  al_engine_check_end(e);
}

/* On to the next image; this one went with `status`. Who asked for one image hears why it stays. */
static void
settle(removal_t *x, int status) {
  const al_val_t *row = x->list->items[x->at++], *bytes = al_val_get(row, "bytes"), *why = al_val_get(row, "reason");
  al_image_release(&x->hold);
  if (status < 0 && (!x->prune || status == -ENOMEM || status == UV_ECANCELED)) {
    end(x, status);
    return;
  }
  al_val_t *v = al_val_map();
  int rc = al_val_set(v, "id", al_val_text(x->image));
  if (bytes) rc |= al_val_set(v, "bytes", al_val_int(bytes->i));
  if (status < 0) rc |= al_val_set(v, "reason", al_val_text(x->err.msg));
  else if (why) rc |= al_val_set(v, "reason", al_val_text(why->text));
  if (rc) al_val_free(v);
  else rc = al_val_add(status < 0 ? x->kept : x->removed, v);
  memset(&x->err, 0, sizeof x->err);
  if (rc) end(x, al_err_set(&x->err, -ENOMEM, "out of memory"));
  else look_at(x);
}

static int
remove_it(al_job_t *job) {
  removal_t *x = job->data;
  if (x->dry) return al_image_removable(&x->site->home, x->image, x->removed, &x->err);
  return al_image_remove(&x->site->home, x->image, &x->hold, &x->err);
}

static void
removed_it(al_job_t *job, int status) {
  settle(job->data, status);
}

static void
listed(void *data, int status, const al_err_t *err, const al_lane_row_t *rows, size_t count) {
  removal_t *x = data;
  if (status < 0) {
    x->err = *err;
    end(x, status); /* who cannot see the lanes removes nothing */
    return;
  }
  for (size_t i = 0; i < count; i++) {
    if (strcmp(rows[i].image, x->image)) continue;
    settle(x, al_err_set(&x->err, AL_EIMAGE_IN_USE, "Image %s is in use by lane %s.", x->image, rows[i].name));
    return;
  }
  al_worker_post(x->site->store, &x->job, remove_it, removed_it);
}

static int
lock_it(al_job_t *job) {
  removal_t *x = job->data;
  return al_image_lock(&x->site->home, x->image, &x->hold, &x->err);
}

static void
locked(al_job_t *job, int status) {
  removal_t *x = job->data;
  if (status < 0) settle(x, status);
  else al_registry_list(&x->site->registry, false, listed, x);
}

static void
look_at(removal_t *x) {
  if (x->at == x->list->len) {
    end(x, 0);
    return;
  }
  snprintf(x->image, sizeof x->image, "%s", al_val_get(x->list->items[x->at], "id")->text);
  al_worker_post(x->site->store, &x->job, lock_it, locked);
}

/* ---- what is to go ---- */

static int
find_outdated(al_job_t *job) {
  removal_t *x = job->data;
  if (!x->dry) x->leftovers = al_image_sweep(&x->site->home);
  return al_image_outdated(&x->site->home, &x->list, &x->err);
}

static void
found_outdated(al_job_t *job, int status) {
  removal_t *x = job->data;
  if (status < 0) end(x, status);
  else look_at(x);
}

static void
adopted(void *data, int status, const al_err_t *err) {
  removal_t *x = data;
  if (status < 0) {
    x->err = *err;
    end(x, status);
  } else if (x->prune) {
    al_worker_post(x->site->store, &x->job, find_outdated, found_outdated);
  } else {
    look_at(x);
  }
}

static int
one(removal_t *x, const al_val_t *params, al_err_t *err) {
  const char *id;
  int rc = al_val_get_text(params, "image", "", &id, err);
  if (rc) return rc;
  if (strlen(id) >= sizeof x->image) return al_err_set(err, AL_EIMAGE_MISSING, "There is no image %.80s.", id);
  al_val_t *v = al_val_map();
  if (al_val_set(v, "id", al_val_text(id))) {
    al_val_free(v);
    return al_err_set(err, -ENOMEM, "out of memory");
  }
  x->list = al_val_list();
  return al_val_add(x->list, v) ? al_err_set(err, -ENOMEM, "out of memory") : 0;
}

static void
start(al_engine_t *e, al_request_t *r, bool prune) {
  al_err_t err = { 0 };
  removal_t *x = al_calloc(1, sizeof *x);
  int rc = x ? 0 : -ENOMEM;
  if (!rc && (!(x->removed = al_val_list()) || !(x->kept = al_val_list()))) rc = -ENOMEM;
  if (rc) al_err_set(&err, rc, "out of memory");
  if (!rc) rc = al_val_get_bool(r->params, "dryRun", false, &x->dry, &err);
  if (!rc && !prune) rc = one(x, r->params, &err);
  if (!rc) rc = al_site_get(e, r->params, &x->site, &err);
  if (rc) {
    if (x) al_val_free(x->removed), al_val_free(x->kept), al_val_free(x->list);
    al_free(x);
    al_engine_fail(e, r->id, &err);
    return;
  }
  x->engine = e;
  x->id = r->id;
  x->prune = prune;
  x->job.data = x;
  e->busy++;
  al_registry_adopt(&x->site->registry, &x->site->home, adopted, x);
}

void
al_do_image_remove(al_engine_t *e, al_request_t *r) {
  start(e, r, false);
}

void
al_do_image_prune(al_engine_t *e, al_request_t *r) {
  start(e, r, true);
}
