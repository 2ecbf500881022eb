/* SPDX-License-Identifier: Apache-2.0 */
/* What is not in place yet in a directory of the user's: its maker's lock on it, and the removal of what killed makers left. */
#ifndef AL_LEFTOVER_H
#define AL_LEFTOVER_H

#include <stdbool.h>

/* Takes the maker's lock on `name` of `dir`, which is open as `fd`. False: somebody else has it, or has removed it. */
bool
al_leftover_lock(int dir, const char *name, int fd);
/* Removes what has a name of tmp_name.h, is the user's own, and has no maker any more. What cannot be removed stays. */
void
al_leftover_sweep(int dir);

#endif
