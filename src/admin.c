/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that concern no lane: doctor, the home, the table of errors. */
#include "doctor.h"
#include "engine.h"
#include "mem.h"
#include <stdio.h>
#include <string.h>

/* ---- work on a worker thread that ends in one value (not called a task: Mach has a task_t) ---- */

typedef struct errand_s {
  al_job_t job;
  al_engine_t *engine;
  uint32_t id;
  al_worker_t *own; /* doctor has no site, since a bad home is one of its findings */
  al_home_t home;
  char *text[3];    /* copies of text parameters */
  bool flag;
  al_val_t *value;
  al_err_t err;
} errand_t;

static void
errand_free(errand_t *t) {
  for (size_t i = 0; i < 3; i++) al_free(t->text[i]);
  al_free(t);
}

static void
errand_ended(void *data) {
  errand_t *t = data;
  al_engine_t *e = t->engine;
  errand_free(t);
  e->busy--;
  al_engine_check_end(e);
}

static void
errand_done(al_job_t *job, int status) {
  errand_t *t = job->data;
  al_engine_conclude(t->engine, t->id, t->value, status, &t->err);
  if (t->own) al_worker_close(t->own, errand_ended, t);
  else errand_ended(t);
}

/* An errand on the site's worker, or (site NULL) on one of its own. NULL when the request has been answered with an
 * error. */
static errand_t *
errand_new(al_engine_t *e, al_request_t *r, const char *const keys[3], int rc, al_err_t *err) {
  errand_t *t = rc ? NULL : al_calloc(1, sizeof *t);
  if (!rc && !t) rc = al_err_set(err, -ENOMEM, "out of memory");
  for (size_t i = 0; i < 3 && !rc; i++)
    if (keys[i]) rc = al_val_copy_text(r->params, keys[i], &t->text[i], err);
  if (rc) {
    if (t) errand_free(t);
    al_engine_fail(e, r->id, err);
    return NULL;
  }
  t->engine = e;
  t->id = r->id;
  t->job.data = t;
  e->busy++;
  return t;
}

static int
run_doctor(al_job_t *job) {
  errand_t *t = job->data;
  al_doctor_opts_t opts = {
    .home = t->text[0], .limactl = t->text[1], .image = t->text[2], .allow_unknown_lima = t->flag};
  return al_doctor_run(&opts, &t->value, &t->err);
}

void
al_do_doctor(al_engine_t *e, al_request_t *r) {
  static const char *const keys[3] = { "home", "limactlPath", "image" };
  al_err_t err = { 0 };
  bool unknown;
  int rc = al_val_get_bool(r->params, "allowUnknownLima", false, &unknown, &err);
  errand_t *t = errand_new(e, r, keys, rc, &err);
  if (!t) return;
  t->flag = unknown;
  if ((rc = al_worker_open(&e->loop, &t->own))) {
    al_err_set(&err, rc, "a worker thread could not be started: %s", uv_strerror(rc));
    al_engine_fail(e, r->id, &err);
    t->own = NULL;
    errand_ended(t);
    return;
  }
  al_worker_post(t->own, &t->job, run_doctor, errand_done);
}

/* ---- small ones ---- */

void
al_do_home(al_engine_t *e, al_request_t *r) {
  al_err_t err = { 0 };
  al_home_t home;
  const char *path;
  int rc = al_val_get_text(r->params, "home", NULL, &path, &err);
  if (rc || (rc = al_home_open(path, &home, &err))) {
    al_engine_fail(e, r->id, &err);
    return;
  }
  al_val_t *v = al_val_map();
  rc = al_val_set(v, "home", al_val_text(home.root));
  al_engine_answer(e, r->id, "home", v, rc);
}

void
al_do_errors(al_engine_t *e, al_request_t *r) {
  static const struct {
    const char *name, *meaning, *cure;
    int number;
  } table[] = {
#define ROW(name, number, meaning, cure) { #name, meaning, cure, number },
    AL_ERR_MAP(ROW)
#undef ROW
  };
  al_val_t *list = al_val_list();
  int rc = 0;
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    al_val_t *v = al_val_map();
    rc |= al_val_set(v, "code", al_val_text(table[i].name)) | al_val_set(v, "number", al_val_int(table[i].number)) |
      al_val_set(v, "meaning", al_val_text(table[i].meaning)) | al_val_set(v, "cure", al_val_text(table[i].cure)) |
      al_val_add(list, v);
  }
  al_engine_answer(e, r->id, "errors", list, rc);
}
