/* SPDX-License-Identifier: Apache-2.0 */
/* Engine: the core's own thread and loop, the inbox from JavaScript, the events back, and the end of both. */
#include "engine.h"
#include "lane_life.h"
#include "mem.h"
#include <stdio.h>
#include <string.h>

/* Theory of operation. JavaScript's thread appends requests to the inbox and wakes the loop; the loop thread answers
 * each with exactly one DONE or ERROR through opts.on_event. al_engine_close sets `stopping`; the loop then refuses new
 * requests, ends every lane, closes the sites and returns. When the closer's patience ends first, the engine is
 * orphaned: it is muted (no event any more), finishes on its own thread and frees itself. */

static const struct {
  const char *name;
  void (*run)(al_engine_t *e, al_request_t *r);
} handlers[] = {
  { "create", al_do_create },
  { "exec", al_do_exec },
  { "write", al_do_write },
  { "signal", al_do_signal },
  { "cancel", al_do_cancel },
  { "copyIn", al_do_copy_in },
  { "copyOut", al_do_copy_out },
  { "syncedIn", al_do_synced_in },
  { "ping", al_do_ping },
  { "close", al_do_close },
  { "list", al_do_list },
  { "reap", al_do_reap },
  { "imageImport", al_do_image_import },
  { "imageList", al_do_image_list },
  { "doctor", al_do_doctor },
  { "errors", al_do_errors },
};

void
al_event_free(al_event_t *e) {
  if (!e) return;
  al_val_free(e->value);
  al_free(e);
}

#define JOIN_STEP ((size_t) 4096) /* room grows by whole steps, so that single bytes do not move the others each time */

bool
al_event_join(al_event_t *queue, al_event_t *e) {
  if ((e->type != AL_EVENT_LINES && e->type != AL_EVENT_BYTES) || !e->value) return false;
  while (queue && (queue->type != e->type || queue->id != e->id || queue->sub != e->sub || !queue->value)) queue = queue->next;
  if (!queue) return false;
  al_val_t *to = queue->value, *from = e->value;
  size_t room = (to->len + from->len + 1 + JOIN_STEP - 1) / JOIN_STEP * JOIN_STEP;
  char *bytes = al_realloc(to->text, room);
  if (!bytes) return false;
  memcpy(bytes + to->len, from->text, from->len);
  to->text = bytes;
  to->len += from->len;
  bytes[to->len] = 0;
  al_event_free(e);
  return true;
}

static void
send_event(al_engine_t *e, al_event_t *ev) {
  uv_mutex_lock(&e->lock);
  bool muted = e->muted;
  if (!muted) e->opts.on_event(e->opts.data, ev); /* under the lock: after muting no call may be on its way */
  uv_mutex_unlock(&e->lock);
  if (muted) al_event_free(ev);
}

void
al_engine_emit(al_engine_t *e, al_event_type_t type, uint32_t id, int sub, al_val_t *value) {
  al_event_t *ev = al_calloc(1, sizeof *ev);
  if (!ev) { /* nothing can be told without memory; an answer that never comes would be worse than ending here */
    al_val_free(value);
    AL_ASSERT(type != AL_EVENT_DONE && type != AL_EVENT_ERROR);
    return;
  }
  ev->type = type;
  ev->id = id;
  ev->sub = sub;
  ev->value = value;
  send_event(e, ev);
}

void
al_engine_done(al_engine_t *e, uint32_t id, al_val_t *value) {
  al_engine_emit(e, AL_EVENT_DONE, id, 0, value);
}

void
al_engine_fail(al_engine_t *e, uint32_t id, const al_err_t *err) {
  al_event_t *ev = al_calloc(1, sizeof *ev);
  AL_ASSERT(ev);
  ev->type = AL_EVENT_ERROR;
  ev->id = id;
  ev->err = *err;
  if (!ev->err.code) al_err_set(&ev->err, AL_EINTERNAL, "the operation failed without saying why");
  send_event(e, ev);
}

static void
request_free(al_request_t *r) {
  al_val_free(r->params);
  al_free(r);
}

static void
dispatch(al_engine_t *e, al_request_t *r) {
  al_err_t err = { 0 };
  for (size_t i = 0; i < sizeof handlers / sizeof *handlers; i++) {
    if (strcmp(handlers[i].name, r->op)) continue;
    if (e->refuse && strcmp(r->op, "close")) {
      al_err_set(&err, AL_EINTERRUPTED, "%s: this process is ending and takes no new work", r->op);
      al_engine_fail(e, r->id, &err);
    } else {
      handlers[i].run(e, r);
    }
    return;
  }
  al_err_set(&err, AL_EINTERNAL, "there is no operation called \"%s\"", r->op);
  al_engine_fail(e, r->id, &err);
}

static void
on_wake(uv_async_t *wake) {
  al_engine_t *e = wake->data;
  uv_mutex_lock(&e->lock);
  al_request_t *list = e->inbox;
  e->inbox = NULL;
  e->inbox_tail = &e->inbox;
  bool stopping = e->stopping;
  uv_mutex_unlock(&e->lock);
  while (list) {
    al_request_t *r = list;
    list = r->next;
    if (r->op[0]) dispatch(e, r);
    else al_calls_taken(e, r->id, r->sub, r->taken);
    request_free(r);
  }
  if (stopping && !e->refuse) {
    e->refuse = true;
    al_lanes_close_all(e);
    al_engine_check_end(e);
  }
}

void
al_engine_check_end(al_engine_t *e) {
  uv_mutex_lock(&e->lock);
  e->lanes_left = al_lanes_count(e);
  uv_mutex_unlock(&e->lock);
  if (!e->refuse || e->lanes || e->busy) return;
  if (!e->closing_sites) {
    e->closing_sites = true;
    al_site_close_all(e);
    return; /* al_site_close_all comes back here */
  }
  if (!e->sites && !uv_is_closing((uv_handle_t *) &e->wake)) uv_close((uv_handle_t *) &e->wake, NULL);
}

static void
engine_free(al_engine_t *e) {
  for (al_request_t *r = e->inbox; r;) {
    al_request_t *next = r->next;
    request_free(r);
    r = next;
  }
  uv_cond_destroy(&e->ended_cond);
  uv_mutex_destroy(&e->lock);
  al_free(e);
}

static void
run_thread(void *arg) {
  al_engine_t *e = arg;
  uv_run(&e->loop, UV_RUN_DEFAULT);
  uv_loop_close(&e->loop);
  uv_mutex_lock(&e->lock);
  e->ended = true;
  bool orphaned = e->orphaned;
  uv_cond_signal(&e->ended_cond);
  uv_mutex_unlock(&e->lock);
  if (orphaned) engine_free(e);
}

static void
fill_identity(al_engine_t *e) {
  uint8_t id[16];
  if (al_plat_random(id, sizeof id)) memset(id, 0, sizeof id);
  for (size_t i = 0; i < sizeof id; i++) snprintf(e->env_id + 2 * i, 3, "%02x", id[i]);
  al_plat_ident(uv_os_getpid(), &e->self);
}

int
al_engine_open(const al_engine_opts_t *opts, al_engine_t **out, al_err_t *err) {
  al_engine_t *e = al_calloc(1, sizeof *e);
  if (!e) return al_err_set(err, -ENOMEM, "out of memory");
  e->opts = *opts;
  snprintf(e->package_dir, sizeof e->package_dir, "%s", opts->package_dir ? opts->package_dir : "");
  e->inbox_tail = &e->inbox;
  fill_identity(e);
  int rc = uv_mutex_init(&e->lock);
  if (rc) goto no_mutex;
  if ((rc = uv_cond_init(&e->ended_cond))) goto no_cond;
  if ((rc = uv_loop_init(&e->loop))) goto no_loop;
  e->wake.data = e;
  if ((rc = uv_async_init(&e->loop, &e->wake, on_wake))) goto no_async;
  if ((rc = uv_thread_create(&e->thread, run_thread, e))) goto no_thread;
  *out = e;
  return 0;
no_thread:
  uv_close((uv_handle_t *) &e->wake, NULL);
  uv_run(&e->loop, UV_RUN_DEFAULT);
no_async:
  uv_loop_close(&e->loop);
no_loop:
  uv_cond_destroy(&e->ended_cond);
no_cond:
  uv_mutex_destroy(&e->lock);
no_mutex:
  al_free(e);
  return al_err_set(err, rc, "the engine's thread could not be started: %s", uv_strerror(rc));
}

static void
append(al_engine_t *e, al_request_t *r) {
  uv_mutex_lock(&e->lock);
  *e->inbox_tail = r;
  e->inbox_tail = &r->next;
  uv_async_send(&e->wake);
  uv_mutex_unlock(&e->lock);
}

void
al_engine_post(al_engine_t *e, uint32_t id, const char *op, al_val_t *params) {
  al_request_t *r = al_calloc(1, sizeof *r);
  if (!r || !params) {
    al_err_t err = { 0 };
    al_err_set(&err, -ENOMEM, "%s: out of memory", op);
    al_free(r);
    al_val_free(params);
    al_engine_fail(e, id, &err);
    return;
  }
  r->id = id;
  r->params = params;
  snprintf(r->op, sizeof r->op, "%s", *op ? op : "?");
  append(e, r);
}

void
al_engine_taken(al_engine_t *e, uint32_t id, int sub, size_t n) {
  al_request_t *r = al_calloc(1, sizeof *r);
  if (!r) return; /* the stream stays stalled: bounded, and cancel still works */
  r->id = id;
  r->sub = sub;
  r->taken = n;
  append(e, r);
}

int
al_engine_close(al_engine_t *e, unsigned timeout_ms) {
  uint64_t end = uv_hrtime() + (uint64_t) timeout_ms * 1000000u;
  uv_mutex_lock(&e->lock);
  e->stopping = true;
  uv_async_send(&e->wake);
  while (!e->ended) {
    uint64_t now = uv_hrtime();
    if (now >= end || uv_cond_timedwait(&e->ended_cond, &e->lock, end - now) == UV_ETIMEDOUT) break;
  }
  int left = e->ended ? 0 : e->lanes_left;
  bool ended = e->ended;
  e->muted = true;
  if (!ended) e->orphaned = true;
  uv_thread_t thread = e->thread;
  uv_mutex_unlock(&e->lock);
  if (ended) {
    uv_thread_join(&thread);
    engine_free(e);
  }
  return left;
}
