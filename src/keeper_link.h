/* SPDX-License-Identifier: Apache-2.0 */
/* The owner's end of its keeper: starts it, tells it each lane and hears that it keeps it, starts another when it dies.
 * Loop thread only. */
#ifndef AL_KEEPER_LINK_H
#define AL_KEEPER_LINK_H

#include "home.h"
#include "keeper_wire.h"
#include "platform.h"
#include <uv.h>

typedef struct al_keeper_link_s al_keeper_link_t;
/* Never from inside the call. AL_EKEEPER_FAILED, or -errno of what may be there again in a moment. */
typedef void (*al_keeper_cb)(void *data, int status, const al_err_t *err);

typedef struct al_keeper_opts_s {
  const al_home_t *home;   /* borrowed */
  const char *program;     /* from the package; runs as the copy that is installed below the home */
  const al_ident_t *owner; /* this process; borrowed */
  /* Another keeper has taken the place of one that ended, and is told all lanes. May be NULL. */
  void (*on_restart)(void *data, const al_ident_t *keeper);
  void *data;
} al_keeper_opts_t;

/* Starts nothing yet. NULL when out of memory. */
al_keeper_link_t *
al_keeper_link_open(uv_loop_t *loop, const al_keeper_opts_t *opts);
/* Starts the keeper unless it runs, so that the first lane need not wait for it. */
void
al_keeper_link_start(al_keeper_link_t *l);
/* Who it is; NULL while there is none. */
const al_ident_t *
al_keeper_ident(const al_keeper_link_t *l);
/* Tells a lane (head is ours); cb with 0 once a keeper has it, within 5 s in any case. A lane that was refused is not
 * kept. */
void
al_keeper_keep(al_keeper_link_t *l, const al_keeper_keep_t *lane, al_keeper_cb cb, void *data);
/* The lane is proven gone. */
void
al_keeper_drop(al_keeper_link_t *l, const char *name);
/* Closes the link, which hands what was not dropped over to the keeper. Keeps that wait get UV_ECANCELED. */
void
al_keeper_link_close(al_keeper_link_t *l, void (*cb)(void *data), void *data);

#endif
