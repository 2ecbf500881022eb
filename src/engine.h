/* SPDX-License-Identifier: Apache-2.0 */
/* Engine internals: the thread, its sites (one per home), lanes and open requests. Everything here is loop thread. */
#ifndef AL_ENGINE_H
#define AL_ENGINE_H

#include "al.h"
#include "keeper_link.h"
#include "lima.h"
#include "registry.h"
#include "work.h"

typedef struct al_lane_s al_lane_t;
typedef struct al_op_s al_op_t;
typedef struct al_site_s al_site_t;
typedef struct al_guard_s al_guard_t;
typedef struct al_turn_s al_turn_t;

/* A request as it came from the other thread. */
typedef struct al_request_s {
  uint32_t id;
  char op[24];
  al_val_t *params; /* owned */
  struct al_request_s *next;
} al_request_t;

/* What an open request will be answered with, and how much of its output the receiver has consumed: allocated with the
 * request, so that neither needs memory later. */
typedef struct al_answer_s {
  al_event_t event; /* first: it is given away */
  size_t taken[2];  /* of sub 1 and 2, not told yet */
  bool hurry;       /* the engine waits for the last of it */
  bool listed;      /* in the engine's list of those with something taken */
  struct al_answer_s *next, *next_taken;
} al_answer_t;

#define AL_ANSWER_LISTS 1024u

/* One limactl; lanes keep a pointer to it, so it lives as long as its site. */
typedef struct al_driver_s {
  al_lima_t lima;
  bool allow_unknown;
  bool vm_asking;           /* lane_manifest.c asks QEMU for its version, once */
  char vm_version[200];     /* "" = not known */
  char key[1100];
  struct al_driver_s *next;
} al_driver_t;

/* One home with what hangs off it. Opened by the first request that needs it, closed with the engine. */
struct al_site_s {
  al_engine_t *engine;
  al_home_t home;
  al_registry_t registry;
  al_worker_t *io;    /* short file work of lanes */
  al_worker_t *store; /* hashing and importing images: seconds, which no lane's end should wait for */
  al_driver_t *drivers;
  al_guard_t *guard;  /* lane_guard.c; NULL before the first lane */
  al_keeper_link_t *keeper; /* NULL until a lane is to be created */
  char keeper_program[1200];
  int closing;      /* handles still to close */
  bool sweeping;    /* for those who wait for a place; swept_ms: when that began, monotonic */
  uint64_t swept_ms;
  struct reap_s *sweep; /* the one that runs (reaper.c) */
  al_site_t *next;
};

struct al_engine_s {
  al_engine_opts_t opts;
  char package_dir[1024];
  char env_id[33];      /* this environment, random */
  al_ident_t self;
  uv_thread_t thread;
  uv_loop_t loop;
  uv_async_t wake;
  uv_prepare_t before_poll;
  uv_check_t after_poll;
  uv_mutex_t lock;      /* guards inbox, answers and the flags below but `muted` */
  uv_mutex_t telling;   /* guards muted, and is held while the opts' functions run; taken inside of lock */
  uv_cond_t ended_cond; /* of ended and left */
  al_request_t *inbox, **inbox_tail;
  al_answer_t *answers[AL_ANSWER_LISTS]; /* of the open requests, one each, by id: they may be very many */
  al_answer_t *taken;   /* those whose receiver has consumed something */
  bool stopping, muted, ended, orphaned;
  bool leaving;         /* the process ends */
  bool left;            /* ... and the thread has seen it */
  bool stopped;         /* ... and stands still for ever */
  al_engine_t *next;    /* of the process's engines; under their own lock (engine_end.c) */
  int lanes_left;
  /* loop thread only */
  bool untold;          /* events went out since the last on_turn */
  bool refuse;          /* al_engine_close has begun */
  bool closing_sites;
  al_site_t *sites;
  al_lane_t *lanes;
  al_turn_t *turns;     /* to make an image of a project (admin_project.c) */
  int busy;             /* requests outside lanes that still run */
};

/* engine_end.c. The process's engines are listed from open to free. */
void
al_engine_list(al_engine_t *e);
void
al_engine_free(al_engine_t *e);
void
al_request_free(al_request_t *r);
/* Under e->lock, with each turn that somebody asked for. Does not come back when the process ends and there is work. */
void
al_engine_heed_leave(al_engine_t *e);

/* Answers. `value` is taken; err is copied. */
void
al_engine_done(al_engine_t *e, uint32_t id, al_val_t *value);
void
al_engine_fail(al_engine_t *e, uint32_t id, const al_err_t *err);
/* what there is beside the error */
void
al_engine_fail_with(al_engine_t *e, uint32_t id, const al_err_t *err, al_val_t *value);
/* `value` is a map or list that was built with the result `rc`: DONE, or NO_MEMORY when it is not whole. Taken. */
void
al_engine_answer(al_engine_t *e, uint32_t id, const char *op, al_val_t *value, int rc);
/* What work on a worker has come to: DONE with `value`, or, when `status` is negative, `err`, which is filled when nothing
 * says what went wrong. `value` is taken. */
void
al_engine_conclude(al_engine_t *e, uint32_t id, al_val_t *value, int status, al_err_t *err);
/* Any other event. 0, or -ENOMEM when it is lost. `value` is taken. */
int
al_engine_emit(al_engine_t *e, al_event_type_t type, uint32_t id, int sub, al_val_t *value);
/* Call when a lane or an outside request has ended: lets a stopping engine go on. */
void
al_engine_check_end(al_engine_t *e);

/* The site for `home` (params key "home"); opened when needed. */
int
al_site_get(al_engine_t *e, const al_val_t *params, al_site_t **out, al_err_t *err);
/* ... with its Lima driver for params limactlPath / allowUnknownLima. */
int
al_site_lima(al_site_t *s, const al_val_t *params, al_driver_t **out, al_err_t *err);
/* ... with its keeper, which is started when it does not run. */
int
al_site_keeper(al_site_t *s, al_err_t *err);
void
al_site_close_all(al_engine_t *e); /* ends with al_engine_check_end when none is left */

/* Handlers of one request each; they answer it. In lane_create.c, lane_exec.c, lane_copy.c, lane_calls.c, admin_*.c, reaper.c. */
void
al_do_create(al_engine_t *e, al_request_t *r);
void
al_do_exec(al_engine_t *e, al_request_t *r);
void
al_do_attach(al_engine_t *e, al_request_t *r);
void
al_do_write(al_engine_t *e, al_request_t *r);
void
al_do_signal(al_engine_t *e, al_request_t *r);
void
al_do_resize(al_engine_t *e, al_request_t *r);
void
al_do_cancel(al_engine_t *e, al_request_t *r);
void
al_do_copy_in(al_engine_t *e, al_request_t *r);
void
al_do_copy_out(al_engine_t *e, al_request_t *r);
void
al_do_copy_tree_out(al_engine_t *e, al_request_t *r);
void
al_do_synced_in(al_engine_t *e, al_request_t *r);
void
al_do_ping(al_engine_t *e, al_request_t *r);
void
al_do_close(al_engine_t *e, al_request_t *r);
void
al_do_list(al_engine_t *e, al_request_t *r);
void
al_do_inspect(al_engine_t *e, al_request_t *r);
void
al_do_logs(al_engine_t *e, al_request_t *r);
void
al_do_events(al_engine_t *e, al_request_t *r);
void
al_do_runs(al_engine_t *e, al_request_t *r);
void
al_do_run_check(al_engine_t *e, al_request_t *r);
void
al_do_end(al_engine_t *e, al_request_t *r);
void
al_do_reap(al_engine_t *e, al_request_t *r);
void
al_do_image_import(al_engine_t *e, al_request_t *r);
void
al_do_image_list(al_engine_t *e, al_request_t *r);
void
al_do_image_inspect(al_engine_t *e, al_request_t *r);
void
al_do_image_signed(al_engine_t *e, al_request_t *r);
void
al_do_image_verify(al_engine_t *e, al_request_t *r);
void
al_do_image_export(al_engine_t *e, al_request_t *r);
void
al_do_image_remove(al_engine_t *e, al_request_t *r);
void
al_do_image_prune(al_engine_t *e, al_request_t *r);
void
al_do_image_derived(al_engine_t *e, al_request_t *r);
void
al_do_image_unclaim(al_engine_t *e, al_request_t *r);
void
al_do_derive(al_engine_t *e, al_request_t *r);
void
al_do_doctor(al_engine_t *e, al_request_t *r);
void
al_do_explain(al_engine_t *e, al_request_t *r);
void
al_do_home(al_engine_t *e, al_request_t *r);
void
al_do_errors(al_engine_t *e, al_request_t *r);
/* Gives every turn back; the engine is over. */
void
al_turns_free(al_engine_t *e);
/* The request's answer waits until all of its output has been taken: its receiver is to tell at once. */
void
al_engine_hurry(al_engine_t *e, uint32_t id);
void
al_calls_taken(al_engine_t *e, uint32_t id, int sub, size_t n);

#endif
