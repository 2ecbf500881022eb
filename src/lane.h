/* SPDX-License-Identifier: Apache-2.0 */
/* Lane state machine: one pure table (state, event) -> (state, action). No I/O. */
#ifndef AL_LANE_H
#define AL_LANE_H

#include <stdbool.h>

/* X(NAME, text): order is the order of a lane's life. */
#define AL_LANE_STATE_MAP(X) \
  X(REGISTERED, "registered") /* row exists; nothing else does */ \
  X(CREATING, "creating")     /* instance directory may exist, half or whole */ \
  X(BOOTING, "booting")       /* limactl start runs; VM processes may exist */ \
  X(CONNECTING, "connecting") /* ssh answers; the channel is being made and proven */ \
  X(READY, "ready")           /* the handle may be used */ \
  X(CLOSING, "closing")       /* destroy runs or must be run again */ \
  X(STUCK, "stuck")           /* destroy could not prove the end; the sweep tries again */ \
  X(CLOSED, "closed")         /* proven gone; the row is history */

enum { /* AL_LANE_READY … */
#define AL_LANE_ENUM(name, text) AL_LANE_##name,
  AL_LANE_STATE_MAP(AL_LANE_ENUM) AL_LANE_STATES
#undef AL_LANE_ENUM
};
enum {
  AL_LANE_ON_START,
  AL_LANE_ON_CREATED,
  AL_LANE_ON_BANNER,
  AL_LANE_ON_PROVEN,
  AL_LANE_ON_FAIL,
  AL_LANE_ON_CLOSE,
  AL_LANE_ON_EXPIRE,
  AL_LANE_ON_LOST,
  AL_LANE_ON_DESTROYED,
  AL_LANE_ON_UNPROVEN,
  AL_LANE_EVENTS
};
enum {
  AL_LANE_DO_NONE,
  AL_LANE_DO_CREATE,
  AL_LANE_DO_BOOT,
  AL_LANE_DO_CONNECT,
  AL_LANE_DO_ANNOUNCE,
  AL_LANE_DO_DESTROY,
  AL_LANE_DO_FINISH,
  AL_LANE_DO_REPORT,
  AL_LANE_DO_REFUSE
};

typedef struct al_lane_next_s {
  int state, action; /* action AL_LANE_DO_REFUSE: the event is not legal there, state unchanged */
} al_lane_next_t;

al_lane_next_t
al_lane_next(int state, int event);
const char *
al_lane_state_name(int state);
int
al_lane_state_from_name(const char *name); /* -1 */

#endif
