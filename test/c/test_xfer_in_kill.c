/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of copying in: whatever dies, and whenever, the target is old or new, and nothing else is left in the guest. */
#include "xfer_test.h"

#define ROUNDS 50

static char place[64]; /* the guest's side and the sources, which outlives each round's agent */
static unsigned seed = 11;

static const char *
at(const char *name) {
  return al_test_path(place, name);
}

__attribute__((format(printf, 1, 2))) static int
run(const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  int status = al_test_system(place, fmt, ap);
  va_end(ap);
  return status;
}

/* Process that the agent has started, or 0. */
static pid_t
unpacker(pid_t agent) {
  char name[64], text[64] = "";
  snprintf(name, sizeof name, "/proc/%d/task/%d/children", (int) agent, (int) agent);
  FILE *f = fopen(name, "r");
  if (!f) return 0;
  size_t n = fread(text, 1, sizeof text - 1, f);
  text[n] = 0;
  fclose(f);
  return (pid_t) atoi(text);
}

/* What is ended: the transfer, in the guest the one that unpacks and its agent, and the host or its channel. */
typedef enum { CANCEL, KILL_UNPACKER, KILL_AGENT, END_AGENT, KILL_HOST, CLOSE, WAYS } way_t;

/* A process that was told to end may still be at it. */
static void
assert_clean_soon(way_t way) {
  int left = 1;
  for (int i = 0; i < 1000 && (left = leftovers(at("guest"))) > 0; i++) usleep(10000);
  if (left > 0) fail_msg("%d left by way %d", left, (int) way);
}

static void
strike(rig_t *r, al_xfer_t *x, way_t way) {
  pid_t pid = way == KILL_UNPACKER ? unpacker(r->agent) : r->agent;
  switch (way) {
    case CANCEL: al_xfer_cancel(x, NULL); break;
    case KILL_UNPACKER:
    case KILL_AGENT:
      if (pid > 0) kill(pid, SIGKILL);
      break;
    case END_AGENT: kill(pid, SIGTERM); break;
    case CLOSE: al_chan_close(r->chan, NULL); break;
    case KILL_HOST:
    case WAYS: break;
  }
}

/* A host that is killed: a process of its own, which says where its scratch directory is. */
static void
kill_host(const char *from, const char *to, uint64_t us) {
  pid_t host = al_test_fork();
  assert_true(host >= 0);
  if (host == 0) {
    rig_t r;
    outcome_t o;
    if (!rig_agent_start(&r)) _exit(1);
    FILE *f = fopen(at("host-dir"), "w");
    fputs(r.dir, f);
    fclose(f);
    begin_in(&r, from, to, &o);
    rig_wait(&r, &o.done, 60000);
    _exit(0);
  }
  while (access(at("host-dir"), F_OK) != 0) usleep(1000);
  usleep((useconds_t) us);
  kill(host, SIGKILL);
  waitpid(host, NULL, 0);
  assert_int_equal(run("rm -rf \"$(cat host-dir)\" host-dir"), 0);
}

static bool
one_round(way_t way, const char *from, const char *to) {
  uint64_t us = (uint64_t) rand_r(&seed) % (rand_r(&seed) % 3 == 0 ? 12000 : 300000);
  if (way == KILL_HOST) {
    kill_host(from, to, us);
    assert_clean_soon(way);
    return true;
  }
  rig_t r;
  outcome_t o;
  if (!rig_agent_start(&r)) return false;
  al_xfer_t *x = begin_in(&r, from, to, &o);
  for (uint64_t until = uv_hrtime() + us * 1000; !o.done && uv_hrtime() < until;) rig_idle(&r, 1);
  if (!o.done) strike(&r, x, way);
  rig_wait(&r, &o.done, 30000);
  if (way == CANCEL) assert_clean_soon(way);
  if ((way == KILL_AGENT || way == END_AGENT) && o.err.code) rig_wait(&r, &r.closed, 30000);
  rig_end(&r);
  if (way == KILL_UNPACKER) assert_in_range(leftovers(at("guest")), 0, 1);
  else assert_clean_soon(way);
  return true;
}

static void
test_xfer_in_whatever_dies_the_target_is_old_or_new(void **state) {
  (void) state;
  unsigned old = 0, new = 0, stale = 0;
  al_test_dir(place);
  assert_int_equal(run("mkdir guest tree && head -c 20000000 /dev/urandom > new && printf old > old && for i in $(seq 600); do mkdir -p tree/d$((i / 30)) && head -c 3000 /dev/urandom > tree/d$((i / 30))/f$i; done"), 0);
  for (int i = 0; i < ROUNDS; i++) {
    way_t way = (way_t) (i % WAYS);
    bool tree = i / WAYS % 2;
    assert_int_equal(run("rm -rf guest/to && { %s cp old guest/to; }", tree ? "true ||" : ""), 0);
    if (!one_round(way, at(tree ? "tree" : "new"), at("guest/to"))) skip();
    bool is_new = run(tree ? "test -e guest/to" : "! cmp -s guest/to old") == 0;
    if (is_new) assert_int_equal(run(tree ? "diff -r tree guest/to" : "cmp new guest/to"), 0);
    else if (!tree) assert_int_equal(run("cmp old guest/to"), 0);
    old += !is_new;
    new += is_new;
    if (leftovers(at("guest")) > 0) { /* the next copy into the same place clears it away */
      rig_t r;
      outcome_t o;
      stale++;
      assert_true(rig_agent_start(&r));
      copy_in(&r, at("old"), at("guest/other"), &o);
      assert_ok(&o);
      rig_end(&r);
      assert_int_equal(leftovers(at("guest")), 0);
      assert_int_equal(run("rm guest/other"), 0);
    }
  }
  print_message("%u old, %u new, %u left for the next copy\n", old, new, stale);
  assert_in_range(old, ROUNDS / 4, ROUNDS);
  assert_in_range(stale, 1, ROUNDS);
  al_test_dir_remove(place);
}

/* A merge is not whole at once, but each file is; and once nothing dies any more, all is there. */
static void
test_xfer_in_merge_that_dies_is_made_whole_by_the_next(void **state) {
  (void) state;
  al_test_dir(place);
  assert_int_equal(run("mkdir guest tree && for i in $(seq 900); do mkdir -p tree/d$((i / 30)) && head -c 3000 /dev/urandom > tree/d$((i / 30))/f$i; done"
                       " && cp -a tree old && find old -type f -exec sh -c 'for f; do printf old > $f; done' x {} +"), 0);
  for (int i = 0; i < 12; i++) {
    assert_int_equal(run("rm -rf guest/to && cp -a old guest/to"), 0);
    if (!one_round((way_t) (i % WAYS), at("tree"), at("guest/to"))) skip();
    /* Each file is one of both: none differs from both. */
    assert_int_equal(run("test -z \"$({ diff -rq tree guest/to; diff -rq old guest/to; } | sed 's/^Files [a-z]*//' | sort | uniq -d)\""), 0);
    assert_int_equal(run("test $(find guest/to -type f | wc -l) = 900"), 0);
    rig_t r;
    outcome_t o;
    assert_true(rig_agent_start(&r));
    copy_in(&r, at("tree"), at("guest/to"), &o);
    assert_ok(&o);
    rig_end(&r);
    assert_int_equal(run("diff -r tree guest/to"), 0);
    assert_int_equal(leftovers(at("guest")), 0);
  }
  al_test_dir_remove(place);
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_xfer_in_whatever_dies_the_target_is_old_or_new),
    cmocka_unit_test(test_xfer_in_merge_that_dies_is_made_whole_by_the_next),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
