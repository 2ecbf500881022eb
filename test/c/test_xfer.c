/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the transfers against the real lane agent on this machine: trees in, files out, links, refusals, cancelling. */
#include "chan_test.h"
#include "sha256.h"
#include "xfer_int.h"
#include <dirent.h>
#include <sys/stat.h>
#include <sys/un.h>

typedef struct outcome_s {
  bool done;
  al_xfer_stats_t stats;
  al_err_t err;
} outcome_t;

static void
on_xfer(al_xfer_t *x, void *data, const al_xfer_stats_t *stats, const al_err_t *err) {
  outcome_t *o = data;
  (void) x;
  assert_false(o->done);
  o->done = true;
  o->stats = *stats;
  o->err = *err;
}

static const char *
path(const rig_t *r, const char *rest) {
  static char ring[8][512];
  static unsigned turn;
  char *p = ring[turn++ % 8];
  snprintf(p, 512, "%s/%s", r->dir, rest);
  return p;
}

static void
read_file(const char *p, char *out, size_t cap) {
  FILE *f = fopen(p, "r");
  assert_non_null(f);
  out[fread(out, 1, cap - 1, f)] = 0;
  fclose(f);
}

__attribute__((format(printf, 2, 3))) static void
sh(const rig_t *r, const char *fmt, ...) {
  char cmd[2048];
  int n = snprintf(cmd, sizeof cmd, "cd %s && ", r->dir);
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(cmd + n, sizeof cmd - (size_t) n, fmt, ap);
  va_end(ap);
  if (system(cmd) != 0) fail_msg("%s", cmd);
}

static void
copy_in(rig_t *r, const char *from, const char *to, outcome_t *o) {
  al_xfer_t *x;
  memset(o, 0, sizeof *o);
  assert_int_equal(al_xfer_in(r->chan, from, to, on_xfer, o, &x, &o->err), 0);
  assert_false(o->done);
  rig_wait(r, &o->done, 60000);
}

static void
copy_out(rig_t *r, const char *from, const char *to, const char *root, uint64_t max, outcome_t *o) {
  al_xfer_t *x;
  memset(o, 0, sizeof *o);
  assert_int_equal(al_xfer_out(r->chan, from, to, root, max, on_xfer, o, &x, &o->err), 0);
  assert_false(o->done);
  rig_wait(r, &o->done, 60000);
}

static void
assert_ok(const outcome_t *o) {
  if (o->err.code) fail_msg("%s: %s", al_err_name(o->err.code), o->err.msg);
}

static void
assert_fails(const outcome_t *o, int code, const char *word) {
  if (o->err.code != code || (word && !strstr(o->err.msg, word)))
    fail_msg("expected %s with \"%s\", got %s: %s", al_err_name(code), word ? word : "", al_err_name(o->err.code), o->err.msg);
}

/* Temporary files of ours in a directory. */
static int
leftovers(const char *dir) {
  int n = 0;
  DIR *d = opendir(dir);
  assert_non_null(d);
  for (struct dirent *e; (e = readdir(d));)
    if (strncmp(e->d_name, ".agent-lane-", 12) == 0) n++;
  closedir(d);
  return n;
}

#define START(r) \
  rig_t r; \
  if (!rig_agent_start(&r)) skip()

static void
test_xfer_in_tree_keeps_everything(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  sh(&r, "mkdir -p from/a/b 'from/with space' from/empty && printf one > from/a/one && chmod 751 from/a/one && ln -s ../nowhere from/a/dangling"
         " && ln from/a/one from/a/b/hard && printf x > 'from/with space/n\xc3\xa4me' && printf y > \"$(printf 'from/bad\\377name')\" && chmod 2770 from/a/b"
         " && touch -d '2001-02-03 04:05:06' from/a/one from/empty && truncate -s 50M from/sparse && printf end >> from/sparse"
         " && mkdir -p from/$(printf 'd%%.0s' $(seq 120))/$(printf 'e%%.0s' $(seq 120)) && printf deep > from/$(printf 'd%%.0s' $(seq 120))/$(printf 'e%%.0s' $(seq 120))/f"
         " && touch -d '2010-01-01' from && mkdir -p to && printf old > to/kept && mkdir to/a && printf oldone > to/a/one");
  copy_in(&r, path(&r, "from"), path(&r, "to"), &o);
  assert_ok(&o);
  assert_int_equal(o.stats.bytes, (50u << 20) + 3 + 3 + 1 + 1 + 4);
  sh(&r, "test \"$(stat -c %%y to)\" = \"$(stat -c %%y from)\" && test \"$(cat to/kept)\" = old && rm to/kept && touch -r from to && diff -r --no-dereference from to");
  sh(&r, "for d in from to; do (cd $d && find . -printf '%%p %%m %%l %%n %%T@ %%y\\n' | grep -av '^./sparse ' | sort) > $d.list; done; diff from.list to.list");
  sh(&r, "test \"$(stat -c %%i to/a/one)\" = \"$(stat -c %%i to/a/b/hard)\" && test \"$(du -k to/sparse | cut -f1)\" -lt 1024");
  rig_end(&r);
}

static void
test_xfer_in_file_is_put_in_place_whole(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  sh(&r, "printf new > f && chmod 640 f && touch -d '2001-02-03 04:05:06' f && mkdir -p x && printf old > x/victim && ln -s victim x/link && ln -s f rootlink");
  copy_in(&r, path(&r, "f"), path(&r, "deep/er/g with space"), &o);
  assert_ok(&o);
  assert_int_equal(o.stats.files, 1);
  sh(&r, "cmp f 'deep/er/g with space' && test \"$(stat -c '%%a %%y' 'deep/er/g with space')\" = \"$(stat -c '%%a %%y' f)\"");
  copy_in(&r, path(&r, "rootlink"), path(&r, "x/link"), &o); /* the root is followed, the target is replaced */
  assert_ok(&o);
  sh(&r, "test ! -L x/link && cmp f x/link && test \"$(cat x/victim)\" = old");
  copy_in(&r, path(&r, "f"), path(&r, "$(touch pwned)'\";touch pwned;-x"), &o);
  assert_ok(&o);
  sh(&r, "test ! -e pwned");
  assert_int_equal(leftovers(path(&r, "deep/er")) + leftovers(path(&r, "x")) + leftovers(r.dir), 0);
  rig_end(&r);
}

static void
test_xfer_in_tree_follows_no_link_in_the_target(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  sh(&r, "mkdir -p from/d outside to && printf new > from/d/f && printf new > from/g && ln -s ../outside to/d && printf safe > outside/f"
         " && ln -s ../outside/f to/g");
  copy_in(&r, path(&r, "from"), path(&r, "to"), &o);
  assert_ok(&o);
  sh(&r, "test \"$(cat outside/f)\" = safe && test ! -L to/d && test ! -L to/g && test \"$(cat to/d/f to/g)\" = newnew");
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
  assert_int_equal(al_xfer_in(r.chan, path(&r, "f"), "relative", on_xfer, &o, &x, &err), AL_EGUEST_PATH_INVALID);
  assert_int_equal(al_xfer_in(r.chan, path(&r, "f"), "/a/../b", on_xfer, &o, &x, &err), AL_EGUEST_PATH_INVALID);
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
  bool can = access(path(&r, "from/d/secret"), R_OK) == 0;
  copy_in(&r, path(&r, "from"), path(&r, "to"), &o);
  if (getuid() == 0) assert_int_equal(seteuid(0), 0);
  (void) can;
  assert_fails(&o, AL_ESOURCE_UNREADABLE, "from/d/secret: Permission denied");
  rig_end(&r);
}

static void
test_xfer_in_shrinking_file_is_an_error(void **state) {
  (void) state;
  START(r);
  outcome_t o = { 0 };
  al_xfer_t *x;
  sh(&r, "head -c 30000000 /dev/urandom > big && printf old > target");
  kill(r.agent, SIGSTOP); /* so that the reader gets no further than its bounded buffers */
  assert_int_equal(al_xfer_in(r.chan, path(&r, "big"), path(&r, "target"), on_xfer, &o, &x, &o.err), 0);
  rig_idle(&r, 200);
  assert_int_equal(truncate(path(&r, "big"), 4000000), 0);
  kill(r.agent, SIGCONT);
  rig_wait(&r, &o.done, 10000);
  assert_fails(&o, AL_ESOURCE_UNREADABLE, "shrank");
  assert_in_range(o.stats.bytes, 100000, 4000000);
  sh(&r, "test \"$(cat target)\" = old");
  assert_int_equal(leftovers(r.dir), 0);
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
  for (al_block_t *b; (b = al__pipe_take(&pipe)); al_free(b)) {
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
  rig_dir(&r);
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, sv), 0);
  r.peer = sv[1];
  rig_base(&r, sv[0]);
  sh(&r, "mkdir d && printf x > d/f && mkfifo d/fifo && head -c 3000 /dev/zero > f && { test $(id -u) != 0 || chown 12345:12346 f; }");
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
wait_for_leftover(rig_t *r, const outcome_t *o) {
  for (int i = 0; i < 500 && !o->done && leftovers(r->dir) == 0; i++) rig_idle(r, 2);
  assert_false(o->done);
  assert_int_equal(leftovers(r->dir), 1);
}

static void
test_xfer_in_cancel_removes_the_temporary(void **state) {
  (void) state;
  START(r);
  outcome_t o = { 0 };
  al_xfer_t *x;
  sh(&r, "truncate -s 8G big && head -c 200000000 /dev/zero | dd of=big conv=notrunc status=none && printf old > target");
  assert_int_equal(al_xfer_in(r.chan, path(&r, "big"), path(&r, "target"), on_xfer, &o, &x, &o.err), 0);
  wait_for_leftover(&r, &o);
  al_xfer_cancel(x, NULL);
  al_xfer_cancel(x, NULL);
  assert_false(o.done);
  rig_wait(&r, &o.done, 5000);
  assert_fails(&o, AL_EABORTED, NULL);
  assert_int_equal(leftovers(r.dir), 0);
  sh(&r, "test \"$(cat target)\" = old");
  rig_end(&r);
}

static void
test_xfer_in_ends_with_its_channel(void **state) {
  (void) state;
  START(r);
  outcome_t o[3] = { 0 };
  al_xfer_t *x;
  sh(&r, "head -c 60000000 /dev/zero > big");
  for (int i = 0; i < 3; i++) assert_int_equal(al_xfer_in(r.chan, path(&r, "big"), path(&r, i == 0 ? "t0" : i == 1 ? "t1" : "t2"), on_xfer, &o[i], &x, &o[i].err), 0);
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
  copy_out(&r, path(&r, "d/link"), path(&r, "t/t"), NULL, 0, &o);
  assert_fails(&o, AL_EIS_LINK, NULL);
  copy_out(&r, path(&r, "dlink/f"), path(&r, "t/t"), NULL, 0, &o);
  assert_fails(&o, AL_EIS_LINK, NULL);
  sh(&r, "test ! -e t");
  assert_int_equal(al_xfer_out(r.chan, "/x/../y", path(&r, "t"), NULL, 0, on_xfer, &o, &x, &err), AL_EGUEST_PATH_INVALID);
  assert_int_equal(al_xfer_out(r.chan, "/x/y/", path(&r, "t"), NULL, 0, on_xfer, &o, &x, &err), AL_EGUEST_PATH_INVALID);
  assert_int_equal(al_xfer_out(r.chan, "/x/y", "t", NULL, 0, on_xfer, &o, &x, &err), AL_EHOST_PATH_REFUSED);
  rig_end(&r);
}

static void
test_xfer_out_refuses_bad_targets(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  /* other/ is a repository outside of which the link in the worktree leads into it: its .git must not make it the root. */
  sh(&r, "printf new > f && mkdir -p wt/d/.git.d wt/sub other/.git outside && touch wt/.git && ln -s ../outside wt/out && ln -s ../other wt/repo"
         " && printf safe > outside/f && printf safe > other/f && ln -s ../outside/f wt/flink && ln -s ../outside/none wt/dangling && mkfifo wt/fifo && touch wt/plain");
  const char *const refused[] = { "wt/out/f", "wt/out/new/f", "wt/repo/f", "wt/repo/new", "wt/flink", "wt/dangling", "wt/dangling/f", "wt/d", "wt/fifo",
    "wt/plain/f", "wt/.git", "wt/.git/hooks/x", "wt/.GIT/x", "wt/sub/.git/x", "wt/sub/.git", "wt/sub/../x", "wt/./x", "wt/sub/", "other/.git/hooks/h", "wt/sub/GIT~1/x" };
  for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
    copy_out(&r, path(&r, "f"), path(&r, refused[i]), NULL, 0, &o);
    if (o.err.code != AL_EHOST_PATH_REFUSED) fail_msg("%s: %s %s", refused[i], al_err_name(o.err.code), o.err.msg);
  }
  sh(&r, "test \"$(cat outside/f other/f)\" = safesafe && test ! -e outside/new && test ! -e outside/none && test ! -e other/new && test ! -e wt/sub/.git && test ! -e wt/x");
  assert_int_equal(leftovers(path(&r, "wt")) + leftovers(path(&r, "outside")) + leftovers(path(&r, "other")) + leftovers(path(&r, "wt/sub")), 0);
  rig_end(&r);
}

static void
test_xfer_out_finds_the_root(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  /* Links above the root are the user's own and are followed; Sandcastle's worktree is the root because of its .git file. */
  sh(&r, "printf new > f && mkdir -p real/repo/.git real/repo/.sandcastle/worktrees/x && ln -s real alias && echo 'gitdir: y' > real/repo/.sandcastle/worktrees/x/.git"
         " && mkdir -p plain/a elsewhere && ln -s ../elsewhere plain/link");
  copy_out(&r, path(&r, "f"), path(&r, "alias/repo//.sandcastle/worktrees/x/.sandcastle/patches/1/untracked/a b"), NULL, 0, &o);
  assert_ok(&o);
  sh(&r, "cmp f 'real/repo/.sandcastle/worktrees/x/.sandcastle/patches/1/untracked/a b'");
  copy_out(&r, path(&r, "f"), path(&r, "plain/link/x"), NULL, 0, &o); /* no .git, no option: the deepest parent is the root */
  assert_ok(&o);
  sh(&r, "cmp f elsewhere/x && rm elsewhere/x");
  copy_out(&r, path(&r, "f"), path(&r, "plain/link/x"), path(&r, "plain/"), 0, &o);
  assert_fails(&o, AL_EHOST_PATH_REFUSED, "link");
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

/* Another process swaps a directory of the target for a link all the time: whatever happens, nothing is written outside. */
static void
test_xfer_out_link_race_writes_nothing_outside(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  int done = 0, refused = 0;
  sh(&r, "printf new > f && mkdir -p wt/.git wt/d outside && touch wt/d/x && printf safe > outside/x");
  char d[512], l[512];
  snprintf(d, sizeof d, "%s", path(&r, "wt/d"));
  snprintf(l, sizeof l, "%s", path(&r, "wt/l"));
  assert_int_equal(symlink("../outside", l), 0);
  pid_t racer = fork();
  if (racer == 0) {
    while (getppid() != 1) renameat2(AT_FDCWD, d, AT_FDCWD, l, RENAME_EXCHANGE);
    _exit(0);
  }
  for (int i = 0; i < 300; i++) {
    copy_out(&r, path(&r, "f"), path(&r, "wt/d/x"), NULL, 0, &o);
    if (!o.err.code) done++;
    else if (o.err.code == AL_EHOST_PATH_REFUSED) refused++;
  }
  kill(racer, SIGKILL);
  waitpid(racer, NULL, 0);
  assert_true(done > 0 && refused > 0);
  sh(&r, "test \"$(cat outside/x)\" = safe && test \"$(ls -A outside)\" = x");
  print_message("%d put in place, %d refused of 300\n", done, refused);
  rig_end(&r);
}

static void
test_xfer_out_disk_failure_leaves_the_target(void **state) {
  (void) state;
  START(r);
  outcome_t o;
  if (geteuid() != 0) {
    rig_end(&r);
    skip();
  }
  sh(&r, "mkdir small && mount -t tmpfs -o size=1m tmpfs small 2>/dev/null || touch nomount");
  if (access(path(&r, "nomount"), F_OK) == 0) {
    rig_end(&r);
    skip();
  }
  sh(&r, "head -c 5000000 /dev/zero > big && printf old > small/target");
  copy_out(&r, path(&r, "big"), path(&r, "small/target"), NULL, 0, &o);
  int left = leftovers(path(&r, "small"));
  char text[8];
  read_file(path(&r, "small/target"), text, sizeof text);
  sh(&r, "umount small");
  assert_fails(&o, AL_ECOPY_OUT_FAILED, "No space");
  assert_string_equal(text, "old");
  assert_int_equal(left, 0);
  rig_end(&r);
}

static void
test_xfer_out_cancel_leaves_the_target(void **state) {
  (void) state;
  START(r);
  outcome_t o = { 0 };
  al_xfer_t *x;
  sh(&r, "head -c 150000000 /dev/zero > big && printf old > target");
  assert_int_equal(al_xfer_out(r.chan, path(&r, "big"), path(&r, "target"), NULL, 0, on_xfer, &o, &x, &o.err), 0);
  wait_for_leftover(&r, &o);
  al_xfer_cancel(x, NULL);
  rig_wait(&r, &o.done, 5000);
  assert_fails(&o, AL_EABORTED, NULL);
  assert_int_equal(leftovers(r.dir), 0);
  sh(&r, "test \"$(cat target)\" = old");
  rig_end(&r);
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_xfer_in_tree_keeps_everything),
    cmocka_unit_test(test_xfer_in_file_is_put_in_place_whole),
    cmocka_unit_test(test_xfer_in_tree_follows_no_link_in_the_target),
    cmocka_unit_test(test_xfer_in_names_what_is_wrong),
    cmocka_unit_test(test_xfer_in_unreadable_is_named),
    cmocka_unit_test(test_xfer_in_shrinking_file_is_an_error),
    cmocka_unit_test(test_xfer_tar_says_nothing_of_the_host_and_has_no_end_after_a_failure),
    cmocka_unit_test(test_xfer_in_cancel_removes_the_temporary),
    cmocka_unit_test(test_xfer_in_ends_with_its_channel),
    cmocka_unit_test(test_xfer_both_ways_is_exact),
    cmocka_unit_test(test_xfer_out_replaces_whole_or_not_at_all),
    cmocka_unit_test(test_xfer_out_takes_regular_files_only),
    cmocka_unit_test(test_xfer_out_refuses_bad_targets),
    cmocka_unit_test(test_xfer_out_finds_the_root),
    cmocka_unit_test(test_xfer_out_mode_follows_the_umask),
    cmocka_unit_test(test_xfer_out_link_race_writes_nothing_outside),
    cmocka_unit_test(test_xfer_out_disk_failure_leaves_the_target),
    cmocka_unit_test(test_xfer_out_cancel_leaves_the_target),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
