/* SPDX-License-Identifier: Apache-2.0 */
/* Transports, inside: a child process whose stdin and stdout become the channel. */
#ifndef AL_TRANSPORT_INT_H
#define AL_TRANSPORT_INT_H

#include "proc.h"
#include "transport.h"
#include "work.h"

#define AL__PREFACE_MAX 16384u /* what a login may print before the marker */

struct al_transport_s {
  uv_loop_t *loop;
  al_transport_cbs_t cbs;
  void *data;
  void (*release)(
    al_transport_t *t); /* frees what the kind of transport owns; the block itself is freed by the caller of it */
  al_proc_t proc;
  bool proc_runs, job_runs, told, reads, retrying, closing;
  int (*again)(al_transport_t *t); /* makes another run after ssh itself failed; NULL: one try only */
  int runs;
  uint64_t end; /* of the deadline */
  int handles; /* initialised and not closed yet */
  uv_pipe_t to, from;
  al_job_t job;
  al_err_t err;
  uv_timer_t timer;
  uv_write_t write;
  char marker[64];
  al_buf_t preface;
  char chunk[16384];
  char stderr_text[1024];
  void (*close_cb)(void *data);
  void *close_data;
};

void
al__transport_init(
  al_transport_t *t, uv_loop_t *loop, const al_transport_cbs_t *cbs, void *data, void (*release)(al_transport_t *));
/* A job before the child; false from al__transport_job_ended means: closed meanwhile, touch nothing. */
void
al__transport_job(al_transport_t *t, al_worker_t *io, int (*run)(al_job_t *), void (*done)(al_job_t *, int));
bool
al__transport_job_ended(al_transport_t *t);
/* Starts the child, writes `first` (borrowed until the end) to it and waits for `marker` (NULL: open at once, on the
 * loop's next turn). */
int
al__transport_run(al_transport_t *t, const al_proc_opts_t *opts, const char *first, size_t first_len,
  const char *marker, uint64_t deadline_ms);
/* Tells t->err on the loop's next turn. */
int
al__transport_fail_soon(al_transport_t *t);
/* Tells on_failed, once. `why` NULL: t->err, or the status in words. */
void
al__transport_fail(al_transport_t *t, int status, const al_err_t *why);

#endif
