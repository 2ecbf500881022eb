/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes that wait to be sent, in the pieces in which they came. */
#include "queue.h"
#include "mem.h"
#include <errno.h>
#include <string.h>

#define ROOM 16384u /* of a piece for copies: small ones share it */

struct al_piece_s {
  al_piece_t *next;
  unsigned holders; /* the queue, and each write */
  size_t len, room; /* room: bytes that may still be copied in, which nobody who holds it looks at */
  uint8_t *bytes;   /* `own`, or behind this header */
  void *own;
};

static void
push(al_queue_t *q, al_piece_t *b) {
  b->holders = 1;
  if (q->last) q->last->next = b;
  else q->first = b;
  q->last = b;
  q->len += b->len;
}

void
al_piece_release(al_piece_t *b) {
  if (--b->holders > 0) return;
  al_free(b->own);
  al_free(b);
}

static void
pop(al_queue_t *q) {
  al_piece_t *b = q->first;
  q->first = b->next;
  if (!q->first) q->last = NULL;
  q->off = 0;
  al_piece_release(b);
}

void
al_queue_deinit(al_queue_t *q) {
  while (q->first) pop(q);
  q->len = 0;
}

int
al_queue_append(al_queue_t *q, const void *p, size_t n) {
  al_piece_t *b = q->last;
  if (n == 0) return 0;
  if (b && b->room >= n) {
    memcpy(b->bytes + b->len, p, n);
    b->len += n;
    b->room -= n;
    q->len += n;
    return 0;
  }
  size_t size = n > ROOM ? n : ROOM;
  if (size > SIZE_MAX - sizeof *b) return -ENOMEM;
  b = al_malloc(sizeof *b + size);
  if (!b) return -ENOMEM;
  *b = (al_piece_t){ .len = n, .room = size - n, .bytes = (uint8_t *) (b + 1) };
  memcpy(b->bytes, p, n);
  push(q, b);
  return 0;
}

int
al_queue_take(al_queue_t *q, void *p, size_t n) {
  al_piece_t *b = n > 0 ? al_malloc(sizeof *b) : NULL;
  if (!b) {
    al_free(p);
    return n > 0 ? -ENOMEM : 0;
  }
  *b = (al_piece_t){ .len = n, .bytes = p, .own = p };
  push(q, b);
  return 0;
}

size_t
al_queue_front(const al_queue_t *q, const uint8_t **p) {
  if (!q->first) return 0;
  *p = q->first->bytes + q->off;
  return q->first->len - q->off;
}

void
al_queue_copy(const al_queue_t *q, uint8_t *out, size_t n) {
  size_t off = q->off;
  AL_ASSERT(n <= q->len);
  for (const al_piece_t *b = q->first; n > 0; b = b->next, off = 0) {
    size_t some = b->len - off < n ? b->len - off : n;
    memcpy(out, b->bytes + off, some);
    out += some;
    n -= some;
  }
}

void
al_queue_drop(al_queue_t *q, size_t n) {
  AL_ASSERT(n <= q->len);
  q->len -= n;
  q->off += n;
  while (q->first && q->off >= q->first->len) {
    size_t over = q->off - q->first->len;
    pop(q);
    q->off = over;
  }
}

al_piece_t *
al_queue_hold(al_queue_t *q) {
  AL_ASSERT(q->first);
  q->first->holders++;
  return q->first;
}
