/* SPDX-License-Identifier: Apache-2.0 */
/* The queue for places among processes: in order, never more than allowed, positions, a killed waiter frees its place. */
#include "registry_test.h"

#define CHILDREN 6
#define ROUNDS 3
#define PLACES 2

/* A process that takes a place, holds it for a moment and gives it back, some times; says in the pipe that it waits. */
static void
live(const char *path, int number, int said, int hold_ms) {
  fixture_t f = {.called = false};
  al_err_t err = {0};
  uv_loop_init(&f.loop);
  snprintf(f.path, sizeof f.path, "%s", path);
  if (al_registry_open(&f.loop, f.path, &f.r, &err)) _exit(2);
  for (int round = 0; round < ROUNDS; round++) {
    al_queue_t q = {.ticket = 0};
    al_lane_row_t row = a_row('a');
    /* A first try that cannot succeed gives the ticket, which the row then carries: its creation time has no other use
     * here. */
    snprintf(row.name, sizeof row.name, "agent-lane-%08x-%08x", number, round);
    for (int places = 0;; places = PLACES) {
      f.called = false;
      al_registry_admit(&f.r, &row, places, &q, answered, &f);
      run(&f);
      if (f.status < 0) _exit(3);
      row.created_s = q.ticket;
      if (said >= 0 && write(said, "w", 1) != 1) _exit(4);
      said = -1;
      if (f.status == 0) break;
      if (places) usleep(5000);
    }
    usleep((useconds_t) hold_ms * 1000);
    if (claim(&f, row.id) || move(&f, row.id, AL_LANE_CLOSING, AL_LANE_CLOSED)) _exit(5);
  }
  _exit(0);
}

/* The most lanes that were ever open, replayed from the history, whose order is that of the transactions. */
static int64_t
most_open(fixture_t *f) {
  return sql_int(f,
    "SELECT max(n) FROM (SELECT sum((to_state = 'registered') - (to_state = 'closed')) OVER (ORDER BY id) AS n"
    " FROM history)");
}

static void
test_queue_of_processes_keeps_order_and_limit(void **state) {
  fixture_t *f = *state;
  pid_t children[CHILDREN];
  for (int i = 0; i < CHILDREN; i++)
    if ((children[i] = al_test_fork()) == 0) live(f->path, i, -1, 5);
  for (int i = 0; i < CHILDREN; i++) {
    int status = -1;
    waitpid(children[i], &status, 0);
    assert_int_equal(status, 0);
  }
  assert_int_equal(sql_int(f, "SELECT count(*) FROM lanes"), CHILDREN * ROUNDS);
  assert_int_equal(most_open(f), PLACES);
  /* Who came first got its place first. */
  assert_int_equal(
    sql_int(f, "SELECT count(*) FROM lanes a JOIN lanes b ON a.id < b.id AND a.created_s > b.created_s"), 0);
  assert_int_equal(sql_int(f, "SELECT count(*) FROM waiters"), 0);
}

/* Tickets in the order of admission: read by a waiter that stands between others. */
static void
test_queue_tells_positions(void **state) {
  fixture_t *f = *state;
  al_lane_row_t rows[4] = {a_row('a'), a_row('b'), a_row('c'), a_row('d')};
  int64_t tickets[4] = {0};
  char holders[256];
  assert_int_equal(admit(f, &rows[0], 1, &tickets[0], holders), 0);
  for (int i = 1; i < 4; i++) {
    assert_int_equal(admit(f, &rows[i], 1, &tickets[i], holders), 1);
    assert_int_equal(f->position, i);
    assert_int_equal(f->of, i);
  }
  assert_int_equal(admit(f, &rows[2], 1, &tickets[2], holders), 1);
  assert_int_equal(f->position, 2);
  assert_int_equal(f->of, 3);
  al_registry_leave(&f->r, tickets[1]);
  assert_int_equal(admit(f, &rows[2], 1, &tickets[2], holders), 1);
  assert_int_equal(f->position, 1);
  assert_int_equal(f->of, 2);
  assert_int_equal(claim(f, rows[0].id), 0);
  assert_int_equal(move(f, rows[0].id, AL_LANE_CLOSING, AL_LANE_CLOSED), 0);
  assert_int_equal(admit(f, &rows[3], 1, &tickets[3], holders), 1); /* free, and it is not its turn */
  assert_int_equal(f->position, 2);
  assert_int_equal(admit(f, &rows[2], 1, &tickets[2], holders), 0);
}

static void
test_queue_killed_waiter_frees_its_place(void **state) {
  fixture_t *f = *state;
  al_lane_row_t held[PLACES] = {a_row('a'), a_row('b')}, last = a_row('c');
  int64_t tickets[PLACES] = {0}, mine = 0;
  char holders[256], byte;
  int fds[2];
  assert_int_equal(pipe(fds), 0);
  for (int i = 0; i < PLACES; i++) assert_int_equal(admit(f, &held[i], PLACES, &tickets[i], holders), 0);
  pid_t child = al_test_fork();
  if (child == 0) live(f->path, 1, fds[1], 5);
  assert_int_equal(read(fds[0], &byte, 1), 1); /* it stands in the queue */
  assert_int_equal(admit(f, &last, PLACES, &mine, holders), 1);
  assert_int_equal(f->position, 2);
  al_test_kill(child);
  assert_int_equal(claim(f, held[0].id), 0);
  assert_int_equal(move(f, held[0].id, AL_LANE_CLOSING, AL_LANE_CLOSED), 0);
  assert_int_equal(admit(f, &last, PLACES, &mine, holders), 0);
  assert_int_equal(most_open(f), PLACES);
  close(fds[0]);
  close(fds[1]);
}

/* Dropped while it stood still (the machine slept): with the next poll it is where it was. */
static void
test_queue_place_comes_back(void **state) {
  fixture_t *f = *state;
  al_lane_row_t rows[3] = {a_row('a'), a_row('b'), a_row('c')};
  int64_t tickets[3] = {0};
  char holders[256];
  assert_int_equal(admit(f, &rows[0], 1, &tickets[0], holders), 0);
  assert_int_equal(admit(f, &rows[1], 1, &tickets[1], holders), 1);
  assert_int_equal(admit(f, &rows[2], 1, &tickets[2], holders), 1);
  sql_run(f, "UPDATE waiters SET since_s = since_s - 100");
  assert_int_equal(admit(f, &rows[2], 1, &tickets[2], holders), 1);
  assert_int_equal(f->position, 1); /* the other one was dropped */
  assert_int_equal(admit(f, &rows[1], 1, &tickets[1], holders), 1);
  assert_int_equal(f->position, 1);
  assert_int_equal(admit(f, &rows[2], 1, &tickets[2], holders), 1);
  assert_int_equal(f->position, 2);
  /* The clock goes back an hour: who still asks is not dropped for a time in the future. */
  sql_run(f, "UPDATE waiters SET since_s = since_s + 3600");
  assert_int_equal(admit(f, &rows[1], 1, &tickets[1], holders), 1);
  assert_int_equal(admit(f, &rows[2], 1, &tickets[2], holders), 1);
  assert_int_equal(f->position, 2);
}

int
main(void) {
#define T(name) cmocka_unit_test_setup_teardown(test_queue_##name, setup, teardown)
  const struct CMUnitTest tests[] = {
    T(of_processes_keeps_order_and_limit),
    T(tells_positions),
    T(killed_waiter_frees_its_place),
    T(place_comes_back),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
