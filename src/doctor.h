/* SPDX-License-Identifier: Apache-2.0 */
/* Doctor: whether this machine has what a lane needs. Synchronous; run on a worker. */
#ifndef AL_DOCTOR_H
#define AL_DOCTOR_H

#include "err.h"
#include "val.h"
#include <stdbool.h>

typedef struct al_doctor_opts_s {
  const char *home, *limactl, *image; /* borrowed; NULL: as for a lane without these options */
  bool allow_unknown_lima;
} al_doctor_opts_t;

/* `out`: {ok, checks: [{name, status: "found"|"missing"|"too old"|"unsafe"|"skipped", detail, cure?}]}. What is wrong
 * with the machine is in there, never an error; "skipped" (KVM, what depends on something missing) does not make ok
 * false. Fails with -ENOMEM only. */
int
al_doctor_run(const al_doctor_opts_t *opts, al_val_t **out, al_err_t *err);

#endif
