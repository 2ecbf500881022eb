/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the fuzzers: what is wrong ends the program, and an input is read as a row of small decisions. */
#ifndef AL_FUZZ_H
#define AL_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MUST(ok, what) \
  do { \
    if (!(ok)) { \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, what); \
      abort(); \
    } \
  } while (0)

typedef struct fuzz_in_s {
  const uint8_t *p;
  size_t n;
} fuzz_in_t;

static inline uint32_t
fuzz_take(fuzz_in_t *in, size_t bytes) { /* little-endian; zeros behind the end */
  uint32_t v = 0;
  for (size_t i = 0; i < bytes && in->n > 0; i++, in->p++, in->n--) v |= (uint32_t) *in->p << (8 * i);
  return v;
}

#endif
