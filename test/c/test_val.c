/* SPDX-License-Identifier: Apache-2.0 */
/* Values: maps, lists, typed reads with bounds, out of memory everywhere, depth. */
#include "al_test.h"
#include "val.h"

static void
test_val_map_keeps_order_and_replaces(void **state) {
  char key[16];
  (void) state;
  al_val_t *m = al_val_map();
  for (int i = 0; i < 40; i++) {
    snprintf(key, sizeof key, "k%d", i);
    assert_int_equal(al_val_set(m, key, al_val_int(i)), 0);
  }
  assert_int_equal(al_val_set(m, "k7", al_val_text("seven")), 0);
  assert_int_equal(m->len, 40);
  for (int i = 0; i < 40; i++) {
    snprintf(key, sizeof key, "k%d", i);
    assert_string_equal(m->keys[i], key);
    if (i != 7) assert_int_equal(al_val_get(m, key)->i, i);
  }
  assert_string_equal(al_val_get(m, "k7")->text, "seven");
  assert_null(al_val_get(m, "k40"));
  al_val_set(m, "k7", al_val_null());
  assert_null(al_val_get(m, "k7"));
  assert_null(al_val_get(NULL, "k"));
  al_val_free(m);
}

static void
test_val_text_and_bytes_are_terminated(void **state) {
  (void) state;
  char *p = al_malloc(4);
  memcpy(p, "a\0b", 3);
  al_val_t *t = al_val_textn("abc", 2), *b = al_val_bytes("x\0y", 3), *k = al_val_bytes_take(p, 3),
           *n = al_val_text(NULL), *e = al_val_bytes(NULL, 0);
  assert_string_equal(t->text, "ab");
  assert_memory_equal(b->text, "x\0y\0", 4);
  assert_memory_equal(k->text, "a\0b\0", 4);
  assert_int_equal(k->kind, AL_BYTES);
  assert_int_equal(n->kind, AL_NULL);
  assert_int_equal(e->len, 0);
  al_val_free(t), al_val_free(b), al_val_free(k), al_val_free(n), al_val_free(e);
  assert_null(al_val_bytes_take(NULL, 3));
}

static void
test_val_integers_and_bounds(void **state) {
  al_err_t err = {0};
  int64_t i = -1;
  (void) state;
  al_val_t *m = al_val_map();
  al_val_set(m, "i", al_val_int(4));
  al_val_set(m, "d", al_val_double(4.0));
  al_val_set(m, "f", al_val_double(4.5));
  al_val_set(m, "huge", al_val_double(1e300));
  al_val_set(m, "nan", al_val_double(0.0 / 0.0));
  al_val_set(m, "t", al_val_text("4"));
  al_val_set(m, "null", al_val_null());
  assert_int_equal(al_val_get_int(m, "i", 1, 4, 4, &i, &err), 0);
  assert_int_equal(i, 4);
  assert_int_equal(al_val_get_int(m, "d", 1, 0, 9, &i, &err), 0);
  assert_int_equal(i, 4);
  assert_int_equal(al_val_get_int(m, "absent", 11, 0, 9, &i, &err), 0);
  assert_int_equal(i, 11);
  assert_int_equal(al_val_get_int(m, "null", 12, 0, 9, &i, &err), 0);
  assert_int_equal(i, 12);
  static const char *const bad[] = {"f", "huge", "nan", "t"};
  for (int k = 0; k < 4; k++) {
    assert_int_equal(al_val_get_int(m, bad[k], 1, INT64_MIN, INT64_MAX, &i, &err), AL_EBAD_OPTION);
    assert_non_null(strstr(err.msg, bad[k]));
  }
  assert_int_equal(al_val_get_int(m, "i", 1, 5, 9, &i, &err), AL_EBAD_OPTION);
  assert_string_equal(err.msg, "i must be from 5 to 9, not 4.");
  assert_int_equal(al_val_get_int(m, "i", 1, 0, 3, &i, &err), AL_EBAD_OPTION);
  al_val_free(m);
}

static void
test_val_other_typed_reads(void **state) {
  const char *s = NULL;
  double d = 0;
  bool b = false;
  al_err_t err = {0};
  (void) state;
  al_val_t *m = al_val_map();
  al_val_set(m, "t", al_val_text("x"));
  al_val_set(m, "z", al_val_textn("a\0b", 3));
  al_val_set(m, "b", al_val_bool(true));
  al_val_set(m, "d", al_val_double(0.5));
  al_val_set(m, "i", al_val_int(2));
  al_val_set(m, "nan", al_val_double(0.0 / 0.0));
  assert_int_equal(al_val_get_text(m, "t", NULL, &s, &err), 0);
  assert_string_equal(s, "x");
  assert_int_equal(al_val_get_text(m, "q", "dflt", &s, &err), 0);
  assert_string_equal(s, "dflt");
  assert_int_equal(al_val_get_text(m, "z", NULL, &s, &err), AL_EBAD_OPTION);
  assert_int_equal(al_val_get_text(m, "b", NULL, &s, &err), AL_EBAD_OPTION);
  assert_int_equal(al_val_get_bool(m, "b", false, &b, &err), 0);
  assert_true(b);
  assert_int_equal(al_val_get_bool(m, "i", false, &b, &err), AL_EBAD_OPTION);
  assert_int_equal(al_val_get_double(m, "d", 1, 0.5, 0.5, &d, &err), 0);
  assert_true(d == 0.5);
  assert_int_equal(al_val_get_double(m, "i", 1, 0, 2, &d, &err), 0);
  assert_true(d == 2);
  assert_int_equal(al_val_get_double(m, "i", 1, 0, 1.9, &d, &err), AL_EBAD_OPTION);
  assert_int_equal(al_val_get_double(m, "i", 1, 2.1, 9, &d, &err), AL_EBAD_OPTION);
  assert_int_equal(al_val_get_double(m, "nan", 1, -1e308, 1e308, &d, &err), AL_EBAD_OPTION);
  assert_int_equal(al_val_get_double(m, "t", 1, 0, 2, &d, &err), AL_EBAD_OPTION);
  al_val_free(m);
}

static void
test_val_free_has_no_depth_limit(void **state) {
  (void) state;
  al_val_t *v = al_val_list();
  for (int i = 0; i < 1000000; i++) {
    al_val_t *outer = i % 2 ? al_val_list() : al_val_map();
    if (i % 2) al_val_add(outer, al_val_int(1)), al_val_add(outer, v), al_val_add(outer, al_val_text("x"));
    else al_val_set(outer, "a", v), al_val_set(outer, "b", al_val_list());
    v = outer;
  }
  al_val_free(v);
  al_val_free(NULL);
}

static int
scenario(void *data) {
  (void) data;
  al_val_t *m = al_val_map();
  int rc = al_val_set(m, "cpus", al_val_int(4));
  al_val_t *l = al_val_list();
  for (int i = 0; i < 6; i++)
    if (!rc) rc = al_val_add(l, i % 2 ? al_val_bytes("b", 1) : al_val_text("t"));
  if (!rc) rc = al_val_set(m, "list", l);
  else al_val_free(l);
  char key[16];
  for (int i = 0; !rc && i < 6; i++) snprintf(key, sizeof key, "k%d", i), rc = al_val_set(m, key, al_val_bool(true));
  if (!rc) rc = al_val_set(m, "cpus", al_val_double(0.5));
  char *p = rc ? NULL : al_malloc(2);
  if (!rc) rc = al_val_set(m, "take", al_val_bytes_take(p, 1));
  al_val_free(m);
  return rc;
}

static void
test_val_out_of_memory_leaks_nothing(void **state) {
  (void) state;
  assert_true(al_test_oom_each(scenario, NULL) > 30);
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_val_map_keeps_order_and_replaces),
    cmocka_unit_test(test_val_text_and_bytes_are_terminated),
    cmocka_unit_test(test_val_integers_and_bounds),
    cmocka_unit_test(test_val_other_typed_reads),
    cmocka_unit_test(test_val_free_has_no_depth_limit),
    cmocka_unit_test(test_val_out_of_memory_leaks_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
