/* SPDX-License-Identifier: Apache-2.0 */
/* JSON: kinds, awkward keys, caps and their neighbours, what must be refused, rendering. */
#include "al_test.h"
#include "db.h"

/* Parses and renders again. */
static void
round_trip(const char *in, const char *want) {
  al_val_t *v = NULL;
  al_err_t err = {0};
  if (al_json_parse(in, strlen(in), &v, &err)) fail_msg("%s: %s", in, err.msg);
  char *text = al_json_text(v);
  assert_string_equal(text, want);
  al_free(text);
  al_val_free(v);
}

static void
test_json_kinds(void **state) {
  (void) state;
  round_trip("null", "null");
  round_trip(" [ true , false,null ] ", "[true,false,null]");
  round_trip("[0,-1,9223372036854775807,-9223372036854775808]", "[0,-1,9223372036854775807,-9223372036854775808]");
  round_trip("[1.5,1e2,0.1,-2.5e-7,9223372036854775808]", "[1.5,100,0.1,-2.5e-07,9.223372036854776e+18]");
  round_trip("\"\"", "\"\"");
  round_trip("{}", "{}");
  round_trip("[[],[{}],{\"a\":[]}]", "[[],[{}],{\"a\":[]}]");
}

static void
test_json_integer_and_real_differ(void **state) {
  al_val_t *v;
  (void) state;
  assert_int_equal(al_json_parse("[1,1.0,1e0]", 11, &v, NULL), 0);
  assert_int_equal(v->items[0]->kind, AL_INT);
  assert_int_equal(v->items[1]->kind, AL_DOUBLE);
  assert_int_equal(v->items[2]->kind, AL_DOUBLE);
  al_val_free(v);
}

static void
test_json_awkward_keys(void **state) {
  (void) state;
  round_trip("{\"a.b\":{\"c\\\"d\":1,\"$[0]\":[2,{\"\":3}]},\"a\":{\"b\":4},\"0\":5,\"\\u00e4\\n\":6}",
    "{\"a.b\":{\"c\\\"d\":1,\"$[0]\":[2,{\"\":3}]},\"a\":{\"b\":4},\"0\":5,\"\xc3\xa4\\n\":6}");
  round_trip(
    "{\"a\":1,\"b\":2,\"a\":{\"x\":3}}", "{\"a\":{\"x\":3},\"b\":2}"); /* the last one wins, in the first one's place */
  round_trip("{\"a\":{\"old\":[1]},\"a\":{\"new\":[2]}}", "{\"a\":{\"new\":[2]}}");
}

static void
test_json_strings(void **state) {
  (void) state;
  round_trip("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\\u20ac\\ud83d\\ude00\"",
    "\"\\\"\\\\/\\u0008\\u000c\\n\\u000d\\u0009A\xe2\x82\xac\xf0\x9f\x98\x80\"");
  round_trip("\"\\\\u0000\"", "\"\\\\u0000\""); /* an escaped backslash, no zero byte */
}

static void
refused(const char *in, size_t n) {
  al_val_t *v = NULL;
  al_err_t err = {0};
  int rc = al_json_parse(in, n, &v, &err);
  if (rc != -EINVAL || err.code != -EINVAL || v) fail_msg("%.40s: %d", in, rc);
}

static void
test_json_malformed_is_refused(void **state) {
  static const char *const bad[] = {"", " ", "{", "[1,]", "{\"a\":1,}", "{a:1}", "'x'", "[1 2]", "nul", "[01]", "[+1]",
    "[.5]", "[1.]", "[Infinity]", "[NaN]", "1 2", "{\"a\" 1}", "\"", "\"\n\"", "[0x10]", "// c\n1", "[1e999]",
    "\"\\ud800\"", "{\"\\ud800\":1}", "\"\\x41\"", "]", "\"a\\u0000b\"", "{\"\\u0000\":1}", "\"\xff\"", "\"\xc0\x80\""};
  (void) state;
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) refused(bad[i], strlen(bad[i]));
  refused("[1,\0]", 5);
  refused("1\0", 2);
}

static void
test_json_depth_cap_and_neighbours(void **state) {
  char text[200];
  (void) state;
  for (int depth = 63; depth <= 65; depth++) {
    memset(text, '[', (size_t) depth);
    memset(text + depth, ']', (size_t) depth);
    text[2 * depth] = 0;
    if (depth <= 64) round_trip(text, text);
    else refused(text, (size_t) (2 * depth));
  }
  round_trip("\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\"",
    "\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\"");
}

static void
test_json_size_cap_and_neighbours(void **state) {
  size_t cap = 4u << 20;
  char *text = malloc(cap + 1);
  (void) state;
  for (size_t n = cap - 1; n <= cap + 1; n++) {
    al_val_t *v = NULL;
    memset(text, 'x', n);
    text[0] = text[n - 1] = '"';
    int rc = al_json_parse(text, n, &v, NULL);
    assert_int_equal(rc, n > cap ? -EINVAL : 0);
    if (!rc) assert_int_equal(v->len, n - 2);
    al_val_free(v);
  }
  free(text);
}

static void
test_json_keys_cap(void **state) {
  char *text = malloc(16385 * 16);
  (void) state;
  for (int keys = 16384; keys <= 16385; keys++) {
    size_t n = 0;
    text[n++] = '{';
    for (int i = 0; i < keys; i++) n += (size_t) sprintf(text + n, "%s\"k%d\":1", i ? "," : "", i);
    text[n++] = '}';
    al_val_t *v;
    assert_int_equal(al_json_parse(text, n, &v, NULL), keys > 16384 ? -EINVAL : 0);
    al_val_free(v);
  }
  free(text);
}

static void
test_json_bytes_and_infinities_render(void **state) {
  (void) state;
  al_val_t *v = al_val_list();
  al_val_add(v, al_val_bytes("a\0\xff\xc3", 4));
  al_val_add(v, al_val_double(1.0 / 0.0));
  al_val_add(v, al_val_double(0.0 / 0.0));
  al_val_add(v, al_val_text("\x1f\x7f"));
  char *text = al_json_text(v);
  assert_string_equal(text, "[\"a\\u0000\xef\xbf\xbd\xef\xbf\xbd\",null,null,\"\\u001f\x7f\"]");
  al_free(text);
  al_val_free(v);
}

static int
scenario(void *data) {
  static const char text[] =
    "{\"a\":[1,2.5,\"x\",null,true,{\"b\":[]}],\"c\":\"long enough to make the buffer grow at least once, which takes 64 bytes\"}";
  al_val_t *v;
  (void) data;
  int rc = al_json_parse(text, sizeof text - 1, &v, NULL);
  if (rc) return rc;
  char *out = al_json_text(v);
  rc = out ? 0 : -ENOMEM;
  if (out) assert_string_equal(out, text);
  al_free(out);
  al_val_free(v);
  return rc;
}

static void
test_json_out_of_memory(void **state) {
  (void) state;
  assert_true(al_test_oom_each(scenario, NULL) > 15);
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_json_kinds),
    cmocka_unit_test(test_json_integer_and_real_differ),
    cmocka_unit_test(test_json_awkward_keys),
    cmocka_unit_test(test_json_strings),
    cmocka_unit_test(test_json_malformed_is_refused),
    cmocka_unit_test(test_json_depth_cap_and_neighbours),
    cmocka_unit_test(test_json_size_cap_and_neighbours),
    cmocka_unit_test(test_json_keys_cap),
    cmocka_unit_test(test_json_bytes_and_infinities_render),
    cmocka_unit_test(test_json_out_of_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
