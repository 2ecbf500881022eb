/* SPDX-License-Identifier: Apache-2.0 */
/* The request inspect: everything that is known of one lane, and which of its limits something holds up right now. */
#include "admin.h"
#include "admin_runs.h"
#include "enforced.h"
#include "mem.h"
#include <stdio.h>
#include <string.h>

static int
fill(al_admin_t *a, al_val_t **settings, al_val_t **argv, al_val_t **processes) {
  const al_home_t *home = &a->site->home;
  al_look_t look = {.processes = 0};
  al_val_t *held = NULL;
  snprintf(look.name, sizeof look.name, "%s", a->name);
  int rc = al_lima_look(home, &look, 1);
  if (rc && rc != -ENOMEM)
    return al_err_set(&a->err, rc, "the processes of this user could not be listed: %s", strerror(-rc));
  if (!rc) rc = al_lima_settings(home, a->name, settings, &a->err);
  if (!rc) rc = al_lima_argv(home, a->name, argv, &a->err);
  if (!rc) rc = al_lima_processes(home, a->name, processes, &a->err);
  if (rc) return rc;
  rc = al_enforced(&a->row, *argv, *settings, *processes, &held);
  rc |= al_val_set(a->value, "lane", al_admin_row(&a->row, &look)) | al_val_set(a->value, "enforced", held);
  return rc;
}

/* Kept when everything else of the lane is gone. */
static int
add_manifest(al_admin_t *a) {
  al_err_t err = {0};
  al_val_t *run = NULL;
  int rc = al_admin_check_run(&a->site->home, a->name, NULL, a->row.state != AL_LANE_CLOSED, &run, &err);
  if (rc && rc != AL_ENO_MANIFEST) a->err = err;
  return al_val_set(a->value, "manifest", run ? run : al_val_null());
}

static int
inspect(al_job_t *job) {
  al_admin_t *a = job->data;
  al_val_t *settings = NULL, *argv = NULL, *processes = NULL;
  int rc = fill(a, &settings, &argv, &processes);
  rc |= al_val_set(a->value, "processes", processes ? processes : al_val_list()) |
    al_val_set(a->value, "settings", settings ? settings : al_val_null()) |
    al_val_set(a->value, "arguments", argv ? argv : al_val_null());
  if (!rc) rc = add_manifest(a);
  if (rc && !a->err.code) al_err_set(&a->err, -ENOMEM, "inspect: out of memory for the answer");
  return a->err.code;
}

static void
inspected(al_job_t *job, int status) {
  al_admin_end(job->data, status);
}

static al_val_t *
change_value(const al_history_t *h) {
  al_val_t *v = al_val_map();
  int rc = al_val_set(v, "atMs", al_val_int(h->at_ms)) |
    al_val_set(v, "from", h->from < 0 ? al_val_null() : al_val_text(al_lane_state_name(h->from))) |
    al_val_set(v, "to", al_val_text(al_lane_state_name(h->to))) | al_val_set(v, "reason", al_val_text(h->reason));
  if (!rc) return v;
  al_val_free(v);
  return NULL;
}

static void
history_read(void *data, int status, const al_err_t *err, const al_history_t *rows, size_t count) {
  al_admin_t *a = data;
  al_val_t *list = al_val_list();
  int rc = list ? 0 : -ENOMEM;
  if (status < 0) a->err = *err;
  for (size_t i = 0; i < count && !rc; i++) rc = al_val_add(list, change_value(&rows[i]));
  a->value = al_val_map();
  rc |= al_val_set(a->value, "history", list);
  if (rc && !a->err.code) al_err_set(&a->err, -ENOMEM, "inspect: out of memory for the answer");
  if (a->err.code) al_admin_end(a, a->err.code);
  else al_worker_post(a->site->store, &a->job, inspect, inspected);
}

static void
found(al_admin_t *a) {
  al_registry_history(&a->site->registry, a->name, history_read, a);
}

void
al_do_inspect(al_engine_t *e, al_request_t *r) {
  al_admin_find(e, r, al_calloc(1, sizeof(al_admin_t)), "inspect", found);
}
