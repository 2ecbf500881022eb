/* SPDX-License-Identifier: Apache-2.0 */
/* The built keeper, run as a program on a scripted limactl: when it ends lanes, what it leaves alone, what it needs. */
#include "keeper_run.h"

#define OTHER "agent-lane-0123abcd-other000"

typedef struct vm_s {
  pid_t hostagent, qemu;
} vm_t;

static vm_t
start_vm(void) {
  build();
  return (vm_t) {pretend("hostagent", "--pidfile", lane("ha.pid"), NAME),
    pretend("-pidfile", lane("qemu.pid"), NULL, NULL)};
}

static void
assert_ended(const vm_t *vm) {
  UNTIL("the end of the lane", !exists(spec.dir));
  assert_false(runs(vm->hostagent));
  assert_false(runs(vm->qemu));
}

static void
stop_vm(const vm_t *vm) {
  al_test_kill(vm->hostagent);
  al_test_kill(vm->qemu);
}

static int
limactl_deleted(const char *name) {
  char *calls = slurp(in("h/run/%s", "fake.calls")), want[80];
  int n = 0;
  snprintf(want, sizeof want, "delete -f %s\n", name);
  for (const char *p = calls; (p = strstr(p, want)) != NULL; p++) n++;
  al_free(calls);
  return n;
}

/* ---- the owner's end ---- */

static void
test_keeper_ends_lanes_of_a_killed_owner(void **state) {
  (void) state;
  vm_t vm = start_vm();
  /* Of others, with the lane's name where only a name is looked for. */
  pid_t stranger = pretend("hostagent", "--pidfile", in("%s", "h/lima/" OTHER "/ha.pid"), NAME);
  keeper_t k = keeper_start(NULL);
  assert_int_equal(mkdir(in("h/lima/%s", OTHER), 0700), 0);
  keep(&k, NAME, 3600000);
  keeper_let_go(&k);
  usleep(300000);
  assert_true(exists(spec.dir));
  assert_true(runs(vm.qemu));
  al_test_kill(k.owner);
  assert_ended(&vm);
  assert_int_equal(limactl_deleted(NAME), 0); /* the keeper itself has left it nothing to do */
  UNTIL("the keeper's end", !runs(k.pid));
  assert_true(runs(stranger));
  assert_true(exists(in("h/lima/%s", OTHER)));
  al_test_kill(stranger);
}

/* A child of the owner's has got hold of its end of the link, and outlives it. */
static void
test_keeper_watches_the_owner_itself(void **state) {
  (void) state;
  vm_t vm = start_vm();
  keeper_t k = keeper_start(NULL);
  keep(&k, NAME, 3600000);
  al_test_kill(k.owner);
  assert_ended(&vm);
  keeper_end(&k);
}

/* The owner's process lives on, but its engine has ended. */
static void
test_keeper_needs_no_more_than_the_links_end(void **state) {
  (void) state;
  vm_t vm = start_vm();
  keeper_t k = keeper_start(NULL);
  keep(&k, NAME, 3600000);
  assert_int_equal(shutdown(k.link, SHUT_WR), 0);
  assert_ended(&vm);
  assert_true(runs(k.owner));
  keeper_end(&k);
}

static void
test_keeper_hears_what_was_said_last(void **state) {
  (void) state;
  vm_t vm = start_vm();
  keeper_t k = keeper_start(NULL);
  assert_int_equal(kill(k.pid, SIGSTOP), 0);
  al_keeper_keep_t r = keep_record(&k, NAME, 3600000), half = keep_record(&k, OTHER, 3600000);
  assert_int_equal(send(k.link, &r, sizeof r, 0), sizeof r);
  assert_int_equal(send(k.link, &half, sizeof half / 2, 0), sizeof half / 2); /* killed in the middle of it */
  keeper_let_go(&k);
  al_test_kill(k.owner);
  assert_int_equal(kill(k.pid, SIGCONT), 0);
  assert_ended(&vm);
  keeper_end(&k);
}

static void
test_keeper_leaves_dropped_lanes_alone(void **state) {
  (void) state;
  vm_t vm = start_vm();
  keeper_t k = keeper_start(NULL);
  keep(&k, OTHER, 3600000);
  keep(&k, NAME, 1); /* over at once, and dropped in the owner's time */
  drop(&k, NAME);
  usleep(2500000);
  keeper_end(&k);
  assert_true(exists(spec.dir));
  assert_true(runs(vm.hostagent) && runs(vm.qemu));
  assert_int_equal(limactl_deleted(NAME), 0);
  stop_vm(&vm);
}

static void
test_keeper_of_nothing_ends_with_the_link(void **state) {
  (void) state;
  keeper_t k = keeper_start(NULL);
  usleep(1500000);
  assert_true(runs(k.pid)); /* an owner between two lanes */
  keep(&k, NAME, 3600000);
  drop(&k, NAME);
  keeper_let_go(&k);
  al_test_kill(k.owner);
  UNTIL("the keeper's end", !runs(k.pid));
}

static void
test_keeper_does_not_serve_who_is_gone(void **state) {
  (void) state;
  al_ident_t id;
  char byte, owner[64];
  assert_int_equal(al_plat_ident(getpid(), &id), 0);
  for (int i = 0; i < 2; i++) { /* the pid's next owner; nobody */
    int fds[2];
    assert_int_equal(al_plat_socketpair(fds), 0);
    pid_t gone = al_test_sleeper();
    al_test_kill(gone);
    snprintf(owner, sizeof owner, "%ld:%llu", (long) (i ? gone : id.pid), (unsigned long long) id.start + 1);
    run_keeper(owner, fds[1], NULL);
    close(fds[1]);
    assert_int_equal(recv(fds[0], &byte, 1, 0), 0);
    close(fds[0]);
    assert_non_null(strstr(log_text(), "the owner is gone"));
  }
}

/* ---- lifetimes ---- */

static void
test_keeper_ends_lanes_whose_time_is_over(void **state) {
  (void) state;
  for (int stopped = 0; stopped < 2; stopped++) {
    vm_t vm = start_vm();
    keeper_t k = keeper_start(NULL);
    if (stopped) assert_int_equal(kill(k.owner, SIGSTOP), 0);
    uint64_t over = al_plat_boot_ms() + 2500;
    keep(&k, NAME, 2500);
    UNTIL("the VM's end", !runs(vm.qemu));
    uint64_t now = al_plat_boot_ms();
    assert_true(now >= over + 900); /* the owner's own time comes first */
    print_message("an end %llu ms after its time\n", (unsigned long long) (now - over));
    assert_ended(&vm);
    assert_true(runs(k.pid)); /* more may come */
    al_keeper_keep_t again = keep_record(&k, NAME, 3600000);
    int rc = say_keep(&k, &again);
    assert_true(rc == -ECANCELED); /* its end is no secret */
    keeper_end(&k);
  }
}

/* ---- what stands in the way ---- */

static void
test_keeper_ends_lanes_without_limactl(void **state) {
  (void) state;
  static const char *const scripts[] = {"fake_delete() { trap '' TERM; sleep 60 & while :; do wait; done; }\n",
    "fake_delete() { fatal 'instance is protected'; }\n",
    "fake_delete() { rm \"$LIMA_HOME/$1/agent-lane.json\" \"$LIMA_HOME/$1/disk\"; kill -9 $$; }\n"};
  for (size_t i = 0; i < sizeof scripts / sizeof *scripts; i++) {
    script(scripts[i]);
    vm_t vm = start_vm();
    unlink(lane("agent-lane.json")); /* so limactl is asked */
    if (i < 2) unlink(lane("disk"));   /* and what it leaves may be removed */
    keeper_t k = keeper_start(NULL);
    keep(&k, NAME, 3600000);
    keeper_let_go(&k);
    al_test_kill(k.owner);
    UNTIL("the VM's end", !runs(vm.qemu)); /* which waits for nobody */
    if (i == 0) assert_true(exists(spec.dir));
    assert_ended(&vm);
    keeper_end(&k);
    assert_int_equal(limactl_deleted(NAME), i + 1);
  }
}

static void
test_keeper_spares_a_recycled_pid(void **state) {
  (void) state;
  char text[32];
  build();
  pid_t stranger = al_test_sleeper();
  snprintf(text, sizeof text, "%ld\n", (long) stranger);
  al_test_write(spec.dir, "qemu.pid", text);
  al_test_write(spec.dir, "ha.pid", text);
  unlink(lane("agent-lane.json")); /* so limactl is asked */
  script("fake_delete() { for f in \"$LIMA_HOME/$1\"/*.pid; do [ ! -f $f ] || kill -9 $(cat $f); done; rm -rf \"$LIMA_HOME/$1\"; }\n");
  keeper_t k = keeper_start(NULL);
  keep(&k, NAME, 3600000);
  keeper_end(&k);
  assert_false(exists(spec.dir));
  assert_int_equal(limactl_deleted(NAME), 1);
  assert_true(runs(stranger));
  al_test_kill(stranger);
}

static void
test_keeper_tries_again(void **state) {
  (void) state;
  vm_t vm = start_vm();
  script("fake_delete() { fatal 'instance is protected'; }\n");
  unlink(lane("agent-lane.json")); /* so it may not be removed */
  keeper_t k = keeper_start(NULL);
  keep(&k, NAME, 3600000);
  keeper_let_go(&k);
  al_test_kill(k.owner);
  UNTIL("a failed try", strstr(log_text(), "sealed record") != NULL);
  assert_false(runs(vm.qemu));
  assert_true(exists(lane("disk")));
  unlink(lane("disk")); /* now it is half-made */
  assert_ended(&vm);
  keeper_end(&k);
}

static void
test_keeper_refuses_what_is_no_record(void **state) {
  (void) state;
  for (int i = 0; i < 7; i++) {
    keeper_t k = keeper_start(NULL);
    al_keeper_keep_t r = keep_record(&k, NAME, 3600000);
    if (i == 0) r.head.magic++;
    if (i == 1) r.head.size = 0;
    if (i == 2) r.head.size--;
    if (i == 3) r.head.size = UINT32_MAX;
    if (i == 4) r.head.type = 0;
    if (i == 5) r.head.type = AL_KEEPER_ACK;
    if (i == 6) r.head.type = AL_KEEPER_DROP; /* with the size of another */
    assert_int_equal(say_keep(&k, &r), 1);
    keeper_end(&k);
  }
}

static void
test_keeper_refuses_lanes_that_are_none(void **state) {
  (void) state;
  keeper_t k = keeper_start(NULL);
  for (int i = 0; i < 9; i++) {
    al_keeper_keep_t r = keep_record(&k, NAME, 3600000);
    if (i == 0) snprintf(r.name, sizeof r.name, "%s", "..");
    if (i == 1) r.name[0] = 0;
    if (i == 2) memset(r.name, 'a', sizeof r.name);
    if (i == 3) snprintf(r.limactl, sizeof r.limactl, "%s", "limactl");
    if (i == 4) memset(r.limactl, '/', sizeof r.limactl);
    if (i == 5) memset(r.path_env, '/', sizeof r.path_env);
    if (i == 6) memset(r.user_home, '/', sizeof r.user_home);
    if (i == 7) r.expires_boot_ms = 0;
    if (i == 8) r.expires_boot_ms = UINT64_MAX;
    assert_int_equal(say_keep(&k, &r), -EINVAL);
  }
  drop(&k, "..");
  drop(&k, OTHER);
  keep(&k, NAME, 3600000);
  for (int i = 0; i < 40; i++) { /* more limactls than one owner can have */
    al_keeper_keep_t r = keep_record(&k, OTHER, 3600000);
    snprintf(r.limactl, sizeof r.limactl, "/x/%d/limactl", i);
    assert_int_equal(say_keep(&k, &r), i < 15 ? 0 : -ENOSPC);
  }
  keeper_end(&k);
}

/* ---- what it is ---- */

static void
no_files(void) {
  setrlimit(RLIMIT_FSIZE, &(struct rlimit) {0, 0});
}

static void
test_keeper_needs_no_log(void **state) {
  (void) state;
  for (int i = 0; i < 2; i++) {
    vm_t vm = start_vm();
    unlink(in("h/log/%s", "keeper.log"));
    if (i == 1) assert_int_equal(mkfifo(in("h/log/%s", "keeper.log"), 0600), 0); /* that nobody reads */
    keeper_t k = keeper_start(i == 0 ? no_files : NULL); /* as on a full disk */
    keep(&k, NAME, 3600000);
    keeper_let_go(&k);
    al_test_kill(k.owner);
    assert_ended(&vm);
    if (i == 0) assert_string_equal(log_text(), "");
    keeper_end(&k);
  }
}

static void
test_keeper_log_is_bounded(void **state) {
  (void) state;
  struct stat st;
  assert_int_equal(mkdir(in("h/%s", "log"), 0700), 0);
  int fd = open(in("h/log/%s", "keeper.log"), O_WRONLY | O_CREAT | O_EXCL, 0600);
  assert_int_equal(ftruncate(fd, 262144 - 1000), 0);
  close(fd);
  keeper_t k = keeper_start(NULL);
  keeper_end(&k);
  assert_int_equal(stat(in("h/log/%s", "keeper.log.1"), &st), 0);
  assert_int_equal(st.st_size, 262144 - 1000);
  assert_non_null(strstr(log_text(), "started"));
  assert_non_null(strstr(log_text(), "nothing is left to keep"));
}

#ifdef __linux__
static long
status_kib(pid_t pid, const char *key) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%ld/status", (long) pid);
  char *text = slurp(path), *at = strstr(text, key);
  long n = at ? strtol(at + strlen(key), NULL, 10) : -1;
  al_free(text);
  return n;
}

static void
test_keeper_is_small_and_on_its_own(void **state) {
  (void) state;
  char path[64], to[128];
  int stray = open("/dev/null", O_RDONLY); /* not close-on-exec */
  keeper_t k = keeper_start(NULL);
  for (int i = 0; i < 64; i++) {
    char name[AL_NAME_LEN + 1];
    snprintf(name, sizeof name, "agent-lane-0000000%u-%08u", (unsigned) i % 10, (unsigned) i % 1000);
    keep(&k, name, 3600000);
  }
  int fds = 0;
  for (int fd = 0; fd < 256; fd++) {
    snprintf(path, sizeof path, "/proc/%ld/fd/%d", (long) k.pid, fd);
    ssize_t n = readlink(path, to, sizeof to - 1);
    if (n <= 0) continue;
    to[n] = 0;
    fds++;
    if (fd < 3) assert_string_equal(to, "/dev/null");
    else if (strncmp(to, "socket:", 7) != 0 && strncmp(to, "anon_inode:", 11) != 0) fail_msg("%d is %s", fd, to);
  }
  assert_true(fds <= 6);
  print_message("%ld KiB at most, %ld KiB now, %d descriptors\n", status_kib(k.pid, "VmHWM:"),
    status_kib(k.pid, "VmRSS:"), fds);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  assert_in_range(status_kib(k.pid, "VmHWM:"), 100, 3072);
#endif
  assert_int_equal(getsid(k.pid) == getsid(0), 0);
  assert_true(status_kib(k.pid, "PPid:") != getpid() && status_kib(k.pid, "PPid:") != k.owner);
  static const int harmless[] = {SIGHUP, SIGINT, SIGQUIT, SIGPIPE, SIGTSTP, SIGTTIN};
  for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++) assert_int_equal(kill(k.pid, harmless[i]), 0);
  keep(&k, NAME, 3600000);
  uint64_t begun = al_plat_mono_ms();
  al_test_kill(k.owner);
  UNTIL("the keeper's end", !runs(k.pid));
  print_message("65 lanes of which nothing is left: %llu ms\n", (unsigned long long) (al_plat_mono_ms() - begun));
  keeper_let_go(&k);
  close(stray);
}
#endif

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int
main(void) {
  const struct CMUnitTest tests[] = {
    T(test_keeper_ends_lanes_of_a_killed_owner),
    T(test_keeper_watches_the_owner_itself),
    T(test_keeper_needs_no_more_than_the_links_end),
    T(test_keeper_hears_what_was_said_last),
    T(test_keeper_leaves_dropped_lanes_alone),
    T(test_keeper_of_nothing_ends_with_the_link),
    T(test_keeper_does_not_serve_who_is_gone),
    T(test_keeper_ends_lanes_whose_time_is_over),
    T(test_keeper_ends_lanes_without_limactl),
    T(test_keeper_spares_a_recycled_pid),
    T(test_keeper_tries_again),
    T(test_keeper_refuses_what_is_no_record),
    T(test_keeper_refuses_lanes_that_are_none),
    T(test_keeper_needs_no_log),
    T(test_keeper_log_is_bounded),
#ifdef __linux__
    T(test_keeper_is_small_and_on_its_own),
#endif
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
