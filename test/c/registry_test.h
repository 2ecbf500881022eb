/* SPDX-License-Identifier: Apache-2.0 */
/* A registry in a directory of its own, with calls that wait for their answer. */
#ifndef REGISTRY_TEST_H
#define REGISTRY_TEST_H

#include "al_test.h"
#include "lane.h"
#include "registry.h"
#include <sqlite3.h>

typedef struct fixture_s {
  uv_loop_t loop;
  char dir[64], path[128];
  al_registry_t r;
  int status;
  al_err_t err;
  bool called;
  al_lane_row_t rows[16];
  size_t count;
  int position, of; /* of the last admission */
} fixture_t;

AL_TEST_FN void
answered(void *data, int status, const al_err_t *err) {
  fixture_t *f = data;
  f->status = status;
  f->err = *err;
  f->called = true;
}

AL_TEST_FN void
listed(void *data, int status, const al_err_t *err, const al_lane_row_t *rows, size_t count) {
  fixture_t *f = data;
  answered(data, status, err);
  f->count = count < 16 ? count : 16;
  for (size_t i = 0; i < f->count; i++) f->rows[i] = rows[i];
}

AL_TEST_FN void
run(fixture_t *f) {
  al_test_until(&f->loop, &f->called, 20000);
  f->called = false;
}

AL_TEST_FN void
reopen(fixture_t *f) {
  al_err_t err = { 0 };
  if (al_registry_open(&f->loop, f->path, &f->r, &err)) fail_msg("%s", err.msg);
}

AL_TEST_FN void
closed(void *data) {
  ((fixture_t *) data)->called = true;
}

AL_TEST_FN void
shut(fixture_t *f) {
  al_registry_close(&f->r, closed, f);
  run(f);
}

AL_TEST_FN int
setup(void **state) {
  fixture_t *f = calloc(1, sizeof *f);
  al_test_dir(f->dir);
  if (uv_loop_init(&f->loop)) return -1;
  snprintf(f->path, sizeof f->path, "%s/registry.db", f->dir);
  reopen(f);
  *state = f;
  return 0;
}

AL_TEST_FN int
teardown(void **state) {
  fixture_t *f = *state;
  shut(f);
  uv_run(&f->loop, UV_RUN_DEFAULT);
  int rc = uv_loop_close(&f->loop);
  al_test_dir_remove(f->dir);
  free(f);
  return rc;
}

AL_TEST_FN al_lane_row_t
a_row(char last) {
  al_lane_row_t row;
  memset(&row, 0, sizeof row);
  snprintf(row.name, sizeof row.name, "agent-lane-00000000-0000000%c", last);
  assert_int_equal(al_plat_ident(getpid(), &row.owner), 0);
  snprintf(row.owner_env, sizeof row.owner_env, "00");
  row.created_s = 1000;
  row.expires_s = 4600;
  row.expires_boot_ms = 1ll << 40;
  row.cpus = 4;
  row.memory_mib = 8192;
  row.disk_gib = 30;
  snprintf(row.image, sizeof row.image, "base-0123456789ab");
  snprintf(row.network, sizeof row.network, "none");
  snprintf(row.accel, sizeof row.accel, "tcg");
  return row;
}

AL_TEST_FN int
admit(fixture_t *f, al_lane_row_t *row, int max, int64_t *ticket, char holders[256]) {
  static al_queue_t queue;
  queue.ticket = *ticket;
  al_registry_admit(&f->r, row, max, &queue, answered, f);
  run(f);
  *ticket = queue.ticket;
  snprintf(holders, 256, "%.255s", queue.holders);
  f->position = queue.position;
  f->of = queue.of;
  return f->status;
}

AL_TEST_FN int
move(fixture_t *f, int64_t id, int from, int to) {
  al_registry_move(&f->r, id, from, to, "because", answered, f);
  run(f);
  return f->status;
}

AL_TEST_FN int
claim(fixture_t *f, int64_t id) {
  al_registry_claim_close(&f->r, id, "to be closed", answered, f);
  run(f);
  return f->status;
}

/* Into the file, beside the registry's own connection. */
AL_TEST_FN void
sql_run(fixture_t *f, const char *text) {
  sqlite3 *sql = NULL;
  char *msg = NULL;
  assert_int_equal(sqlite3_open(f->path, &sql), SQLITE_OK);
  sqlite3_busy_timeout(sql, 10000);
  if (sqlite3_exec(sql, text, NULL, NULL, &msg)) fail_msg("%s: %s", text, msg);
  sqlite3_close(sql);
}

AL_TEST_FN int64_t
sql_int(fixture_t *f, const char *text) {
  sqlite3 *sql = NULL;
  sqlite3_stmt *st = NULL;
  assert_int_equal(sqlite3_open(f->path, &sql), SQLITE_OK);
  sqlite3_busy_timeout(sql, 10000);
  if (sqlite3_prepare_v2(sql, text, -1, &st, NULL)) fail_msg("%s: %s", text, sqlite3_errmsg(sql));
  assert_int_equal(sqlite3_step(st), SQLITE_ROW);
  int64_t n = sqlite3_column_int64(st, 0);
  sqlite3_finalize(st);
  sqlite3_close(sql);
  return n;
}

#endif
