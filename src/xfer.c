/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers: what both directions share. */
#include "mem.h"
#include "platform.h"
#include "xfer_int.h"
#include <errno.h>
#include <string.h>

#define TELL_MS 100 /* between two calls of on_progress */

void
al_xfer_cancel(al_xfer_t *x, const al_err_t *why) {
  al_err_t aborted = { 0 };
  if (!why || !why->code) {
    al_err_set(&aborted, AL_EABORTED, "the transfer was cancelled");
    why = &aborted;
  }
  x->cancel(x, why);
}

void
al__xfer_tell(al_xfer_t *x, uv_loop_t *loop) {
  if (!x->cbs.on_progress) return;
  uint64_t now = uv_now(loop);
  if (x->told && now - x->told < TELL_MS) return;
  x->told = now;
  x->cbs.on_progress(x, x->data, &x->stats);
}

void
al__xfer_ended(al_xfer_t *x) {
  x->cbs.on_end(x, x->data, &x->stats, &x->err);
}

int
al__xfer_tmp_name(char out[AL_TMP_NAME]) {
  uint8_t r[8];
  int rc = al_plat_random(r, sizeof r);
  if (rc < 0) return rc;
  al_tmp_name(out, al_get64(r));
  return 0;
}

bool
al__xfer_tmp_in(const char *path) {
  for (const char *at = path;;) {
    size_t n = strcspn(at, "/");
    char name[AL_TMP_NAME];
    if (n == sizeof name - 1) {
      memcpy(name, at, n);
      name[n] = 0;
      if (al_tmp_name_is(name)) return true;
    }
    if (!at[n]) return false;
    at += n + 1;
  }
}

int
al__pipe_init(uv_loop_t *loop, al_pipe_t *p, uv_async_cb cb) {
  memset(p, 0, sizeof *p);
  p->tail = &p->head;
  int r = uv_mutex_init(&p->lock);
  if (r < 0) return r;
  r = uv_cond_init(&p->room);
  if (r < 0) goto fail;
  r = uv_async_init(loop, &p->async, cb);
  if (r < 0) {
    uv_cond_destroy(&p->room);
    goto fail;
  }
  return 0;
fail:
  uv_mutex_destroy(&p->lock);
  return r;
}

int
al__pipe_give(al_pipe_t *p, void *bytes, size_t n, const al_xfer_stats_t *stats) {
  al_block_t *b = al_malloc(sizeof *b);
  if (!b) {
    al_free(bytes);
    return -ENOMEM;
  }
  *b = (al_block_t){ .len = n, .done = stats->bytes, .files = stats->files, .total = stats->total, .bytes = bytes };
  uv_mutex_lock(&p->lock);
  while (!p->broken && p->bytes > 0 && p->bytes + n > AL_PIPE_MAX) uv_cond_wait(&p->room, &p->lock);
  bool broken = p->broken;
  if (!broken) {
    *p->tail = b;
    p->tail = &b->next;
    p->bytes += n;
    uv_async_send(&p->async);
  }
  uv_mutex_unlock(&p->lock);
  if (broken) {
    al_free(b->bytes);
    al_free(b);
  }
  return broken ? -ECANCELED : 0;
}

al_block_t *
al__pipe_take(al_pipe_t *p) {
  uv_mutex_lock(&p->lock);
  al_block_t *b = p->head;
  if (b) {
    p->head = b->next;
    if (!p->head) p->tail = &p->head;
    p->bytes -= b->len;
    uv_cond_signal(&p->room);
  }
  uv_mutex_unlock(&p->lock);
  return b;
}

void
al__pipe_break(al_pipe_t *p) {
  uv_mutex_lock(&p->lock);
  p->broken = true;
  uv_cond_signal(&p->room);
  uv_mutex_unlock(&p->lock);
}

bool
al__pipe_broken(al_pipe_t *p) {
  uv_mutex_lock(&p->lock);
  bool broken = p->broken;
  uv_mutex_unlock(&p->lock);
  return broken;
}

void
al__pipe_deinit(al_pipe_t *p) {
  al_block_t *b;
  while ((b = al__pipe_take(p))) {
    al_free(b->bytes);
    al_free(b);
  }
  uv_cond_destroy(&p->room);
  uv_mutex_destroy(&p->lock);
}
