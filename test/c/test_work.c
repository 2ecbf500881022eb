/* SPDX-License-Identifier: Apache-2.0 */
/* Worker: order, the thread, cancelling at close, posting from done, several on one loop. */
#include "al_test.h"
#include "work.h"

typedef struct task_s {
  al_job_t job; /* first: the job is the task */
  uv_thread_t ran_on;
  int ran, done, status, value, sleep_ms;
  int *order, *next;
  al_worker_t *again; /* post once more from done */
  al_worker_t *close; /* close from done */
  bool *closed;
} task_t;

static int
run(al_job_t *job) {
  task_t *t = (task_t *) job;
  t->ran_on = uv_thread_self();
  t->ran++;
  if (t->sleep_ms) usleep((useconds_t) t->sleep_ms * 1000);
  return t->value;
}

static void
set_flag(void *data) {
  *(bool *) data = true;
}

static void
done(al_job_t *job, int status) {
  task_t *t = (task_t *) job;
  t->done++;
  t->status = status;
  if (t->order) t->order[(*t->next)++] = t->value;
  if (t->again) {
    al_worker_t *w = t->again;
    t->again = NULL;
    al_worker_post(w, job, run, done);
    return;
  }
  if (t->close) al_worker_close(t->close, set_flag, t->closed);
}

static void
close_and_wait(uv_loop_t *loop, al_worker_t *w) {
  bool gone = false;
  al_worker_close(w, set_flag, &gone);
  assert_false(gone);
  al_test_until(loop, &gone, 10000);
}

static void
test_work_jobs_run_in_order_on_one_thread(void **state) {
  uv_loop_t loop;
  al_worker_t *w;
  static task_t tasks[100];
  int order[100], next = 0;
  (void) state;
  memset(tasks, 0, sizeof tasks);
  uv_loop_init(&loop);
  assert_int_equal(al_worker_open(&loop, &w), 0);
  for (int i = 0; i < 100; i++) {
    tasks[i].value = i, tasks[i].order = order, tasks[i].next = &next;
    al_worker_post(w, &tasks[i].job, run, done);
  }
  assert_int_equal(next, 0); /* never from inside post */
  uv_run(&loop, UV_RUN_DEFAULT); /* jobs keep the loop alive, and only they */
  assert_int_equal(next, 100);
  uv_thread_t self = uv_thread_self();
  for (int i = 0; i < 100; i++) {
    assert_int_equal(order[i], i);
    assert_int_equal(tasks[i].ran, 1);
    assert_int_equal(tasks[i].done, 1);
    assert_int_equal(tasks[i].status, i);
    assert_true(uv_thread_equal(&tasks[i].ran_on, &tasks[0].ran_on));
    assert_false(uv_thread_equal(&tasks[i].ran_on, &self));
  }
  close_and_wait(&loop, w);
  al_test_loop_close(&loop);
}

static void
test_work_close_finishes_running_and_cancels_waiting(void **state) {
  uv_loop_t loop;
  al_worker_t *w;
  static task_t tasks[3];
  (void) state;
  memset(tasks, 0, sizeof tasks);
  uv_loop_init(&loop);
  assert_int_equal(al_worker_open(&loop, &w), 0);
  tasks[0].sleep_ms = 150, tasks[0].value = 11;
  for (int i = 0; i < 2; i++) al_worker_post(w, &tasks[i].job, run, done);
  usleep(50000);
  bool gone = false;
  al_worker_close(w, set_flag, &gone);
  al_worker_post(w, &tasks[2].job, run, done); /* after close: cancelled like the others */
  al_test_until(&loop, &gone, 10000);
  assert_int_equal(tasks[0].ran, 1);
  assert_int_equal(tasks[0].status, 11);
  for (int i = 1; i < 3; i++) {
    assert_int_equal(tasks[i].ran, 0);
    assert_int_equal(tasks[i].done, 1);
    assert_int_equal(tasks[i].status, UV_ECANCELED);
  }
  al_test_loop_close(&loop);
}

static void
test_work_done_may_post_and_close(void **state) {
  uv_loop_t loop;
  al_worker_t *w;
  bool gone = false;
  task_t t = {0};
  (void) state;
  uv_loop_init(&loop);
  assert_int_equal(al_worker_open(&loop, &w), 0);
  t.again = w, t.close = w, t.closed = &gone;
  al_worker_post(w, &t.job, run, done);
  al_test_until(&loop, &gone, 10000);
  assert_int_equal(t.ran, 2);
  assert_int_equal(t.done, 2);
  al_test_loop_close(&loop);
}

static void
test_work_several_run_at_once(void **state) {
  uv_loop_t loop;
  al_worker_t *w[4];
  task_t t[4] = {0};
  (void) state;
  uv_loop_init(&loop);
  uint64_t start = al_plat_mono_ms();
  for (int i = 0; i < 4; i++) {
    assert_int_equal(al_worker_open(&loop, &w[i]), 0);
    t[i].sleep_ms = 300;
    al_worker_post(w[i], &t[i].job, run, done);
  }
  uv_run(&loop, UV_RUN_DEFAULT);
  assert_true(al_plat_mono_ms() - start < 1100);
  for (int i = 0; i < 4; i++) {
    assert_int_equal(t[i].done, 1);
    close_and_wait(&loop, w[i]);
  }
  al_test_loop_close(&loop);
}

static void
on_usr1(int signo) {
  (void) signo;
}

static int
mask_of_thread(al_job_t *job) {
  sigset_t set;
  (void) job;
  pthread_sigmask(SIG_SETMASK, NULL, &set);
  return sigismember(&set, SIGUSR1) && sigismember(&set, SIGTERM);
}

static void
test_work_thread_takes_no_signals(void **state) {
  uv_loop_t loop;
  al_worker_t *w;
  task_t t = {0};
  sigset_t set;
  (void) state;
  signal(SIGUSR1, on_usr1);
  uv_loop_init(&loop);
  assert_int_equal(al_worker_open(&loop, &w), 0);
  al_worker_post(w, &t.job, mask_of_thread, done);
  uv_run(&loop, UV_RUN_DEFAULT);
  assert_int_equal(t.status, 1);
  pthread_sigmask(SIG_SETMASK, NULL, &set);
  assert_false(sigismember(&set, SIGUSR1)); /* ours is as it was */
  close_and_wait(&loop, w);
  al_test_loop_close(&loop);
}

static int
open_close(void *data) {
  al_worker_t *w;
  int rc = al_worker_open(data, &w);
  if (!rc) close_and_wait(data, w);
  return rc;
}

static void
test_work_open_out_of_memory(void **state) {
  uv_loop_t loop;
  (void) state;
  uv_loop_init(&loop);
  assert_int_equal(al_test_oom_each(open_close, &loop), 1);
  al_test_loop_close(&loop);
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_work_jobs_run_in_order_on_one_thread),
    cmocka_unit_test(test_work_close_finishes_running_and_cancels_waiting),
    cmocka_unit_test(test_work_done_may_post_and_close),
    cmocka_unit_test(test_work_several_run_at_once),
    cmocka_unit_test(test_work_thread_takes_no_signals),
    cmocka_unit_test(test_work_open_out_of_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
