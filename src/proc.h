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
  AL_PROC_PIPE,   /* the caller gets the uv_pipe_t: p->in / p->outp */
  /* the descriptor in_fd / out_fd is handed to the child (borrowed): the caller keeps the other end at will */
  AL_PROC_FD,
} al_proc_io_t;

typedef struct al_proc_s al_proc_t;
typedef void (*al_proc_cb)(
  al_proc_t *p, int status); /* 0 = ran to its end (see exit_code, term_signal); UV_ETIMEDOUT; UV_E* of spawn */

typedef struct al_proc_opts_s {
  const char *file;         /* absolute */
  const char *const *argv;  /* argv[0] included, NULL-terminated; copied */
  const char *const *env;   /* whole environment, NULL-terminated; copied */
  const char *cwd;          /* copied */
  al_proc_io_t in, out;
  const void *input;        /* for AL_PROC_BUFFER; copied */
  size_t input_len;
  size_t out_cap;           /* for AL_PROC_BUFFER; more is -ENOBUFS and a kill */
  int in_fd, out_fd;        /* for AL_PROC_FD */
  int stderr_fd; /* -1: bounded tail in p->err_tail; else this descriptor is handed to the child (borrowed) */
  uint64_t deadline_ms;     /* from start; 0 is refused except with AL_PROC_PIPE and AL_PROC_FD */
} al_proc_opts_t;

struct al_proc_s {
  void *data;
  /* valid in on_done */
  int64_t exit_code;
  int term_signal;
  al_buf_t out;
  al_tail_t err_tail;
  al_ident_t ident; /* of the child, from right after the spawn */
  /* AL_PROC_PIPE: read and write them as you like (`data` is yours too); the runner closes them. After the child's exit
   * stdout stays open until the caller has had its EOF, but no longer than AL_PROC_DRAIN_MS, and libuv gives no read
   * callback for a pipe that is closed: what ends the reading for sure is on_done, where both are NULL. */
  uv_pipe_t *in, *outp;
  struct al_proc_priv_s *priv;
};

/* Starts. Loop thread. `p` is the caller's memory until on_done, which comes exactly once and never from inside
 * this call; a spawn failure arrives there too. Returns 0, -EINVAL for bad options or -ENOMEM (then on_done is not
 * called). */
int
al_proc_start(uv_loop_t *loop, al_proc_t *p, const al_proc_opts_t *opts, al_proc_cb on_done);
/* TERM to the group now, KILL after the grace, and KILL to what is left of the group when the child has exited. on_done
 * follows. Without effect when nothing runs, or the child has exited already. */
void
al_proc_stop(al_proc_t *p);
void
al_proc_kill(al_proc_t *p); /* KILL at once, and pipes of AL_PROC_PIPE are not waited for */
/* Frees what on_done left in p (out, err_tail). */
void
al_proc_deinit(al_proc_t *p);

#endif
