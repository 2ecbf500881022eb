/* SPDX-License-Identifier: Apache-2.0 */
/* Archives made by hand, with whatever is wrong in them that a test wants. */
#ifndef AL_TAR_MAKE_H
#define AL_TAR_MAKE_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct tar_make_s {
  uint8_t bytes[262144];
  size_t len;
} tar_make_t;

static inline void
tar_sum(uint8_t *h) {
  unsigned sum = 0;
  memset(h + 148, ' ', 8);
  for (int i = 0; i < 512; i++) sum += h[i];
  snprintf((char *) h + 148, 8, "%06o", sum);
}

/* The header and, padded, n bytes of data. Gives the header, for tar_sum after a change. */
static inline uint8_t *
tar_put(tar_make_t *t, char type, const char *path, const char *link, unsigned mode, const void *data, size_t n) {
  uint8_t *h = t->bytes + t->len;
  memset(h, 0, 512 + (n + 511) / 512 * 512);
  memcpy(h, path, strlen(path) < 100 ? strlen(path) : 100);
  snprintf((char *) h + 100, 8, "%07o", mode);
  snprintf((char *) h + 124, 12, "%011llo", (unsigned long long) n);
  snprintf((char *) h + 136, 12, "%011o", 1000000000u);
  h[156] = (uint8_t) type;
  memcpy(h + 157, link, strlen(link) < 100 ? strlen(link) : 100);
  memcpy(h + 257, "ustar\0" "00", 8);
  tar_sum(h);
  if (n > 0) memcpy(h + 512, data, n);
  t->len += 512 + (n + 511) / 512 * 512;
  return h;
}

/* An extended header of "KEY=VALUE" records, ended by NULL; values have no zero bytes. */
static inline void
tar_pax(tar_make_t *t, const char *const *records) {
  char text[32768];
  size_t n = 0;
  for (; *records; records++) {
    size_t body = strlen(*records) + 2, len = body + 1;
    while (len != body + (size_t) snprintf(text + n, 8, "%zu", len)) len = body + strlen(text + n);
    n += (size_t) snprintf(text + n, sizeof text - n, "%zu %s\n", len, *records);
  }
  tar_put(t, 'x', "pax", "", 0644, text, n);
}

static inline void
tar_end(tar_make_t *t) {
  memset(t->bytes + t->len, 0, 1024);
  t->len += 1024;
}

#endif
