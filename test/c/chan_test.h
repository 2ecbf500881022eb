/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the tests of the channel and what runs over it: a loop, the real lane agent as a child, a proven
 * channel. */
#ifndef AL_CHAN_TEST_H
#define AL_CHAN_TEST_H

#include "al_test.h"
#include "chan.h"
#include <sys/socket.h>

static const uint8_t test_secret[32] = "0123456789abcdef0123456789abcdef";

typedef struct rig_s {
  uv_loop_t loop;
  uv_pipe_t pipe;   /* our end of the channel */
  int peer;         /* scripted peer: its end; -1 with the real agent */
  pid_t agent;
  char dir[64];     /* scratch directory */
  al_chan_t *chan;
  bool ready, closed, configured;
  al_err_t why;
} rig_t;

static inline void
rig_on_ready(al_chan_t *c, void *data) {
  (void) c;
  ((rig_t *) data)->ready = true;
}

static inline void
rig_on_closed(al_chan_t *c, void *data, const al_err_t *err) {
  rig_t *r = data;
  (void) c;
  assert_false(r->closed);
  r->closed = true;
  r->why = *err;
  r->chan = NULL;
}

/* Runs the loop until *flag, or fails after `ms`. */
static inline void
rig_wait(rig_t *r, const bool *flag, uint64_t ms) {
  al_test_until(&r->loop, flag, ms);
}

/* Lets the loop go on for a while, whatever happens. */
static inline void
rig_idle(rig_t *r, uint64_t ms) {
  al_test_spin(&r->loop, ms);
}

static inline void
rig_base(rig_t *r, int fd) {
  signal(SIGPIPE, SIG_IGN); /* as Node does */
  r->ready = r->closed = false;
  assert_int_equal(uv_loop_init(&r->loop), 0);
  uv_pipe_init(&r->loop, &r->pipe, 0);
  assert_int_equal(uv_pipe_open(&r->pipe, fd), 0);
}

static inline void
rig_open(rig_t *r, const al_chan_opts_t *extra) {
  static const al_chan_cbs_t cbs = { .on_ready = rig_on_ready, .on_closed = rig_on_closed };
  al_chan_opts_t o = extra ? *extra : (al_chan_opts_t){ 0 };
  o.in = o.out = (uv_stream_t *) &r->pipe;
  memcpy(o.secret, test_secret, sizeof o.secret);
  assert_int_equal(al_chan_open(&r->loop, &o, &cbs, r, &r->chan), 0);
}

/* Ends the channel if it has not ended, the agent, the loop; whatever is left over fails the test. */
static inline void
rig_end(rig_t *r) {
  if (r->chan) {
    al_chan_close(r->chan, NULL);
    rig_wait(r, &r->closed, 10000);
  }
  uv_close((uv_handle_t *) &r->pipe, NULL);
  if (r->peer >= 0) close(r->peer);
  assert_int_equal(uv_run(&r->loop, UV_RUN_DEFAULT), 0);
  assert_int_equal(uv_loop_close(&r->loop), 0);
  if (r->agent > 0) {
    int status, left = 500;
    while (waitpid(r->agent, &status, WNOHANG) == 0 && left-- > 0) usleep(10000);
    if (left <= 0) {
      kill(r->agent, SIGKILL);
      waitpid(r->agent, &status, 0);
      fail_msg("the agent did not end with its channel");
    }
  }
  if (r->dir[0]) al_test_dir_remove(r->dir);
}

/* A program as the other end, which has proved itself when this returns. */
static inline void
rig_program(rig_t *r, const char *program, const char *const argv[]) {
  int sv[2];
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
  r->agent = al_test_fork();
  assert_true(r->agent >= 0);
  if (r->agent == 0) {
    dup2(sv[1], 0);
    dup2(sv[1], 1);
    execv(program, (char *const *) (uintptr_t) argv);
    _exit(127);
  }
  close(sv[1]);
  rig_base(r, sv[0]);
  rig_open(r, NULL);
  rig_wait(r, &r->ready, 10000);
}

/* The real agent; returns false (and the caller skips) when it has not been built. */
static inline bool
rig_agent_start(rig_t *r) {
  const char *agent = getenv("AL_AGENT");
  if (!agent) agent = "prebuilds/guest/agent-x86_64";
  memset(r, 0, sizeof *r);
  r->peer = -1;
  if (access(agent, X_OK) != 0) {
    fprintf(stderr, "SKIPPED: %s is not built (make programs)\n", agent);
    return false;
  }
  al_test_dir(r->dir);
  char secret[96];
  snprintf(secret, sizeof secret, "%s/secret", r->dir);
  FILE *f = fopen(secret, "w");
  assert_non_null(f);
  for (size_t i = 0; i < sizeof test_secret; i++) fprintf(f, "%02x", test_secret[i]);
  fclose(f);
  const char *const argv[] = { "agent", "--local", "--secret", secret, NULL };
  rig_program(r, agent, argv);
  return true;
}

#define START(r) \
  rig_t r; \
  if (!rig_agent_start(&r)) skip()

#endif
