/* SPDX-License-Identifier: Apache-2.0 */
/* The lane agent as root, as in a guest: users, cgroups, CONFIG and the end. Runs in namespaces of its own; skipped
 * without root. */
#include "agent_jail.h"
#include "tar_make.h"

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

static uint32_t
unpack(peer_t *p, const char *user, const char *what, const char *path, uint32_t flags) {
  peer_tlvs.len = 0;
  tlv_text(&peer_tlvs, AL_TLV_ARG, what);
  if (path != NULL) tlv_text(&peer_tlvs, AL_TLV_ARG, path);
  tlv_text(&peer_tlvs, AL_TLV_USER, user);
  tlv_u32(&peer_tlvs, AL_TLV_FLAGS, AL_EXEC_UNPACK | flags);
  return peer_exec_tlvs(p, &peer_tlvs, AL_FRAME_MAX);
}

static void
test_unpacking_is_the_users(void **state) {
  (void) state;
  static tar_make_t tar;
  peer_t p;
  uint32_t id;
  tar.len = 0;
  tar_put(&tar, '5', ".", "", 0755, NULL, 0);
  tar_put(&tar, '0', "d/f", "", 06755, "new", 3);
  tar_put(&tar, '2', "l", "d", 0777, NULL, 0);
  tar_end(&tar);
  start(&p);
  config(&p, "agent", NULL, 0, 0);
  id = unpack(&p, "agent", "tree", "/home/agent/a/to", AL_EXEC_STDIN);
  /* It has the user's rights and groups, nothing open of the agent's, a cgroup of its own, and no memory of the agent's. */
  expect_as(&p, "root",
    "for i in $(seq 200); do for q in /proc/[0-9]*; do grep -qz -- '--unpack' $q/cmdline 2>/dev/null && grep -q '^Uid:.4242' $q/status && break 2; done; sleep .01; done;"
    " grep -E '^(Uid|Gid|Groups|CapEff):' $q/status; ls $q/fd | tr '\\n' ' '; grep -c '^0::/lane/[0-9]*$' $q/cgroup; readlink $q/cwd; tr '\\0' ' ' < $q/environ",
    "Uid:\t4242\t4242\t4242\t4242\nGid:\t4243\t4243\t4243\t4243\nGroups:\t4243 4245 \nCapEff:\t0000000000000000\n0 1 2 3 4 5 1\n/\n"
    "HOME=/home/agent USER=agent LOGNAME=agent SHELL=/bin/dash PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin ");
  peer_send(&p, id, AL_F_DATA, AL_SUB_STDIN, tar.bytes, tar.len);
  peer_send(&p, id, AL_F_END, AL_SUB_STDIN, NULL, 0);
  peer_expect(&p, id, AL_EXIT_CODE, 0, NULL);
  expect_as(&p, "root", "cd /home/agent && stat -c '%U %g %a %n' a a/to a/to/d a/to/d/f a/to/l; find . -name '.agent*'",
    "agent 4243 755 a\nagent 4243 755 a/to\nagent 4243 755 a/to/d\nagent 4243 755 a/to/d/f\nagent 4243 777 a/to/l\n");
  id = unpack(&p, "agent", "tree", "/home/to", AL_EXEC_STDIN);
  peer_expect(&p, id, AL_EXIT_CODE, 1, "/home/to: Permission denied");
  id = unpack(&p, "agent", "file", "/home/agent/a", AL_EXEC_STDIN);
  peer_expect(&p, id, AL_EXIT_CODE, AL_UNPACK_CLASH, "fd");
  peer_expect(&p, unpack(&p, "agent", "tree", NULL, AL_EXEC_STDIN), AL_EXIT_ERROR, EINVAL, NULL);
  peer_expect(&p, unpack(&p, "agent", "tree", "/home/agent/x", AL_EXEC_TTY), AL_EXIT_ERROR, EINVAL, NULL);
  peer_expect(&p, unpack(&p, "agent", "sh", "/home/agent/x", AL_EXEC_STDIN), AL_EXIT_CODE, 2, NULL);
  /* Without a stdin the archive is empty, which it may not be. */
  peer_expect(&p, unpack(&p, "agent", "tree", "/home/agent/x", 0), AL_EXIT_CODE, 1, NULL);
  expect_as(&p, "root", "ls -A /home/agent | tr '\\n' ' '; ls -A /home | grep -c '^[.]agent'; true", "a secret 0\n");
  peer_stop(&p);
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
    cmocka_unit_test(test_unpacking_is_the_users),
    cmocka_unit_test(test_tree_means_whoever_left_the_session_too),
    cmocka_unit_test(test_background_processes_live_on_in_their_own_cgroup),
    cmocka_unit_test(test_eof_ends_every_process),
    cmocka_unit_test(test_eof_powers_off_when_configured),
    cmocka_unit_test(test_needs_root),
  };
  return cmocka_run_group_tests(tests, peer_setup, peer_teardown);
}
