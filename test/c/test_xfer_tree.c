/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of copying directories out, against the real lane agent on this machine: what is kept, refused, left behind. */
#include "xfer_test.h"
#include <ftw.h>

/* Type, mode, time, size, link and content of everything in `dir`, into `out`. */
static void
manifest(const rig_t *r, const char *dir, const char *out) {
  sh(r,
    "(cd %s && find . -printf '%%P\\0%%y %%m %%T@ %%l\\n\\0' | sort -z && find . -type f -print0 | sort -z | xargs -0r sha256sum) > %s",
    dir, out);
}

static void
test_xfer_tree_keeps_what_matters(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  sh(&r,
    "umask 022; mkdir -p g/empty g/a/b/c 'g/sp ace' && printf 'x\\n' > g/a/f && : > g/zero && printf '#!/bin/sh\\n' > g/run && chmod 755 g/run"
    " && chmod 444 g/a/f && chmod 750 g/a/b && ln -s ../a/f g/a/up && ln -s b/c g/a/down && ln -s nowhere g/dangling"
    " && printf q > \"g/q'\\\"\\\\\\\\\" && printf n > \"$(printf 'g/new\\nline')\" && printf i > \"$(printf 'g/\\377\\376')\""
    " && head -c 3000000 /dev/urandom > g/big && (cd g && for i in $(seq 1 300); do echo $i > a/b/c/n$i; done)"
    " && touch -d '2001-02-03 04:05:06.789' g/a/b g/a/f g/big && touch -h -d '1999-01-01' g/a/up");
  copy_tree(&r, path(&r, "g"), path(&r, "h/new"), NULL, &o);
  assert_ok(&o);
  assert_int_equal(o.stats.skipped + o.stats.changed, 0);
  sh(&r, "test ! -x h/new/run && chmod 755 h/new/run");
  manifest(&r, "g", "m1");
  manifest(&r, "h/new", "m2");
  sh(&r, "cmp m1 m2 && test $(find g -mindepth 1 -print0 | tr -dc '\\0' | wc -c) = %llu", (unsigned long long) o.stats.files);
  assert_int_equal(leftovers(path(&r, "h")), 0);
  const al_xfer_limits_t keep = { .executables = true };
  sh(&r, "chmod 7777 g/run && chmod 2777 g/empty && mkdir h/empty");
  mode_t old = umask(027);
  copy_tree(&r, path(&r, "g"), path(&r, "h/empty"), &keep, &o); /* in the place of an empty directory */
  umask(old);
  assert_ok(&o);
  sh(&r, "test \"$(stat -c %%a h/empty/run h/empty/empty h/empty | tr '\\n' ' ')\" = '750 750 750 '");
  rig_end(&r);
}

static void
test_xfer_tree_refuses_what_is_no_directory(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  sh(&r, "mkdir d d/sub && ln -s d dlink && ln -s sub d/slink && printf x > d/f && mkdir full full/x && printf old > file && ln -s nothing link");
  static const struct {
    int code;
    const char *from, *to;
  } refused[] = {
    { AL_EGUEST_FILE_MISSING, "none", "t" },
    { AL_ENOT_A_DIRECTORY, "d/f", "t" },
    { AL_EIS_LINK, "dlink", "t" },
    { AL_EIS_LINK, "dlink/sub", "t" },
    { AL_EIS_LINK, "d/slink", "t" },
    { AL_EHOST_PATH_EXISTS, "d", "full" },
    { AL_EHOST_PATH_EXISTS, "d", "file" },
    { AL_EHOST_PATH_LINK, "d", "link" },
    { AL_EHOST_PATH_GIT, "d", "x/.Git" },
    { AL_EHOST_PATH_INVALID, "d", "x/.." },
    { AL_EHOST_PATH_INVALID, "d", "x/" },
  };
  for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
    copy_tree(&r, path(&r, refused[i].from), path(&r, refused[i].to), NULL, &o);
    if (o.err.code != refused[i].code)
      fail_msg("%s: %s %s", refused[i].from, al_err_name(o.err.code), o.err.msg);
  }
  sh(&r, "test ! -e t && test ! -e x && test -d full/x && test \"$(cat file)\" = old && test -L link && test ! -e nothing");
  assert_int_equal(leftovers(r.dir), 0);
  rig_end(&r);
}

static void
test_xfer_tree_refuses_what_it_does_not_take(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  sh(&r, "mkdir -p a/b/.GiT b/x c/d && mkfifo b/x/pipe && ln -s /etc/passwd c/abs && ln -s ../../x c/d/out && ln -s ../in c/d/in && ln -s d/../../x c/back"
         " && ln -s d/. c/dot && printf f > c/in");
  copy_tree(&r, path(&r, "a"), path(&r, "t"), NULL, &o);
  assert_fails(&o, AL_ETREE_REFUSED, "b/.GiT");
  copy_tree(&r, path(&r, "b"), path(&r, "t"), NULL, &o);
  assert_fails(&o, AL_ETREE_REFUSED, "x/pipe");
  sh(&r, "test ! -e t");
  copy_tree(&r, path(&r, "c"), path(&r, "t"), NULL, &o);
  assert_ok(&o);
  assert_int_equal(o.stats.skipped, 3);
  assert_true(strcmp(o.stats.skipped_path, "abs") == 0 || strcmp(o.stats.skipped_path, "d/out") == 0
    || strcmp(o.stats.skipped_path, "back") == 0);
  sh(&r, "test \"$(cat t/d/in)\" = f && test -d t/dot && test ! -L t/abs && test ! -L t/d/out && test ! -L t/back");
  assert_int_equal(leftovers(r.dir), 0);
  rig_end(&r);
}

/* A network device's speed, which a loop has none of, has a size but cannot be read. */
static void
test_xfer_tree_names_what_cannot_be_read(void **state) {
  (void) state;
#define DEVICE "/sys/devices/virtual/net/lo"
  char byte;
  int fd = open(DEVICE "/speed", O_RDONLY | O_CLOEXEC);
  bool fails = fd >= 0 && read(fd, &byte, 1) < 0;
  if (fd >= 0) close(fd);
  if (!fails) {
    print_message("skipped: there is no such file here\n");
    skip();
  }
  START(r);
  outcome_t o;
  copy_tree(&r, DEVICE, path(&r, "t"), NULL, &o);
  print_message("%s\n", o.err.msg);
  assert_true(o.err.code && strstr(o.err.msg, DEVICE " in the guest: ") && !strstr(o.err.msg, "a file"));
  sh(&r, "test ! -e t");
  rig_end(&r);
}

static void
test_xfer_tree_keeps_to_its_limits(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  uint64_t left = 1 << 20;
  al_xfer_limits_t bytes = { .max_bytes = 1000 }, entries = { .max_entries = 4 }, depth = { .max_depth = 2 },
                   lane = { .left = &left };
  sh(&r, "mkdir -p a/b/c && printf x > a/b/c/f && head -c 999 /dev/zero > big");
  copy_tree(&r, path(&r, "a"), path(&r, "t1"), &bytes, &o);
  assert_ok(&o);
  copy_tree(&r, path(&r, "a"), path(&r, "t2"), &entries, &o);
  assert_ok(&o);
  copy_tree(&r, path(&r, "a"), path(&r, "t3"), &depth, &o);
  assert_ok(&o);
  sh(&r, "printf y > a/b/c/g && mkdir a/b/c/d && mv big a/b/big");
  copy_tree(&r, path(&r, "a"), path(&r, "u"), &bytes, &o);
  assert_fails(&o, AL_ETREE_TOO_LARGE, "1000 bytes");
  copy_tree(&r, path(&r, "a"), path(&r, "u"), &entries, &o);
  assert_fails(&o, AL_ETREE_TOO_LARGE, "4 entries");
  copy_tree(&r, path(&r, "a"), path(&r, "u"), &depth, &o);
  assert_fails(&o, AL_ETREE_TOO_LARGE, "2 levels: b/c/d");
  copy_tree(&r, path(&r, "a"), path(&r, "v"), &lane, &o);
  assert_ok(&o);
  assert_in_range(left, (1 << 20) - 2000, (1 << 20) - 1001);
  left = 500;
  copy_tree(&r, path(&r, "a"), path(&r, "u"), &lane, &o);
  assert_fails(&o, AL_ECOPY_OUT_LIMIT, "a");
  sh(&r, "test ! -e u");
  assert_int_equal(leftovers(r.dir), 0);
  rig_end(&r);
}

static void
test_xfer_tree_keeps_holes_and_old_times(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  sh(&r, "mkdir s && truncate -s 3000001 s/none && truncate -s 9000000 s/mid"
         " && printf data | dd of=s/mid bs=1 seek=5000000 conv=notrunc status=none"
         " && (printf begin; head -c 5000000 /dev/zero; printf end) > s/zeros && head -c 70000 /dev/urandom > s/full"
         " && truncate -s 4000000 s/full && printf '\\0' > s/one && : > s/empty"
         " && touch -d '1969-12-31 23:59:58.25 UTC' s/one && touch -h -d '1950-01-01 00:00:00 UTC' s/empty");
  copy_tree(&r, path(&r, "s"), path(&r, "t"), NULL, &o);
  assert_ok(&o);
  sh(&r, "diff -r s t && test \"$(cd s && stat -c '%%n %%s %%.Y' *)\" = \"$(cd t && stat -c '%%n %%s %%.Y' *)\"");
  sh(&r, "test $(du -sk t | cut -f1) -le 400"); /* of 21 MB */
  rig_end(&r);
}

/* By descriptors: a shell would look its whole way up at each step. */
static void
make_deep(const char *top, int levels) {
  assert_int_equal(mkdir(top, 0755), 0);
  int fd = open(top, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  for (int i = 0; i < levels && fd >= 0; i++) {
    int below = mkdirat(fd, "d", 0755) == 0 ? openat(fd, "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    close(fd);
    fd = below;
  }
  assert_true(fd >= 0);
  close(fd);
}

/* Both ends bound the depth: the host what it is asked for, the guest what it can. */
static void
test_xfer_tree_is_never_too_deep(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  const al_xfer_limits_t most = { .max_depth = UINT32_MAX };
  sh(&r, "p=g && for i in $(seq 128); do p=$p/d; done && mkdir -p $p && touch $p/f");
  copy_tree(&r, path(&r, "g"), path(&r, "t"), &most, &o);
  assert_ok(&o);
  assert_int_equal(o.stats.files, 129);
  sh(&r, "diff -r g t && mkdir $(find g -name f -printf '%%h')/e");
  copy_tree(&r, path(&r, "g"), path(&r, "u"), &most, &o);
  assert_fails(&o, AL_ETREE_TOO_LARGE, "levels");
  copy_tree(&r, path(&r, "g"), path(&r, "u"), NULL, &o);
  assert_fails(&o, AL_ETREE_TOO_LARGE, "levels"); /* whichever of the two was first to say so */
  make_deep(path(&r, "deep"), 4096);
  copy_tree(&r, path(&r, "deep"), path(&r, "u"), &most, &o);
  assert_fails(&o, AL_ETREE_TOO_LARGE, "levels");
  sh(&r, "test ! -e u");
  assert_int_equal(leftovers(r.dir), 0);
  rig_end(&r);
}

/* Files that change while they are read are cut or filled up, and counted. */
static void
test_xfer_tree_tells_what_changed(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  sh(&r, "mkdir g && head -c 30000000 /dev/urandom > g/a && cp g/a g/b && touch g/c");
  begin_tree(&r, path(&r, "g"), path(&r, "t"), NULL, &o);
  wait_for_leftover(&r, &o);
  kill(r.agent, SIGSTOP); /* in the middle of the first of the two */
  sh(&r, "cp g/a all && truncate -s 10 g/a && truncate -s 10 g/b");
  kill(r.agent, SIGCONT);
  rig_wait(&r, &o.done, 20000);
  assert_ok(&o);
  assert_true(o.stats.changed >= 1);
  sh(&r, "test -f t/c && for f in t/a t/b; do test $(stat -c %%s $f) = 10 -o $(stat -c %%s $f) = 30000000; done");
  sh(&r, "rm -rf t && cp all g/a && cp all g/b");
  begin_tree(&r, path(&r, "g"), path(&r, "t"), NULL, &o);
  wait_for_leftover(&r, &o);
  kill(r.agent, SIGSTOP);
  sh(&r, "echo more >> g/a && echo more >> g/b");
  kill(r.agent, SIGCONT);
  rig_wait(&r, &o.done, 20000);
  assert_ok(&o);
  assert_true(o.stats.changed >= 1);
  sh(&r, "cmp -s t/a all || { head -c 30000000 g/a | cmp - all && cmp g/a t/a; }");
  rig_end(&r);
}

static void
test_xfer_tree_cancel_leaves_nothing(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  sh(&r, "printf old > target && mkdir -p g/d && for i in 1 2 3 4 5; do head -c 30000000 /dev/zero > g/d/$i; done");
  cancel_half_way(&r, begin_tree(&r, path(&r, "g"), path(&r, "t"), NULL, &o), &o);
  sh(&r, "test ! -e t");
  begin_tree(&r, path(&r, "g"), path(&r, "t"), NULL, &o);
  wait_for_leftover(&r, &o);
  al_chan_close(r.chan, NULL);
  rig_wait(&r, &o.done, 10000);
  assert_true(o.err.code != 0);
  sh(&r, "test ! -e t");
  assert_int_equal(leftovers(r.dir), 0);
  rig_wait(&r, &r.closed, 10000);
  rig_end(&r);
}

/* Directories, and files that say "good"; no link. */
static int
check_and_remove(const char *p, const struct stat *st, int kind, struct FTW *at) {
  char text[16];
  (void) at;
  if (kind == FTW_DP) return rmdir(p);
  if (!S_ISREG(st->st_mode)) return 1;
  read_file(p, text, sizeof text);
  return strcmp(text, "good") == 0 ? unlink(p) : 2;
}

/* In the guest: files, directories and links to elsewhere change places. What is outside never comes. */
static void
test_xfer_tree_guest_race_follows_no_link(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  int done = 0, links = 0;
  sh(&r, "mkdir -p g/d/e other/e && printf good > g/d/f && printf good > g/d/e/f && printf secret > other/f && printf secret > other/e/f"
         " && ln -s ../../other/f g/d/l && ln -s ../other g/l && ln -s ../../other/e g/d/m && mkfifo -m 666 other/fifo");
  const pair_t pairs[] = { { open_dir(path(&r, "g/d")), "f", "l" }, { open_dir(path(&r, "g/d")), "e", "m" },
    { open_dir(path(&r, "g")), "d", "l" } };
  pid_t racer = start_racer(pairs, 3);
  for (int i = 0; i < 1000; i++) {
    copy_tree(&r, path(&r, "g"), path(&r, "t"), NULL, &o);
    /* An entry may be seen under both names, or as many things one after another. */
    if (o.err.code != AL_ECOPY_OUT_FAILED && o.err.code != AL_ETREE_REFUSED) assert_ok(&o);
    if (o.err.code) continue;
    done++;
    links += o.stats.skipped > 0;
    assert_int_equal(nftw(path(&r, "t"), check_and_remove, 8, FTW_PHYS | FTW_DEPTH), 0);
  }
  stop_racer(racer);
  for (int i = 0; i < 3; i++) close(pairs[i].dir);
  print_message("%d copied of 1000, %d of them without links that lead out\n", done, links);
  assert_true(done > 0 && links > 0);
  assert_int_equal(leftovers(r.dir), 0);
  rig_end(&r);
}

/* On the host: the target's parent changes places with a link to another repository. */
static void
test_xfer_tree_host_race_writes_nothing_outside(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  int done = 0, refused = 0;
  sh(&r, "mkdir -p g/a/b wt/.git wt/d outside/.git && printf x > g/a/b/f && printf y > g/f && ln -s ../outside wt/l");
  const pair_t pair = { open_dir(path(&r, "wt")), "d", "l" };
  pid_t racer = start_racer(&pair, 1);
  for (int i = 0; i < 500; i++) {
    char to[64];
    snprintf(to, sizeof to, "wt/d/t%d", i);
    copy_tree(&r, path(&r, "g"), path(&r, to), NULL, &o);
    if (!o.err.code) done++;
    else if (o.err.code == AL_EHOST_PATH_LINK) refused++;
  }
  stop_racer(racer);
  close(pair.dir);
  assert_true(done > 0 && refused > 0);
  sh(&r, "test -z \"$(ls outside)\" && test $(ls -d wt/[dl]/t* | wc -l) = %d", done);
  sh(&r, "for t in wt/[dl]/t*; do diff -r g $t || exit 1; done");
  assert_int_equal(leftovers(path(&r, "wt/d")) + leftovers(path(&r, "wt/l")), 0);
  print_message("%d put in place, %d refused of 500\n", done, refused);
  rig_end(&r);
}

static void
test_xfer_tree_disk_failure_leaves_nothing(void **state) {
  (void) state;
  START(r);
  outcome_t bytes, inodes, fits, read_only;
  if (!mounted(&r, "size=1m")) {
    rig_end(&r);
    skip();
  }
  sh(&r, "mkdir -p g/d many few && printf f > few/f && head -c 5000000 /dev/urandom > g/d/big && for i in $(seq 500); do : > many/$i; done && mkdir small/old");
  copy_tree(&r, path(&r, "g"), path(&r, "small/old"), NULL, &bytes);
  int left = leftovers(path(&r, "small"));
  sh(&r, "test -z \"$(ls -A small/old)\" && umount small");
  assert_true(mounted(&r, "nr_inodes=100"));
  copy_tree(&r, path(&r, "many"), path(&r, "small/t"), NULL, &inodes);
  left += leftovers(path(&r, "small"));
  sh(&r, "test -z \"$(ls -A small)\"");
  copy_tree(&r, path(&r, "few"), path(&r, "small/t"), NULL, &fits);
  sh(&r, "test -f small/t/f && mount -o remount,ro small");
  copy_tree(&r, path(&r, "few"), path(&r, "small/u"), NULL, &read_only);
  sh(&r, "umount small");
  assert_fails(&bytes, AL_EHOST_DISK_FULL, "d/big");
  assert_fails(&inodes, AL_EHOST_DISK_FULL, NULL);
  assert_ok(&fits);
  assert_fails(&read_only, AL_ECOPY_OUT_FAILED, "Read-only");
  assert_int_equal(left, 0);
  rig_end(&r);
}

/* A process of its own copies a directory and takes it away, again and again. */
static void
copy_for_ever(const char *dir, int ready) {
  rig_t r;
  outcome_t o;
  char from[512], to[512], away[512];
  if (!rig_agent_start(&r)) _exit(3);
  al_test_dir_remove(r.dir);
  close(ready);
  snprintf(from, sizeof from, "%s/g", dir);
  snprintf(to, sizeof to, "%s/target/t", dir);
  for (int i = 0;; i++) {
    copy_tree(&r, from, to, NULL, &o);
    snprintf(away, sizeof away, "%s/away/%d-%d", dir, getpid(), i);
    if (o.err.code || rename(to, away) != 0) _exit(4);
  }
}

static void
test_xfer_tree_killed_at_any_moment(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  int found = 0, whole = 0;
  unsigned seed = 11;
  sh(&r, "mkdir target away g && cd g && for i in $(seq 20); do mkdir -p d$i/e && head -c 50000 /dev/urandom > d$i/e/f && ln -s e d$i/l; done");
  for (int i = 0; i < 50; i++) {
    kill_within(r.dir, copy_for_ever, 40000, &seed);
    found += leftovers(path(&r, "target"));
    sh(&r, "test ! -e target/t || diff -r g target/t");
    whole += access(path(&r, "target/t"), F_OK) == 0;
    sh(&r, "rm -rf target/t away/*");
    copy_tree(&r, path(&r, "g"), path(&r, "target/t"), NULL, &o);
    assert_ok(&o);
    assert_int_equal(leftovers(path(&r, "target")), 0);
    sh(&r, "rm -rf target/t");
  }
  print_message("50 kills: %d temporary directories found and removed, %d whole\n", found, whole);
  assert_true(found > 0);
  rig_end(&r);
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_xfer_tree_keeps_what_matters),
    cmocka_unit_test(test_xfer_tree_refuses_what_is_no_directory),
    cmocka_unit_test(test_xfer_tree_refuses_what_it_does_not_take),
    cmocka_unit_test(test_xfer_tree_names_what_cannot_be_read),
    cmocka_unit_test(test_xfer_tree_keeps_to_its_limits),
    cmocka_unit_test(test_xfer_tree_keeps_holes_and_old_times),
    cmocka_unit_test(test_xfer_tree_is_never_too_deep),
    cmocka_unit_test(test_xfer_tree_tells_what_changed),
    cmocka_unit_test(test_xfer_tree_cancel_leaves_nothing),
    cmocka_unit_test(test_xfer_tree_guest_race_follows_no_link),
    cmocka_unit_test(test_xfer_tree_host_race_writes_nothing_outside),
    cmocka_unit_test(test_xfer_tree_disk_failure_leaves_nothing),
    cmocka_unit_test(test_xfer_tree_killed_at_any_moment),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
