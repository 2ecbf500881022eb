/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the ignore patterns: each rule, what git says to the same, and patterns that are none. */
#include "al_test.h"
#include "ignore.h"
#include "mem.h"

static bool
ignored(const char *const *patterns, const char *path, bool is_dir) {
  al_ignore_t *ig = NULL;
  al_err_t err = { 0 };
  if (al_ignore_open(patterns, &ig, &err) < 0) fail_msg("%s", err.msg);
  bool r = al_ignore_matches(ig, path, is_dir);
  al_ignore_close(ig);
  return r;
}

static void
test_ignore_one_pattern_follows_the_rules(void **state) {
  (void) state;
  static const struct { const char *pattern, *path; bool dir, ignored; } cases[] = {
    { "a", "a", 0, 1 }, { "a", "x/y/a", 0, 1 }, { "a", "ab", 0, 0 }, { "a", "b", 0, 0 }, { "a", "x/ab", 0, 0 },
    { "/a", "a", 0, 1 }, { "/a", "x/a", 0, 0 }, { "x/a", "x/a", 0, 1 }, { "x/a", "y/x/a", 0, 0 },
    { "a/", "a", 1, 1 }, { "a/", "a", 0, 0 }, { "a/", "x/a", 1, 1 }, { "/a/", "x/a", 1, 0 },
    { "*.o", "x.o", 0, 1 }, { "*.o", "d/x.o", 0, 1 }, { "*.o", "x.oo", 0, 0 }, { "*.o", ".o", 0, 1 },
    { "d/*.o", "d/x.o", 0, 1 }, { "d/*.o", "d/e/x.o", 0, 0 }, { "*/x", "a/x", 0, 1 }, { "*/x", "x", 0, 0 },
    { "a*b*c", "aXXbYYbZc", 0, 1 }, { "a*b*c", "aXXbYYbZcd", 0, 0 }, { "*", "x", 0, 1 }, { "a**b", "aXb", 0, 1 },
    { "x/a**b", "x/a/b", 0, 0 }, { "?", "x", 0, 1 }, { "?", "xy", 0, 0 }, { "a?b", "a/b", 0, 0 }, { "x/a?b", "x/a/b", 0, 0 },
    { "[a-c]x", "bx", 0, 1 }, { "[a-c]x", "dx", 0, 0 }, { "[!a-c]x", "dx", 0, 1 }, { "[!a-c]x", "bx", 0, 0 },
    { "[^a]x", "bx", 0, 1 }, { "[]]x", "]x", 0, 1 }, { "[!]]x", "]x", 0, 0 }, { "[a-]x", "-x", 0, 1 }, { "[\\]]x", "]x", 0, 1 },
    { "x/[!a]b", "x//b", 0, 0 }, { "[\\a-\\c]x", "bx", 0, 1 }, { "[a-c]", "", 0, 0 },
    { "**/f", "f", 0, 1 }, { "**/f", "a/b/f", 0, 1 }, { "**/f", "a/bf", 0, 0 }, { "d/**", "d/x", 0, 1 }, { "d/**", "d/x/y", 0, 1 },
    { "d/**", "d", 1, 0 }, { "a/**/b", "a/b", 0, 1 }, { "a/**/b", "a/x/y/b", 0, 1 }, { "a/**/b", "ab", 0, 0 },
    { "a/**/b/*c", "a/b/x/b/yc", 0, 1 }, { "a/**/b/*c", "a/b/x/b/y/c", 0, 0 }, { "**/a/**/b", "x/a/y/a/z/b", 0, 1 },
    { "**", "a/b", 0, 1 }, { "\\*", "*", 0, 1 }, { "\\*", "x", 0, 0 }, { "\\!x", "!x", 0, 1 }, { "\\#x", "#x", 0, 1 },
    { "#x", "#x", 0, 0 }, { "", "x", 0, 0 }, { "!a", "a", 0, 0 }, { "n\xc3\xa4me", "n\xc3\xa4me", 0, 1 }, { "\xff*", "\xff\xfe", 0, 1 },
    { "a b", "a b", 0, 1 }, { "*.tar.*", "x.tar.tar.gz", 0, 1 },
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const char *patterns[] = { cases[i].pattern, NULL };
    if (ignored(patterns, cases[i].path, cases[i].dir) != cases[i].ignored)
      fail_msg("%s and %s%s", cases[i].pattern, cases[i].path, cases[i].dir ? "/" : "");
  }
  assert_false(al_ignore_matches(NULL, "x", false));
}

static void
test_ignore_last_match_counts(void **state) {
  (void) state;
  const char *back[] = { "*.log", "!keep.log", NULL }, *again[] = { "*.log", "!keep.log", "keep.*", NULL };
  const char *dirs[] = { "*", "!*/", NULL };
  assert_true(ignored(back, "d/x.log", false));
  assert_false(ignored(back, "d/keep.log", false));
  assert_true(ignored(again, "keep.log", false));
  assert_false(ignored(dirs, "d", true));
  assert_true(ignored(dirs, "d", false));
}

static void
test_ignore_bad_patterns_are_named(void **state) {
  (void) state;
  static const char *const bad[] = { "[a", "x[", "x[]", "[!]", "x\\", "[a\\", "/", "//", "!", "!/" };
  char text[AL_IGNORE_LENGTH_MAX + 2];
  al_ignore_t *ig = NULL;
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    const char *patterns[] = { "fine", bad[i], NULL };
    al_err_t err = { 0 };
    char named[64];
    snprintf(named, sizeof named, "\"%s\"", bad[i]);
    assert_int_equal(al_ignore_open(patterns, &ig, &err), AL_EBAD_OPTION);
    assert_non_null(strstr(err.msg, named));
  }
  memset(text, 'x', sizeof text);
  const char *patterns[] = { text, NULL };
  text[AL_IGNORE_LENGTH_MAX] = 0;
  assert_int_equal(al_ignore_open(patterns, &ig, NULL), 0);
  al_ignore_close(ig);
  text[AL_IGNORE_LENGTH_MAX] = 'x';
  text[AL_IGNORE_LENGTH_MAX + 1] = 0;
  assert_int_equal(al_ignore_open(patterns, &ig, NULL), AL_EBAD_OPTION);
  const char **many = al_calloc(AL_IGNORE_MAX + 2, sizeof *many);
  for (size_t i = 0; i < AL_IGNORE_MAX; i++) many[i] = "x";
  assert_int_equal(al_ignore_open(many, &ig, NULL), 0);
  al_ignore_close(ig);
  many[AL_IGNORE_MAX] = "x";
  assert_int_equal(al_ignore_open(many, &ig, NULL), AL_EBAD_OPTION);
  al_free(many);
}

/* What git takes one way or the other: an empty component, and stars in a row that are not a whole one. */
static bool
odd(const char *p) {
  if (strstr(p, "//")) return true;
  for (const char *at = p; (at = strstr(at, "**")); at += strspn(at, "*")) {
    char next = at[strspn(at, "*")];
    if ((at > p && at[-1] != '/') || (next && next != '/')) return true;
  }
  return false;
}

/* Random patterns and paths of few letters, judged by git where there is one. Below an ignored directory nothing counts,
 * so all paths are in directories that no pattern can match. */
static void
test_ignore_agrees_with_git(void **state) {
  (void) state;
  static const char *const parts[] = { "a", "b", "ab", "*", "?", "[ab]", "[!a]", "**", "/", "/", "**/", "/**", "a*", "*b", "\\a" };
  char dir[64], cmd[512], line[256];
  if (system("git --version >/dev/null 2>&1") != 0) {
    print_message("skipped: there is no git\n");
    skip();
  }
  al_test_dir(dir);
  unsigned seed = 7, judged = 0;
  for (int round = 0; round < 200; round++) {
    char texts[3][64];
    const char *patterns[4] = { texts[0], texts[1], texts[2], NULL };
    for (int i = 0; i < 3; i++) {
      texts[i][0] = 0;
      for (int k = 1 + (int) ((seed = seed * 1664525u + 1013904223u) >> 30); k >= 0; k--)
        strcat(texts[i], parts[((seed = seed * 1664525u + 1013904223u) >> 16) % (sizeof parts / sizeof parts[0])]);
    }
    snprintf(cmd, sizeof cmd, "cd %s && rm -rf .git && git init -q . && cat > .gitignore", dir);
    al_ignore_t *ig = NULL;
    if (odd(texts[0]) || odd(texts[1]) || odd(texts[2])) continue;
    if (al_ignore_open(patterns, &ig, NULL) < 0) continue; /* such as "/" */
    FILE *f = popen(cmd, "w");
    for (int i = 0; i < 3; i++) fprintf(f, "%s\n", texts[i]);
    assert_int_equal(pclose(f), 0);
    snprintf(cmd, sizeof cmd, "cd %s && for p in a b ab ba aab abb a/b b/a a/a/b b/ab/a ab/b/b/a; do printf '%%s ' $p; git check-ignore -q --no-index $p; echo $?; done", dir);
    f = popen(cmd, "r");
    while (fgets(line, sizeof line, f)) {
      char *space = strchr(line, ' ');
      *space = 0;
      bool own = false;
      for (char *p = line; !own; p++) { /* each directory on the way, then the file itself */
        char c = *(p = p + strcspn(p, "/"));
        *p = 0;
        own = al_ignore_matches(ig, line, c == '/');
        *p = c;
        if (!c) break;
      }
      if (own != (space[1] == '0')) fail_msg("%s | %s | %s and %s: git says %s", texts[0], texts[1], texts[2], line, space + 1);
    }
    pclose(f);
    al_ignore_close(ig);
    judged++;
  }
  assert_in_range(judged, 30, 200);
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_ignore_one_pattern_follows_the_rules),
    cmocka_unit_test(test_ignore_last_match_counts),
    cmocka_unit_test(test_ignore_bad_patterns_are_named),
    cmocka_unit_test(test_ignore_agrees_with_git),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
