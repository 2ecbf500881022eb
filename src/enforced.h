/* SPDX-License-Identifier: Apache-2.0 */
/* Which of a lane's limits something holds up right now. Any thread that may block. */
#ifndef AL_ENFORCED_H
#define AL_ENFORCED_H

#include "registry.h"
#include "val.h"

/* A list of {what, enforced, by}; `enforced` is null where nothing can be read that would tell. `argv` and `settings` may
 * be NULL: as al_lima_argv, al_lima_settings and al_lima_processes give them. 0 or -ENOMEM. */
int
al_enforced(const al_lane_row_t *row, const al_val_t *argv, const al_val_t *settings, const al_val_t *processes,
  al_val_t **out);

#endif
