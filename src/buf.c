/* SPDX-License-Identifier: Apache-2.0 */
/* Growable bytes with a hard cap. */
#include "buf.h"
#include "mem.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void
al_buf_init(al_buf_t *b, size_t cap) {
  *b = (al_buf_t) {.cap = cap};
}

void
al_buf_deinit(al_buf_t *b) {
  al_free(b->data);
  al_buf_init(b, b->cap);
}

int
al_buf_reserve(al_buf_t *b, size_t n) {
  if (b->cap && n > b->cap - b->len) return -ENOBUFS;
  if (n >= SIZE_MAX - b->len) return -ENOMEM;
  size_t need = b->len + n + 1;
  if (need <= b->room) return 0;
  size_t room = b->room < 64 ? 64 : b->room;
  while (room < need) room = room > SIZE_MAX / 2 ? need : room * 2;
  if (b->cap && b->cap < SIZE_MAX && room > b->cap + 1) room = b->cap + 1;
  uint8_t *data = al_realloc(b->data, room);
  if (!data) return -ENOMEM;
  b->data = data;
  b->room = room;
  return 0;
}

int
al_buf_append(al_buf_t *b, const void *p, size_t n) {
  if (n == 0) return 0;
  int rc = al_buf_reserve(b, n);
  if (rc) return rc;
  memcpy(b->data + b->len, p, n);
  b->len += n;
  b->data[b->len] = 0;
  return 0;
}

int
al_buf_printf(al_buf_t *b, const char *fmt, ...) {
  va_list ap;

  va_start(ap, fmt);
  int n = vsnprintf(NULL, 0, fmt, ap);
  va_end(ap);
  if (n < 0) return -EINVAL;
  if (n == 0) return 0;
  int rc = al_buf_reserve(b, (size_t) n);
  if (rc) return rc;
  va_start(ap, fmt);
  vsnprintf((char *) b->data + b->len, (size_t) n + 1, fmt, ap);
  va_end(ap);
  b->len += (size_t) n;
  return 0;
}

void
al_buf_drop(al_buf_t *b, size_t n) {
  AL_ASSERT(n <= b->len);
  if (n == 0) return;
  b->len -= n;
  memmove(b->data, b->data + n, b->len);
  b->data[b->len] = 0;
}
