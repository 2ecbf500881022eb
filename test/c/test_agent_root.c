/* SPDX-License-Identifier: Apache-2.0 */
/* The lane agent as root, as in a guest: users, cgroups, CONFIG and the end. Runs in namespaces of its own; skipped
 * without root. */
#include "agent_host.h"
#include <dirent.h>
#include <sched.h>
#include <sys/mount.h>

#define LEFT_OVER 77   /* exit codes of the jail's first process */
#define POWERED_OFF 42

static bool expect_poweroff;

static int
put(const char *path, const char *text, mode_t mode) {
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
  if (fd < 0) return -1;
  int err = write(fd, text, strlen(text)) == (ssize_t) strlen(text) ? 0 : -1;
  close(fd);
  return err;
}

/* Own /etc, /home and cgroup tree; and a plain file over sysrq-trigger (where the kernel has it), so that nothing here
 * can stop the machine. reboot(2) only ends a PID namespace, with SIGINT for its first process. */
static int
furnish(void) {
  if (mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 || mount("proc", "/proc", "proc", 0, NULL) != 0) return -1;
  if (mount("cgroup2", "/sys/fs/cgroup", "cgroup2", 0, NULL) != 0) return -1;
  if (mount("etc", "/etc", "tmpfs", 0, NULL) != 0 || mount("home", "/home", "tmpfs", 0, "mode=755") != 0) return -1;
  if (put("/etc/passwd", "root:x:0:0::/root:/bin/sh\n+::::::\nagent:x:4242:4243::/home/agent:/bin/dash\n", 0644) != 0)
    return -1;
  if (put("/etc/group", "root:x:0:\nagent:x:4243:\nother:x:4244:root\ntools:x:4245:root,agent\n", 0644) != 0) return -1;
  if (put("/home/trigger", "-", 0600) != 0) return -1;
  if (mount("/home/trigger", "/proc/sysrq-trigger", NULL, MS_BIND, NULL) != 0 &&
    access("/proc/sysrq-trigger", F_OK) == 0)
    return -1;
  if (mkdir("/home/agent", 0755) != 0 || chown("/home/agent", 4242, 4243) != 0) return -1;
  return put("/home/agent/secret", "root's\n", 0600);
}

static bool
triggered(void) {
  char c = 0;
  int fd = open("/home/trigger", O_RDONLY | O_CLOEXEC);
  ssize_t n = read(fd, &c, 1);
  close(fd);
  return n == 1 && c == 'o';
}

static int
processes(void) {
  int n = 0;
  DIR *d = opendir("/proc");
  for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) n += e->d_name[0] >= '1' && e->d_name[0] <= '9';
  closedir(d);
  return n;
}

static void
remove_cgroups(void) {
  DIR *d = opendir("/sys/fs/cgroup/lane");
  for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;)
    if (e->d_name[0] >= '0' && e->d_name[0] <= '9') unlinkat(dirfd(d), e->d_name, AT_REMOVEDIR);
  if (d != NULL) closedir(d);
  rmdir("/sys/fs/cgroup/lane");
}

/* The first process of the jail: ends with the agent's exit code, or says what the agent has left behind. */
static _Noreturn void
guard(pid_t agent) {
  int status = 0, left = 0;
  for (;;) {
    pid_t pid = waitpid(-1, &status, WNOHANG);
    if (expect_poweroff && triggered())
      _exit(processes() == 2 ? POWERED_OFF : LEFT_OVER); /* the agent waits for the end */
    if (pid == agent) break;
    usleep(2000);
  }
  for (int i = 0; i < 100 && (left = processes()) > 1; i++, usleep(2000))
    while (waitpid(-1, NULL, WNOHANG) > 0) continue;
  remove_cgroups();
  _exit(left > 1 ? LEFT_OVER : WIFEXITED(status) ? WEXITSTATUS(status) : 99);
}

static int
jail(void) {
  int status = 0;
  if (unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWCGROUP) != 0) return -1;
  pid_t first = fork();
  if (first < 0) return -1;
  if (first > 0) {
    waitpid(first, &status, 0);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : expect_poweroff && WTERMSIG(status) == SIGINT ? POWERED_OFF : 98);
  }
  if (furnish() != 0) _exit(120);
  pid_t agent = fork();
  if (agent > 0) guard(agent);
  return agent;
}

static void
start(peer_t *p) {
  static int possible = -1;
  if (possible < 0) {
    pid_t pid = fork();
    int status = -1;
    if (pid == 0) _exit(jail() == 0 ? 0 : 121);
    waitpid(pid, &status, 0);
    possible = geteuid() == 0 && status == 0;
  }
  if (!possible) {
    print_message("skipped: needs root, namespaces and cgroup2\n");
    skip();
  }
  const char *args[] = {"agent", "--secret", peer_path("secret"), NULL};
  peer_start_with(p, args, jail);
  peer_hello(p);
}

static void
config(peer_t *p, const char *user, const char *path, uint32_t flags, uint32_t err) {
  al_frame_t f;
  peer_tlvs.len = 0;
  if (user != NULL) tlv_text(&peer_tlvs, AL_TLV_USER, user);
  if (path != NULL) tlv_text(&peer_tlvs, AL_TLV_PATH, path);
  tlv_u32(&peer_tlvs, AL_TLV_FLAGS, flags);
  peer_send(p, 0, AL_F_CONFIG, 0, peer_tlvs.bytes, peer_tlvs.len);
  assert_int_equal(peer_next(p, &f, PEER_WAIT_MS), 1);
  assert_int_equal(f.type, AL_F_CONFIG_ACK);
  if (al_get32(f.payload) != err)
    fail_msg(
      "CONFIG_ACK %u %.*s, expected %u", al_get32(f.payload), (int) f.len - 4, (const char *) f.payload + 4, err);
  assert_int_equal(f.len > 4, err != 0);
}

static uint32_t
exec_as(peer_t *p, const char *user, const char *script) {
  peer_tlvs.len = 0;
  tlv_text(&peer_tlvs, AL_TLV_ARG, "sh");
  tlv_text(&peer_tlvs, AL_TLV_ARG, "-c");
  tlv_text(&peer_tlvs, AL_TLV_ARG, script);
  tlv_text(&peer_tlvs, AL_TLV_USER, user);
  tlv_text(&peer_tlvs, AL_TLV_ENV, "HOME=/given");
  tlv_text(&peer_tlvs, AL_TLV_ENV, "USER=given");
  tlv_text(&peer_tlvs, AL_TLV_ENV, "KEPT=yes");
  tlv_text(&peer_tlvs, AL_TLV_CWD, "/");
  return peer_exec_tlvs(p, &peer_tlvs, AL_FRAME_MAX);
}

static void
expect_as(peer_t *p, const char *user, const char *script, const char *out) {
  peer_expect(p, exec_as(p, user, script), AL_EXIT_CODE, 0, out);
}

static void
test_commands_run_as_the_user_or_root(void **state) {
  (void) state;
  peer_t p;
  start(&p);
  config(&p, "agent", NULL, 0, 0);
  peer_expect(&p, peer_exec(&p, 0, "id -u; id -g; id -G; echo $HOME $USER $LOGNAME $SHELL $PATH; pwd"), AL_EXIT_CODE, 0,
    "4242\n4243\n4243 4245\n/home/agent agent agent /bin/dash /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n/home/agent\n");
  expect_as(&p, "agent", "echo $HOME $USER $LOGNAME $KEPT; grep -E '^(Uid|Gid|CapEff)' /proc/self/status",
    "/given given agent yes\n"
    "Uid:\t4242\t4242\t4242\t4242\nGid:\t4243\t4243\t4243\t4243\nCapEff:\t0000000000000000\n");
  expect_as(&p, "root", "id -u; id -G; echo $HOME $USER $LOGNAME $KEPT", "0\n0 4244 4245\n/root root root yes\n");
  /* a group that is added while the lane runs counts for the next command */
  expect_as(&p, "root", "echo late:x:4250:agent >> /etc/group", "");
  expect_as(&p, "agent", "id -G", "4243 4245 4250\n");
  peer_stop(&p);
}

static void
test_config_makes_worktree_and_sudo(void **state) {
  (void) state;
  peer_t p;
  start(&p);
  config(&p, "agent", "/home/agent/a/work", AL_CONFIG_SUDO, 0);
  expect_as(&p, "root",
    "cd /home/agent; stat -c '%u %g %a' . a a/work; cat /etc/sudoers.d/agent-lane; stat -c '%u %a' /etc/sudoers.d/agent-lane; ls /etc/sudoers.d",
    "4242 4243 755\n4242 4243 755\n4242 4243 755\nagent ALL=(ALL) NOPASSWD:ALL\n0 440\nagent-lane\n");
  peer_stop(&p);
  start(&p);
  expect_as(&p, "root", "mkdir /etc/sudoers.d; echo old > /etc/sudoers.d/agent-lane; umask 077; mkdir /home/there", "");
  config(&p, "agent", "/home/there", 0, 0);
  expect_as(&p, "root", "stat -c '%u %a' /home /home/there; ls /etc/sudoers.d", "0 755\n4242 755\n");
  peer_stop(&p);
}

static void
test_config_that_cannot_be_done_says_so(void **state) {
  (void) state;
  const struct { const char *before, *user, *path; uint32_t err; } cases[] = {
    {"echo > /home/agent/file", "agent", "/home/agent/file/work", ENOTDIR},
    {"echo > /home/agent/file", "agent", "/home/agent/file", ENOTDIR},
    {"ln -s /etc /home/agent/link", "agent", "/home/agent/link", ENOTDIR},
    {"ln -s /etc /home/agent/link", "agent", "/home/agent/link/x", ENOTDIR},
    {"true", "agent", "relative", EINVAL}, {"true", "agent", "/home/agent/../x", EINVAL},
    {"true", "nobody-here", NULL, ENOENT}, {"true", "root", NULL, EPERM}, {"true", "", NULL, EINVAL},
  };
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    peer_t p;
    start(&p);
    expect_as(&p, "root", cases[i].before, "");
    config(&p, cases[i].user, cases[i].path, 0, cases[i].err);
    expect_as(&p, "root", "ls /etc/x /etc/work 2>/dev/null | wc -l", "0\n");
    peer_stop(&p);
  }
}

static void
test_read_uses_the_users_rights(void **state) {
  (void) state;
  peer_t p;
  start(&p);
  peer_expect(&p, peer_read(&p, "/home/agent/secret"), AL_EXIT_ERROR, EACCES, NULL);
  peer_tlvs.len = 0;
  tlv_text(&peer_tlvs, AL_TLV_PATH, "/home/agent/secret");
  tlv_text(&peer_tlvs, AL_TLV_USER, "root");
  peer_send(&p, ++p.last_id, AL_F_READ, 0, peer_tlvs.bytes, peer_tlvs.len);
  peer_expect(&p, p.last_id, AL_EXIT_CODE, 0, "root's\n");
  peer_expect(&p, peer_read(&p, "/home/agent/secret"), AL_EXIT_ERROR, EACCES, NULL);
  expect_as(&p, "root", "id -u", "0\n"); /* the agent has its own rights back */
  peer_stop(&p);
}

static const char count_sleeps[] = "grep -l '^sleep$' /proc/[0-9]*/comm 2>/dev/null | wc -l";

static void
expect_sleeps(peer_t *p, const char *count) {
  for (int i = 0;; i++, usleep(10000)) {
    result_t r;
    peer_result(p, exec_as(p, "agent", count_sleeps), &r);
    if (r.kind != AL_EXIT_CODE || r.out == NULL) fail_msg("counting: kind %u value %u %s", r.kind, r.value, r.text);
    bool same = strcmp(r.out, count) == 0;
    if (!same && i == 200) fail_msg("%s sleeps, expected %s", r.out, count);
    free(r.out);
    if (same) return;
  }
}

static void
await_data(peer_t *p) {
  al_frame_t f;
  do assert_int_equal(peer_next(p, &f, PEER_WAIT_MS), 1);
  while (f.type != AL_F_DATA);
}

static void
test_tree_means_whoever_left_the_session_too(void **state) {
  (void) state;
  peer_t p;
  const char script[] =
    "setsid sleep 61 >/dev/null 2>&1 & (setsid sh -c 'sleep 62 & sleep 63') >/dev/null 2>&1 & sleep 64 & until [ $(grep -l '^sleep$' /proc/[0-9]*/comm 2>/dev/null | wc -l) = 4 ]; do :; done; echo up; wait";
  start(&p);
  uint32_t id = exec_as(&p, "agent", script);
  await_data(&p);
  expect_as(&p, "agent", count_sleeps, "4\n");
  peer_send32(&p, id, AL_F_SIGNAL, AL_SIGNAL_TREE, SIGKILL);
  peer_expect(&p, id, AL_EXIT_SIGNAL, SIGKILL, "");
  expect_sleeps(&p, "0\n");
  for (int i = 0; i < 20; i++)
    expect_as(&p, "agent", "echo fine", "fine\n"); /* a killed cgroup must not be used again */
  id = exec_as(&p, "agent", script);
  await_data(&p);
  peer_send32(&p, id, AL_F_SIGNAL, AL_SIGNAL_TREE, SIGTERM);
  peer_expect(&p, id, AL_EXIT_SIGNAL, SIGTERM, "");
  expect_sleeps(&p, "0\n");
  id = exec_as(&p, "agent", script);
  await_data(&p);
  peer_send(&p, id, AL_F_RESET, 0, NULL, 0);
  expect_sleeps(&p, "0\n");
  peer_stop(&p);
}

static void
test_background_processes_live_on_in_their_own_cgroup(void **state) {
  (void) state;
  peer_t p;
  start(&p);
  peer_expect(&p, exec_as(&p, "agent", "sleep 60 >/dev/null 2>&1 & cut -d/ -f3 /proc/self/cgroup | tail -1"),
    AL_EXIT_CODE, 0, NULL);
  uint32_t id = exec_as(&p, "agent", "echo up; sleep 61");
  await_data(&p);
  peer_send32(&p, id, AL_F_SIGNAL, AL_SIGNAL_TREE, SIGKILL); /* must not reach the sleep of the first command */
  peer_expect(&p, id, AL_EXIT_SIGNAL, SIGKILL, "");
  expect_sleeps(&p, "1\n");
  for (int i = 0; i < 50; i++) peer_expect(&p, peer_exec(&p, 0, "true"), AL_EXIT_CODE, 0, "");
  expect_as(
    &p, "root", "[ $(ls -d /sys/fs/cgroup/lane/[0-9]* | wc -l) -le 6 ] && echo few", "few\n"); /* most are used again */
  expect_as(&p, "root", "echo 1 > /sys/fs/cgroup/lane/1/cgroup.kill", "");
  expect_sleeps(&p, "0\n");
  peer_expect(
    &p, peer_exec(&p, 0, "sleep 60 >/dev/null 2>&1 &"), AL_EXIT_CODE, 0, ""); /* leaving one sweeps the old one */
  expect_as(&p, "root", "ls -d /sys/fs/cgroup/lane/1 2>/dev/null | wc -l", "0\n");
  peer_stop(&p);
}

/* The guard answers with LEFT_OVER when a process outlives the agent, so peer_stop proves that none does. */
static void
test_eof_ends_every_process(void **state) {
  (void) state;
  peer_t p;
  start(&p);
  exec_as(&p, "agent", "setsid sleep 61 & setsid sleep 62 >/dev/null 2>&1 & echo up; sleep 63");
  await_data(&p);
  expect_as(&p, "root", "echo $$ > /sys/fs/cgroup/cgroup.procs; (setsid sleep 64 & setsid sleep 65 &) >/dev/null 2>&1",
    ""); /* has left its cgroup */
  expect_sleeps(&p, "5\n");
  peer_stop(&p);
}

static void
test_eof_powers_off_when_configured(void **state) {
  (void) state;
  peer_t p;
  expect_poweroff = true;
  start(&p);
  expect_poweroff = false;
  config(&p, "agent", NULL, AL_CONFIG_POWEROFF, 0);
  exec_as(&p, "agent", "echo up; sleep 63");
  await_data(&p);
  close(p.fd);
  p.fd = -1;
  assert_int_equal(peer_wait(&p), POWERED_OFF);
}

static int
drop(void) {
  return setuid(65534);
}

static void
test_needs_root(void **state) {
  (void) state;
  peer_t p;
  if (geteuid() != 0) skip();
  const char *args[] = {"agent", "--secret", peer_path("secret"), NULL};
  peer_start_with(&p, args, drop);
  assert_int_equal(peer_wait(&p), 2);
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_commands_run_as_the_user_or_root),
    cmocka_unit_test(test_config_makes_worktree_and_sudo),
    cmocka_unit_test(test_config_that_cannot_be_done_says_so),
    cmocka_unit_test(test_read_uses_the_users_rights),
    cmocka_unit_test(test_tree_means_whoever_left_the_session_too),
    cmocka_unit_test(test_background_processes_live_on_in_their_own_cgroup),
    cmocka_unit_test(test_eof_ends_every_process),
    cmocka_unit_test(test_eof_powers_off_when_configured),
    cmocka_unit_test(test_needs_root),
  };
  return cmocka_run_group_tests(tests, peer_setup, peer_teardown);
}
