/* SPDX-License-Identifier: Apache-2.0 */
/* Sweeps by a whole engine on stand-ins for Lima: keepers, leases, adoption, stuck lanes, many dead rows, and ten
 * processes that sweep while lanes come and go. AL_SWEEP_ROUNDS: sweeps in all of the last one. */
#include "engine_test.h"
#include "seal.h"
#include <poll.h>

static int
setup(void **state) {
  (void) state;
  stage_make();
  return 0;
}

static int
teardown(void **state) {
  (void) state;
  stage_close();
  stage_remove();
  return 0;
}

static al_val_t *
home_params(void) {
  return stage_map("home", stage.home, NULL);
}

static reply_t *
reap(void) {
  reply_t *r = stage_wait(stage_post("reap", home_params()));
  if (r->err.code) fail_msg("%s", r->err.msg);
  return r;
}

static size_t
told(const reply_t *r, const char *list) {
  const al_val_t *v = al_val_get(r->value, list);
  assert_true(v && v->kind == AL_LIST);
  return v->len;
}

/* The home with its registry, and no lane. */
static void
open_home(void) {
  assert_int_equal(stage_open(), 0);
  assert_int_equal(stage_wait(stage_post("list", home_params()))->err.code, 0);
}

static const char *
lima_path(const char *name) {
  char rel[300];
  snprintf(rel, sizeof rel, "h/lima/%s", name);
  return al_test_path(stage.dir, rel);
}

/* A directory as the driver leaves it; sealed for `row` with a dead owner, or not at all when row is 0. */
static void
make_dir(const char *name, int64_t row) {
  char path[300];
  snprintf(path, sizeof path, "%s", lima_path(name));
  assert_int_equal(mkdir(path, 0700), 0);
  al_test_write(path, "lima.yaml", "cpus: 1\n");
  al_test_write(path, "disk", "disk");
  if (!row) return;
  al_seal_t s = {.row = row, .created_s = 1, .owner = {.pid = 1, .start = 1, .boot = "another"}, .cpus = 1};
  snprintf(s.name, sizeof s.name, "%s", name);
  int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  assert_int_equal(al_seal_write(fd, &s), 0);
  close(fd);
}

#define LANE_VALUES \
  "INSERT INTO lanes (name, state, owner_pid, owner_start, owner_boot, owner_exe, owner_env, created_s, expires_s," \
  " expires_boot_ms, cpus, memory_mib, disk_gib, image, network, accel, keeper_pid, keeper_start, keeper_boot)"

/* `owner` 0: one that is gone. */
static void
make_row(const char *name, const char *state, pid_t owner, pid_t keeper) {
  char sql[1200];
  al_ident_t o = {.pid = 1, .start = 1, .boot = "another"}, k = {.pid = 0};
  if (owner) assert_int_equal(al_plat_ident(owner, &o), 0);
  if (keeper) assert_int_equal(al_plat_ident(keeper, &k), 0);
  snprintf(sql, sizeof sql,
    LANE_VALUES " VALUES ('%s', '%s', %d, '%llu', '%s', '', 'env', 1, 2, 1099511627776, 1, 1, 1, 'i', 'open', 'tcg',"
    " %d, '%llu', '%s')",
    name, state, (int) o.pid, (unsigned long long) o.start, o.boot, (int) k.pid, (unsigned long long) k.start, k.boot);
  stage_sql(sql);
}

#define A "agent-lane-00000000-0000000a"
#define B "agent-lane-00000000-0000000b"
#define C "agent-lane-00000000-0000000c"

/* With every place taken: gives up soon. */
static int
create_in_vain(void) {
  al_val_t *params = stage_create_params();
  assert_int_equal(al_val_set(params, "startTimeoutSeconds", al_val_int(10)), 0);
  return stage_wait(stage_post("create", params))->err.code;
}

static int
open_rows(void) {
  return stage_sql("SELECT count(*) FROM lanes WHERE state <> 'closed'");
}

static void
test_reaper_leaves_lanes_to_a_living_keeper(void **state) {
  (void) state;
  pid_t keeper = al_test_sleeper();
  open_home();
  make_row(A, "ready", 0, keeper);
  make_row(B, "ready", 0, 0);
  make_row(C, "ready", getpid(), 0);
  reply_t *r = reap();
  assert_int_equal(told(r, "reaped"), 1);
  assert_int_equal(told(r, "kept"), 2);
  assert_int_equal(open_rows(), 2);
  assert_int_equal(told(reap(), "reaped"), 0);
  assert_int_equal(stage_sql("SELECT count(*) FROM lanes WHERE name = '" A "' AND orphan_boot_ms > 0"), 1);
  stage_sql("UPDATE lanes SET orphan_boot_ms = orphan_boot_ms - 30000 WHERE orphan_boot_ms > 0");
  assert_int_equal(told(reap(), "reaped"), 1);
  assert_int_equal(open_rows(), 1);
  al_test_kill(keeper);
}

static void
test_reaper_takes_over_what_is_sealed_and_nothing_else(void **state) {
  (void) state;
  struct stat st;
  open_home();
  make_dir(A, 77);
  make_dir(B, 0);
  make_dir("agent-lane-00000000-0000000a-2", 78);
  reply_t *r = reap();
  assert_int_equal(told(r, "reaped"), 1);
  assert_int_equal(told(r, "unlisted"), 1);
  assert_string_equal(al_val_get(r->value, "unlisted")->items[0]->text, B);
  assert_int_equal(open_rows(), 0);
  assert_int_equal(stage_sql("SELECT id FROM lanes WHERE name = '" A "'"), 77);
  assert_int_not_equal(lstat(lima_path(A), &st), 0);
  assert_int_equal(lstat(lima_path(B), &st), 0);
  assert_int_equal(lstat(lima_path("agent-lane-00000000-0000000a-2"), &st), 0);
}

/* A row is closed only when nothing is left: here a directory of that name that is not ours. */
static void
test_reaper_closes_no_row_before_the_proof(void **state) {
  (void) state;
  open_home();
  make_dir(A, 0);
  make_row(A, "ready", 0, 0);
  reply_t *r = reap();
  assert_int_equal(told(r, "reaped"), 1);
  assert_false(al_val_get(al_val_get(r->value, "reaped")->items[0], "ok")->b);
  assert_int_equal(stage_sql("SELECT count(*) FROM lanes WHERE state = 'stuck' AND tries = 1 AND retry_s > 0"), 1);
  /* The sweep of a create tries once more, then leaves it alone for a while; who asks by hand gets a try. */
  for (int i = 0; i < 2; i++) {
    assert_int_equal(create_in_vain(), AL_EBUSY);
    assert_int_equal(stage_sql("SELECT tries FROM lanes WHERE name = '" A "'"), 2);
  }
  (void) reap();
  assert_int_equal(stage_sql("SELECT tries FROM lanes WHERE name = '" A "'"), 3);
  char path[300];
  for (int i = 0; i < 2; i++) {
    snprintf(path, sizeof path, "%s/%s", lima_path(A), i ? "disk" : "lima.yaml");
    assert_int_equal(unlink(path), 0);
  }
  assert_int_equal(told(reap(), "reaped"), 1);
  assert_int_equal(open_rows(), 0);
}

/* One sweep at a time: a request waits for the other process, and goes on as soon as that is gone. */
static void
test_reaper_waits_for_the_lease(void **state) {
  (void) state;
  char sql[400];
  al_ident_t id;
  pid_t other = al_test_sleeper();
  open_home();
  make_row(A, "ready", 0, 0);
  assert_int_equal(al_plat_ident(other, &id), 0);
  snprintf(sql, sizeof sql, "INSERT INTO leases VALUES ('sweep', %d, '%llu', '%s', '', 'x', 1099511627776)",
    (int) other, (unsigned long long) id.start, id.boot);
  stage_sql(sql);
  uint32_t asked = stage_post("reap", home_params());
  usleep(500000);
  assert_false(stage_done(asked));
  assert_int_equal(open_rows(), 1);
  /* A create does not wait for it: somebody is at it. */
  assert_int_equal(create_in_vain(), AL_EBUSY);
  al_test_kill(other);
  assert_int_equal(told(stage_wait(asked), "reaped"), 1);
  assert_int_equal(open_rows(), 0);
  assert_int_equal(stage_sql("SELECT count(*) FROM leases"), 0);
}

/* Told once, and the lanes are there. */
static void
test_reaper_tells_of_a_damaged_registry(void **state) {
  (void) state;
  char path[300];
  open_home();
  stage_close();
  make_dir(A, 5);
  snprintf(path, sizeof path, "%s/registry.db", stage.home);
  assert_int_equal(truncate(path, 1000), 0);
  assert_int_equal(stage_open(), 0);
  reply_t *r = reap();
  assert_int_equal(told(r, "notices"), 1);
  assert_non_null(strstr(al_val_get(r->value, "notices")->items[0]->text, "registry.db.damaged-"));
  assert_int_equal(told(r, "reaped"), 1);
  assert_int_equal(told(reap(), "notices"), 0);
}

/* A process with the command line of a lane's ssh master. */
static pid_t
start_master(const char *name) {
  char title[400], path[64], text[8] = "";
  snprintf(title, sizeof title, "ssh: %s/ssh.sock [mux]", lima_path(name));
  pid_t pid = al_test_fork();
  if (pid == 0) {
    execl("/bin/sleep", title, "300", (char *) NULL);
    _exit(127);
  }
  snprintf(path, sizeof path, "/proc/%d/cmdline", (int) pid);
  for (int i = 0; i < 10000 && memcmp(text, "ssh: ", 5); i++, usleep(1000)) {
    FILE *f = fopen(path, "re");
    if (f && fread(text, 1, 5, f) < 5) text[0] = 0;
    if (f) fclose(f);
  }
  assert_memory_equal(text, "ssh: ", 5);
  return pid;
}

/* What a dead owner's lane still runs is ended before its row is closed, and then nothing of it is there. */
static void
test_reaper_ends_what_still_runs(void **state) {
  (void) state;
  int status;
  open_home();
  make_dir(A, 77);
  make_dir(B, 78);
  make_row(A, "ready", 0, 0);
  make_row(B, "ready", 0, 0);
  pid_t pid = start_master(A);
  assert_int_equal(told(reap(), "reaped"), 2);
  assert_int_equal(open_rows(), 0);
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  assert_int_equal(access(lima_path(A), F_OK), -1);
  assert_int_equal(access(lima_path(B), F_OK), -1);
}

#define MANY 1000

static void
test_reaper_sweeps_a_thousand_dead_rows(void **state) {
  (void) state;
  char sql[1200];
  open_home();
  snprintf(sql, sizeof sql,
    "WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < %d)" LANE_VALUES
    " SELECT printf('agent-lane-00000000-%%08d', i), 'ready', 1, '1', 'another', '', 'env', 1, 2, 1, 1, 1, 1, 'i',"
    " 'open', 'tcg', 0, '', '' FROM n", MANY - 1);
  stage_sql(sql);
  assert_int_equal(open_rows(), MANY);
  for (int i = 0; i < MANY; i += 2) {
    char name[32];
    snprintf(name, sizeof name, "agent-lane-00000000-%08d", i);
    make_dir(name, 1 + i);
  }
  uint64_t begun = al_plat_mono_ms();
  uint32_t asked = stage_post("reap", home_params());
  while (al_plat_mono_ms() - begun < 240000 && !stage_done(asked)) usleep(10000);
  reply_t *r = stage_wait(asked);
  printf("a sweep of %d dead rows, half with directories: %llu ms\n", MANY,
    (unsigned long long) (al_plat_mono_ms() - begun));
  if (r->err.code) fail_msg("%s", r->err.msg);
  assert_int_equal(told(r, "reaped"), MANY);
  assert_int_equal(open_rows(), 0);
  static const char *const known[] = {"_config", NULL};
  assert_int_equal(stage_count(al_test_path(stage.home, "lima"), known, NULL, 0), 0);
}

/* ---- ten sweepers ---- */

#define SWEEPERS 10
#define OWNERS 3

static int
rounds(void) {
  const char *text = getenv("AL_SWEEP_ROUNDS");
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return text ? atoi(text) : 100;
#else
  return text ? atoi(text) : 1000;
#endif
}

_Noreturn static void
sweeper(int times) {
  if (stage_open()) _exit(2);
  for (int i = 0; i < times; i++) {
    reply_t *r = stage_wait(stage_post("reap", home_params()));
    if (r->err.code && r->err.code != AL_EBUSY) {
      fprintf(stderr, "reap: %s\n", r->err.msg);
      _exit(3);
    }
  }
  _exit(al_engine_close(stage.engine, STAGE_WAIT_MS) ? 4 : 0);
}

/* Lanes that live: none of their calls may fail while others sweep. Ends by SIGKILL, at the latest at a byte in the
 * pipe. */
_Noreturn static void
owner(int stop, int number) {
  struct pollfd p = {.fd = stop, .events = POLLIN};
  if (stage_open()) _exit(2);
  for (int n = 0;; n++) {
    bool last = poll(&p, 1, 0) == 1;
    al_val_t *params = stage_create_params();
    if (al_val_set(params, "maxConcurrentVms", al_val_int(32))) _exit(5);
    reply_t *r = stage_wait(stage_post("create", params));
    if (r->err.code) {
      fprintf(stderr, "create: %s\n", r->err.msg);
      _exit(3);
    }
    snprintf(stage.name, sizeof stage.name, "%s", stage_text(r->value, "lane"));
    if (last || (number == 0 && n % 5 == 4)) raise(SIGKILL); /* its lane and its processes are left */
    r = stage_ask("exec", stage_map("command", "sleep 0.05; echo fine", "mode", "whole", "cwd", "/", NULL));
    if (r->err.code || al_val_get(r->value, "stdout")->len != 5) {
      fprintf(stderr, "exec: %s\n", r->err.code ? r->err.msg : "another output");
      _exit(4);
    }
    if (stage_close_lane()) _exit(6);
  }
}

static pid_t
start_owner(int stop, int number) {
  pid_t pid = al_test_fork();
  if (pid == 0) owner(stop, number);
  assert_true(pid > 0);
  return pid;
}

/* Living lanes keep their processes, so a sweep that harms one is seen by its owner. */
static void
test_reaper_ten_processes_harm_nothing(void **state) {
  (void) state;
  pid_t owners[OWNERS], sweepers[SWEEPERS];
  int fds[2], status, killed = 0, left = SWEEPERS;
  open_home();
  stage_close();
  assert_int_equal(pipe(fds), 0);
  for (int i = 0; i < SWEEPERS; i++)
    if ((sweepers[i] = al_test_fork()) == 0) sweeper(rounds() / SWEEPERS);
  for (int i = 0; i < OWNERS; i++) owners[i] = start_owner(fds[0], i);
  while (left > 0) {
    pid_t pid = waitpid(-1, &status, 0);
    assert_true(pid > 0);
    for (int i = 0; i < SWEEPERS; i++) {
      if (pid != sweepers[i]) continue;
      assert_int_equal(status, 0);
      sweepers[i] = -1; /* its number may come again */
      left--;
    }
    for (int i = 0; i < OWNERS; i++) {
      if (pid != owners[i]) continue;
      assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
      killed++;
      owners[i] = start_owner(fds[0], i);
    }
  }
  assert_int_equal(write(fds[1], "x", 1), 1);
  for (int i = 0; i < OWNERS; i++) {
    assert_int_equal(waitpid(owners[i], &status, 0), owners[i]);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  }
  close(fds[0]);
  close(fds[1]);
  printf("%d sweeps by %d processes; %d lanes lived, %d owners were killed\n", rounds(), SWEEPERS,
    stage_sql("SELECT count(*) FROM lanes WHERE state = 'closed'"), killed + OWNERS);
  int before = stage_fds();
  assert_int_equal(stage_open(), 0);
  /* The keepers of those that were killed last have their time. */
  for (uint64_t end = al_plat_mono_ms() + 120000; (void) reap(), open_rows() > 0 && al_plat_mono_ms() < end;)
    usleep(200000);
  stage_close();
  stage_clean("after the sweeps", before);
  /* No row was ever closed over a directory that was still there. */
  assert_int_equal(stage_sql("SELECT count(*) FROM history WHERE from_state = 'closed'"), 0);
}

int
main(int argc, char **argv) {
  int code;
  if (stand_in(argc, argv, &code)) return code;
  if (!stage_start()) return 1;
#define T(name) cmocka_unit_test_setup_teardown(test_reaper_##name, setup, teardown)
  const struct CMUnitTest tests[] = {
    T(leaves_lanes_to_a_living_keeper),
    T(takes_over_what_is_sealed_and_nothing_else),
    T(closes_no_row_before_the_proof),
    T(waits_for_the_lease),
    T(tells_of_a_damaged_registry),
    T(ends_what_still_runs),
    T(sweeps_a_thousand_dead_rows),
    T(ten_processes_harm_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
