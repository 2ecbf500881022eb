/* SPDX-License-Identifier: Apache-2.0 */
/* The request list: the registry's rows, each with what its lane takes of this machine now. */
#include "admin.h"
#include "mem.h"
#include <stdio.h>
#include <string.h>
#include <time.h>

static int
add_owner(al_val_t *v, const al_lane_row_t *row) {
  const char *program = strrchr(row->owner.exe, '/');
  int alive = al_plat_ident_alive(&row->owner);
  return al_val_set(v, "ownerPid", al_val_int(row->owner.pid)) |
    al_val_set(v, "ownerProgram", al_val_text(program ? program + 1 : row->owner.exe)) |
    al_val_set(v, "ownerAlive", alive < 0 ? al_val_null() : al_val_bool(alive == 1)) |
    al_val_set(v, "keeperPid", row->keeper.pid ? al_val_int(row->keeper.pid) : al_val_null()) |
    al_val_set(v, "keeperAlive", row->keeper.pid ? al_val_bool(al_plat_ident_alive(&row->keeper) == 1) : al_val_null());
}

static int
add_times(al_val_t *v, const al_lane_row_t *row) {
  char boot[AL_BOOT_ID_MAX];
  int64_t left = row->expires_boot_ms - (int64_t) al_plat_boot_ms(), age = (int64_t) time(NULL) - row->created_s;
  bool same_boot = al_plat_boot_id(boot) == 0 && strcmp(boot, row->owner.boot) == 0;
  return al_val_set(v, "created", al_val_int(row->created_s)) | al_val_set(v, "expires", al_val_int(row->expires_s)) |
    al_val_set(v, "ageSeconds", al_val_int(age > 0 ? age : 0)) |
    al_val_set(v, "leftSeconds", al_val_int(!same_boot || left < 0 ? 0 : left / 1000));
}

static int
add_options(al_val_t *v, const al_lane_row_t *row) {
  return al_val_set(v, "cpus", al_val_int(row->cpus)) | al_val_set(v, "memoryMiB", al_val_int(row->memory_mib)) |
    al_val_set(v, "diskGiB", al_val_int(row->disk_gib)) | al_val_set(v, "image", al_val_text(row->image)) |
    al_val_set(v, "network", al_val_text(row->network)) | al_val_set(v, "accelerator", al_val_text(row->accel)) |
    al_val_set(v, "reason", al_val_text(row->reason));
}

static int
add_use(al_val_t *v, const al_look_t *look) {
  return al_val_set(v, "processes", al_val_int(look->processes)) |
    al_val_set(v, "memoryBytes", look->vm ? al_val_int((int64_t) look->memory) : al_val_null()) |
    al_val_set(v, "diskBytes", look->disk.there ? al_val_int((int64_t) look->disk.all) : al_val_null());
}

al_val_t *
al_admin_row(const al_lane_row_t *row, const al_look_t *look) {
  al_val_t *v = al_val_map();
  int rc = al_val_set(v, "name", al_val_text(row->name)) |
    al_val_set(v, "state", al_val_text(al_lane_state_name(row->state)));
  if (!rc) rc = add_owner(v, row) | add_times(v, row) | add_options(v, row) | add_use(v, look);
  if (!rc) return v;
  al_val_free(v);
  return NULL;
}

typedef struct list_s {
  al_job_t job;
  al_engine_t *engine;
  al_site_t *site;
  uint32_t id;
  al_lane_row_t *rows;
  size_t count;
  al_val_t *value;
  al_err_t err;
} list_t;

static void
list_end(list_t *l, int status) {
  al_engine_t *e = l->engine;
  if (status < 0 && !l->err.code) al_err_set(&l->err, status, "the lanes could not be looked at");
  if (l->err.code) {
    al_val_free(l->value);
    al_engine_fail(e, l->id, &l->err);
  } else {
    al_engine_done(e, l->id, l->value);
  }
  al_free(l->rows);
  al_free(l);
  e->busy--;
  al_engine_check_end(e);
}

static void
looked(al_job_t *job, int status) {
  list_end(job->data, status);
}

/* A closed lane has nothing any more, and there may be hundreds of them. */
static int
look_at_open(list_t *l, al_look_t *looks) {
  size_t open = 0;
  for (size_t i = 0; i < l->count; i++) open += l->rows[i].state != AL_LANE_CLOSED;
  al_look_t *some = open ? al_calloc(open, sizeof *some) : NULL;
  if (open && !some) return -ENOMEM;
  for (size_t i = 0, at = 0; i < l->count; i++)
    if (l->rows[i].state != AL_LANE_CLOSED) memcpy(some[at++].name, l->rows[i].name, sizeof some->name);
  int rc = al_lima_look(&l->site->home, some, open);
  for (size_t i = 0, at = 0; i < l->count; i++)
    if (l->rows[i].state != AL_LANE_CLOSED) looks[i] = some[at++];
  al_free(some);
  return rc;
}

static int
look(al_job_t *job) {
  list_t *l = job->data;
  AL_AUTO_FREE al_look_t *looks = al_calloc(l->count + 1, sizeof *looks);
  l->value = looks ? al_val_list() : NULL;
  int rc = l->value ? look_at_open(l, looks) : -ENOMEM;
  if (rc && rc != -ENOMEM)
    return al_err_set(&l->err, rc, "the processes of this user could not be listed: %s", strerror(-rc));
  for (size_t i = 0; i < l->count && rc == 0; i++) rc = al_val_add(l->value, al_admin_row(&l->rows[i], &looks[i]));
  return rc ? al_err_set(&l->err, -ENOMEM, "list: out of memory for the answer") : 0;
}

static void
listed(void *data, int status, const al_err_t *err, const al_lane_row_t *rows, size_t count) {
  list_t *l = data;
  if (status < 0) l->err = *err;
  else if (count && !(l->rows = al_memdup(rows, count * sizeof *rows))) al_err_set(&l->err, -ENOMEM, "out of memory");
  if (l->err.code) {
    list_end(l, l->err.code);
    return;
  }
  l->count = count;
  l->job.data = l;
  al_worker_post(l->site->store, &l->job, look, looked);
}

void
al_do_list(al_engine_t *e, al_request_t *r) {
  al_err_t err = { 0 };
  al_site_t *site;
  bool all;
  list_t *l = NULL;
  int rc = al_site_get(e, r->params, &site, &err);
  if (!rc) rc = al_val_get_bool(r->params, "all", false, &all, &err);
  if (!rc && !(l = al_calloc(1, sizeof *l))) rc = al_err_set(&err, -ENOMEM, "out of memory");
  if (rc) {
    al_engine_fail(e, r->id, &err);
    return;
  }
  l->engine = e;
  l->site = site;
  l->id = r->id;
  e->busy++;
  al_registry_list(&site->registry, all, listed, l);
}
