/* SPDX-License-Identifier: Apache-2.0 */
/* Sweep: whose lane may be ended by somebody else, and when. */
#include "sweep.h"

#define EXPIRY_GRACE_MS 30000 /* a living owner ends its own lanes; only well past that time others do */
#define KEEPER_GRACE_MS 30000 /* a keeper that outlives its owner ends the lanes; then anybody does */
#define PAUSE_MAX_S 3600      /* no pause is longer: one that is was written under another clock */

static bool
resting(const al_sweep_rules_t *rules, const al_lane_row_t *row) {
  int64_t left = row->retry_s - rules->now_s;
  return rules->patient && left > 0 && left <= PAUSE_MAX_S;
}

static al_sweep_verdict_t
judge_orphan(const al_sweep_rules_t *rules, const al_lane_row_t *row, const char **why) {
  int64_t since = row->orphan_boot_ms, now = (int64_t) rules->boot_ms;
  int keeper = row->keeper.pid > 0 ? al_plat_ident_alive(&row->keeper) : 0;
  *why = "its owner is gone";
  if (keeper == 0 || rules->force) return AL_SWEEP_END;
  if (since > 0 && since <= now && now - since >= KEEPER_GRACE_MS) {
    *why = "its owner is gone, and its keeper does not end it";
    return AL_SWEEP_END;
  }
  *why = "its owner is gone; its keeper is ending it";
  return since > 0 && since <= now ? AL_SWEEP_KEEP : AL_SWEEP_ORPHAN;
}

al_sweep_verdict_t
al_sweep_judge(const al_sweep_rules_t *rules, const al_lane_row_t *row, bool forgotten, const char **why) {
  int alive = al_plat_ident_alive(&row->owner);
  if (!al_name_valid(row->name)) {
    *why = "its name is not one of ours";
    return AL_SWEEP_KEEP;
  }
  if (row->state == AL_LANE_STUCK) {
    *why = resting(rules, row) ? "an earlier close could not be proven; the next try comes later"
                               : "an earlier close could not be proven";
    return resting(rules, row) && !rules->force ? AL_SWEEP_KEEP : AL_SWEEP_END;
  }
  if (alive == 0) return judge_orphan(rules, row, why);
  if (alive > 0 && (int64_t) rules->boot_ms > row->expires_boot_ms + EXPIRY_GRACE_MS) {
    *why = "its lifetime is over";
    return AL_SWEEP_END;
  }
  if (alive > 0 && forgotten) {
    *why = "an earlier end could not be written";
    return AL_SWEEP_END;
  }
  *why = rules->force ? "asked for with --force"
    : alive > 0       ? "in use by a living process"
                      : "its owner could not be looked at";
  return rules->force ? AL_SWEEP_END : AL_SWEEP_KEEP;
}
