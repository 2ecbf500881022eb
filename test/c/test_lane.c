/* SPDX-License-Identifier: Apache-2.0 */
/* The lane state table, every state with every event. */
#include "al_test.h"
#include "lane.h"
#include <string.h>

static bool
ends(int event) {
  return event == AL_LANE_ON_FAIL || event == AL_LANE_ON_CLOSE || event == AL_LANE_ON_EXPIRE ||
    event == AL_LANE_ON_LOST;
}

/* What the design says, written a second time and independently of the table. */
static al_lane_next_t
expected(int state, int event) {
  al_lane_next_t refuse = { state, AL_LANE_DO_REFUSE };
  if (state <= AL_LANE_READY) {
    if (ends(event)) return (al_lane_next_t) { AL_LANE_CLOSING, AL_LANE_DO_DESTROY };
    if (state == AL_LANE_REGISTERED && event == AL_LANE_ON_START)
      return (al_lane_next_t){AL_LANE_CREATING, AL_LANE_DO_CREATE};
    if (state == AL_LANE_CREATING && event == AL_LANE_ON_CREATED)
      return (al_lane_next_t){AL_LANE_BOOTING, AL_LANE_DO_BOOT};
    if (state == AL_LANE_BOOTING && event == AL_LANE_ON_BANNER)
      return (al_lane_next_t){AL_LANE_CONNECTING, AL_LANE_DO_CONNECT};
    if (state == AL_LANE_CONNECTING && event == AL_LANE_ON_PROVEN)
      return (al_lane_next_t){AL_LANE_READY, AL_LANE_DO_ANNOUNCE};
    return refuse;
  }
  if (state == AL_LANE_CLOSING) {
    if (ends(event)) return (al_lane_next_t) { state, AL_LANE_DO_NONE };
    if (event == AL_LANE_ON_DESTROYED) return (al_lane_next_t) { AL_LANE_CLOSED, AL_LANE_DO_FINISH };
    if (event == AL_LANE_ON_UNPROVEN) return (al_lane_next_t) { AL_LANE_STUCK, AL_LANE_DO_REPORT };
  }
  if (state == AL_LANE_STUCK && (event == AL_LANE_ON_CLOSE || event == AL_LANE_ON_EXPIRE))
    return (al_lane_next_t) { AL_LANE_CLOSING, AL_LANE_DO_DESTROY };
  if (state == AL_LANE_CLOSED && event == AL_LANE_ON_CLOSE) return (al_lane_next_t) { state, AL_LANE_DO_NONE };
  return refuse;
}

static void
test_lane_every_state_and_event_as_designed(void **unused) {
  (void) unused;
  for (int s = 0; s < AL_LANE_STATES; s++)
    for (int e = 0; e < AL_LANE_EVENTS; e++) {
      al_lane_next_t got = al_lane_next(s, e), want = expected(s, e);
      if (got.state != want.state || got.action != want.action)
        fail_msg("%s on event %d: state %s action %d, wanted %s %d", al_lane_state_name(s), e,
          al_lane_state_name(got.state), got.action, al_lane_state_name(want.state), want.action);
    }
}

/* A row may be called closed only through CLOSING and the proof. */
static void
test_lane_closed_only_after_destroyed(void **unused) {
  (void) unused;
  for (int s = 0; s < AL_LANE_STATES; s++)
    for (int e = 0; e < AL_LANE_EVENTS; e++)
      if (al_lane_next(s, e).state == AL_LANE_CLOSED && s != AL_LANE_CLOSED)
        assert_true(s == AL_LANE_CLOSING && e == AL_LANE_ON_DESTROYED);
}

static void
test_lane_names_round_trip(void **unused) {
  (void) unused;
  for (int s = 0; s < AL_LANE_STATES; s++) assert_int_equal(al_lane_state_from_name(al_lane_state_name(s)), s);
  assert_int_equal(al_lane_state_from_name("nonsense"), -1);
  assert_int_equal(al_lane_state_from_name(NULL), -1);
  assert_string_equal(al_lane_state_name(-1), "?");
  assert_string_equal(al_lane_state_name(AL_LANE_STATES), "?");
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_lane_every_state_and_event_as_designed),
    cmocka_unit_test(test_lane_closed_only_after_destroyed),
    cmocka_unit_test(test_lane_names_round_trip),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
