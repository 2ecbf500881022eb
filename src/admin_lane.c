/* SPDX-License-Identifier: Apache-2.0 */
/* Requests about one lane, whoever owns it: finding its row, and the request logs. */
#include "admin.h"
#include "mem.h"
#include <stdio.h>

void
al_admin_end(al_admin_t *a, int status) {
  al_engine_t *e = a->engine;
  if (!a->err.lane[0]) snprintf(a->err.lane, sizeof a->err.lane, "%s", a->name);
  al_engine_conclude(e, a->id, a->value, status, &a->err);
  al_free(a);
  e->busy--;
  al_engine_check_end(e);
}

static void
found_row(void *data, int status, const al_err_t *err, const al_lane_row_t *rows, size_t count) {
  al_admin_t *a = data;
  if (status < 0) {
    a->err = *err;
    al_admin_end(a, status);
    return;
  }
  if (count == 0) {
    al_admin_end(a, al_err_set(&a->err, AL_ENO_SUCH_LANE, "%s: the registry has no lane called %s", a->op, a->name));
    return;
  }
  a->row = *rows;
  a->found(a);
}

void
al_admin_find(al_engine_t *e, al_request_t *r, al_admin_t *a, const char *op, void (*found)(al_admin_t *a)) {
  al_err_t err = { 0 };
  const char *name = "";
  al_site_t *site = NULL;
  int rc = a ? al_val_get_text(r->params, "lane", "", &name, &err) : al_err_set(&err, -ENOMEM, "out of memory");
  if (!rc && !al_name_valid(name))
    rc = al_err_set(&err, AL_EBAD_NAME, "%s: \"%.40s\" is not the name of a lane", op, name);
  if (!rc) rc = al_site_get(e, r->params, &site, &err);
  if (rc) {
    al_free(a);
    al_engine_fail(e, r->id, &err);
    return;
  }
  a->engine = e;
  a->site = site;
  a->id = r->id;
  a->op = op;
  a->found = found;
  a->job.data = a;
  snprintf(a->name, sizeof a->name, "%s", name);
  e->busy++;
  al_registry_find(&site->registry, name, found_row, a);
}

/* ---- logs ---- */

typedef struct logs_s {
  al_admin_t a;
  size_t lines;
} logs_t;

static int
read_logs(al_job_t *job) {
  logs_t *l = job->data;
  return al_lima_logs(&l->a.site->home, l->a.name, l->lines, &l->a.value, &l->a.err);
}

static void
logs_read(al_job_t *job, int status) {
  al_admin_end(job->data, status);
}

static void
logs_found(al_admin_t *a) {
  al_worker_post(a->site->store, &a->job, read_logs, logs_read);
}

void
al_do_logs(al_engine_t *e, al_request_t *r) {
  al_err_t err = { 0 };
  int64_t lines;
  if (al_val_get_int(r->params, "lines", 200, 1, AL_LOG_LINES_MAX, &lines, &err)) {
    al_engine_fail(e, r->id, &err);
    return;
  }
  logs_t *l = al_calloc(1, sizeof *l);
  if (l) l->lines = (size_t) lines;
  al_admin_find(e, r, l ? &l->a : NULL, "logs", logs_found);
}
