/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation fails once, in an engine on stand-ins for Lima: requests, a lane's whole life, calls into it. */
#include "engine_test.h"
#include "frame.h"
#include "oom_test.h"
#include "registry.h"
#include <dirent.h>
#include <malloc.h>

/* ---- requests without a lane ---- */

typedef struct ask_s {
  const char *op;
  al_val_t *(*params)(void);
  void (*whole)(const al_val_t *value); /* a good answer lacks nothing */
  bool is_long;
} ask_t;

static al_val_t *
with_home(void) {
  return stage_map("home", stage.home, NULL);
}

static al_val_t *
with_image(void) {
  return stage_map("home", stage.home, "from", al_test_path(stage.dir, "image"), NULL);
}

static void
is_errors(const al_val_t *v) {
  assert_int_equal(v->kind, AL_LIST);
  assert_true(v->len > 40);
  for (size_t i = 0; i < v->len; i++) assert_int_equal(v->items[i]->len, 4);
}

static void
is_rows(const al_val_t *v) {
  assert_int_equal(v->kind, AL_LIST);
  for (size_t i = 0; i < v->len; i++) assert_true(v->items[i]->len >= 8);
}

static void
is_image(const al_val_t *v) {
  assert_int_equal(v->len, 4);
}

static void
is_report(const al_val_t *v) {
  assert_int_equal(v->len, 2);
  assert_true(al_val_get(v, "checks")->len >= 9);
}

static void
is_pruned(const al_val_t *v) {
  assert_int_equal(v->len, 4);
  assert_int_equal(al_val_get(v, "removed")->len, 0);
  assert_int_equal(al_val_get(v, "kept")->len, 0);
}

static void
is_reaped(const al_val_t *v) {
  assert_int_equal(v->len, 5);
  assert_int_equal(al_val_get(v, "reaped")->len, 0);
  assert_int_equal(al_val_get(v, "removed")->len, 0);
  assert_int_equal(al_val_get(v, "notices")->len, 0);
  assert_int_equal(al_val_get(v, "unlisted")->len, 0);
}

static int
ask(void *data) {
  const ask_t *a = data;
  int rc = stage_open();

  if (rc) return rc;
  reply_t *r = stage_wait(stage_post(a->op, a->params()));
  rc = r->err.code;
  if (!rc) a->whole(r->value);
  stage_close();
  return rc;
}

static void
test_oom_in_requests(void **state) {
  (void) state;
  static const ask_t asks[] = {{"errors", with_home, is_errors, false}, {"list", with_home, is_rows, false},
    {"imageImport", with_image, is_image, false}, {"imageImport", with_image, is_image, false},
    {"imageList", with_home, is_rows, false}, {"imageSigned", with_home, is_rows, false},
    {"imagePrune", with_home, is_pruned, false},
    {"reap", with_home, is_reaped, false}, {"doctor", with_home, is_report, true}};
  stage_make();
  for (size_t i = 0; i < sizeof asks / sizeof *asks; i++) {
    int fds = stage_fds();
    ask_t a = asks[i];
    oom_each(a.op, ask, &a, a.is_long);
    stage_clean(a.op, fds);
  }
  stage_remove();
}

/* ---- a lane ---- */

/* One life on an engine of its own, up to `ready` and to its end. */
static int
live(void *data) {
  int fds = stage_fds();
  (void) data;

  int rc = stage_open();
  if (rc) return rc;
  rc = stage_create(NULL);
  int closed = rc ? 0 : stage_close_lane();
  stage_close();
  stage_clean("a lane's life", fds);
  return rc ? rc : closed;
}

static void
test_oom_in_a_lanes_life(void **state) {
  (void) state;
  stage_make();
  oom_each("life", live, NULL, true);
  stage_remove();
}

/* ---- calls into a lane ---- */

static al_val_t *
exec_params(const char *script, const char *mode) {
  return stage_map("command", script, "mode", mode, "cwd", "/", NULL);
}

static int
call_exec(void *data) {
  const char *mode = data;
  bool whole = strcmp(mode, "whole") == 0, lines = strcmp(mode, "lines") == 0;
  al_val_t *p = exec_params("cat; echo two; echo three >&2; printf unfinished", mode);

  stage.streamed = 0;
  if (p && al_val_set(p, "stdin", al_val_text("one\n"))) {
    al_val_free(p);
    p = NULL;
  }
  reply_t *r = stage_ask("exec", p);
  if (r->err.code) return r->err.code;
  assert_int_equal(al_val_get(r->value, "exitCode")->i, 0);
  if (whole) assert_int_equal(al_val_get(r->value, "stdout")->len, 18);
  if (whole || lines) assert_int_equal(al_val_get(r->value, "stderr")->len, 6);
  if (lines) assert_int_equal(stage.streamed, 19); /* the last one gets its line end */
  if (!whole && !lines) assert_int_equal(stage.streamed, 24);
  return 0;
}

/* With progress, of which the first is told at once. */
static al_val_t *
copy_params(const char *host, const char *guest) {
  al_val_t *p = stage_map("hostPath", al_test_path(stage.dir, host), "guestPath", al_test_path(stage.dir, guest), NULL);
  if (p && al_val_set(p, "progress", al_val_bool(true))) {
    al_val_free(p);
    p = NULL;
  }
  return p;
}

static int
call_copy_in(void *data) {
  return stage_ask("copyIn", copy_params(data, strchr(data, '/') ? "work/file" : "work/tree"))->err.code;
}

static int
call_copy_out(void *data) {
  struct stat st;
  (void) data;
  unlink(al_test_path(stage.dir, "out/file"));
  int rc = stage_ask("copyOut", copy_params("out/file", "image/disk.qcow2"))->err.code;
  bool there = stat(al_test_path(stage.dir, "out/file"), &st) == 0;
  /* Whole or not at all: an answer that could not be given is the only way to have both. */
  if (!rc || there) assert_true(there && st.st_size == DISK_SIZE);
  static const char *const known[] = {"file", NULL};
  assert_int_equal(stage_count(al_test_path(stage.dir, "out"), known, NULL, 0), 0);
  return rc;
}

/* A directory of files; without an allocation that would count. */
static void
remove_flat(const char *dir) {
  DIR *d = opendir(dir);
  for (struct dirent *e; d && (e = readdir(d));) unlinkat(dirfd(d), e->d_name, 0);
  if (d) closedir(d);
  rmdir(dir);
}

static int
call_copy_tree_out(void *data) {
  struct stat st;
  (void) data;
  remove_flat(al_test_path(stage.dir, "out/tree"));
  int rc = stage_ask("copyTreeOut", copy_params("out/tree", "image"))->err.code;
  bool there = stat(al_test_path(stage.dir, "out/tree"), &st) == 0;
  bool whole = stat(al_test_path(stage.dir, "out/tree/disk.qcow2"), &st) == 0 && st.st_size == DISK_SIZE;
  if (!rc || there) assert_true(there && whole);
  static const char *const known[] = {"file", "tree", NULL};
  assert_int_equal(stage_count(al_test_path(stage.dir, "out"), known, NULL, 0), 0);
  return rc;
}

static int
call_ping(void *data) {
  (void) data;
  return stage_ask("ping", stage_map("x", "y", NULL))->err.code;
}

/* A command that is written to. */
static int
call_write(void *data) {
  (void) data;
  al_val_t *p = exec_params("cat", "stream");
  if (p && al_val_set(p, "inputOpen", al_val_bool(true))) {
    al_val_free(p);
    p = NULL;
  }
  if (p && al_val_set(p, "lane", al_val_text(stage.name))) {
    al_val_free(p);
    p = NULL;
  }
  uint32_t id = stage_post("exec", p);
  al_val_t *w = stage_map("exec", NULL, (int) id, "data", "hello", NULL);
  if (w && al_val_set(w, "end", al_val_bool(true))) {
    al_val_free(w);
    w = NULL;
  }
  int written = stage_wait(stage_post("write", w))->err.code;
  /* A write that failed has not ended the input: the command is cancelled, which may fail as well. */
  for (int code = written; code && !stage_done(id);)
    code = stage_wait(stage_post("cancel", stage_map("exec", NULL, (int) id, NULL)))->err.code;
  int rc = stage_wait(id)->err.code;
  if (rc == -ENOMEM || rc == AL_ENO_MEMORY) return rc;
  return written ? written == AL_EBAD_OPTION ? rc : written : rc;
}

/* A stream that was given up is remembered until the guest acknowledges what was sent, which it does now and then. */
static void
have_acknowledged(void) {
  static char bytes[4 * AL_FRAME_MAX];
  al_val_t *p = exec_params("cat >/dev/null", "whole");
  assert_int_equal(al_val_set(p, "stdin", al_val_bytes(bytes, sizeof bytes)), 0);
  assert_int_equal(stage_ask("exec", p)->err.code, 0);
}

/* Descriptors of a lane at rest: the fewest that are seen, since every few seconds its guard opens two and closes them again. */
static int
resting_fds(void) {
  int fewest = stage_fds();
  for (int i = 0; i < 100; i++, usleep(2000))
    if (stage_fds() < fewest) fewest = stage_fds();
  return fewest;
}

/* The call, and the lane is as good as before. */
typedef struct call_s {
  int (*run)(void *data);
  void *data;
  int fds; /* of the lane at rest */
} call_t;

static int
call(void *data) {
  const call_t *c = data;
  int rc = c->run(c->data);
  stage_forget();
  oom_pause();
  int fds;
  for (uint64_t end = al_plat_mono_ms() + 5000; (fds = stage_fds()) != c->fds && al_plat_mono_ms() < end;) usleep(1000);
  if (fds != c->fds) stage_show_fds();
  assert_int_equal(fds, c->fds);
  if (call_ping(NULL)) fail_msg("the lane did not survive");
  if (rc) have_acknowledged();
  stage_forget();
  return rc;
}

static void
test_oom_in_calls(void **state) {
  (void) state;
  call_t calls[] = {{call_exec, "whole", 0}, {call_exec, "lines", 0}, {call_exec, "stream", 0}, {call_copy_in, "image", 0},
    {call_copy_in, "image/disk.qcow2", 0}, {call_copy_out, NULL, 0}, {call_copy_tree_out, NULL, 0}, {call_ping, NULL, 0},
    {call_write, NULL, 0}};
  static const char *const names[] = {"exec whole", "exec lines", "exec stream", "copy in a tree", "copy in a file",
    "copy out", "copy out a tree", "ping", "write"};
  stage_make();
  int fds = stage_fds();
  oom_begin(); /* from here on every block counts, since the lane stays */
  assert_int_equal(stage_open(), 0);
  assert_int_equal(stage_create(NULL), 0);
  stage_forget();
  int resting = resting_fds();
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
    calls[i].fds = resting;
    oom_each_held(names[i], call, &calls[i]);
  }
  assert_int_equal(stage_close_lane(), 0);
  stage_close();
  oom_end();
  stage_clean("calls", fds);
  stage_remove();
}

/* ---- SQLite's own allocations ---- */

static atomic_long sql_left = -1, sql_live;
static atomic_bool sql_hit;

static bool
sql_fails(void) {
  if (atomic_load(&sql_left) < 0 || atomic_fetch_sub(&sql_left, 1) != 0) return false;
  atomic_store(&sql_hit, true);
  return true;
}

static void *
sql_malloc(int n) {
  void *p = sql_fails() ? NULL : malloc((size_t) n);
  if (p) atomic_fetch_add(&sql_live, 1);
  return p;
}

static void
sql_free(void *p) {
  if (p) atomic_fetch_sub(&sql_live, 1);
  free(p);
}

static void *
sql_realloc(void *p, int n) {
  return sql_fails() ? NULL : realloc(p, (size_t) n);
}

static int
sql_size(void *p) {
  return (int) malloc_usable_size(p);
}

static int
sql_roundup(int n) {
  return (n + 7) & ~7;
}

static int
sql_init(void *unused) {
  (void) unused;
  return SQLITE_OK;
}

static void
sql_shutdown(void *unused) {
  (void) unused;
}

typedef struct step_s {
  uv_loop_t *loop;
  bool done;
  int status;
} step_t;

static void
on_step(void *data, int status, const al_err_t *err) {
  step_t *s = data;
  if (status) assert_true(err->msg[0]);
  s->status = status;
  s->done = true;
}

static void
on_rows(void *data, int status, const al_err_t *err, const al_lane_row_t *rows, size_t count) {
  on_step(data, status, err);
  if (status) return;
  assert_int_equal(count, 1);
  assert_int_equal(rows->state, AL_LANE_CLOSED);
  assert_string_equal(rows->name, "agent-lane-0123abcd-0123abcd");
  assert_string_equal(rows->reason, "z");
  assert_int_equal(rows->owner.pid, getpid());
  assert_string_equal(rows->network, "none");
}

static void
forget_lanes(const char *path) {
  sqlite3 *db = NULL;
  assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
  assert_int_equal(sqlite3_exec(db,
    "DROP TRIGGER IF EXISTS history_kept; DELETE FROM history; DELETE FROM waiters; DELETE FROM lanes", NULL, NULL, NULL),
    SQLITE_OK);
  sqlite3_close(db);
}

/* One lane's rows from the first to the last, in a home whose registry is there or not. */
static int
keep_rows(void *data) {
  char path[200];
  uv_loop_t loop;
  al_registry_t r = {0};
  al_err_t err = {0};
  al_lane_row_t row = {.name = "agent-lane-0123abcd-0123abcd", .owner_env = "e", .image = "i", .network = "none"};
  snprintf(path, sizeof path, "%s/%s", stage.dir, (const char *) data);
  assert_int_equal(al_plat_ident(getpid(), &row.owner), 0);
  uv_loop_init(&loop);
  int rc = al_registry_open(&loop, path, &r, &err);
  if (rc) {
    assert_true(err.msg[0]);
  } else {
    step_t s = {.loop = &loop};
    al_queue_t queue = {.ticket = 0};
#define STEP(call) (s.done = false, call, al_test_until(&loop, &s.done, 20000), s.status)
    rc = STEP(al_registry_admit(&r, &row, 9, &queue, on_step, &s));
    if (!rc) rc = STEP(al_registry_move(&r, row.id, AL_LANE_REGISTERED, AL_LANE_CREATING, "x", on_step, &s));
    if (!rc) rc = STEP(al_registry_claim_close(&r, row.id, "y", on_step, &s));
    if (!rc) rc = STEP(al_registry_move(&r, row.id, AL_LANE_CLOSING, AL_LANE_CLOSED, "z", on_step, &s));
    if (!rc) rc = STEP(al_registry_list(&r, true, on_rows, &s));
#undef STEP
    al_registry_close(&r, NULL, NULL);
  }
  al_test_loop_close(&loop);
  atomic_store(&sql_left, -1);
  return rc;
}

static void
test_oom_in_sqlite(void **state) {
  (void) state;
  static const char *const files[] = {"old.db", "new.db"};
  long stride = oom_all() ? 1 : 31;
  stage_make();
  assert_int_equal(keep_rows((void *) (uintptr_t) "old.db"), 0);
  for (int i = 0; i < 2; i++) {
    long n = 0;
    for (bool more = true; more; n += stride) {
      long before = atomic_load(&sql_live);
      char name[32];
      snprintf(name, sizeof name, "%s", files[i]);
      /* With its log, which a close without memory leaves: a log alone is refused. */
      if (i == 1) unlink(al_test_path(stage.dir, "new.db"));
      if (i == 1) unlink(al_test_path(stage.dir, "new.db-wal"));
      /* One lane of a name: the one of the last round goes. */
      forget_lanes(al_test_path(stage.dir, "old.db"));
      atomic_store(&sql_hit, false);
      atomic_store(&sql_left, n);
      int rc = keep_rows(name);
      more = atomic_load(&sql_hit);
      if (!(rc == 0 || (more && rc == -ENOMEM)) || atomic_load(&sql_live) > before)
        fail_msg("%s, SQLite's allocation %ld: %s (%d), %ld blocks more", name, n, al_err_name(rc), rc,
          atomic_load(&sql_live) - before);
    }
    printf("%s: %ld allocations of SQLite\n", files[i], n);
  }
  stage_remove();
}

int
main(int argc, char **argv) {
  int code;
  if (stand_in(argc, argv, &code)) return code;
  if (!stage_start()) return 1;
  static const sqlite3_mem_methods methods = {
    sql_malloc, sql_free, sql_realloc, sql_size, sql_roundup, sql_init, sql_shutdown, NULL};
  if (sqlite3_config(SQLITE_CONFIG_MALLOC, &methods) != SQLITE_OK) return 1;
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_oom_in_requests),
    cmocka_unit_test(test_oom_in_a_lanes_life),
    cmocka_unit_test(test_oom_in_calls),
    cmocka_unit_test(test_oom_in_sqlite),
  };
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
