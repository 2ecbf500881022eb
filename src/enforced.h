/* SPDX-License-Identifier: Apache-2.0 */
/* Which of a lane's limits something holds up right now. Any thread that may block. */
#ifndef AL_ENFORCED_H
#define AL_ENFORCED_H

#include "registry.h"
#include "val.h"

/* Every row of the table, in the order in which people read them. Both al_enforced and al_enforced_plan say each of them
 * once: what is asked of a configuration before it runs is what is read off it then. */
#define AL_PROMISE_MAP(X) \
  X(NETWORK, "network") \
  X(FILES, "host files") \
  X(SOCKETS, "host sockets and keys") \
  X(MEMORY, "memory") \
  X(CPUS, "cpus") \
  X(SYSCALLS, "QEMU's system calls") \
  X(END, "end with its owner") \
  X(CONSOLE, "console log") \
  X(LIFETIME, "lifetime") \
  X(COPIES, "copies out") \
  X(DOMAINS, "egress by domain") \
  X(CREDENTIALS, "credentials out of the guest") \
  X(GIT, "git on the host")

typedef enum {
#define AL_PROMISE_ONE(name, what) AL_PROMISE_##name,
  AL_PROMISE_MAP(AL_PROMISE_ONE)
#undef AL_PROMISE_ONE
  AL_PROMISES
} al_promise_t;

typedef enum { AL_HELD_NO, AL_HELD_YES, AL_HELD_UNKNOWN } al_held_t;

/* Adds one row to the list. 0 or -ENOMEM. */
int
al__enforced_say(al_val_t *list, al_promise_t what, al_held_t held, const char *fmt, ...)
  __attribute__((format(printf, 4, 5)));
/* The rows from COPIES on, which no configuration changes. */
int
al__enforced_always(al_val_t *list);

/* A list of {what, enforced, by}; `enforced` is null where nothing can be read that would tell. `argv` and `settings` may
 * be NULL: as al_lima_argv, al_lima_settings and al_lima_processes give them. 0 or -ENOMEM. */
int
al_enforced(const al_lane_row_t *row, const al_val_t *argv, const al_val_t *settings, const al_val_t *processes,
  al_val_t **out);

/* What a configuration will be held by, before anything of it is there. */
typedef struct al_enforced_plan_s {
  bool vz;           /* else QEMU */
  bool network_none; /* else open */
  int cpus, timeout_minutes;
  int64_t memory_mib;
} al_enforced_plan_t;

/* The same list. 0 or -ENOMEM. */
int
al_enforced_plan(const al_enforced_plan_t *plan, al_val_t **out);

#endif
