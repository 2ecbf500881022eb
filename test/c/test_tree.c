/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the records of a directory: what is taken, what is not, and by which name; which links stay inside. */
#include "al_test.h"
#include "tree_parse.h"

typedef struct made_s {
  char log[4096];
  size_t left;
} made_t;

__attribute__((format(printf, 2, 3))) static int
note(made_t *m, const char *fmt, ...) {
  size_t n = strlen(m->log);
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(m->log + n, sizeof m->log - n, fmt, ap);
  va_end(ap);
  return 0;
}

static int
on_root(void *data, const al_tree_entry_t *e) {
  return note(data, "root %o;", e->mode);
}

static int
on_enter(void *data, const al_tree_entry_t *e) {
  return note(data, "+%s %o;", e->name, e->mode);
}

static int
on_leave(void *data) {
  return note(data, "-;");
}

static int
on_file(void *data, const al_tree_entry_t *e) {
  return note(data, "%s %o %llu %lld.%u ", e->name, e->mode, (unsigned long long) e->size, (long long) e->mtime_s, e->mtime_ns);
}

static int
on_bytes(void *data, const uint8_t *p, size_t n) {
  return note(data, "%.*s", (int) n, (const char *) p);
}

static int
on_file_end(void *data) {
  return note(data, ";");
}

static int
on_link(void *data, const al_tree_entry_t *e, const char *target) {
  return note(data, "%s>%s;", e->name, target);
}

static const al_tree_cbs_t cbs = { on_root, on_enter, on_leave, on_file, on_bytes, on_file_end, on_link };

static uint8_t stream[70000];
static size_t stream_len;

/* A record of `type` with everything right but what the caller changes in the header it returns. */
static uint8_t *
add(uint8_t type, const char *name, size_t name_len, uint64_t size, const char *after) {
  uint8_t *h = stream + stream_len;
  memset(h, 0, AL_TREE_HEADER);
  h[0] = type;
  al_put16(h + 2, (uint16_t) name_len);
  if (type != AL_TREE_LINK && type != AL_TREE_LEAVE && type != AL_TREE_END) al_put32(h + 4, 04755);
  al_put64(h + 24, size);
  memcpy(h + AL_TREE_HEADER, name, name_len);
  memcpy(h + AL_TREE_HEADER + name_len, after, strlen(after));
  stream_len += AL_TREE_HEADER + name_len + strlen(after);
  return h;
}

static uint8_t *
put(uint8_t type, const char *name, uint64_t size) {
  return add(type, name, strlen(name), size, "");
}

static void
put_link(const char *name, const char *target) {
  add(AL_TREE_LINK, name, strlen(name), strlen(target), target);
}

static void
begin(void) {
  stream_len = 0;
  put(AL_TREE_ROOT, "", 0);
}

static int
feed(al_tree_t *t, made_t *m, size_t piece, al_err_t *err) {
  int r = 0;
  memset(m, 0, sizeof *m);
  memset(err, 0, sizeof *err);
  if (!t->cbs) al_tree_init(t, &cbs, m);
  t->data = m;
  for (size_t at = 0; at < stream_len && r == 0; at += piece)
    r = al_tree_feed(t, stream + at, stream_len - at < piece ? stream_len - at : piece, err);
  return r;
}

static void
refused(int code, const char *word) {
  al_tree_t t = { 0 };
  made_t m;
  al_err_t err;
  int r = feed(&t, &m, stream_len, &err);
  if (r != code || err.code != code || !strstr(err.msg, word))
    fail_msg("expected %s with \"%s\", got %s: %s", al_err_name(code), word, al_err_name(r), err.msg);
  assert_false(t.done);
}

static void
test_tree_takes_what_is_right_in_any_pieces(void **state) {
  (void) state;
  begin();
  put(AL_TREE_ENTER, "d", 0);
  uint8_t *h = add(AL_TREE_FILE, "f", 1, 3, "abc");
  al_put64(h + 8, 5);
  al_put32(h + 16, 6);
  put_link("l", "../e");
  put_link("x", "/abs");
  put(AL_TREE_LEAVE, "", 0);
  put(AL_TREE_FILE, "e", 0);
  al_put32(put(AL_TREE_END, "", 5) + 4, 1);
  for (size_t piece = 1; piece < 80; piece++) {
    al_tree_t t = { 0 };
    made_t m;
    al_err_t err;
    assert_int_equal(feed(&t, &m, piece, &err), 0);
    assert_true(t.done);
    assert_int_equal(t.entries, 5);
    assert_int_equal(t.bytes, 3 + 4 + 4);
    assert_int_equal(t.changed, 1);
    assert_int_equal(t.skipped, 1);
    assert_string_equal(t.skipped_path, "d/x");
    assert_string_equal(m.log, "root 755;+d 755;f 755 3 5.6 abc;l>../e;-;e 755 0 0.0 ;");
  }
}

static void
test_tree_refuses_names_that_are_none(void **state) {
  (void) state;
  static const char *const malformed[] = { ".", "..", "a/b", "/", "../x", "a/", "/etc" };
  static const char *const git[] = { ".git", ".GIT", ".Git", "git~1", "GIT~1", ".git ", ".git.", ".git::$INDEX_ALLOCATION",
    ".g\xe2\x80\x8cit", "\xef\xbb\xbf.git" };
  char wide[300];
  for (size_t i = 0; i < sizeof malformed / sizeof *malformed; i++) {
    begin();
    put(AL_TREE_ENTER, malformed[i], 0);
    refused(AL_ECOPY_OUT_FAILED, "a name");
  }
  for (size_t i = 0; i < sizeof git / sizeof *git; i++)
    for (uint8_t type = AL_TREE_ENTER; type <= AL_TREE_LINK; type++) {
      if (type == AL_TREE_LEAVE) continue;
      begin();
      add(type, git[i], strlen(git[i]), type == AL_TREE_ENTER ? 0 : 1, "x");
      refused(AL_ETREE_REFUSED, "may be .git");
    }
  for (uint8_t type = AL_TREE_ENTER; type <= AL_TREE_LINK; type++) {
    if (type == AL_TREE_LEAVE) continue;
    begin();
    add(type, ".agent-lane-0123456789abcdef.tmp", 32, type == AL_TREE_ENTER ? 0 : 1, "x");
    refused(AL_ETREE_REFUSED, "not put in place");
  }
  memset(wide, 'n', sizeof wide);
  begin();
  add(AL_TREE_FILE, wide, 256, 0, "");
  refused(AL_ECOPY_OUT_FAILED, "too long");
  begin();
  put(AL_TREE_FILE, "", 0);
  refused(AL_ECOPY_OUT_FAILED, "empty");
  begin();
  add(AL_TREE_FILE, "a\0b", 3, 0, "");
  refused(AL_ECOPY_OUT_FAILED, "zero byte");
  begin();
  add(AL_TREE_FILE, wide, 255, 0, "");
  for (int i = 0; i < 17; i++) add(AL_TREE_ENTER, wide, 250, 0, "");
  refused(AL_ETREE_REFUSED, "longer than 4096");
}

static void
test_tree_refuses_records_out_of_order(void **state) {
  (void) state;
  stream_len = 0;
  put(AL_TREE_FILE, "f", 0);
  refused(AL_ECOPY_OUT_FAILED, "out of order");
  begin();
  put(AL_TREE_ROOT, "", 0);
  refused(AL_ECOPY_OUT_FAILED, "out of order");
  begin();
  put(AL_TREE_LEAVE, "", 0);
  refused(AL_ECOPY_OUT_FAILED, "not begun");
  begin();
  put(AL_TREE_ENTER, "d", 0);
  put(AL_TREE_END, "", 1);
  refused(AL_ECOPY_OUT_FAILED, "within a directory");
  begin();
  put(AL_TREE_END, "", 1);
  refused(AL_ECOPY_OUT_FAILED, "another number");
  begin();
  al_put32(put(AL_TREE_END, "", 0) + 4, 1);
  refused(AL_ECOPY_OUT_FAILED, "more changed");
  begin();
  put(7, "", 0);
  refused(AL_ECOPY_OUT_FAILED, "unknown");
  begin();
  put(AL_TREE_ENTER, "d", 0)[1] = 1;
  refused(AL_ECOPY_OUT_FAILED, "reserved");
  begin();
  put(AL_TREE_ENTER, "d", 0)[20] = 1;
  refused(AL_ECOPY_OUT_FAILED, "reserved");
  begin();
  put(AL_TREE_ENTER, "d", 1);
  refused(AL_ECOPY_OUT_FAILED, "with a size");
  begin();
  put(AL_TREE_ENTER, "d", 0);
  put(AL_TREE_LEAVE, "", 7);
  refused(AL_ECOPY_OUT_FAILED, "with a content");
  begin();
  put(AL_TREE_LINK, "l", 0);
  refused(AL_ECOPY_OUT_FAILED, "target that is empty");
  begin();
  put(AL_TREE_LINK, "l", 4096);
  refused(AL_ECOPY_OUT_FAILED, "too long");
  begin();
  al_put32(put(AL_TREE_FILE, "f", 0) + 4, 010000);
  refused(AL_ECOPY_OUT_FAILED, "a mode");
  begin();
  al_put32(put(AL_TREE_FILE, "f", 0) + 16, 1000000000);
  refused(AL_ECOPY_OUT_FAILED, "a time");
}

static void
test_tree_takes_nothing_behind_its_end(void **state) {
  (void) state;
  begin();
  put(AL_TREE_END, "", 0);
  stream[stream_len++] = 0;
  al_tree_t t = { 0 };
  made_t m;
  al_err_t err;
  assert_int_equal(feed(&t, &m, stream_len, &err), AL_ECOPY_OUT_FAILED);
  assert_non_null(strstr(err.msg, "behind the end"));
}

/* The limits are exact, and a size is refused when it is announced. */
static void
test_tree_keeps_to_its_limits(void **state) {
  (void) state;
  for (int over = 0; over < 6; over++) {
    al_tree_t t;
    made_t m;
    al_err_t err;
    al_tree_init(&t, &cbs, &m);
    t.max_bytes = 5;
    t.max_entries = 3;
    t.max_depth = 1;
    begin();
    put(AL_TREE_ENTER, "d", 0);
    if (over == 1) put(AL_TREE_ENTER, "e", 0);
    put(AL_TREE_LEAVE, "", 0);
    add(AL_TREE_FILE, "f", 1, over == 2 ? 4 : 3, "abcd");
    if (over != 2) stream_len--;
    put_link("l", "xy");
    if (over == 3) put(AL_TREE_FILE, "z", 0);
    if (over == 4) put(AL_TREE_FILE, "z", UINT64_MAX);
    if (over == 5) stream_len -= 2 + 1 + AL_TREE_HEADER, put(AL_TREE_FILE, "z", UINT64_MAX);
    else put(AL_TREE_END, "", 3);
    int r = feed(&t, &m, stream_len, &err);
    if (r != (over ? AL_ETREE_TOO_LARGE : 0)) fail_msg("%d: %s %s", over, al_err_name(r), err.msg);
  }
}

static void
test_tree_links_stay_inside(void **state) {
  (void) state;
  static const struct {
    bool stays;
    unsigned depth;
    const char *target;
  } links[] = {
    { true, 0, "a" }, { true, 0, "./a//b/." }, { true, 0, "." }, { true, 1, ".." }, { true, 1, "../a" },
    { true, 2, "../../a/b" }, { true, 2, ".././../a/" }, { true, 0, "..." }, { true, 0, "..a/b.." }, { true, 0, "a\\..\\b" },
    { false, 0, ".." }, { false, 0, "../a" }, { false, 1, "../../a" }, { false, 1, "a/.." }, { false, 3, "a/../b" },
    { false, 3, "./a/./.." }, { false, 3, "../a/.." }, { false, 5, "/" }, { false, 5, "/a" }, { false, 5, "//a" },
    { false, 2, "../../../" }, { false, 0, "a/.git/hooks" }, { false, 1, "../.GIT" }, { false, 1, "" },
  };
  for (size_t i = 0; i < sizeof links / sizeof *links; i++)
    if (al_tree_stays_inside(links[i].target, links[i].depth) != links[i].stays)
      fail_msg("%s at %u", links[i].target, links[i].depth);
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_tree_takes_what_is_right_in_any_pieces),
    cmocka_unit_test(test_tree_refuses_names_that_are_none),
    cmocka_unit_test(test_tree_refuses_records_out_of_order),
    cmocka_unit_test(test_tree_takes_nothing_behind_its_end),
    cmocka_unit_test(test_tree_keeps_to_its_limits),
    cmocka_unit_test(test_tree_links_stay_inside),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
