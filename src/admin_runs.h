/* SPDX-License-Identifier: Apache-2.0 */
/* Run manifests, as requests answer them. */
#ifndef AL_ADMIN_RUNS_H
#define AL_ADMIN_RUNS_H

#include "home.h"
#include "val.h"
#include <stdbool.h>

/* Reads a manifest and says whether it holds, as {path, ok, state, count, head, line, why, interruptedBytes, events}.
 * `path` NULL: that of the lane `name`; `open`: it may still be without an end. On a worker. AL_ENO_MANIFEST, -ENOMEM,
 * -errno. */
int
al_admin_check_run(const al_home_t *home, const char *name, const char *path, bool open, al_val_t **out, al_err_t *err);

#endif
