/* SPDX-License-Identifier: Apache-2.0 */
/* Transport: what carries the channel. One interface: `shell` (limactl shell NAME), `port` (a virtio port, QEMU only). */
#ifndef AL_TRANSPORT_H
#define AL_TRANSPORT_H

#include "lima.h"

typedef struct al_transport_s al_transport_t;

typedef struct al_transport_cbs_s {
  /* The lane agent has been delivered and is running: in/out carry frames only from here (the bootstrap's marker has
   * been consumed). */
  void (*on_open)(al_transport_t *t, void *data, uv_stream_t *in, uv_stream_t *out); /* one stream may be both */
  /* Could not be opened. Exactly one of on_open and on_failed. */
  void (*on_failed)(al_transport_t *t, void *data, const al_err_t *err);
} al_transport_cbs_t;

/* One `limactl shell` under `deadline_ms`: sends the agent, waits for the marker. The login user runs it by sudo as
 * root. */
int
al_transport_shell(al_lima_t *l, const al_lane_spec_t *spec, uint64_t deadline_ms, const al_transport_cbs_t *cbs,
  void *data, al_transport_t **out);
/* The virtio port that the warden has added to the lane (spec->port): connects to its socket, makes sure whose it is,
 * sends the agent, waits for the marker. May be called before the socket is there. */
int
al_transport_port(al_lima_t *l, const al_lane_spec_t *spec, uint64_t deadline_ms, const al_transport_cbs_t *cbs,
  void *data, al_transport_t **out);
/* For a process that is not the owner: a `limactl shell` that runs the agent which is there, as `--attach`. */
int
al_transport_attach(al_lima_t *l, const char *name, uint64_t deadline_ms, const al_transport_cbs_t *cbs, void *data,
  al_transport_t **out);
/* A program of this machine in the guest's place (tests, benchmarks): argv run directly, its stdin/stdout are the
 * channel at once. */
int
al_transport_local(uv_loop_t *loop, const char *const *argv, const char *const *env, const al_transport_cbs_t *cbs,
  void *data, al_transport_t **out);
/* Text the transport's process wrote to stderr (printable tail), for error messages; borrowed. */
const char *
al_transport_stderr(al_transport_t *t);
/* Ends it (stdin closed, then KILL). cb exactly once; the memory is gone then. */
void
al_transport_close(al_transport_t *t, void (*cb)(void *data), void *data);

#endif
