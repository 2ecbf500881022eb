/* SPDX-License-Identifier: Apache-2.0 */
/* Growable bytes with a hard cap. */
#ifndef AL_BUF_H
#define AL_BUF_H

#include <stddef.h>
#include <stdint.h>

typedef struct al_buf_s {
  uint8_t *data; /* NULL while empty; otherwise one zero byte follows data[len - 1] */
  size_t len, room, cap; /* cap: hard limit of len; 0 = no limit */
} al_buf_t;

void
al_buf_init(al_buf_t *b, size_t cap);
void
al_buf_deinit(al_buf_t *b); /* frees; the buffer is empty and usable again */
/* Makes room for n more bytes (and the zero behind them), which then need no memory. -ENOMEM, -ENOBUFS */
int
al_buf_reserve(al_buf_t *b, size_t n);
int
al_buf_append(
  al_buf_t *b, const void *p, size_t n); /* 0, -ENOMEM, or -ENOBUFS when the cap would be passed (nothing added) */
int
al_buf_printf(al_buf_t *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void
al_buf_drop(al_buf_t *b, size_t n); /* removes the first n bytes (n <= len) */

#endif
