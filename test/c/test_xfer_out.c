/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of copying out, against the real lane agent on this machine: roots, links, refusals, cancelling. */
#include "chan_peer.h"
#include "xfer_test.h"

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
    /* What the next copy into that directory would take for a leftover, and remove. */
    { AL_EHOST_PATH_INVALID, "wt/sub/.agent-lane-0123456789abcdef.tmp" },
    { AL_EHOST_PATH_INVALID, "wt/sub/.agent-lane-0123456789abcdef.tmp/x" },
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

/* A root that is given holds whatever repositories there are: within it the nearest one is the root, and outside nothing
 * is. */
static void
test_xfer_out_goes_nowhere_outside_a_root_that_is_given(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  sh(&r,
    "printf new > f && mkdir -p repo/.git repo/out/sub/.git other/.git repo/outer && ln -s sub repo/out/link && ln -s ../other repo/out/door && ln -s out repo/alias");
  static const struct {
    int code;
    const char *path, *root;
  } cases[] = {
    { AL_EHOST_PATH_REFUSED, "other/x", "repo" },
    { AL_EHOST_PATH_REFUSED, "other/new/er/x", "repo" },
    { AL_EHOST_PATH_REFUSED, "repo/x", "repo/out" },
    { AL_EHOST_PATH_REFUSED, "repo/outer/x", "repo/out" },
    { AL_EHOST_PATH_REFUSED, "repo/out", "repo/out" },
    { AL_EHOST_PATH_REFUSED, "repo/alias/x", "repo/out" }, /* a link in a repository is not followed */
    { AL_EHOST_PATH_LINK, "repo/out/link/x", "repo/out" },
    { AL_EHOST_PATH_LINK, "repo/out/door/x", "repo/out" },
    { AL_EHOST_PATH_LINK, "repo/out/door/x", "repo" },
    { 0, "repo/x", "repo" },
    { 0, "repo/out/new/x", "repo/out" },
    { 0, "repo/out/sub/x", "repo/out" },
    { 0, "repo/out/sub/y", "repo/out/sub" },
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char root[512];
    snprintf(root, sizeof root, "%s", path(&r, cases[i].root));
    copy_out(&r, path(&r, "f"), path(&r, cases[i].path), root, 0, &o);
    if (o.err.code != cases[i].code) fail_msg("%s below %s: %s %s", cases[i].path, cases[i].root, al_err_name(o.err.code), o.err.msg);
  }
  sh(&r, "test \"$(find repo other -type f | sort | tr '\\n' ' ')\" = 'repo/out/new/x repo/out/sub/x repo/out/sub/y repo/x '");
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
  sh(&r, "printf new > f && mkdir -p wt/.git wt/d outside/.git && touch wt/d/x && printf safe > outside/x && ln -s ../outside wt/l");
  const pair_t pair = { open_dir(path(&r, "wt")), "d", "l" };
  pid_t racer = start_racer(&pair, 1);
  for (int i = 0; i < 300; i++) {
    copy_out(&r, path(&r, "f"), path(&r, "wt/d/x"), NULL, 0, &o);
    if (!o.err.code) done++;
    else if (o.err.code == AL_EHOST_PATH_LINK) refused++;
  }
  stop_racer(racer);
  close(pair.dir);
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
  const pair_t pairs[] = { { open_dir(path(&r, "g")), "d", "l" }, { open_dir(path(&r, "g/d")), "f", "l" } };
  pid_t racer = start_racer(pairs, 2);
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
  stop_racer(racer);
  close(pairs[0].dir);
  close(pairs[1].dir);
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
    cmocka_unit_test(test_xfer_out_goes_nowhere_outside_a_root_that_is_given),
    cmocka_unit_test(test_xfer_out_mode_follows_the_umask),
    cmocka_unit_test(test_xfer_out_link_race_writes_nothing_outside),
    cmocka_unit_test(test_xfer_out_guest_race_follows_no_link),
    cmocka_unit_test(test_xfer_out_file_that_grows_for_ever_ends),
    cmocka_unit_test(test_xfer_out_root_is_known_by_what_it_is),
    cmocka_unit_test(test_xfer_out_cancel_leaves_the_target),
    cmocka_unit_test(test_xfer_out_believes_no_length),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
