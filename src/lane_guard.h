/* SPDX-License-Identifier: Apache-2.0 */
/* The guard of a home's lanes: what they take of the host, and whether another process has ended one. Loop thread. */
#ifndef AL_LANE_GUARD_H
#define AL_LANE_GUARD_H

#include "lane_life.h"

/* Looks after the lane from now on; one that is over is left by itself. */
void
al_guard_add(al_lane_t *lane);
/* With the site: no look begins any more. cb when its timer is closed; at once, from inside, when
 * there is no guard. Its memory (site->guard) goes after the site's worker and registry: both may have a job of it. */
void
al_guard_close(al_site_t *site, void (*cb)(void *data), void *data);
/* On a worker, before a lane is made: AL_EHOST_DISK_FULL when less than `keep` bytes are free in the home. 0 = any. */
int
al_guard_room(const al_home_t *home, uint64_t keep, al_err_t *err);

#endif
