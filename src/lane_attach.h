/* SPDX-License-Identifier: Apache-2.0 */
/* A lane of another process: what its events lead to. Loop thread only. */
#ifndef AL_LANE_ATTACH_H
#define AL_LANE_ATTACH_H

#include "lane_life.h"
#include "xfer.h"

/* Ends our use of it; the lane itself lives on. `why` may be NULL. */
void
al_attach_end(al_lane_t *lane, const al_err_t *why);

#endif
