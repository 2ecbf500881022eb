/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the tests of exec: one command with everything that came of it. */
#ifndef AL_EXEC_TEST_H
#define AL_EXEC_TEST_H

#include "chan_test.h"
#include "exec.h"
#include "sha256.h"

typedef struct run_s {
  al_exec_t *e;
  bool done;
  al_exec_result_t result;
  al_err_t err;
  char *lines; /* everything on_lines got */
  size_t lines_len, batches, untaken, err_lines_len;
  size_t bytes[3];
  bool hold;   /* do not take */
  bool cancel_in_line;
  unsigned drains;
} run_t;

static inline void
on_lines(al_exec_t *e, void *data, int sub, const uint8_t *p, size_t n) {
  run_t *u = data;
  assert_false(u->done);
  if (sub == AL_SUB_STDERR) {
    u->err_lines_len += n;
    al_exec_taken(e, sub, n);
    return;
  }
  assert_int_equal(p[n - 1], '\n');
  u->lines = realloc(u->lines, u->lines_len + n + 1);
  memcpy(u->lines + u->lines_len, p, n);
  u->lines_len += n;
  u->lines[u->lines_len] = 0;
  u->batches++;
  if (u->hold) u->untaken += n;
  else al_exec_taken(e, AL_SUB_STDOUT, n);
  if (u->cancel_in_line) al_exec_cancel(e, NULL);
}

static inline void
on_bytes(al_exec_t *e, void *data, int sub, const uint8_t *p, size_t n) {
  run_t *u = data;
  (void) p;
  u->bytes[sub] += n;
  al_exec_taken(e, sub, n);
}

static inline void
on_drain(al_exec_t *e, void *data) {
  (void) e;
  ((run_t *) data)->drains++;
}

static inline void
on_done(al_exec_t *e, void *data, al_exec_result_t *result, const al_err_t *err) {
  run_t *u = data;
  (void) e;
  assert_false(u->done);
  u->done = true;
  u->result = *result;
  u->err = *err;
}

static const al_exec_cbs_t cbs = {.on_lines = on_lines, .on_bytes = on_bytes, .on_drain = on_drain, .on_done = on_done};
static const char *const env[] = { "PATH=/usr/bin:/bin", "LC_ALL=C.UTF-8", "MARK=from the request", NULL };

static inline void
clear(run_t *u) {
  al_free(u->result.out);
  al_free(u->result.errs);
  free(u->lines);
  memset(u, 0, sizeof *u);
}

static inline void
start(rig_t *r, run_t *u, const char *script, al_exec_opts_t o) {
  const char *argv[] = { "sh", "-c", script, NULL };
  o.req.argv = argv;
  o.req.env = env;
  if (!o.req.cwd) o.req.cwd = r->dir;
  o.req.user = "agent";
  o.input = al_memdup(o.input, o.input_len); /* it is taken */
  assert_int_equal(al_exec_start(r->chan, &o, &cbs, u, &u->e, &u->err), 0);
  assert_false(u->done);
}

static inline void
finish(rig_t *r, run_t *u) {
  rig_wait(r, &u->done, 60000);
  if (u->err.code) fail_msg("%s: %s", al_err_name(u->err.code), u->err.msg);
}

static inline void
run(rig_t *r, run_t *u, const char *script, al_exec_opts_t o) {
  start(r, u, script, o);
  finish(r, u);
}

#endif
