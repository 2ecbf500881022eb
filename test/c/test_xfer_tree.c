/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of copying directories out, against the real lane agent on this machine: what is kept, refused, left behind. */
#include "xfer_test.h"

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

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_xfer_tree_keeps_what_matters),
    cmocka_unit_test(test_xfer_tree_refuses_what_is_no_directory),
    cmocka_unit_test(test_xfer_tree_refuses_what_it_does_not_take),
    cmocka_unit_test(test_xfer_tree_keeps_to_its_limits),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
