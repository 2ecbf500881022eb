/* SPDX-License-Identifier: Apache-2.0 */
/* What the C tests share: a loop with a deadline, failing allocations, directories that are removed afterwards,
 * children. */
#ifndef AL_TEST_H
#define AL_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above first. */
#include <cmocka.h>

#include "mem.h"
#include "platform.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif
#include <unistd.h>
#include <uv.h>

#define AL_TEST_FN static __attribute__((unused))

/* ---- loop ---- */

AL_TEST_FN void
al_test_loop_alarm(uv_timer_t *timer) {
  *(bool *) timer->data = true;
}

#define AL_TEST_PATIENCE_MS 20000

/* Turns the loop until *flag is true or `ms` are over; sleeps while nothing happens. */
AL_TEST_FN bool
al_test_turn(uv_loop_t *loop, const bool *flag, uint64_t ms) {
  bool late = false;
  uv_timer_t timer;

  uv_timer_init(loop, &timer);
  timer.data = &late;
  uv_update_time(loop);
  uv_timer_start(&timer, al_test_loop_alarm, ms, 0);
  while (!*flag && !late) uv_run(loop, UV_RUN_ONCE);
  uv_close((uv_handle_t *) &timer, NULL);
  while (uv_is_active((uv_handle_t *) &timer)) uv_run(loop, UV_RUN_NOWAIT);
  uv_run(loop, UV_RUN_NOWAIT); /* the close callback: `timer` is on this stack */
  return *flag;
}

/* The same, but fails the test when it takes longer than `ms`, or than a busy machine may stand still. */
AL_TEST_FN void
al_test_until(uv_loop_t *loop, const bool *flag, uint64_t ms) {
  if (ms < AL_TEST_PATIENCE_MS) ms = AL_TEST_PATIENCE_MS;
  if (!al_test_turn(loop, flag, ms)) fail_msg("nothing happened within %llu ms", (unsigned long long) ms);
}

/* Turns the loop for `ms`, whatever happens. */
AL_TEST_FN void
al_test_spin(uv_loop_t *loop, uint64_t ms) {
  const bool never = false;

  al_test_turn(loop, &never, ms);
}

/* Runs the loop empty and closes it; fails when a handle was left behind. */
AL_TEST_FN void
al_test_loop_close(uv_loop_t *loop) {
  uint64_t end = al_plat_mono_ms() + 10000;
  int rc;

  while ((rc = uv_loop_close(loop)) == UV_EBUSY && al_plat_mono_ms() < end) uv_run(loop, UV_RUN_NOWAIT), usleep(1000);
  assert_int_equal(rc, 0);
}

/* ---- failing allocations ---- */

/* Counts down; the allocation that reaches 0 fails, later ones succeed again. < 0: none fails. */
static atomic_long al_test_oom_left = -1;
static atomic_long al_test_oom_live; /* blocks that are allocated and not freed */
static atomic_bool al_test_oom_hit;

AL_TEST_FN bool
al_test_oom_now(void) {
  if (atomic_load(&al_test_oom_left) < 0) return false;
  if (atomic_fetch_sub(&al_test_oom_left, 1) != 0) return false;
  atomic_store(&al_test_oom_hit, true);
  return true;
}

AL_TEST_FN void *
al_test_oom_malloc(size_t n) {
  void *p = al_test_oom_now() ? NULL : malloc(n);

  if (p) atomic_fetch_add(&al_test_oom_live, 1);
  return p;
}

AL_TEST_FN void *
al_test_oom_realloc(void *p, size_t n) {
  void *q = al_test_oom_now() ? NULL : realloc(p, n);

  if (q && !p) atomic_fetch_add(&al_test_oom_live, 1);
  return q;
}

AL_TEST_FN void
al_test_oom_free(void *p) {
  if (p) atomic_fetch_sub(&al_test_oom_live, 1);
  free(p);
}

/* Runs `scenario` again and again, with the 1st, 2nd, 3rd … allocation failing, until none is left to fail. The
 * scenario returns 0 or -ENOMEM and frees everything itself: with a failure it must return -ENOMEM, without one 0, and
 * leave no block. Returns the number of allocations. */
AL_TEST_FN long
al_test_oom_each(int (*scenario)(void *data), void *data) {
  static const al_mem_table_t table = {al_test_oom_malloc, al_test_oom_realloc, al_test_oom_free};
  long n = 0;

  al_mem_set(&table);
  for (;; n++) {
    atomic_store(&al_test_oom_live, 0);
    atomic_store(&al_test_oom_hit, false);
    atomic_store(&al_test_oom_left, n);
    int rc = scenario(data);
    bool hit = atomic_load(&al_test_oom_hit);
    atomic_store(&al_test_oom_left, -1);
    long live = atomic_load(&al_test_oom_live);
    if (live != 0 || rc != (hit ? -ENOMEM : 0)) {
      al_mem_set(NULL);
      fail_msg("allocation %ld failing: returned %d, %ld blocks left", n, rc, live);
    }
    if (!hit) break;
  }
  al_mem_set(NULL);
  assert_true(n > 0);
  return n;
}

/* ---- directory ---- */

/* The scratch directories that are there. A failed test does not reach its own clean-up, so what is left goes at
 * exit. */
static char al_test_dirs[64][24];
static pid_t al_test_dirs_of; /* not a forked child's */

AL_TEST_FN int
al_test_dir_drop(char *slot) {
  int fd = open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

  int rc = fd < 0 ? -errno : al_plat_remove_tree(fd, strrchr(slot, '/') + 1);
  if (fd >= 0) close(fd);
  if (rc != -ENOTEMPTY) slot[0] = 0;
  return rc;
}

AL_TEST_FN void
al_test_dirs_sweep(void) {
  if (getpid() != al_test_dirs_of) return;
  al_mem_set(NULL); /* a failed test may have left its own */
  for (size_t i = 0; i < 64; i++) {
    if (al_test_dirs[i][0]) (void) al_test_dir_drop(al_test_dirs[i]);
  }
}

/* A fresh directory of mode 0700, `out` at least 64 bytes. */
AL_TEST_FN void
al_test_dir(char *out) {
  size_t i = 0;

  strcpy(out, "/tmp/al-test-XXXXXX");
  assert_non_null(mkdtemp(out));
  if (al_test_dirs_of != getpid()) {
    memset(al_test_dirs, 0, sizeof al_test_dirs);
    if (al_test_dirs_of == 0) atexit(al_test_dirs_sweep);
    al_test_dirs_of = getpid();
  }
  while (i < 64 && al_test_dirs[i][0]) i++;
  assert_true(i < 64);
  strcpy(al_test_dirs[i], out);
}

AL_TEST_FN void
al_test_dir_remove(const char *dir) {
  for (size_t i = 0; i < 64; i++) {
    if (strcmp(al_test_dirs[i], dir) == 0) {
      int rc = 0; /* what the test has killed may have children that still write */
      for (int k = 0; k < 500 && (rc = al_test_dir_drop(al_test_dirs[i])) == -ENOTEMPTY; k++) usleep(20000);
      assert_int_equal(rc, 0);
      return;
    }
  }
  fail_msg("%s is no scratch directory of this test", dir);
}

/* DIR/NAME; good for the next seven calls. */
AL_TEST_FN const char *
al_test_path(const char *dir, const char *name) {
  static char path[8][4096];
  static unsigned turn;
  char *p = path[turn++ % 8];

  snprintf(p, sizeof path[0], "%s/%s", dir, name);
  return p;
}

AL_TEST_FN void
al_test_write(const char *dir, const char *name, const char *text) {
  char path[4096];

  snprintf(path, sizeof path, "%s/%s", dir, name);
  FILE *f = fopen(path, "we");
  assert_non_null(f);
  fputs(text, f);
  assert_int_equal(fclose(f), 0);
}

AL_TEST_FN mode_t
al_test_mode(const char *path) {
  struct stat st;

  assert_int_equal(lstat(path, &st), 0);
  return st.st_mode & 07777;
}

/* ---- processes ---- */

/* fork() of a child that dies with the test: a failed assertion leaves the test function without any clean-up. */
AL_TEST_FN pid_t
al_test_fork(void) {
  pid_t pid = fork();

#ifdef __linux__
  if (pid == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
  return pid;
}

/* A child that does nothing until it is ended. */
AL_TEST_FN pid_t
al_test_sleeper(void) {
  pid_t pid = al_test_fork();

  if (pid == 0) {
    for (;;) pause();
  }
  assert_true(pid > 0);
  return pid;
}

AL_TEST_FN void
al_test_kill(pid_t pid) {
  kill(pid, SIGKILL);
  waitpid(pid, NULL, 0);
}

/* A shell line in `dir`; what system(3) says of it. */
static inline int
al_test_system(const char *dir, const char *fmt, va_list ap) {
  char cmd[2048];
  int n = snprintf(cmd, sizeof cmd, "cd %s && ", dir);
  n += vsnprintf(cmd + n, sizeof cmd - (size_t) n, fmt, ap);
  assert_true(n < (int) sizeof cmd);
  return system(cmd);
}

#endif
