/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzer of UTF-8 against a decoder that is as plain as it gets: validity, cutting, and copies that are safe to show. */
#include "fuzz.h"
#include "utf8.h"

/* Length of the character at p by RFC 3629's table of ranges; 0 = none. */
static size_t
decode(const uint8_t *p, size_t n, uint32_t *cp) {
  static const struct { uint8_t first, last, low, high; size_t len;
  } rows[] = {
    {0x00, 0x7f, 0, 0, 1}, {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3}, {0xe1, 0xec, 0x80, 0xbf, 3},
    {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3}, {0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4},
    {0xf4, 0xf4, 0x80, 0x8f, 4},
  };
  static const uint8_t bits[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
  for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
    if (p[0] < rows[r].first || p[0] > rows[r].last || rows[r].len > n) continue;
    *cp = p[0] & bits[rows[r].len];
    for (size_t i = 1; i < rows[r].len; i++) {
      if (p[i] < (i == 1 ? rows[r].low : 0x80) || p[i] > (i == 1 ? rows[r].high : 0xbf)) return 0;
      *cp = *cp << 6 | (p[i] & 0x3f);
    }
    return rows[r].len;
  }
  return 0;
}

static bool
shows_nothing_bad(const char *text, size_t n, bool newlines) {
  for (size_t i = 0; i < n;) {
    uint32_t cp = 0;
    size_t len = decode((const uint8_t *) text + i, n - i, &cp);
    if (len == 0) return false;
    if (cp < 0x20 && !(newlines && (cp == '\n' || cp == '\t'))) return false;
    if ((cp >= 0x7f && cp < 0xa0) || (cp >= 0x2028 && cp <= 0x202e) || (cp >= 0x2066 && cp <= 0x2069)) return false;
    i += len;
  }
  return true;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  fuzz_in_t in = {data, size};
  size_t cap = fuzz_take(&in, 1), good = 0;
  bool newlines = fuzz_take(&in, 1) & 1;
  if (cap > 200) cap = 4 * in.n + 1;
  uint8_t *p = malloc(in.n + 1);
  char *out = malloc(cap + 1);
  MUST(p && out, "memory");
  memcpy(p, in.p, in.n);
  for (uint32_t cp; good < in.n;) {
    size_t len = decode(p + good, in.n - good, &cp);
    if (len == 0) break;
    good += len;
  }
  MUST(al_utf8_valid(p, in.n) == (good == in.n), "validity");
  for (size_t n = 0; n <= in.n; n++) {
    size_t cut = al_utf8_cut(p, n);
    MUST(cut <= n && n - cut <= 3, "cut too much");
    /* Within what is valid the cut is where a character begins, and the last such place. */
    if (n > good) continue;
    MUST(al_utf8_valid(p, cut), "cut within a character");
    MUST(cut == n || !al_utf8_valid(p, n), "a whole character is cut off");
  }
  out[cap] = 7;
  size_t used = al_utf8_printable(out, cap, p, in.n, newlines);
  MUST(out[cap] == 7, "written beyond the room");
  if (cap > 0) {
    MUST(used < cap && out[used] == 0, "no end");
    MUST(shows_nothing_bad(out, used, newlines), "something bad is shown");
  }
  free(p);
  free(out);
  return 0;
}
