/* SPDX-License-Identifier: Apache-2.0 */
/* Line splitter: chunks in, whole lines out. Splits on the byte '\n', drops one '\r' before it. */
#ifndef AL_LINES_H
#define AL_LINES_H

#include "buf.h"
#include <stdbool.h>

#define AL_LINE_MAX (16u << 20)

typedef struct al_lines_s {
  al_buf_t part; /* the unfinished line */
  size_t max;    /* a longer line is cut into pieces of at most max bytes, never inside a UTF-8 sequence */
  uint64_t cuts;
} al_lines_t;

/* One line without its end; `cut` when the line goes on in the next call. line[len] may be read, and is '\n' when the
 * line was put together in `part`. Non-zero return stops the feed; then nothing is touched any more, so that the
 * receiver may have taken `part` away. */
typedef int (*al_lines_cb)(void *data, const uint8_t *line, size_t len, bool cut);

void
al_lines_init(al_lines_t *l, size_t max);
void
al_lines_deinit(al_lines_t *l);
int
al_lines_feed(al_lines_t *l, const uint8_t *p, size_t n, al_lines_cb cb, void *data); /* 0, -ENOMEM, or cb's value */
/* How many of these bytes are whole lines just as they are to be handed on, so that they need not be fed: nothing
 * unfinished goes before them, none has a '\r', none is too long. */
size_t
al_lines_run(const al_lines_t *l, const uint8_t *p, size_t n);
int
al_lines_finish(al_lines_t *l, al_lines_cb cb, void *data); /* delivers a last line without newline, if any */

#endif
