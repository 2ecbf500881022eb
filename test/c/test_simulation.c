/* SPDX-License-Identifier: Apache-2.0 */
/* Many owners with many lanes on stand-ins for Lima, created, killed and swept at random; at the end the registry must be
 * what is really there. AL_SIM_LANES, AL_SIM_OWNERS, AL_SIM_SEED; what is measured is printed as one JSON line. */
#include "crowd.h"
#include "run_make.h"
#include <poll.h>
#include <sys/wait.h>

#define PLACES 32 /* the most that maxConcurrentVms takes */
#define SWEEPERS 3
#define OWNER_LANES 20
#define DEADLINE_MS 1200000

/* ---- an owner: its exit code is 0, or 9 with a sentence on stderr ---- */

static reply_t *
patient(uint32_t id) {
  for (uint64_t end = al_plat_mono_ms() + DEADLINE_MS; al_plat_mono_ms() < end; usleep(2000))
    if (stage_done(id)) return &stage.replies[id];
  fprintf(stderr, "no answer to request %u\n", id);
  _exit(9);
}

static void
must(const char *what, const reply_t *r) {
  if (!r->err.code) return;
  fprintf(stderr, "%s of %s: %s: %s\n", what, stage.name, al_err_name(r->err.code), r->err.msg);
  _exit(9);
}

_Noreturn static void
be_owner(uint32_t seed) {
  crowd_seed = seed;
  if (stage_open()) _exit(9);
  for (int i = 0; i < OWNER_LANES; i++) {
    reply_t *r = patient(stage_post("create", crowd_lane(PLACES, 600)));
    must("create", r);
    snprintf(stage.name, sizeof stage.name, "%s", stage_text(r->value, "lane"));
    if (crowd_draw(2)) usleep(crowd_draw(300000));
    must("ping", patient(stage_post("ping", stage_map("lane", stage.name, NULL))));
    must("close", patient(stage_post("close", stage_map("lane", stage.name, NULL))));
  }
  int left = al_engine_close(stage.engine, STAGE_WAIT_MS);
  _exit(left ? 9 : 0);
}

/* Sweeps again and again, beside the others. */
_Noreturn static void
be_sweeper(uint32_t seed) {
  crowd_seed = seed;
  if (stage_open()) _exit(9);
  for (;;) {
    reply_t *r = patient(stage_post("reap", stage_map("home", stage.home, NULL)));
    must("reap", r);
    const al_val_t *list = al_val_get(r->value, "reaped");
    for (size_t i = 0; list && i < list->len; i++) {
      const al_val_t *ok = al_val_get(list->items[i], "ok");
      if (ok && ok->kind == AL_BOOL && !ok->b)
        fprintf(stderr, "reap of %s: %s\n", stage_text(list->items[i], "name"), stage_text(list->items[i], "message"));
    }
    usleep(20000 + crowd_draw(400000));
  }
}

/* ---- the world ---- */

typedef struct actor_s {
  pid_t pid;
  bool sweeper;
} actor_t;

static void
start(actor_t *a, bool sweeper) {
  uint32_t seed = crowd_draw(UINT32_MAX);
  a->sweeper = sweeper;
  a->pid = fork();
  assert_true(a->pid >= 0);
  if (a->pid) return;
  if (sweeper) be_sweeper(seed);
  be_owner(seed);
}

typedef struct tally_s {
  int killed, failed;
} tally_t;

/* Those that have ended: one of ours begins anew as long as `more`, others were somebody's children. */
static void
collect(actor_t *all, int count, bool more, tally_t *t) {
  int status;
  for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
    int i = 0;
    while (i < count && all[i].pid != pid) i++;
    if (i == count) continue;
    if (WIFEXITED(status) && WEXITSTATUS(status)) t->failed++;
    all[i].pid = 0;
    if (more) start(&all[i], all[i].sweeper);
  }
}

static bool
any_left(const actor_t *all, int count, bool sweepers) {
  for (int i = 0; i < count; i++)
    if (all[i].pid && all[i].sweeper == sweepers) return true;
  return false;
}

static void
run_world(int lanes, int owners, tally_t *t) {
  actor_t all[256] = {{0}};
  int count = owners + SWEEPERS, rows = 0;
  assert_in_range(owners, 1, 250);
  uint64_t end = al_plat_mono_ms() + DEADLINE_MS;
  for (int i = 0; i < count; i++) start(&all[i], i >= owners);
  while (rows < lanes) {
    usleep(20000 + crowd_draw(60000));
    collect(all, count, true, t);
    actor_t *a = &all[crowd_draw((uint32_t) count)];
    if (crowd_draw(3) == 0 && a->pid && kill(a->pid, SIGKILL) == 0) t->killed++;
    rows = stage_sql("SELECT count(*) FROM lanes");
    if (al_plat_mono_ms() > end) fail_msg("only %d lanes until the deadline", rows);
  }
  /* A last round of killing; who is left closes what he has. */
  for (int i = 0; i < owners; i += 2)
    if (all[i].pid && kill(all[i].pid, SIGKILL) == 0) t->killed++;
  while (any_left(all, count, false) && al_plat_mono_ms() < end) {
    collect(all, count, false, t);
    usleep(20000);
  }
  for (int i = 0; i < count; i++)
    if (all[i].pid) kill(all[i].pid, SIGKILL);
  for (int i = 0; i < count; i++)
    if (all[i].pid) waitpid(all[i].pid, NULL, 0);
}

/* Processes, other than this one, whose command line names the place: whoever's they are. */
static int
named_processes(void) {
  int n = 0;
  DIR *d = opendir("/proc");
  assert_non_null(d);
  for (struct dirent *e; (e = readdir(d));) {
    char path[300], text[4096];
    if (e->d_name[0] < '1' || e->d_name[0] > '9' || atoi(e->d_name) == (int) getpid()) continue;
    snprintf(path, sizeof path, "/proc/%s/cmdline", e->d_name);
    FILE *f = fopen(path, "re");
    size_t len = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    if (!memmem(text, len, stage.dir, strlen(stage.dir))) continue;
    for (size_t i = 0; i < len; i++)
      if (!text[i]) text[i] = ' ';
    fprintf(stderr, "  left: %s %.*s\n", e->d_name, (int) len, text);
    n++;
  }
  closedir(d);
  return n;
}

static void
sweep_once(void) {
  assert_int_equal(stage_open(), 0);
  must("reap", patient(stage_post("reap", stage_map("home", stage.home, NULL))));
  stage_close();
}

/* Each manifest holds and has its end, whoever was killed when; how many there are. */
static int
check_manifests(void) {
  al_home_t home;
  al_err_t err = {0};
  al_val_t *list = NULL;
  assert_int_equal(al_home_open(stage.home, &home, &err), 0);
  assert_int_equal(al_run_list(&home, 100000, &list, &err), 0);
  for (size_t i = 0; i < list->len; i++) {
    const char *name = al_val_get(list->items[i], "name")->text;
    al_run_check_t c = run_check_file(&home, name);
    if (c.line || !c.ended || c.interrupted)
      fail_msg("%s: %d events, then %s", name, (int) c.events, c.line ? c.why : "no end");
  }
  int n = (int) list->len;
  al_val_free(list);
  return n;
}

static void
test_simulation_of_many_owners_ends_with_nothing_left(void **state) {
  (void) state;
  tally_t t = {0};
  int lanes = crowd_number("AL_SIM_LANES", 40), owners = crowd_number("AL_SIM_OWNERS", 5), seed = crowd_number("AL_SIM_SEED", 1);
  crowd_seed = (uint32_t) seed;
  stage_make();
  sweep_once(); /* the home and its registry are there */
  uint64_t began = al_plat_mono_ms();
  run_world(lanes, owners, &t);
  uint64_t ran = al_plat_mono_ms() - began;
  usleep(200000);
  int dead = stage_sql("SELECT count(*) FROM lanes WHERE state <> 'closed'");
  sweep_once();
  uint64_t swept = al_plat_mono_ms() - began - ran;
  static const char *const lima[] = {"_config", NULL};
  char shown[512] = "";
  int rows = stage_sql("SELECT count(*) FROM lanes"), open_rows = stage_sql("SELECT count(*) FROM lanes WHERE state <> 'closed'");
  int most = stage_sql("SELECT max(n) FROM (SELECT (SELECT count(*) FROM history b WHERE b.id <= a.id AND b.from_state = '') -"
    " (SELECT count(*) FROM history c WHERE c.id <= a.id AND c.to_state = 'closed') AS n FROM history a)");
  int dirs = stage_count(al_test_path(stage.home, "lima"), lima, shown, sizeof shown), procs = named_processes();
  printf("{\"simulation\":{\"lanes\":%d,\"owners\":%d,\"seed\":%d,\"killed\":%d,\"ms\":%d,\"deadAtEnd\":%d,\"sweepMs\":%d,"
    "\"processes\":%d,\"directories\":%d,\"openRows\":%d,\"failures\":%d,\"mostAtOnce\":%d}}\n", rows, owners, seed,
    t.killed, (int) ran, dead, (int) swept, procs, dirs, open_rows, t.failed, most);
  fflush(stdout);
  if (procs || dirs || open_rows || t.failed)
    fail_msg("left: %d processes, %d directories (%s), %d open rows; %d owners saw an error", procs, dirs, shown,
      open_rows, t.failed);
  assert_true(rows >= lanes);
  assert_true(t.killed > 0);
  /* An owner that was killed between the row and the manifest had told nobody of that lane. */
  assert_in_range(check_manifests(), 1, stage_sql("SELECT count(DISTINCT lane) FROM history WHERE to_state = 'ready'"));
  stage_remove();
}

/* ---- many dead rows ---- */

static void
sql_run(sqlite3 *db, const char *text) {
  char *why = NULL;
  if (sqlite3_exec(db, text, NULL, NULL, &why)) fail_msg("%s: %s", text, why);
}

/* Rows of an owner who has died, each with the directory of a lane that was being built. */
static void
make_dead_rows(int count, pid_t dead) {
  sqlite3 *db = NULL;
  char text[300];
  assert_int_equal(sqlite3_open_v2(al_test_path(stage.home, "registry.db"), &db, SQLITE_OPEN_READWRITE, NULL), SQLITE_OK);
  sql_run(db, "BEGIN; CREATE TEMP TABLE one AS SELECT * FROM lanes LIMIT 1; UPDATE one SET id = NULL, state = 'booting'");
  for (int i = 0; i < count; i++) {
    char name[AL_NAME_LEN + 1];
    uint8_t random[8];
    assert_int_equal(al_plat_random(random, sizeof random), 0);
    assert_int_equal(al_name_make(name, (uint64_t) time(NULL), random), 0);
    snprintf(text, sizeof text, "UPDATE one SET name = '%s', owner_pid = %d; INSERT INTO lanes SELECT * FROM one", name,
      (int) dead);
    sql_run(db, text);
    snprintf(text, sizeof text, "lima/%s", name);
    const char *dir = al_test_path(stage.home, text);
    assert_int_equal(mkdir(dir, 0700), 0);
    al_test_write(dir, "disk", "disk");
  }
  sql_run(db, "COMMIT");
  sqlite3_close(db);
}

static void
test_sweep_of_many_dead_rows_closes_all(void **state) {
  (void) state;
  int count = crowd_number("AL_SIM_DEAD", 100);
  al_err_t err = {0};
  stage_make();
  assert_int_equal(stage_open(), 0);
  if (stage_create(&err)) fail_msg("%s", err.msg);
  assert_int_equal(stage_close_lane(), 0);
  stage_close();
  pid_t dead = fork();
  if (dead == 0) _exit(0);
  waitpid(dead, NULL, 0);
  make_dead_rows(count, dead);
  uint64_t began = al_plat_mono_ms();
  sweep_once();
  uint64_t ms = al_plat_mono_ms() - began;
  static const char *const lima[] = {"_config", NULL};
  int open_rows = stage_sql("SELECT count(*) FROM lanes WHERE state <> 'closed'");
  int dirs = stage_count(al_test_path(stage.home, "lima"), lima, NULL, 0);
  printf("{\"sweep\":{\"rows\":%d,\"ms\":%d,\"openRows\":%d,\"directories\":%d}}\n", count, (int) ms, open_rows, dirs);
  fflush(stdout);
  assert_int_equal(stage_sql("SELECT count(*) FROM lanes"), count + 1);
  assert_int_equal(open_rows, 0);
  assert_int_equal(dirs, 0);
  stage_remove();
}

/* ---- memory ---- */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif
#define OPEN_LANES 24
#define LANE_KIB 512

/* What is this process's alone, in KiB. */
static long
private_kib(void) {
  char line[256];
  long n = 0, sum = 0;
  FILE *f = fopen("/proc/self/smaps_rollup", "re");
  assert_non_null(f);
  while (fgets(line, sizeof line, f))
    if (sscanf(line, "Private_Clean: %ld", &n) == 1 || sscanf(line, "Private_Dirty: %ld", &n) == 1) sum += n;
  fclose(f);
  return sum;
}

static void
test_lane_of_an_owner_takes_little_memory(void **state) {
  (void) state;
  if (SANITIZED) {
    print_message("skipped: a sanitizer's memory says nothing about ours\n");
    skip();
  }
  stage_make();
  assert_int_equal(stage_open(), 0);
  char names[OPEN_LANES][AL_NAME_LEN + 1];
  long before = 0;
  for (int i = 0; i < OPEN_LANES; i++) {
    if (i == 2) before = private_kib(); /* what the first lane brings is the engine's */
    reply_t *r = patient(stage_post("create", crowd_lane(PLACES, 600)));
    if (r->err.code) fail_msg("%s", r->err.msg);
    snprintf(names[i], sizeof names[i], "%s", stage_text(r->value, "lane"));
    r = patient(stage_post("exec", stage_map("lane", names[i], "command", "echo hello", "mode", "whole", NULL)));
    if (r->err.code) fail_msg("%s", r->err.msg);
  }
  long each = (private_kib() - before) / (OPEN_LANES - 2);
  printf("{\"memory\":{\"lanes\":%d,\"kibPerLane\":%ld}}\n", OPEN_LANES - 2, each);
  fflush(stdout);
  for (int i = 0; i < OPEN_LANES; i++)
    assert_int_equal(patient(stage_post("close", stage_map("lane", names[i], NULL)))->err.code, 0);
  stage_close();
  stage_remove();
  assert_true(each <= LANE_KIB);
}

int
main(int argc, char **argv) {
  int code;
  if (stand_in(argc, argv, &code)) return code;
  if (!stage_start()) return 1;
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_lane_of_an_owner_takes_little_memory),
    cmocka_unit_test(test_sweep_of_many_dead_rows_closes_all),
    cmocka_unit_test(test_simulation_of_many_owners_ends_with_nothing_left),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
