/* SPDX-License-Identifier: Apache-2.0 */
/* Lane state machine: the one table of what may follow what. */
#include "lane.h"
#include <stddef.h>
#include <string.h>

/* Theory of operation. A lane moves only along this table; lane_life.c and reaper.c ask it, write the new state to the
 * registry, and only then take the action. From every open state the way out is CLOSING with DESTROY: there is one
 * routine that ends lanes. A state without an entry for an event refuses it: the caller keeps state and reports. */
typedef struct rule_s {
  unsigned char state, event, next, action;
} rule_t;

#define TO(state, event, next, action) \
  { AL_LANE_##state, AL_LANE_ON_##event, AL_LANE_##next, AL_LANE_DO_##action }
#define ENDS(state) \
  TO(state, FAIL, CLOSING, DESTROY), TO(state, CLOSE, CLOSING, DESTROY), TO(state, EXPIRE, CLOSING, DESTROY), \
    TO(state, LOST, CLOSING, DESTROY)

static const rule_t rules[] = {
  TO(REGISTERED, START, CREATING, CREATE),
  ENDS(REGISTERED),
  TO(CREATING, CREATED, BOOTING, BOOT),
  ENDS(CREATING),
  TO(BOOTING, BANNER, CONNECTING, CONNECT),
  ENDS(BOOTING),
  TO(CONNECTING, PROVEN, READY, ANNOUNCE),
  ENDS(CONNECTING),
  ENDS(READY),
  /* While destroy runs, more reasons to end change nothing. */
  TO(CLOSING, FAIL, CLOSING, NONE),
  TO(CLOSING, CLOSE, CLOSING, NONE),
  TO(CLOSING, EXPIRE, CLOSING, NONE),
  TO(CLOSING, LOST, CLOSING, NONE),
  TO(CLOSING, DESTROYED, CLOSED, FINISH),
  TO(CLOSING, UNPROVEN, STUCK, REPORT),
  /* A stuck lane is only ever tried again. */
  TO(STUCK, CLOSE, CLOSING, DESTROY),
  TO(STUCK, EXPIRE, CLOSING, DESTROY),
  TO(CLOSED, CLOSE, CLOSED, NONE),
};

al_lane_next_t
al_lane_next(int state, int event) {
  for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
    if (rules[i].state == state && rules[i].event == event)
      return (al_lane_next_t) { rules[i].next, rules[i].action };
  return (al_lane_next_t) { state, AL_LANE_DO_REFUSE };
}

#define TEXT(name, text) text,
static const char *const state_names[] = { AL_LANE_STATE_MAP(TEXT) };
#undef TEXT
_Static_assert(sizeof state_names / sizeof *state_names == AL_LANE_STATES, "one name per state");

const char *
al_lane_state_name(int state) {
  return state >= 0 && state < AL_LANE_STATES ? state_names[state] : "?";
}

int
al_lane_state_from_name(const char *name) {
  for (int i = 0; name && i < AL_LANE_STATES; i++)
    if (strcmp(state_names[i], name) == 0) return i;
  return -1;
}
