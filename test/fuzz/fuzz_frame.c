/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzer of the frame codec: what is parsed says what was there, whatever was there; and the TLVs of a payload. */
#include "fuzz.h"
#include "frame.h"

static bool
in_bounds(const al_frame_t *f) {
#define BOUNDS(name, number, min, max) \
  if (f->type == number) return f->len + 1 > (min) && f->len <= (max);
  AL_FRAME_MAP(BOUNDS)
#undef BOUNDS
  return false;
}

static void
walk(const uint8_t *p, size_t n) {
  size_t pos = 0, before = 0;
  uint16_t tag;
  const uint8_t *value;
  uint32_t len;
  int more;
  while ((more = al_tlv_next(p, n, &pos, &tag, &value, &len)) == 1) {
    uint8_t *again = malloc(6 + (size_t) len);
    MUST(pos == before + 6 + len && pos <= n && value == p + before + 6, "a TLV that is not where it was");
    MUST(again != NULL, "memory");
    MUST(al_tlv_put(again, 6 + (size_t) len, tag, value, len) == 6 + (size_t) len, "a TLV that does not fit");
    MUST(memcmp(again, p + before, 6 + (size_t) len) == 0, "a TLV that reads otherwise");
    MUST(al_tlv_put(again, 5 + (size_t) len, tag, value, len) == 0, "a TLV beyond its room");
    free(again);
    before = pos;
  }
  MUST(more == -1 || pos == n, "an end before the end");
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  for (size_t at = 0; at <= size;) {
    const char *why = NULL;
    al_frame_t f;
    /* A copy of its own size, so that a byte too far is seen. */
    uint8_t *p = malloc(size - at + 1);
    MUST(p != NULL, "memory");
    memcpy(p, data + at, size - at);
    int n = al_frame_parse(p, size - at, &f, &why);
    if (n > 0) {
      uint8_t head[AL_FRAME_HEADER];
      MUST((size_t) n == AL_FRAME_HEADER + f.len && (size_t) n <= size - at, "a frame beyond its bytes");
      MUST(in_bounds(&f) && f.payload == p + AL_FRAME_HEADER, "a frame out of bounds");
      al_frame_header(head, f.stream, f.type, f.flags, f.len);
      MUST(memcmp(head, p, sizeof head) == 0, "a header that reads otherwise");
      MUST(al_frame_parse(p, (size_t) n - 1, &f, &why) == AL_FRAME_MORE, "a frame without its last byte");
      MUST(al_frame_name(p[4])[0] != '?', "a type without a name");
      walk(p + AL_FRAME_HEADER, (size_t) n - AL_FRAME_HEADER);
    } else if (n == AL_FRAME_BAD) {
      MUST(why != NULL, "refused without a reason");
      MUST(al_frame_parse(p, AL_FRAME_HEADER, &f, &why) == AL_FRAME_BAD, "a bad header that waits for its payload");
    }
    free(p);
    if (n <= 0) break;
    at += (size_t) n;
  }
  walk(data, size);
  return 0;
}
