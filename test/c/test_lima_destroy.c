/* SPDX-License-Identifier: Apache-2.0 */
/* Lima driver: destroy with its proof, against a scripted limactl and stand-ins for what a lane runs. */
#include "lima_fixture.h"
#ifdef __linux__
#include <sys/prctl.h>
#endif

/* ---- stand-ins for processes of the lane ---- */

static bool
runs(pid_t pid) {
  int status;
  return waitpid(pid, &status, WNOHANG) == 0;
}

typedef struct words_s {
  pid_t pid;
  size_t len;
} words_t;

static int
see_words(void *data, const al_ident_t *id, const char *cmdline, size_t len) {
  words_t *w = data;
  (void) cmdline;
  if (id->pid == w->pid) w->len = len;
  return id->pid == w->pid;
}

static bool
has_words(pid_t pid) {
  words_t w = {.pid = pid};
  (void) al_plat_each_process(see_words, &w);
  return w.len > 0;
}

/* A process whose command line is that of the lane's hostagent, and so on. It never forks: its child would have the same
 * command line for a moment. */
static pid_t
pretend(const char *a1, const char *a2, const char *a3, const char *a4) {
  pid_t pid = al_test_fork();
  if (pid == 0) {
    execl("/bin/sh", "/usr/bin/limactl", "-c", "kill -STOP $$", a1, a2, a3, a4, (char *) NULL);
    _exit(127);
  }
  assert_true(pid > 0);
  al_ident_t id;
  for (int i = 0; i < 10000; i++) { /* until it has become the shell, with its words, which come last */
    if (al_plat_ident(pid, &id) == 0 && strstr(id.exe, "sh") && has_words(pid)) return pid;
    usleep(2000);
  }
  fail_msg("process %ld has not become a shell", (long) pid);
  return -1;
}

static const char *
lane(const char *file) {
  return in("h/lima/" NAME "/%s", file);
}

static void
write_pid(const char *file, pid_t pid) {
  char text[32];
  snprintf(text, sizeof text, "%ld\n", (long) pid);
  al_test_write(spec.dir, file, text);
}

/* ---- whose process it is ---- */

static al__lima_kind_t
kind_of(const char *const *args) {
  char line[2048];
  size_t n = 0;
  for (; *args; args++) n += (size_t) snprintf(line + n, sizeof line - n, "%s", *args) + 1;
  return al__lima_classify("/h/lima/" NAME, NAME, line, n);
}

static void
test_classify_goes_by_the_lane_directory(void **state) {
  (void) state;
#define D "/h/lima/" NAME
#define KIND(...) kind_of((const char *const[]){__VA_ARGS__, NULL})
  assert_int_equal(
    KIND("/x/limactl", "hostagent", "--pidfile", D "/ha.pid", "--socket", D "/ha.sock", NAME), AL__PROC_HOSTAGENT);
  assert_int_equal(KIND("/q/qemu-system-x86_64", "-m", "1", "-pidfile", D "/qemu.pid"), AL__PROC_QEMU);
  assert_int_equal(KIND("/b/warden", "--agent-lane-policy", "1", "--", "-pidfile", D "/qemu.pid"), AL__PROC_WARDEN);
  assert_int_equal(KIND("ssh: " D "/ssh.sock [mux]"), AL__PROC_SSH_MASTER);
  assert_int_equal(KIND("/usr/bin/ssh", "-o", "ControlPath=\"" D "/ssh.sock\"", "127.0.0.1"), AL__PROC_SSH_MASTER);
  assert_int_equal(KIND("/x/limactl", "--tty=false", "shell", "--workdir", "/", NAME, "sudo"), AL__PROC_SHELL);
  assert_int_equal(KIND("/x/limactl", "--tty=false", "start", "--timeout", "10m", NAME), AL__PROC_START);
  /* Of others: another lane, an editor, a name inside a word, a pid file that only begins like ours. */
  assert_int_equal(KIND("/x/limactl", "hostagent", "--pidfile", "/h/lima/other/ha.pid", "other"), AL__PROC_NONE);
  assert_int_equal(KIND("vim", D "/qemu.pid"), AL__PROC_NONE);
  assert_int_equal(KIND("/x/limactl", "shell", NAME "x"), AL__PROC_NONE);
  assert_int_equal(KIND("/x/limactl", "delete", "-f", NAME), AL__PROC_NONE);
  assert_int_equal(KIND("/q/qemu-system-x86_64", "-pidfile", D "/qemu.pid2"), AL__PROC_NONE);
  assert_int_equal(KIND("/q/qemu-system-x86_64", "-pidfile", "x", D "/qemu.pid"), AL__PROC_NONE);
  assert_int_equal(KIND("grep", "ssh: " D "/ssh.sock [mux]"), AL__PROC_NONE);
  assert_int_equal(KIND(""), AL__PROC_NONE);
#undef KIND
#undef D
}

/* ---- destroy ---- */

static bool
limactl_deleted(void) {
  char *calls = slurp(in("h/run/%s", "fake.calls"));
  bool yes = strstr(calls, "delete -f " NAME) != NULL;
  al_free(calls);
  return yes;
}

static void
test_destroy_takes_only_lane_names(void **state) {
  (void) state;
  static const char *const bad[] = {"", "..", "../x", "agent-lane-0123abcd-0123abc", "agent-lane-0123abcd-0123abcd/",
    "agent-lane-0123ABCD-0123abcd", "*", "_config"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    answer_t a = destroy_name(bad[i]);
    assert_answer(&a, AL_EBAD_NAME, NULL);
  }
  assert_false(limactl_deleted());
}

static void
test_destroy_is_idempotent(void **state) {
  (void) state;
  build();
  pid_t agent = pretend("hostagent", "--pidfile", lane("ha.pid"), NAME);
  destroyed();
  assert_false(runs(agent));
  assert_true(limactl_deleted());
  unlink(in("h/run/%s", "fake.calls"));
  destroyed();
  destroyed();
  assert_false(limactl_deleted());
}

/* Without a process a directory of ours is only removed; one that is not proven to be ours is Lima's to judge first. */
static void
test_destroy_asks_limactl_where_it_is_needed(void **state) {
  (void) state;
  build();
  destroyed();
  assert_false(limactl_deleted());
  build();
  pid_t agent = pretend("hostagent", "--pidfile", lane("ha.pid"), NAME);
  destroyed();
  assert_true(limactl_deleted());
  assert_false(runs(agent));
  unlink(in("h/run/%s", "fake.calls"));
  build();
  unlink(lane("agent-lane.json"));
  destroyed();
  assert_true(limactl_deleted());
}

static void
test_destroy_spares_a_recycled_pid(void **state) {
  (void) state;
  build();
  pid_t stranger = al_test_sleeper(), agent = pretend("hostagent", "--pidfile", lane("ha.pid"), NAME);
  write_pid("qemu.pid", stranger);
  write_pid("ha.pid", agent);
  al_test_write(spec.dir, "vz.pid", "12x\n");
  /* As Lima does it: kills whatever stands in the pid files, then removes the directory. */
  script(
    "fake_delete() { ls \"$LIMA_HOME/$1\" >$TMPDIR/seen; for f in \"$LIMA_HOME/$1\"/*.pid; do [ ! -f $f ] || kill -9 $(cat $f); done; rm -rf \"$LIMA_HOME/$1\"; }\n");
  destroyed();
  char *seen = slurp(in("h/run/%s", "seen"));
  assert_non_null(strstr(seen, "ha.pid"));
  assert_null(strstr(seen, "qemu.pid"));
  assert_null(strstr(seen, "vz.pid"));
  al_free(seen);
  assert_true(runs(stranger));
  assert_false(runs(agent));
  al_test_kill(stranger);
}

static void
test_destroy_kills_what_limactl_left(void **state) {
  (void) state;
  build();
  pid_t stranger = pretend("hostagent", "--pidfile", in("%s", "h/lima/agent-lane-other000-other000/ha.pid"), NAME);
  pid_t left[4] = {pretend("hostagent", "--pidfile", lane("ha.pid"), NAME),
    pretend("-pidfile", lane("qemu.pid"), NULL, NULL), pretend("shell", "--workdir", "/", NAME),
    pretend("start", "--timeout", "10m", NAME)};
  assert_int_equal(lane_processes(), 4);
  destroyed();
  for (int i = 0; i < 4; i++) assert_false(runs(left[i]));
  assert_true(runs(stranger));
  al_test_kill(stranger);
}

/* As the kernel shows a process in the midst of an exec. False where this user or this system cannot do it. */
static bool
clear_command_line(void) {
#ifdef __linux__
  char *text = NULL;
  size_t len = 0;
  uint64_t n[52] = {0};
  if (al_plat_read_file(AT_FDCWD, "/proc/self/stat", 4096, &text, &len) != 0) return false;
  char *p = strrchr(text, ')');
  for (int field = 3; p && field < 52 && (p = strchr(p, ' ')); field++) n[field] = strtoull(++p, NULL, 10);
  al_free(text);
  struct prctl_mm_map map = {.start_code = n[26], .end_code = n[27], .start_stack = n[28], .start_data = n[45],
    .end_data = n[46], .start_brk = n[47], .brk = (uint64_t) (uintptr_t) sbrk(0), .arg_start = n[48],
    .arg_end = n[48], .env_start = n[50], .env_end = n[51], .exe_fd = (uint32_t) -1};
  return p && prctl(PR_SET_MM, PR_SET_MM_MAP, &map, sizeof map, 0) == 0;
#else
  return false;
#endif
}

static void
test_destroy_waits_for_who_is_between_two_programs(void **state) {
  (void) state;
  int ready[2];
  char said = 0, title[AL_HOME_MAX + 80];
  build();
  snprintf(title, sizeof title, "ssh: %s [mux]", lane("ssh.sock"));
  assert_int_equal(pipe(ready), 0);
  pid_t pid = al_test_fork();
  if (pid == 0) {
    bool cleared = clear_command_line();
    if (write(ready[1], cleared ? "y" : "n", 1) != 1 || !cleared) _exit(0);
    for (int i = 0; i < 10000 && exists(spec.dir); i++) usleep(2000); /* limactl is done: now processes are looked for */
    usleep(200000);
    execl("/bin/sleep", title, "300", (char *) NULL);
    _exit(127);
  }
  assert_int_equal(read(ready[0], &said, 1), 1);
  close(ready[0]);
  close(ready[1]);
  if (said == 'y') {
    destroyed();
    assert_true(limactl_deleted()); /* it might be the lane's */
    assert_false(runs(pid));
  } else {
    al_test_kill(pid);
    skip();
  }
}

static void
test_destroy_half_made_directories(void **state) {
  (void) state;
  assert_int_equal(mkdir(spec.dir, 0700), 0); /* a delete or a clone that was killed */
  al_test_write(spec.dir, "disk", "x");
  assert_int_equal(mkdir(in("h/lima/_tmp.%s", NAME), 0700), 0); /* a build that was killed */
  al_test_write(in("h/lima/_tmp.%s", NAME), "lima.yaml", "x");
  destroyed();
  assert_false(exists(in("h/lima/_tmp.%s", NAME)));
  assert_false(limactl_deleted()); /* it would have refused */
}

static void
test_destroy_when_limactl_hangs_fails_or_is_gone(void **state) {
  (void) state;
  static const char *const scripts[] = {"fake_delete() { trap '' TERM; sleep 60 & while :; do wait; done; }\n",
    "fake_delete() { fatal 'instance is protected'; }\n",
    "fake_delete() { rm \"$LIMA_HOME/$1/agent-lane.json\" \"$LIMA_HOME/$1/disk\"; kill -9 $$; }\n"};
  lima.delete_ms = 200;
  for (size_t i = 0; i < sizeof scripts / sizeof scripts[0]; i++) {
    script(scripts[i]);
    build();
    pid_t agent = pretend("hostagent", "--pidfile", lane("ha.pid"), NAME);
    destroyed();
    assert_false(runs(agent));
  }
  build();
  unlink(lima.limactl);
  destroyed();
}

/* Two owners' reapers, or an owner and somebody's reaper: this one finds the directory without its record, but with all
 * the rest, which the other one is still removing. */
static void
test_destroy_beside_another_one(void **state) {
  (void) state;
  script("fake_delete() {\n"
         "  d=$LIMA_HOME/$1; rm \"$d/agent-lane.json\"; (sleep 0.5; rm -rf \"$d\") <&- >&- 2>&- &\n"
         "  fatal 'no such file'\n}\n");
  build();
  pid_t agent = pretend("hostagent", "--pidfile", lane("ha.pid"), NAME);
  destroyed();
  assert_true(limactl_deleted());
  assert_false(runs(agent));
}

static void
test_destroy_refuses_what_is_not_ours(void **state) {
  (void) state;
  char target[64];
  al_test_dir(target);
  al_test_write(target, "precious", "x");
  assert_int_equal(symlink(target, spec.dir), 0);
  answer_t a = destroy_name(NAME);
  assert_answer(&a, AL_EDESTROY_FAILED, "not a directory");
  char path[128];
  snprintf(path, sizeof path, "%s/precious", target);
  assert_true(exists(path));
  al_test_dir_remove(target);
  unlink(spec.dir);
  /* A whole instance that limactl would not remove and that does not carry our record, or one of another directory,
   * stays. */
  build();
  script("fake_delete() { fatal 'instance is protected'; }\n");
  al_test_write(spec.dir, "agent-lane.json", "{\"name\":\"" NAME "\",\"dev\":1,\"ino\":1}");
  a = destroy_name(NAME);
  assert_answer(&a, AL_EDESTROY_FAILED, "sealed record");
  assert_non_null(strstr(a.err.msg, "instance is protected"));
  assert_string_equal(a.err.lane, NAME);
  assert_true(exists(lane("disk")));
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int
main(void) {
  const struct CMUnitTest tests[] = {
    T(test_classify_goes_by_the_lane_directory),
    T(test_destroy_takes_only_lane_names),
    T(test_destroy_is_idempotent),
    T(test_destroy_asks_limactl_where_it_is_needed),
    T(test_destroy_spares_a_recycled_pid),
    T(test_destroy_kills_what_limactl_left),
    T(test_destroy_waits_for_who_is_between_two_programs),
    T(test_destroy_half_made_directories),
    T(test_destroy_when_limactl_hangs_fails_or_is_gone),
    T(test_destroy_beside_another_one),
    T(test_destroy_refuses_what_is_not_ours),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
