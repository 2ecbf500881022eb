/* SPDX-License-Identifier: Apache-2.0 */
/* Line splitter: whole lines straight from the chunk, only unfinished ones through a buffer. */
#include "lines.h"
#include "mem.h"
#include "utf8.h"
#include <errno.h>
#include <string.h>

void
al_lines_init(al_lines_t *l, size_t max) {
  *l = (al_lines_t) {.max = max ? max : AL_LINE_MAX};
  /* One byte for a '\r' whose '\n' is still to come, and the byte that shows it was none. */
  al_buf_init(&l->part, l->max + 2);
}

void
al_lines_deinit(al_lines_t *l) {
  al_buf_deinit(&l->part);
}

/* Delivers the first piece of a line that is too long. */
static int
cut(al_lines_t *l, al_lines_cb cb, void *data) {
  al_buf_t *b = &l->part;
  size_t n = al_utf8_cut(b->data, l->max);

  if (n == 0) n = l->max;
  l->cuts++;
  uint8_t behind = b->data[n];
  b->data[n] = '\n';
  int rc = cb(data, b->data, n, true);
  if (rc) return rc;
  b->data[n] = behind;
  al_buf_drop(b, n);
  return 0;
}

/* Delivers pieces of a line that is too long already. A '\r' right behind max bytes may belong to the line's end. */
static int
cut_long(al_lines_t *l, al_lines_cb cb, void *data) {
  al_buf_t *b = &l->part;

  while (b->len > l->max + 1 || (b->len == l->max + 1 && b->data[l->max] != '\r')) {
    int rc = cut(l, cb, data);
    if (rc) return rc;
  }
  return 0;
}

/* Adds bytes of an unfinished line, never holding more than max + 2. */
static int
add(al_lines_t *l, const uint8_t *p, size_t n, al_lines_cb cb, void *data) {
  while (n > 0) {
    size_t room = l->max + 2 - l->part.len;
    size_t take = n < room ? n : room;
    int rc = al_buf_append(&l->part, p, take);
    if (!rc) rc = cut_long(l, cb, data);
    if (rc) return rc;
    p += take, n -= take;
  }
  return 0;
}

static int
complete(const uint8_t *line, size_t len, al_lines_cb cb, void *data) {
  if (len > 0 && line[len - 1] == '\r') len--;
  return cb(data, len ? line : (const uint8_t *) "\n", len, false);
}

static int
complete_part(al_lines_t *l, al_lines_cb cb, void *data) {
  al_buf_t *b = &l->part;
  bool cr = b->len > 0 && b->data[b->len - 1] == '\r';

  if (b->len > 0) b->data[b->len - cr] = '\n';
  int rc = cb(data, b->len > (size_t) cr ? b->data : (const uint8_t *) "\n", b->len - cr, false);
  if (rc) return rc;
  al_buf_drop(b, b->len);
  return 0;
}

int
al_lines_feed(al_lines_t *l, const uint8_t *p, size_t n, al_lines_cb cb, void *data) {
  while (n > 0) {
    const uint8_t *end = memchr(p, '\n', n);
    size_t len = end ? (size_t) (end - p) : n;
    bool direct = end && l->part.len == 0 && (len <= l->max || (len == l->max + 1 && p[len - 1] == '\r'));
    int rc = direct ? complete(p, len, cb, data) : add(l, p, len, cb, data);
    if (rc) return rc;
    if (end && !direct) {
      rc = complete_part(l, cb, data);
      if (rc) return rc;
    }
    if (!end) break;
    p += len + 1, n -= len + 1;
  }
  return 0;
}

size_t
al_lines_run(const al_lines_t *l, const uint8_t *p, size_t n) {
  if (l->part.len > 0 || n > l->max) return 0;
  while (n > 0 && p[n - 1] != '\n') n--;
  return n > 0 && !memchr(p, '\r', n) ? n : 0;
}

int
al_lines_finish(al_lines_t *l, al_lines_cb cb, void *data) {
  al_buf_t *b = &l->part;

  if (b->len == 0) return 0;
  if (b->len > l->max) {
    /* max bytes and a '\r' that ends no line after all. */
    int rc = cut(l, cb, data);
    if (rc) return rc;
  }
  b->data[b->len] = '\n';
  int rc = cb(data, b->data, b->len, false);
  if (rc) return rc;
  al_buf_drop(b, b->len);
  return 0;
}
