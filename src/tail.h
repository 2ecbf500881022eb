/* SPDX-License-Identifier: Apache-2.0 */
/* Bounded tail: keeps the last `cap` bytes and counts what was dropped. */
#ifndef AL_TAIL_H
#define AL_TAIL_H

#include <stddef.h>
#include <stdint.h>

#define AL_TAIL_DEFAULT 65536u

typedef struct al_tail_s {
  uint8_t *ring; /* allocated on first use */
  size_t cap, start, len;
  uint64_t dropped; /* bytes that are no longer here */
} al_tail_t;

void
al_tail_init(al_tail_t *t, size_t cap);
void
al_tail_deinit(al_tail_t *t);
int
al_tail_append(al_tail_t *t, const void *p, size_t n); /* 0 or -ENOMEM */
/* Copies the kept bytes, oldest first, into a fresh zero-terminated block (caller frees). When bytes were dropped
 * the copy starts at a UTF-8 boundary. NULL when out of memory. */
char *
al_tail_copy(const al_tail_t *t, size_t *len);

#endif
