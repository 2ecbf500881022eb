/* SPDX-License-Identifier: Apache-2.0 */
/* Versions: what is one, where it is found, which comes first. */
#include "al_test.h"
#include "version.h"

static void
test_version_parse(void **state) {
  static const char *const none[] = {"", "2", "2.2", "2.2.", "2..2", ".2.2.2", " 2.2.2", "-1.2.3", "+1.2.3", "v2.2.0",
    "10000.0.0", "99999999999999999999.0.0", "2.2.x"};
  al_version_t v;
  (void) state;
  for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
    if (al_version_parse(none[i], &v)) fail_msg("\"%s\" was taken for a version", none[i]);
  }
  assert_true(al_version_parse("9999.0.12-rc.1", &v));
  assert_int_equal(v.major, 9999);
  assert_int_equal(v.minor, 0);
  assert_int_equal(v.patch, 12);
  assert_string_equal(v.rest, "-rc.1");
}

static void
test_version_find(void **state) {
  al_version_t v;
  (void) state;
  assert_true(al_version_find("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)", &v));
  assert_int_equal(v.major * 10000 + v.minor * 100 + v.patch, 70222);
  assert_string_equal(v.rest, " (Debian 1:7.2+dfsg-7)");
  assert_true(al_version_find("1.2 and 3.4.5", &v));
  assert_int_equal(v.major, 3);
  assert_false(al_version_find("12345.1.1", &v)); /* not the 2345 in it */
  assert_false(al_version_find("no digits", &v));
}

static void
test_version_older(void **state) {
  static const struct {
    const char *text;
    bool older;
  } known[] = {{"2.2.0", false}, {"2.2.1-rc.1", false}, {"2.2.0-16-gf3dc6ed", false}, {"2.3.0-beta.1", false},
    {"10.0.0", false}, {"2.1.99", true}, {"1.99.9", true}, {"2.2.0-alpha", true}, {"2.2.0-beta.0", true},
    {"2.2.0-rc.1", true}};
  (void) state;
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
    al_version_t v;
    assert_true(al_version_parse(known[i].text, &v));
    if (al_version_older(&v, 2, 2) != known[i].older) fail_msg("%s", known[i].text);
  }
}

int
main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_version_parse), cmocka_unit_test(test_version_find),
    cmocka_unit_test(test_version_older)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
