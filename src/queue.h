/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes that wait to be sent, in the pieces in which they came: none of them is moved, and a piece lives on while a
 * write still uses it. */
#ifndef AL_QUEUE_H
#define AL_QUEUE_H

#include <stddef.h>
#include <stdint.h>

typedef struct al_piece_s al_piece_t;

typedef struct al_queue_s {
  al_piece_t *first, *last;
  size_t off; /* bytes of `first` that have left the queue */
  size_t len;
} al_queue_t; /* all zero: empty */

void
al_queue_deinit(al_queue_t *q); /* drops everything; the queue is empty and usable again */
int
al_queue_append(al_queue_t *q, const void *p, size_t n); /* copies; 0 or -ENOMEM (nothing added) */
int
al_queue_take(al_queue_t *q, void *p, size_t n); /* p (al_malloc) is taken, also on failure; 0 or -ENOMEM */
/* The bytes of the piece at the front: their number, 0 when the queue is empty. */
size_t
al_queue_front(const al_queue_t *q, const uint8_t **p);
void
al_queue_copy(const al_queue_t *q, uint8_t *out, size_t n); /* the first n bytes (n <= len), gathered */
void
al_queue_drop(al_queue_t *q, size_t n); /* the first n bytes (n <= len) */

/* The piece at the front: what al_queue_front has shown stays where it is until al_piece_release. */
al_piece_t *
al_queue_hold(al_queue_t *q);
void
al_piece_release(al_piece_t *b);

#endif
