/* SPDX-License-Identifier: Apache-2.0 */
/* Errors: names, cures, text that is always valid and bounded. */
#include "al_test.h"
#include "err.h"
#include "utf8.h"

static void
test_err_table_has_name_and_cure(void **state) {
  static const struct {
    int code;
    const char *name, *cure;
  } all[] = {
#define ROW(name, number, meaning, cure) {AL_E##name, #name, cure},
    AL_ERR_MAP(ROW)
#undef ROW
  };
  (void) state;
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    al_err_t err = {.code = all[i].code};
    assert_true(all[i].code <= -20000);
    assert_string_equal(al_err_name(all[i].code), all[i].name);
    assert_string_equal(al_err_cure_text(&err), all[i].cure);
    assert_true(strlen(all[i].cure) > 0 && strlen(all[i].cure) < AL_ERR_CURE_MAX);
  }
}

static void
test_err_system_codes_have_names(void **state) {
  al_err_t err = {.code = -EACCES}, oom = {.code = -ENOMEM};
  (void) state;
  assert_string_equal(al_err_name(-EACCES), "IO_ERROR");
  assert_string_equal(al_err_name(-ENOMEM), "NO_MEMORY");
  assert_string_equal(al_err_name(UV_EOF), "IO_ERROR");
  assert_string_equal(al_err_name(-29999), "INTERNAL");
  assert_string_equal(al_err_name(7), "INTERNAL");
  assert_true(strlen(al_err_cure_text(&err)) > 0);
  assert_true(strlen(al_err_cure_text(&oom)) > 0);
}

static void
test_err_set_clears_what_was_there(void **state) {
  al_err_t err;
  (void) state;
  memset(&err, 0xee, sizeof err);
  assert_int_equal(al_err_set(&err, AL_EBUSY, "%d lanes run.", 3), AL_EBUSY);
  assert_int_equal(err.code, AL_EBUSY);
  assert_string_equal(err.msg, "3 lanes run.");
  assert_string_equal(err.step, "");
  assert_string_equal(err.lane, "");
  assert_string_equal(err.cure, "");
  al_err_cure(&err, "Wait %d s.", 5);
  assert_string_equal(al_err_cure_text(&err), "Wait 5 s.");
  al_err_set(&err, AL_ELANE_CLOSED, "again: %s", err.msg);
  assert_string_equal(err.msg, "again: 3 lanes run.");
  assert_int_equal(al_err_set(NULL, -EIO, "nobody listens"), -EIO);
}

static void
test_err_text_is_made_harmless(void **state) {
  al_err_t err;
  (void) state;
  al_err_set(&err, -EIO, "child said: %s", "\x1b[2Jgr\xc3\xbc\xc3\x9f\xff\nsecond\n\n");
  assert_string_equal(err.msg, "child said: ?[2Jgr\xc3\xbc\xc3\x9f?\nsecond");
}

static void
test_err_long_text_is_cut_at_a_boundary(void **state) {
  char text[AL_ERR_MSG_MAX * 3];
  al_err_t err;
  (void) state;
  for (size_t lead = 0; lead < 3; lead++) {
    memset(text, 'a', lead);
    for (size_t i = lead; i + 2 < sizeof text; i += 2) memcpy(text + i, "\xc3\xa4", 3);
    al_err_set(&err, -EIO, "%s", text);
    assert_true(strlen(err.msg) >= AL_ERR_MSG_MAX - 2 && strlen(err.msg) < AL_ERR_MSG_MAX);
    assert_true(al_utf8_valid((uint8_t *) err.msg, strlen(err.msg)));
    al_err_wrap(&err, "%s", text);
    assert_true(strlen(err.msg) < AL_ERR_MSG_MAX);
    assert_true(al_utf8_valid((uint8_t *) err.msg, strlen(err.msg)));
  }
}

static void
test_err_wrap_goes_before(void **state) {
  al_err_t err = {0};
  (void) state;
  al_err_wrap(&err, "nothing");
  assert_string_equal(err.msg, "");
  al_err_set(&err, -EIO, "read failed");
  al_err_wrap(&err, "limactl start %s", "x");
  assert_string_equal(err.msg, "limactl start x: read failed");
  al_err_wrap(NULL, "nothing");
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_err_table_has_name_and_cure),
    cmocka_unit_test(test_err_system_codes_have_names),
    cmocka_unit_test(test_err_set_clears_what_was_there),
    cmocka_unit_test(test_err_text_is_made_harmless),
    cmocka_unit_test(test_err_long_text_is_cut_at_a_boundary),
    cmocka_unit_test(test_err_wrap_goes_before),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
