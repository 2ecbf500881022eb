/* SPDX-License-Identifier: Apache-2.0 */
/* Transports, inside: a child process whose stdin and stdout become the channel, or one socket that is both. */
#ifndef AL_TRANSPORT_INT_H
#define AL_TRANSPORT_INT_H

#include "proc.h"
#include "transport.h"
#include "work.h"

#define AL__RUNS_MAX 4 /* of a child that ends with ssh's own exit code before its marker */
#define AL__PREFACE_MAX 16384u /* what a login may print before the marker */
#define AL__AGENT_MAX (8u << 20)
#define AL__MARKER "agent-lane-" /* before the token, on a line of its own */

/* The lane agent as it crosses: `room` free bytes, then the file; and the token of this crossing. */
typedef struct al__agent_s {
  char *bytes;
  size_t len, room;
  char token[33];
} al__agent_t;

struct al_transport_s {
  uv_loop_t *loop;
  al_transport_cbs_t cbs;
  void *data;
  void (*release)(
    al_transport_t *t); /* frees what the kind of transport owns; the block itself is freed by the caller of it */
  al_proc_t proc;
  bool proc_runs, job_runs, told, reads, retrying, closing;
  bool socket; /* no child: `from` is both streams */
  void (*on_eof)(al_transport_t *t); /* of a socket, before its marker */
  int (*again)(al_transport_t *t); /* makes another run after ssh itself failed; NULL: one try only */
  int runs, runs_max; /* of the child */
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
/* The same with a `limactl shell NAME` that runs `script` (constant but for our own numbers and tokens) as root. */
int
al__transport_login(al_transport_t *t, al_lima_t *l, const char *name, const char *script, const char *input,
  size_t len, const char *marker, uint64_t ms);
/* The same on a connected socket (taken, also on failure); `deadline` is t->end. */
int
al__transport_socket(al_transport_t *t, int fd, const char *first, size_t first_len, const char *marker);
/* Calls t->again after `ms`. With `late`: not after t->end, when the transport fails with these words. */
void
al__transport_again(al_transport_t *t, uint64_t ms, const char *late);
/* Reads the agent for `arch` with `room` bytes before it, which the caller fills; on a worker. */
int
al__transport_load(const al_lima_t *l, const char *arch, size_t room, al__agent_t *out, al_err_t *err);
/* Tells t->err on the loop's next turn. */
int
al__transport_fail_soon(al_transport_t *t);
/* Tells on_failed, once. `why` NULL: t->err, or the status in words. */
void
al__transport_fail(al_transport_t *t, int status, const al_err_t *why);

#endif
