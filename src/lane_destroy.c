/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a live lane: channel, transport and boot are closed, then the driver destroys and proves it. */
#include "lane_life.h"
#include "mem.h"
#include <string.h>

static void
destroyed(void *data, int status, const al_err_t *err) {
  al_lane_t *lane = data;
  if (status == 0) {
    al_lane_event(lane, AL_LANE_ON_DESTROYED, NULL, NULL);
    return;
  }
  al_err_t why = *err;
  if (!why.code) al_err_set(&why, AL_EDESTROY_FAILED, "the lane's end could not be proven");
  al_lane_event(lane, AL_LANE_ON_UNPROVEN, &why, NULL);
}

static void
part_ended(al_lane_t *lane) {
  if (--lane->ending) return;
  al_lima_destroy(&lane->driver->lima, lane->spec.name, destroyed, lane);
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
  (void) status; /* a registry that cannot be written does not keep a VM alive */
  (void) err;
  part_ended(lane);
}

void
al_lane_do_destroy(al_lane_t *lane) {
  if (lane->destroying) return;
  lane->destroying = true;
  lane->destroy_wanted = false;
  al_lane_timers_stop(lane);
  lane->ending = 3;
  al_registry_claim_close(&lane->site->registry, lane->row.id, lane->cause.msg, claimed, lane);
  if (lane->boot) al_lima_boot_close(lane->boot, boot_closed, lane);
  else part_ended(lane);
  if (lane->chan) al_chan_close(lane->chan, &lane->cause);
  else if (lane->transport) al_transport_close(lane->transport, transport_closed, lane);
  else part_ended(lane);
}
