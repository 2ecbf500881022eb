/* SPDX-License-Identifier: Apache-2.0 */
/* Sites: one home with its registry, its worker for blocking file work, and its Lima driver. */
#include "engine.h"
#include "lane_guard.h"
#include "lane_life.h"
#include "mem.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

static int
site_open(al_engine_t *e, const al_home_t *home, al_site_t **out, al_err_t *err) {
  al_site_t *s = al_calloc(1, sizeof *s);
  if (!s) return al_err_set(err, -ENOMEM, "out of memory");
  s->engine = e;
  s->home = *home;
  int rc = al_worker_open(&e->loop, &s->io);
  if (!rc) rc = al_worker_open(&e->loop, &s->store);
  if (rc) al_err_set(err, rc, "a worker thread could not be started: %s", uv_strerror(rc));
  else rc = al_registry_open(&e->loop, s->home.registry, &s->registry, err);
  if (rc) {
    if (s->io) al_worker_close(s->io, NULL, NULL);
    if (s->store) al_worker_close(s->store, NULL, NULL);
    al_free(s);
    return rc;
  }
  s->next = e->sites;
  e->sites = s;
  *out = s;
  return 0;
}

int
al_site_get(al_engine_t *e, const al_val_t *params, al_site_t **out, al_err_t *err) {
  const char *path;
  al_home_t home;
  int rc = al_val_get_text(params, "home", NULL, &path, err);
  if (rc || (rc = al_home_open(path, &home, err))) return rc;
  for (al_site_t *s = e->sites; s; s = s->next) {
    if (strcmp(s->home.root, home.root)) continue;
    *out = s;
    return 0;
  }
  return site_open(e, &home, out, err);
}

/* "linux-x64", "darwin-arm64": the folder of our programs in the package, named as Node names it. */
static void
target_name(char *out, size_t cap) {
  struct utsname u;
  if (uname(&u)) memset(&u, 0, sizeof u);
  const char *os = strcmp(u.sysname, "Darwin") ? "linux" : "darwin";
  bool arm = strcmp(u.machine, "aarch64") == 0 || strcmp(u.machine, "arm64") == 0;
  snprintf(out, cap, "%s-%s", os, arm ? "arm64" : "x64");
}

static int
driver_open(al_site_t *s, al_driver_t *d, const char *limactl, al_err_t *err) {
  char target[32], warden[1200], agent_x86[1200], agent_arm[1200];
  const char *dir = s->engine->package_dir;
  target_name(target, sizeof target);
  snprintf(warden, sizeof warden, "%s/prebuilds/%s/warden", dir, target);
  snprintf(agent_x86, sizeof agent_x86, "%s/prebuilds/guest/agent-x86_64", dir);
  snprintf(agent_arm, sizeof agent_arm, "%s/prebuilds/guest/agent-aarch64", dir);
  al_lima_opts_t opts = {
    .limactl = limactl, .warden = warden, .agent_x86_64 = agent_x86, .agent_aarch64 = agent_arm
  };
  return al_lima_open(&d->lima, &s->engine->loop, s->io, &s->home, &opts, err);
}

int
al_site_lima(al_site_t *s, const al_val_t *params, al_driver_t **out, al_err_t *err) {
  const char *limactl;
  bool unknown;
  int rc = al_val_get_text(params, "limactlPath", NULL, &limactl, err);
  if (rc || (rc = al_val_get_bool(params, "allowUnknownLima", false, &unknown, err))) return rc;
  const char *env = getenv("AGENT_LANE_LIMACTL");
  if (!limactl && env && *env) limactl = env;
  char key[1100];
  snprintf(key, sizeof key, "%d:%s", unknown, limactl ? limactl : "");
  for (al_driver_t *d = s->drivers; d; d = d->next) {
    if (strcmp(d->key, key) || !al_lima_complete(&d->lima)) continue;
    *out = d;
    return 0;
  }
  al_driver_t *d = al_calloc(1, sizeof *d);
  if (!d) return al_err_set(err, -ENOMEM, "out of memory");
  if ((rc = driver_open(s, d, limactl, err))) {
    al_free(d);
    return rc;
  }
  snprintf(d->key, sizeof d->key, "%s", key);
  d->allow_unknown = unknown;
  d->next = s->drivers;
  s->drivers = d;
  *out = d;
  return 0;
}

int
al_site_keeper(al_site_t *s, al_err_t *err) {
  char target[32];
  al_keeper_opts_t opts = {.home = &s->home, .program = s->keeper_program, .owner = &s->engine->self,
    .on_restart = al_lane_kept_anew, .data = s};
  target_name(target, sizeof target);
  snprintf(s->keeper_program, sizeof s->keeper_program, "%s/prebuilds/%s/keeper", s->engine->package_dir, target);
  if (!s->keeper) s->keeper = al_keeper_link_open(&s->engine->loop, &opts);
  if (!s->keeper) return al_err_set(err, -ENOMEM, "out of memory");
  al_keeper_link_start(s->keeper);
  return 0;
}

static void
part_closed(void *data) {
  al_site_t *s = data;
  if (--s->closing) return;
  al_engine_t *e = s->engine;
  for (al_site_t **at = &e->sites; *at; at = &(*at)->next)
    if (*at == s) {
      *at = s->next;
      break;
    }
  for (al_driver_t *d = s->drivers; d;) {
    al_driver_t *rest = d->next;
    al_free(d);
    d = rest;
  }
  al_free(s->guard);
  al_free(s);
  al_engine_check_end(e);
}

void
al_site_close_all(al_engine_t *e) {
  if (!e->sites) al_engine_check_end(e);
  for (al_site_t *s = e->sites, *next; s; s = next) {
    next = s->next;
    s->closing = 4 + (s->keeper != NULL);
    al_guard_close(s, part_closed, s);
    if (s->keeper) al_keeper_link_close(s->keeper, part_closed, s);
    al_registry_close(&s->registry, part_closed, s);
    al_worker_close(s->io, part_closed, s);
    al_worker_close(s->store, part_closed, s);
  }
}
