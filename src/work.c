/* SPDX-License-Identifier: Apache-2.0 */
/* A worker: one thread, one FIFO of blocking jobs, one uv_async that brings their ends back to the loop. */
#include "work.h"
#include "mem.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>

typedef struct queue_s {
  al_job_t *head, **tail;
} queue_t;

struct al_worker_s {
  uv_loop_t *loop;
  uv_thread_t thread;
  uv_mutex_t lock;
  uv_cond_t wake;
  uv_async_t async;
  /* Under `lock`; `closing` is written by the loop thread only, which therefore reads it without. */
  queue_t waiting, ended;
  bool closing, thread_over;
  /* Loop thread only. */
  size_t owed; /* jobs posted whose done has not been called: they keep the loop alive, an idle worker does not */
  bool closed;
  void (*close_cb)(void *data);
  void *close_data;
};

static void
push(queue_t *q, al_job_t *job) {
  job->next = NULL;
  *q->tail = job;
  q->tail = &job->next;
}

static al_job_t *
pop(queue_t *q) {
  al_job_t *job = q->head;

  if (job && !(q->head = job->next)) q->tail = &q->head;
  return job;
}

static void
thread_main(void *arg) {
  al_worker_t *w = arg;

  uv_mutex_lock(&w->lock);
  for (;;) {
    while (!w->closing && !w->waiting.head) uv_cond_wait(&w->wake, &w->lock);
    if (w->closing) break;
    al_job_t *job = pop(&w->waiting);
    uv_mutex_unlock(&w->lock);
    job->status = job->run(job);
    uv_mutex_lock(&w->lock);
    push(&w->ended, job);
    uv_async_send(&w->async);
  }
  w->thread_over = true;
  /* Under the lock: the loop closes `async` only after it has seen thread_over and joined this thread. */
  uv_async_send(&w->async);
  uv_mutex_unlock(&w->lock);
}

static void
refresh_ref(al_worker_t *w) {
  if (w->owed || w->closing) uv_ref((uv_handle_t *) &w->async);
  else uv_unref((uv_handle_t *) &w->async);
}

static void
finish(al_worker_t *w, al_job_t *job) {
  w->owed--;
  job->done(job, job->status);
}

/* Calls done for the jobs that ran and, once the thread is over, for those that never will. */
static bool
deliver(al_worker_t *w) {
  bool over;

  for (;;) {
    uv_mutex_lock(&w->lock);
    al_job_t *job = pop(&w->ended);
    over = w->thread_over;
    if (!job && over && (job = pop(&w->waiting))) job->status = UV_ECANCELED;
    uv_mutex_unlock(&w->lock);
    if (!job) return over;
    finish(w, job);
  }
}

static void
destroy(al_worker_t *w) {
  uv_mutex_destroy(&w->lock);
  uv_cond_destroy(&w->wake);
  al_free(w);
}

static void
on_closed(uv_handle_t *handle) {
  al_worker_t *w = handle->data;
  void (*cb)(void *) = w->close_cb;
  void *data = w->close_data;

  /* A done callback of the last round may have posted again. */
  deliver(w);
  destroy(w);
  if (cb) cb(data);
}

static void
on_async(uv_async_t *async) {
  al_worker_t *w = async->data;

  bool over = deliver(w);
  if (over && !w->closed) {
    w->closed = true;
    uv_thread_join(&w->thread);
    uv_close((uv_handle_t *) &w->async, on_closed);
  } else if (!w->closed) {
    refresh_ref(w);
  }
}

static void
on_open_failed(uv_handle_t *handle) {
  destroy(handle->data);
}

/* The host process's signals are for its own threads: a handler must not run on ours, in the middle of SQLite. */
static int
start_thread(al_worker_t *w) {
  sigset_t all, old;

  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  int rc = uv_thread_create(&w->thread, thread_main, w);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  return rc;
}

int
al_worker_open(uv_loop_t *loop, al_worker_t **out) {
  *out = NULL;
  al_worker_t *w = al_calloc(1, sizeof *w);
  if (!w) return -ENOMEM;
  w->loop = loop;
  w->waiting.tail = &w->waiting.head;
  w->ended.tail = &w->ended.head;
  int rc = uv_mutex_init(&w->lock);
  if (rc) goto fail_free;
  rc = uv_cond_init(&w->wake);
  if (rc) goto fail_mutex;
  rc = uv_async_init(loop, &w->async, on_async);
  if (rc) goto fail_cond;
  w->async.data = w;
  uv_unref((uv_handle_t *) &w->async);
  if (start_thread(w)) {
    uv_close((uv_handle_t *) &w->async, on_open_failed);
    return -EAGAIN;
  }
  *out = w;
  return 0;

fail_cond:
  uv_cond_destroy(&w->wake);
fail_mutex:
  uv_mutex_destroy(&w->lock);
fail_free:
  al_free(w);
  return rc;
}

void
al_worker_post(al_worker_t *w, al_job_t *job, int (*run)(al_job_t *), void (*done)(al_job_t *, int)) {
  job->run = run;
  job->done = done;
  job->status = 0;
  w->owed++;
  uv_mutex_lock(&w->lock);
  push(&w->waiting, job);
  if (!w->closing) uv_cond_signal(&w->wake);
  else if (!w->closed) uv_async_send(&w->async);
  uv_mutex_unlock(&w->lock);
  if (!w->closed) refresh_ref(w);
}

void
al_worker_close(al_worker_t *w, void (*cb)(void *data), void *data) {
  AL_ASSERT(!w->closing);
  w->close_cb = cb;
  w->close_data = data;
  uv_ref((uv_handle_t *) &w->async);
  uv_mutex_lock(&w->lock);
  w->closing = true;
  uv_cond_signal(&w->wake);
  uv_mutex_unlock(&w->lock);
}
