/* SPDX-License-Identifier: Apache-2.0 */
/* The owner's end of its keeper: confirmed before anything, restarted with all it kept, an error when there is none. */
#include "keeper_link.h"
#include "keeper_run.h"
#include "proc.h"

static al_keeper_link_t *l;
static al_ident_t self;
static char program_path[512];
static int restarts;

static void
on_restart(void *data, const al_ident_t *keeper) {
  (void) data;
  assert_true(keeper->pid > 1);
  restarts++;
}

static void
open_link(const char *path) {
  al_keeper_opts_t opts = {.home = &home, .program = program_path, .owner = &self, .on_restart = on_restart};
  assert_int_equal(al_plat_ident(getpid(), &self), 0);
  snprintf(program_path, sizeof program_path, "%s", path);
  restarts = 0;
  l = al_keeper_link_open(&loop, &opts);
  assert_non_null(l);
}

static void
close_link(void) {
  bool closed = false;
  al_keeper_link_close(l, worker_closed, &closed);
  al_test_until(&loop, &closed, 10000);
  l = NULL;
}

static answer_t
keep_lane(const char *name) {
  keeper_t k = {0};
  answer_t a = {.done = false};
  al_keeper_keep_t r = keep_record(&k, name, 3600000);
  al_keeper_keep(l, &r, on_answer, &a);
  assert_false(a.done);
  al_test_until(&loop, &a.done, 20000);
  return a;
}

static void
kept(const char *name) {
  answer_t a = keep_lane(name);
  assert_answer(&a, 0, NULL);
}

static al_ident_t
keeper_now(void) {
  const al_ident_t *id = al_keeper_ident(l);
  assert_non_null(id);
  assert_int_equal(al_plat_ident_alive(id), 1);
  return *id;
}

static void
until_restarted(int n) {
  for (int i = 0; i < 1000 && restarts < n; i++) al_test_spin(&loop, 20);
  assert_int_equal(restarts, n);
}

static void
test_link_starts_the_installed_keeper_and_hears_of_it(void **state) {
  (void) state;
  open_link(keeper_program());
  assert_null(al_keeper_ident(l));
  build();
  kept(NAME);
  al_ident_t id = keeper_now();
  assert_true(strncmp(id.exe, home.bin, strlen(home.bin)) == 0);
  assert_non_null(strstr(id.exe + strlen(home.bin) + 60, "/keeper"));
  kept(NAME); /* once more does no harm */
  assert_int_equal(keeper_now().pid, id.pid);
  al_keeper_drop(l, NAME);
  al_keeper_drop(l, NAME);
  al_keeper_drop(l, "agent-lane-00000000-00000000");
  close_link();
  UNTIL("the keeper's end", !runs(id.pid));
  assert_true(exists(spec.dir)); /* nothing was handed over */
}

static void
test_link_hands_over_what_was_not_dropped(void **state) {
  (void) state;
  build();
  pid_t qemu = pretend("-pidfile", lane("qemu.pid"), NULL, NULL);
  open_link(keeper_program());
  kept(NAME);
  close_link();
  UNTIL("the end of the lane", !exists(spec.dir));
  assert_false(runs(qemu));
}

static void
test_link_replaces_a_keeper_and_tells_it_all(void **state) {
  (void) state;
  enum { LANES = 200 };
  char name[AL_NAME_LEN + 1];
  build();
  open_link(keeper_program());
  kept(NAME);
  for (int i = 1; i < LANES; i++) {
    snprintf(name, sizeof name, "agent-lane-00000000-%08u", (unsigned) i % 1000);
    kept(name);
  }
  al_ident_t id = keeper_now();
  for (int i = 1; i <= 2; i++) {
    assert_int_equal(kill(id.pid, SIGKILL), 0);
    until_restarted(i);
    al_ident_t next = keeper_now();
    assert_true(next.pid != id.pid);
    id = next;
  }
  al_keeper_drop(l, name); /* the last one */
  kept(name);
  al_keeper_drop(l, name);
  close_link();
  UNTIL("the end of the lane", !exists(spec.dir));
  UNTIL("the keeper's end", !runs(id.pid));
  for (int i = 1; i < LANES; i++) {
    snprintf(name, sizeof name, "agent-lane-00000000-%08u", (unsigned) i % 1000);
    bool told = strstr(log_text(), name) != NULL;
    if (told != (i < LANES - 1)) fail_msg("%s was%s told", name, told ? "" : " not");
  }
}

static void
test_link_needs_a_keeper(void **state) {
  (void) state;
  static const struct {
    const char *body, *says;
  } bad[] = {{"echo it is Monday >&2; exit 3", "it is Monday"}, {"exit 3", "without a word"}, {"exit 0", "ended at once"},
    {"exec sleep 60", "not start"}, {"exec <&-; sleep 60 >&- 2>&- & exit 0", "ended at once"},
    {"printf 0123456789012345678901234567890123456789 >&0; sleep 1", "not "}};
  answer_t a;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    program("keeper", bad[i].body);
    open_link(in("bin/%s", "keeper"));
    a = keep_lane(NAME);
    if (a.status != AL_EKEEPER_FAILED || !strstr(a.err.msg, bad[i].says))
      fail_msg("%s: %d, %s", bad[i].body, a.status, a.err.msg);
    close_link();
  }
  open_link("/nowhere/keeper");
  a = keep_lane(NAME);
  assert_answer(&a, AL_EKEEPER_FAILED, "is missing");
  snprintf(program_path, sizeof program_path, "%s", keeper_program()); /* installed meanwhile */
  kept(NAME);
  close_link();
}

/* One that stands still is given up; awake again it must not take the link's end for the owner's. */
static void
test_link_gives_up_a_keeper_that_does_not_answer(void **state) {
  (void) state;
  build();
  open_link(keeper_program());
  kept(NAME);
  al_ident_t id = keeper_now();
  assert_int_equal(kill(id.pid, SIGSTOP), 0);
  answer_t a = keep_lane("agent-lane-00000000-00000000");
  assert_answer(&a, AL_EKEEPER_FAILED, "did not confirm");
  (void) kill(id.pid, SIGCONT);
  until_restarted(1);
  assert_int_equal(al_plat_ident_alive(&id), 0);
  usleep(300000);
  assert_true(exists(spec.dir));
  al_keeper_drop(l, NAME);
  close_link();
}

/* Waits for the answer of a keep; what is closed meanwhile hears of it. */
static void
test_link_closes_at_any_time(void **state) {
  (void) state;
  keeper_t k = {0};
  for (int turns = 0; turns < 12; turns++) {
    answer_t a = {.done = false};
    open_link(keeper_program());
    al_keeper_keep_t r = keep_record(&k, NAME, 3600000);
    al_keeper_keep(l, &r, on_answer, &a);
    for (int i = 0; i < turns; i++) uv_run(&loop, UV_RUN_NOWAIT), usleep(500);
    close_link();
    assert_int_equal(a.count, 1);
    assert_true(a.status == 0 || a.status == UV_ECANCELED);
  }
}

#ifdef __linux__
/* Those above standard error, which may itself be one: of whoever runs this test. */
static int
sockets_of(pid_t pid) {
  char path[64], to[64];
  int n = 0;
  for (int fd = 3; fd < 256; fd++) {
    snprintf(path, sizeof path, "/proc/%ld/fd/%d", (long) pid, fd);
    ssize_t len = readlink(path, to, sizeof to - 1);
    if (len > 0 && strncmp(to, "socket:", 7) == 0) n++;
  }
  return n;
}

static void
on_child(al_proc_t *p, int status) {
  (void) status;
  *(bool *) p->data = true;
}

/* A child that outlives the owner must not hold its end of the link, or its end would never be seen there. */
static void
test_link_is_not_inherited(void **state) {
  (void) state;
  bool done = false;
  open_link(keeper_program());
  kept(NAME);
  assert_true(sockets_of(getpid()) >= 1);
  pid_t plain = fork();
  if (plain == 0) {
    execl("/bin/sleep", "sleep", "60", (char *) NULL);
    _exit(127);
  }
  const char *const argv[] = {"/bin/sleep", "60", NULL}, *const env[] = {NULL};
  al_proc_opts_t o = {.file = argv[0], .argv = argv, .env = env, .in = AL_PROC_NULL, .out = AL_PROC_NULL,
    .stderr_fd = 2, .deadline_ms = 60000};
  al_proc_t p = {.data = &done};
  assert_int_equal(al_proc_start(&loop, &p, &o, on_child), 0);
  al_ident_t id;
  for (int i = 0; i < 1000 && (al_plat_ident(plain, &id) != 0 || !strstr(id.exe, "sleep")); i++) usleep(5000);
  assert_int_equal(sockets_of(plain), 0);
  assert_int_equal(sockets_of(p.ident.pid), 0);
  al_test_kill(plain);
  al_proc_kill(&p);
  al_test_until(&loop, &done, 10000);
  al_proc_deinit(&p);
  al_keeper_drop(l, NAME);
  close_link();
}
#endif

static int
oom_scenario(void) {
  keeper_t k = {0};
  bool closed = false;
  al_keeper_opts_t opts = {.home = &home, .program = program_path, .owner = &self};
  answer_t a = {.done = false};
  l = al_keeper_link_open(&loop, &opts);
  if (!l) return -ENOMEM;
  al_keeper_keep_t r = keep_record(&k, NAME, 3600000);
  al_keeper_keep(l, &r, on_answer, &a);
  al_test_until(&loop, &a.done, 20000);
  al_keeper_link_close(l, worker_closed, &closed);
  al_test_until(&loop, &closed, 10000);
  return a.status;
}

static void
test_link_out_of_memory(void **state) {
  (void) state;
  open_link(keeper_program());
  kept(NAME); /* installed */
  close_link();
  static const al_mem_table_t table = {al_test_oom_malloc, al_test_oom_realloc, al_test_oom_free};
  al_mem_set(&table);
  bool hit = true;
  for (long n = 0; hit; n++) { /* not each is an error: who a child is need not be known */
    atomic_store(&al_test_oom_live, 0);
    atomic_store(&al_test_oom_hit, false);
    atomic_store(&al_test_oom_left, n);
    int rc = oom_scenario();
    hit = atomic_load(&al_test_oom_hit);
    atomic_store(&al_test_oom_left, -1);
    long live = atomic_load(&al_test_oom_live);
    if (live == 0 && (rc == 0 || (hit && rc == -ENOMEM))) continue;
    al_mem_set(NULL);
    fail_msg("allocation %ld failing: returned %d, %ld blocks left", n, rc, live);
  }
  al_mem_set(NULL);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int
main(void) {
  const struct CMUnitTest tests[] = {
    T(test_link_starts_the_installed_keeper_and_hears_of_it),
    T(test_link_hands_over_what_was_not_dropped),
    T(test_link_replaces_a_keeper_and_tells_it_all),
    T(test_link_needs_a_keeper),
    T(test_link_gives_up_a_keeper_that_does_not_answer),
    T(test_link_closes_at_any_time),
#ifdef __linux__
    T(test_link_is_not_inherited),
#endif
    T(test_link_out_of_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
