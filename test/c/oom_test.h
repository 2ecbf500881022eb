/* SPDX-License-Identifier: Apache-2.0 */
/* Scenarios that run again and again, each time with the next allocation failing. Unlike al_test_oom_each's these may
 * have several threads, and allocations that are not needed for the result, such as an event nobody asked for. */
#ifndef AL_OOM_TEST_H
#define AL_OOM_TEST_H

#include "al_test.h"
#include "err.h"

#define OOM_STEPS 10 /* of a long scenario, unless AL_OOM=all */

AL_TEST_FN void
oom_begin(void) {
  static const al_mem_table_t table = {al_test_oom_malloc, al_test_oom_realloc, al_test_oom_free};
  al_mem_set(&table);
  atomic_store(&al_test_oom_live, 0);
  atomic_store(&al_test_oom_left, -1);
}

/* Everything that was allocated since oom_begin is free again. */
AL_TEST_FN void
oom_end(void) {
  atomic_store(&al_test_oom_left, -1);
  al_mem_set(NULL);
  assert_int_equal(atomic_load(&al_test_oom_live), 0);
}

/* For what a scenario does after the part that is tried. */
AL_TEST_FN void
oom_pause(void) {
  atomic_store(&al_test_oom_left, -1);
}

/* One run with allocation `n` failing (-1: none). Returns whether it failed. The result must be NO_MEMORY, or 0, and
 * then the scenario has seen that nothing is missing; without a failure 0. */
AL_TEST_FN bool
oom_once(const char *what, int (*scenario)(void *data), void *data, long n) {
  long before = atomic_load(&al_test_oom_live);

  atomic_store(&al_test_oom_hit, false);
  atomic_store(&al_test_oom_left, n);
  int rc = scenario(data);
  bool hit = atomic_load(&al_test_oom_hit);
  atomic_store(&al_test_oom_left, -1);
  for (int i = 0; i < 2000 && atomic_load(&al_test_oom_live) != before; i++) usleep(1000); /* another thread's */
  long live = atomic_load(&al_test_oom_live) - before;
  bool good = rc == 0 || (hit && (rc == -ENOMEM || rc == AL_ENO_MEMORY));
  if (!good || live != 0) {
    al_mem_set(NULL);
    fail_msg("%s, allocation %ld: %s (%d), %ld blocks left", what, n, al_err_name(rc), rc, live);
  }
  return hit;
}

AL_TEST_FN bool
oom_all(void) {
  const char *which = getenv("AL_OOM");
  return which && strcmp(which, "all") == 0;
}

/* With the table set already and blocks of others around: each allocation in turn, every fourth unless AL_OOM=all. */
AL_TEST_FN void
oom_each_held(const char *what, int (*scenario)(void *data), void *data) {
  long n = 0, live;

  do { /* what went before may still be freeing */
    live = atomic_load(&al_test_oom_live);
    usleep(300000);
  } while (live != atomic_load(&al_test_oom_live));
  uint64_t started = al_plat_mono_ms();
  oom_once(what, scenario, data, -1);
  while (oom_once(what, scenario, data, n)) n += oom_all() ? 1 : 4;
  assert_true(n > 0);
  printf("%s: %ld allocations, %llu ms\n", what, n, (unsigned long long) (al_plat_mono_ms() - started));
  fflush(stdout);
}

/* Each allocation in turn; unless AL_OOM=all every third of more than 100, and of a long scenario about OOM_STEPS. */
AL_TEST_FN void
oom_each(const char *what, int (*scenario)(void *data), void *data, bool is_long) {
  long n = 0, tried = 0, stride = 1, begin;
  uint64_t started = al_plat_mono_ms();

  oom_begin();
  atomic_store(&al_test_oom_left, begin = 1L << 40);
  int rc = scenario(data);
  long total = begin - atomic_load(&al_test_oom_left);
  if (rc) fail_msg("%s: %s without any failure", what, al_err_name(rc));
  if (!oom_all()) stride = is_long ? total / OOM_STEPS + 1 : total > 100 ? 3 : 1;
  for (; oom_once(what, scenario, data, n); n += stride) tried++;
  oom_end();
  assert_true(tried > 0);
  printf("%s: %ld allocations, %ld of them tried, %llu ms\n", what, total, tried,
    (unsigned long long) (al_plat_mono_ms() - started));
  fflush(stdout);
}

#endif
