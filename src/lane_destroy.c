/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a live lane: channel, transport and boot are closed, then the driver destroys and proves it. */
#include "hook.h"
#include "lane_manifest.h"
#include "mem.h"
#include <stdio.h>
#include <string.h>

#define RETRY_MS 250
#define RETRY_FOR_MS 5000

/* Without memory or descriptors for a moment a lane must not stay: the same again, for a while. */
static bool
try_again(al_lane_t *lane, int status, uv_timer_cb again) {
  if (!al_err_exhausted(status) || al_plat_mono_ms() >= lane->retry_until_ms) return false;
  uv_timer_start(&lane->retry_timer, again, RETRY_MS, 0);
  return true;
}

static void
on_destroy_again(uv_timer_t *t);

static void
destroyed(void *data, int status, const al_err_t *err) {
  al_lane_t *lane = data;
  AL_HOOK("destroyed");
  if (status == 0) {
    al_lane_event(lane, AL_LANE_ON_DESTROYED, NULL, NULL);
    return;
  }
  if (try_again(lane, status, on_destroy_again)) return;
  al_err_t why = { 0 };
  if (err->code && !al_err_exhausted(err->code)) why = *err;
  else al_err_set(&why, AL_EDESTROY_FAILED, "the lane's end could not be proven: %s", err->msg);
  al_lane_event(lane, AL_LANE_ON_UNPROVEN, &why, NULL);
}

static void
on_destroy_again(uv_timer_t *t) {
  al_lane_t *lane = t->data;
  al_lima_destroy(&lane->driver->lima, lane->spec.name, destroyed, lane);
}

static void
cut(al_lane_t *lane) {
  AL_HOOK("cut");
  al_lima_destroy(&lane->driver->lima, lane->spec.name, destroyed, lane);
}

static void
part_ended(al_lane_t *lane) {
  if (--lane->ending) return;
  if (!al_lane_derive(lane, cut)) cut(lane);
}

static void
transport_closed(void *data) {
  al_lane_t *lane = data;
  lane->transport = NULL;
  part_ended(lane);
}

static void
boot_closed(void *data) {
  al_lane_t *lane = data;
  lane->boot = NULL;
  part_ended(lane);
}

/* Called by the channel's on_closed, too (lane_start.c): the transport may go only after the channel. */
void
al_lane_chan_ended(al_lane_t *lane) {
  lane->chan = NULL;
  if (!lane->destroying) return;
  if (lane->transport) al_transport_close(lane->transport, transport_closed, lane);
  else part_ended(lane);
}

static void
claimed(void *data, int status, const al_err_t *err) {
  al_lane_t *lane = data;
  (void) err; /* a registry that cannot be written does not keep a VM alive */
  lane->claimed = status == 0;
  AL_HOOK("claimed");
  part_ended(lane);
}

void
al_lane_do_destroy(al_lane_t *lane) {
  AL_ASSERT(!lane->attached);
  if (lane->destroying) return;
  lane->destroying = true;
  lane->destroy_wanted = false;
  al_lane_timers_stop(lane);
  lane->retry_until_ms = al_plat_mono_ms() + RETRY_FOR_MS;
  lane->ending = 3;
  if (al_manifest_closing(lane, part_ended)) lane->ending++;
  al_registry_claim_close(&lane->site->registry, lane->row.id, lane->cause.msg, claimed, lane);
  if (lane->boot) al_lima_boot_close(lane->boot, boot_closed, lane);
  else part_ended(lane);
  if (lane->chan) al_chan_close(lane->chan, &lane->cause);
  else if (lane->transport) al_transport_close(lane->transport, transport_closed, lane);
  else part_ended(lane);
}

/* ---- the row ---- */

static void
write_end(al_lane_t *lane);

static void
on_write_again(uv_timer_t *t) {
  write_end(t->data);
}

static void
end_written(void *data, int status, const al_err_t *err) {
  al_lane_t *lane = data;
  (void) err; /* the lane is gone either way; the sweep finds and closes a row that could not be written */
  AL_HOOK("row-closed");
  if (status < 0 && try_again(lane, status, on_write_again)) return;
  if (lane->state == AL_LANE_CLOSED) al_lane_unkeep(lane); /* one that is stuck stays the keeper's to try again */
  al_lane_finish(lane);
}

static void
claimed_late(void *data, int status, const al_err_t *err) {
  al_lane_t *lane = data;
  lane->claimed = status == 0;
  if (status == 0) write_end(lane);
  else end_written(lane, status, err);
}

static void
write_end(al_lane_t *lane) {
  al_registry_t *r = &lane->site->registry;
  if (!lane->claimed) al_registry_claim_close(r, lane->row.id, lane->cause.msg, claimed_late, lane);
  else al_registry_move(r, lane->row.id, AL_LANE_CLOSING, lane->state, lane->row.reason, end_written, lane);
}

void
al_lane_close_row(al_lane_t *lane, const char *reason) {
  snprintf(lane->row.reason, sizeof lane->row.reason, "%s", reason ? reason : "");
  lane->retry_until_ms = al_plat_mono_ms() + RETRY_FOR_MS;
  /* The manifest first: a process that ends between the two leaves a row that is swept, and that sweep looks there. */
  if (lane->state == AL_LANE_CLOSED) al_manifest_end(lane, write_end);
  else write_end(lane);
}
