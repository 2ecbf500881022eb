/* SPDX-License-Identifier: Apache-2.0 */
/* A worker: one thread with a queue of blocking jobs, whose ends come back on the loop. Not Node's shared pool. */
#ifndef AL_WORK_H
#define AL_WORK_H

#include <stdbool.h>
#include <uv.h>

typedef struct al_worker_s al_worker_t;
typedef struct al_job_s al_job_t;

/* Loop thread: open, post, close. Jobs that are not done keep the loop alive, an idle worker does not. */

/* Embedded in the caller's memory, which stays until `done`. run: worker thread. done: loop thread, exactly once,
 * never from inside al_worker_post; status is run's value, or UV_ECANCELED when it was dropped before it ran. */
struct al_job_s {
  int (*run)(al_job_t *job);
  void (*done)(al_job_t *job, int status);
  void *data;
  int status; /* private from here */
  al_job_t *next;
};

int
al_worker_open(uv_loop_t *loop, al_worker_t **out); /* 0, -ENOMEM, -EAGAIN (no thread) */
void
al_worker_post(al_worker_t *w, al_job_t *job, int (*run)(al_job_t *), void (*done)(al_job_t *, int));
/* Finishes the running job, drops the waiting ones (done with UV_ECANCELED), then cb on the loop; w is gone then. */
void
al_worker_close(al_worker_t *w, void (*cb)(void *data), void *data);

#endif
