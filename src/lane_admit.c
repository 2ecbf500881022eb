/* SPDX-License-Identifier: Apache-2.0 */
/* Admission: takes a ticket and waits, in order, for one of the places for VMs; the lane's life begins with it. */
#include "hook.h"
#include "lane_guard.h"
#include "lane_manifest.h"
#include <stdio.h>
#include <string.h>
#include <time.h>

#define RESERVE_MS 45000 /* a place is taken only while a boot can still be expected to finish in time */
#define POLL_MS 250
#define SWEEP_MS 5000 /* a place held by a process that has died meanwhile is free no later than that */

static void
on_retry(uv_timer_t *t) {
  al_lane_admit(t->data);
}

static void
swept(void *data) {
  ((al_site_t *) data)->sweeping = false;
}

/* Beside the polls, which tell the others that we still ask: an end may take its time. Of a site, not of a lane, which
 * may be gone before it is done. */
static void
sweep(al_lane_t *lane) {
  al_site_t *site = lane->site;
  uint64_t now = al_plat_mono_ms();
  if (site->swept_ms == 0) site->swept_ms = now; /* each create has swept before it waits */
  if (site->sweeping || now - site->swept_ms < SWEEP_MS) return;
  site->sweeping = true;
  site->swept_ms = now;
  al_reaper_sweep(site, lane->driver, swept, site);
}

/* Says how long the queue is and who is waited for, whenever that changes. */
static void
tell_place(al_lane_t *lane) {
  const al_queue_t *q = &lane->queue;
  char text[sizeof q->holders + 120];
  snprintf(text, sizeof text, "number %d of %d that wait for one of %d places; open: %s", q->position, q->of,
    lane->max_vms, q->holders);
  if (strcmp(lane->told, text) == 0) return;
  memcpy(lane->told, text, sizeof text);
  al_val_t *v = al_val_map();
  int rc = al_val_set(v, "position", al_val_int(q->position)) | al_val_set(v, "of", al_val_int(q->of));
  if (rc) al_val_free(v);
  else al_lane_emit_with(lane, "queued", text, v);
}

/* Whether the wait for a place is over; then `busy` says so. */
static bool
waited_enough(const al_lane_t *lane, al_err_t *busy) {
  int64_t half = (int64_t) lane->start_timeout_s * 500;
  bool queued = lane->queue_timeout_s > 0;
  int64_t reserve = half < RESERVE_MS ? half : RESERVE_MS;
  if (queued ? al_plat_mono_ms() < lane->queue_end_ms : al_lane_left_ms(lane) >= reserve) return false;
  char why[120];
  snprintf(why, sizeof why, " (startTimeoutSeconds is %d, of which %d s are kept for the start itself)",
    lane->start_timeout_s, (int) ((reserve + 500) / 1000));
  al_err_set(busy, AL_EBUSY,
    "no place for another VM within %d s%s: maxConcurrentVms is %d and these are open: %.400s",
    queued ? lane->queue_timeout_s : lane->start_timeout_s - (int) ((reserve + 500) / 1000),
    queued ? " (queueTimeoutSeconds)" : why, lane->max_vms, lane->queue.holders[0] ? lane->queue.holders : "earlier waiters");
  return true;
}

/* People hear at the first lane that the registry was damaged; it is in the reports of reap and doctor, too. */
static void
tell_notice(al_lane_t *lane) {
  char text[AL_DB_NOTICE_MAX];
  if (al_registry_notice(&lane->site->registry, text)) al_lane_emit(lane, "notice", text);
}

static void
admitted(void *data, int status, const al_err_t *err) {
  al_lane_t *lane = data;
  lane->step_busy = false;
  if (status < 0) {
    al_lane_give_up(lane, err);
    return;
  }
  tell_notice(lane);
  if (status == 0) {
    lane->queue.ticket = 0;
    al_image_release(&lane->image_hold);
    lane->state = AL_LANE_REGISTERED;
    al_manifest_state(lane, lane->state);
    lane->spec.row = lane->row.id;
    lane->spec.created_s = lane->row.created_s;
    lane->spec.expires_s = lane->row.expires_s;
    lane->spec.expires_boot_ms = lane->row.expires_boot_ms;
    if (lane->queue_timeout_s > 0) { /* the start counts from here */
      lane->deadline_ms = al_plat_mono_ms() + (uint64_t) lane->start_timeout_s * 1000;
      al_lane_watch_start(lane);
    }
    al_lane_watch_life(lane);
    al_guard_add(lane);
    AL_HOOK("registered");
    if (lane->cause.code) al_lane_event(lane, AL_LANE_ON_CLOSE, &lane->cause, "ended while it was admitted");
    else al_lane_event(lane, AL_LANE_ON_START, NULL, NULL);
    return;
  }
  if (lane->cause.code) {
    al_lane_give_up(lane, &lane->cause);
    return;
  }
  al_err_t busy = { 0 };
  if (waited_enough(lane, &busy)) {
    al_lane_give_up(lane, &busy);
    return;
  }
  tell_place(lane);
  sweep(lane);
  uv_timer_start(&lane->retry_timer, on_retry, POLL_MS, 0);
}

void
al_lane_admit(al_lane_t *lane) {
  bool first = lane->queue.ticket == 0;
  /* A lifetime counts from the place taken: waiting for one is nobody's life. */
  lane->life_end_boot_ms = al_plat_boot_ms() + AL_HOOK_LIFE((uint64_t) lane->timeout_minutes * 60000);
  lane->row.expires_boot_ms = (int64_t) lane->life_end_boot_ms;
  lane->row.created_s = time(NULL);
  lane->row.expires_s = lane->row.created_s + (int64_t) lane->timeout_minutes * 60;
  lane->step = "admission";
  lane->step_busy = true;
  if (first) al_lane_emit(lane, "queued", NULL);
  if (first && lane->queue_timeout_s > 0) {
    uv_timer_stop(&lane->start_timer); /* the wait has an end of its own */
    lane->queue_end_ms = al_plat_mono_ms() + (uint64_t) lane->queue_timeout_s * 1000;
  }
  al_registry_admit(&lane->site->registry, &lane->row, lane->max_vms, &lane->queue, admitted, lane);
}
