/* SPDX-License-Identifier: Apache-2.0 */
/* Requests about lanes of the registry, whoever owns them: what they share. Loop thread. */
#ifndef AL_ADMIN_H
#define AL_ADMIN_H

#include "engine.h"
#include "lima_look.h"

/* A row with what was seen of its lane, as a map for people and programs; NULL when out of memory. Any thread. */
al_val_t *
al_admin_row(const al_lane_row_t *row, const al_look_t *look);

typedef struct al_admin_s al_admin_t;

/* First member of a request about one lane. `job` is for whoever needs the worker. */
struct al_admin_s {
  al_job_t job;
  al_engine_t *engine;
  al_site_t *site;
  uint32_t id;
  const char *op;
  char name[AL_NAME_LEN + 1];
  al_lane_row_t row;
  void (*found)(al_admin_t *a);
  al_val_t *value;  /* of the answer */
  al_err_t err;
};

/* Finds the row of params `lane`, open or closed, then calls `found`, which leads to al_admin_end. Whatever is wrong with
 * the name is answered here: AL_EBAD_NAME, AL_ENO_SUCH_LANE. `a` (al_calloc; NULL: out of memory) is taken. */
void
al_admin_find(al_engine_t *e, al_request_t *r, al_admin_t *a, const char *op, void (*found)(al_admin_t *a));
/* Answers with a->value, or a->err when `status` is negative, and frees `a`. */
void
al_admin_end(al_admin_t *a, int status);

#endif
