/* SPDX-License-Identifier: Apache-2.0 */
/* The clocks of a lane: the deadline of its start, its lifetime, the wait for its sync-in. */
#include "lane_life.h"

/* All at once, so that one loop can close them. */
#define TIMERS(lane) { &(lane)->start_timer, &(lane)->life_timer, &(lane)->sync_timer, &(lane)->retry_timer }

void
al_lane_timers_init(al_lane_t *lane) {
  uv_timer_t *timers[] = TIMERS(lane);
  for (size_t i = 0; i < sizeof timers / sizeof *timers; i++) {
    uv_timer_init(&lane->engine->loop, timers[i]);
    timers[i]->data = lane;
    lane->timers++;
  }
}

void
al_lane_timers_stop(al_lane_t *lane) {
  uv_timer_t *timers[] = TIMERS(lane);
  for (size_t i = 0; i < sizeof timers / sizeof *timers; i++) uv_timer_stop(timers[i]);
}

void
al_lane_timers_close(al_lane_t *lane, uv_close_cb cb) {
  uv_timer_t *timers[] = TIMERS(lane);
  for (size_t i = 0; i < sizeof timers / sizeof *timers; i++) uv_close((uv_handle_t *) timers[i], cb);
}

int64_t
al_lane_left_ms(const al_lane_t *lane) {
  return (int64_t) lane->deadline_ms - (int64_t) al_plat_mono_ms();
}

static void
on_start_timeout(uv_timer_t *t) {
  al_lane_t *lane = t->data;
  al_err_t err = { 0 };
  al_err_set(&err, AL_ESTART_TIMEOUT, "the lane was not ready within startTimeoutSeconds (%d); it was in step %s",
    lane->start_timeout_s, lane->step ? lane->step : "check");
  if (lane->state >= 0) al_lane_event(lane, AL_LANE_ON_FAIL, &err, NULL);
  else al_lane_give_up(lane, &err);
}

void
al_lane_watch_start(al_lane_t *lane) {
  uv_timer_start(&lane->start_timer, on_start_timeout, (uint64_t) lane->start_timeout_s * 1000, 0);
}

static void
on_life(uv_timer_t *t) {
  al_lane_t *lane = t->data;
  uint64_t now = al_plat_boot_ms();
  if (now >= lane->life_end_boot_ms) {
    al_err_t err = { 0 };
    al_err_set(&err, AL_ELANE_EXPIRED, "the lane's lifetime of %d minutes is over", lane->timeout_minutes);
    al_lane_event(lane, AL_LANE_ON_EXPIRE, &err, "lifetime over");
    return;
  }
  uv_timeval64_t wall;
  if (lane->chan && uv_gettimeofday(&wall) == 0)
    al_chan_time(lane->chan, (uint64_t) wall.tv_sec * 1000000000u + (uint64_t) wall.tv_usec * 1000u, uv_hrtime());
  /* libuv's clock stands still while the host sleeps (on Linux); boot time does not. So look often, and near the end exactly. */
  uint64_t left = lane->life_end_boot_ms - now;
  uv_timer_start(t, on_life, left < 2000 ? left : 2000, 0);
}

void
al_lane_watch_life(al_lane_t *lane) {
  on_life(&lane->life_timer);
}

static void
on_sync_timeout(uv_timer_t *t) {
  al_lane_t *lane = t->data;
  al_err_t err = { 0 };
  al_err_set(&err, AL_ELANE_CLOSED,
    "the repository was not copied in within syncInTimeoutSeconds (%d), so the lane was taken for lost and closed",
    lane->sync_in_s);
  al_lane_event(lane, AL_LANE_ON_CLOSE, &err, "sync-in never succeeded");
}

void
al_lane_watch_sync_in(al_lane_t *lane) {
  if (lane->sync_in_s) uv_timer_start(&lane->sync_timer, on_sync_timeout, (uint64_t) lane->sync_in_s * 1000, 0);
}
