/* SPDX-License-Identifier: Apache-2.0 */
/* Database: what is damaged is set aside whole, whoever finds it and when; everybody goes over to the new file. */
#include "registry_test.h"
#include "db.h"
#include <dirent.h>
#include <sys/file.h>

#define JUNK "this is no database, but it may be somebody's data"

static void
put(fixture_t *f, const char *tail, const char *text) {
  char path[200];
  snprintf(path, sizeof path, "%s%s", f->path, tail);
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, text, strlen(text)), strlen(text));
  close(fd);
}

/* How many files in the directory begin with registry.db.damaged- and end so, and what the last one begins with. */
static int
aside(fixture_t *f, const char *tail, char begins[64]) {
  int n = 0;
  DIR *d = opendir(f->dir);
  for (struct dirent *e; (e = readdir(d));) {
    size_t len = strlen(e->d_name), t = strlen(tail);
    const char *end = e->d_name + len - (t < len ? t : len);
    bool log = strstr(e->d_name, "-wal") || strstr(e->d_name, "-shm");
    if (strncmp(e->d_name, "registry.db.damaged-", 20) || strcmp(end, tail) || (!t && log)) continue;
    n++;
    if (!begins) continue;
    int fd = openat(dirfd(d), e->d_name, O_RDONLY | O_CLOEXEC);
    memset(begins, 0, 64);
    assert_true(read(fd, begins, 63) >= 0);
    close(fd);
  }
  closedir(d);
  return n;
}

static void
test_aside_keeps_all_three_files(void **state) {
  fixture_t *f = *state;
  char begins[64], notice[AL_DB_NOTICE_MAX];
  shut(f);
  put(f, "", JUNK);
  put(f, "-wal", "the log");
  put(f, "-shm", "");
  reopen(f);
  assert_int_equal(aside(f, "", begins), 1);
  assert_string_equal(begins, JUNK);
  assert_int_equal(aside(f, "-wal", begins), 1);
  assert_string_equal(begins, "the log");
  assert_int_equal(aside(f, "-shm", NULL), 1); /* its content is SQLite's scratch */
  assert_true(al_registry_notice(&f->r, notice));
  assert_non_null(strstr(notice, "registry.db.damaged-"));
  assert_false(al_registry_notice(&f->r, notice));
}

/* Again and again, on one day: each has a name of its own, and what is there stays. */
static void
test_aside_takes_no_place_of_another(void **state) {
  fixture_t *f = *state;
  char begins[64], text[160];
  for (int i = 1; i <= 4; i++) {
    shut(f);
    snprintf(text, sizeof text, "damage %d", i);
    put(f, "", text);
    reopen(f);
    assert_int_equal(aside(f, "", begins), i);
  }
  for (int i = 1; i <= 4; i++) {
    snprintf(text, sizeof text, "grep -l 'damage %d' %s/registry.db.damaged-*-%d >/dev/null", i, f->dir, i);
    assert_int_equal(system(text), 0);
  }
}

/* A crash after the log was moved: the file goes to the same number, so that the two are found together. */
static void
test_aside_goes_on_after_a_crash(void **state) {
  fixture_t *f = *state;
  char day[16], name[200];
  time_t now = time(NULL);
  struct tm tm;
  struct stat st;
  strftime(day, sizeof day, "%Y%m%d", gmtime_r(&now, &tm));
  shut(f);
  put(f, "", JUNK);
  snprintf(name, sizeof name, ".damaged-%s-1-wal", day);
  put(f, name, "its log");
  reopen(f);
  snprintf(name, sizeof name, "%s.damaged-%s-1", f->path, day);
  assert_int_equal(stat(name, &st), 0);
}

static void
test_aside_happens_once_among_many(void **state) {
  fixture_t *f = *state;
  pid_t children[8];
  char begins[64], lock[200], junk[4096];
  struct stat st;
  /* Large, and damaged at its end: to find it takes longer than the pauses at the lock, where all of them stand. So
   * many have found it before anybody can make up for it. */
  sql_run(f,
    "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300000)"
    " INSERT INTO history (lane, at_ms, from_state, to_state, reason) SELECT 1, i, '', 'ready', 'line ' || i FROM n");
  shut(f);
  assert_int_equal(stat(f->path, &st), 0);
  assert_int_equal(st.st_size % 4096, 0);
  memset(junk, 0x5a, sizeof junk);
  int db = open(f->path, O_WRONLY | O_CLOEXEC);
  for (off_t at = st.st_size - 40 * 4096; at < st.st_size; at += 4096)
    assert_int_equal(pwrite(db, junk, sizeof junk, at), sizeof junk);
  close(db);
  snprintf(lock, sizeof lock, "%s.lock", f->path);
  int fd = open(lock, O_RDWR | O_CLOEXEC);
  assert_int_equal(flock(fd, LOCK_EX), 0);
  for (int i = 0; i < 8; i++) {
    if ((children[i] = al_test_fork()) != 0) continue;
    uv_loop_t loop;
    al_registry_t r;
    al_err_t err;
    _exit(uv_loop_init(&loop) || al_registry_open(&loop, f->path, &r, &err) ? 1 : 0);
  }
  usleep(500000);
  assert_int_equal(flock(fd, LOCK_UN), 0);
  close(fd);
  for (int i = 0; i < 8; i++) {
    int status = -1;
    waitpid(children[i], &status, 0);
    assert_int_equal(status, 0);
  }
  reopen(f);
  assert_int_equal(aside(f, "", begins), 1);
  assert_string_equal(begins, "SQLite format 3");
  al_lane_row_t row = a_row('a');
  int64_t ticket = 0;
  char holders[256];
  assert_int_equal(admit(f, &row, 1, &ticket, holders), 0);
}

/* Pages that turn bad while the file is open: found by the job that reads them, which then runs in the new file. */
static void
test_aside_damage_at_use(void **state) {
  fixture_t *f = *state;
  char junk[4096], notice[AL_DB_NOTICE_MAX];
  al_lane_row_t row = a_row('a');
  int64_t ticket = 0;
  char holders[256];
  assert_int_equal(admit(f, &row, 1, &ticket, holders), 0);
  sql_int(f, "PRAGMA wal_checkpoint(TRUNCATE)");
  memset(junk, 0x5a, sizeof junk);
  int fd = open(f->path, O_WRONLY | O_CLOEXEC);
  for (off_t at = 4096; at < 4096 * 12; at += 4096) assert_int_equal(pwrite(fd, junk, sizeof junk, at), sizeof junk);
  close(fd);
  /* Another connection throws the pages away that the first one remembers. */
  al_lane_row_t second = a_row('b');
  ticket = 0;
  int rc = admit(f, &second, 9, &ticket, holders);
  if (rc) fail_msg("%d: %s", rc, f->err.msg);
  assert_int_equal(aside(f, "", NULL), 1);
  assert_true(al_registry_notice(&f->r, notice));
  al_registry_list(&f->r, false, listed, f);
  run(f);
  assert_int_equal(f->status, 0);
  assert_int_equal(f->count, 1); /* the first lane had no directory to come from */
}

/* A number that a process holds from the old file never names a row of the new one. */
static void
test_aside_gives_no_number_twice(void **state) {
  fixture_t *f = *state;
  al_lane_row_t row = a_row('a'), second = a_row('b');
  int64_t ticket = 0, next = 0;
  char holders[256];
  assert_int_equal(admit(f, &row, 1, &ticket, holders), 0);
  shut(f);
  sleep(2);
  put(f, "", JUNK);
  reopen(f);
  assert_int_equal(admit(f, &second, 9, &next, holders), 0);
  assert_true(second.id > row.id + 1);
  assert_int_equal(move(f, row.id, AL_LANE_REGISTERED, AL_LANE_CREATING), AL_ENO_SUCH_LANE);
}

/* What a living process has open goes with its file; its next job is in the one that the path names. */
static void
test_aside_is_followed_by_who_has_it_open(void **state) {
  fixture_t *f = *state;
  al_registry_t other;
  al_err_t err = {0};
  char moved[200];
  al_lane_row_t row = a_row('a'), second = a_row('b');
  int64_t ticket = 0, next = 0;
  char holders[256];
  snprintf(moved, sizeof moved, "%s.moved", f->path);
  assert_int_equal(admit(f, &row, 1, &ticket, holders), 0);
  assert_int_equal(rename(f->path, moved), 0);
  for (int i = 0; i < 2; i++) {
    char from[220], to[220];
    snprintf(from, sizeof from, "%s%s", f->path, i ? "-wal" : "-shm");
    snprintf(to, sizeof to, "%s%s", moved, i ? "-wal" : "-shm");
    assert_int_equal(rename(from, to), 0);
  }
  assert_int_equal(al_registry_open(&f->loop, f->path, &other, &err), 0);
  assert_int_equal(admit(f, &second, 1, &next, holders), 0);
  al_registry_list(&other, false, listed, f);
  run(f);
  assert_int_equal(f->count, 1);
  assert_string_equal(f->rows[0].name, second.name);
  al_registry_close(&other, closed, f);
  run(f);
}

int
main(void) {
#define T(name) cmocka_unit_test_setup_teardown(test_aside_##name, setup, teardown)
  const struct CMUnitTest tests[] = {
    T(keeps_all_three_files),
    T(takes_no_place_of_another),
    T(goes_on_after_a_crash),
    T(happens_once_among_many),
    T(damage_at_use),
    T(gives_no_number_twice),
    T(is_followed_by_who_has_it_open),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
