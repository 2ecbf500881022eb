/* SPDX-License-Identifier: Apache-2.0 */
/* Bounded tail: a ring that keeps the last bytes and counts the others. */
#include "tail.h"
#include "mem.h"
#include <errno.h>
#include <string.h>

void
al_tail_init(al_tail_t *t, size_t cap) {
  *t = (al_tail_t) {.cap = cap};
}

void
al_tail_deinit(al_tail_t *t) {
  al_free(t->ring);
  al_tail_init(t, t->cap);
}

int
al_tail_append(al_tail_t *t, const void *data, size_t n) {
  const uint8_t *p = data;

  if (n == 0) return 0;
  if (!t->ring && t->cap && !(t->ring = al_malloc(t->cap))) return -ENOMEM;
  if (n > t->cap) {
    t->dropped += n - t->cap;
    p += n - t->cap;
    n = t->cap;
  }
  size_t over = n > t->cap - t->len ? n - (t->cap - t->len) : 0;
  if (over) {
    t->start = (t->start + over) % t->cap;
    t->len -= over;
    t->dropped += over;
  }
  if (n == 0) return 0;
  size_t end = (t->start + t->len) % t->cap;
  size_t first = n < t->cap - end ? n : t->cap - end;
  memcpy(t->ring + end, p, first);
  if (n > first) memcpy(t->ring, p + first, n - first);
  t->len += n;
  return 0;
}

char *
al_tail_copy(const al_tail_t *t, size_t *len) {
  size_t skip = 0;

  if (len) *len = 0;
  if (t->dropped)
    while (skip < 3 && skip < t->len && (t->ring[(t->start + skip) % t->cap] & 0xc0) == 0x80) skip++;
  size_t n = t->len - skip;
  char *out = al_malloc(n + 1);
  if (!out) return NULL;
  if (n) {
    size_t start = (t->start + skip) % t->cap;
    size_t first = n < t->cap - start ? n : t->cap - start;
    memcpy(out, t->ring + start, first);
    if (n > first) memcpy(out + first, t->ring, n - first);
  }
  out[n] = 0;
  if (len) *len = n;
  return out;
}
