/* SPDX-License-Identifier: Apache-2.0 */
/* Attached agents beside the owner's, as local processes: who is let in, whose end ends what. */
#include "agent_jail.h"
#include <sys/stat.h>

#define PLACES 8
#define STREAMS 16

static void
attach(peer_t *p) {
  const char *args[] = {"agent", "--local", "--attach", "--secret", peer_path("secret"), NULL};
  peer_start_with(p, args, NULL);
}

static void
configure(peer_t *p) {
  al_frame_t f;
  peer_tlvs.len = 0;
  tlv_text(&peer_tlvs, AL_TLV_PATH, peer_path("tree"));
  peer_send(p, 0, AL_F_CONFIG, 0, peer_tlvs.bytes, peer_tlvs.len);
  do assert_int_equal(peer_next(p, &f, PEER_WAIT_MS), 1);
  while (f.type == AL_F_ACK);
  assert_int_equal(f.type, AL_F_CONFIG_ACK);
  assert_int_equal(al_get32(f.payload), 0);
}

static void
own(peer_t *p) {
  peer_start(p);
  peer_hello(p);
  configure(p);
}

static void
refused(void) {
  peer_t p;
  attach(&p);
  peer_hello_range(&p, 1, 1, AL_PROTO_MAGIC);
  peer_expect_reject(&p, 4);
}

static void
test_attach_runs_beside_the_owner_and_leaves_alone(void **state) {
  (void) state;
  peer_t owner, guest;
  own(&owner);
  uint32_t id = peer_exec(&owner, AL_EXEC_STDIN, "cat; echo end");
  attach(&guest);
  peer_hello(&guest);
  char tree[128];
  snprintf(tree, sizeof(tree), "%s\n", peer_path("tree"));
  peer_expect(&guest, peer_exec(&guest, 0, "pwd"), AL_EXIT_CODE, 0, tree); /* the owner's worktree */
  uint32_t theirs = peer_exec(&guest, 0, "echo $$; exec sleep 60");
  al_frame_t f;
  do assert_int_equal(peer_next(&guest, &f, PEER_WAIT_MS), 1);
  while (f.type != AL_F_DATA || f.stream != theirs);
  pid_t pid = (pid_t) atoi((const char *) f.payload);
  assert_true(pid > 1);
  peer_stop(&guest); /* its EOF ends its own */
  assert_true(peer_gone(pid, PEER_WAIT_MS));
  peer_send(&owner, id, AL_F_DATA, AL_SUB_STDIN, "still here\n", 11);
  peer_send(&owner, id, AL_F_END, AL_SUB_STDIN, NULL, 0);
  peer_expect(&owner, id, AL_EXIT_CODE, 0, "still here\nend\n");
  peer_stop(&owner);
}

static void
test_attach_violation_is_the_attached_ones_alone(void **state) {
  (void) state;
  peer_t owner, guest;
  own(&owner);
  attach(&guest);
  peer_hello(&guest);
  peer_send(&guest, 9, AL_F_DATA, 0, "x", 1);
  peer_expect_reject(&guest, 3);
  attach(&guest);
  peer_hello(&guest);
  peer_send(&guest, 0, AL_F_CONFIG, 0, NULL, 0); /* the lane is its owner's to configure */
  peer_expect_reject(&guest, 3);
  attach(&guest);
  peer_hello(&guest);
  for (int i = 0; i < STREAMS; i++) peer_exec(&guest, 0, "sleep 60");
  peer_ping(&guest);
  peer_exec(&guest, 0, "sleep 60"); /* one too many */
  peer_expect_reject(&guest, 3);
  peer_expect(&owner, peer_exec(&owner, 0, "echo fine"), AL_EXIT_CODE, 0, "fine\n");
  peer_stop(&owner);
}

static void
test_attach_ends_with_the_owner(void **state) {
  (void) state;
  for (int killed = 0; killed < 2; killed++) {
    peer_t owner, guest;
    own(&owner);
    attach(&guest);
    peer_hello(&guest);
    uint32_t id = peer_exec(&guest, 0, "echo $$; exec sleep 60");
    al_frame_t f;
    do assert_int_equal(peer_next(&guest, &f, PEER_WAIT_MS), 1);
    while (f.type != AL_F_DATA || f.stream != id);
    pid_t pid = (pid_t) atoi((const char *) f.payload);
    if (killed) {
      kill(owner.pid, SIGKILL);
      assert_int_equal(peer_wait(&owner), 256 + SIGKILL);
    } else {
      peer_stop(&owner);
    }
    int got;
    while ((got = peer_next(&guest, &f, PEER_WAIT_MS)) == 1) continue;
    assert_int_equal(got, -1); /* of itself, before we let it go */
    assert_int_equal(peer_wait(&guest), 0);
    assert_true(peer_gone(pid, PEER_WAIT_MS));
  }
}

static void
test_attach_without_an_owner_is_refused(void **state) {
  (void) state;
  peer_t owner, guest;
  unlink(peer_path("attach"));
  refused();
  peer_start(&owner);
  peer_hello(&owner);
  refused(); /* not configured yet */
  configure(&owner);
  attach(&guest);
  peer_hello(&guest);
  peer_expect(&guest, peer_exec(&guest, 0, "echo in"), AL_EXIT_CODE, 0, "in\n");
  peer_stop(&guest);
  peer_stop(&owner);
  refused(); /* the socket's file is left, but nobody listens */
}

static void
test_attach_places_are_bounded_and_come_back(void **state) {
  (void) state;
  peer_t owner;
  static peer_t guests[PLACES];
  own(&owner);
  for (int round = 0; round < 3; round++) {
    for (int i = 0; i < PLACES; i++) {
      attach(&guests[i]);
      peer_hello(&guests[i]);
    }
    peer_t p;
    attach(&p);
    peer_hello_range(&p, 1, 1, AL_PROTO_MAGIC);
    peer_expect_reject(&p, 4);
    assert_non_null(strstr(p.reject_text, "as many as may be"));
    peer_stop(&guests[3]);
    for (int i = 0; i < 200; i++) usleep(1000); /* the owner's agent has to see it go */
    attach(&guests[3]);
    peer_hello(&guests[3]);
    peer_expect(&guests[3], peer_exec(&guests[3], 0, "echo in"), AL_EXIT_CODE, 0, "in\n");
    for (int i = 0; i < PLACES; i++) peer_stop(&guests[i]);
    for (int i = 0; i < 200; i++) usleep(1000);
  }
  char path[64];
  snprintf(path, sizeof(path), "ls /proc/%d/fd | wc -l", (int) owner.pid);
  result_t r;
  peer_result(&owner, peer_exec(&owner, 0, path), &r);
  assert_true(atoi(r.out) < 20);
  free(r.out);
  peer_stop(&owner);
}

static void
test_attach_socket_is_the_owners_only(void **state) {
  (void) state;
  peer_t owner;
  struct stat st;
  own(&owner);
  assert_int_equal(stat(peer_path("attach"), &st), 0);
  assert_int_equal(st.st_mode & 0777, 0600);
  peer_stop(&owner);
}

static uint32_t
exec_missing(peer_t *p) {
  peer_tlvs.len = 0;
  tlv_text(&peer_tlvs, AL_TLV_ARG, "no-such-program");
  return peer_exec_tlvs(p, &peer_tlvs, AL_FRAME_MAX);
}

/* As many commands as one may have; they end of themselves when the agent is gone. */
static void
fill_streams(peer_t *p) {
  for (int i = 0; i < STREAMS; i++) peer_exec(p, AL_EXEC_STDIN, "exec cat");
  peer_ping(p);
}

static int
end_of_kind(peer_t *p, int kind) {
  const uint8_t half[] = {1, 0, 0};
  switch (kind) {
  /* Its output is not looked at: AddressSanitizer has the forked agent say a word when no program comes of it. */
  case 0: peer_expect(p, exec_missing(p), AL_EXIT_ERROR, ENOENT, NULL); break;
  case 1: peer_send(p, peer_exec(p, AL_EXEC_STDIN, "exec cat"), AL_F_RESET, 0, NULL, 0); break;
  case 2: assert_int_equal(send(p->fd, half, sizeof(half), MSG_NOSIGNAL), sizeof(half)); break; /* of a frame */
  case 3: fill_streams(p); break;
  case 4: peer_send(p, 0, AL_F_CONFIG, 0, NULL, 0); return 1;
  case 5: fill_streams(p); kill(p->pid, SIGKILL); return 256 + SIGKILL;
  case 6: kill(p->pid, SIGTERM); return 0;
  default: p->no_credit = true; peer_exec(p, 0, "exec yes"); usleep(50000); break; /* output that nobody takes */
  }
  shutdown(p->fd, SHUT_WR);
  return 0;
}

static void
test_attach_every_end_gives_place_and_streams_back(void **state) {
  (void) state;
  peer_t owner;
  static peer_t guests[PLACES];
  own(&owner);
  for (int round = 0; round < 2; round++) {
    attach(&guests[0]);
    peer_stop(&guests[0]); /* before HELLO */
    for (int i = 0; i < PLACES; i++) {
      attach(&guests[i]);
      peer_hello(&guests[i]);
    }
    for (int i = 0; i < PLACES; i++) {
      int code = end_of_kind(&guests[i], i);
      assert_int_equal(peer_wait(&guests[i]), code);
    }
  }
  for (int i = 0; i < PLACES; i++) {
    attach(&guests[i]);
    peer_hello(&guests[i]);
    peer_expect(&guests[i], peer_exec(&guests[i], 0, "echo in"), AL_EXIT_CODE, 0, "in\n");
  }
  fill_streams(&guests[0]);
  for (uint32_t id = 2; id < 2 + STREAMS; id++) peer_send(&guests[0], id, AL_F_RESET, 0, NULL, 0);
  fill_streams(&guests[0]);
  for (int i = 0; i < PLACES; i++) peer_stop(&guests[i]);
  peer_stop(&owner);
}

static void
test_attach_waits_a_moment_for_a_place(void **state) {
  (void) state;
  peer_t owner, ninth;
  al_frame_t f;
  static peer_t guests[PLACES];
  own(&owner);
  for (int i = 0; i < PLACES; i++) {
    attach(&guests[i]);
    peer_hello(&guests[i]);
  }
  attach(&ninth);
  peer_hello_range(&ninth, 1, 1, AL_PROTO_MAGIC);
  assert_int_equal(peer_next(&ninth, &f, 300), 0);
  peer_stop(&guests[5]);
  assert_int_equal(peer_next(&ninth, &f, PEER_WAIT_MS), 1);
  assert_int_equal(f.type, AL_F_HELLO_ACK);
  attach(&guests[5]);
  peer_hello_range(&guests[5], 1, 1, AL_PROTO_MAGIC);
  assert_int_equal(peer_next(&guests[5], &f, 300), 0);
  peer_stop(&guests[5]); /* its host goes while it waits */
  peer_expect(&ninth, peer_exec(&ninth, 0, "echo in"), AL_EXIT_CODE, 0, "in\n");
  for (int i = 0; i < PLACES; i++)
    if (i != 5) peer_stop(&guests[i]);
  peer_stop(&ninth);
  peer_stop(&owner);
}

/* More than its backlog holds: those wait in connect. */
static void
test_attach_to_an_owner_that_stands_still_ends(void **state) {
  (void) state;
  peer_t owner, guest;
  static peer_t guests[PLACES + 4];
  own(&owner);
  kill(owner.pid, SIGSTOP);
  for (int i = 0; i < PLACES + 4; i++) {
    attach(&guests[i]);
    peer_hello_range(&guests[i], 1, 1, AL_PROTO_MAGIC);
  }
  for (int i = 0; i < PLACES + 4; i++) peer_expect_reject(&guests[i], 4);
  kill(owner.pid, SIGCONT);
  attach(&guest);
  peer_hello(&guest);
  peer_expect(&guest, peer_exec(&guest, 0, "echo in"), AL_EXIT_CODE, 0, "in\n");
  peer_stop(&guest);
  peer_stop(&owner);
}

static void
test_attach_to_an_owner_whose_host_takes_nothing(void **state) {
  (void) state;
  peer_t owner, guest;
  own(&owner);
  owner.no_ack = owner.no_credit = true;
  for (int i = 0; i < 4; i++) peer_exec(&owner, 0, "exec yes");
  usleep(200000);
  attach(&guest);
  peer_hello(&guest);
  peer_expect(&guest, peer_exec(&guest, 0, "echo in"), AL_EXIT_CODE, 0, "in\n");
  peer_stop(&guest);
  peer_stop(&owner);
}

static pid_t
only_child(pid_t pid) {
  char path[64], text[32] = "";
  snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int) pid, (int) pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t n = fd >= 0 ? read(fd, text, sizeof(text) - 1) : 0;
  close(fd);
  return n > 0 ? (pid_t) atoi(text) : -1;
}

/* Into the jail of the owner's agent, whose first process is the outer one's child. */
static pid_t jailed;
static int
visit(void) {
  static const char *const spaces[] = {"cgroup", "pid", "mnt"};
  char path[64], cwd[1024];
  int fds[3], status;
  if (getcwd(cwd, sizeof(cwd)) == NULL) return -1;
  for (int i = 0; i < 3; i++) {
    snprintf(path, sizeof(path), "/proc/%d/ns/%s", (int) only_child(jailed), spaces[i]);
    fds[i] = open(path, O_RDONLY | O_CLOEXEC);
  }
  for (int i = 0; i < 3; i++)
    if (setns(fds[i], 0) != 0) return -1;
  if (chdir(cwd) != 0) return -1;
  pid_t pid = fork();
  if (pid <= 0) return pid;
  close(0);
  close(1);
  waitpid(pid, &status, 0);
  _exit(WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status) + 100);
}

static void
test_attach_that_is_killed_leaves_no_command(void **state) {
  (void) state;
  peer_t owner, guest;
  start(&owner);
  config(&owner, "agent", NULL, 0, 0);
  jailed = owner.pid;
  const char *args[] = {"agent", "--attach", "--secret", peer_path("secret"), NULL};
  for (int round = 0; round < PLACES + 1; round++) {
    peer_start_with(&guest, args, visit);
    peer_hello(&guest);
    exec_as(&guest, "agent", "setsid sleep 61 & echo up; sleep 62");
    await_data(&guest);
    expect_sleeps(&owner, "2\n");
    expect_as(&owner, "root", "kill -9 $(pgrep -f -- '^agent --attach')", "");
    assert_int_equal(peer_wait(&guest), 100 + SIGKILL);
    expect_sleeps(&owner, "0\n");
  }
  peer_start_with(&guest, args, visit);
  peer_hello(&guest);
  expect_as(&guest, "agent", "echo fine", "fine\n");
  peer_stop(&guest);
  peer_stop(&owner);
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_attach_runs_beside_the_owner_and_leaves_alone),
    cmocka_unit_test(test_attach_violation_is_the_attached_ones_alone),
    cmocka_unit_test(test_attach_ends_with_the_owner),
    cmocka_unit_test(test_attach_without_an_owner_is_refused),
    cmocka_unit_test(test_attach_places_are_bounded_and_come_back),
    cmocka_unit_test(test_attach_socket_is_the_owners_only),
    cmocka_unit_test(test_attach_every_end_gives_place_and_streams_back),
    cmocka_unit_test(test_attach_waits_a_moment_for_a_place),
    cmocka_unit_test(test_attach_to_an_owner_that_stands_still_ends),
    cmocka_unit_test(test_attach_to_an_owner_whose_host_takes_nothing),
    cmocka_unit_test(test_attach_that_is_killed_leaves_no_command),
  };
  return cmocka_run_group_tests(tests, peer_setup, peer_teardown);
}
