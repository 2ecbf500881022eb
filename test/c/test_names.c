/* SPDX-License-Identifier: Apache-2.0 */
/* Names and paths: lane names, guest paths, every spelling of ".git". */
#include "al_test.h"
#include "names.h"

static void
test_names_made_ones_are_valid(void **state) {
  static const uint8_t zero[8], ones[8] = {255, 255, 255, 255, 255, 255, 255, 255};
  char a[AL_NAME_LEN + 1], b[AL_NAME_LEN + 1];
  (void) state;
  assert_int_equal(al_name_make(a, 0, zero), 0);
  assert_string_equal(a, "agent-lane-00000000-00000000");
  assert_int_equal(al_name_make(a, 36 * 36 + 35, ones), 0);
  assert_true(strncmp(a, "agent-lane-0000010z-", 20) == 0);
  assert_true(al_name_valid(a));
  al_name_make(b, UINT64_MAX, ones);
  assert_true(al_name_valid(b));
  assert_string_not_equal(a, b);
}

static void
test_names_others_are_invalid(void **state) {
  static const char *const bad[] = {"", "agent-lane-", "agent-lane-0000000-00000000", "agent-lane-00000000-0000000",
    "agent-lane-00000000-000000000", "agent-lane-00000000_00000000", "agent-lane-0000000A-00000000",
    "agent-lane-../..xxx-00000000", "Agent-lane-00000000-00000000", "agent-lane-00000000-0000000\n",
    "agent-lane-00000000-0000000 "};
  (void) state;
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
    if (al_name_valid(bad[i])) fail_msg("%s", bad[i]);
  assert_false(al_name_valid(NULL));
  assert_true(al_name_valid("agent-lane-0123abyz-89zzzzzz"));
}

/* As in a command line: between other bytes, zeros among them, halves, and one that begins inside of another try. */
static void
test_names_in_other_bytes(void **state) {
  static const char text[] = "x\0/agent-lane-00000000-0000000/agent-lane-aaaaaaaa-bbbbbbbb.x\0"
                             "agent-lane-agent-lane-cccccccc-dddddddd=agent-lane-0000000A-00000000,agent-lane-eeeeeeee-ffffffff";
  static const char *const want[] = {"agent-lane-aaaaaaaa-bbbbbbbb", "agent-lane-cccccccc-dddddddd",
    "agent-lane-eeeeeeee-ffffffff"};
  char name[AL_NAME_LEN + 1];
  (void) state;
  const char *at = text, *end = text + sizeof text - 1;
  for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
    assert_true(al_name_next(&at, end, name));
    assert_string_equal(name, want[i]);
  }
  assert_false(al_name_next(&at, end, name));
  at = text;
  for (int i = 0; i < 2; i++) assert_true(al_name_next(&at, end - 1, name)); /* the last is not whole */
  assert_false(al_name_next(&at, end - 1, name));
  assert_false(al_name_next(&(const char *) {text}, text, name));
}

static void
test_names_guest_paths(void **state) {
  static const char *const good[] = {"/a", "/a/b", "/.a/..b/...", "/a b/\xc3\xa4", "/..."};
  static const char *const bad[] = {
    "", "a", "a/b", "/", "//", "/a/", "/a//b", "/./a", "/a/.", "/a/..", "/../a", "/a/../b", "//a"};
  al_err_t err;
  (void) state;
  for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
    assert_int_equal(al_guest_path_check(good[i], strlen(good[i]), &err), 0);
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
    if (al_guest_path_check(bad[i], strlen(bad[i]), &err) != AL_EGUEST_PATH_INVALID) fail_msg("%s", bad[i]);
  assert_int_equal(al_guest_path_check("/a\0b", 4, &err), AL_EGUEST_PATH_INVALID);
  assert_int_equal(err.code, AL_EGUEST_PATH_INVALID);
}

static void
test_names_guest_path_length(void **state) {
  char path[AL_PATH_MAX + 2];
  (void) state;
  memset(path, 'a', sizeof path);
  path[0] = '/';
  assert_int_equal(al_guest_path_check(path, AL_PATH_MAX - 1, NULL), 0);
  assert_int_equal(al_guest_path_check(path, AL_PATH_MAX, NULL), 0);
  assert_int_equal(al_guest_path_check(path, AL_PATH_MAX + 1, NULL), AL_EGUEST_PATH_INVALID);
}

static void
test_names_dotgit(void **state) {
  static const char *const git[] = {".git", ".GIT", ".Git", ".git.", ".git ", ".git . .", "git~1", "GIT~1", "git~1 ",
    ".git:x", ".git::$INDEX_ALLOCATION", ".git\\x", ".git .:x", ".g\xe2\x80\x8cit", "\xe2\x80\x8d.git",
    ".git\xef\xbb\xbf", ".g\xe2\x80\xaeit", ".gi\xe2\x81\xaat\xe2\x81\xaf", ".git\xe2\x80\x8f. ",
    ".git. \xe2\x80\x8f."};
  static const char *const other[] = {"", "git", ".gi", ".gitx", ".gitignore", ".git~1", "x.git", "..git", " .git",
    "git~2x", "git~", ".git x", ".git.x", ".g it", ".g\xe2\x80\x90it", ".g\xe2\x80it", ".g\xc3\xa4it", ".", ".. "};
  (void) state;
  for (size_t i = 0; i < sizeof git / sizeof git[0]; i++)
    if (!al_is_dotgit(git[i], strlen(git[i]))) fail_msg("missed %s", git[i]);
  for (size_t i = 0; i < sizeof other / sizeof other[0]; i++)
    if (al_is_dotgit(other[i], strlen(other[i]))) fail_msg("wrongly %s", other[i]);
  for (unsigned c = 0x200c; c <= 0x206f; c++) {
    char name[8] = {'.', 'g', (char) 0xe2, (char) (0x80 | (c >> 6 & 63)), (char) (0x80 | (c & 63)), 'i', 't', 0};
    bool ignored = c <= 0x200f || (c >= 0x202a && c <= 0x202e) || c >= 0x206a;
    if (al_is_dotgit(name, 7) != ignored) fail_msg("U+%04X", c);
  }
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_names_made_ones_are_valid),
    cmocka_unit_test(test_names_others_are_invalid),
    cmocka_unit_test(test_names_in_other_bytes),
    cmocka_unit_test(test_names_guest_paths),
    cmocka_unit_test(test_names_guest_path_length),
    cmocka_unit_test(test_names_dotgit),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
