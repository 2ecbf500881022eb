/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of copying out, against the real lane agent on this machine: roots, links, refusals, cancelling. */
#include "chan_peer.h"
#include "xfer_test.h"
#include <sys/file.h>

static void
test_xfer_out_replaces_whole_or_not_at_all(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  char text[64];
  sh(&r, "printf 0123456789 > ten && printf old > target && ln target other");
  copy_out(&r, path(&r, "ten"), path(&r, "target"), NULL, 9, &o);
  assert_fails(&o, AL_EFILE_TOO_LARGE, "larger than 9");
  read_file(path(&r, "target"), text, sizeof text);
  assert_string_equal(text, "old");
  copy_out(&r, path(&r, "ten"), path(&r, "target"), NULL, 10, &o);
  assert_ok(&o);
  read_file(path(&r, "target"), text, sizeof text);
  assert_string_equal(text, "0123456789");
  read_file(path(&r, "other"), text, sizeof text);
  assert_string_equal(text, "old");
  assert_int_equal(leftovers(r.dir), 0);
  rig_end(&r);
}

static void
test_xfer_out_takes_regular_files_only(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  al_xfer_t *x;
  al_err_t err = { 0 };
  sh(&r, "mkdir d && printf x > d/f && ln -s f d/link && ln -s d dlink && mkfifo fifo");
  copy_out(&r, path(&r, "nothing"), path(&r, "t/t"), NULL, 0, &o);
  assert_fails(&o, AL_EGUEST_FILE_MISSING, "nothing");
  copy_out(&r, path(&r, "d/f/below"), path(&r, "t/t"), NULL, 0, &o);
  assert_fails(&o, AL_EGUEST_FILE_MISSING, NULL);
  copy_out(&r, path(&r, "d"), path(&r, "t/t"), NULL, 0, &o);
  assert_fails(&o, AL_ENOT_A_FILE, "directory");
  copy_out(&r, path(&r, "fifo"), path(&r, "t/t"), NULL, 0, &o);
  assert_fails(&o, AL_ENOT_A_FILE, NULL);
  copy_out(&r, "/dev/zero", path(&r, "t/t"), NULL, 0, &o);
  assert_fails(&o, AL_ENOT_A_FILE, NULL);
  copy_out(&r, "/proc/version", path(&r, "t/t"), NULL, 0, &o); /* has contents, but no size */
  assert_fails(&o, AL_ENOT_A_FILE, NULL);
  struct sockaddr_un at = { .sun_family = AF_UNIX };
  snprintf(at.sun_path, sizeof at.sun_path, "%s/socket", r.dir);
  int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(bind(s, (struct sockaddr *) &at, sizeof at), 0);
  close(s);
  copy_out(&r, path(&r, "socket"), path(&r, "t/t"), NULL, 0, &o);
  assert_fails(&o, AL_ENOT_A_FILE, NULL);
  copy_out(&r, path(&r, "d/link"), path(&r, "t/t"), NULL, 0, &o);
  assert_fails(&o, AL_EIS_LINK, NULL);
  copy_out(&r, path(&r, "dlink/f"), path(&r, "t/t"), NULL, 0, &o);
  assert_fails(&o, AL_EIS_LINK, NULL);
  sh(&r, "test ! -e t");
  assert_int_equal(
    al_xfer_out(r.chan, "/x/../y", path(&r, "t"), NULL, NULL, &xfer_cbs, &o, &x, &err), AL_EGUEST_PATH_INVALID);
  assert_int_equal(al_xfer_out(r.chan, "/x/y/", path(&r, "t"), NULL, NULL, &xfer_cbs, &o, &x, &err), AL_EGUEST_PATH_INVALID);
  assert_int_equal(al_xfer_out(r.chan, "/x/y", "t", NULL, NULL, &xfer_cbs, &o, &x, &err), AL_EHOST_PATH_INVALID);
  rig_end(&r);
}

/* One byte longer than a path may be. */
static char *
long_path(const char *base) {
  size_t n = strlen(base);
  char *p = malloc(AL_PATH_MAX + 2);
  assert_non_null(p);
  memset(p, 'x', AL_PATH_MAX + 1);
  memcpy(p, base, n);
  for (size_t i = n; i <= AL_PATH_MAX; i += 200) p[i] = '/';
  p[AL_PATH_MAX] = 'y';
  p[AL_PATH_MAX + 1] = 0;
  return p;
}

static void
test_xfer_out_refuses_bad_targets(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  /* other/ is a repository outside of which the link in the worktree leads into it: its .git must not make it the
   * root. */
  sh(&r,
    "printf new > f && mkdir -p wt/d/.git.d wt/sub other/.git outside && touch wt/.git && ln -s ../outside wt/out && ln -s ../other wt/repo"
    " && printf safe > outside/f && printf safe > other/f && ln -s ../outside/f wt/flink && ln -s ../outside/none wt/dangling && mkfifo wt/fifo && touch wt/plain");
  static const struct {
    int code;
    const char *path;
  } refused[] = {
    { AL_EHOST_PATH_LINK, "wt/out/f" },
    { AL_EHOST_PATH_LINK, "wt/out/new/f" },
    { AL_EHOST_PATH_LINK, "wt/repo/f" },
    { AL_EHOST_PATH_LINK, "wt/repo/new" },
    { AL_EHOST_PATH_LINK, "wt/flink" },
    { AL_EHOST_PATH_LINK, "wt/dangling" },
    { AL_EHOST_PATH_LINK, "wt/dangling/f" },
    { AL_EHOST_PATH_DIRECTORY, "wt/d" },
    { AL_EHOST_PATH_REFUSED, "wt/fifo" },
    { AL_EHOST_PATH_REFUSED, "wt/fifo/f" },
    { AL_EHOST_PATH_REFUSED, "wt/plain/f" },
    { AL_EHOST_PATH_GIT, "wt/.git" },
    { AL_EHOST_PATH_GIT, "wt/.git/hooks/x" },
    { AL_EHOST_PATH_GIT, "wt/.GIT/x" },
    { AL_EHOST_PATH_GIT, "wt/sub/.git/x" },
    { AL_EHOST_PATH_GIT, "wt/sub/.gIt" },
    { AL_EHOST_PATH_GIT, "wt/sub/.git. ./x" },
    { AL_EHOST_PATH_GIT, "wt/sub/.git::$INDEX_ALLOCATION/x" },
    { AL_EHOST_PATH_GIT, "wt/sub/.g\xe2\x80\x8cit/x" },
    { AL_EHOST_PATH_GIT, "other/.git/hooks/h" },
    { AL_EHOST_PATH_GIT, "wt/sub/GIT~1/x" },
    { AL_EHOST_PATH_INVALID, "wt/sub/../x" },
    { AL_EHOST_PATH_INVALID, "wt/.." },
    { AL_EHOST_PATH_INVALID, "wt/." },
    { AL_EHOST_PATH_INVALID, "wt/./x" },
    { AL_EHOST_PATH_INVALID, "wt//..//x" },
    { AL_EHOST_PATH_INVALID, "wt/sub/" },
  };
  for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
    copy_out(&r, path(&r, "f"), path(&r, refused[i].path), NULL, 0, &o);
    if (o.err.code != refused[i].code)
      fail_msg("%s: %s %s", refused[i].path, al_err_name(o.err.code), o.err.msg);
  }
  char *deep = long_path(path(&r, "wt"));
  copy_out(&r, path(&r, "f"), deep, NULL, 0, &o);
  free(deep);
  assert_fails(&o, AL_EHOST_PATH_INVALID, "long");
  sh(&r,
    "test \"$(cat outside/f other/f)\" = safesafe && test ! -e outside/new && test ! -e outside/none && test ! -e other/new && test ! -e wt/sub/.git && test ! -e wt/x");
  assert_int_equal(leftovers(path(&r, "wt")) + leftovers(path(&r, "outside")) + leftovers(path(&r, "other")) +
      leftovers(path(&r, "wt/sub")),
    0);
  rig_end(&r);
}

static void
test_xfer_out_finds_the_root(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  /* Links above the root are the user's own and are followed; Sandcastle's worktree is the root because of its .git
   * file. */
  sh(&r,
    "printf new > f && mkdir -p real/repo/.git real/repo/.sandcastle/worktrees/x && ln -s real alias && echo 'gitdir: y' > real/repo/.sandcastle/worktrees/x/.git"
    " && mkdir -p plain/a elsewhere && ln -s ../elsewhere plain/link");
  copy_out(&r, path(&r, "f"), path(&r, "alias/repo//.sandcastle/worktrees/x/.sandcastle/patches/1/untracked/a b"), NULL,
    0, &o);
  assert_ok(&o);
  sh(&r, "cmp f 'real/repo/.sandcastle/worktrees/x/.sandcastle/patches/1/untracked/a b'");
  copy_out(
    &r, path(&r, "f"), path(&r, "plain/link/x"), NULL, 0, &o); /* no .git, no option: the deepest parent is the root */
  assert_ok(&o);
  sh(&r, "cmp f elsewhere/x && rm elsewhere/x");
  copy_out(&r, path(&r, "f"), path(&r, "plain/link/x"), path(&r, "plain/"), 0, &o);
  assert_fails(&o, AL_EHOST_PATH_LINK, "link");
  copy_out(&r, path(&r, "f"), path(&r, "plain/n/m/x"), path(&r, "plain"), 0, &o);
  assert_ok(&o);
  copy_out(&r, path(&r, "f"), path(&r, "elsewhere/x"), path(&r, "plain"), 0, &o);
  assert_fails(&o, AL_EHOST_PATH_REFUSED, "not below the root");
  sh(&r, "test ! -e elsewhere/x");
  rig_end(&r);
}

static void
test_xfer_out_mode_follows_the_umask(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  struct stat st;
  sh(&r, "printf f > f && chmod 777 f");
  mode_t old = umask(027);
  copy_out(&r, path(&r, "f"), path(&r, "made/g"), NULL, 0, &o);
  umask(old);
  assert_ok(&o);
  assert_int_equal(stat(path(&r, "made/g"), &st), 0);
  assert_int_equal(st.st_mode & 07777, 0640);
  assert_int_equal(stat(path(&r, "made"), &st), 0);
  assert_int_equal(st.st_mode & 07777, 0750);
  rig_end(&r);
}

/* Another process swaps a directory of the target for a link to another repository all the time: whatever happens,
 * nothing is written there. */
static void
test_xfer_out_link_race_writes_nothing_outside(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  int done = 0, refused = 0;
  sh(&r, "printf new > f && mkdir -p wt/.git wt/d outside/.git && touch wt/d/x && printf safe > outside/x");
  char d[512], l[512];
  snprintf(d, sizeof d, "%s", path(&r, "wt/d"));
  snprintf(l, sizeof l, "%s", path(&r, "wt/l"));
  assert_int_equal(symlink("../outside", l), 0);
  pid_t racer = al_test_fork();
  if (racer == 0) {
    while (getppid() != 1) renameat2(AT_FDCWD, d, AT_FDCWD, l, RENAME_EXCHANGE);
    _exit(0);
  }
  for (int i = 0; i < 300; i++) {
    copy_out(&r, path(&r, "f"), path(&r, "wt/d/x"), NULL, 0, &o);
    if (!o.err.code) done++;
    else if (o.err.code == AL_EHOST_PATH_LINK) refused++;
  }
  kill(racer, SIGKILL);
  waitpid(racer, NULL, 0);
  assert_true(done > 0 && refused > 0);
  sh(&r, "test \"$(cat outside/x)\" = safe && test \"$(ls outside)\" = x");
  print_message("%d put in place, %d refused of 300\n", done, refused);
  rig_end(&r);
}

/* Another process swaps the guest's file, and its directory, for links all the time: what they lead to never comes. */
static void
test_xfer_out_guest_race_follows_no_link(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  int done = 0, refused = 0;
  sh(&r, "mkdir -p g/d other && printf good > g/d/f && printf secret > other/f && ln -s ../../other/f g/d/l && ln -s ../other g/l");
  char d[512], l[512], f[512], fl[512];
  snprintf(d, sizeof d, "%s", path(&r, "g/d"));
  snprintf(l, sizeof l, "%s", path(&r, "g/l"));
  snprintf(f, sizeof f, "%s", path(&r, "g/d/f"));
  snprintf(fl, sizeof fl, "%s", path(&r, "g/d/l"));
  pid_t racer = al_test_fork();
  if (racer == 0) {
    while (getppid() != 1) {
      renameat2(AT_FDCWD, d, AT_FDCWD, l, RENAME_EXCHANGE);
      renameat2(AT_FDCWD, f, AT_FDCWD, fl, RENAME_EXCHANGE);
    }
    _exit(0);
  }
  for (int i = 0; i < 2000; i++) {
    char text[16];
    copy_out(&r, path(&r, "g/d/f"), path(&r, "t"), NULL, 0, &o);
    if (o.err.code == AL_EIS_LINK || o.err.code == AL_EGUEST_FILE_MISSING) refused++;
    else assert_ok(&o);
    if (o.err.code) continue;
    read_file(path(&r, "t"), text, sizeof text);
    assert_string_equal(text, "good");
    done++;
  }
  kill(racer, SIGKILL);
  waitpid(racer, NULL, 0);
  assert_true(done > 0 && refused > 0);
  assert_int_equal(leftovers(r.dir), 0);
  print_message("%d copied, %d refused of 2000\n", done, refused);
  rig_end(&r);
}

/* What a file grows by after it was opened does not come. */
static void
test_xfer_out_file_that_grows_for_ever_ends(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  char f[512];
  snprintf(f, sizeof f, "%s", path(&r, "grows"));
  sh(&r, "head -c 1000000 /dev/zero > grows");
  pid_t writer = al_test_fork();
  if (writer == 0) {
    char block[4096] = { 1 };
    int fd = open(f, O_WRONLY | O_APPEND);
    for (int i = 0; i < 25000 && getppid() != 1; i++)
      if (write(fd, block, sizeof block) < 0) _exit(1);
    _exit(0);
  }
  for (int i = 0; i < 5; i++) {
    copy_out(&r, f, path(&r, "t"), NULL, 1ull << 40, &o);
    assert_ok(&o);
    assert_true(o.stats.bytes >= 1000000 && o.stats.bytes < 1ull << 30);
  }
  kill(writer, SIGKILL);
  waitpid(writer, NULL, 0);
  rig_end(&r);
}

/* A file system of its own below "small"; false = it cannot be had here. */
static bool
mounted(const rig_t *r, const char *options) {
  if (geteuid() != 0) return false;
  sh(r, "rm -f nomount; mkdir -p small && mount -t tmpfs -o %s tmpfs small 2>/dev/null || touch nomount", options);
  return access(path(r, "nomount"), F_OK) != 0;
}

static void
test_xfer_out_disk_failure_leaves_the_target(void **state) {
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
test_xfer_out_read_only_directory(void **state) {
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

/* One path has been resolved and the other not, as with /tmp and /var on macOS. */
static void
test_xfer_out_root_is_known_by_what_it_is(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  char to[512], root[512];
  sh(&r, "mkdir -p private/tmp/wt/d && ln -s private/tmp tmp && ln -s ../outside private/tmp/wt/out && mkdir private/tmp/outside && printf new > f");
  snprintf(to, sizeof to, "%s", path(&r, "tmp/wt/d/x"));
  snprintf(root, sizeof root, "%s", path(&r, "private/tmp/wt"));
  copy_out(&r, path(&r, "f"), to, root, 0, &o);
  assert_ok(&o);
  snprintf(to, sizeof to, "%s", path(&r, "private/tmp/wt/d/y"));
  snprintf(root, sizeof root, "%s", path(&r, "tmp/wt/"));
  copy_out(&r, path(&r, "f"), to, root, 0, &o);
  assert_ok(&o);
  snprintf(to, sizeof to, "%s", path(&r, "tmp/wt/out/x"));
  copy_out(&r, path(&r, "f"), to, root, 0, &o);
  assert_fails(&o, AL_EHOST_PATH_LINK, "out");
  snprintf(to, sizeof to, "%s", path(&r, "tmp/other"));
  copy_out(&r, path(&r, "f"), to, root, 0, &o);
  assert_fails(&o, AL_EHOST_PATH_REFUSED, "not below the root");
  copy_out(&r, path(&r, "f"), to, path(&r, "nothing"), 0, &o);
  assert_fails(&o, AL_EHOST_PATH_REFUSED, "not below the root");
  sh(&r, "cmp f tmp/wt/d/x && cmp f tmp/wt/d/y && test -z \"$(ls tmp/outside)\" && test ! -e tmp/other");
  rig_end(&r);
}

/* Only what a copy may have left, and only when nobody is at work on it. */
static void
test_xfer_out_removes_leftovers_and_nothing_else(void **state) {
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
test_xfer_out_leaves_other_copies_alone(void **state) {
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
test_xfer_out_killed_at_any_moment(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  int found = 0, kills = 50;
  unsigned seed = 7;
  sh(&r, "head -c 3000000 /dev/urandom > a && head -c 2500000 /dev/urandom > b && mkdir target && cp a target/t");
  for (int i = 0; i < kills; i++) {
    int status, ready[2];
    char byte;
    assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
    pid_t pid = al_test_fork();
    if (pid == 0) copy_for_ever(r.dir, ready[1]);
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 0);
    close(ready[0]);
    usleep((useconds_t) (rand_r(&seed) % 60000));
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    assert_true(WIFSIGNALED(status));
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

static void
test_xfer_out_cancel_leaves_the_target(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  sh(&r, "head -c 150000000 /dev/zero > big && printf old > target");
  cancel_half_way(&r, begin_out(&r, path(&r, "big"), path(&r, "target"), NULL, 0, &o), &o);
  rig_end(&r);
}

/* A guest that says it sent more, or less, or that the file's end was an error, has not sent the file. */
static void
test_xfer_out_believes_no_length(void **state) {
  (void) state;
  for (int how = 0; how < 3; how++) {
    rig_t r;
    al_frame_t f;
    outcome_t o;
    uint8_t end[24] = { 0 };
    peer_ready(&r, NULL);
    al_test_dir(r.dir);
    sh(&r, "printf old > target");
    begin_out(&r, "/f", path(&r, "target"), NULL, 0, &o);
    expect(&r, &f, AL_F_READ);
    put(&r, 1, AL_F_DATA, 1, "abc", 3);
    put(&r, 1, AL_F_END, 1, NULL, 0);
    al_put32(end + 4, how == 2 ? 1 : 0);
    al_put64(end + 16, how == 0 ? 4 : how == 1 ? 2 : 3);
    put(&r, 1, AL_F_EXIT, 0, end, sizeof end);
    rig_wait(&r, &o.done, 2000);
    assert_fails(&o, AL_ECOPY_OUT_FAILED, how == 2 ? "status 1" : "incomplete");
    assert_target_kept(&r);
    rig_end(&r);
  }
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_xfer_out_replaces_whole_or_not_at_all),
    cmocka_unit_test(test_xfer_out_takes_regular_files_only),
    cmocka_unit_test(test_xfer_out_refuses_bad_targets),
    cmocka_unit_test(test_xfer_out_finds_the_root),
    cmocka_unit_test(test_xfer_out_mode_follows_the_umask),
    cmocka_unit_test(test_xfer_out_link_race_writes_nothing_outside),
    cmocka_unit_test(test_xfer_out_guest_race_follows_no_link),
    cmocka_unit_test(test_xfer_out_file_that_grows_for_ever_ends),
    cmocka_unit_test(test_xfer_out_disk_failure_leaves_the_target),
    cmocka_unit_test(test_xfer_out_read_only_directory),
    cmocka_unit_test(test_xfer_out_root_is_known_by_what_it_is),
    cmocka_unit_test(test_xfer_out_removes_leftovers_and_nothing_else),
    cmocka_unit_test(test_xfer_out_leaves_other_copies_alone),
    cmocka_unit_test(test_xfer_out_killed_at_any_moment),
    cmocka_unit_test(test_xfer_out_cancel_leaves_the_target),
    cmocka_unit_test(test_xfer_out_believes_no_length),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
