/* SPDX-License-Identifier: Apache-2.0 */
/* UTF-8: one strict decoder, and validity, boundaries and printable copies built on it. */
#include "utf8.h"
#include <string.h>

/* Bytes a sequence with this first byte should have; 0 for a byte that cannot start one. */
static size_t
expected(uint8_t c) {
  if (c < 0x80) return 1;
  if (c < 0xc2) return 0;
  if (c < 0xe0) return 2;
  if (c < 0xf0) return 3;
  return c < 0xf5 ? 4 : 0;
}

/* True when `c` may be the second byte after `first`: here overlong forms, surrogates and too large values are seen. */
static bool
second_ok(uint8_t first, uint8_t c) {
  if (first == 0xe0) return c >= 0xa0 && c < 0xc0;
  if (first == 0xed) return c >= 0x80 && c < 0xa0;
  if (first == 0xf0) return c >= 0x90 && c < 0xc0;
  if (first == 0xf4) return c >= 0x80 && c < 0x90;
  return (c & 0xc0) == 0x80;
}

/* Length of the sequence at p (n > 0), 0 when invalid, or n + 1 when it is a valid beginning that n cuts off. */
static size_t
sequence(const uint8_t *p, size_t n) {
  size_t want = expected(p[0]);

  for (size_t i = 1; i < want; i++) {
    if (i == n) return n + 1;
    if (i == 1 ? !second_ok(p[0], p[1]) : (p[i] & 0xc0) != 0x80) return 0;
  }
  return want;
}

bool
al_utf8_valid(const uint8_t *p, size_t n) {
  for (size_t i = 0; i < n;) {
    if (p[i] < 0x80) {
      i++;
      continue;
    }
    size_t len = sequence(p + i, n - i);
    if (len == 0 || len > n - i) return false;
    i += len;
  }
  return true;
}

size_t
al_utf8_cut(const uint8_t *p, size_t n) {
  for (size_t back = 1; back <= 3 && back <= n; back++) {
    uint8_t c = p[n - back];
    if ((c & 0xc0) == 0x80) continue;
    return sequence(p + n - back, back) > back ? n - back : n;
  }
  return n;
}

/* Code points that move the cursor, change direction or break lines in a terminal or a log. */
static bool
unsafe(const uint8_t *p, size_t len, bool keep_newlines) {
  if (len == 1) {
    if (keep_newlines && (p[0] == '\n' || p[0] == '\t')) return false;
    return p[0] < 0x20 || p[0] == 0x7f;
  }
  if (len == 2) return p[0] == 0xc2 && p[1] < 0xa0;
  if (len != 3) return false;
  uint32_t cp = (uint32_t) (p[0] & 0x0f) << 12 | (uint32_t) (p[1] & 0x3f) << 6 | (uint32_t) (p[2] & 0x3f);
  return (cp >= 0x2028 && cp <= 0x202e) || (cp >= 0x2066 && cp <= 0x2069) || cp == 0x200e || cp == 0x200f;
}

size_t
al_utf8_printable(char *out, size_t cap, const void *data, size_t n, bool keep_newlines) {
  const uint8_t *p = data;
  size_t used = 0;

  if (cap == 0) return 0;
  for (size_t i = 0; i < n;) {
    size_t len = sequence(p + i, n - i);
    bool bad = len == 0 || len > n - i;
    if (bad) len = 1;
    if (!bad && !unsafe(p + i, len, keep_newlines)) {
      if (len > cap - 1 - used) break;
      memcpy(out + used, p + i, len);
      used += len;
    } else {
      if (used == cap - 1) break;
      out[used++] = '?';
    }
    i += len;
  }
  out[used] = 0;
  return used;
}
