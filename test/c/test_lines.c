/* SPDX-License-Identifier: Apache-2.0 */
/* Lines: every chunking gives the same lines; the cap, CRLF, cuts. */
#include "al_test.h"
#include "lines.h"

typedef struct log_s {
  char text[8192]; /* "line|" per whole line, "line>" per cut piece */
  size_t len;
  int calls, stop_at;
} log_t;

static int
note(void *data, const uint8_t *line, size_t len, bool cut) {
  log_t *log = data;
  assert_true(log->len + len + 2 < sizeof log->text);
  assert_true(line[len] == '\n' || line[len] == '\r'); /* '\r' only where it stands in the caller's own bytes */
  memcpy(log->text + log->len, line, len);
  log->len += len;
  log->text[log->len++] = cut ? '>' : '|';
  log->text[log->len] = 0;
  return ++log->calls == log->stop_at ? 77 : 0;
}

static void
expect(size_t max, const char *in, size_t n, const char *want) {
  for (size_t chunk = 1; chunk <= n + 1; chunk++) {
    log_t log = {0};
    al_lines_t l;
    al_lines_init(&l, max);
    for (size_t i = 0; i < n; i += chunk)
      assert_int_equal(al_lines_feed(&l, (const uint8_t *) in + i, chunk < n - i ? chunk : n - i, note, &log), 0);
    assert_int_equal(al_lines_finish(&l, note, &log), 0);
    assert_string_equal(log.text, want);
    assert_true(l.part.room <= max + 3);
    al_lines_deinit(&l);
  }
}
#define EXPECT(max, in, want) expect(max, in, sizeof(in) - 1, want)

static void
test_lines_split(void **state) {
  (void) state;
  EXPECT(100, "", "");
  EXPECT(100, "\n", "|");
  EXPECT(100, "a\nbb\n\nccc", "a|bb||ccc|");
  EXPECT(100, "a\r\nb\r\r\nc\rd\n\r\n\r", "a|b\r|c\rd||\r|");
  EXPECT(100, "\xff\xfe\n\x80\n", "\xff\xfe|\x80|");
}

static void
test_lines_cap_and_neighbours(void **state) {
  (void) state;
  EXPECT(4, "abc\n", "abc|");
  EXPECT(4, "abcd\n", "abcd|");
  EXPECT(4, "abcde\n", "abcd>e|");
  EXPECT(4, "abcd\r\nx", "abcd|x|");
  EXPECT(4, "abcd\rx\n", "abcd>\rx|");
  EXPECT(4, "abcde\r\n", "abcd>e|");
  EXPECT(4, "abcd", "abcd|");
  EXPECT(4, "abcde", "abcd>e|");
  EXPECT(4, "abcd\r", "abcd>\r|");
  EXPECT(4, "abcdefghi\n", "abcd>efgh>i|");
  EXPECT(1, "ab\r\n\n", "a>b||");
}

static void
test_lines_cut_keeps_sequences_whole(void **state) {
  (void) state;
  EXPECT(4, "abc\xc3\xa4" "de\n", "abc>\xc3\xa4" "de|");
  EXPECT(5, "a\xf0\x9f\x98\x80\xf0\x9f\x98\x80\n", "a\xf0\x9f\x98\x80>\xf0\x9f\x98\x80|");
  EXPECT(2, "\xf0\x9f\x98\x80\n", "\xf0\x9f>\x98\x80|"); /* cannot fit: bytes it is */
  EXPECT(4, "\x80\x80\x80\x80\x80\n", "\x80\x80\x80\x80>\x80|");
}

static void
test_lines_counts(void **state) {
  log_t log = {0};
  al_lines_t l;
  (void) state;
  al_lines_init(&l, 2);
  al_lines_feed(&l, (const uint8_t *) "abcde\nf", 7, note, &log);
  al_lines_finish(&l, note, &log);
  assert_int_equal(l.cuts, 2);
  al_lines_deinit(&l);
}

static size_t
run_of(size_t max, const char *before, const char *text) {
  log_t log = {0};
  al_lines_t l;
  al_lines_init(&l, max);
  al_lines_feed(&l, (const uint8_t *) before, strlen(before), note, &log);
  size_t n = al_lines_run(&l, (const uint8_t *) text, strlen(text));
  al_lines_deinit(&l);
  return n;
}

static void
test_lines_run(void **state) {
  (void) state;
  assert_int_equal(run_of(0, "", "one\n\ntwo\nthr"), 9);
  assert_int_equal(run_of(0, "done\n", "one\n"), 4);
  assert_int_equal(run_of(0, "", "\n"), 1);
  assert_int_equal(run_of(0, "", "one"), 0);
  assert_int_equal(run_of(0, "on", "e\ntwo\n"), 0); /* something unfinished goes before */
  assert_int_equal(run_of(0, "", "one\r\ntwo\n"), 0);
  assert_int_equal(run_of(0, "", "one\ntwo\r"), 4); /* not of these lines */
  assert_int_equal(run_of(8, "", "one\ntwo\n"), 8);
  assert_int_equal(run_of(7, "", "one\ntwo\n"), 0); /* one may be too long */
}

static void
test_lines_callback_stops(void **state) {
  (void) state;
  for (int at = 1; at <= 3; at++) {
    log_t log = {.stop_at = at};
    al_lines_t l;
    al_lines_init(&l, 2);
    int rc = al_lines_feed(&l, (const uint8_t *) "abcd\n\ne\n", 8, note, &log);
    assert_int_equal(rc, 77);
    assert_int_equal(log.calls, at);
    al_lines_deinit(&l);
  }
}

static int
scenario(void *data) {
  char big[300];
  al_lines_t l;
  int rc = 0;
  (void) data;
  memset(big, 'x', sizeof big);
  al_lines_init(&l, 1000);
  log_t log = {0};
  for (int i = 0; !rc && i < 5; i++) rc = al_lines_feed(&l, (const uint8_t *) big, sizeof big, note, &log);
  if (!rc) rc = al_lines_finish(&l, note, &log);
  al_lines_deinit(&l);
  return rc;
}

static void
test_lines_out_of_memory_is_told(void **state) {
  (void) state;
  assert_true(al_test_oom_each(scenario, NULL) >= 2);
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_lines_split),
    cmocka_unit_test(test_lines_cap_and_neighbours),
    cmocka_unit_test(test_lines_cut_keeps_sequences_whole),
    cmocka_unit_test(test_lines_counts),
    cmocka_unit_test(test_lines_run),
    cmocka_unit_test(test_lines_callback_stops),
    cmocka_unit_test(test_lines_out_of_memory_is_told),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
