/* SPDX-License-Identifier: Apache-2.0 */
/* The requests runs and runCheck: which run manifests are kept, and whether one is as it was written. */
#include "admin.h"
#include "admin_runs.h"
#include "mem.h"
#include "run_log.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define RUNS_MOST 10000

/* ---- one manifest, checked ---- */

static int
put_check(al_val_t *v, const char *path, const al_run_check_t *c, const char *why) {
  return al_val_set(v, "path", al_val_text(path)) | al_val_set(v, "ok", al_val_bool(why[0] == 0)) |
    al_val_set(v, "state", al_val_text(c->ended ? "ended" : "open")) |
    al_val_set(v, "count", al_val_int((int64_t) c->events)) |
    al_val_set(v, "head", c->head[0] ? al_val_text(c->head) : al_val_null()) |
    al_val_set(v, "line", c->line ? al_val_int((int64_t) c->line) : al_val_null()) |
    al_val_set(v, "why", why[0] ? al_val_text(why) : al_val_null()) |
    al_val_set(v, "interruptedBytes", al_val_int((int64_t) c->interrupted));
}

int
al_admin_check_run(const al_home_t *home, const char *name, const char *path, bool open, al_val_t **out, al_err_t *err) {
  AL_AUTO_FREE char *text = NULL;
  char own[AL_RUN_PATH_MAX], why[sizeof ((al_run_check_t *) 0)->why + 32] = "";
  al_run_check_t check;
  al_val_t *events = NULL;
  size_t len = 0;
  int rc = al_run_read(home, name, path, &text, &len, err);
  if (!rc) rc = al_run_check(text, len, &check, &events);
  if (rc) return err->code ? rc : al_err_set(err, rc, "out of memory for the run manifest");
  if (!path) al_run_path(home, name, own);
  if (check.line) snprintf(why, sizeof why, "line %llu: %s", (unsigned long long) check.line, check.why);
  else if (!check.ended && path) snprintf(why, sizeof why, "it has no end: the lane still ran, or lines were removed");
  else if (!check.ended && !open) snprintf(why, sizeof why, "the lane is over, but it has no end");
  al_val_t *v = al_val_map();
  rc = put_check(v, path ? path : own, &check, why) | al_val_set(v, "events", events);
  if (!rc) *out = v;
  else al_val_free(v);
  return rc ? al_err_set(err, rc, "out of memory for the run manifest") : 0;
}

typedef struct check_s {
  al_job_t job;
  al_engine_t *engine;
  al_site_t *site;
  uint32_t id;
  char name[AL_NAME_LEN + 1], *path;
  bool open; /* the registry has a lane of that name, which is not over */
  size_t max;
  al_val_t *value;
  al_err_t err;
} check_t;

static void
done(al_job_t *job, int status) {
  check_t *c = job->data;
  al_engine_t *e = c->engine;
  al_engine_conclude(e, c->id, c->value, c->err.code ? c->err.code : status, &c->err);
  al_free(c->path);
  al_free(c);
  e->busy--;
  al_engine_check_end(e);
}

static int
run_check(al_job_t *job) {
  check_t *c = job->data;
  return al_admin_check_run(&c->site->home, c->name, c->path, c->open, &c->value, &c->err);
}

static void
found(void *data, int status, const al_err_t *err, const al_lane_row_t *rows, size_t count) {
  check_t *c = data;
  (void) err; /* what the registry does not know is over */
  c->open = status == 0 && count > 0 && rows->state != AL_LANE_CLOSED;
  al_worker_post(c->site->store, &c->job, run_check, done);
}

/* NULL when the request has been answered with an error. */
static check_t *
check_new(al_engine_t *e, al_request_t *r) {
  al_err_t err = { 0 };
  check_t *c = al_calloc(1, sizeof *c);
  int rc = c ? al_site_get(e, r->params, &c->site, &err) : al_err_set(&err, -ENOMEM, "out of memory");
  if (rc) {
    al_free(c);
    al_engine_fail(e, r->id, &err);
    return NULL;
  }
  c->engine = e;
  c->id = r->id;
  c->job.data = c;
  e->busy++;
  return c;
}

static int
read_check(check_t *c, const al_val_t *params) {
  const char *name, *path;
  int rc = al_val_get_text(params, "lane", "", &name, &c->err);
  if (!rc) rc = al_val_get_text(params, "path", NULL, &path, &c->err);
  if (rc) return rc;
  if (path && path[0] != '/') return al_err_set(&c->err, AL_EBAD_OPTION, "path must be absolute");
  if (!path && !al_name_valid(name))
    return al_err_set(&c->err, AL_EBAD_NAME, "\"%.40s\" is not the name of a lane", name);
  if (path && !(c->path = al_strdup(path))) return al_err_set(&c->err, -ENOMEM, "out of memory");
  if (!path) memcpy(c->name, name, sizeof c->name);
  return 0;
}

void
al_do_run_check(al_engine_t *e, al_request_t *r) {
  check_t *c = check_new(e, r);
  if (!c) return;
  if (read_check(c, r->params)) done(&c->job, c->err.code);
  else if (c->path) al_worker_post(c->site->store, &c->job, run_check, done);
  else al_registry_find(&c->site->registry, c->name, found, c);
}

/* ---- those that are kept ---- */

static int
run_list(al_job_t *job) {
  check_t *c = job->data;
  return al_run_list(&c->site->home, c->max, &c->value, &c->err);
}

void
al_do_runs(al_engine_t *e, al_request_t *r) {
  int64_t max = 0;
  check_t *c = check_new(e, r);
  if (!c) return;
  int rc = al_val_get_int(r->params, "max", 1000, 1, RUNS_MOST, &max, &c->err);
  c->max = (size_t) max;
  if (rc) done(&c->job, rc);
  else al_worker_post(c->site->store, &c->job, run_list, done);
}
