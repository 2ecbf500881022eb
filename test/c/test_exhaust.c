/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors, threads and processes run out, at each step of a lane's life and of the calls into it. */
#include "engine_test.h"
#include <dlfcn.h>
#include <pthread.h>
#include <sys/resource.h>

/* ---- what can be made to fail: these stand before libuv's own ---- */

static atomic_int threads_left = -1, spawns_left = -1; /* the one that reaches 0 fails; < 0: none */
static atomic_bool hit;

static bool
fails_now(atomic_int *left) {
  if (atomic_load(left) < 0 || atomic_fetch_sub(left, 1) != 0) return false;
  atomic_store(&hit, true);
  return true;
}

int
uv_thread_create(uv_thread_t *t, uv_thread_cb entry, void *arg) {
  int (*real)(uv_thread_t *, uv_thread_cb, void *);
  if (fails_now(&threads_left)) return UV_EAGAIN;
  *(void **) &real = dlsym(RTLD_NEXT, "uv_thread_create");
  return real(t, entry, arg);
}

int
uv_spawn(uv_loop_t *loop, uv_process_t *p, const uv_process_options_t *options) {
  int (*real)(uv_loop_t *, uv_process_t *, const uv_process_options_t *);
  uv_process_options_t nothing = *options;
  bool fail = fails_now(&spawns_left);
  if (fail) nothing.file = "/nonexistent"; /* the handle must be made in any case */
  *(void **) &real = dlsym(RTLD_NEXT, "uv_spawn");
  int rc = real(loop, p, &nothing);
  return fail ? UV_EAGAIN : rc;
}

static struct rlimit usual;

/* Leaves `n` more descriptors to this process; -1: as many as usual. */
static void
leave_fds(int n) {
  struct rlimit tight = usual;
  if (n >= 0) {
    tight.rlim_cur = 0;
    for (int open = 0; open <= n; tight.rlim_cur++)
      if (fcntl((int) tight.rlim_cur, F_GETFD) < 0 && ++open > n) break;
  }
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);
}

/* When the lane begins to end things get better; or, with slow_ms, there is nothing left for so long. */
static unsigned slow_ms;

static void *
get_better(void *ms) {
  usleep((useconds_t) (uintptr_t) ms * 1000);
  leave_fds(-1);
  return NULL;
}

static void
on_lane(const char *type) {
  pthread_t t;
  if (strcmp(type, "closing")) return;
  leave_fds(slow_ms ? 0 : -1);
  if (slow_ms) assert_int_equal(pthread_create(&t, NULL, get_better, (void *) (uintptr_t) slow_ms) || pthread_detach(t), 0);
}

/* ---- one life ---- */

/* Everything that people do with a lane. The first error ends it. */
static al_err_t
live(void) {
  al_err_t err = {0};
  al_val_t *calls[3];

  if ((err.code = stage_open())) {
    al_err_set(&err, err.code, "%s", uv_strerror(err.code));
    return err;
  }
  if (stage_create(&err) == 0) {
    calls[0] = stage_map("command", "echo hello", "cwd", "/", NULL);
    calls[1] = stage_map("hostPath", al_test_path(stage.dir, "image"), "guestPath",
      al_test_path(stage.dir, "work/tree"), NULL);
    calls[2] = stage_map("hostPath", al_test_path(stage.dir, "out/file"), "guestPath",
      al_test_path(stage.dir, "image/vmlinuz"), NULL);
    static const char *const ops[] = {"exec", "copyIn", "copyOut"};
    for (int i = 0; i < 3; i++) {
      if (err.code) al_val_free(calls[i]);
      else err = stage_ask(ops[i], calls[i])->err;
    }
    int rc = stage_close_lane();
    if (rc && !err.code) al_err_set(&err, rc, "close");
  }
  leave_fds(-1);
  stage_close();
  return err;
}

/* Says what was short, and what helps. */
static void
assert_says(const char *what, int n, const al_err_t *err, const char *word) {
  if (strcasestr(err->msg, word) && al_err_cure_text(err)[0] && err->code != AL_EINTERNAL &&
      err->code != AL_ELIMA_FAILED) return;
  fail_msg("%s %d: %s: %s (%s)", what, n, al_err_name(err->code), err->msg, al_err_cure_text(err));
}

/* Lives with less and less trouble until one is good; each that was not has left nothing. */
static int
live_each(const char *what, const char *word, void (*trouble)(int n)) {
  int n = 0, failed = 0, fds = stage_fds();
  char step[300];

  for (;; n++) {
    atomic_store(&hit, false);
    trouble(n);
    al_err_t err = live();
    trouble(-1);
    snprintf(step, sizeof step, "%s %d: %.200s", what, n, err.msg);
    stage_clean(step, fds);
    if (err.code) {
      failed++;
      assert_says(what, n, &err, word);
    } else if (trouble == leave_fds || !atomic_load(&hit)) {
      break;
    }
    if (n > 300) fail_msg("%s: it never gets better", what);
  }
  printf("%s: %d lives failed, the next one was good\n", what, failed);
  return failed;
}

static void
fail_thread(int n) {
  atomic_store(&threads_left, n);
}

static void
fail_spawn(int n) {
  atomic_store(&spawns_left, n);
}

static void
test_exhaust_descriptors(void **state) {
  (void) state;
  stage_make();
  stage.on_lane = on_lane;
  assert_true(live_each("descriptors", "too many open files", leave_fds) > 10);
  stage.on_lane = NULL;
  stage_remove();
}

/* A lane does not stay because there were none for a moment. */
static void
test_exhaust_descriptors_during_the_end(void **state) {
  (void) state;
  stage_make();
  int fds = stage_fds();
  stage.on_lane = on_lane;
  slow_ms = 700;
  al_err_t err = live();
  if (err.code) fail_msg("%s: %s", al_err_name(err.code), err.msg);
  stage_clean("descriptors that come late", fds);
  slow_ms = 0;
  stage.on_lane = NULL;
  stage_remove();
}

static void
test_exhaust_threads(void **state) {
  (void) state;
  stage_make();
  assert_true(live_each("threads", "resource temporarily unavailable", fail_thread) >= 5);
  stage_remove();
}

static void
test_exhaust_processes(void **state) {
  (void) state;
  stage_make();
  assert_true(live_each("processes", "resource temporarily unavailable", fail_spawn) >= 5);
  stage_remove();
}

/* The calls of a lane that lives on: with few descriptors each fails and says so, and then works again. */
static void
test_exhaust_descriptors_in_calls(void **state) {
  (void) state;
  int fds;
  stage_make();
  assert_int_equal(stage_open(), 0);
  assert_int_equal(stage_create(NULL), 0);
  assert_int_equal(al_plat_mkdirs(al_test_path(stage.dir, "nest/a/b/c"), 0755), 0);
  assert_int_equal(al_plat_write_new(AT_FDCWD, al_test_path(stage.dir, "nest/a/b/c/f"), "x", 1, 0644), 0);
  fds = stage_fds();
  static const struct { const char *op, *host, *guest; } calls[] = {
    {"copyIn", "image", "work/tree"}, {"copyOut", "out/file", "image/vmlinuz"}, {"copyTreeOut", "out/tree", "nest"}};
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
    static const char *const known[] = {"file", "tree", NULL};
    int n = 0;
    for (al_err_t err = {.code = 1}; err.code; n++) {
      leave_fds(n);
      err = stage_ask(calls[i].op, stage_map("hostPath", al_test_path(stage.dir, calls[i].host), "guestPath",
        al_test_path(stage.dir, calls[i].guest), NULL))->err;
      leave_fds(-1);
      if (err.code) assert_says(calls[i].op, n, &err, "too many open files");
      for (uint64_t end = al_plat_mono_ms() + 5000; stage_fds() != fds && al_plat_mono_ms() < end;) usleep(1000);
      assert_int_equal(stage_fds(), fds);
      assert_int_equal(stage_count(al_test_path(stage.dir, "out"), known, NULL, 0), 0);
    }
    assert_true(n > 2);
  }
  assert_int_equal(stage_close_lane(), 0);
  stage_close();
  stage_remove();
}

int
main(int argc, char **argv) {
  int code;
  if (stand_in(argc, argv, &code)) return code;
  if (!stage_start()) return 1;
  getrlimit(RLIMIT_NOFILE, &usual);
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_exhaust_descriptors),
    cmocka_unit_test(test_exhaust_descriptors_in_calls),
    cmocka_unit_test(test_exhaust_descriptors_during_the_end),
    cmocka_unit_test(test_exhaust_threads),
    cmocka_unit_test(test_exhaust_processes),
  };
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
