/* SPDX-License-Identifier: Apache-2.0 */
/* An open call into a lane, shared by the files that make one. Loop thread only. */
#ifndef AL_LANE_CALLS_H
#define AL_LANE_CALLS_H

#include "lane_life.h"
#include "xfer.h"

typedef enum { AL_OP_EXEC, AL_OP_IN, AL_OP_OUT, AL_OP_TREE } al_op_kind_t;

/* An open call into a lane: the request `id` is answered when it ends. */
struct al_op_s {
  uint32_t id;
  al_op_kind_t kind;
  al_lane_t *lane;
  al_exec_t *exec;
  al_xfer_t *xfer;
  bool stream; /* exec in stream mode */
  al_val_t *answer; /* of a copy that is done, until its run manifest says so */
  int answer_rc;
  al_op_t *next;
};

/* The ready lane that params name; answers the request itself when there is none. */
al_lane_t *
al_op_lane(al_engine_t *e, const al_request_t *r);
/* The open call that params key "exec" names; answers the request itself when there is none. */
al_op_t *
al_op_named(al_engine_t *e, const al_request_t *r);
al_op_t *
al_op_find(al_engine_t *e, uint32_t id);
al_op_t *
al_op_new(al_lane_t *lane, uint32_t id, al_op_kind_t kind);
/* When it has been answered: a lane that waits for its calls may end with it. */
void
al_op_free(al_op_t *op);
/* Answers with `err`, to which it adds the lane's name. */
void
al_op_fail(al_engine_t *e, uint32_t id, al_err_t *err, const char *lane);

/* The texts of a list, borrowed, with a NULL behind them; `out` has room for `max` (the NULL included). AL_EBAD_OPTION
 * names `key` when it is no list of 1 to max - 1 texts. */
int
al_op_texts(const al_val_t *list, const char **out, size_t max, const char *key, al_err_t *err);

/* lane_tty.c: whether an exec wants a terminal, and of what size. */
int
al_tty_read(const al_val_t *params, al_exec_req_t *req, al_err_t *err);

#endif
