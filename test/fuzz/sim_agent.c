/* SPDX-License-Identifier: Apache-2.0 */
/* The real agent, all of it but what starts and ends processes (spawn, cgroup, limits, pty, users, stop, unpacking),
 * over simulated pipes, files and commands. Its system calls are renamed below; a new one that is not renamed works on the real kernel. */
#include "agent/agent.h"
#include "agent/unpack.h"
#include "sha256.h"
#include "sim.h"
#include "sim_kernel.h"

/* ---- the parts of the agent that are not here ---- */

int
al_cgroup_init(void) { return 0; }
int
al_cgroup_take(al_cgroup_t *cg) { return cg->dir = -1, 0; }
void
al_cgroup_give(al_cgroup_t *cg) { (void) cg; }
bool
al_cgroup_empty(const al_cgroup_t *cg) { return (void) cg, true; }
bool
al_cgroup_oom(al_cgroup_t *cg) { return (void) cg, false; }
void
al_cgroup_signal(al_cgroup_t *cg, int signo) { (void) cg, (void) signo; }
bool
al_limits_any(const al_limits_t *l) { return (void) l, false; }
int
al_limits_set(const al_cgroup_t *cg, const al_limits_t *l, const char **what) { return (void) cg, (void) l, (void) what, 0; }
int
al_users_find(const char *name, const al_user_t **u) { return (void) name, (void) u, -ENOENT; }
int
al_users_become(const al_user_t *u) { return (void) u, 0; }
void
al_users_restore(void) { }
int
al_pty_open(al_slot_t *s, al_spawn_t *sp) { return (void) s, (void) sp, -ENOTTY; }
void
al_pty_resize(al_slot_t *s, uint16_t rows, uint16_t cols) { s->rows = rows, s->cols = cols; }
void
al_pty_close(al_slot_t *s) { s->tty = -1; }
size_t
al_pty_eof(const al_slot_t *s, uint8_t eof[2]) { return (void) s, eof[0] = eof[1] = 4, 1; }
void
al_attach_listen(void) { }
void
al_attach_join(void) { }
int
al_attach_fd(void) { return -1; }
void
al_attach_turn(void) { }
int
al_spawn_init(void) { return 0; }
int
al_unpack_main(int argc, char **argv) { return (void) argc, (void) argv, 2; }

al_fail_t *
al_spawn_fail(size_t slot) {
  static al_fail_t fails[AL_STREAMS_MAX];
  return &fails[slot];
}

pid_t
al_spawn_start(const al_spawn_t *sp) {
  size_t i = 0, argc = 0;
  while (sp->argv[argc]) argc++;
  while (i < AL_STREAMS_MAX && sim_commands[i].used && !sim_commands[i].reaped) i++;
  if (i == AL_STREAMS_MAX) return -EAGAIN;
  if (i >= commands_high) commands_high = i + 1;
  sim_command_t *c = &sim_commands[i];
  *c = (sim_command_t) {.used = true, .key = (uint32_t) strtoul(sp->argv[argc - 1], NULL, 10), .pid = ++last_pid};
  sp->fail->err = 0;
  plan_of(c->key, &c->plan);
  for (int sub = 0; sub < 3; sub++) {
    c->pipe[sub] = sp->fd[sub] >= FD_PIPES ? (sp->fd[sub] - FD_PIPES) / 2 : -1;
    if (c->pipe[sub] < 0) continue;
    pipe_t *p = &pipes[c->pipe[sub]];
    p->command[sub == 0 ? 0 : 1] = true;
    p->key = c->key;
    p->sub = sub;
  }
  return c->pid;
}

_Noreturn void
al_stop_reject(uint32_t code, const char *text) {
  sim_agent_code = code;
  sim_agent_text = text;
  longjmp(way_out, 1);
}

_Noreturn void
al_stop_eof(int code) {
  (void) code;
  longjmp(way_out, 1);
}

/* ---- the agent itself ---- */

#define read sim_read
#define write sim_write
#define close sim_close
#define pipe2 sim_pipe2
#define ppoll sim_ppoll
#define poll(fds, n, ms) sim_poll(fds, n, ms)
#define ioctl sim_ioctl
#define splice sim_splice
#define kill sim_kill
#define waitpid sim_waitpid
#define clock_gettime sim_clock_gettime
#define clock_settime(...) sim_refuse()
#define fcntl(...) 0
#define syscall sim_syscall
#define open sim_open
#define openat sim_refuse_at
#define mkdirat(...) sim_refuse()
#define mkdir(...) sim_refuse()
#define unlink(...) sim_refuse()
#define rename(...) sim_refuse()
#define fchown(...) sim_refuse()
#define fchmod(...) sim_refuse()
#define fstat sim_fstat
#define getenv sim_getenv

#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wmissing-prototypes" /* of its main */
#include "agent/calm.c"
#include "agent/io.c"
#include "agent/hello.c"
#include "agent/pump.c"
#include "agent/cancel.c"
#define parse config_parse
#undef PATH_SIZE
#include "agent/config.c"
#undef parse
#undef PATH_SIZE
#define parse read_parse
#include "agent/read.c"
#undef parse
#define fstatat sim_fstatat
#define readlinkat sim_readlinkat
#undef openat
#define openat sim_openat
#include "agent/tree.c"
#undef openat
#define openat sim_refuse_at
#define parse request_parse
#include "agent/pipes.c"
#include "agent/request.c"
#undef parse
#include "agent/stream.c"
#define on_signal main_on_signal
#define main sim_agent_main
#include "agent/main.c"
#undef main

void
sim_agent_reset(size_t room, void (*plan)(uint32_t key, sim_plan_t *out)) {
  for (size_t i = 0; i < al_agent.slots_high; i++) al_agent.slots[i].state = AL_SLOT_FREE;
  al_agent.slots_high = al_agent.last_id = 0;
  ahead_len = 0;
  al_agent.local = al_agent.no_cgroup = true;
  al_agent.configured = al_agent.poweroff = false;
  al_agent.secret_path = "secret";
  memset(area_dirty, 0, sizeof(area_dirty));
  in_off = in_len = out_off = out_len = first = pongs_len = 0;
  in_total = in_acked = out_total = out_acked = 0;
  child_ended = stop_asked = 0;
  null_fd = FD_NULL;
  held[0] = sim_percent(60) ? FD_HELD : -1; /* not every kernel can */
  held[1] = held[0] < 0 ? -1 : FD_HELD + 1;
  framed[0] = FD_FRAMED;
  framed[1] = FD_FRAMED + 1;
  own_pipes[0].len = own_pipes[1].len = 0;
  pacing = (al_pacing_t) {.most = AL_PACING_DEFAULT, .alone = AL_PACING_ALONE_GUEST, .slow_ns = AL_PACING_SLOW_NS};
  memset(pipes, 0, (pipes_high + 1) * sizeof(pipes[0]));
  memset(sim_commands, 0, commands_high * sizeof(sim_commands[0]));
  for (size_t i = 0; i < files_high; i++) files[i].is_open = false;
  for (size_t i = 0; i < dirs_high; i++) dirs[i].is_open = false;
  pipes_high = commands_high = files_high = dirs_high = 0;
  to_agent.len = from_agent.len = 0;
  to_agent.ended = from_agent.ended = sim_ended = greeted = false;
  room_each = room < sizeof(to_agent.bytes) ? room : sizeof(to_agent.bytes);
  plan_of = plan;
  sim_agent_code = 0;
  sim_agent_text = sim_broken = NULL;
  wakes_at = UINT64_MAX;
}

static void
greet(void) {
  al_frame_t f;
  if (al_io_fill() == 0) al_stop_eof(0);
  if (!al_io_next(&f)) return;
  answer(&f);
  greeted = true;
  if (!al_io_flush()) al_stop_eof(0);
  take_frames();
}

/* A terminal's end of input is up to two bytes more. */
static void
check_slots(void) {
  for (size_t i = 0; i < al_agent.slots_high; i++) {
    const al_slot_t *s = &al_agent.slots[i];
    if (s->state == AL_SLOT_RUN && s->area_len > AL_WINDOW_DEFAULT + 2) broken("more stdin than the window");
    if (s->state == AL_SLOT_RUN && (s->credit[1] > AL_WINDOW_MAX || s->credit[2] > AL_WINDOW_MAX)) broken("more credit than there is");
    if (s->state == AL_SLOT_OPENING && s->area_len > AL_OPEN_MAX) broken("a request over its limit");
  }
}

bool
sim_agent_turn(void) {
  static sigset_t mask;
  if (sim_ended) return false;
  if (setjmp(way_out) != 0) {
    sim_ended = from_agent.ended = true;
    sim_progress++;
    return false;
  }
  for (size_t i = 0; i < commands_high; i++)
    if (sim_commands[i].exited && !sim_commands[i].reaped) child_ended = 1;
  if (greeted) turn(&mask);
  else greet();
  check_slots();
  return true;
}

uint64_t
sim_agent_due(void) {
  return sim_ended ? UINT64_MAX : wakes_at;
}

size_t
sim_agent_give(const uint8_t *p, size_t n) {
  size_t room = room_each > to_agent.len ? room_each - to_agent.len : 0;
  if (n > room) n = room;
  memcpy(to_agent.bytes + to_agent.len, p, n);
  to_agent.len += n;
  return n;
}

void
sim_agent_hang_up(void) {
  to_agent.ended = true;
}

size_t
sim_agent_get(uint8_t *p, size_t n) {
  if (n > from_agent.len) n = from_agent.len;
  memcpy(p, from_agent.bytes, n);
  memmove(from_agent.bytes, from_agent.bytes + n, from_agent.len -= n);
  return n;
}

void
sim_agent_stop(void) {
  stop_asked = 1;
}

unsigned
sim_agent_held(void) {
  unsigned n = 0;
  for (size_t i = 0; i < pipes_high; i++) n += pipes[i].agent[0] + pipes[i].agent[1];
  for (size_t i = 0; i < files_high; i++) n += files[i].is_open;
  for (size_t i = 0; i < dirs_high; i++) n += dirs[i].is_open;
  return n - 2 * (unsigned) ahead_len;
}

void
sim_agent_counted(uint64_t *in, uint64_t *out) {
  *in = in_total;
  *out = out_total;
}

/* ---- commands ---- */

static void
use_stdin(sim_command_t *c) {
  pipe_t *p = &pipes[c->pipe[0]];
  uint64_t n = p->made - p->taken;
  if (n > c->plan.in_limit - c->in_taken) n = c->plan.in_limit - c->in_taken;
  if (n > 0 && sim_percent(50)) n = 1 + sim_below(n);
  p->taken += n;
  c->in_taken += n;
  sim_progress += n > 0;
  if (p->made == p->taken && !p->agent[1]) c->end_seen = true;
  if (!c->end_seen && c->in_taken < c->plan.in_limit) return;
  p->command[0] = false;
  c->pipe[0] = -1; /* the place may soon be another's */
}

void
sim_agent_commands(void) {
  for (size_t i = 0; i < commands_high; i++) {
    sim_command_t *c = &sim_commands[i];
    bool busy = c->plan.endless;
    if (!c->used || c->exited || sim_percent(25)) continue;
    if (c->pipe[0] >= 0) use_stdin(c);
    if (c->pipe[0] >= 0) busy = true;
    for (int sub = 1; sub <= 2; sub++) {
      pipe_t *p = &pipes[c->pipe[sub]];
      uint64_t n = c->plan.out[sub - 1] - p->made, room = PIPE_ROOM - (p->made - p->taken);
      if (!p->agent[0]) continue; /* nobody reads: EPIPE, and it goes on */
      if (n > room) n = room;
      if (n > 0 && sim_percent(70)) n = 1 + sim_below(n);
      p->made += n;
      sim_progress += n > 0;
      if (p->made < c->plan.out[sub - 1]) busy = true;
    }
    if (!busy && sim_percent(70)) end_command(c, 0);
  }
}
