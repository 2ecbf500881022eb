/* SPDX-License-Identifier: Apache-2.0 */
/* Engine: the core's own thread and loop, the inbox from JavaScript, and the events back. Its end is in engine_end.c. */
#include "engine.h"
#include "lane_life.h"
#include "mem.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define TAKEN_STEP 65536u /* far below a window, so that it is never what a guest waits for */
#define LOOP_FDS 8 /* at most that many descriptors does a loop have at first */

/* Theory of operation. JavaScript's thread appends requests to the inbox and wakes the loop; the loop thread answers
 * each with exactly one DONE or ERROR through opts.on_event. The event of that answer is allocated with the request and
 * waits in `answers`, so that it can be given without memory. al_engine_close sets `stopping`; the loop then refuses
 * new requests, ends every lane, closes the sites and returns. When the closer's patience ends first, the engine is
 * orphaned: it is muted (no event any more), finishes on its own thread and frees itself. */

static const struct {
  const char *name;
  void (*run)(al_engine_t *e, al_request_t *r);
} handlers[] = {
  { "create", al_do_create },
  { "attach", al_do_attach },
  { "exec", al_do_exec },
  { "write", al_do_write },
  { "signal", al_do_signal },
  { "resize", al_do_resize },
  { "cancel", al_do_cancel },
  { "copyIn", al_do_copy_in },
  { "copyOut", al_do_copy_out },
  { "copyTreeOut", al_do_copy_tree_out },
  { "syncedIn", al_do_synced_in },
  { "ping", al_do_ping },
  { "close", al_do_close },
  { "list", al_do_list },
  { "inspect", al_do_inspect },
  { "logs", al_do_logs },
  { "events", al_do_events },
  { "runs", al_do_runs },
  { "runCheck", al_do_run_check },
  { "end", al_do_end },
  { "reap", al_do_reap },
  { "imageImport", al_do_image_import },
  { "imageList", al_do_image_list },
  { "imageInspect", al_do_image_inspect },
  { "imageSigned", al_do_image_signed },
  { "imageVerify", al_do_image_verify },
  { "imageExport", al_do_image_export },
  { "imageRemove", al_do_image_remove },
  { "imagePrune", al_do_image_prune },
  { "imageDerived", al_do_image_derived },
  { "imageUnclaim", al_do_image_unclaim },
  { "derive", al_do_derive },
  { "doctor", al_do_doctor },
  { "explain", al_do_explain },
  { "home", al_do_home },
  { "errors", al_do_errors },
};

void
al_event_free(al_event_t *e) {
  if (!e) return;
  al_val_free(e->value);
  al_free(e);
}

#define JOIN_STEP ((size_t) 4096) /* room grows by whole steps, so that single bytes do not move the others each time */

static bool
join_bytes(al_val_t *to, const al_val_t *from) {
  size_t room = (to->len + from->len + 1 + JOIN_STEP - 1) / JOIN_STEP * JOIN_STEP;
  char *bytes = al_realloc(to->text, room);
  if (!bytes) return false;
  memcpy(bytes + to->len, from->text, from->len);
  to->text = bytes;
  to->len += from->len;
  bytes[to->len] = 0;
  return true;
}

bool
al_event_join(al_event_t *queue, al_event_t *e) {
  bool progress = e->type == AL_EVENT_PROGRESS;
  if ((e->type != AL_EVENT_LINES && e->type != AL_EVENT_BYTES && !progress) || !e->value) return false;
  while (queue && (queue->type != e->type || queue->id != e->id || queue->sub != e->sub || !queue->value))
    queue = queue->next;
  if (!queue) return false;
  if (progress) {
    al_val_t *old = queue->value;
    queue->value = e->value;
    e->value = old;
  } else if (!join_bytes(queue->value, e->value)) {
    return false;
  }
  al_event_free(e);
  return true;
}

static void
send_event(al_engine_t *e, al_event_t *ev) {
  uv_mutex_lock(&e->telling);
  bool muted = e->muted;
  if (!muted) e->opts.on_event(e->opts.data, ev); /* under the lock: after muting no call may be on its way */
  uv_mutex_unlock(&e->telling);
  if (muted) al_event_free(ev);
  e->untold = true;
}

/* JavaScript is woken once for all that a turn of the loop has brought. */
static void
tell_turn(al_engine_t *e) {
  if (!e->untold) return;
  e->untold = false;
  uv_mutex_lock(&e->telling);
  if (!e->muted && e->opts.on_turn) e->opts.on_turn(e->opts.data);
  uv_mutex_unlock(&e->telling);
}

static void
on_before_poll(uv_prepare_t *handle) {
  tell_turn(handle->data);
}

static void
on_after_poll(uv_check_t *handle) {
  tell_turn(handle->data);
}

static void
close_handles(al_engine_t *e) {
  uv_close((uv_handle_t *) &e->wake, NULL);
  uv_close((uv_handle_t *) &e->before_poll, NULL);
  uv_close((uv_handle_t *) &e->after_poll, NULL);
}

int
al_engine_emit(al_engine_t *e, al_event_type_t type, uint32_t id, int sub, al_val_t *value) {
  al_event_t *ev = al_calloc(1, sizeof *ev);
  if (!ev) {
    al_val_free(value);
    return -ENOMEM;
  }
  ev->type = type;
  ev->id = id;
  ev->sub = sub;
  ev->value = value;
  send_event(e, ev);
  return 0;
}

/* The place that leads to the answer of `id`, or the end of its list. Under the lock. */
static al_answer_t **
answer_place(al_engine_t *e, uint32_t id) {
  al_answer_t **at = &e->answers[id % AL_ANSWER_LISTS];
  while (*at && (*at)->event.id != id) at = &(*at)->next;
  return at;
}

/* The event that was allocated with the request. */
static al_event_t *
take_answer(al_engine_t *e, uint32_t id) {
  uv_mutex_lock(&e->lock);
  al_answer_t **at = answer_place(e, id), *a = *at;
  if (a) *at = a->next;
  if (a && a->listed) {
    al_answer_t **taken = &e->taken;
    while (*taken != a) taken = &(*taken)->next_taken;
    *taken = a->next_taken;
  }
  uv_mutex_unlock(&e->lock);
  AL_ASSERT(a); /* each request is answered once */
  return &a->event;
}

void
al_engine_done(al_engine_t *e, uint32_t id, al_val_t *value) {
  al_event_t *ev = take_answer(e, id);
  ev->type = AL_EVENT_DONE;
  ev->value = value;
  send_event(e, ev);
}

void
al_engine_fail_with(al_engine_t *e, uint32_t id, const al_err_t *err, al_val_t *value) {
  al_event_t *ev = take_answer(e, id);
  ev->type = AL_EVENT_ERROR;
  ev->err = *err;
  ev->value = value;
  if (!ev->err.code) al_err_set(&ev->err, AL_EINTERNAL, "the operation failed without saying why");
  send_event(e, ev);
}

void
al_engine_fail(al_engine_t *e, uint32_t id, const al_err_t *err) {
  al_engine_fail_with(e, id, err, NULL);
}

void
al_engine_answer(al_engine_t *e, uint32_t id, const char *op, al_val_t *value, int rc) {
  if (value && !rc) {
    al_engine_done(e, id, value);
    return;
  }
  al_err_t err = { 0 };
  al_err_set(&err, -ENOMEM, "%s: out of memory for the answer", op);
  al_val_free(value);
  al_engine_fail(e, id, &err);
}

void
al_engine_conclude(al_engine_t *e, uint32_t id, al_val_t *value, int status, al_err_t *err) {
  if (status >= 0) {
    al_engine_done(e, id, value);
    return;
  }
  if (!err->code) al_err_set(err, status, "the operation did not run to its end");
  al_val_free(value);
  al_engine_fail(e, id, err);
}

void
al_request_free(al_request_t *r) {
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

/* What the receivers have consumed since the last time. */
static void
give_taken(al_engine_t *e) {
  for (;;) {
    uint32_t id = 0;
    size_t n[2] = { 0 };
    uv_mutex_lock(&e->lock);
    al_answer_t *a = e->taken;
    if (a) {
      e->taken = a->next_taken;
      a->listed = false;
      id = a->event.id;
      memcpy(n, a->taken, sizeof n);
      memset(a->taken, 0, sizeof a->taken);
    }
    uv_mutex_unlock(&e->lock);
    if (!a) return;
    for (int sub = 1; sub <= 2; sub++)
      if (n[sub - 1]) al_calls_taken(e, id, sub, n[sub - 1]);
  }
}

static void
on_wake(uv_async_t *wake) {
  al_engine_t *e = wake->data;
  uv_mutex_lock(&e->lock);
  al_engine_heed_leave(e);
  al_request_t *list = e->inbox;
  e->inbox = NULL;
  e->inbox_tail = &e->inbox;
  bool stopping = e->stopping;
  uv_mutex_unlock(&e->lock);
  while (list) {
    al_request_t *r = list;
    list = r->next;
    dispatch(e, r);
    al_request_free(r);
  }
  give_taken(e);
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
  if (!e->sites && !uv_is_closing((uv_handle_t *) &e->wake)) close_handles(e);
}

static void
run_thread(void *arg) {
  al_engine_t *e = arg;
  uv_run(&e->loop, UV_RUN_DEFAULT);
  tell_turn(e);
  uv_mutex_lock(&e->lock);
  e->ended = true; /* before the loop goes: nobody may wake one that is gone */
  bool orphaned = e->orphaned;
  uv_cond_broadcast(&e->ended_cond);
  uv_mutex_unlock(&e->lock);
  uv_loop_close(&e->loop);
  if (orphaned) al_engine_free(e);
}

static int
fill_identity(al_engine_t *e) {
  uint8_t id[16];
  int rc = al_plat_random(id, sizeof id);
  if (rc) return rc;
  for (size_t i = 0; i < sizeof id; i++) snprintf(e->env_id + 2 * i, 3, "%02x", id[i]);
  /* By this other processes tell whether the owner of our lanes still lives. */
  return al_plat_ident(uv_os_getpid(), &e->self);
}

/* libuv (1.44 at least) forgets the first descriptor of a loop when it gets no second; so they are looked for before. */
static int
have_descriptors(void) {
  int fds[LOOP_FDS], n = 0, rc = 0;
  while (n < LOOP_FDS && !rc) {
    fds[n] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (fds[n] < 0) rc = -errno;
    else n++;
  }
  while (n > 0) close(fds[--n]);
  return rc;
}

/* They cannot fail, and do not keep the loop alive. */
static void
prepare_turns(al_engine_t *e) {
  uv_prepare_init(&e->loop, &e->before_poll);
  uv_check_init(&e->loop, &e->after_poll);
  e->before_poll.data = e->after_poll.data = e;
  uv_prepare_start(&e->before_poll, on_before_poll);
  uv_check_start(&e->after_poll, on_after_poll);
  uv_unref((uv_handle_t *) &e->before_poll);
  uv_unref((uv_handle_t *) &e->after_poll);
}

int
al_engine_open(const al_engine_opts_t *opts, al_engine_t **out, al_err_t *err) {
  al_engine_t *e = al_calloc(1, sizeof *e);
  if (!e) return al_err_set(err, -ENOMEM, "out of memory");
  e->opts = *opts;
  snprintf(e->package_dir, sizeof e->package_dir, "%s", opts->package_dir ? opts->package_dir : "");
  e->inbox_tail = &e->inbox;
  int rc = fill_identity(e);
  if (rc || (rc = uv_mutex_init(&e->lock))) goto no_mutex;
  if ((rc = uv_mutex_init(&e->telling))) goto no_telling;
  if ((rc = uv_cond_init(&e->ended_cond))) goto no_cond;
  if ((rc = have_descriptors()) || (rc = uv_loop_init(&e->loop))) goto no_loop;
  e->wake.data = e;
  if ((rc = uv_async_init(&e->loop, &e->wake, on_wake))) goto no_async;
  prepare_turns(e);
  if ((rc = uv_thread_create(&e->thread, run_thread, e))) goto no_thread;
  al_engine_list(e);
  *out = e;
  return 0;
no_thread:
  close_handles(e);
  uv_run(&e->loop, UV_RUN_DEFAULT);
no_async:
  uv_loop_close(&e->loop);
no_loop:
  uv_cond_destroy(&e->ended_cond);
no_cond:
  uv_mutex_destroy(&e->telling);
no_telling:
  uv_mutex_destroy(&e->lock);
no_mutex:
  al_free(e);
  return al_err_set(err, rc, "the engine's thread could not be started: %s", uv_strerror(rc));
}

int
al_engine_post(al_engine_t *e, uint32_t id, const char *op, al_val_t *params) {
  al_request_t *r = params ? al_calloc(1, sizeof *r) : NULL;
  al_answer_t *a = r ? al_calloc(1, sizeof *a) : NULL;
  if (!a) {
    al_free(r);
    al_val_free(params);
    return -ENOMEM;
  }
  r->id = a->event.id = id;
  r->params = params;
  snprintf(r->op, sizeof r->op, "%s", op);
  uv_mutex_lock(&e->lock);
  a->next = e->answers[id % AL_ANSWER_LISTS];
  e->answers[id % AL_ANSWER_LISTS] = a;
  *e->inbox_tail = r;
  e->inbox_tail = &r->next;
  uv_mutex_unlock(&e->lock);
  uv_async_send(&e->wake); /* behind the lock, which the woken thread wants */
  return 0;
}

/* The engine makes credit of it in portions that are larger than this one. */
void
al_engine_taken(al_engine_t *e, uint32_t id, int sub, size_t n) {
  if (sub != 1 && sub != 2) return;
  bool tell = false;
  uv_mutex_lock(&e->lock);
  al_answer_t *a = *answer_place(e, id);
  if (a && n) {
    a->taken[sub - 1] += n;
    tell = a->taken[sub - 1] >= TAKEN_STEP || a->hurry;
    if (!a->listed) {
      a->listed = true;
      a->next_taken = e->taken;
      e->taken = a;
    }
  }
  uv_mutex_unlock(&e->lock);
  if (tell) uv_async_send(&e->wake);
}

void
al_engine_hurry(al_engine_t *e, uint32_t id) {
  uv_mutex_lock(&e->lock);
  al_answer_t *a = *answer_place(e, id);
  bool tell = a && a->taken[0] + a->taken[1] > 0;
  if (a) a->hurry = true;
  uv_mutex_unlock(&e->lock);
  if (tell) uv_async_send(&e->wake);
}
