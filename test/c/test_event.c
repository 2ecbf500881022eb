/* SPDX-License-Identifier: Apache-2.0 */
/* Events that wait for their receiver: what of one stream is joined, and what never is. */
#include "al.h"
#include "al_test.h"
#include "mem.h"
#include <stdlib.h>
#include <string.h>

static al_event_t *
event(al_event_type_t type, uint32_t id, int sub, const void *p, size_t n) {
  al_event_t *e = al_calloc(1, sizeof *e);
  assert_non_null(e);
  e->type = type;
  e->id = id;
  e->sub = sub;
  if (p) assert_non_null(e->value = al_val_bytes(p, n));
  return e;
}

static void
test_event_crumbs_of_one_stream_are_one_event(void **state) {
  (void) state;
  al_event_t *queue = event(AL_EVENT_LINES, 7, 1, "\n", 1);
  for (int i = 1; i < 100000; i++)
    assert_true(al_event_join(queue, event(AL_EVENT_LINES, 7, 1, i % 2 ? "x" : "\n", 1)));
  assert_null(queue->next);
  assert_int_equal(queue->value->len, 100000);
  assert_int_equal(queue->value->kind, AL_BYTES);
  for (size_t i = 0; i < 100000; i++) assert_int_equal(queue->value->text[i], i % 2 ? 'x' : '\n');
  assert_int_equal(queue->value->text[100000], 0);
  al_event_free(queue);
}

static void
test_event_behind_others_is_found(void **state) {
  (void) state;
  al_event_t *first = event(AL_EVENT_DONE, 3, 0, NULL, 0), *out = event(AL_EVENT_BYTES, 7, 1, "a", 1),
             *err = event(AL_EVENT_BYTES, 7, 2, "b", 1);
  first->next = out;
  out->next = err;
  assert_true(al_event_join(first, event(AL_EVENT_BYTES, 7, 2, "\0c", 2)));
  assert_true(al_event_join(first, event(AL_EVENT_BYTES, 7, 1, "", 0)));
  assert_int_equal(out->value->len, 1);
  assert_int_equal(err->value->len, 3);
  assert_memory_equal(err->value->text, "b\0c", 4);
  al_event_free(first);
  al_event_free(out);
  al_event_free(err);
}

static void
test_event_progress_is_the_newest_and_one(void **state) {
  (void) state;
  al_event_t *queue = event(AL_EVENT_PROGRESS, 7, 0, "first", 5), *other = event(AL_EVENT_PROGRESS, 8, 0, "x", 1);
  assert_false(al_event_join(queue, other));
  queue->next = other;
  for (int i = 0; i < 100; i++) assert_true(al_event_join(queue, event(AL_EVENT_PROGRESS, 7, 0, "later", 5)));
  assert_true(al_event_join(queue, event(AL_EVENT_PROGRESS, 7, 0, "last", 4)));
  assert_int_equal(queue->value->len, 4);
  assert_memory_equal(queue->value->text, "last", 4);
  assert_ptr_equal(queue->next, other);
  assert_int_equal(other->value->len, 1);
  al_event_free(queue);
  al_event_free(other);
}

static void
test_event_of_anything_else_stays_alone(void **state) {
  (void) state;
  al_event_t *queue = event(AL_EVENT_BYTES, 7, 1, "a", 1);
  al_event_t *others[] = {
    event(AL_EVENT_BYTES, 8, 1, "b", 1),
    event(AL_EVENT_BYTES, 7, 2, "b", 1),
    event(AL_EVENT_LINES, 7, 1, "b", 1),
    event(AL_EVENT_DONE, 7, 1, "b", 1),
    event(AL_EVENT_LANE, 7, 1, "b", 1),
    event(AL_EVENT_DRAIN, 7, 0, NULL, 0),
    event(AL_EVENT_PROGRESS, 7, 1, "b", 1),
    event(AL_EVENT_BYTES, 7, 1, NULL, 0),
  };
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    assert_false(al_event_join(queue, others[i]));
    assert_false(al_event_join(NULL, others[i]));
    al_event_free(others[i]);
  }
  assert_int_equal(queue->value->len, 1);
  al_event_free(queue);
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_event_crumbs_of_one_stream_are_one_event),
    cmocka_unit_test(test_event_behind_others_is_found),
    cmocka_unit_test(test_event_progress_is_the_newest_and_one),
    cmocka_unit_test(test_event_of_anything_else_stays_alone),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
