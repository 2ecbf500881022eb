/* SPDX-License-Identifier: Apache-2.0 */
/* From a place to a proven guest: the actions build and verify, boot, connect and configure of the state table. */
#include "hook.h"
#include "lane_life.h"
#include <stdio.h>
#include <string.h>

#define TCG_SILENCE_MS 60000

static void
fail(al_lane_t *lane, int rc, const char *what) {
  al_err_t err = { 0 };
  al_err_set(&err, rc, "%s", what);
  al_lane_event(lane, AL_LANE_ON_FAIL, &err, NULL);
}

static uint64_t
left_ms(const al_lane_t *lane, int64_t less) {
  int64_t left = al_lane_left_ms(lane) - less;
  return left > 0 ? (uint64_t) left : 1;
}

/* ---- build, verify, boot ---- */

static void
step_end(al_lane_t *lane, int status, const al_err_t *err, int event) {
  lane->step_busy = false;
  if (lane->destroy_wanted) al_lane_do_destroy(lane);
  else if (status < 0) al_lane_event(lane, AL_LANE_ON_FAIL, err, NULL);
  else al_lane_event(lane, event, NULL, NULL);
}

static void
verified(void *data, int status, const al_err_t *err) {
  AL_HOOK("verified");
  step_end(data, status, err, AL_LANE_ON_CREATED);
}

static void
built(void *data, int status, const al_err_t *err) {
  al_lane_t *lane = data;
  AL_HOOK("built");
  if (status < 0 || lane->destroy_wanted) {
    step_end(lane, status, err, AL_LANE_ON_CREATED);
    return;
  }
  lane->step = "verify";
  al_lima_verify(&lane->driver->lima, &lane->spec, lane->manifest.config, verified, lane);
}

static void
kept(void *data, int status, const al_err_t *err) {
  al_lane_t *lane = data;
  AL_HOOK("kept");
  if (status < 0 || lane->destroy_wanted) step_end(lane, status, err, AL_LANE_ON_CREATED);
  else al_lima_build(&lane->driver->lima, &lane->spec, built, lane);
}

/* Nothing is made before somebody is there who ends it. */
void
al_lane_do_create(al_lane_t *lane) {
  lane->step_busy = true;
  al_lane_keep(lane, kept);
}

static void
booted(al_boot_t *b, void *data, int status, const al_err_t *err, uint16_t port) {
  al_lane_t *lane = data;
  (void) b;
  AL_HOOK("port-open");
  if (status == 0) lane->ssh_port = port;
  if (status < 0) al_lane_event(lane, AL_LANE_ON_FAIL, err, NULL);
  else al_lane_event(lane, AL_LANE_ON_BANNER, NULL, NULL);
}

void
al_lane_do_boot(al_lane_t *lane) {
  uint64_t left = left_ms(lane, 500); /* its own deadline comes first: it knows what it was waiting for */
  int rc = al_lima_boot(&lane->driver->lima, &lane->spec, left, booted, lane, &lane->boot);
  if (rc) fail(lane, rc, "limactl start could not be run");
  AL_HOOK("started");
}

/* ---- connect, prove, configure ---- */

static void
configured(void *data, int status, const al_err_t *err) {
  al_lane_t *lane = data;
  AL_HOOK("configured");
  if (status == 0 && lane->boot) lane->ssh_port = al_lima_boot_settle(lane->boot);
  if (status < 0) al_lane_event(lane, AL_LANE_ON_FAIL, err, NULL);
  else al_lane_event(lane, AL_LANE_ON_PROVEN, NULL, NULL);
}

static void
on_ready(al_chan_t *c, void *data) {
  al_lane_t *lane = data;
  AL_HOOK("proven");
  lane->step = "configure";
  uint32_t flags = AL_CONFIG_POWEROFF | (lane->sudo ? AL_CONFIG_SUDO : 0u);
  int rc = al_chan_config(c, lane->agent_user, lane->worktree, flags, configured, lane);
  if (rc) fail(lane, rc, "the guest could not be configured");
}

static void
on_chan_closed(al_chan_t *c, void *data, const al_err_t *err) {
  al_lane_t *lane = data;
  (void) c;
  al_lane_chan_ended(lane);
  if (!err->code || lane->destroying) return;
  al_err_t why = *err;
  const char *text = lane->transport ? al_transport_stderr(lane->transport) : NULL;
  if (why.code == AL_ECHANNEL_CLOSED && text && *text) {
    size_t n = strlen(why.msg);
    snprintf(why.msg + n, sizeof why.msg - n, " (%.200s)", text);
  }
  al_lane_event(lane, lane->state == AL_LANE_READY ? AL_LANE_ON_LOST : AL_LANE_ON_FAIL, &why, NULL);
}

static void
transport_open(al_transport_t *t, void *data, uv_stream_t *in, uv_stream_t *out) {
  al_lane_t *lane = data;
  (void) t;
  AL_HOOK("transport");
  static const al_chan_cbs_t cbs = { on_ready, on_chan_closed };
  /* An emulated guest on a busy machine may well be silent for longer than the channel's usual 15 s without being
   * dead. */
  uint64_t silence = lane->spec.accel == AL_ACCEL_TCG ? TCG_SILENCE_MS : 0;
  al_chan_opts_t opts = { .in = in, .out = out, .handshake_ms = left_ms(lane, 0), .silence_ms = silence };
  for (size_t i = 0; i < 32; i++) {
    unsigned byte;
    sscanf(lane->spec.proof + 2 * i, "%2x", &byte);
    opts.secret[i] = (uint8_t) byte;
  }
  lane->step = "prove";
  int rc = al_chan_open(&lane->engine->loop, &opts, &cbs, lane, &lane->chan);
  if (rc) fail(lane, rc, "the channel could not be opened");
}

static void
transport_failed(al_transport_t *t, void *data, const al_err_t *err) {
  (void) t;
  al_lane_event(data, AL_LANE_ON_FAIL, err, NULL);
}

void
al_lane_do_connect(al_lane_t *lane) {
  static const al_transport_cbs_t cbs = { transport_open, transport_failed };
  al_lima_t *lima = &lane->driver->lima;
  uint64_t left = left_ms(lane, 0);
  int rc = lane->spec.port ? al_transport_port(lima, &lane->spec, left, &cbs, lane, &lane->transport)
                           : al_transport_shell(lima, &lane->spec, left, &cbs, lane, &lane->transport);
  if (rc) fail(lane, rc, lane->spec.port ? "the channel's port could not be opened" : "limactl shell could not be run");
}
