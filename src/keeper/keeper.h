/* SPDX-License-Identifier: Apache-2.0 */
/* Keeper: the small program that outlives an owner and ends its lanes. Shared between its files; one thread, no libuv,
 * no database. */
#ifndef AL_KEEPER_H
#define AL_KEEPER_H

#include "keeper_wire.h"
#include "platform.h"
#include <stdbool.h>

#define AL_KEEPER_LANES_MAX 1024
#define AL_KEEPER_TOOLS_MAX 16     /* different limactls of one owner */
#define AL_KEEPER_WORKERS_MAX 4    /* lanes that are ended at once */
#define AL_KEEPER_WORKER_MS 60000  /* of which the deadlines inside of a worker take at most 20 s */
#define AL_KEEPER_TRIES_MAX 6      /* in about half a minute; after that the sweep has the lane */
#define AL_KEEPER_ADVANCE_MS 1000  /* a living owner ends an expired lane itself, in good order */
#define AL_KEEPER_LOOK_MS 1000     /* boot time goes on while the machine sleeps, a timeout does not: so look often */
#define AL_KEEPER_LOG_MAX 262144   /* the log file turns over at this size; one old file is kept */
#define AL_KEEPER_HOME_MAX 256

/* What limactl needs to be run as the driver runs it. */
typedef struct al_keeper_tools_s {
  char limactl[AL_KEEPER_PATH_MAX], path_env[AL_KEEPER_PATH_MAX / 2], user_home[AL_KEEPER_PATH_MAX];
} al_keeper_tools_t;

typedef enum {
  AL_KEEPER_FREE,
  AL_KEEPER_KEPT,
  AL_KEEPER_DUE,    /* to be ended; waits for a worker, or for its next try */
  AL_KEEPER_ENDING, /* a worker is at it */
  AL_KEEPER_GONE,   /* proven; the owner has not dropped it yet */
  AL_KEEPER_GIVEN_UP
} al_keeper_state_t;

typedef struct al_keeper_lane_s {
  char name[AL_NAME_LEN + 1];
  uint8_t state, tools, tries;
  bool dropped;           /* while it is being ended */
  pid_t worker;
  int64_t row;
  uint64_t expires_boot_ms;
  uint64_t at_ms;         /* monotonic: when a worker began, or may */
} al_keeper_lane_t;

typedef struct al_keeper_s {
  char home[AL_KEEPER_HOME_MAX], lima[AL_KEEPER_HOME_MAX], run[AL_KEEPER_HOME_MAX];
  pid_t owner;
  uint64_t owner_start; /* in the unit of al_ident_t */
  int link;             /* -1: over */
  bool orphaned;        /* the owner is gone, or has closed the link */
  al_keeper_lane_t lanes[AL_KEEPER_LANES_MAX];
  size_t count;         /* places in use, free ones among them */
  al_keeper_tools_t tools[AL_KEEPER_TOOLS_MAX];
  size_t tools_count;
  size_t workers;
} al_keeper_t;

/* lanes.c */
int
al_keeper_lanes_keep(al_keeper_t *k, const al_keeper_keep_t *r); /* 0 or -errno: the answer */
void
al_keeper_lanes_drop(al_keeper_t *k, const char *name);
/* Marks what is due, starts workers, ends those that hang. The milliseconds until it wants to be called again. */
int
al_keeper_lanes_turn(al_keeper_t *k);
void
al_keeper_lanes_reap(al_keeper_t *k); /* a worker may have ended */
/* Whether there is still something to keep or to end. */
bool
al_keeper_lanes_busy(const al_keeper_t *k);

/* link.c: takes what the owner has sent. False when the keeper must end at once: what came is no record. */
bool
al_keeper_link_read(al_keeper_t *k);
int
al_keeper_link_hello(al_keeper_t *k);

/* end.c */
/* Kills the processes of all lanes that are due, in one look at the system's processes: their VMs are gone before the
 * first directory is. */
void
al_keeper_end_kill(al_keeper_t *k);
/* Forks a worker that ends one lane: its status is 0 when the end is proven. -errno. */
pid_t
al_keeper_end_start(al_keeper_t *k, const al_keeper_lane_t *lane);

/* log.c: one line with the time in <home>/log/keeper.log. Never fails, never waits. */
void
al_keeper_log(const al_keeper_t *k, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* watch_linux.c, watch_darwin.c: what differs. */
typedef struct al_keeper_news_s {
  bool link, owner_gone, child;
} al_keeper_news_t;
/* Closes every descriptor above standard error. */
void
al_keeper_close_stray(void);
/* Watches exactly the process that k->owner and k->owner_start name; -ESRCH when it is gone. */
int
al_keeper_watch_open(const al_keeper_t *k);
void
al_keeper_watch_wait(const al_keeper_t *k, int timeout_ms, al_keeper_news_t *news);
/* In a worker: its children's ends are its own affair. */
void
al_keeper_watch_leave(void);
/* Before a worker's child becomes limactl: it ends with its worker, where the system can do that. */
void
al_keeper_end_with_parent(void);

#endif
