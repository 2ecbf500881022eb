/* SPDX-License-Identifier: Apache-2.0 */
/* Frame codec: header bytes, bounds of every frame type, TLVs. Nothing but libc, since the guest agent compiles it
 * too. */
#include "frame.h"
#include <string.h>

void
al_frame_header(uint8_t out[AL_FRAME_HEADER], uint32_t stream, uint8_t type, uint8_t flags, uint32_t len) {
  al_put32(out, stream);
  out[4] = type;
  out[5] = flags;
  al_put16(out + 6, 0);
  al_put32(out + 8, len);
}

/* The bounds of a type's payload; false for an unknown type. */
static bool
bounds(uint8_t type, uint32_t *min, uint32_t *max) {
  switch (type) {
#define BOUNDS(name, number, least, most) case number: *min = least; *max = most; return true;
    AL_FRAME_MAP(BOUNDS)
#undef BOUNDS
    default: return false;
  }
}

const char *
al_frame_name(uint8_t type) {
  switch (type) {
#define NAME(name, number, least, most) case number: return #name;
    AL_FRAME_MAP(NAME)
#undef NAME
    default: return "?";
  }
}

int
al_frame_parse(const uint8_t *p, size_t n, al_frame_t *out, const char **why) {
  uint32_t min, max;

  if (n < AL_FRAME_HEADER) return AL_FRAME_MORE;
  /* A bad header is fatal before its payload is waited for, so that nobody can make us hold bytes for it. */
  uint32_t len = al_get32(p + 8);
  if (!bounds(p[4], &min, &max)) {
    *why = "unknown frame type";
    return AL_FRAME_BAD;
  }
  if (al_get16(p + 6) != 0) {
    *why = "reserved header field is not zero";
    return AL_FRAME_BAD;
  }
  if (len < min || len > max || len > AL_FRAME_MAX) {
    *why = "payload length out of bounds for its type";
    return AL_FRAME_BAD;
  }
  if (n - AL_FRAME_HEADER < len) return AL_FRAME_MORE;
  *out = (al_frame_t) {.stream = al_get32(p), .type = p[4], .flags = p[5], .len = len, .payload = p + AL_FRAME_HEADER};
  return (int) (AL_FRAME_HEADER + len);
}

int
al_tlv_next(const uint8_t *p, size_t n, size_t *pos, uint16_t *tag, const uint8_t **value, uint32_t *len) {
  if (*pos == n) return 0;
  if (*pos > n || n - *pos < 6) return -1;
  uint32_t size = al_get32(p + *pos + 2);
  if (size > n - *pos - 6) return -1;
  *tag = al_get16(p + *pos);
  *value = p + *pos + 6;
  *len = size;
  *pos += 6 + (size_t) size;
  return 1;
}

size_t
al_tlv_put(uint8_t *p, size_t room, uint16_t tag, const void *value, uint32_t len) {
  if (room < 6 || room - 6 < len) return 0;
  al_put16(p, tag);
  al_put32(p + 2, len);
  if (len) memcpy(p + 6, value, len);
  return 6 + (size_t) len;
}
