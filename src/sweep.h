/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a sweep: whom it may end, what there is, what is left over. reaper.c puts them together. */
#ifndef AL_SWEEP_H
#define AL_SWEEP_H

#include "lima_procs.h"
#include "registry.h"
#include "val.h"
#include "work.h"

/* ---- sweep_rules.c: pure but for the look at processes ---- */

typedef struct al_sweep_rules_s {
  uint64_t boot_ms;  /* now */
  int64_t now_s;
  bool force;        /* asked for by a person who means it: living owners count for nothing */
  bool patient;      /* a stuck lane is left alone until its pause is over */
} al_sweep_rules_t;

typedef enum {
  AL_SWEEP_KEEP,
  AL_SWEEP_ORPHAN, /* kept for its keeper, which has not been seen alone before: to be noted */
  AL_SWEEP_END
} al_sweep_verdict_t;

/* `forgotten`: a row of this very engine that has no lane. *why: for people, in every case. */
al_sweep_verdict_t
al_sweep_judge(const al_sweep_rules_t *rules, const al_lane_row_t *row, bool forgotten, const char **why);

/* ---- sweep_look.c: what there is, looked at before the registry is. Worker thread. ---- */

typedef struct al_sweep_proc_s {
  al_ident_t id;
  al__lima_kind_t kind;
  char name[AL_NAME_LEN + 1];
} al_sweep_proc_t;

typedef struct al_sweep_look_s {
  al_val_t *said;  /* names of lanes in the command lines of this user's processes */
  al_val_t *temps; /* paths below the home that may be left over */
  al_val_t *runs;  /* names of the run manifests that have no end yet */
  al_sweep_proc_t *procs; /* host agents, wardens, QEMUs and ssh masters below this home */
  size_t count, cap;
  bool whole;      /* no process was overlooked: a lane whose name is not in `said` has none */
} al_sweep_look_t;

/* 0, or -ENOMEM. `out` is zeros before; free it in every case. */
int
al_sweep_look(const al_home_t *home, al_sweep_look_t *out);
void
al_sweep_look_free(al_sweep_look_t *look);
/* Whether a process says the name: then it may be the lane's. */
bool
al_sweep_said(const al_sweep_look_t *look, const char *name);

/* ---- sweep_dead.c. Loop thread. ---- */

typedef struct al_sweep_corpse_s {
  const char *name, *reason;
  int64_t id; /* its row */
  size_t index; /* the caller's */
  bool gone;  /* answer: nothing is left of it, and its row says so */
} al_sweep_corpse_t;

typedef struct al_sweep_dead_s {
  const al_home_t *home;
  al_registry_t *registry;
  al_worker_t *io;
  al_sweep_corpse_t *list; /* lanes whose owner is gone; stays until cb */
  size_t count;
  bool (*go_on)(void *data); /* asked again and again; false: no more */
  void (*cb)(void *data);
  void *data;
} al_sweep_dead_t;

/* Ends those of the list that have no process. cb once, from inside the call when there is nothing to do. */
void
al_sweep_dead(const al_sweep_dead_t *how);

/* ---- sweep_tidy.c: ends what nobody owns. Worker thread. ---- */

typedef struct al_sweep_open_s {
  const al_lane_row_t *rows; /* the open ones, listed after the look */
  size_t count;
  bool booting;              /* a lane that is kept may be starting: its limactl has files in <home>/run */
} al_sweep_open_t;

/* Temporary files and directories, and processes of lanes that have neither row nor directory; the run manifests of such
 * lanes get their end, and those that were kept for their days go. What was removed, killed or ended is added to `removed` as {what, reason} (NULL: not told). */
int
al_sweep_tidy(const al_home_t *home, const al_sweep_look_t *look, const al_sweep_open_t *open, al_val_t *removed);

/* ---- sweep_report.c: zeros for a silent sweep ---- */

typedef struct al_sweep_report_s {
  bool told;
  al_val_t *reaped, *kept, *strays, *removed, *notices;
  int rc; /* -ENOMEM: it is not whole */
} al_sweep_report_t;

int
al_sweep_report_init(al_sweep_report_t *report);
void
al_sweep_report_free(al_sweep_report_t *report);
/* A line in one of its lists: {name, reason, ok?, message?}; `ok` -1: none. */
void
al_sweep_report_note(al_sweep_report_t *report, al_val_t *list, const char *name, const char *reason, int ok,
  const char *message);
/* All of it as one value; what is taken is no longer the report's. *rc: -ENOMEM when it is not whole. */
al_val_t *
al_sweep_report_take(al_sweep_report_t *report, int *rc);

#endif
