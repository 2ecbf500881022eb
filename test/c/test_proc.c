/* SPDX-License-Identifier: Apache-2.0 */
/* Process runner: ends, output, input, deadlines, grandchildren, pipes, failures. */
#include "al_test.h"
#include "proc.h"
#include <limits.h>

typedef struct ctx_s {
  uv_loop_t loop;
  al_proc_t p;
  al_proc_opts_t opts;
  const char *argv[8], *env[4];
  bool done;
  int status, dones;
  char dir[64];
  uint64_t started, took;
  char got[4096];
  size_t got_len;
  bool eof;
} ctx_t;

static int
setup(void **state) {
  ctx_t *c = calloc(1, sizeof *c);
  uv_loop_init(&c->loop);
  al_test_dir(c->dir);
  c->env[0] = "PATH=/usr/bin:/bin";
  c->opts = (al_proc_opts_t) {.file = "/bin/sh", .argv = c->argv, .env = c->env, .cwd = c->dir, .in = AL_PROC_NULL,
    .out = AL_PROC_BUFFER, .out_cap = 65536, .stderr_fd = -1, .deadline_ms = 20000};
  c->p.data = c;
  *state = c;
  return 0;
}

static int
teardown(void **state) {
  ctx_t *c = *state;
  al_proc_deinit(&c->p);
  al_test_loop_close(&c->loop);
  al_test_dir_remove(c->dir);
  free(c);
  return 0;
}

static void
on_done(al_proc_t *p, int status) {
  ctx_t *c = p->data;
  c->status = status;
  c->dones++;
  c->done = true;
  c->took = al_plat_mono_ms() - c->started;
  assert_null(p->in);
  assert_null(p->outp);
}

static void
start(ctx_t *c, const char *script) {
  c->argv[0] = "sh", c->argv[1] = "-c", c->argv[2] = script;
  c->started = al_plat_mono_ms();
  assert_int_equal(al_proc_start(&c->loop, &c->p, &c->opts, on_done), 0);
  assert_false(c->done);
}

static void
finish(ctx_t *c) {
  al_test_until(&c->loop, &c->done, 20000);
  assert_int_equal(c->dones, 1);
}

static void
run(ctx_t *c, const char *script) {
  start(c, script);
  finish(c);
}

static const char *
out(ctx_t *c) {
  return c->p.out.data ? (char *) c->p.out.data : "";
}

static void
expect_stderr(ctx_t *c, const char *want) {
  char *text = al_tail_copy(&c->p.err_tail, NULL);
  assert_string_equal(text, want);
  al_free(text);
}

/* The pid that a script left in a file of the directory, once it is there. */
static pid_t
pid_from(ctx_t *c, const char *name) {
  char path[128], text[32] = "";
  snprintf(path, sizeof path, "%s/%s", c->dir, name);
  for (int i = 0; i < 500; i++) {
    FILE *f = fopen(path, "re");
    bool got = f && fgets(text, sizeof text, f) && strchr(text, '\n');
    if (f) fclose(f);
    if (got) return (pid_t) atoi(text);
    al_test_spin(&c->loop, 10);
  }
  fail_msg("no %s", name);
  return -1;
}

static bool
lives(pid_t pid) {
  al_ident_t id;
  return al_plat_ident(pid, &id) == 0;
}

static void
expect_gone(pid_t pid) {
  for (int i = 0; i < 300 && lives(pid); i++) usleep(10000);
  assert_false(lives(pid));
}

static void
test_proc_exit_code_output_and_environment(void **state) {
  ctx_t *c = *state;
  run(c, "echo out; echo err >&2; echo $PATH-$HOME; pwd; exit 7");
  char want[256];
  snprintf(want, sizeof want, "out\n/usr/bin:/bin-\n%s\n", c->dir);
  assert_int_equal(c->status, 0);
  assert_int_equal(c->p.exit_code, 7);
  assert_int_equal(c->p.term_signal, 0);
  assert_string_equal(out(c), want);
  expect_stderr(c, "err\n");
}

static void
test_proc_child_blocks_no_signal(void **state) {
  ctx_t *c = *state;
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  start(c, "while read name value; do [ $name = SigBlk: ] && echo $value; done < /proc/self/status");
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  finish(c);
  assert_string_equal(out(c), "0000000000000000\n");
}

static void
test_proc_term_signal_is_reported(void **state) {
  ctx_t *c = *state;
  run(c, "kill -9 $$");
  assert_int_equal(c->status, 0);
  assert_int_equal(c->p.term_signal, SIGKILL);
}

static void
test_proc_identity_is_the_childs(void **state) {
  ctx_t *c = *state;
  start(c, "sleep 30 & wait");
  char exe[PATH_MAX];
  assert_non_null(realpath("/bin/sh", exe));
  assert_string_equal(c->p.ident.exe, exe);
  assert_int_equal(al_plat_ident_alive(&c->p.ident), 1);
  assert_int_equal(getsid(c->p.ident.pid), c->p.ident.pid); /* a session of its own */
  al_proc_kill(&c->p);
  finish(c);
  assert_int_equal(al_plat_ident_alive(&c->p.ident), 0);
}

static void
test_proc_spawn_failure_comes_through_on_done(void **state) {
  ctx_t *c = *state;
  c->opts.file = "/nonexistent/program";
  run(c, "");
  assert_int_equal(c->status, UV_ENOENT);
  c->done = false, c->dones = 0;
  c->opts.file = "/bin/sh";
  c->opts.cwd = "/nonexistent";
  run(c, "");
  assert_int_equal(c->status, UV_ENOENT);
}

static void
test_proc_bad_options_are_refused(void **state) {
  ctx_t *c = *state;
  al_proc_opts_t good = c->opts, bad;
  c->argv[0] = "sh";
#define REFUSED(change) (bad = good, change, assert_int_equal(al_proc_start(&c->loop, &c->p, &bad, on_done), -EINVAL))
  REFUSED(bad.file = "sh");
  REFUSED(bad.file = NULL);
  REFUSED(bad.argv = NULL);
  REFUSED(bad.env = NULL);
  REFUSED(bad.deadline_ms = 0);
  REFUSED(bad.out_cap = 0);
  REFUSED((bad.input = "x", bad.input_len = 1));
#undef REFUSED
  al_test_spin(&c->loop, 20);
  assert_int_equal(c->dones, 0);
  al_proc_stop(&c->p), al_proc_kill(&c->p); /* harmless without a run */
}

static void
test_proc_input_is_fed_whole(void **state) {
  ctx_t *c = *state;
  size_t n = 1 << 20;
  char *input = malloc(n);
  for (size_t i = 0; i < n; i++) input[i] = (char) ('a' + i % 26);
  c->opts.in = AL_PROC_BUFFER, c->opts.input = input, c->opts.input_len = n, c->opts.out_cap = n;
  start(c, "exec cat");
  memset(input, '#', n); /* copied */
  finish(c);
  assert_int_equal(c->status, 0);
  assert_int_equal(c->p.out.len, n);
  for (size_t i = 0; i < n; i++)
    if (c->p.out.data[i] != 'a' + i % 26) fail_msg("byte %zu", i);
  free(input);
}

static void
test_proc_child_that_does_not_read_is_no_failure(void **state) {
  ctx_t *c = *state;
  size_t n = 4 << 20;
  char *input = calloc(1, n);
  c->opts.in = AL_PROC_BUFFER, c->opts.input = input, c->opts.input_len = n;
  run(c, "exec 0<&-; echo ok; exit 3"); /* and no SIGPIPE for us, whose disposition is the default here */
  assert_int_equal(c->status, 0);
  assert_int_equal(c->p.exit_code, 3);
  assert_string_equal(out(c), "ok\n");
  free(input);
}

static void
test_proc_output_cap_and_neighbours(void **state) {
  ctx_t *c = *state;
  for (int n = 99; n <= 101; n++) {
    char script[64];
    snprintf(script, sizeof script, "printf '%%%dd' 1; [ %d -gt 100 ] && sleep 30", n, n);
    c->done = false, c->dones = 0, c->opts.out_cap = 100;
    run(c, script);
    assert_int_equal(c->status, n > 100 ? -ENOBUFS : 0);
    if (n <= 100) assert_int_equal(c->p.out.len, n);
    assert_true(c->took < 5000);
    al_proc_deinit(&c->p);
  }
}

static void
test_proc_stderr_keeps_a_tail(void **state) {
  ctx_t *c = *state;
  run(c, "i=0; while [ $i -lt 2000 ]; do echo line-$i >&2; i=$((i+1)); done");
  size_t len;
  char *text = al_tail_copy(&c->p.err_tail, &len);
  assert_int_equal(c->p.err_tail.len, AL_PROC_STDERR_TAIL);
  assert_string_equal(text + len - 10, "line-1999\n");
  al_free(text);
}

static void
test_proc_stderr_descriptor_is_handed_over(void **state) {
  ctx_t *c = *state;
  char path[128], text[16] = "";
  snprintf(path, sizeof path, "%s/log", c->dir);
  int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  c->opts.stderr_fd = fd;
  run(c, "echo logged >&2");
  assert_int_equal(pread(fd, text, sizeof text - 1, 0), 7); /* still open: borrowed */
  assert_string_equal(text, "logged\n");
  close(fd);
}

static void
test_proc_deadline_ends_with_term(void **state) {
  ctx_t *c = *state;
  c->opts.deadline_ms = 300;
  run(c, "trap 'echo term; exit 5' TERM; sleep 30 & wait");
  assert_int_equal(c->status, UV_ETIMEDOUT);
  assert_int_equal(c->p.exit_code, 5);
  assert_string_equal(out(c), "term\n");
  assert_true(c->took >= 290 && c->took < AL_PROC_KILL_GRACE_MS);
}

static void
test_proc_deaf_child_is_killed_after_the_grace(void **state) {
  ctx_t *c = *state;
  c->opts.deadline_ms = 200;
  run(c, "trap '' TERM; echo $$ > pid; while :; do sleep 1; done");
  assert_int_equal(c->status, UV_ETIMEDOUT);
  assert_int_equal(c->p.term_signal, SIGKILL);
  assert_true(c->took >= 200 + AL_PROC_KILL_GRACE_MS - 10 && c->took < 200 + AL_PROC_KILL_GRACE_MS + 1500);
}

static void
test_proc_stop_takes_the_whole_group(void **state) {
  ctx_t *c = *state;
  start(c, "sh -c 'trap \"\" TERM; echo $$ > deaf; while :; do sleep 1; done' & wait");
  pid_t deaf = pid_from(c, "deaf");
  assert_true(lives(deaf));
  al_proc_stop(&c->p);
  assert_false(c->done);
  finish(c);
  assert_int_equal(c->status, 0);
  assert_int_equal(c->p.term_signal, SIGTERM);
  expect_gone(deaf);
}

static void
test_proc_grandchild_that_holds_the_pipe_is_left_alone(void **state) {
  ctx_t *c = *state;
  run(c, "sleep 30 & echo $! > pid; echo mine");
  pid_t pid = pid_from(c, "pid");
  assert_int_equal(c->status, 0);
  assert_int_equal(c->p.exit_code, 0);
  assert_string_equal(out(c), "mine\n");
  assert_true(c->took >= AL_PROC_DRAIN_MS - 30 && c->took < AL_PROC_DRAIN_MS + 1500);
  assert_true(lives(pid));
  kill(pid, SIGKILL);
}

static void
test_proc_grandchild_without_pipes_costs_no_time(void **state) {
  ctx_t *c = *state;
  run(c, "sleep 30 >/dev/null 2>&1 & echo $! > pid");
  pid_t pid = pid_from(c, "pid");
  assert_true(c->took < AL_PROC_DRAIN_MS);
  assert_true(lives(pid));
  kill(pid, SIGKILL);
}

/* ---- pipes in the caller's hands ---- */

static void
on_alloc(uv_handle_t *h, size_t n, uv_buf_t *buf) {
  ctx_t *c = h->data;
  (void) n;
  *buf = uv_buf_init(c->got + c->got_len, (unsigned) (sizeof c->got - 1 - c->got_len));
}

static void
on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf) {
  ctx_t *c = s->data;
  (void) buf;
  if (n < 0) {
    c->eof = true;
    uv_read_stop(s);
  } else {
    c->got_len += (size_t) n;
  }
}

static void
pipes(ctx_t *c, const char *script) {
  c->opts.in = c->opts.out = AL_PROC_PIPE;
  c->opts.deadline_ms = 0;
  start(c, script);
  assert_non_null(c->p.in);
  assert_non_null(c->p.outp);
  c->p.in->data = c->p.outp->data = c; /* the caller's to use */
}

static int written_status;

static void
on_written(uv_write_t *req, int status) {
  (void) req;
  written_status = status;
}

static void
on_shutdown(uv_shutdown_t *req, int status) {
  (void) req;
  (void) status;
}

static void
test_proc_pipes_carry_both_ways(void **state) {
  ctx_t *c = *state;
  uv_write_t req;
  uv_shutdown_t end;
  uv_buf_t buf = uv_buf_init((char[]) {"hello"}, 5);
  pipes(c, "cat; echo over");
  uv_read_start((uv_stream_t *) c->p.outp, on_alloc, on_read);
  uv_write(&req, (uv_stream_t *) c->p.in, &buf, 1, on_written);
  uv_shutdown(&end, (uv_stream_t *) c->p.in, on_shutdown);
  finish(c);
  assert_int_equal(c->status, 0);
  assert_string_equal(c->got, "helloover\n");
  assert_true(c->eof);
  assert_true(c->took < AL_PROC_DRAIN_MS);
}

static void
test_proc_pipe_last_bytes_are_not_lost(void **state) {
  ctx_t *c = *state;
  pipes(c, "echo last; exit 4");
  al_test_spin(&c->loop, 200); /* long after the exit; the caller starts reading only now */
  assert_false(c->done);
  uv_read_start((uv_stream_t *) c->p.outp, on_alloc, on_read);
  finish(c);
  assert_string_equal(c->got, "last\n");
  assert_int_equal(c->p.exit_code, 4);
}

static void
test_proc_pipe_never_read_ends_all_the_same(void **state) {
  ctx_t *c = *state;
  pipes(c, "echo nobody reads this");
  finish(c);
  assert_int_equal(c->status, 0);
  assert_true(c->took < AL_PROC_DRAIN_MS + 1500);
}

static void
test_proc_pipe_kill_closes_at_once(void **state) {
  ctx_t *c = *state;
  pipes(c, "sleep 30 & echo $! > pid; wait");
  pid_t pid = pid_from(c, "pid");
  uv_read_start((uv_stream_t *) c->p.outp, on_alloc, on_read);
  c->started = al_plat_mono_ms();
  al_proc_kill(&c->p);
  finish(c);
  assert_int_equal(c->p.term_signal, SIGKILL);
  assert_true(c->took < AL_PROC_DRAIN_MS);
  expect_gone(pid);
}

static void
test_proc_write_to_a_dead_child_is_an_error_not_a_signal(void **state) {
  ctx_t *c = *state;
  uv_write_t req;
  uv_buf_t buf = uv_buf_init((char[]) {"hello"}, 5);
  pipes(c, "exec 0<&- ; echo closed; sleep 30");
  uv_read_start((uv_stream_t *) c->p.outp, on_alloc, on_read);
  while (c->got_len < 7) al_test_spin(&c->loop, 5);
  written_status = 1;
  int rc = uv_write(&req, (uv_stream_t *) c->p.in, &buf, 1, on_written);
  al_test_spin(&c->loop, 50);
  assert_true(rc < 0 || written_status == UV_EPIPE || written_status == UV_ECONNRESET);
  al_proc_kill(&c->p);
  finish(c);
}

static int
oom(void *data) {
  ctx_t *c = data;
  c->done = false, c->dones = 0;
  c->opts.in = AL_PROC_BUFFER, c->opts.input = "in", c->opts.input_len = 2;
  c->argv[0] = "sh", c->argv[1] = "-c", c->argv[2] = "cat; echo err >&2";
  int rc = al_proc_start(&c->loop, &c->p, &c->opts, on_done);
  if (!rc) {
    finish(c);
    rc = c->status;
  }
  al_proc_deinit(&c->p);
  return rc;
}

static int
oom_ident_excepted(void *data) {
  ctx_t *c = data;
  int rc = oom(c);
  /* The identity is read with allocations too; without one the run goes on and only the identity is empty. */
  if (rc == 0 && c->p.ident.start == 0 && atomic_load(&al_test_oom_hit)) return -ENOMEM;
  return rc;
}

static void
test_proc_out_of_memory_ends_the_run(void **state) {
  (void) al_test_oom_each(oom_ident_excepted, *state);
}

int
main(void) {
#define T(name) cmocka_unit_test_setup_teardown(test_proc_##name, setup, teardown)
  const struct CMUnitTest tests[] = {
    T(exit_code_output_and_environment),
    T(child_blocks_no_signal),
    T(term_signal_is_reported),
    T(identity_is_the_childs),
    T(spawn_failure_comes_through_on_done),
    T(bad_options_are_refused),
    T(input_is_fed_whole),
    T(child_that_does_not_read_is_no_failure),
    T(output_cap_and_neighbours),
    T(stderr_keeps_a_tail),
    T(stderr_descriptor_is_handed_over),
    T(deadline_ends_with_term),
    T(deaf_child_is_killed_after_the_grace),
    T(stop_takes_the_whole_group),
    T(grandchild_that_holds_the_pipe_is_left_alone),
    T(grandchild_without_pipes_costs_no_time),
    T(pipes_carry_both_ways),
    T(pipe_last_bytes_are_not_lost),
    T(pipe_never_read_ends_all_the_same),
    T(pipe_kill_closes_at_once),
    T(write_to_a_dead_child_is_an_error_not_a_signal),
    T(out_of_memory_ends_the_run),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
