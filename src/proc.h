/* SPDX-License-Identifier: Apache-2.0 */
/* Process runner: argv only (no shell), a built environment, own session, a deadline, TERM then KILL of the group. */
#ifndef AL_PROC_H
#define AL_PROC_H

#include "buf.h"
#include "err.h"
#include "platform.h"
#include "tail.h"
#include <uv.h>

#define AL_PROC_STDERR_TAIL 8192u
#define AL_PROC_KILL_GRACE_MS 2000
#define AL_PROC_DRAIN_MS 500 /* how long a grandchild may hold our pipes after the child's exit */

typedef enum {
  AL_PROC_NULL,   /* /dev/null */
  AL_PROC_BUFFER, /* stdin: from `input`; stdout: into a capped buffer */
  AL_PROC_PIPE,   /* the caller gets the uv_pipe_t: p->in / p->out */
} al_proc_io_t;

typedef struct al_proc_s al_proc_t;
typedef void (*al_proc_cb)(al_proc_t *p, int status); /* 0 = ran to its end (see exit_code, term_signal); UV_ETIMEDOUT; UV_E* of spawn */

typedef struct al_proc_opts_s {
  const char *file;         /* absolute */
  const char *const *argv;  /* argv[0] included, NULL-terminated; copied */
  const char *const *env;   /* whole environment, NULL-terminated; copied */
  const char *cwd;          /* copied */
  al_proc_io_t in, out;
  const void *input;        /* for AL_PROC_BUFFER; copied */
  size_t input_len;
  size_t out_cap;           /* for AL_PROC_BUFFER; more is -ENOBUFS and a kill */
  int stderr_fd;            /* -1: bounded tail in p->err_tail; else this descriptor is handed to the child (borrowed) */
  uint64_t deadline_ms;     /* from start; 0 is refused except with AL_PROC_PIPE */
} al_proc_opts_t;

struct al_proc_s {
  void *data;
  /* valid in on_done */
  int64_t exit_code;
  int term_signal;
  al_buf_t out;
  al_tail_t err_tail;
  al_ident_t ident; /* of the child, from right after the spawn */
  uv_pipe_t *in, *outp; /* AL_PROC_PIPE: read and write them as you like, the runner closes them */
  struct al_proc_priv_s *priv;
};

/* Starts. Loop thread. `p` is the caller's memory until on_done, which comes exactly once and never from inside this call;
 * a spawn failure arrives there too. Returns 0, -EINVAL for bad options or -ENOMEM (then on_done is not called). */
int
al_proc_start(uv_loop_t *loop, al_proc_t *p, const al_proc_opts_t *opts, al_proc_cb on_done);
/* TERM to the group now, KILL after the grace. on_done follows. */
void
al_proc_stop(al_proc_t *p);
void
al_proc_kill(al_proc_t *p); /* KILL at once */
/* Frees what on_done left in p (out, err_tail). */
void
al_proc_deinit(al_proc_t *p);

#endif
