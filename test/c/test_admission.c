/* SPDX-License-Identifier: Apache-2.0 */
/* Three processes that want more lanes than there are places, on stand-ins for Lima, some of them killed at random while
 * they hold or wait. Measured from outside: each stand-in for QEMU counts at its start how many of them there are, which
 * is the only moment at which there can be one more; and this process looks all the time. AL_ADMIT_LANES, AL_ADMIT_SEED. */
#include "crowd.h"
#include <sys/wait.h>

#define OWNERS 3
#define PLACES 2
#define AT_ONCE 3 /* lanes that one owner wants at a time */
#define DEADLINE_MS 1200000

/* ---- an owner ---- */

typedef struct want_s {
  uint32_t id;
  bool closing;
} want_t;

/* Its exit code is 9 when a lane could not be had or closed. `last` is there: no more. */
_Noreturn static void
be_owner(uint32_t seed, const char *last) {
  want_t wants[AT_ONCE] = {{0, false}};
  crowd_seed = seed;
  if (stage_open()) _exit(9);
  for (bool busy = true; busy; usleep(1000)) {
    busy = false;
    for (int i = 0; i < AT_ONCE; i++) {
      want_t *w = &wants[i];
      reply_t *r = &stage.replies[w->id];
      uv_mutex_lock(&stage.lock);
      bool done = w->id && r->done;
      uv_mutex_unlock(&stage.lock);
      if (done && r->err.code) {
        fprintf(stderr, "%s: %s: %s\n", w->closing ? "close" : "create", al_err_name(r->err.code), r->err.msg);
        _exit(9);
      }
      if (done && !w->closing) {
        if (crowd_draw(2)) usleep(crowd_draw(30000));
        w->id = stage_post("close", stage_map("lane", stage_text(r->value, "lane"), NULL));
        w->closing = true;
      } else if (!w->id || done) {
        bool more = access(last, F_OK) != 0;
        *w = (want_t) {.id = more ? stage_post("create", crowd_lane(PLACES, 900)) : 0};
      }
      busy |= w->id != 0;
    }
  }
  _exit(al_engine_close(stage.engine, STAGE_WAIT_MS) ? 9 : 0);
}

static pid_t
start_owner(const char *last) {
  uint32_t seed = crowd_draw(UINT32_MAX);
  pid_t pid = fork();
  assert_true(pid >= 0);
  if (pid == 0) be_owner(seed, last);
  return pid;
}

/* ---- from outside ---- */

/* Stand-ins for QEMU of this place that are there now. */
static int
vms(void) {
  char want[200];
  snprintf(want, sizeof want, "%s/bin/qemu-system-", stage.dir);
  return stand_in_count(want);
}

/* The most that one of them has counted at its start, and how many have. */
static int
most_counted(int *starts) {
  int n = 0, most = 0;
  FILE *f = fopen(al_test_path(stage.home, "run/census"), "re");
  assert_non_null(f);
  for (*starts = 0; fscanf(f, "%d", &n) == 1; ++*starts)
    if (n > most) most = n;
  fclose(f);
  return most;
}

/* Whatever takes a place writes down how many older ones still wait, and how many places are taken then. */
static void
watch_registry(void) {
  stage_sql("CREATE TABLE audit (older INTEGER, taken INTEGER)");
  stage_sql("CREATE TABLE audit_now (lane INTEGER)");
  stage_sql("CREATE TRIGGER audit_lane AFTER INSERT ON lanes BEGIN INSERT INTO audit_now VALUES (NEW.id); END");
  stage_sql("CREATE TRIGGER audit_turn AFTER DELETE ON waiters WHEN EXISTS (SELECT 1 FROM audit_now) BEGIN"
    " INSERT INTO audit SELECT (SELECT count(*) FROM waiters WHERE ticket < OLD.ticket),"
    " (SELECT count(*) FROM lanes WHERE state <> 'closed'); DELETE FROM audit_now; END");
  assert_int_equal(stage_sql("SELECT count(*) FROM sqlite_master WHERE name LIKE 'audit%'"), 4);
}

typedef struct tally_s {
  int killed, waited, failed, most;
} tally_t;

static void
kill_one(pid_t pid, tally_t *t) {
  char sql[100];
  snprintf(sql, sizeof sql, "SELECT count(*) > 0 FROM waiters WHERE pid = %d", (int) pid);
  t->waited += stage_sql(sql);
  t->killed += kill(pid, SIGKILL) == 0;
}

/* Reaps who has ended; one of ours begins anew as long as `more`. How many of ours there are. */
static int
collect(pid_t *owners, const char *last, bool more, tally_t *t) {
  int status, there = 0;
  for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
    for (int i = 0; i < OWNERS; i++) {
      if (owners[i] != pid) continue;
      t->failed += WIFEXITED(status) && WEXITSTATUS(status);
      owners[i] = more ? start_owner(last) : 0;
      break;
    }
  }
  for (int i = 0; i < OWNERS; i++) there += owners[i] != 0;
  return there;
}

static void
run_owners(int lanes, tally_t *t) {
  pid_t owners[OWNERS];
  char last[200];
  uint64_t end = al_plat_mono_ms() + DEADLINE_MS, next_kill = 0;
  snprintf(last, sizeof last, "%s", al_test_path(stage.dir, "out/last"));
  for (int i = 0; i < OWNERS; i++) owners[i] = start_owner(last);
  for (int rows = 0; rows < lanes; usleep(2000)) {
    int n = vms();
    if (n > t->most) t->most = n;
    (void) collect(owners, last, true, t);
    if (al_plat_mono_ms() >= next_kill) {
      if (next_kill) kill_one(owners[crowd_draw(OWNERS)], t);
      next_kill = al_plat_mono_ms() + 500 + crowd_draw(2500);
      rows = stage_sql("SELECT count(*) FROM lanes");
    }
    if (al_plat_mono_ms() > end) fail_msg("only %d lanes until the deadline", rows);
  }
  al_test_write(stage.dir, "out/last", "");
  while (collect(owners, last, false, t) > 0 && al_plat_mono_ms() < end) usleep(5000);
  assert_int_equal(collect(owners, last, false, t), 0);
}

static void
test_admission_keeps_to_the_places_and_the_order(void **state) {
  (void) state;
  static const char *const lima[] = {"_config", NULL};
  tally_t t = {0};
  int lanes = crowd_number("AL_ADMIT_LANES", 40), seed = crowd_number("AL_ADMIT_SEED", 1), starts = 0;
  crowd_seed = (uint32_t) seed;
  stage_make();
  assert_int_equal(stage_open(), 0);
  assert_int_equal(stage_wait(stage_post("list", stage_map("home", stage.home, NULL)))->err.code, 0);
  watch_registry();
  stage_close();
  al_test_write(al_test_path(stage.home, "run"), "census", "");
  uint64_t began = al_plat_mono_ms();
  run_owners(lanes, &t);
  uint64_t ran = al_plat_mono_ms() - began;
  /* What the killed ones have left is over when their keepers are, and then one sweep closes all. */
  assert_int_equal(stage_open(), 0);
  for (uint64_t end = al_plat_mono_ms() + 120000; al_plat_mono_ms() < end; usleep(200000)) {
    assert_int_equal(stage_wait(stage_post("reap", stage_map("home", stage.home, NULL)))->err.code, 0);
    if (stage_sql("SELECT count(*) FROM lanes WHERE state <> 'closed'") == 0) break;
  }
  stage_close();
  int counted = most_counted(&starts), rows = stage_sql("SELECT count(*) FROM lanes");
  int older = stage_sql("SELECT count(*) FROM audit WHERE older > 0"), taken = stage_sql("SELECT max(taken) FROM audit");
  printf("{\"admission\":{\"lanes\":%d,\"vms\":%d,\"seed\":%d,\"killed\":%d,\"killedWaiting\":%d,\"ms\":%d,\"mostAtAStart\":%d,"
    "\"mostSeen\":%d,\"mostInRegistry\":%d,\"overtaken\":%d,\"failures\":%d}}\n", rows, starts, seed, t.killed, t.waited,
    (int) ran, counted, t.most, taken, older, t.failed);
  fflush(stdout);
  assert_int_equal(counted, PLACES); /* never more, and both were used */
  assert_in_range(t.most, 1, PLACES);
  assert_int_equal(taken, PLACES);
  assert_int_equal(older, 0);
  assert_int_equal(t.failed, 0);
  assert_int_equal(stage_sql("SELECT count(*) FROM audit"), rows);
  assert_true(t.waited > 0);
  assert_int_equal(stage_sql("SELECT count(*) FROM lanes WHERE state <> 'closed'"), 0);
  assert_int_equal(stage_sql("SELECT count(*) FROM waiters"), 0);
  assert_int_equal(stage_count(al_test_path(stage.home, "lima"), lima, NULL, 0), 0);
  assert_int_equal(vms(), 0);
  stage_remove();
}

int
main(int argc, char **argv) {
  int code;
  if (stand_in(argc, argv, &code)) return code;
  if (!stage_start()) return 1;
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_admission_keeps_to_the_places_and_the_order)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
