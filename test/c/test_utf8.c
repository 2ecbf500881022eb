/* SPDX-License-Identifier: Apache-2.0 */
/* UTF-8: the whole code space against an encoder, boundaries, printable copies. */
#include "al_test.h"
#include "utf8.h"

static size_t
encode(uint32_t cp, uint8_t out[4]) {
  if (cp < 0x80) return out[0] = (uint8_t) cp, 1;
  if (cp < 0x800) return out[0] = (uint8_t) (0xc0 | cp >> 6), out[1] = (uint8_t) (0x80 | (cp & 63)), 2;
  if (cp < 0x10000)
    return out[0] = (uint8_t) (0xe0 | cp >> 12), out[1] = (uint8_t) (0x80 | (cp >> 6 & 63)),
           out[2] = (uint8_t) (0x80 | (cp & 63)), 3;
  out[0] = (uint8_t) (0xf0 | cp >> 18), out[1] = (uint8_t) (0x80 | (cp >> 12 & 63));
  return out[2] = (uint8_t) (0x80 | (cp >> 6 & 63)), out[3] = (uint8_t) (0x80 | (cp & 63)), 4;
}

static void
test_utf8_every_code_point(void **state) {
  (void) state;
  for (uint32_t cp = 0; cp <= 0x13ffff; cp++) {
    uint8_t s[4];
    size_t n = encode(cp, s);
    bool legal = cp <= 0x10ffff && !(cp >= 0xd800 && cp <= 0xdfff);
    if (al_utf8_valid(s, n) != legal) fail_msg("U+%X", cp);
    for (size_t cut = 1; legal && cut < n; cut++) {
      if (al_utf8_valid(s, cut)) fail_msg("U+%X cut to %zu", cp, cut);
      if (al_utf8_cut(s, cut) != 0) fail_msg("U+%X cut to %zu", cp, cut);
    }
    if (legal && al_utf8_cut(s, n) != n) fail_msg("U+%X", cp);
  }
}

static void
test_utf8_overlong_forms_are_invalid(void **state) {
  static const char *const bad[] = {"\xc0\x80", "\xc1\xbf", "\xe0\x80\x80", "\xe0\x9f\xbf", "\xf0\x80\x80\x80",
    "\xf0\x8f\xbf\xbf", "\x80", "\xbf", "\xfe", "\xff", "\xf5\x80\x80\x80", "\xc3", "a\xc3(", "\xe2\x82", "\xe2(\xa1",
    "\xed\xa0\x80"};
  (void) state;
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
    assert_false(al_utf8_valid((const uint8_t *) bad[i], strlen(bad[i])));
  assert_true(al_utf8_valid(NULL, 0));
}

static void
test_utf8_cut_only_takes_beginnings(void **state) {
  (void) state;
  assert_int_equal(al_utf8_cut((const uint8_t *) "ab\xe2\x82", 4), 2);
  assert_int_equal(al_utf8_cut((const uint8_t *) "ab\xe0\x80", 4), 4); /* no beginning of anything */
  assert_int_equal(al_utf8_cut((const uint8_t *) "\x80\x80\x80\x80", 4), 4);
  assert_int_equal(al_utf8_cut((const uint8_t *) "", 0), 0);
}

static void
expect(const char *in, bool keep, const char *want) {
  char out[64];
  size_t n = al_utf8_printable(out, sizeof out, in, strlen(in), keep);
  assert_string_equal(out, want);
  assert_int_equal(n, strlen(want));
}

static void
test_utf8_printable_replaces(void **state) {
  (void) state;
  expect("a\tb\nc\r\x1b[31m\x7f", true, "a\tb\nc??[31m?");
  expect("a\tb\nc", false, "a?b?c");
  expect("\xc2\x9b" "31m\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", true, "?31m\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80");
  expect("\xe2\x80\xaegnp.exe\xe2\x81\xa6", true, "?gnp.exe?");
  expect("\xff\xc3", true, "??");
}

static void
test_utf8_printable_is_bounded(void **state) {
  char out[8];
  (void) state;
  for (size_t cap = 1; cap <= 6; cap++) {
    memset(out, '#', sizeof out);
    size_t n = al_utf8_printable(out, cap, "a\xc3\xa4" "bc", 5, true);
    size_t want = cap == 1 ? 0 : cap <= 3 ? 1 : cap - 1;
    assert_int_equal(n, want);
    assert_int_equal(out[n], 0);
    assert_int_equal(out[cap], '#');
  }
  assert_int_equal(al_utf8_printable(NULL, 0, "a", 1, true), 0);
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_utf8_every_code_point),
    cmocka_unit_test(test_utf8_overlong_forms_are_invalid),
    cmocka_unit_test(test_utf8_cut_only_takes_beginnings),
    cmocka_unit_test(test_utf8_printable_replaces),
    cmocka_unit_test(test_utf8_printable_is_bounded),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
