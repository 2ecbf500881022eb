/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the guest's unpacking as a program of its own: archives by hand, broken ones, ones that want out, and what GNU
 * tar and bsdtar write. */
#include "al_test.h"
#include "tar_make.h"
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>

static char dir[64], out[1024], said[1024];
static tar_make_t tar;

static void
slurp(const char *name, char *to, size_t cap) {
  FILE *f = fopen(al_test_path(dir, name), "r");
  assert_non_null(f);
  to[fread(to, 1, cap - 1, f)] = 0;
  fclose(f);
}

__attribute__((format(printf, 1, 2))) static void
sh(const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  int status = al_test_system(dir, fmt, ap);
  va_end(ap);
  if (status != 0) fail_msg("status %d of: %s", status, fmt);
}

/* Exit status of the unpacking of the file "archive"; its words in `out` and `said`. */
static int
unpack(const char *kind, const char *to) {
  char cmd[1024];
  snprintf(cmd, sizeof cmd, "cd %s && exec timeout 60 \"$AL_AGENT\" --unpack '' %s '%s/%s' <archive >out 2>said", dir, kind, dir, to);
  int status = system(cmd);
  assert_true(WIFEXITED(status));
  slurp("out", out, sizeof out);
  slurp("said", said, sizeof said);
  return WEXITSTATUS(status);
}

static int
unpack_made(const char *kind, const char *to) {
  int fd = open(al_test_path(dir, "archive"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  assert_true(fd >= 0 && write(fd, tar.bytes, tar.len) == (ssize_t) tar.len);
  close(fd);
  return unpack(kind, to);
}

static int
leftovers(void) {
  int n = 0;
  DIR *d = opendir(dir);
  assert_non_null(d);
  for (struct dirent *e; (e = readdir(d));) n += strncmp(e->d_name, ".agent-lane-", 12) == 0;
  closedir(d);
  return n;
}

static int
set_up(void **state) {
  (void) state;
  al_test_dir(dir);
  tar.len = 0;
  return 0;
}

static int
tear_down(void **state) {
  (void) state;
  al_test_dir_remove(dir);
  return 0;
}

static void
test_unpack_refuses_what_wants_out(void **state) {
  (void) state;
  static const struct { char type; const char *path, *link, *why; } cases[] = {
    { '0', "../f", "", "a path with .." }, { '0', "a/../../f", "", "a path with .." }, { '0', "/etc/f", "", "an absolute path" },
    { '5', "..", "", "a path with .." }, { '1', "h", "../secret", "a path with .." }, { '1', "h", "/etc/passwd", "an absolute path" },
    { '1', "h", "", "a hard link to nothing" }, { '2', "l", "", "a link to nothing" }, { '0', "", "", "no path" }, { '0', "./", "", "no path" },
    { '3', "dev", "", "something that is no file" }, { '4', "dev", "", "something that is no file" },
    { '6', "fifo", "", "something that is no file" }, { 'S', "sparse", "", "something that is no file" }, { 'L', "long", "", "something that is no file" },
  };
  sh("printf safe > secret");
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    tar.len = 0;
    tar_put(&tar, '5', "./", "", 0755, NULL, 0);
    tar_put(&tar, cases[i].type, cases[i].path, cases[i].link, 0644, NULL, 0);
    tar_end(&tar);
    if (unpack_made("tree", "to") != 1 || !strstr(said, cases[i].why)) fail_msg("%c %s: %s", cases[i].type, cases[i].path, said);
    sh("test ! -e to && test ! -e f && test \"$(cat secret)\" = safe");
    assert_int_equal(leftovers(), 0);
  }
}

/* The way to an entry leads over nothing but directories of the tree, whatever came before. */
static void
test_unpack_follows_no_link_of_the_archive(void **state) {
  (void) state;
  static const struct { char type; const char *path, *link; } ways[] = {
    { '0', "l/f", "" }, { '5', "l/d", "" }, { '2', "l/s", "x" }, { '1', "l/h", "own" }, { '1', "h", "l/f" }, { '0', "l", "" }, { '5', "l", "" },
  };
  for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
    sh("rm -rf outside && mkdir outside && printf safe > outside/f");
    tar.len = 0;
    tar_put(&tar, '0', "own", "", 0644, "own", 3);
    tar_put(&tar, '2', "l", "../outside", 0777, NULL, 0);
    tar_put(&tar, ways[i].type, ways[i].path, ways[i].link, 0644, NULL, 0);
    tar_put(&tar, '0', "l/g", "", 0644, "bad", 3);
    tar_end(&tar);
    assert_int_equal(unpack_made("tree", "to"), 1);
    sh("test \"$(ls outside)\" = f && test \"$(cat outside/f)\" = safe && test ! -e to");
    assert_int_equal(leftovers(), 0);
  }
}

static void
test_unpack_refuses_broken_archives(void **state) {
  (void) state;
  char map[600], big[70000];
  static const char *const pax[][4] = {
    { "path=../x", NULL }, { "path=/x", NULL }, { "size=-1", NULL }, { "size=99999999999999999999", NULL }, { "size=1x", NULL },
    { "mtime=x", NULL }, { "mtime=1.x", NULL }, { "mtime=", NULL }, { "GNU.sparse.major=2", NULL }, { "GNU.sparse.map=0,1", NULL },
    { "GNU.sparse.name=f", NULL }, { "GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.name=f", NULL },
    { "GNU.sparse.realsize=5", NULL },
  };
  for (size_t i = 0; i < sizeof pax / sizeof pax[0]; i++) {
    tar.len = 0;
    tar_pax(&tar, pax[i]);
    tar_put(&tar, '0', "f", "", 0644, NULL, 0);
    tar_end(&tar);
    if (unpack_made("tree", "to") != 1) fail_msg("%s", pax[i][0]);
  }
  static const char *const maps[] = {
    "1\n0\n5\n", "1\n0\n0\n", "1\n9\n2\n", "2\n0\n1\n0\n1\n", "2\n5\n1\n0\n1\n", "x\n", "1\n0\n", "99999\n", "1\n18446744073709551615\n2\n", "-1\n", "\n", "",
  };
  for (size_t i = 0; i < sizeof maps / sizeof maps[0]; i++) {
    static const char *const sparse[] = { "GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.name=f", "GNU.sparse.realsize=10", NULL };
    memset(map, 0, sizeof map);
    memcpy(map, maps[i], strlen(maps[i]));
    tar.len = 0;
    tar_pax(&tar, sparse);
    tar_put(&tar, '0', "f", "", 0644, map, 514); /* two bytes of data */
    tar_end(&tar);
    if (unpack_made("tree", "to") != 1) fail_msg("map %s", maps[i]);
  }
  memset(big, 'x', sizeof big);
  tar.len = 0;
  tar_put(&tar, 'x', "pax", "", 0644, big, sizeof big);
  tar_put(&tar, '0', "f", "", 0644, NULL, 0);
  tar_end(&tar);
  assert_int_equal(unpack_made("tree", "to"), 1);
  assert_non_null(strstr(said, "too large"));
  tar.len = 0;
  tar_put(&tar, '0', "f", "", 0644, "x", 1)[0] = 'g'; /* the sum is wrong now */
  tar_end(&tar);
  assert_int_equal(unpack_made("tree", "to"), 1);
  assert_non_null(strstr(said, "no archive"));
  tar.len = 0;
  tar_put(&tar, '5', "d", "", 0755, "x", 1);
  tar_end(&tar);
  assert_int_equal(unpack_made("tree", "to"), 1);
  tar.len = 0;
  tar_end(&tar);
  tar_put(&tar, '0', "f", "", 0644, "x", 1);
  assert_int_equal(unpack_made("tree", "to"), 1);
  assert_non_null(strstr(said, "after the end"));
  sh("test ! -e to");
  assert_int_equal(leftovers(), 0);
}

/* Wherever it is cut off, nothing stays. */
static void
test_unpack_needs_the_whole_archive(void **state) {
  (void) state;
  static const char *const records[] = { "path=a/file", "mtime=5.5", NULL };
  tar_put(&tar, '5', "a", "", 0755, NULL, 0);
  tar_pax(&tar, records);
  tar_put(&tar, '0', "x", "", 0644, "0123456789", 10);
  tar_put(&tar, '2', "l", "a", 0777, NULL, 0);
  tar_end(&tar);
  size_t whole = tar.len;
  sh("mkdir to && printf old > to/x");
  for (size_t n = 0; n < whole; n += n % 512 == 0 ? 1 : 511) {
    tar.len = n;
    if (unpack_made("tree", "to") != 1 || unpack_made("tree", "new/deep") != 1) fail_msg("%zu bytes of %zu were taken", n, whole);
    assert_int_equal(leftovers(), 0);
  }
  sh("test \"$(find to)\" = \"$(printf 'to\\nto/x')\" && test ! -e new");
  tar.len = whole;
  assert_int_equal(unpack_made("tree", "to"), 0);
  sh("test \"$(cat to/a/file)\" = 0123456789 && test \"$(stat -c %%y to/a/file | cut -c1-23)\" = \"$(TZ= date -d @5.5 '+%%F %%T.%%3N')\" && test $(readlink to/l) = a");
}

static void
test_unpack_keeps_modes_and_makes_what_is_not_named(void **state) {
  (void) state;
  tar_put(&tar, '5', ".", "", 02775, NULL, 0);
  tar_put(&tar, '0', "./suid", "", 06755, "x", 1);
  tar_put(&tar, '5', "sticky/", "", 01777, NULL, 0);
  tar_put(&tar, '5', "closed", "", 0500, NULL, 0);
  tar_put(&tar, '0', "closed/f", "", 0, "x", 1);
  tar_put(&tar, '0', "x//y/./z", "", 0640, "z", 1);
  tar_put(&tar, '1', "x/hard", "./x/y/z", 0, NULL, 0);
  tar_put(&tar, '1', "x/body", "x/y/z", 0, "skipped", 7);
  tar_end(&tar);
  for (int i = 0; i < 2; i++) { /* where nothing is, then merged */
    assert_int_equal(unpack_made("tree", "to"), 0);
    sh("test \"$(cd to && stat -c '%%a %%n' . suid sticky closed x x/y x/y/z | tr '\\n' ' ')\" = '2775 . 755 suid 1777 sticky 500 closed 755 x 755 x/y 640 x/y/z '");
    sh("test \"$(stat -c %%a to/closed/f)\" = 0 && test $(stat -c %%h to/x/y/z) = 3 && test $(stat -c %%i to/x/body) = $(stat -c %%i to/x/hard)");
  }
  tar.len = 0;
  tar_put(&tar, '0', "whatever", "", 06755, "file", 4);
  tar_end(&tar);
  assert_int_equal(unpack_made("file", "single"), 0);
  sh("test \"$(cat single)\" = file && test $(stat -c %%a single) = 755");
  tar_put(&tar, '0', "another", "", 0644, "x", 1);
  assert_int_equal(unpack_made("file", "other"), 1);
  tar.len = 0;
  tar_put(&tar, '5', "d", "", 0755, NULL, 0);
  tar_end(&tar);
  assert_int_equal(unpack_made("file", "other"), 1);
  tar.len = 0;
  tar_end(&tar);
  assert_int_equal(unpack_made("file", "other"), 1);
  sh("test ! -e other");
  assert_int_equal(leftovers(), 0);
}

static void
test_unpack_removes_siblings_that_nobody_holds(void **state) {
  (void) state;
#define NAME(c) ".agent-lane-" c c c c c c c c c c c c c c c c ".tmp"
  tar_put(&tar, '0', "f", "", 0644, "x", 1);
  tar_end(&tar);
  sh("mkdir -p " NAME("0") "/a/b " NAME("1") " && touch " NAME("0") "/a/b/f && chmod 500 " NAME("0") "/a/b && printf x > " NAME("2") " && chmod 0 " NAME("2")
    " && ln -s " NAME("1") " " NAME("3") " && mkdir .agent-lane-x.tmp .agent-lane-000000000000000g.tmp x" NAME("4") " && mkfifo " NAME("5"));
  int held = open(al_test_path(dir, NAME("1")), O_RDONLY | O_DIRECTORY);
  assert_int_equal(flock(held, LOCK_EX), 0);
  assert_int_equal(unpack_made("tree", "to"), 0);
  sh("test \"$(ls -A | grep agent-lane | tr '\\n' ' ')\" = '.agent-lane-000000000000000g.tmp " NAME("1") " " NAME("3") " " NAME("5") " .agent-lane-x.tmp x" NAME("4") " '");
  close(held);
  assert_int_equal(unpack_made("file", "to2"), 0);
  sh("test ! -e " NAME("1"));
}

/* A rename of one name of a file over another does nothing: who links what has come into the target must not keep us at it
 * for ever. */
static void
test_unpack_ends_when_what_comes_is_there_already(void **state) {
  (void) state;
  tar_put(&tar, '0', "f", "", 0644, "new", 3);
  tar_put(&tar, '0', "g", "", 0644, "new", 3);
  tar_end(&tar);
  assert_int_equal(unpack_made("tree", "to"), 0);
  sh("printf old > to/f && mkfifo p && { timeout -s KILL 20 \"$AL_AGENT\" --unpack '' tree %s/to < p 2>said & } && exec 3>p && head -c 1024 archive >&3"
     " && while ! test -s .agent-lane-*.tmp/f; do sleep 0.01; done && ln -f .agent-lane-*.tmp/f to/f && tail -c +1025 archive >&3 && exec 3>&-"
     " && { wait $! || true; } && test \"$(cat to/f to/g)\" = newnew", dir);
  slurp("said", said, sizeof said);
  assert_non_null(strstr(said, "/to/f: "));
  assert_int_equal(leftovers(), 0);
}

static void
test_unpack_says_what_failed_and_where(void **state) {
  (void) state;
  tar_put(&tar, '5', "d", "", 0755, NULL, 0);
  tar_put(&tar, '0', "d/f", "", 0644, "x", 1);
  tar_put(&tar, '0', "d/f", "", 0644, "x", 1);
  tar_end(&tar);
  assert_int_equal(unpack_made("tree", "to"), 1);
  assert_non_null(strstr(said, "/to/d/f: File exists"));
  sh("printf x > isfile");
  assert_int_equal(unpack_made("tree", "isfile/below"), 1);
  assert_non_null(strstr(said, "isfile/below: Not a directory"));
  assert_int_equal(unpack_made("tree", "isfile"), 3);
  assert_string_equal(out, "df");
  assert_int_equal(unpack_made("tree", "new/er/"), 1);
  sh("test ! -e new && test ! -e to");
  if (geteuid() != 0) return;
  /* Whatever cannot be written to is found before anything is changed. */
  tar.len = 0;
  tar_put(&tar, '0', "a", "", 0644, "new", 3);
  tar_put(&tar, '0', "sub/b", "", 0644, "new", 3);
  tar_end(&tar);
  assert_int_equal(unpack_made("file", "x"), 1);
  sh("mkdir -p to/sub && printf old > to/a && chmod 1777 . && chown -R 65534:65534 to && chmod 555 to/sub && chown 0:0 to/sub && chmod 644 archive && cp \"$AL_AGENT\" agent && chmod 755 agent && chown 65534 archive");
  sh("setpriv --reuid 65534 --clear-groups $PWD/agent --unpack '' tree %s/to < archive 2> said; test $? = 1", dir);
  slurp("said", said, sizeof said);
  assert_non_null(strstr(said, "to/sub: Permission denied"));
  sh("test \"$(cat to/a)\" = old && chown 65534:65534 to/sub");
  /* A directory of one's own is opened for it. */
  sh("setpriv --reuid 65534 --clear-groups $PWD/agent --unpack '' tree %s/to < archive", dir);
  sh("test \"$(cat to/a to/sub/b)\" = newnew && rm agent");
  assert_int_equal(leftovers(), 0);
}

/* Where the parent is not the user's, the directory itself has to hold what comes. */
static void
test_unpack_works_where_only_the_target_is_writable(void **state) {
  (void) state;
  if (geteuid() != 0) {
    print_message("skipped: not root\n");
    skip();
  }
  tar_put(&tar, '0', "d/f", "", 0644, "new", 3);
  tar_end(&tar);
  assert_int_equal(unpack_made("tree", "x"), 0);
  sh("mkdir to && chown 65534 to archive && cp \"$AL_AGENT\" agent && chmod 755 . agent");
  sh("setpriv --reuid 65534 --clear-groups $PWD/agent --unpack '' tree %s/to < archive && test \"$(cat to/d/f)\" = new && test \"$(ls -A to)\" = d", dir);
  sh("head -c 600 archive > torso && ! setpriv --reuid 65534 --clear-groups $PWD/agent --unpack '' tree %s/to < torso 2>said && test \"$(ls -A to)\" = d && rm agent", dir);
}

static void
test_unpack_reads_what_others_write(void **state) {
  (void) state;
  static const char *const writers[] = { "tar --format=ustar -cf", "tar --format=pax -cf", "tar --format=pax -S -cf", "bsdtar --format=pax -cf",
    "bsdtar --format=ustar -cf" };
  sh("mkdir -p from/d/e 'from/with space' && printf one > from/d/one && chmod 751 from/d/one && ln from/d/one from/hard && ln -s ../x from/link && : > from/empty"
    " && truncate -s 3M from/sparse && printf mid >> from/sparse && truncate -s 9M from/sparse && touch -d '1969-12-31 23:59:58 UTC' from/d/e && touch -d '2001-02-03 04:05:06.789' from/d"
    " && printf x > \"$(printf 'from/\\377\\001\\n')\" && chmod 700 from/d && touch -d '2002-03-04' from && head -c 300000 /dev/urandom > from/random");
  int missing = 0;
  for (size_t i = 0; i < sizeof writers / sizeof writers[0]; i++) {
    bool ustar = strstr(writers[i], "ustar") != NULL;
    char cmd[256];
    snprintf(cmd, sizeof cmd, "command -v %.*s >/dev/null", (int) strcspn(writers[i], " "), writers[i]);
    if (system(cmd) != 0) {
      print_message("skipped: there is no %.*s\n", (int) strcspn(writers[i], " "), writers[i]);
      missing++;
      continue;
    }
    if (ustar) sh("touch -d '1970-01-01 00:00:02 UTC' from/d/e && find from -exec touch -h -d '2001-01-01' {} +");
    sh("rm -rf to && %s archive -C from .", writers[i]);
    if (unpack("tree", "to") != 0) fail_msg("%s: %s", writers[i], said);
    sh("diff -r --no-dereference from to && for d in from to; do (cd $d && find . -printf '%%p %%m %%l %%n %%T@ %%y %%s\\n' | sort > ../$d.list); done; cmp from.list to.list");
    sh("test $(stat -c %%i to/hard) = $(stat -c %%i to/d/one)");
    if (strstr(writers[i], "-S") || strstr(writers[i], "bsd")) sh("%s test $(du -k to/sparse | cut -f1) -lt 1024", ustar ? "true ||" : "");
  }
  if (missing > 0) skip();
}

static void
test_unpack_has_no_agent(void **state) {
  (void) state;
  print_message("skipped: AL_AGENT names no agent\n");
  skip();
}

int
main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
  const struct CMUnitTest tests[] = {
    TEST(test_unpack_refuses_what_wants_out),
    TEST(test_unpack_follows_no_link_of_the_archive),
    TEST(test_unpack_refuses_broken_archives),
    TEST(test_unpack_needs_the_whole_archive),
    TEST(test_unpack_keeps_modes_and_makes_what_is_not_named),
    TEST(test_unpack_removes_siblings_that_nobody_holds),
    TEST(test_unpack_ends_when_what_comes_is_there_already),
    TEST(test_unpack_says_what_failed_and_where),
    TEST(test_unpack_works_where_only_the_target_is_writable),
    TEST(test_unpack_reads_what_others_write),
  };
  static char agent[4096];
  if (!getenv("AL_AGENT") || !realpath(getenv("AL_AGENT"), agent)) {
    const struct CMUnitTest none[] = { cmocka_unit_test(test_unpack_has_no_agent) };
    return cmocka_run_group_tests(none, NULL, NULL);
  }
  setenv("AL_AGENT", agent, 1); /* the tests change the directory */
  return cmocka_run_group_tests(tests, NULL, NULL);
}
