/* SPDX-License-Identifier: Apache-2.0 */
/* Requests about derived images: which image a project's lanes start from, and who makes it when there is none. */
#include "engine.h"
#include "image_derive.h"
#include "lane_life.h"
#include "mem.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Theory of operation. One process at a time makes the image of a key; the others ask again until it is there, or until
 * it is their turn because that one has failed. The turn is a lock of the store's, which a process that dies gives back;
 * while it is kept it is listed in the engine under the id of the request that took it. */

struct al_turn_s {
  uint32_t id;
  int claim; /* of al_image_claim */
  al_turn_t *next;
};

typedef struct find_s {
  al_job_t job;
  al_engine_t *engine;
  uint32_t id;
  al_home_t home;
  char vm_type[8], arch[16];
  char *want;
  al_image_trust_t *trust;
  al_derive_key_t key;
  bool claim;
  al_turn_t *turn; /* allocated with the request; claim 0: it was not taken */
  al_image_t parent;
  char image[AL_IMAGE_ID_MAX]; /* "": there is none */
  al_err_t err;
} find_t;

static void
turn_free(al_turn_t *turn) {
  if (turn) al_image_release(&turn->claim);
  al_free(turn);
}

void
al_turns_free(al_engine_t *e) {
  while (e->turns) {
    al_turn_t *turn = e->turns;
    e->turns = turn->next;
    turn_free(turn);
  }
}

static void
find_free(find_t *f) {
  turn_free(f->turn);
  al_free(f->trust);
  al_free(f->want);
  al_free(f);
}

/* 0 with f->image, or -ENOENT. */
static int
find_derived(find_t *f) {
  int rc = al_image_derived(&f->home, &f->key, f->image, &f->err);
  if (rc) f->image[0] = 0;
  return rc;
}

static int
find(al_job_t *job) {
  find_t *f = job->data;
  al_image_want_t want = {.image = f->want, .vm_type = f->vm_type, .arch = f->arch, .trust = f->trust};

  int rc = al_image_find(&f->home, &want, &f->parent, &f->err);
  if (rc) return rc;
  if (f->parent.parents || f->parent.untrusted_setup)
    return al_err_set(&f->err, AL_EBAD_OPTION, "image %s is a project image already: it is one project's only",
      f->parent.id);
  memcpy(f->key.parent_sha256, f->parent.manifest_sha256, sizeof f->key.parent_sha256);
  rc = find_derived(f);
  if (rc != -ENOENT || !f->claim) return rc == -ENOENT ? 0 : rc;
  rc = al_image_claim(&f->home, &f->key, &f->turn->claim, &f->err);
  if (rc) return rc == -EAGAIN ? 0 : rc;
  rc = find_derived(f); /* who had the turn before may have made it a moment ago */
  if (rc == 0) al_image_release(&f->turn->claim);
  return rc == -ENOENT ? 0 : rc;
}

static void
answer(find_t *f) {
  al_engine_t *e = f->engine;
  bool claimed = f->turn->claim != 0;
  al_val_t *v = al_val_map();
  int rc = al_val_set(v, "parent", al_val_text(f->parent.id))
    | al_val_set(v, "parentSha256", al_val_text(f->parent.manifest_sha256))
    | al_val_set(v, "claimed", al_val_bool(claimed));
  if (f->image[0]) rc |= al_val_set(v, "image", al_val_text(f->image));
  if (claimed && v && !rc) { /* whoever does not hear of it must not have it */
    f->turn->id = f->id;
    f->turn->next = e->turns;
    e->turns = f->turn;
    f->turn = NULL;
  }
  al_engine_answer(e, f->id, "imageDerived", v, rc);
}

static void
found(al_job_t *job, int status) {
  find_t *f = job->data;
  al_engine_t *e = f->engine;
  if (status < 0) {
    if (!f->err.code) al_err_set(&f->err, status, "the store could not be searched: %s", uv_strerror(status));
    al_engine_fail(e, f->id, &f->err);
  } else {
    answer(f);
  }
  find_free(f);
  e->busy--;
  al_engine_check_end(e);
}

static int
read_find(find_t *f, const al_val_t *p, al_err_t *err) {
  const char *want;
  int rc = al_val_get_text(p, "image", NULL, &want, err);
  if (!rc && want && !(f->want = al_strdup(want))) rc = al_err_set(err, -ENOMEM, "out of memory");
  if (!rc) rc = al_val_get_bool(p, "claim", false, &f->claim, err);
  if (!rc) rc = al_derive_key_read(p, &f->key, err);
  return rc ? rc : al_image_trust_read(al_val_get(p, "imageDigests"), &f->trust, err);
}

void
al_do_image_derived(al_engine_t *e, al_request_t *r) {
  al_err_t err = { 0 };
  al_site_t *site = NULL;
  al_driver_t *driver = NULL;
  find_t *f = al_calloc(1, sizeof *f);
  if (f) f->turn = al_calloc(1, sizeof *f->turn);
  int rc = f && f->turn ? read_find(f, r->params, &err) : al_err_set(&err, -ENOMEM, "out of memory");
  /* As for a lane, which comes next: root would leave a home of its own behind. */
  if (!rc && geteuid() == 0) rc = al_err_set(&err, AL_ELIMA_ROOT, "this process runs as root and limactl refuses root");
  if (!rc) rc = al_site_get(e, r->params, &site, &err);
  if (!rc) rc = al_site_lima(site, r->params, &driver, &err);
  if (rc) {
    if (f) find_free(f);
    al_engine_fail(e, r->id, &err);
    return;
  }
  f->engine = e;
  f->id = r->id;
  f->home = site->home;
  memcpy(f->vm_type, driver->lima.vm_type, sizeof f->vm_type);
  memcpy(f->arch, driver->lima.arch, sizeof f->arch);
  f->job.data = f;
  e->busy++;
  al_worker_post(site->store, &f->job, find, found);
}

void
al_do_image_unclaim(al_engine_t *e, al_request_t *r) {
  al_err_t err = { 0 };
  int64_t id;
  if (al_val_get_int(r->params, "claim", 0, 1, UINT32_MAX, &id, &err)) {
    al_engine_fail(e, r->id, &err);
    return;
  }
  for (al_turn_t **at = &e->turns; *at; at = &(*at)->next) {
    al_turn_t *turn = *at;
    if (turn->id != (uint32_t) id) continue;
    *at = turn->next;
    turn_free(turn);
    break;
  }
  al_engine_done(e, r->id, NULL);
}
