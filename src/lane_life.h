/* SPDX-License-Identifier: Apache-2.0 */
/* One live lane of this engine: what it holds, and the steps of its life. Loop thread only. */
#ifndef AL_LANE_LIFE_H
#define AL_LANE_LIFE_H

#include "chan.h"
#include "engine.h"
#include "exec.h"
#include "transport.h"

typedef struct al_waiter_s {
  uint32_t id;
  struct al_waiter_s *next;
} al_waiter_t;

typedef struct al_lane_derive_s al_lane_derive_t;
struct al_derive_key_s;

typedef enum { AL_TRANSPORT_AUTO, AL_TRANSPORT_SHELL, AL_TRANSPORT_PORT } al_transport_want_t;

/* For the run manifest (lane_manifest.c). Times are unix time in ms. */
typedef struct al_manifest_s {
  bool written, waits;  /* there is one; its first event waits for QEMU's version */
  int keep_days;
  int64_t asked_ms, at_ms[AL_LANE_STATES]; /* 0: it has not come there */
  char config[AL_SHA256_HEX]; /* digest of the effective configuration */
  uint64_t started, ended, interrupted; /* commands */
  uint32_t exits[256];  /* of those that ended, by their code */
  uint64_t counted, counted_ms; /* their sum when it was last written, and when: monotonic */
  uint64_t copies, copied_bytes, missed;
  al_lima_cb ready_cb;
} al_manifest_t;

struct al_lane_s {
  al_engine_t *engine;
  al_site_t *site;
  al_driver_t *driver;
  al_lane_t *next;
  uint32_t create_id;         /* open create request; 0 once answered */
  uint32_t watch_id;          /* the same number, kept for events */
  al_lane_spec_t spec;
  al_lane_row_t row;
  int state;                  /* AL_LANE_*; before the row exists: -1 */
  bool attached;              /* another process owns it: see lane_attach.c */
  /* options */
  char agent_user[33], worktree[1024], image_want[1024];
  al_image_trust_t *image_trust; /* NULL: any image will do */
  al_val_t *image_keys;       /* the option imageKeys, for the run manifest; NULL: not asked for */
  int image_hold;             /* keeps the image from being removed until the row names it */
  bool sudo;
  int max_vms, start_timeout_s, sync_in_s, timeout_minutes;
  bool accel_auto;
  al_transport_want_t transport_want;
  char **env;                 /* NAME=value of every exec, NULL-terminated */
  uint64_t max_copy_out;
  uint64_t copy_out_left;     /* what may still come out of it: maxCopyOutTotalBytes less what has */
  al_budget_t budget;         /* output that open commands keep; max: maxBufferedBytes */
  /* progress of create */
  const char *step;
  int prelude;                /* answers still owed by the checks before admission */
  al_err_t prelude_err;
  al_queue_t queue;
  char told[1024 + 120];      /* what "queued" has said of it */
  int queue_timeout_s;        /* 0 = the wait for a place counts inside the start timeout */
  uint64_t queue_end_ms;
  uint64_t begun_ms, deadline_ms; /* monotonic */
  bool limactl_busy;          /* a check before admission has a child, which ends within 10 s */
  bool step_busy;             /* an asynchronous step will call back */
  bool destroy_wanted, destroying;
  al_err_t cause;             /* why the lane ends; the first one wins */
  al_err_t create_err;        /* what create is told when it differs from that: see al_lane_event */
  bool finish_wanted;         /* the row is closed or stuck; waits for open calls to end */
  bool finished;              /* everybody has been answered; only its timers are still closing */
  int ending;                 /* closes that destroy waits for */
  bool claimed;               /* the registry knows that it is closing */
  uint64_t retry_until_ms;    /* until then its end is tried again when memory or descriptors were short */
  /* parts */
  uv_timer_t start_timer, life_timer, sync_timer, retry_timer;
  int timers;
  al_boot_t *boot;
  al_transport_t *transport;
  al_chan_t *chan;
  al_op_t *ops;
  al_waiter_t *closers;
  uint16_t ssh_port;
  struct { al_job_t job; int status; al_err_t err; } image_job;
  uint64_t life_end_boot_ms;
  /* what it may take of the host (lane_guard.c): bytes, 0 = no bound */
  uint64_t max_growth, max_host_log, min_free;
  bool low_close;             /* it may be closed for want of space */
  bool low_told, logs_told, disk_seen;
  uint64_t disk_base, disk_now; /* bytes of its directory at the first look and at the last */
  al_keeper_cb kept;          /* what follows once the keeper has it */
  al_lane_derive_t *derive;   /* its disk is to become an image (lane_derive.c); else NULL */
  al_manifest_t manifest;
};

/* lane_life.c: the way along the state table */
void
al_lane_event(al_lane_t *lane, int event, const al_err_t *why, const char *reason);
void
al_lane_emit(al_lane_t *lane, const char *type, const char *text);
/* With what else there is to say: `v` is a map, and taken. */
void
al_lane_emit_with(al_lane_t *lane, const char *type, const char *text, al_val_t *v);
void
al_lane_free(al_lane_t *lane);
void
al_lane_finish(al_lane_t *lane); /* the row is closed, or cannot be */
void
al_lane_op_ended(al_lane_t *lane); /* the last thing that frees a call */
al_lane_t *
al_lane_find(al_engine_t *e, const char *name);
int
al_lanes_count(const al_engine_t *e); /* that have a row and are not over */
void
al_lanes_close_all(al_engine_t *e);

/* lane_options.c */
int
al_lane_read_options(al_lane_t *lane, const al_val_t *params, al_err_t *err);
/* NAME=value list of a map of texts, NULL-terminated with one free slot; NULL and err on a bad name or value. */
char **
al_env_list(const al_val_t *map, al_err_t *err);
void
al_env_free(char **list);

/* Before the row exists (lane_create.c, lane_admit.c). */
void
al_lane_admit(al_lane_t *lane);
/* Ends a lane without a row and answers create with `err`. */
void
al_lane_give_up(al_lane_t *lane, const al_err_t *err);

/* lane_start.c: the actions towards ready */
void
al_lane_do_create(al_lane_t *lane);
void
al_lane_do_boot(al_lane_t *lane);
void
al_lane_do_connect(al_lane_t *lane);

/* lane_keep.c */
/* Tells the keeper the lane; `then` with 0 when the keeper has it, which is before anything of the lane is made. */
void
al_lane_keep(al_lane_t *lane, al_keeper_cb then);
void
al_lane_unkeep(al_lane_t *lane); /* its end is proven */
void
al_lane_kept_anew(void *site, const al_ident_t *keeper); /* by another keeper, which has been told */

/* lane_time.c */
void
al_lane_timers_init(al_lane_t *lane);
void
al_lane_timers_stop(al_lane_t *lane);
void
al_lane_timers_close(al_lane_t *lane, uv_close_cb cb);
int64_t
al_lane_left_ms(const al_lane_t *lane); /* until the deadline of its start; negative when that is over */
void
al_lane_watch_start(al_lane_t *lane);
void
al_lane_watch_life(al_lane_t *lane);
void
al_lane_watch_sync_in(al_lane_t *lane);

/* lane_destroy.c */
void
al_lane_do_destroy(al_lane_t *lane);
/* Writes the lane's last state, then al_lane_finish. */
void
al_lane_close_row(al_lane_t *lane, const char *reason);
void
al_lane_chan_ended(al_lane_t *lane); /* the channel has called on_closed */

/* lane_evict.c: ends a lane from outside; `who`: for its run manifest, see al_run_end_event (a literal); `ask`: a living owner has the time to end it in order. `by` says who has ended
 * it at last, one of the words below, which are for people; NULL when it failed. cb exactly once; from inside the call
 * only without memory. */
#define AL_EVICTED_HERE "this command"
#define AL_EVICTED_BY_OWNER "its owner"
#define AL_EVICTED_BY_ANOTHER "another process"
typedef void (*al_evict_cb)(void *data, int status, const al_err_t *err, const char *by);
void
al_evict(al_site_t *site, al_driver_t *driver, const al_lane_row_t *row, const char *who, const char *reason, bool ask,
  al_evict_cb cb, void *data);

/* lane_derive.c */
/* Whether there is something to do between the end of the channel and that of the directory; then `then` comes after it. */
bool
al_lane_derive(al_lane_t *lane, void (*then)(al_lane_t *lane));
/* Answers the request, if there is one; the lane is over. */
void
al_lane_derive_answer(al_lane_t *lane);
void
al_lane_derive_free(al_lane_t *lane);
/* project and inputsKey of a request. AL_EBAD_OPTION */
int
al_derive_key_read(const al_val_t *params, struct al_derive_key_s *key, al_err_t *err);

/* reaper.c: ends registered lanes whose owner is gone; cb when done. */
void
al_reaper_sweep(al_site_t *site, al_driver_t *driver, void (*cb)(void *data), void *data);

#endif
