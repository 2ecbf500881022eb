/* SPDX-License-Identifier: Apache-2.0 */
/* Frames: bounds of every type at every neighbour, early refusal, TLVs. */
#include "al_test.h"
#include "frame.h"

static uint8_t bytes[AL_FRAME_HEADER + AL_FRAME_MAX + 8];

static int
parse(uint32_t stream, uint8_t type, uint8_t flags, uint32_t len, size_t have, al_frame_t *f, const char **why) {
  al_frame_header(bytes, stream, type, flags, len);
  return al_frame_parse(bytes, have, f, why);
}

static void
check_type(uint8_t type, const char *name, uint32_t min, uint32_t max) {
  const char *why = NULL;
  al_frame_t f;
  assert_string_equal(al_frame_name(type), name);
  for (int at = 0; at < 2; at++) {
    uint32_t len = at ? max : min;
    size_t whole = AL_FRAME_HEADER + len;
    assert_int_equal(parse(7, type, 3, len, whole, &f, &why), whole);
    assert_int_equal(parse(7, type, 3, len, whole + 5, &f, &why), whole);
    assert_int_equal(f.stream, 7);
    assert_int_equal(f.type, type);
    assert_int_equal(f.flags, 3);
    assert_int_equal(f.len, len);
    assert_ptr_equal(f.payload, bytes + AL_FRAME_HEADER);
    if (len) assert_int_equal(parse(7, type, 3, len, whole - 1, &f, &why), AL_FRAME_MORE);
  }
  if (min > 0) assert_int_equal(parse(7, type, 0, min - 1, sizeof bytes, &f, &why), AL_FRAME_BAD);
  why = NULL;
  assert_int_equal(
    parse(7, type, 0, max + 1, AL_FRAME_HEADER, &f, &why), AL_FRAME_BAD); /* before its payload has come */
  assert_non_null(why);
  assert_int_equal(parse(7, type, 0, UINT32_MAX, sizeof bytes, &f, &why), AL_FRAME_BAD);
}

static void
test_frame_bounds_of_every_type(void **state) {
  (void) state;
#define CHECK(name, number, min, max) check_type(number, #name, min, max);
  AL_FRAME_MAP(CHECK)
#undef CHECK
}

static void
test_frame_unknown_types_are_bad(void **state) {
  bool known[256] = {0};
  (void) state;
#define KNOWN(name, number, min, max) known[number] = true;
  AL_FRAME_MAP(KNOWN)
#undef KNOWN
  for (int type = 0; type < 256; type++) {
    const char *why = NULL;
    al_frame_t f;
    if (known[type]) continue;
    assert_int_equal(parse(1, (uint8_t) type, 0, 0, AL_FRAME_HEADER, &f, &why), AL_FRAME_BAD);
    assert_string_equal(why, "unknown frame type");
    assert_string_equal(al_frame_name((uint8_t) type), "?");
  }
}

static void
test_frame_reserved_field_must_be_zero(void **state) {
  const char *why = NULL;
  al_frame_t f;
  (void) state;
  for (int bit = 0; bit < 16; bit++) {
    al_frame_header(bytes, 1, AL_F_END, 0, 0);
    al_put16(bytes + 6, (uint16_t) (1u << bit));
    assert_int_equal(al_frame_parse(bytes, AL_FRAME_HEADER, &f, &why), AL_FRAME_BAD);
  }
}

static void
test_frame_short_header_waits(void **state) {
  const char *why;
  al_frame_t f;
  (void) state;
  for (size_t n = 0; n < AL_FRAME_HEADER; n++) assert_int_equal(parse(1, 255, 0, 0, n, &f, &why), AL_FRAME_MORE);
}

static void
test_frame_header_is_little_endian(void **state) {
  static const uint8_t want[] = {4, 3, 2, 0x81, 20, 2, 0, 0, 0, 0, 1, 0};
  uint8_t out[AL_FRAME_HEADER];
  (void) state;
  al_frame_header(out, 0x81020304u, AL_F_DATA, 2, 65536);
  assert_memory_equal(out, want, sizeof want);
  uint8_t b[8];
  al_put64(b, 0x8182838485868788ull);
  assert_int_equal(b[0], 0x88);
  assert_true(al_get64(b) == 0x8182838485868788ull);
}

static void
test_frame_tlv_round_trip_and_room(void **state) {
  uint8_t b[32];
  size_t pos = 0;
  uint16_t tag;
  uint32_t len;
  const uint8_t *value;
  (void) state;
  size_t n = al_tlv_put(b, sizeof b, AL_TLV_ARG, "abc", 3);
  assert_int_equal(n, 9);
  n += al_tlv_put(b + n, sizeof b - n, AL_TLV_ENV, NULL, 0);
  assert_int_equal(n, 15);
  assert_int_equal(al_tlv_next(b, n, &pos, &tag, &value, &len), 1);
  assert_int_equal(tag, AL_TLV_ARG);
  assert_int_equal(len, 3);
  assert_memory_equal(value, "abc", 3);
  assert_int_equal(al_tlv_next(b, n, &pos, &tag, &value, &len), 1);
  assert_int_equal(len, 0);
  assert_int_equal(al_tlv_next(b, n, &pos, &tag, &value, &len), 0);
  assert_int_equal(al_tlv_put(b, 9, 1, "abc", 3), 9);
  assert_int_equal(al_tlv_put(b, 8, 1, "abc", 3), 0);
  assert_int_equal(al_tlv_put(b, 5, 1, "", 0), 0);
  assert_int_equal(al_tlv_put(b, sizeof b, 1, "", UINT32_MAX), 0);
}

static void
test_frame_tlv_malformed(void **state) {
  uint8_t b[16] = {0};
  uint16_t tag;
  uint32_t len;
  const uint8_t *value;
  (void) state;
  al_tlv_put(b, sizeof b, 1, "abcd", 4);
  for (size_t n = 1; n < 10; n++) {
    size_t pos = 0;
    assert_int_equal(al_tlv_next(b, n, &pos, &tag, &value, &len), -1);
  }
  al_put32(b + 2, UINT32_MAX);
  size_t pos = 0, beyond = 17;
  assert_int_equal(al_tlv_next(b, sizeof b, &pos, &tag, &value, &len), -1);
  assert_int_equal(al_tlv_next(b, sizeof b, &beyond, &tag, &value, &len), -1);
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_frame_bounds_of_every_type),
    cmocka_unit_test(test_frame_unknown_types_are_bad),
    cmocka_unit_test(test_frame_reserved_field_must_be_zero),
    cmocka_unit_test(test_frame_short_header_waits),
    cmocka_unit_test(test_frame_header_is_little_endian),
    cmocka_unit_test(test_frame_tlv_round_trip_and_room),
    cmocka_unit_test(test_frame_tlv_malformed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
