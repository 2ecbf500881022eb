/* SPDX-License-Identifier: Apache-2.0 */
/* Attached agents beside the owner's, as local processes: who is let in, whose end ends what. */
#include "agent_host.h"
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

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_attach_runs_beside_the_owner_and_leaves_alone),
    cmocka_unit_test(test_attach_violation_is_the_attached_ones_alone),
    cmocka_unit_test(test_attach_ends_with_the_owner),
    cmocka_unit_test(test_attach_without_an_owner_is_refused),
    cmocka_unit_test(test_attach_places_are_bounded_and_come_back),
    cmocka_unit_test(test_attach_socket_is_the_owners_only),
  };
  return cmocka_run_group_tests(tests, peer_setup, peer_teardown);
}
