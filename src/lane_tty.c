/* SPDX-License-Identifier: Apache-2.0 */
/* Terminals of commands: what exec is told of one, and the request resize. */
#include "lane_calls.h"

#define SIDE_MAX 65535

static int
read_size(const al_val_t *p, uint16_t *rows, uint16_t *cols, al_err_t *err) {
  int64_t r, c;
  int rc = al_val_get_int(p, "rows", 24, 1, SIDE_MAX, &r, err);
  if (!rc) rc = al_val_get_int(p, "columns", 80, 1, SIDE_MAX, &c, err);
  if (rc) return rc;
  *rows = (uint16_t) r;
  *cols = (uint16_t) c;
  return 0;
}

int
al_tty_read(const al_val_t *p, al_exec_req_t *req, al_err_t *err) {
  int rc = al_val_get_bool(p, "tty", false, &req->tty, err);
  return rc || !req->tty ? rc : read_size(p, &req->rows, &req->cols, err);
}

void
al_do_resize(al_engine_t *e, al_request_t *r) {
  al_op_t *op = al_op_named(e, r);
  if (!op) return;
  al_err_t err = { 0 };
  uint16_t rows = 0, cols = 0;
  int rc = read_size(r->params, &rows, &cols, &err);
  if (!rc && op->kind != AL_OP_EXEC) rc = al_err_set(&err, AL_EBAD_OPTION, "resize: a copy has no terminal");
  if (rc) {
    al_op_fail(e, r->id, &err, op->lane->spec.name);
    return;
  }
  al_exec_resize(op->exec, rows, cols);
  al_engine_done(e, r->id, NULL);
}
