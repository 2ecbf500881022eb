/* SPDX-License-Identifier: Apache-2.0 */
/* The end of an engine: closed in order, left behind when that takes too long, or stopped where it is with the process. */
#include "engine.h"
#include "mem.h"
#include <errno.h>
#include <pthread.h>
#include <unistd.h>

/* What exit() does concerns all loops of the process, also those of workers and those that nobody waits for any more. */
static struct {
  pthread_mutex_t lock; /* taken before an engine's own */
  al_engine_t *first;
} all = { PTHREAD_MUTEX_INITIALIZER, NULL };

void
al_engine_list(al_engine_t *e) {
  pthread_mutex_lock(&all.lock);
  e->next = all.first;
  all.first = e;
  pthread_mutex_unlock(&all.lock);
}

static void
unlist(al_engine_t *e) {
  pthread_mutex_lock(&all.lock);
  al_engine_t **at = &all.first;
  while (*at != e) at = &(*at)->next;
  *at = e->next;
  pthread_mutex_unlock(&all.lock);
}

void
al_engine_free(al_engine_t *e) {
  unlist(e);
  al_turns_free(e);
  for (al_request_t *r = e->inbox; r;) {
    al_request_t *next = r->next;
    al_request_free(r);
    r = next;
  }
  for (size_t i = 0; i < AL_ANSWER_LISTS; i++) {
    for (al_answer_t *a = e->answers[i]; a;) {
      al_answer_t *next = a->next;
      al_event_free(&a->event);
      a = next;
    }
  }
  uv_cond_destroy(&e->ended_cond);
  uv_mutex_destroy(&e->telling);
  uv_mutex_destroy(&e->lock);
  al_free(e);
}

static void
mute(al_engine_t *e) {
  uv_mutex_lock(&e->telling);
  e->muted = true;
  uv_mutex_unlock(&e->telling);
}

/* Under the lock: waits for either, until that time has come. */
static void
await(al_engine_t *e, const bool *done, const bool *or_this, uint64_t end) {
  while (!*done && !*or_this) {
    uint64_t now = uv_hrtime();
    if (now >= end || uv_cond_timedwait(&e->ended_cond, &e->lock, end - now) == UV_ETIMEDOUT) break;
  }
}

static uint64_t
end_of(unsigned timeout_ms) {
  return uv_hrtime() + (uint64_t) timeout_ms * 1000000u;
}

int
al_engine_close(al_engine_t *e, unsigned timeout_ms) {
  uint64_t end = end_of(timeout_ms);
  uv_mutex_lock(&e->lock);
  e->stopping = true;
  uv_async_send(&e->wake);
  await(e, &e->ended, &e->stopped, end);
  int left = e->ended ? 0 : e->lanes_left;
  bool ended = e->ended;
  mute(e);
  if (!ended) e->orphaned = true;
  uv_thread_t thread = e->thread;
  uv_mutex_unlock(&e->lock);
  if (ended) {
    uv_thread_join(&thread);
    al_engine_free(e);
  }
  return left;
}

void
al_engine_heed_leave(al_engine_t *e) {
  if (!e->leaving || e->left) return;
  e->left = true;
  e->stopped = e->lanes || e->busy || e->inbox || e->refuse;
  uv_cond_broadcast(&e->ended_cond);
  if (!e->stopped) return;
  uv_mutex_unlock(&e->lock);
  for (;;) pause();
}

int
al_engines_leave(unsigned timeout_ms) {
  uint64_t end = end_of(timeout_ms);
  int rc = 0;
  pthread_mutex_lock(&all.lock);
  for (al_engine_t *e = all.first; e; e = e->next) {
    uv_mutex_lock(&e->lock);
    e->leaving = true;
    if (!e->ended) uv_async_send(&e->wake);
    uv_mutex_unlock(&e->lock);
  }
  for (al_engine_t *e = all.first; e; e = e->next) {
    uv_mutex_lock(&e->lock);
    await(e, &e->left, &e->ended, end);
    if (!e->left && !e->ended) rc = -ETIMEDOUT;
    uv_mutex_unlock(&e->lock);
  }
  pthread_mutex_unlock(&all.lock);
  return rc;
}
