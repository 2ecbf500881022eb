/* SPDX-License-Identifier: Apache-2.0 */
/* The request attach: a lane of another process, used over a channel of our own. Its life is its owner's business. */
#include "lane_attach.h"
#include "lane_manifest.h"
#include "mem.h"
#include "xfer.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Theory of operation. An attached lane is an al_lane_t without a row of ours: it has a transport, a channel and calls,
 * but never boots, expires or destroys anything. al_lane_event leads here for all of its events, and each of them means
 * the same: the channel ends, then the transport, then everybody is answered. */

#define ATTACH_MS 30000
#define TCG_ATTACH_MS 120000 /* a login takes its time in an emulated guest */
#define TCG_SILENCE_MS 60000

static void
finish(al_lane_t *lane) {
  lane->state = AL_LANE_CLOSED;
  al_lane_finish(lane);
}

static void
transport_closed(void *data) {
  al_lane_t *lane = data;
  lane->transport = NULL;
  finish(lane);
}

/* The next part of the end; each comes back here. */
static void
go_on_ending(al_lane_t *lane) {
  if (lane->step_busy) return;
  if (lane->chan) al_chan_close(lane->chan, &lane->cause);
  else if (lane->transport) al_transport_close(lane->transport, transport_closed, lane);
  else finish(lane);
}

void
al_attach_end(al_lane_t *lane, const al_err_t *why) {
  if (lane->destroying) return;
  lane->destroying = true;
  lane->state = AL_LANE_CLOSING;
  if (why && why->code) lane->cause = *why;
  else al_err_set(&lane->cause, AL_ELANE_CLOSED, "it was left");
  if (!lane->cause.lane[0]) snprintf(lane->cause.lane, sizeof lane->cause.lane, "%s", lane->spec.name);
  go_on_ending(lane);
}

static void
fail(al_lane_t *lane, int rc, const char *what) {
  al_err_t err = { 0 };
  al_err_set(&err, rc, "%s", what);
  al_attach_end(lane, &err);
}

/* ---- the channel ---- */

static void
on_ready(al_chan_t *c, void *data) {
  al_lane_t *lane = data;
  (void) c;
  lane->state = AL_LANE_READY;
  al_val_t *v = al_val_map();
  int rc = v ? al_val_set(v, "lane", al_val_text(lane->spec.name)) : -ENOMEM;
  al_engine_answer(lane->engine, lane->create_id, "attach", v, rc);
  lane->create_id = 0;
  al_manifest_attached(lane);
}

static void
on_chan_closed(al_chan_t *c, void *data, const al_err_t *err) {
  al_lane_t *lane = data;
  (void) c;
  al_err_t why = { 0 };
  lane->chan = NULL;
  if (lane->destroying) {
    go_on_ending(lane);
    return;
  }
  if (err) why = *err;
  /* The error's own cure is a new lane, but this one is its owner's and may be well. */
  if (why.code == AL_ECHANNEL_CLOSED && !why.cure[0]) {
    al_err_cure(&why, lane->state == AL_LANE_CONNECTING
      ? "Leave another `agent-lane shell` of this lane if 8 are in it, then try again."
      : "See in `agent-lane ls` whether the lane is still open; if so, run the command again.");
  }
  al_attach_end(lane, &why);
}

static bool
emulated(const al_lane_t *lane) {
  return strcmp(lane->row.accel, "tcg") == 0;
}

static void
transport_open(al_transport_t *t, void *data, uv_stream_t *in, uv_stream_t *out) {
  static const al_chan_cbs_t cbs = { on_ready, on_chan_closed };
  al_lane_t *lane = data;
  (void) t;
  al_chan_opts_t opts = {
    .in = in, .out = out, .handshake_ms = ATTACH_MS, .silence_ms = emulated(lane) ? TCG_SILENCE_MS : 0
  };
  for (size_t i = 0; i < 32; i++) {
    unsigned byte;
    sscanf(lane->spec.proof + 2 * i, "%2x", &byte);
    opts.secret[i] = (uint8_t) byte;
  }
  int rc = al_chan_open(&lane->engine->loop, &opts, &cbs, lane, &lane->chan);
  if (rc) fail(lane, rc, "the channel could not be opened");
}

static void
transport_failed(al_transport_t *t, void *data, const al_err_t *err) {
  (void) t;
  al_attach_end(data, err);
}

/* ---- row and secret ---- */

static int
read_proof(al_job_t *job) {
  al_lane_t *lane = job->data;
  return al_lima_read_proof(&lane->site->home, lane->spec.name, lane->row.id, lane->spec.proof, &lane->image_job.err);
}

static void
proof_read(al_job_t *job, int status) {
  static const al_transport_cbs_t cbs = { transport_open, transport_failed };
  al_lane_t *lane = job->data;
  lane->step_busy = false;
  if (lane->destroying) {
    go_on_ending(lane);
    return;
  }
  if (status < 0) {
    al_attach_end(lane, &lane->image_job.err);
    return;
  }
  uint64_t limit = emulated(lane) ? TCG_ATTACH_MS : ATTACH_MS;
  int rc = al_transport_attach(&lane->driver->lima, lane->spec.name, limit, &cbs, lane, &lane->transport);
  if (rc) fail(lane, rc, "limactl shell could not be run");
}

/* Whether the row may be attached to; the reason otherwise. */
static int
check_row(const al_lane_row_t *row, const char *name, al_err_t *err) {
  if (!row) return al_err_set(err, AL_ENO_SUCH_LANE, "there is no open lane called %s", name);
  if (al_plat_ident_alive(&row->owner) == 0)
    return al_err_set(err, AL_ELANE_CLOSED, "the owner of %s (process %d) is gone, so the lane is ending", name,
      (int) row->owner.pid);
  if (row->state == AL_LANE_READY) return 0;
  const char *state = al_lane_state_name(row->state);
  al_err_set(err, AL_ELANE_CLOSED, "%s is %s, not ready", name, state);
  if (row->state < AL_LANE_READY) al_err_cure(err, "Try again when `agent-lane ls` shows it as ready.");
  return err->code;
}

static void
listed(void *data, int status, const al_err_t *err, const al_lane_row_t *rows, size_t count) {
  al_lane_t *lane = data;
  const al_lane_row_t *row = NULL;
  al_err_t why = { 0 };
  lane->step_busy = false;
  if (lane->destroying) {
    go_on_ending(lane);
    return;
  }
  for (size_t i = 0; status == 0 && i < count; i++)
    if (strcmp(rows[i].name, lane->spec.name) == 0) row = &rows[i];
  if (status < 0) why = *err;
  else check_row(row, lane->spec.name, &why);
  if (why.code) {
    al_attach_end(lane, &why);
    return;
  }
  lane->row = *row;
  lane->step_busy = true;
  lane->image_job.job.data = lane;
  al_worker_post(lane->site->io, &lane->image_job.job, read_proof, proof_read);
}

void
al_do_attach(al_engine_t *e, al_request_t *r) {
  al_err_t err = { 0 };
  const char *name;
  al_lane_t *lane = al_calloc(1, sizeof *lane);
  int rc = lane ? al_val_get_text(r->params, "lane", "", &name, &err) : al_err_set(&err, -ENOMEM, "out of memory");
  if (!rc && !al_name_valid(name)) rc = al_err_set(&err, AL_EBAD_NAME, "\"%.40s\" is not the name of a lane", name);
  if (!rc && al_lane_find(e, name))
    rc = al_err_set(&err, AL_EBAD_OPTION, "attach: this process has %s already", name);
  if (!rc) rc = al_site_get(e, r->params, &lane->site, &err);
  if (!rc) rc = al_site_lima(lane->site, r->params, &lane->driver, &err);
  if (!rc && !(lane->env = al_env_list(NULL, &err))) rc = err.code;
  if (rc) {
    al_engine_fail(e, r->id, &err);
    if (lane) al_lane_free(lane);
    return;
  }
  lane->engine = e;
  lane->attached = true;
  lane->create_id = lane->watch_id = r->id;
  lane->state = AL_LANE_CONNECTING;
  lane->begun_ms = al_plat_mono_ms();
  lane->budget.max = AL_BUFFERED_MAX;
  lane->max_copy_out = AL_COPY_OUT_MAX;
  lane->copy_out_left = AL_COPY_OUT_MOST; /* the owner's bound is on what its own program takes */
  snprintf(lane->spec.name, sizeof lane->spec.name, "%s", name);
  al_lane_timers_init(lane);
  lane->next = e->lanes;
  e->lanes = lane;
  lane->step_busy = true;
  al_registry_list(&lane->site->registry, false, listed, lane);
}
