/* SPDX-License-Identifier: Apache-2.0 */
/* A lane and the keeper of its site: told before anything is made, told off when the end is proven. */
#include "lane_life.h"
#include <stdio.h>
#include <string.h>

/* In the registry it tells other processes' sweeps that somebody is at it. A row without it is anybody's, which is safe,
 * so nobody waits for the write. */
static void
note_keeper(al_lane_t *lane, const al_ident_t *keeper) {
  lane->spec.keeper = *keeper;
  lane->row.keeper = *keeper;
  al_registry_set_keeper(&lane->site->registry, lane->row.id, keeper, NULL, NULL);
}

static void
on_kept(void *data, int status, const al_err_t *err) {
  al_lane_t *lane = data;
  al_err_t gone = { 0 };
  const al_ident_t *keeper = al_keeper_ident(lane->site->keeper);
  if (status == 0 && keeper) {
    note_keeper(lane, keeper);
  } else if (status == 0) {
    status = al_err_set(&gone, AL_EKEEPER_FAILED, "the keeper ended");
    err = &gone;
  }
  lane->kept(lane, status, err);
}

void
al_lane_keep(al_lane_t *lane, al_keeper_cb then) {
  const al_lima_t *l = &lane->driver->lima;
  char record[4096];
  al_keeper_keep_t r = { .row = lane->row.id, .expires_boot_ms = lane->life_end_boot_ms };
  snprintf(r.name, sizeof r.name, "%s", lane->spec.name);
  snprintf(r.limactl, sizeof r.limactl, "%s", l->limactl);
  snprintf(r.path_env, sizeof r.path_env, "%s", l->path_env);
  snprintf(r.user_home, sizeof r.user_home, "%s", al_lima_user_home(record, sizeof record));
  lane->kept = then;
  al_keeper_keep(lane->site->keeper, &r, on_kept, lane);
}

void
al_lane_unkeep(al_lane_t *lane) {
  if (lane->site->keeper) al_keeper_drop(lane->site->keeper, lane->spec.name);
}

void
al_lane_kept_anew(void *data, const al_ident_t *keeper) {
  al_site_t *site = data;
  for (al_lane_t *l = site->engine->lanes; l; l = l->next) {
    if (l->site != site || l->attached || l->state < 0 || l->finished) continue;
    note_keeper(l, keeper);
    al_lane_emit(l, "notice", "the lane's keeper had ended; another one keeps it now");
  }
}
