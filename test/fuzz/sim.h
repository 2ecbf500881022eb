/* SPDX-License-Identifier: Apache-2.0 */
/* Both ends of the channel in one process under one simulated clock, so that a seed is all it takes to see a run again:
 * a loop in libuv's place (sim_uv.c), a kernel in the real agent's place of one (sim_agent.c). */
#ifndef AL_SIM_H
#define AL_SIM_H

#include "chan.h"

/* ---- one random source for everything ---- */

extern uint64_t sim_seed;
static inline uint64_t
sim_random(void) { /* splitmix64 */
  uint64_t z = (sim_seed += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}
static inline uint64_t
sim_below(uint64_t n) {
  return n ? sim_random() % n : 0;
}
static inline bool
sim_percent(unsigned n) {
  return sim_random() % 100 < n;
}

extern uint64_t sim_now;      /* nanoseconds */
extern uint64_t sim_progress; /* grows whenever a byte moves or a callback runs */

/* What byte stands where: of stream `key`, sub-stream `sub` (0 stdin; 1, 2 output or file). */
static inline uint8_t
sim_byte(uint32_t key, int sub, uint64_t at) {
  return (uint8_t) (at * 167 + (at >> 8) * 13 + key * 59 + (unsigned) sub * 83);
}

/* ---- sim_uv.c: the host's loop, with one stream in each direction ---- */

extern uv_loop_t sim_loop;
extern uv_pipe_t sim_pipe;
void
sim_uv_reset(void);
bool
sim_uv_run(void); /* the timers that are due and the closing handles, as one turn of a loop; false = there was nothing */
uint64_t
sim_uv_due(void); /* when the next timer is; UINT64_MAX = never */
bool
sim_uv_reading(void);
void
sim_uv_feed(const uint8_t *p, size_t n); /* in as many reads as it takes; stops when the channel stops reading */
void
sim_uv_feed_end(int status); /* UV_EOF or an error */
const uint8_t *
sim_uv_written(size_t *n); /* what is left of a buffer of the write in flight; NULL = none */
void
sim_uv_take(size_t n); /* of it; the last byte of the last buffer ends the write */
void
sim_uv_fail_write(int status);

/* ---- sim_agent.c: the real agent over simulated commands ---- */

typedef struct sim_plan_s {    /* of the command, or file, that the request's last argument, or path, names by number */
  uint64_t out[2];             /* bytes it writes to stdout and stderr; out[0]: the file's size */
  uint64_t in_limit;           /* reads that many bytes of stdin, then closes it; UINT64_MAX = up to its end */
  bool ignores_term, holder;   /* holder: a child of it keeps the pipes open */
  bool endless;                /* ends by a signal only */
  bool shrinks;                /* the file is shorter than it was when it was opened */
  int exit_code;
} sim_plan_t;

typedef struct sim_command_s {
  bool used, exited, reaped, end_seen; /* end_seen: of stdin */
  uint32_t key;
  int signal;                  /* that ended it; 0 = it ended by itself */
  uint64_t in_taken;
  sim_plan_t plan;
  int pid, pipe[3];
} sim_command_t;

extern sim_command_t sim_commands[AL_STREAMS_MAX];
extern uint32_t sim_agent_code; /* of the agent's REJECT; 0 = none */
extern const char *sim_agent_text;
extern bool sim_any_stdin;      /* do not look at what is written to the commands */
extern const char *sim_broken;  /* what an invariant inside the simulation saw; NULL = nothing */
void
sim_agent_reset(size_t room, void (*plan)(uint32_t key, sim_plan_t *out)); /* room: bytes that each direction holds */
bool
sim_agent_turn(void); /* one turn of the agent's loop; false when it has ended */
uint64_t
sim_agent_due(void); /* when it would wake up by itself */
size_t
sim_agent_give(const uint8_t *p, size_t n); /* to its stdin, as far as there is room; n = 0: the end of it */
void
sim_agent_hang_up(void);
size_t
sim_agent_get(uint8_t *p, size_t n); /* from its stdout */
void
sim_agent_commands(void); /* lets each command do something */
void
sim_agent_stop(void); /* SIGTERM to the agent */
unsigned
sim_agent_held(void); /* descriptors that it holds, without those of pipes made ahead */
void
sim_agent_counted(uint64_t *in, uint64_t *out); /* what counts for the pacing */

#endif
