/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of exec: exec.c (life of a command) and exec_out.c (what comes of its output). */
#ifndef AL_EXEC_INT_H
#define AL_EXEC_INT_H

#include "exec.h"
#include "lines.h"
#include "tail.h"

typedef enum { AL_KEEP_WHOLE, AL_KEEP_TAIL, AL_KEEP_LINES, AL_KEEP_NONE } al_keep_t;

typedef struct al_out_s {
  al_exec_t *e;
  int sub;
  al_keep_t keep;
  al_buf_t whole, batch;
  al_tail_t tail;
  al_lines_t split;
  bool any;      /* the tail has a line: the next one is joined with '\n' */
  size_t handed; /* given to the receiver and not yet taken back with al_exec_taken */
  size_t owed;   /* bytes of the stream whose credit has not been given back */
} al_out_t;

struct al_exec_s {
  al_stream_t *s; /* NULL after its on_exit */
  al_exec_cbs_t cbs;
  void *data;
  bool input_open, want_drain, limited;
  bool cancelled; /* `err` is set, the guest was asked to end the tree; nothing is handed on any more */
  bool ended;     /* the stream is over, `result` or `err` is set */
  bool waiting;   /* on_wait was told */
  bool settling;  /* `timer` is being closed; on_done comes from there */
  int kill_ms;
  uint64_t timeout_ms;
  al_budget_t *budget;
  size_t kept; /* counted in budget->used */
  al_out_t out[2]; /* by sub-stream - 1 */
  al_exec_result_t result;
  al_err_t err;
  al_chan_watch_t watch; /* one whose lines nobody takes must not outlive the channel */
  /* the timeout, then the patience with a cancelled command; closing it is how on_done gets to the loop */
  uv_timer_t timer;
};

void
al__out_init(al_exec_t *e, int sub, al_keep_t keep, size_t max);
void
al__out_deinit(al_out_t *o);
int
al__out_take(al_out_t *o, const uint8_t *p, size_t n); /* 0, -ENOBUFS above the maximum, -ENOMEM */
int
al__out_finish(al_out_t *o); /* the last line, when it has no end */
void
al__out_credit(al_out_t *o); /* gives the stream's credit back as far as the receiver has taken */
/* From here on only a tail is kept, also of what was kept whole, and everything counts as taken. */
void
al__out_only_tail(al_out_t *o);
int
al__out_collect(al_out_t *o, char **text, size_t *len, uint64_t *dropped); /* 0 or -ENOMEM */
bool
al__out_within_budget(al_exec_t *e); /* brings the lane's budget up to date; false when it is passed */

#endif
