/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of copying in, against the real lane agent on this machine: trees, files, refusals, cancelling. */
#include "xfer_test.h"
#include <fcntl.h>

/* In libc's place: a host's disk that takes its time (an automounted home, a sleeping disk). */
static volatile unsigned slow_ms;

int
stat(const char *restrict name, struct stat *restrict st) {
  if (slow_ms) usleep(slow_ms * 1000);
  return fstatat(AT_FDCWD, name, st, 0);
}

static void
test_xfer_in_tree_keeps_everything(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  sh(&r,
    "mkdir -p from/a/b 'from/with space' from/empty && printf one > from/a/one && chmod 751 from/a/one && ln -s ../nowhere from/a/dangling"
    " && ln from/a/one from/a/b/hard && printf x > 'from/with space/n\xc3\xa4me' && printf y > \"$(printf 'from/bad\\377name')\" && chmod 2770 from/a/b"
    " && touch -d '2001-02-03 04:05:06' from/a/one from/empty && truncate -s 50M from/sparse && printf end >> from/sparse"
    " && mkdir -p from/$(printf 'd%%.0s' $(seq 120))/$(printf 'e%%.0s' $(seq 120)) && printf deep > from/$(printf 'd%%.0s' $(seq 120))/$(printf 'e%%.0s' $(seq 120))/f"
    " && touch -d '2010-01-01' from && mkdir -p to && printf old > to/kept && mkdir to/a && printf oldone > to/a/one");
  copy_in(&r, path(&r, "from"), path(&r, "to"), &o);
  assert_ok(&o);
  assert_int_equal(o.stats.bytes, (50u << 20) + 3 + 3 + 1 + 1 + 4);
  sh(&r,
    "test \"$(stat -c %%y to)\" = \"$(stat -c %%y from)\" && test \"$(cat to/kept)\" = old && rm to/kept && touch -r from to && diff -r --no-dereference from to");
  sh(&r,
    "for d in from to; do (cd $d && find . -printf '%%p %%m %%l %%n %%T@ %%y\\n' | grep -av '^./sparse ' | sort) > $d.list; done; diff from.list to.list");
  sh(&r,
    "test \"$(stat -c %%i to/a/one)\" = \"$(stat -c %%i to/a/b/hard)\" && test \"$(du -k to/sparse | cut -f1)\" -lt 1024");
  rig_end(&r);
}

static void
test_xfer_in_file_is_put_in_place_whole(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  sh(&r,
    "printf new > f && chmod 640 f && touch -d '2001-02-03 04:05:06' f && mkdir -p x && printf old > x/victim && ln -s victim x/link && ln -s f rootlink");
  copy_in(&r, path(&r, "f"), path(&r, "deep/er/g with space"), &o);
  assert_ok(&o);
  assert_int_equal(o.stats.files, 1);
  sh(&r,
    "cmp f 'deep/er/g with space' && test \"$(stat -c '%%a %%y' 'deep/er/g with space')\" = \"$(stat -c '%%a %%y' f)\"");
  copy_in(&r, path(&r, "rootlink"), path(&r, "x/link"), &o); /* the root is followed, the target is replaced */
  assert_ok(&o);
  sh(&r, "test ! -L x/link && cmp f x/link && test \"$(cat x/victim)\" = old");
  sh(&r, "mkdir -p led/to from && ln -s led/to dlink && printf a > led/to/kept && printf b > from/new");
  copy_in(&r, path(&r, "from"), path(&r, "dlink"), &o); /* a directory's target is followed too */
  assert_ok(&o);
  sh(&r, "test -L dlink && test \"$(cat led/to/kept led/to/new)\" = ab && test -z \"$(find led -name '.agent-lane*')\"");
  copy_in(&r, path(&r, "f"), path(&r, "$(touch pwned)'\";touch pwned;-x"), &o);
  assert_ok(&o);
  sh(&r, "test ! -e pwned");
  assert_int_equal(leftovers(path(&r, "deep/er")) + leftovers(path(&r, "x")) + leftovers(r.dir), 0);
  rig_end(&r);
}

/* What the guest has: type, name, mode, time, content. */
#define SNAP "(find to outside -printf '%%p %%y %%m %%T@ %%l\\n' | sort; find to outside -type f -exec cat {} +)"

static void
test_xfer_in_clash_names_both_and_changes_nothing(void **state) {
  (void) state;
  START(r);
  static const struct { const char *to, *from, *comes, *is, *at; } clashes[] = {
    { "mkdir -p to/d", "mkdir from && printf f > from/d", "a file", "a directory", "/d" },
    { "mkdir -p to/d", "mkdir from && ln -s x from/d", "a link", "a directory", "/d" },
    { "mkdir -p to && printf f > to/d", "mkdir -p from/d", "a directory", "a file", "/d" },
    { "mkdir -p to/e && ln -s ../../outside to/e/d", "mkdir -p from/e/d && printf f > from/e/d/f", "a directory",
      "a link", "/e/d" },
    { "mkdir -p to && mkfifo to/d", "mkdir -p from/d", "a directory", "no file", "/d" },
    { "mkdir -p to", "printf f > from", "a file", "a directory", "" },
    { "printf f > to", "mkdir from", "a directory", "a file", "" },
    { "ln -s nothing to", "mkdir from && printf f > from/x", "a directory", "a link", "" },
  };
  for (size_t i = 0; i < sizeof clashes / sizeof clashes[0]; i++) {
    outcome_t o;
    char text[256];
    sh(&r, "rm -rf to from outside && mkdir outside && %s && %s && if test -d from -a -d to; then printf new > from/a && printf new > from/z && printf old > to/z; fi",
      clashes[i].to, clashes[i].from);
    sh(&r, SNAP " > before; true");
    copy_in(&r, path(&r, "from"), path(&r, "to"), &o);
    snprintf(text, sizeof text, "from%s is %s and %s", clashes[i].at, clashes[i].comes, r.dir);
    assert_fails(&o, AL_ECOPY_IN_FAILED, text);
    snprintf(text, sizeof text, "/to%s in the guest is %s", clashes[i].at, clashes[i].is);
    assert_fails(&o, AL_ECOPY_IN_FAILED, text);
    sh(&r, SNAP " > after; cmp before after");
    assert_int_equal(leftovers(r.dir), 0);
  }
  rig_end(&r);
}

static void
test_xfer_in_merges(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  sh(&r,
    "mkdir -p from/d/sub from/new/deep from/ro to/d/old outside && printf new > from/d/f && printf new > from/g && printf new > from/new/deep/x"
    " && printf new > from/ro/f && chmod 555 from/ro from/new && printf old > to/d/f && printf old > to/d/kept && printf safe > outside/f"
    " && ln -s ../outside/f to/g && chmod 700 to/d && chmod 755 from/d && touch -d 2001-01-01 from/d from/new from && mkfifo to/p && printf new > from/p");
  copy_in(&r, path(&r, "from"), path(&r, "to"), &o);
  assert_ok(&o);
  sh(&r,
    "test \"$(cat outside/f)\" = safe && test ! -L to/g && test \"$(cat to/d/f to/g to/d/kept to/new/deep/x to/ro/f to/p)\" = newnewoldnewnewnew && test -d to/d/old");
  sh(&r,
    "for i in . d new ro d/f; do test \"$(stat -c '%%a %%y' to/$i)\" = \"$(stat -c '%%a %%y' from/$i)\" || exit 1; done; chmod 755 from/ro from/new to/ro to/new");
  assert_int_equal(leftovers(r.dir) + leftovers(path(&r, "to")), 0);
  rig_end(&r);
}

/* Copies into one directory at the same time: what one makes and another one too is merged, whoever comes first. */
static void
test_xfer_in_merges_with_others_at_work(void **state) {
  (void) state;
  START(r);
  enum { COPIES = 6 };
  outcome_t o[COPIES];
  char from[32];
  sh(&r, "for k in 0 1 2 3 4 5; do for i in $(seq 300); do mkdir -p from$k/d$i/e && : > from$k/d$i/e/own$k; done; done");
  for (int round = 0; round < 5; round++) {
    sh(&r, "rm -rf to && mkdir to");
    for (int k = 0; k < COPIES; k++) {
      snprintf(from, sizeof from, "from%d", k);
      begin_in(&r, path(&r, from), path(&r, "to"), &o[k]);
    }
    for (int k = 0; k < COPIES; k++) {
      rig_wait(&r, &o[k].done, 60000);
      assert_ok(&o[k]);
    }
    sh(&r, "test $(find to -type f | wc -l) = 1800");
    assert_int_equal(leftovers(r.dir), 0);
  }
  rig_end(&r);
}

static void
test_xfer_in_names_what_is_wrong(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  al_xfer_t *x;
  al_err_t err = { 0 };
  copy_in(&r, path(&r, "missing"), path(&r, "to"), &o);
  assert_fails(&o, AL_ESOURCE_MISSING, "missing");
  sh(&r, "mkdir -p from/sub && mkfifo from/sub/fifo && printf old > old && mkdir isdir && printf f > f && mkdir sock");
  copy_in(&r, path(&r, "from"), path(&r, "to"), &o);
  assert_fails(&o, AL_ESOURCE_UNSUPPORTED, "from/sub/fifo: is a FIFO");
  copy_in(&r, path(&r, "from/sub/fifo"), path(&r, "to"), &o);
  assert_fails(&o, AL_ESOURCE_UNSUPPORTED, "fifo");
  copy_in(&r, "/dev/null", path(&r, "to"), &o);
  assert_fails(&o, AL_ESOURCE_UNSUPPORTED, "/dev/null");
  struct sockaddr_un a = { .sun_family = AF_UNIX };
  snprintf(a.sun_path, sizeof a.sun_path, "%s", path(&r, "sock/s"));
  int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  assert_int_equal(bind(fd, (struct sockaddr *) &a, sizeof a), 0);
  copy_in(&r, path(&r, "sock"), path(&r, "to2"), &o);
  assert_fails(&o, AL_ESOURCE_UNSUPPORTED, "sock/s: is a socket");
  close(fd);
  copy_in(&r, path(&r, "f"), path(&r, "isdir"), &o);
  assert_fails(&o, AL_ECOPY_IN_FAILED, "directory");
  copy_in(&r, path(&r, "f"), path(&r, "old/below"), &o);
  assert_fails(&o, AL_ECOPY_IN_FAILED, "old");
  assert_int_equal(al_xfer_in(r.chan, path(&r, "f"), "relative", NULL, &xfer_cbs, &o, &x, &err), AL_EGUEST_PATH_INVALID);
  assert_int_equal(al_xfer_in(r.chan, path(&r, "f"), "/a/../b", NULL, &xfer_cbs, &o, &x, &err), AL_EGUEST_PATH_INVALID);
  assert_int_equal(
    al_xfer_in(r.chan, path(&r, "f"), path(&r, ".agent-lane-0123456789abcdef.tmp/x"), NULL, &xfer_cbs, &o, &x, &err), AL_EGUEST_PATH_INVALID);
  assert_int_equal(leftovers(r.dir) + leftovers(path(&r, "isdir")), 0);
  rig_end(&r);
}

static void
test_xfer_in_unreadable_is_named(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  sh(&r, "mkdir -p from/d && printf x > from/d/secret && chmod 0 from/d/secret && chmod 755 .");
  if (geteuid() == 0) assert_int_equal(seteuid(65534), 0); /* threads made from here on have it too */
  copy_in(&r, path(&r, "from"), path(&r, "to"), &o);
  if (getuid() == 0) assert_int_equal(seteuid(0), 0);
  assert_fails(&o, AL_ESOURCE_UNREADABLE, "from/d/secret: Permission denied");
  rig_end(&r);
}

/* A file that changes when the reader, whose buffers are bounded, has got somewhere into it. */
static void
change_half_way(rig_t *r, const char *how, outcome_t *o) {
  al_xfer_t *x;
  memset(o, 0, sizeof *o);
  sh(r, "head -c 30000000 /dev/urandom > big && printf old > target && cp big was");
  kill(r->agent, SIGSTOP);
  assert_int_equal(al_xfer_in(r->chan, path(r, "big"), path(r, "target"), NULL, &xfer_cbs, o, &x, &o->err), 0);
  rig_idle(r, 200);
  sh(r, "%s", how);
  kill(r->agent, SIGCONT);
  rig_wait(r, &o->done, 10000);
  assert_ok(o);
  assert_int_equal(o->stats.changed, 1);
  assert_string_equal(o->stats.changed_path, path(r, "big"));
  assert_int_equal(o->stats.bytes, 30000000);
  assert_int_equal(o->stats.total, 30000000);
}

static void
test_xfer_in_file_that_changes_keeps_its_size_and_is_told(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  change_half_way(&r, "truncate -s 4000000 big", &o);
  sh(&r,
    "test $(stat -c %%s target) = 30000000 && cmp -n 4000000 target was && tail -c +4000001 target > rest && head -c 26000000 /dev/zero | cmp - rest");
  change_half_way(&r, "cat was >> big", &o);
  sh(&r, "cmp target was");
  sh(&r, "rm -rf d && mkdir d && printf x > d/f");
  copy_in(&r, path(&r, "d"), path(&r, "to"), &o);
  assert_ok(&o);
  assert_int_equal(o.stats.changed, 0);
  assert_string_equal(o.stats.changed_path, "");
  /* As if it had grown: it is empty, and has a content. */
  copy_in(&r, "/proc/version", path(&r, "version"), &o);
  assert_ok(&o);
  assert_int_equal(o.stats.changed, 1);
  assert_string_equal(o.stats.changed_path, "/proc/version");
  rig_end(&r);
}

/* What it has not put in place, under the name that the next copy would remove. */
static void
test_xfer_in_leaves_out_what_a_copy_out_has_left(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  sh(&r, "mkdir -p from/.agent-lane-00000000000000aa.tmp/d from/sub && printf half > from/sub/.agent-lane-0123456789abcdef.tmp && printf f > from/sub/f"
         " && printf f > from/sub/.agent-lane-0123456789abcdeg.tmp");
  copy_in(&r, path(&r, "from"), path(&r, "to"), &o);
  assert_ok(&o);
  assert_int_equal(o.stats.files, 4);
  sh(&r, "rm -r from/.agent-lane-00000000000000aa.tmp from/sub/.agent-lane-0123456789abcdef.tmp && diff -r from to");
  rig_end(&r);
}

/* It is told before the walk finds what is too large to be copied. */
static void
test_xfer_in_total_is_no_nonsense(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  if (!mounted(&r, "size=1m")) {
    rig_end(&r);
    skip();
  }
  sh(&r, "printf x > small/first && truncate -s 4E small/g small/h small/i");
  copy_in(&r, path(&r, "small"), path(&r, "to"), &o);
  sh(&r, "umount small");
  assert_fails(&o, AL_ESOURCE_UNSUPPORTED, "pebibyte");
  assert_true(o.stats.total <= 1);
  rig_end(&r);
}

static void
test_xfer_in_leaves_out_what_is_ignored(void **state) {
  (void) state;
  START(r);
  static const char *const ignore[] = { "node_modules/", "*.log", "!keep.log", "/top", NULL };
  static const char *const bad[] = { "x", "[a", NULL };
  outcome_t o = { 0 };
  al_xfer_t *x;
  sh(&r,
    "mkdir -p from/a/node_modules/x from/top/b from/a/top && touch from/a/x.log from/keep.log from/a/node_modules/keep.log from/a/top/f from/top/f"
    " && mkfifo from/a/node_modules/fifo && printf 12345 > from/node_modules && truncate -s 1000 from/a/node_modules/big");
  assert_int_equal(al_xfer_in(r.chan, path(&r, "from"), path(&r, "to"), ignore, &xfer_cbs, &o, &x, &o.err), 0);
  rig_wait(&r, &o.done, 10000);
  assert_ok(&o);
  assert_int_equal(o.stats.files, 6);
  assert_int_equal(o.stats.bytes, 5);
  sh(&r, "test \"$(cd to && find . | sort | tr '\\n' ' ')\" = '. ./a ./a/top ./a/top/f ./keep.log ./node_modules '");
  assert_int_equal(
    al_xfer_in(r.chan, path(&r, "from"), path(&r, "to"), bad, &xfer_cbs, &o, &x, &o.err), AL_EBAD_OPTION);
  assert_non_null(strstr(o.err.msg, "\"[a\""));
  rig_end(&r);
}

static void
on_block(uv_async_t *a) {
  (void) a;
}

/* Bytes that come out for `what`; the first ones into `head`. */
static size_t
tar_bytes(rig_t *r, const char *what, uint8_t head[1536], int expected) {
  al_pipe_t pipe;
  al_tar_t t = { .host_path = what, .name = "name", .pipe = &pipe, .fd = -1 };
  assert_int_equal(al__pipe_init(&r->loop, &pipe, on_block), 0);
  assert_int_equal(al__tar_look(&t), 0);
  assert_int_equal(al__tar_write(&t), expected);
  size_t n = 0;
  for (al_block_t *b; (b = al__pipe_take(&pipe)); al_free(b->bytes), al_free(b)) {
    if (n == 0) memcpy(head, b->bytes, 1536);
    n += b->len;
  }
  al__tar_close(&t);
  uv_close((uv_handle_t *) &pipe.async, NULL);
  uv_run(&r->loop, UV_RUN_NOWAIT);
  al__pipe_deinit(&pipe);
  return n;
}

static void
test_xfer_tar_says_nothing_of_the_host_and_has_no_end_after_a_failure(void **state) {
  (void) state;
  rig_t r = { 0 };
  uint8_t head[1536];
  int sv[2];
  al_test_dir(r.dir);
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, sv), 0);
  r.peer = sv[1];
  rig_base(&r, sv[0]);
  sh(&r,
    "mkdir d && printf x > d/f && mkfifo d/fifo && head -c 3000 /dev/zero > f && { test $(id -u) != 0 || chown 12345:12346 f; }");
  assert_int_equal(tar_bytes(&r, path(&r, "f"), head, 0), 1024 + 512 + 3072 + 1024); /* every entry has a pax header */
  assert_string_equal((char *) head + 1024, "name");
  assert_memory_equal(head + 1024 + 108, "000000 ", 7);
  assert_memory_equal(head + 1024 + 116, "000000 ", 7);
  assert_int_equal(head[1024 + 265], 0); /* no user's name */
  /* What libarchive still had in its buffer, and the archive's end, would make a torso look whole. */
  assert_int_equal(tar_bytes(&r, path(&r, "d"), head, AL_ESOURCE_UNSUPPORTED), 0);
  rig_end(&r);
}

static void
test_xfer_in_cancel_removes_the_temporary(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  sh(&r,
    "truncate -s 8G big && head -c 200000000 /dev/zero | dd of=big conv=notrunc status=none && printf old > target");
  cancel_half_way(&r, begin_in(&r, path(&r, "big"), path(&r, "target"), &o), &o);
  rig_end(&r);
}

/* Whether this process has the file open. */
static bool
have_open(const char *file) {
  struct stat want, st;
  assert_int_equal(stat(file, &want), 0);
  for (int fd = 0; fd < 1024; fd++)
    if (fstat(fd, &st) == 0 && st.st_dev == want.st_dev && st.st_ino == want.st_ino) return true;
  return false;
}

/* A guest that is slow to clean up is not waited for, and does it all the same. */
static void
test_xfer_in_cancel_does_not_wait_for_a_slow_guest(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  sh(&r, "head -c 200000000 /dev/zero > big && printf old > target");
  al_xfer_t *x = begin_in(&r, path(&r, "big"), path(&r, "target"), &o);
  wait_for_leftover(&r, &o);
  kill(r.agent, SIGSTOP);
  assert_true(have_open(path(&r, "big")));
  al_xfer_cancel(x, NULL);
  rig_wait(&r, &o.done, 4000);
  assert_fails(&o, AL_EABORTED, NULL);
  assert_false(have_open(path(&r, "big"))); /* an ended copy is through with the host */
  assert_int_equal(leftovers(r.dir), 1);
  kill(r.agent, SIGCONT);
  for (int i = 0; i < 500 && leftovers(r.dir) > 0; i++) rig_idle(&r, 10);
  assert_target_kept(&r);
  copy_in(&r, path(&r, "target"), path(&r, "other"), &o); /* the channel goes on */
  assert_ok(&o);
  rig_end(&r);
}

static void
test_xfer_in_ends_with_its_channel(void **state) {
  (void) state;
  START(r);
  static const char *const names[] = { "t0", "t1", "t2" };
  outcome_t o[3];
  sh(&r, "head -c 60000000 /dev/zero > big");
  for (int i = 0; i < 3; i++) begin_in(&r, path(&r, "big"), path(&r, names[i]), &o[i]);
  rig_idle(&r, 30);
  kill(r.agent, SIGKILL);
  for (int i = 0; i < 3; i++) {
    rig_wait(&r, &o[i].done, 5000);
    assert_fails(&o[i], AL_ECHANNEL_CLOSED, NULL);
  }
  rig_wait(&r, &r.closed, 5000);
  rig_end(&r);
}

static void
test_xfer_in_outlives_a_channel_that_ends_while_the_host_is_looked_at(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  sh(&r, "printf new > f");
  slow_ms = 300;
  begin_in(&r, path(&r, "f"), path(&r, "t"), &o);
  kill(r.agent, SIGKILL);
  rig_wait(&r, &r.closed, 5000);
  rig_wait(&r, &o.done, 5000);
  slow_ms = 0;
  assert_fails(&o, AL_ECHANNEL_CLOSED, NULL);
  rig_end(&r);
}

static al_xfer_t *to_cancel;

static void
cancel_when_told(al_xfer_t *x, void *data, const al_xfer_stats_t *stats) {
  (void) data;
  assert_true(stats->bytes < 200000000);
  assert_ptr_equal(x, to_cancel);
  al_xfer_cancel(x, NULL);
}

static void
test_xfer_progress_is_told_seldom_and_may_cancel(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  sh(&r, "head -c 200000000 /dev/zero > big");
  uint64_t began = uv_now(&r.loop);
  copy_in(&r, path(&r, "big"), path(&r, "target"), &o);
  assert_ok(&o);
  assert_in_range(o.told, 1, (uv_now(&r.loop) - began) / 100 + 1);
  began = uv_now(&r.loop);
  copy_out(&r, path(&r, "target"), path(&r, "back"), NULL, 0, &o);
  assert_ok(&o);
  assert_in_range(o.told, 1, (uv_now(&r.loop) - began) / 100 + 1);
  const al_xfer_cbs_t cbs = { .on_progress = cancel_when_told, .on_end = on_xfer };
  memset(&o, 0, sizeof o);
  assert_int_equal(al_xfer_in(r.chan, path(&r, "big"), path(&r, "new"), NULL, &cbs, &o, &to_cancel, &o.err), 0);
  rig_wait(&r, &o.done, 10000);
  assert_fails(&o, AL_EABORTED, NULL);
  memset(&o, 0, sizeof o);
  assert_int_equal(
    al_xfer_out(r.chan, path(&r, "big"), path(&r, "new"), NULL, NULL, &cbs, &o, &to_cancel, &o.err), 0);
  rig_wait(&r, &o.done, 10000);
  assert_fails(&o, AL_EABORTED, NULL);
  sh(&r, "test ! -e new");
  assert_int_equal(leftovers(r.dir), 0);
  rig_end(&r);
}

static void
test_xfer_both_ways_is_exact(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  sh(&r, "head -c 50000001 /dev/urandom > big && : > zero");
  copy_in(&r, path(&r, "big"), path(&r, "guest/big"), &o);
  assert_ok(&o);
  copy_out(&r, path(&r, "guest/big"), path(&r, "back/big"), NULL, 0, &o);
  assert_ok(&o);
  assert_int_equal(o.stats.bytes, 50000001);
  sh(&r, "cmp big back/big && test \"$(stat -c %%a back/big)\" = \"$(stat -c %%a big)\"");
  copy_in(&r, path(&r, "zero"), path(&r, "guest/zero"), &o);
  assert_ok(&o);
  copy_out(&r, path(&r, "guest/zero"), path(&r, "back/zero"), NULL, 0, &o);
  assert_ok(&o);
  sh(&r, "test -f back/zero && test ! -s back/zero");
  assert_int_equal(leftovers(path(&r, "back")), 0);
  rig_end(&r);
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_xfer_in_tree_keeps_everything),
    cmocka_unit_test(test_xfer_in_file_is_put_in_place_whole),
    cmocka_unit_test(test_xfer_in_clash_names_both_and_changes_nothing),
    cmocka_unit_test(test_xfer_in_merges),
    cmocka_unit_test(test_xfer_in_merges_with_others_at_work),
    cmocka_unit_test(test_xfer_in_names_what_is_wrong),
    cmocka_unit_test(test_xfer_in_unreadable_is_named),
    cmocka_unit_test(test_xfer_in_file_that_changes_keeps_its_size_and_is_told),
    cmocka_unit_test(test_xfer_in_leaves_out_what_a_copy_out_has_left),
    cmocka_unit_test(test_xfer_in_total_is_no_nonsense),
    cmocka_unit_test(test_xfer_in_leaves_out_what_is_ignored),
    cmocka_unit_test(test_xfer_tar_says_nothing_of_the_host_and_has_no_end_after_a_failure),
    cmocka_unit_test(test_xfer_in_cancel_removes_the_temporary),
    cmocka_unit_test(test_xfer_in_cancel_does_not_wait_for_a_slow_guest),
    cmocka_unit_test(test_xfer_in_ends_with_its_channel),
    cmocka_unit_test(test_xfer_in_outlives_a_channel_that_ends_while_the_host_is_looked_at),
    cmocka_unit_test(test_xfer_progress_is_told_seldom_and_may_cancel),
    cmocka_unit_test(test_xfer_both_ways_is_exact),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
