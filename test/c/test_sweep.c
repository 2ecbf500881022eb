/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a sweep: whose lane may be ended, what is seen, what is tidied up, and what is never touched. */
#include "run_make.h"
#include "sweep.h"

static char dir[64];
static al_home_t home;
static al_sweep_look_t look_at;
static al_lane_row_t rows[1];

static int
setup(void **state) {
  al_err_t err = {0};
  (void) state;
  umask(022);
  al_test_dir(dir);
  memset(&look_at, 0, sizeof look_at);
  memset(rows, 0, sizeof rows);
  if (al_home_open(al_test_path(dir, "h"), &home, &err)) fail_msg("%s", err.msg);
  return 0;
}

static int
teardown(void **state) {
  (void) state;
  al_sweep_look_free(&look_at);
  al_test_dir_remove(dir);
  return 0;
}

/* ---- rules ---- */

static al_lane_row_t
a_row(pid_t owner, pid_t keeper) {
  al_lane_row_t row;
  memset(&row, 0, sizeof row);
  snprintf(row.name, sizeof row.name, NAME);
  row.state = AL_LANE_READY;
  row.expires_boot_ms = 1000000;
  assert_int_equal(al_plat_ident(owner, &row.owner), 0);
  if (keeper) assert_int_equal(al_plat_ident(keeper, &row.keeper), 0);
  return row;
}

static al_sweep_verdict_t
judge(const al_lane_row_t *row, al_sweep_rules_t rules, bool forgotten) {
  const char *why = NULL;
  al_sweep_verdict_t v = al_sweep_judge(&rules, row, forgotten, &why);
  assert_true(why && *why);
  return v;
}

static const al_sweep_rules_t sweeping = {.boot_ms = 900000, .now_s = 1000000, .patient = true};

static void
test_sweep_spares_the_living(void **state) {
  (void) state;
  al_lane_row_t row = a_row(getpid(), 0);
  al_sweep_rules_t r = sweeping;
  for (row.state = AL_LANE_REGISTERED; row.state <= AL_LANE_CLOSING; row.state++)
    assert_int_equal(judge(&row, r, false), AL_SWEEP_KEEP);
  row.state = AL_LANE_READY;
  assert_int_equal(judge(&row, r, true), AL_SWEEP_END);
  r.boot_ms = 1030000; /* its owner has half a minute more */
  assert_int_equal(judge(&row, r, false), AL_SWEEP_KEEP);
  r.boot_ms = 1030001;
  assert_int_equal(judge(&row, r, false), AL_SWEEP_END);
  r = sweeping;
  r.force = true;
  assert_int_equal(judge(&row, r, false), AL_SWEEP_END);
  snprintf(row.name, sizeof row.name, "../agent-lane");
  assert_int_equal(judge(&row, r, false), AL_SWEEP_KEEP); /* whatever is asked */
}

static void
test_sweep_tells_a_process_by_more_than_its_number(void **state) {
  (void) state;
  al_lane_row_t row = a_row(getpid(), 0);
  row.owner.start++;
  assert_int_equal(judge(&row, sweeping, false), AL_SWEEP_END);
  row = a_row(getpid(), 0);
  row.owner.boot[0] ^= 1;
  assert_int_equal(judge(&row, sweeping, false), AL_SWEEP_END);
  row = a_row(getpid(), 0);
  row.keeper = row.owner;
  row.keeper.start++; /* somebody has the keeper's number */
  row.owner.start++;
  assert_int_equal(judge(&row, sweeping, false), AL_SWEEP_END);
}

static void
test_sweep_leaves_a_keeper_half_a_minute(void **state) {
  (void) state;
  pid_t owner = al_test_sleeper(), keeper = al_test_sleeper();
  al_lane_row_t row = a_row(owner, keeper);
  al_sweep_rules_t r = sweeping;
  assert_int_equal(judge(&row, r, false), AL_SWEEP_KEEP);
  al_test_kill(owner);
  assert_int_equal(judge(&row, r, false), AL_SWEEP_ORPHAN);
  row.orphan_boot_ms = (int64_t) r.boot_ms;
  r.boot_ms += 29999;
  assert_int_equal(judge(&row, r, false), AL_SWEEP_KEEP);
  r.boot_ms += 1;
  assert_int_equal(judge(&row, r, false), AL_SWEEP_END);
  row.orphan_boot_ms = (int64_t) r.boot_ms + 5000; /* of another boot */
  assert_int_equal(judge(&row, r, false), AL_SWEEP_ORPHAN);
  r.force = true;
  assert_int_equal(judge(&row, r, false), AL_SWEEP_END);
  r = sweeping;
  row.orphan_boot_ms = 0;
  al_test_kill(keeper);
  assert_int_equal(judge(&row, r, false), AL_SWEEP_END);
}

static void
test_sweep_tries_a_stuck_lane_after_its_pause(void **state) {
  (void) state;
  al_lane_row_t row = a_row(getpid(), 0);
  al_sweep_rules_t r = sweeping;
  row.state = AL_LANE_STUCK;
  assert_int_equal(judge(&row, r, false), AL_SWEEP_END);
  row.retry_s = r.now_s + 1;
  assert_int_equal(judge(&row, r, false), AL_SWEEP_KEEP);
  r.patient = false; /* somebody asks */
  assert_int_equal(judge(&row, r, false), AL_SWEEP_END);
  r.patient = true;
  row.retry_s = r.now_s;
  assert_int_equal(judge(&row, r, false), AL_SWEEP_END);
  row.retry_s = r.now_s + 3601; /* no pause is that long: the clock went back */
  assert_int_equal(judge(&row, r, false), AL_SWEEP_END);
}

/* ---- look and tidy ---- */

static const char *
in(const char *path) {
  return al_test_path(home.root, path);
}

static bool
there(const char *path) {
  struct stat st;
  return lstat(in(path), &st) == 0;
}

/* Makes a directory (a name that ends with a slash) or a file, changed `age` seconds ago. */
static void
make(const char *path, int age) {
  char full[600];
  snprintf(full, sizeof full, "%s", in(path));
  size_t n = strlen(full);
  bool is_dir = full[n - 1] == '/';
  if (is_dir) {
    full[n - 1] = 0;
    assert_int_equal(mkdir(full, 0700), 0);
    al_test_write(full, "inside", "x");
  } else {
    close(open(full, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  }
  struct timespec t[2] = {{.tv_sec = time(NULL) - age}, {.tv_sec = time(NULL) - age}};
  assert_int_equal(utimensat(AT_FDCWD, full, t, 0), 0);
}

static size_t
tidy(size_t open_rows, bool booting) {
  al_sweep_open_t open = {.rows = rows, .count = open_rows, .booting = booting};
  al_val_t *removed = al_val_list();
  al_sweep_look_free(&look_at);
  assert_int_equal(al_sweep_look(&home, &look_at), 0);
  assert_int_equal(al_sweep_tidy(&home, &look_at, &open, removed), 0);
  size_t n = removed->len;
  al_val_free(removed);
  return n;
}

static void
test_sweep_removes_what_nobody_finishes(void **state) {
  (void) state;
  char bin[80] = "bin/", aside[120];
  memset(bin + 4, 'a', 64);
  snprintf(rows[0].name, sizeof rows[0].name, OTHER);
  make("run/key-0123456789abcdef/", 100);
  make("run/.al-0123456789abcdef.tmp", 100);
  assert_int_equal(mkdir(in(bin), 0700), 0);
  snprintf(aside, sizeof aside, "%s/.al-0123456789abcdef.tmp", bin);
  make(aside, 100);
  make("lima/_tmp." NAME "/", 100);
  make("run/diskfs_iso123/", 1);
  make("run/diskfs_iso124/", 1000);
  make("lima/_tmp." OTHER "/", 100);
  assert_int_equal(tidy(1, true), 5);
  assert_false(there("run/key-0123456789abcdef") || there("run/.al-0123456789abcdef.tmp") || there(aside));
  assert_false(there("lima/_tmp." NAME) || there("run/diskfs_iso124"));
  assert_true(there("run/diskfs_iso123"));   /* a lane is starting */
  assert_true(there("lima/_tmp." OTHER));    /* it has a row */
  assert_int_equal(tidy(0, false), 2);
  assert_false(there("run/diskfs_iso123") || there("lima/_tmp." OTHER));
}

static void
test_sweep_touches_nothing_else(void **state) {
  (void) state;
  static const char *const kept[] = {"lima/_tmp." NAME "x/", "lima/_tmp.lookalike/", "lima/_tmp/", "lima/" NAME "/",
    "lima/" NAME "-2/", "lima/_config/keep", "run/key-0123456789abcdeg/", "run/key-0123456789abcdef0/",
    "run/.al-0123456789abcde.tmp", "run/0123456789abcdef.tmp", "run/config.lock", "run/kvm-probe", "run/mydiskfs_iso/",
    "images/_tmp." NAME "/", "runs/mine.jsonl", "runs/" NAME ".json", "runs/" NAME ".jsonl/", "bin/tool", "key-0123456789abcdef/", "diskfs_iso1/"};
  char outside[160];
  for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) make(kept[i], 100000);
  /* Links under names of ours, to what is somebody's. */
  snprintf(outside, sizeof outside, "%s/outside", dir);
  assert_int_equal(mkdir(outside, 0700), 0);
  al_test_write(outside, "precious", "x");
  assert_int_equal(symlink(outside, in("lima/_tmp." OTHER)), 0);
  assert_int_equal(symlink(outside, in("run/key-0123456789abcdef")), 0);
  assert_int_equal(symlink(outside, in("run/diskfs_iso9")), 0);
  make("run/key-00000000000000aa/", 5); /* young */
  assert_int_equal(tidy(0, false), 0);
  for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
    char path[300];
    snprintf(path, sizeof path, "%s", kept[i]);
    if (path[strlen(path) - 1] == '/') path[strlen(path) - 1] = 0;
    if (!there(path)) fail_msg("%s is gone", path);
  }
  assert_true(there("run/key-00000000000000aa") && there("lima/_tmp." OTHER));
  assert_int_equal(access(al_test_path(outside, "precious"), F_OK), 0);
}

/* A process whose command line is this, as an ssh master writes it. */
static pid_t
master(const char *lima, const char *name) {
  char title[600];
  snprintf(title, sizeof title, "ssh: %s/%s/ssh.sock [mux]", lima, name);
  pid_t pid = al_test_fork();
  if (pid == 0) {
    execl("/bin/sleep", title, "300", (char *) NULL);
    _exit(127);
  }
  /* until it is that program */
  for (int i = 0; i < 2000; i++) {
    char path[64], text[700] = "";
    snprintf(path, sizeof path, "/proc/%d/cmdline", (int) pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    if (n > 0 && strncmp(text, "ssh: ", 5) == 0) return pid;
    usleep(1000);
  }
  fail_msg("no master");
  return -1;
}

static bool
runs(pid_t pid) {
  int status;
  for (int i = 0; i < 50; i++, usleep(2000))
    if (waitpid(pid, &status, WNOHANG) != 0) return false;
  return true;
}

static void
test_sweep_ends_masters_of_lanes_that_are_gone(void **state) {
  (void) state;
  char elsewhere[120];
  if (access("/proc/self/cmdline", R_OK)) skip();
  snprintf(elsewhere, sizeof elsewhere, "%s/other-home/lima", dir);
  snprintf(rows[0].name, sizeof rows[0].name, OTHER);
  make("lima/agent-lane-00000000-0000000c/", 0);
  pid_t gone = master(home.lima, NAME), open = master(home.lima, OTHER);
  pid_t listed = master(home.lima, "agent-lane-00000000-0000000c"); /* a directory that nobody knows: told, left */
  pid_t foreign = master(elsewhere, NAME), near = master(home.lima, "my-agent-lane-00000000-0000000a");
  assert_int_equal(tidy(1, false), 1);
  assert_false(runs(gone));
  assert_true(runs(open) && runs(listed) && runs(foreign) && runs(near));
  assert_true(al_sweep_said(&look_at, NAME) && al_sweep_said(&look_at, "agent-lane-00000000-0000000c"));
  assert_false(al_sweep_said(&look_at, "agent-lane-00000000-0000000d"));
  assert_true(look_at.whole);
  pid_t all[] = {open, listed, foreign, near};
  for (size_t i = 0; i < 4; i++) al_test_kill(all[i]);
}

/* One whose row is open, one with a directory, one that is gone: only that one gets its end. */
static void
test_sweep_ends_manifests_of_lanes_that_are_gone(void **state) {
  (void) state;
  snprintf(rows[0].name, sizeof rows[0].name, OTHER);
  static const char *const names[] = {NAME, OTHER, THIRD};
  for (size_t i = 0; i < 3; i++) assert_int_equal(run_begin(&home, names[i], READY("30")), 0);
  make("lima/" THIRD "/", 0);
  assert_int_equal(tidy(1, false), 1);
  assert_true(run_check_file(&home, NAME).ended);
  assert_false(run_check_file(&home, OTHER).ended);
  assert_false(run_check_file(&home, THIRD).ended);
  assert_int_equal(tidy(1, false), 0);
  assert_int_equal(tidy(0, false), 1); /* its row is closed now */
  assert_true(run_check_file(&home, OTHER).ended);
}

/* The manifest is of a lane that came after the look, so what the look knows of it is nothing. */
static void
test_sweep_leaves_manifests_that_it_has_not_seen(void **state) {
  (void) state;
  al_sweep_open_t open = {.rows = rows};
  assert_int_equal(al_sweep_look(&home, &look_at), 0);
  assert_int_equal(run_begin(&home, NAME, READY("30")), 0);
  assert_int_equal(al_sweep_tidy(&home, &look_at, &open, NULL), 0);
  assert_false(run_check_file(&home, NAME).ended);
}

static int
oom(void *data) {
  al_sweep_open_t open = {.booting = false};
  (void) data;
  make("run/.al-0123456789abcdef.tmp", 100);
  al_val_t *removed = al_val_list();
  int rc = removed ? al_sweep_look(&home, &look_at) : -ENOMEM;
  if (!rc) rc = al_sweep_tidy(&home, &look_at, &open, removed);
  al_sweep_look_free(&look_at);
  al_val_free(removed);
  return rc;
}

static void
test_sweep_out_of_memory(void **state) {
  make("lima/" NAME "/", 0);
  assert_true(al_test_oom_each(oom, *state) > 5);
}

int
main(void) {
#define T(name) cmocka_unit_test_setup_teardown(test_sweep_##name, setup, teardown)
  const struct CMUnitTest tests[] = {
    T(spares_the_living),
    T(tells_a_process_by_more_than_its_number),
    T(leaves_a_keeper_half_a_minute),
    T(tries_a_stuck_lane_after_its_pause),
    T(removes_what_nobody_finishes),
    T(touches_nothing_else),
    T(ends_masters_of_lanes_that_are_gone),
    T(ends_manifests_of_lanes_that_are_gone),
    T(leaves_manifests_that_it_has_not_seen),
    T(out_of_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
