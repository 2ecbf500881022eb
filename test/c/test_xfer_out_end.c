/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of copying out that comes to no good end: full and read-only disks, kills, and what these leave behind. */
#include "xfer_test.h"
#include <sys/file.h>

static void
test_xfer_out_end_disk_failure_leaves_the_target(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  char text[8], with[8];
  if (!mounted(&r, "size=1m")) {
    rig_end(&r);
    skip();
  }
  sh(&r, "head -c 5000000 /dev/zero > big && printf small > little && printf old > small/target");
  copy_out(&r, path(&r, "big"), path(&r, "small/target"), NULL, 0, &o);
  int left = leftovers(path(&r, "small"));
  read_file(path(&r, "small/target"), text, sizeof text);
  sh(&r, "umount small");
  assert_fails(&o, AL_EHOST_DISK_FULL, "space");
  assert_string_equal(text, "old");
  assert_int_equal(left, 0);
  /* A little is left for others. */
  assert_true(mounted(&r, "size=64m"));
  sh(&r, "printf old > small/target && fallocate -l 66100000 small/fill");
  copy_out(&r, path(&r, "little"), path(&r, "small/target"), NULL, 0, &o);
  outcome_t room;
  sh(&r, "rm small/fill && fallocate -l 50000000 small/fill && head -c 40000000 /dev/zero > big");
  copy_out(&r, path(&r, "big"), path(&r, "small/target"), NULL, 0, &room);
  left = leftovers(path(&r, "small"));
  read_file(path(&r, "small/target"), text, sizeof text);
  outcome_t fits;
  copy_out(&r, path(&r, "little"), path(&r, "small/target"), NULL, 0, &fits);
  read_file(path(&r, "small/target"), with, sizeof with);
  sh(&r, "umount small");
  assert_fails(&o, AL_EHOST_DISK_FULL, "left for others");
  assert_fails(&room, AL_EHOST_DISK_FULL, NULL);
  assert_string_equal(text, "old");
  assert_int_equal(left, 0);
  assert_ok(&fits);
  assert_string_equal(with, "small");
  rig_end(&r);
}

static void
test_xfer_out_end_read_only_directory(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  char text[8];
  sh(&r, "printf new > f");
  if (!mounted(&r, "size=1m")) {
    if (geteuid() != 0) {
      sh(&r, "mkdir ro && printf old > ro/target && chmod 555 ro");
      copy_out(&r, path(&r, "f"), path(&r, "ro/target"), NULL, 0, &o);
      sh(&r, "chmod 755 ro && test \"$(cat ro/target)\" = old");
      assert_fails(&o, AL_ECOPY_OUT_FAILED, "denied");
    }
    rig_end(&r);
    if (geteuid() == 0) skip();
    return;
  }
  sh(&r, "printf old > small/target && mkdir small/d && touch small/.agent-lane-0123456789abcdef.tmp && mount -o remount,ro small");
  copy_out(&r, path(&r, "f"), path(&r, "small/target"), NULL, 0, &o);
  read_file(path(&r, "small/target"), text, sizeof text);
  outcome_t deeper;
  copy_out(&r, path(&r, "f"), path(&r, "small/d/e/target"), NULL, 0, &deeper);
  sh(&r, "umount small");
  assert_fails(&o, AL_ECOPY_OUT_FAILED, "Read-only");
  assert_fails(&deeper, AL_ECOPY_OUT_FAILED, "Read-only");
  assert_string_equal(text, "old");
  rig_end(&r);
}

/* Only what a copy may have left, and only when nobody is at work on it. */
static void
test_xfer_out_end_removes_leftovers_and_nothing_else(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  char live[512];
  sh(&r,
    "printf new > f && mkdir t && cd t && touch .agent-lane-0123456789abcdef.tmp .agent-lane-00000000000000ff.tmp && mkdir -p .agent-lane-00000000000000aa.tmp/a/b"
    " && touch .agent-lane-00000000000000aa.tmp/a/f && ln -s /etc .agent-lane-00000000000000aa.tmp/l && chmod 0 .agent-lane-00000000000000aa.tmp/a/b"
    " && touch .agent-lane-0123456789abcdeg.tmp .agent-lane-0123456789ABCDEF.tmp .agent-lane-0123456789abcde.tmp .agent-lane-0123456789abcdef.tmp2 xagent-lane-0123456789abcdef.tmp"
    " .agent-lane-.tmp && ln -s nothing .agent-lane-0000000000000001.tmp && mkfifo .agent-lane-0000000000000002.tmp && touch two && ln two .agent-lane-0000000000000003.tmp"
    " && touch .agent-lane-0000000000000004.tmp && mkdir .agent-lane-0000000000000005.tmp");
  for (int i = 4; i <= 5; i++) {
    snprintf(live, sizeof live, "%s/t/.agent-lane-000000000000000%d.tmp", r.dir, i);
    int fd = open(live, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0); /* another open file of it: as good as another process */
  }
  int others = 10 + 1;
  if (geteuid() == 0) {
    sh(&r, "touch t/.agent-lane-0000000000000006.tmp && chown 12345 t/.agent-lane-0000000000000006.tmp");
    others++;
  }
  copy_out(&r, path(&r, "f"), path(&r, "t/f"), NULL, 0, &o);
  assert_ok(&o);
  sh(&r, "cd t && test ! -e .agent-lane-0123456789abcdef.tmp && test ! -e .agent-lane-00000000000000ff.tmp && test ! -e .agent-lane-00000000000000aa.tmp"
         " && test -L .agent-lane-0000000000000001.tmp && test -p .agent-lane-0000000000000002.tmp && test -f .agent-lane-0000000000000003.tmp && test -f two"
         " && test -f .agent-lane-0000000000000004.tmp && test -d .agent-lane-0000000000000005.tmp && test -f xagent-lane-0123456789abcdef.tmp && test $(ls -A | grep -c tmp) = %d", others);
  rig_end(&r);
}

/* A copy, or a directory, that is under way is nobody's leftover. */
static void
test_xfer_out_end_leaves_other_copies_alone(void **state) {
  (void) state;
  START(r);
  outcome_t big, tree, o;
  sh(&r, "mkdir t g && printf new > f && head -c 100000000 /dev/zero > g/big");
  begin_out(&r, path(&r, "g/big"), path(&r, "t/big"), NULL, 0, &big);
  begin_tree(&r, path(&r, "g"), path(&r, "t/tree"), NULL, &tree);
  for (int i = 0; i < 2000 && leftovers(path(&r, "t")) < 2; i++) rig_idle(&r, 1);
  assert_int_equal(leftovers(path(&r, "t")), 2);
  copy_out(&r, path(&r, "f"), path(&r, "t/f"), NULL, 0, &o);
  assert_ok(&o);
  rig_wait(&r, &big.done, 60000);
  rig_wait(&r, &tree.done, 60000);
  assert_ok(&big);
  assert_ok(&tree);
  sh(&r, "cmp g/big t/big && cmp g/big t/tree/big");
  rig_end(&r);
}

/* A process of its own copies one file, then another, to the same target, again and again. */
static void
copy_for_ever(const char *dir, int ready) {
  rig_t r;
  outcome_t o;
  char from[512], to[512];
  if (!rig_agent_start(&r)) _exit(3);
  al_test_dir_remove(r.dir);
  close(ready);
  snprintf(to, sizeof to, "%s/target/t", dir);
  for (int i = 0;; i++) {
    snprintf(from, sizeof from, "%s/%c", dir, 'a' + i % 2);
    copy_out(&r, from, to, NULL, 0, &o);
    if (o.err.code) _exit(4);
  }
}

static void
test_xfer_out_end_killed_at_any_moment(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  int found = 0, kills = 50;
  unsigned seed = 7;
  sh(&r, "head -c 3000000 /dev/urandom > a && head -c 2500000 /dev/urandom > b && mkdir target && cp a target/t");
  for (int i = 0; i < kills; i++) {
    kill_within(r.dir, copy_for_ever, 60000, &seed);
    found += leftovers(path(&r, "target"));
    sh(&r, "cmp -s a target/t || cmp -s b target/t");
    copy_out(&r, path(&r, "a"), path(&r, "target/other"), NULL, 0, &o);
    assert_ok(&o);
    assert_int_equal(leftovers(path(&r, "target")), 0);
  }
  sh(&r, "test \"$(ls -A target | tr '\\n' ' ')\" = 'other t '");
  print_message("%d kills, %d temporary files found and removed\n", kills, found);
  assert_true(found > 0);
  rig_end(&r);
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_xfer_out_end_disk_failure_leaves_the_target),
    cmocka_unit_test(test_xfer_out_end_read_only_directory),
    cmocka_unit_test(test_xfer_out_end_removes_leftovers_and_nothing_else),
    cmocka_unit_test(test_xfer_out_end_leaves_other_copies_alone),
    cmocka_unit_test(test_xfer_out_end_killed_at_any_moment),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
