/* SPDX-License-Identifier: Apache-2.0 */
/* Drives live lanes along the state table: writes each state to the registry, then takes the action. */
#include "lane_life.h"
#include "hook.h"
#include "lane_attach.h"
#include "lane_manifest.h"
#include "mem.h"
#include "run_log.h"
#include "utf8.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Theory of operation. al_lane_event is the only way a lane moves. Its action starts only when the registry has the new
 * state. `step_busy` is true while something runs that cannot be cut short (a registry write, building, verifying); an
 * end that is wanted meanwhile waits for it, everything else (boot, transport, channel) is closed by destroy itself. */

void
al_lane_free(al_lane_t *lane) {
  al_env_free(lane->env);
  al_free(lane->image_trust);
  al_val_free(lane->image_keys);
  al_image_release(&lane->image_hold);
  al_lane_derive_free(lane);
  for (al_waiter_t *w = lane->closers; w;) {
    al_waiter_t *next = w->next;
    al_free(w);
    w = next;
  }
  al_free(lane);
}

al_lane_t *
al_lane_find(al_engine_t *e, const char *name) {
  for (al_lane_t *l = e->lanes; name && l; l = l->next)
    if (l->state >= 0 && !l->finished && strcmp(l->spec.name, name) == 0) return l;
  return NULL;
}

int
al_lanes_count(const al_engine_t *e) {
  int n = 0;
  for (const al_lane_t *l = e->lanes; l; l = l->next) n += l->state >= 0 && !l->finished && !l->attached;
  return n;
}

void
al_lanes_close_all(al_engine_t *e) {
  al_err_t why = { 0 };
  al_err_set(&why, AL_EINTERRUPTED, "this process is ending");
  for (al_lane_t *l = e->lanes, *next; l; l = next) {
    next = l->next;
    if (l->state >= 0) al_lane_event(l, AL_LANE_ON_CLOSE, &why, "owner is ending");
    else al_lane_give_up(l, &why);
  }
}

void
al_lane_emit_with(al_lane_t *lane, const char *type, const char *text, al_val_t *v) {
  if (!v) return;
  int rc = al_val_set(v, "type", al_val_text(type)) | al_val_set(v, "lane", al_val_text(lane->spec.name))
    | al_val_set(v, "timeMs", al_val_int((int64_t) (al_plat_mono_ms() - lane->begun_ms)));
  if (text && *text) rc |= al_val_set(v, "message", al_val_text(text));
  if (rc) {
    al_val_free(v);
    return;
  }
  al_engine_emit(lane->engine, AL_EVENT_LANE, lane->watch_id, 0, v);
}

void
al_lane_emit(al_lane_t *lane, const char *type, const char *text) {
  al_lane_emit_with(lane, type, text, al_val_map());
}

static void
unlink_lane(al_lane_t *lane) {
  for (al_lane_t **at = &lane->engine->lanes; *at; at = &(*at)->next)
    if (*at == lane) {
      *at = lane->next;
      return;
    }
}

static void
timer_closed(uv_handle_t *h) {
  al_lane_t *lane = h->data;
  if (--lane->timers) return;
  al_engine_t *e = lane->engine;
  unlink_lane(lane);
  al_lane_free(lane);
  al_engine_check_end(e);
}

static void
close_timers(al_lane_t *lane) {
  lane->finished = true;
  al_lane_timers_close(lane, timer_closed);
}

/* The lane is over: answers who waits, then frees it when its timers are closed. */
void
al_lane_finish(al_lane_t *lane) {
  lane->finish_wanted = true;
  if (lane->ops) return; /* a copy's thread may still be at work; al_lane_op_ended comes back here */
  const al_err_t *stuck = lane->state == AL_LANE_STUCK ? &lane->cause : NULL;
  /* Told first, so that nobody hears of the end after an awaited close. */
  al_lane_emit(lane, stuck ? "stuck" : "closed", stuck ? stuck->msg : lane->cause.msg);
  if (lane->create_id) {
    al_err_t err = lane->create_err.code ? lane->create_err : lane->cause;
    if (!err.lane[0]) snprintf(err.lane, sizeof err.lane, "%s", lane->spec.name);
    al_engine_fail(lane->engine, lane->create_id, &err);
    lane->create_id = 0;
  }
  for (al_waiter_t *w = lane->closers; w; w = w->next) {
    if (stuck) al_engine_fail(lane->engine, w->id, stuck);
    else al_engine_done(lane->engine, w->id, NULL);
  }
  al_lane_derive_answer(lane);
  close_timers(lane);
}

void
al_lane_op_ended(al_lane_t *lane) {
  if (lane->finish_wanted && !lane->finished && !lane->ops) al_lane_finish(lane);
}

void
al_lane_give_up(al_lane_t *lane, const al_err_t *err) {
  if (!lane->cause.code) lane->cause = *err;
  if (lane->step && !lane->cause.step[0]) snprintf(lane->cause.step, sizeof lane->cause.step, "%s", lane->step);
  if (lane->finished) return;
  /* The sweep may take its time, and there is nothing of this lane in it: who waits is told now. A child of ours is
   * waited for, though. */
  if (lane->create_id && !lane->step_busy && !lane->limactl_busy) {
    al_engine_fail(lane->engine, lane->create_id, &lane->cause);
    lane->create_id = 0;
  }
  if (lane->prelude || lane->step_busy) return; /* their last answer comes back here */
  al_lane_timers_stop(lane);
  al_registry_leave(&lane->site->registry, lane->queue.ticket);
  lane->queue.ticket = 0;
  close_timers(lane);
}

/* The table's names of the steps, for errors and events. */
static const char *
step_of(int action) {
  switch (action) {
    case AL_LANE_DO_CREATE: return "create";
    case AL_LANE_DO_BOOT: return "boot";
    case AL_LANE_DO_CONNECT: return "connect";
    case AL_LANE_DO_ANNOUNCE: return "ready";
    default: return "close";
  }
}

static al_val_t *
lane_value(const al_lane_t *lane) {
  const al_lane_spec_t *s = &lane->spec;
  char manifest[AL_RUN_PATH_MAX];
  al_val_t *v = al_val_map();
  al_run_path(&lane->site->home, s->name, manifest);
  int rc = al_val_set(v, "manifest", al_val_text(manifest));
  rc |= al_val_set(v, "lane", al_val_text(s->name)) | al_val_set(v, "worktreePath", al_val_text(lane->worktree))
    | al_val_set(v, "home", al_val_text(lane->site->home.root)) | al_val_set(v, "dir", al_val_text(s->dir))
    | al_val_set(v, "sshPort", al_val_int(lane->ssh_port)) | al_val_set(v, "image", al_val_text(s->image.id))
    | al_val_set(v, "network", al_val_text(s->network == AL_NETWORK_NONE ? "none" : "open"))
    | al_val_set(v, "accelerator", al_val_text(lane->row.accel))
    | al_val_set(v, "timeMs", al_val_int((int64_t) (al_plat_mono_ms() - lane->begun_ms)));
  if (!rc) return v;
  al_val_free(v);
  return NULL;
}

static void
announce(al_lane_t *lane) {
  al_val_t *v = lane_value(lane);
  if (!v) {
    al_err_t err = { 0 };
    al_err_set(&err, -ENOMEM, "out of memory for the answer");
    al_lane_event(lane, AL_LANE_ON_FAIL, &err, NULL);
    return;
  }
  uv_timer_stop(&lane->start_timer);
  al_lane_watch_sync_in(lane);
  al_engine_done(lane->engine, lane->create_id, v);
  lane->create_id = 0;
  al_lane_emit(lane, "ready", NULL);
}

/* A lane of which nothing would be left to say what it was is not used: the guest may have been anything. */
static void
manifest_written(void *data, int status, const al_err_t *err) {
  al_lane_t *lane = data;
  lane->step_busy = false;
  if (lane->destroy_wanted) al_lane_do_destroy(lane);
  else if (status < 0) al_lane_event(lane, AL_LANE_ON_FAIL, err, "run manifest");
  else announce(lane);
}

static void
state_written(void *data, int status, const al_err_t *err) {
  al_lane_t *lane = data;
  lane->step_busy = false;
  if (lane->destroy_wanted) {
    al_lane_do_destroy(lane);
    return;
  }
  if (status < 0) {
    al_lane_event(lane, AL_LANE_ON_FAIL, err, "registry");
    return;
  }
  switch (lane->state) {
    case AL_LANE_CREATING:
      AL_HOOK("creating");
      al_lane_do_create(lane);
      break;
    case AL_LANE_BOOTING:
      AL_HOOK("booting");
      al_lane_do_boot(lane);
      break;
    case AL_LANE_CONNECTING: al_lane_do_connect(lane); break;
    case AL_LANE_READY:
      AL_HOOK("ready");
      lane->step = "manifest";
      lane->step_busy = true;
      al_manifest_ready(lane, manifest_written);
      break;
    default: AL_ASSERT(false && "a state without a step");
  }
}

static void
keep_cause(al_lane_t *lane, int event, const al_err_t *why) {
  if (lane->cause.code || !why) return;
  lane->cause = *why;
  if (!lane->cause.code) al_err_set(&lane->cause, AL_ELANE_CLOSED, "the lane was closed");
  if (!lane->cause.lane[0]) snprintf(lane->cause.lane, sizeof lane->cause.lane, "%s", lane->spec.name);
  if (!lane->cause.step[0] && event == AL_LANE_ON_FAIL && lane->step)
    snprintf(lane->cause.step, sizeof lane->cause.step, "%s", lane->step);
}

/* What is left now matters more than why the lane was to end, but to create: it is told first why it failed. */
static void
keep_both(al_lane_t *lane, const al_err_t *why) {
  if (lane->create_id && lane->cause.code) {
    char text[2 * AL_ERR_MSG_MAX];
    int n = snprintf(text, sizeof text, "%.380s; then it could not be removed: %.200s", lane->cause.msg, why->msg);
    lane->create_err = lane->cause;
    al_utf8_printable(lane->create_err.msg, sizeof lane->create_err.msg, text, n > 0 ? (size_t) n : 0, true);
    al_err_cure(&lane->create_err, "%.110s For what is left: %.110s", al_err_cure_text(&lane->cause),
      al_err_cure_text(why));
  }
  lane->cause = *why;
}

void
al_lane_event(al_lane_t *lane, int event, const al_err_t *why, const char *reason) {
  /* This engine has had its try, the next one is the sweep's. Who asks before all are answered hears what this one came
   * to. */
  if (lane->state == AL_LANE_STUCK) return;
  if (lane->attached) {
    al_attach_end(lane, why);
    return;
  }
  al_lane_next_t next = al_lane_next(lane->state, event);
  if (next.action == AL_LANE_DO_REFUSE) return; /* a late echo, such as the channel's end after the lane's */
  if (why) keep_cause(lane, event, why);
  int from = lane->state;
  lane->state = next.state;
  if (from != next.state) al_manifest_state(lane, next.state);
  al_registry_t *r = &lane->site->registry;
  switch (next.action) {
    case AL_LANE_DO_CREATE:
    case AL_LANE_DO_BOOT:
    case AL_LANE_DO_CONNECT:
    case AL_LANE_DO_ANNOUNCE:
      lane->step = step_of(next.action);
      lane->step_busy = true;
      if (next.action != AL_LANE_DO_ANNOUNCE) al_lane_emit(lane, al_lane_state_name(next.state), NULL);
      al_registry_move(r, lane->row.id, from, next.state, reason, state_written, lane);
      break;
    case AL_LANE_DO_DESTROY:
      al_lane_emit(lane, "closing", lane->cause.msg);
      lane->destroy_wanted = true;
      if (!lane->step_busy) al_lane_do_destroy(lane);
      break;
    case AL_LANE_DO_FINISH:
      al_lane_close_row(lane, reason);
      break;
    case AL_LANE_DO_REPORT:
      if (why) keep_both(lane, why);
      al_lane_close_row(lane, why ? why->msg : reason);
      break;
    default:
      break;
  }
}
