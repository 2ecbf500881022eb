/* SPDX-License-Identifier: Apache-2.0 */
/* One command in a lane, as people want it: stdin from memory, whole output or lines plus a tail, one result. */
#ifndef AL_EXEC_H
#define AL_EXEC_H

#include "chan.h"

#define AL_OUTPUT_MAX (256u << 20)   /* whole stdout, or whole stderr, of one command */
#define AL_BUFFERED_MAX (512u << 20) /* default of option maxBufferedBytes */
#define AL_BUFFERED_LEAST (1u << 20)
#define AL_BUFFERED_MOST (8ll << 30)
#define AL_OUTPUT_MOST (512ll << 20)
#define AL_CANCEL_MARGIN_MS 10000 /* how long after the kill grace the guest may take to say that the tree is gone */

/* What the commands of one lane keep of their output in memory, together. The command that passes `max` is killed and
 * ends with AL_EOUTPUT_LIMIT; the others go on. */
typedef struct al_budget_s {
  uint64_t used, max;
} al_budget_t;

typedef struct al_exec_s al_exec_t;

typedef struct al_exec_opts_s {
  al_exec_req_t req;         /* borrowed for the call */
  /* lines: stdout as lines (on_lines) and the last 64 KiB of those lines joined by '\n', without a final one; stderr
   * the last 64 KiB. err_lines: stderr as lines, likewise. What is neither is kept whole, up to max_output: more kills
   * the command's tree and ends with AL_EOUTPUT_LIMIT. A line above AL_LINE_MAX is delivered in pieces, each as a
   * line. */
  bool lines, err_lines;
  bool stream;               /* raw: on_bytes for stdout and stderr, nothing kept (interactiveExec) */
  void *input;               /* al_malloc: bytes for stdin, taken, also on failure; with req.with_stdin */
  size_t input_len;
  bool input_open;           /* more input follows by al_exec_write; else EOF after `input` */
  size_t max_output;         /* of stdout, and of stderr; 0 = AL_OUTPUT_MAX */
  uint64_t timeout_ms;       /* then al_exec_cancel with AL_ETIMEOUT; 0 = none */
  /* shared by the lane's commands, outlives them until their on_done; NULL: no common limit */
  al_budget_t *budget;
} al_exec_opts_t;

/* With an error: exit_code -1 when the guest did not tell it, out and errs the last 64 KiB of what had come (NULL: lost
 * for want of memory). */
typedef struct al_exec_result_s {
  int exit_code;             /* 128 + n for a signal */
  int signal;                /* 0 or the signal */
  bool oom;                  /* a process of the command was killed for want of memory */
  char *out, *errs;          /* taken by the receiver (al_free) */
  size_t out_len, errs_len;
  uint64_t out_dropped, errs_dropped; /* bytes before the tails */
  uint64_t out_cuts, errs_cuts; /* how often a line above AL_LINE_MAX was cut */
  uint64_t spawn_ns;         /* guest's own time from the whole request to reaping */
} al_exec_result_t;

typedef struct al_exec_cbs_s {
  /* Whole lines, each ended by '\n', in order; borrowed. The stream's credit is given back by al_exec_taken, so a
   * receiver that does not call it stops this output of this command and nothing else. */
  void (*on_lines)(al_exec_t *e, void *data, int sub, const uint8_t *p, size_t n);
  void (*on_bytes)(al_exec_t *e, void *data, int sub, const uint8_t *p, size_t n); /* opts.stream */
  /* opts.input_open: al_exec_write went above 64 KiB and is below again; may be NULL */
  void (*on_drain)(al_exec_t *e, void *data);
  /* The command has ended, and its result waits for al_exec_taken; may be NULL */
  void (*on_wait)(al_exec_t *e, void *data);
  /* Last, exactly once; err->code 0 = result valid, whatever the exit code. The exec's memory is gone after it. A
   * result comes only after everything handed on has been given back by al_exec_taken, so that no line can come after
   * it; an error does not wait, and the channel's end is one. A command that could not be started is AL_EEXEC_FAILED
   * with the guest's words. */
  void (*on_done)(al_exec_t *e, void *data, al_exec_result_t *result, const al_err_t *err);
} al_exec_cbs_t;

int
al_exec_start(
  al_chan_t *c, const al_exec_opts_t *opts, const al_exec_cbs_t *cbs, void *data, al_exec_t **out, al_err_t *err);
void
al_exec_taken(al_exec_t *e, int sub, size_t n);
/* p (al_malloc) is taken, also on failure. Bytes now queued (stop at 64 KiB, go on in on_drain), 0 when the command
 * takes none any more, -ENOBUFS above AL_STDIN_QUEUE_MAX, -ENOMEM. */
int64_t
al_exec_write(al_exec_t *e, void *p, size_t n);
void
al_exec_end(al_exec_t *e);
void
al_exec_signal(al_exec_t *e, int signo, bool tree);
void
al_exec_resize(al_exec_t *e, uint16_t rows, uint16_t cols); /* of its terminal; nothing without one */
/* Ends the command's whole tree, SIGTERM first, SIGKILL after req.kill_ms, and settles with `why` (NULL: AL_EABORTED)
 * when the guest says that it is gone, or AL_CANCEL_MARGIN_MS after that. Nothing is handed on any more: what still
 * comes is in the tails. */
void
al_exec_cancel(al_exec_t *e, const al_err_t *why);

#endif
