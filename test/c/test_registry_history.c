/* SPDX-License-Identifier: Apache-2.0 */
/* A lane's history: every step with its reason, in order, of a closed lane too; nobody can change a line. */
#include "registry_test.h"

static al_history_t lines[1001];
static size_t line_count;

static void
told(void *data, int status, const al_err_t *err, const al_history_t *rows, size_t count) {
  assert_true(count <= 1000);
  line_count = count;
  if (count) memcpy(lines, rows, count * sizeof *rows);
  answered(data, status, err);
}

static int
history(fixture_t *f, const char *name) {
  al_registry_history(&f->r, name, told, f);
  run(f);
  return f->status;
}

static void
test_history_tells_every_step(void **state) {
  fixture_t *f = *state;
  al_lane_row_t row = a_row('a'), other = a_row('b');
  int64_t ticket = 0, second = 0;
  char holders[256];
  assert_int_equal(history(f, row.name), AL_ENO_SUCH_LANE);
  assert_int_equal(admit(f, &row, 2, &ticket, holders), 0);
  assert_int_equal(admit(f, &other, 2, &second, holders), 0);
  assert_int_equal(move(f, row.id, AL_LANE_REGISTERED, AL_LANE_CREATING), 0);
  assert_int_equal(claim(f, row.id), 0);
  assert_int_equal(move(f, row.id, AL_LANE_CLOSING, AL_LANE_CLOSED), 0);
  assert_int_equal(history(f, row.name), 0);
  static const int steps[][2] = {{-1, AL_LANE_REGISTERED}, {AL_LANE_REGISTERED, AL_LANE_CREATING},
    {AL_LANE_CREATING, AL_LANE_CLOSING}, {AL_LANE_CLOSING, AL_LANE_CLOSED}};
  assert_int_equal(line_count, 4);
  for (size_t i = 0; i < 4; i++) {
    assert_int_equal(lines[i].from, steps[i][0]);
    assert_int_equal(lines[i].to, steps[i][1]);
    assert_true(lines[i].at_ms > 1600000000000 && (i == 0 || lines[i].at_ms >= lines[i - 1].at_ms));
  }
  assert_string_equal(lines[2].reason, "to be closed");
  assert_string_equal(lines[3].reason, "because");
  assert_int_equal(history(f, other.name), 0);
  assert_int_equal(line_count, 1);
}

static void
test_history_is_bounded_to_the_newest(void **state) {
  fixture_t *f = *state;
  al_lane_row_t row = a_row('a');
  int64_t ticket = 0;
  char holders[256];
  assert_int_equal(admit(f, &row, 2, &ticket, holders), 0);
  sql_run(f,
    "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1500)"
    " INSERT INTO history (lane, at_ms, from_state, to_state, reason)"
    " SELECT lanes.id, i, 'closing', 'stuck', 'try ' || i FROM n, lanes");
  assert_int_equal(history(f, row.name), 0);
  assert_int_equal(line_count, 1000);
  assert_string_equal(lines[0].reason, "try 501");
  assert_string_equal(lines[999].reason, "try 1500");
}

static void
test_history_is_only_added_to(void **state) {
  fixture_t *f = *state;
  al_lane_row_t row = a_row('a');
  int64_t ticket = 0;
  char holders[256];
  sqlite3 *sql = NULL;
  assert_int_equal(admit(f, &row, 2, &ticket, holders), 0);
  assert_int_equal(sqlite3_open(f->path, &sql), SQLITE_OK);
  assert_int_equal(sqlite3_exec(sql, "DELETE FROM history", NULL, NULL, NULL), SQLITE_CONSTRAINT);
  assert_int_equal(sqlite3_exec(sql, "UPDATE history SET reason = ''", NULL, NULL, NULL), SQLITE_CONSTRAINT);
  sqlite3_close(sql);
  assert_int_equal(history(f, row.name), 0);
  assert_int_equal(line_count, 1);
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(test_history_tells_every_step, setup, teardown),
    cmocka_unit_test_setup_teardown(test_history_is_bounded_to_the_newest, setup, teardown),
    cmocka_unit_test_setup_teardown(test_history_is_only_added_to, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
