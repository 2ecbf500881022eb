/* SPDX-License-Identifier: Apache-2.0 */
/* Queue: against plain bytes in random steps; what is held stays; out of memory. */
#include "al_test.h"
#include "mem.h"
#include "queue.h"
#include <errno.h>

#define PLAIN_MAX 400000u
#define HELD 8

typedef struct held_s {
  al_piece_t *piece;
  const uint8_t *p;
  size_t n;
  uint8_t *copy;
} held_t;

static void
let_go(held_t *h) {
  if (!h->piece) return;
  assert_memory_equal(h->p, h->copy, h->n);
  al_piece_release(h->piece);
  al_free(h->copy);
  h->piece = NULL;
}

static void
hold(al_queue_t *q, held_t *h) {
  let_go(h);
  h->n = al_queue_front(q, &h->p);
  if (h->n == 0) return;
  h->piece = al_queue_hold(q);
  h->copy = al_memdup(h->p, h->n);
}

static void
test_queue_is_its_bytes(void **state) {
  static uint8_t plain[PLAIN_MAX], out[PLAIN_MAX];
  held_t held[HELD] = { { 0 } };
  size_t len = 0, next = 0;
  al_queue_t q = { 0 };
  (void) state;
  srand(1);
  for (int step = 0; step < 20000; step++) {
    size_t n = (size_t) rand() % (rand() % 4 ? 50 : 40000);
    int what = rand() % 8;
    if (what < 4 && len + n <= PLAIN_MAX) {
      for (size_t i = 0; i < n; i++) plain[len + i] = (uint8_t) (next++ * 31 + (size_t) step % 7);
      if (what < 3) assert_int_equal(al_queue_append(&q, plain + len, n), 0);
      else assert_int_equal(al_queue_take(&q, al_memdup(plain + len, n), n), 0);
      len += n;
    } else if (what < 7) {
      if (n > len) n = len;
      if (what == 6) hold(&q, &held[rand() % HELD]);
      al_queue_copy(&q, out, n);
      assert_memory_equal(out, plain, n);
      al_queue_drop(&q, n);
      memmove(plain, plain + n, len -= n);
    } else if (rand() % 50 == 0) {
      hold(&q, &held[rand() % HELD]);
      al_queue_deinit(&q);
      len = 0;
    }
    const uint8_t *p;
    size_t front = al_queue_front(&q, &p);
    assert_int_equal(q.len, len);
    assert_true(front <= len && (front > 0) == (len > 0));
    assert_memory_equal(p, plain, front);
  }
  for (int i = 0; i < HELD; i++) let_go(&held[i]);
  al_queue_deinit(&q);
}

static void
test_queue_takes_what_it_is_given(void **state) {
  al_queue_t q = { 0 };
  (void) state;
  assert_int_equal(al_queue_take(&q, al_strdup("abc"), 3), 0);
  assert_int_equal(al_queue_take(&q, al_strdup("nothing of it"), 0), 0); /* freed: the sanitizer would tell */
  assert_int_equal(al_queue_take(&q, NULL, 0), 0);
  assert_int_equal(al_queue_append(&q, "", 0), 0);
  assert_int_equal(q.len, 3);
  al_queue_deinit(&q);
  assert_int_equal(al_queue_front(&q, &(const uint8_t *){ NULL }), 0);
}

static int
scenario(void *data) {
  al_queue_t q = { 0 };
  char *given = al_strdup("given");
  (void) data;
  int r = given ? al_queue_take(&q, given, 5) : -ENOMEM;
  size_t before = q.len;
  if (r == 0) r = al_queue_append(&q, "copied", 6);
  if (r < 0 && q.len != before) r = -EINVAL;
  al_queue_deinit(&q);
  return r;
}

static void
test_queue_out_of_memory_adds_nothing(void **state) {
  (void) state;
  assert_true(al_test_oom_each(scenario, NULL) >= 3);
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_queue_is_its_bytes),
    cmocka_unit_test(test_queue_takes_what_it_is_given),
    cmocka_unit_test(test_queue_out_of_memory_adds_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
