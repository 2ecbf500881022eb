/* SPDX-License-Identifier: Apache-2.0 */
/* A whole engine on stand-ins for Lima: requests with their answers, and the count of everything that a request may
 * leave behind. Runs as an ordinary user also when the test was started by root, since the engine refuses root. */
#ifndef AL_ENGINE_TEST_H
#define AL_ENGINE_TEST_H

#include "al.h"
#include "image_make.h"
#include "names.h"
#include "stand_in.h"
#include <dirent.h>
#include <grp.h>
#include <sqlite3.h>
#include <sys/prctl.h>

#define STAGE_WAIT_MS 60000
#define NOBODY 65534

typedef struct reply_s {
  bool done;
  al_err_t err;     /* code 0: a good answer */
  al_val_t *value;
  size_t owed[2];   /* output that is to be given back */
} reply_t;

static struct {
  char dir[64], home[128], name[AL_NAME_LEN + 1];
  char path[4200];
  void *self, *agent, *keeper; /* bytes, read while we may still be root */
  size_t self_len, agent_len, keeper_len;
  al_engine_t *engine;
  uv_mutex_t lock;
  uv_cond_t cond;
  reply_t replies[64]; /* by request id */
  uint32_t last_id;
  size_t streamed;     /* bytes of LINES and BYTES */
  void (*on_lane)(const char *type); /* engine thread */
} stage;

/* ---- the place ---- */

static void *
stage_load(const char *path, size_t *len) {
  FILE *f = fopen(path, "re");
  assert_non_null(f);
  fseek(f, 0, SEEK_END);
  *len = (size_t) ftell(f);
  rewind(f);
  void *p = malloc(*len);
  assert_int_equal(fread(p, 1, *len, f), *len);
  fclose(f);
  return p;
}

/* Before the first test: reads what the tests need of the checkout, then gives up root for good. */
AL_TEST_FN bool
stage_start(void) {
  const char *agent = getenv("AL_AGENT");
  char keeper[1024] = "";

  if (!agent) agent = "prebuilds/guest/agent-x86_64";
  if (readlink("/proc/self/exe", keeper, sizeof keeper - 16) > 0) snprintf(strrchr(keeper, '/'), 16, "/keeper");
  if (access(agent, X_OK) || access(keeper, X_OK)) {
    fprintf(stderr, "%s or %s is not built\n", agent, keeper);
    return false;
  }
  stage.self = stage_load("/proc/self/exe", &stage.self_len);
  stage.agent = stage_load(agent, &stage.agent_len);
  stage.keeper = stage_load(keeper, &stage.keeper_len);
  if (geteuid() == 0) {
    assert_int_equal(setgroups(0, NULL), 0);
    assert_int_equal(setresgid(NOBODY, NOBODY, NOBODY), 0);
    assert_int_equal(setresuid(NOBODY, NOBODY, NOBODY), 0);
  }
  prctl(PR_SET_DUMPABLE, 1); /* /proc/self stays ours, and the leak checker may look */
  prctl(PR_SET_CHILD_SUBREAPER, 1); /* a QEMU that is left becomes our child, which is seen */
  umask(022);
  signal(SIGPIPE, SIG_IGN);
  uv_mutex_init(&stage.lock);
  uv_cond_init(&stage.cond);
  return true;
}

static void
stage_file(const char *name, const void *bytes, size_t n, mode_t mode) {
  const char *path = al_test_path(stage.dir, name);
  FILE *f = fopen(path, "we");
  assert_non_null(f);
  assert_int_equal(fwrite(bytes, 1, n, f), n);
  assert_int_equal(fclose(f), 0);
  assert_int_equal(chmod(path, mode), 0);
}

/* A fresh place with programs, a package and an image directory. The home is not there yet. */
AL_TEST_FN void
stage_place(void) {
  static const char *const dirs[] = {"bin", "pkg", "pkg/prebuilds", "pkg/prebuilds/linux-x64",
    "pkg/prebuilds/linux-arm64", "pkg/prebuilds/guest", "work", "out"};
  static const char *const names[] = {
    "limactl", "ssh", "ssh-keygen", "qemu-img", "qemu-system-x86_64", "qemu-system-aarch64"};

  al_test_dir(stage.dir);
  for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++)
    assert_int_equal(mkdir(al_test_path(stage.dir, dirs[i]), 0755), 0);
  stage_file("bin/stand-in", stage.self, stage.self_len, 0755);
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    char link[32];
    snprintf(link, sizeof link, "bin/%s", names[i]);
    assert_int_equal(symlink("stand-in", al_test_path(stage.dir, link)), 0);
  }
  stage_file("pkg/prebuilds/linux-x64/warden", "warden", 6, 0755);
  stage_file("pkg/prebuilds/linux-arm64/warden", "warden", 6, 0755);
  stage_file("pkg/prebuilds/linux-x64/keeper", stage.keeper, stage.keeper_len, 0755);
  stage_file("pkg/prebuilds/linux-arm64/keeper", stage.keeper, stage.keeper_len, 0755);
  stage_file("pkg/prebuilds/guest/agent-x86_64", stage.agent, stage.agent_len, 0755);
  stage_file("pkg/prebuilds/guest/agent-aarch64", stage.agent, stage.agent_len, 0755);
  make_image(al_test_path(stage.dir, "image"), NULL);
  snprintf(stage.home, sizeof stage.home, "%s/h", stage.dir);
  snprintf(stage.path, sizeof stage.path, "%s/bin:/usr/bin:/bin", stage.dir);
  setenv("PATH", stage.path, 1);
  setenv("HOME", stage.dir, 1);
}

AL_TEST_FN void
stage_remove(void) {
  al_test_dir_remove(stage.dir);
}

/* ---- requests ---- */

static void
stage_on_event(void *data, al_event_t *e) {
  (void) data;
  uv_mutex_lock(&stage.lock);
  if (e->type == AL_EVENT_DONE || e->type == AL_EVENT_ERROR) {
    reply_t *r = &stage.replies[e->id % 64];
    assert_false(r->done); /* exactly one answer */
    r->done = true;
    r->value = e->value;
    r->err = e->err;
    e->value = NULL;
    uv_cond_signal(&stage.cond);
  } else if (e->type == AL_EVENT_LINES || e->type == AL_EVENT_BYTES) {
    stage.streamed += e->value->len;
    stage.replies[e->id % 64].owed[e->sub - 1] += e->value->len;
    uv_cond_signal(&stage.cond);
  } else if (e->type == AL_EVENT_LANE && stage.on_lane) {
    stage.on_lane(al_val_get(e->value, "type")->text);
  }
  uv_mutex_unlock(&stage.lock);
  al_event_free(e);
}

/* The engine's own error, or 0. */
AL_TEST_FN int
stage_open(void) {
  char pkg[128];
  al_err_t err = {0};

  snprintf(pkg, sizeof pkg, "%s/pkg", stage.dir);
  al_engine_opts_t opts = {.package_dir = pkg, .on_event = stage_on_event};
  int rc = al_engine_open(&opts, &stage.engine, &err);
  if (rc) stage.engine = NULL;
  return rc;
}

/* The place, and one engine that comes and goes: libuv keeps two descriptors from then on. */
AL_TEST_FN void
stage_make(void) {
  stage_place();
  assert_int_equal(stage_open(), 0);
  assert_int_equal(al_engine_close(al_steal(&stage.engine), STAGE_WAIT_MS), 0);
}

/* `params` is taken. Returns the request's id. */
AL_TEST_FN uint32_t
stage_post(const char *op, al_val_t *params) {
  uint32_t id = 1 + stage.last_id++ % 63;

  uv_mutex_lock(&stage.lock);
  al_val_free(stage.replies[id].value);
  memset(&stage.replies[id], 0, sizeof stage.replies[id]);
  uv_mutex_unlock(&stage.lock);
  int rc = al_engine_post(stage.engine, id, op, params);
  if (rc == 0) return id;
  assert_int_equal(rc, -ENOMEM);
  al_err_set(&stage.replies[id].err, rc, "out of memory");
  stage.replies[id].done = true;
  return id;
}

/* Whether the answer has come. */
AL_TEST_FN bool
stage_done(uint32_t id) {
  uv_mutex_lock(&stage.lock);
  bool done = stage.replies[id].done;
  uv_mutex_unlock(&stage.lock);
  return done;
}

/* The answer; its value is the stage's. */
AL_TEST_FN reply_t *
stage_wait(uint32_t id) {
  uint64_t end = uv_hrtime() + STAGE_WAIT_MS * UINT64_C(1000000);
  reply_t *r = &stage.replies[id];

  uv_mutex_lock(&stage.lock);
  while (!r->done && uv_hrtime() < end) {
    for (int i = 0; i < 2; i++) {
      size_t n = r->owed[i];
      r->owed[i] = 0;
      uv_mutex_unlock(&stage.lock); /* events come under the engine's own lock */
      if (n) al_engine_taken(stage.engine, id, i + 1, n);
      uv_mutex_lock(&stage.lock);
    }
    if (!r->done && !r->owed[0] && !r->owed[1]) uv_cond_timedwait(&stage.cond, &stage.lock, UINT64_C(100000000));
  }
  bool done = r->done;
  uv_mutex_unlock(&stage.lock);
  if (!done) fail_msg("no answer to request %u", id);
  return r;
}

AL_TEST_FN void
stage_forget(void) {
  for (size_t i = 0; i < 64; i++) {
    al_val_free(stage.replies[i].value);
    memset(&stage.replies[i], 0, sizeof stage.replies[i]);
  }
}

/* Ends the engine: nothing of it is left in this process. */
AL_TEST_FN void
stage_close(void) {
  if (stage.engine) assert_int_equal(al_engine_close(stage.engine, STAGE_WAIT_MS), 0);
  stage.engine = NULL;
  stage_forget();
}

/* A map of texts and numbers: stage_map("home", stage.home, "cpus", NULL, 2, NULL). After a name NULL says that an int
 * follows. */
AL_TEST_FN al_val_t *
stage_map(const char *key, ...) {
  va_list ap;
  al_val_t *m = al_val_map();

  va_start(ap, key);
  for (const char *k = key; m && k; k = va_arg(ap, const char *)) {
    const char *text = va_arg(ap, const char *);
    if (al_val_set(m, k, text ? al_val_text(text) : al_val_int(va_arg(ap, int)))) {
      al_val_free(m);
      m = NULL;
    }
  }
  va_end(ap);
  return m;
}

AL_TEST_FN const char *
stage_text(const al_val_t *map, const char *key) {
  const al_val_t *v = al_val_get(map, key);
  return v && v->kind == AL_TEXT ? v->text : "";
}

/* ---- a lane ---- */

AL_TEST_FN al_val_t *
stage_create_params(void) {
  return stage_map("home", stage.home, "image", al_test_path(stage.dir, "image"), "cpus", NULL, 1, "memoryGiB", NULL, 1,
    "diskGiB", NULL, 4, "startTimeoutSeconds", NULL, 50, "accelerator", "tcg", "worktreePath",
    al_test_path(stage.dir, "work"), "maxConcurrentVms", NULL, 1, NULL);
}

/* Creates; 0 with stage.name, or the error's code. A good answer is whole. */
AL_TEST_FN int
stage_create(al_err_t *err) {
  reply_t *r = stage_wait(stage_post("create", stage_create_params()));
  static const char *const texts[] = {"worktreePath", "home", "dir", "image", "network", "accelerator"};

  if (err) *err = r->err;
  if (r->err.code) return r->err.code;
  snprintf(stage.name, sizeof stage.name, "%s", stage_text(r->value, "lane"));
  assert_true(al_name_valid(stage.name));
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) assert_true(stage_text(r->value, texts[i])[0]);
  assert_non_null(al_val_get(r->value, "sshPort"));
  return 0;
}

/* One request about the lane, by its name. */
AL_TEST_FN reply_t *
stage_ask(const char *op, al_val_t *params) {
  if (params && al_val_set(params, "lane", al_val_text(stage.name))) {
    al_val_free(params);
    params = NULL;
  }
  return stage_wait(stage_post(op, params));
}

AL_TEST_FN int
stage_close_lane(void) {
  return stage_ask("close", stage_map("reason", "the test", NULL))->err.code;
}

/* ---- what is left ---- */

/* Names in a directory that are not in `known`, which ends with NULL; the last one is shown. */
AL_TEST_FN int
stage_count(const char *dir, const char *const *known, char *shown, size_t cap) {
  int n = 0;
  DIR *d = opendir(dir);

  if (!d) return 0;
  for (struct dirent *e; (e = readdir(d));) {
    bool ok = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0;
    for (const char *const *k = known; !ok && *k; k++) ok = strcmp(*k, e->d_name) == 0;
    if (ok) continue;
    n++;
    if (shown) snprintf(shown, cap, "%s/%s", dir, e->d_name);
  }
  closedir(d);
  return n;
}

/* Open descriptors of this process. */
AL_TEST_FN int
stage_fds(void) {
  static const char *const none[] = {NULL};
  return stage_count("/proc/self/fd", none, NULL, 0) - 1;
}

AL_TEST_FN void
stage_show_fds(void) {
  for (int fd = 0; fd < 64; fd++) {
    char path[32], to[256];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(path, to, sizeof to - 1);
    if (n > 0) fprintf(stderr, "  descriptor %d: %.*s\n", fd, (int) n, to);
  }
}

/* Children of any kind, QEMUs that lost their parent included, once those that have just ended are reaped. */
AL_TEST_FN int
stage_processes(void) {
  for (uint64_t end = al_plat_mono_ms() + 5000;; usleep(2000)) {
    int status;
    pid_t pid = waitpid(-1, &status, WNOHANG);
    if (pid < 0) return 0;
    if (pid == 0 && al_plat_mono_ms() > end) return 1;
  }
}

/* Which they are. */
AL_TEST_FN void
stage_show_processes(void) {
  char line[160];
  snprintf(line, sizeof line, "ps -o pid,stat,args --ppid %d >&2", (int) getpid());
  if (system(line)) fprintf(stderr, "  (no ps)\n");
}

/* A number out of the registry; 0 when there is no registry or no table. */
AL_TEST_FN int
stage_sql(const char *sql) {
  sqlite3 *db = NULL;
  sqlite3_stmt *st = NULL;
  int n = 0;
  char path[200];

  snprintf(path, sizeof path, "%s/registry.db", stage.home);
  if (sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, NULL) == SQLITE_OK &&
      sqlite3_prepare_v2(db, sql, -1, &st, NULL) == SQLITE_OK && sqlite3_step(st) == SQLITE_ROW)
    n = sqlite3_column_int(st, 0);
  sqlite3_finalize(st);
  sqlite3_close(db);
  return n;
}

/* Fails unless nothing is left of any lane or request, `fds` descriptors as before. */
AL_TEST_FN void
stage_clean(const char *when, int fds) {
  static const char *const lima[] = {"_config", NULL};
  static const char *const run[] = {"config.lock", "kvm-probe", NULL};
  char path[200], shown[512] = "";

  snprintf(path, sizeof path, "%s/lima", stage.home);
  int dirs = stage_count(path, lima, shown, sizeof shown);
  snprintf(path, sizeof path, "%s/run", stage.home);
  dirs += stage_count(path, run, shown, sizeof shown);
  int open_rows = stage_sql("SELECT count(*) FROM lanes WHERE state <> 'closed'");
  int waiters = stage_sql("SELECT count(*) FROM waiters"), now = stage_fds(), procs = stage_processes();
  if (now != fds) stage_show_fds();
  if (procs) stage_show_processes();
  if (dirs || open_rows || waiters || now != fds || procs)
    fail_msg("%s: left are %d directories (%s), %d open rows, %d waiters, %d descriptors (before: %d), processes: %s",
      when, dirs, shown, open_rows, waiters, now, fds, procs ? "yes" : "no");
}

#endif
