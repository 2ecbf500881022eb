/* SPDX-License-Identifier: Apache-2.0 */
/* Registries of other versions: an older one keeps every row when it is migrated, also beside a process that goes on
 * with the old statements. */
#include "registry_test.h"

/* In the file's place: the registry of version 1, as that version left it. */
static void
load_old(fixture_t *f) {
  char *text = NULL;
  size_t len = 0;
  assert_int_equal(al_plat_read_file(AT_FDCWD, "test/fixtures/registry-v1.sql", 1 << 20, &text, &len), 0);
  shut(f);
  assert_int_equal(unlink(f->path), 0);
  sql_run(f, text);
  al_free(text);
  assert_int_equal(chmod(f->path, 0600), 0);
}

static char *
dump(fixture_t *f, const char *query) {
  sqlite3 *sql = NULL;
  sqlite3_stmt *st = NULL;
  char *text = NULL;
  size_t n = 0;
  FILE *out = open_memstream(&text, &n);
  assert_int_equal(sqlite3_open(f->path, &sql), SQLITE_OK);
  if (sqlite3_prepare_v2(sql, query, -1, &st, NULL)) fail_msg("%s: %s", query, sqlite3_errmsg(sql));
  while (sqlite3_step(st) == SQLITE_ROW) {
    for (int i = 0; i < sqlite3_column_count(st); i++) fprintf(out, "%s|", sqlite3_column_text(st, i));
    fputc('\n', out);
  }
  sqlite3_finalize(st);
  sqlite3_close(sql);
  fclose(out);
  return text;
}

#define OLD_LANES \
  "SELECT id, name, state, owner_pid, owner_start, owner_boot, owner_exe, owner_env, created_s, expires_s," \
  " expires_boot_ms, cpus, memory_mib, disk_gib, image, network, accel, reason FROM lanes ORDER BY id"
#define OLD_HISTORY "SELECT id, lane, at_ms, from_state, to_state, reason FROM history ORDER BY id"
#define OLD_WAITERS "SELECT ticket, pid, start, boot, exe, since_s FROM waiters ORDER BY ticket"
#define OLD_NUMBERS "SELECT name, seq FROM sqlite_sequence ORDER BY name"

static void
test_registry_old_keeps_all_its_rows(void **state) {
  fixture_t *f = *state;
  static const char *const queries[] = {OLD_LANES, OLD_HISTORY, OLD_WAITERS, OLD_NUMBERS};
  char *before[4];
  load_old(f);
  assert_int_equal(sql_int(f, "PRAGMA user_version"), 1);
  for (int i = 0; i < 4; i++) before[i] = dump(f, queries[i]);
  assert_true(strlen(before[0]) > 500);
  reopen(f);
  assert_true(sql_int(f, "PRAGMA user_version") >= 2);
  for (int i = 0; i < 4; i++) {
    char *after = dump(f, queries[i]);
    assert_string_equal(after, before[i]);
    free(after);
    free(before[i]);
  }
  al_registry_list(&f->r, false, listed, f);
  run(f);
  assert_int_equal(f->count, 4);
  assert_int_equal(f->rows[0].id, 5);
  assert_int_equal(f->rows[0].keeper.pid, 0);
  assert_true(f->rows[0].owner.start == 18446744073709551611ull);
  al_lane_row_t row = a_row('a');
  int64_t ticket = 0;
  char holders[256];
  assert_int_equal(admit(f, &row, 9, &ticket, holders), 0);
  assert_int_equal(row.id, 6);
}

/* A process of version 1 that had the file open while version 2 came: its statements, as it goes on with them. */
static void
test_registry_old_process_goes_on(void **state) {
  fixture_t *f = *state;
  load_old(f);
  reopen(f);
  sql_run(f,
    "INSERT INTO waiters (pid, start, boot, exe, since_s) VALUES (1, '2', '3', '4', 5);"
    "INSERT INTO lanes (name, state, owner_pid, owner_start, owner_boot, owner_exe, owner_env, created_s, expires_s,"
    " expires_boot_ms, cpus, memory_mib, disk_gib, image, network, accel)"
    " VALUES ('agent-lane-00000000-0000000f', 'registered', 1, '2', '3', '4', '5', 6, 7, 8, 9, 10, 11, '12', '13', '');"
    "INSERT INTO history (lane, at_ms, from_state, to_state, reason) VALUES (6, 1, '', 'registered', '');"
    "UPDATE lanes SET state = 'creating', reason = CASE WHEN '' = '' THEN reason ELSE '' END WHERE id = 6;"
    "DELETE FROM waiters WHERE pid = 1");
  al_registry_list(&f->r, false, listed, f);
  run(f);
  assert_int_equal(f->count, 5);
  assert_int_equal(f->rows[0].state, AL_LANE_CREATING);
  assert_int_equal(f->rows[0].keeper.pid, 0);
}

/* Two that find the old file at once: one migrates, the other finds it done. */
static void
test_registry_old_is_migrated_once(void **state) {
  fixture_t *f = *state;
  load_old(f);
  pid_t children[4];
  for (int i = 0; i < 4; i++) {
    children[i] = al_test_fork();
    if (children[i] == 0) {
      uv_loop_t loop;
      al_registry_t r;
      al_err_t err;
      _exit(uv_loop_init(&loop) || al_registry_open(&loop, f->path, &r, &err) ? 1 : 0);
    }
  }
  for (int i = 0; i < 4; i++) {
    int status = -1;
    waitpid(children[i], &status, 0);
    assert_int_equal(status, 0);
  }
  reopen(f);
  assert_int_equal(sql_int(f, "SELECT count(*) FROM format"), 1);
  assert_int_equal(sql_int(f, "SELECT count(*) FROM lanes"), 5);
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(test_registry_old_keeps_all_its_rows, setup, teardown),
    cmocka_unit_test_setup_teardown(test_registry_old_process_goes_on, setup, teardown),
    cmocka_unit_test_setup_teardown(test_registry_old_is_migrated_once, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
