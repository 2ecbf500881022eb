/* SPDX-License-Identifier: Apache-2.0 */
/* The lane agent: speaks the channel on its stdin and stdout and runs the host's commands. docs/PROTOCOL.md says
 * how. */
#include "agent.h"
#include "unpack.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define POLLS_FIXED 3 /* channel in, channel out, attaching */
#define POLLS_MAX (POLLS_FIXED + AL_STREAMS_MAX * AL_SUBS)
#define FILLS 64 /* in a turn */
#define SYS_CLOSE_RANGE 436 /* the same number on every architecture */

al_agent_t al_agent;

static volatile sig_atomic_t child_ended, stop_asked;
static pid_t own_pid;
static bool one_file;   /* stdin and stdout are the same open file */
static bool left_alone; /* the channel, in this turn's wait */
static int null_fd = -1;
static uint64_t pongs[AL_PONGS_MAX];
static size_t pongs_len;

static struct pollfd polls[POLLS_MAX];
static struct { uint16_t slot, sub; } polls_for[POLLS_MAX];

uint64_t
al_main_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t) t.tv_sec * 1000000000u + (uint64_t) t.tv_nsec;
}

int
al_main_null(void) {
  return null_fd;
}

/* A child that shares our memory until its exec may be hit too; its signals are not ours. */
static void
on_signal(int signo) {
  if (syscall(SYS_getpid) != own_pid) return;
  if (signo == SIGCHLD) child_ended = 1;
  else stop_asked = 1;
}

/* Everything stays blocked except while we poll, and commands start with an empty mask and default actions. */
static void
set_signals(sigset_t *while_polling) {
  static const int ours[] = {SIGCHLD, SIGTERM, SIGHUP, SIGINT};
  struct sigaction a;
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, NULL);
  *while_polling = all;
  for (int i = 1; i <= 64; i++) {
    if (sigaction(i, NULL, &a) != 0 || a.sa_handler != SIG_IGN) continue;
    a = (struct sigaction) {.sa_handler = SIG_DFL};
    sigaction(i, &a, NULL);
  }
  for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++) {
    a = (struct sigaction) {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigfillset(&a.sa_mask);
    sigaction(ours[i], &a, NULL);
    sigdelset(while_polling, ours[i]);
  }
}

static void
reap(void) {
  int status;
  pid_t pid;
  child_ended = 0;
  while ((pid = waitpid(-1, &status, WNOHANG)) > 0) al_stream_reaped(pid, status, al_main_now());
}

static void
queue_pong(uint64_t token) {
  if (pongs_len == AL_PONGS_MAX) al_stop_reject(AL_REJECT_PROTOCOL, "too many pings without waiting for their answers");
  pongs[pongs_len++] = token;
}

static void
send_pongs(void) {
  size_t done = 0;
  for (; done < pongs_len; done++) {
    uint8_t p[8];
    al_put64(p, pongs[done]);
    if (!al_io_frame(0, AL_F_PONG, 0, p, sizeof(p))) break;
  }
  pongs_len -= done;
  memmove(pongs, pongs + done, pongs_len * sizeof(pongs[0]));
}

static void
dispatch(const al_frame_t *f) {
  if (f->type >= AL_F_EXEC && f->type <= AL_F_CANCEL) {
    al_stream_frame(f);
    return;
  }
  if (f->type > AL_F_CANCEL) al_stop_reject(AL_REJECT_PROTOCOL, "a frame type that is reserved");
  if (f->stream != 0 || f->flags != 0)
    al_stop_reject(AL_REJECT_PROTOCOL, "a frame of the channel with a stream id or flags");
  switch (f->type) {
  case AL_F_CONFIG: al_config_apply(f); break;
  case AL_F_ACK: al_io_acked(al_get64(f->payload)); break;
  case AL_F_PING: queue_pong(al_get64(f->payload)); break;
  case AL_F_CLOCK: al_config_clock(al_get64(f->payload)); break;
  case AL_F_REJECT: al_stop_eof(0);
  default: al_stop_reject(AL_REJECT_PROTOCOL, "a frame that the host may not send");
  }
}

static void
take_frames(void) {
  al_frame_t f;
  while (al_io_next(&f)) dispatch(&f);
}

/* What has come. In bulk that is a header and its bytes by turns, for as long as there are some: at most FILLS. */
static void
take_channel(void) {
  bool came = false, bulk = false, goes_on = true;
  uint64_t total = 0;
  for (int i = 0; i < FILLS && goes_on; i++) {
    int r = al_io_fill();
    if (r == 0) al_stop_eof(0);
    if (r < 0) break;
    take_frames();
    came = true;
    goes_on = al_io_bulk(&total);
    bulk = bulk || goes_on;
  }
  if (came) al_calm_came(total, bulk, goes_on);
}

/* A virtio port is one file, and must be in a poll once only. Linux's poll of a port takes the next buffer off the queue
 * to look whether there is one; when that happens for the entry that did not ask for POLLIN, after the one that did had
 * found nothing, then the interrupt finds the queue empty and wakes nobody: the bytes lie there until more come. */
static bool
is_one_file(void) {
  struct stat in, out;
  return fstat(0, &in) == 0 && fstat(1, &out) == 0 && in.st_dev == out.st_dev && in.st_ino == out.st_ino &&
    in.st_rdev == out.st_rdev;
}

static void
add_poll(size_t *n, int fd, short events, size_t slot, int sub) {
  polls[*n] = (struct pollfd) {.fd = fd, .events = events};
  polls_for[*n].slot = (uint16_t) slot;
  polls_for[*n].sub = (uint16_t) sub;
  (*n)++;
}

/* Fills the poll set. *timeout_ns: 0 = something can go on at once, UINT64_MAX = nothing to wait for but
 * descriptors. */
static size_t
collect(uint64_t now, uint64_t *timeout_ns) {
  size_t n = 0;
  bool room = al_io_data_room() > 0;
  *timeout_ns = UINT64_MAX;
  short out = al_io_pending() ? POLLOUT : 0;
  uint64_t calm = al_calm_take();
  left_alone = calm > 0;
  if (left_alone) *timeout_ns = calm;
  add_poll(&n, left_alone ? -1 : 0, (short) (POLLIN | (one_file ? out : 0)), 0, 0);
  add_poll(&n, one_file ? -1 : 1, out, 0, 0);
  add_poll(&n, al_attach_fd(), POLLIN, 0, 0);
  for (size_t i = 0; i < al_agent.slots_high; i++) {
    al_slot_t *s = &al_agent.slots[i];
    if (al_slot_is_file(s) && room && (s->credit[AL_SUB_STDOUT] > 0 || s->sent == s->size)) *timeout_ns = 0;
    if (s->state != AL_SLOT_RUN) continue;
    if (s->fd[AL_SUB_STDIN] >= 0 && s->area_len > 0) add_poll(&n, s->fd[AL_SUB_STDIN], POLLOUT, i, AL_SUB_STDIN);
    for (int sub = AL_SUB_STDOUT; sub <= AL_SUB_STDERR; sub++) {
      if (!room || s->fd[sub] < 0 || s->credit[sub] == 0) continue;
      if (s->calm_ns[sub] <= now || s->reaped) s->calm_ns[sub] = 0;
      if (s->calm_ns[sub] == 0) add_poll(&n, s->fd[sub], POLLIN, i, sub);
      else if (s->calm_ns[sub] - now < *timeout_ns) *timeout_ns = s->calm_ns[sub] - now;
    }
    if (s->reaped) {
      uint64_t left = s->grace_ns > now ? s->grace_ns - now : 0;
      if (s->fd[AL_SUB_STDOUT] < 0 && s->fd[AL_SUB_STDERR] < 0) left = UINT64_MAX; /* only its tree is waited for */
      if (left < *timeout_ns) *timeout_ns = left;
    }
    uint64_t tick = al_cancel_wait(s, now);
    if (tick < *timeout_ns) *timeout_ns = tick;
  }
  return n;
}

/* Whether time matters: somebody holds the pipes of an ended command, a tree is being ended, or an output is left
 * alone for a moment. */
static bool
any_timed(void) {
  for (size_t i = 0; i < al_agent.slots_high; i++) {
    const al_slot_t *s = &al_agent.slots[i];
    bool calm = s->calm_ns[AL_SUB_STDOUT] || s->calm_ns[AL_SUB_STDERR];
    if (s->state == AL_SLOT_RUN && (s->reaped || s->kill_ns != 0 || calm)) return true;
  }
  return false;
}

static void
handle(size_t n) {
  for (size_t i = POLLS_FIXED; i < n; i++) {
    if (polls[i].revents == 0) continue;
    al_slot_t *s = &al_agent.slots[polls_for[i].slot];
    s->ready[polls_for[i].sub] = true;
    if (polls_for[i].sub == AL_SUB_STDIN) al_stream_feed(s);
  }
  if (left_alone || (polls[0].revents & ~POLLOUT) != 0) take_channel();
  if (polls[1].revents & (POLLERR | POLLNVAL)) al_stop_eof(0);
  if (polls[2].revents != 0) al_attach_turn();
}

static void
turn(const sigset_t *mask) {
  uint64_t wait_ns, now = any_timed() ? al_main_now() : 0;
  size_t n = collect(now, &wait_ns);
  struct timespec t = {.tv_sec = (time_t) (wait_ns / 1000000000u), .tv_nsec = (long) (wait_ns % 1000000000u)};
  int got = ppoll(polls, n, wait_ns == UINT64_MAX ? NULL : &t, mask);
  if (got < 0 && errno != EINTR) al_stop_reject(AL_REJECT_SETUP, "poll failed in the guest");
  if (stop_asked) al_stop_eof(0);
  if (got > 0 || left_alone) handle(n);
  if (child_ended) reap();
  send_pongs();
  bool acked = al_io_ack();
  if (any_timed()) now = al_main_now();
  if (al_pump_output(now)) reap();
  if (any_timed()) {
    now = al_main_now();
    al_cancel_tick(now);
    al_pump_grace(now);
  }
  al_stream_control(acked);
  if (!al_io_flush()) al_stop_eof(0);
}

static int
usage(const char *why) {
  dprintf(2, "agent: %s\nusage: agent --secret FILE [--attach] [--user NAME] [--home DIR]"
             " [--no-cgroup] [--local]\n", why);
  return 2;
}

static int
options(int argc, char **argv) {
  snprintf(al_agent.user_name, sizeof(al_agent.user_name), "agent");
  for (int i = 1; i < argc; i++) {
    bool more = i + 1 < argc;
    if (strcmp(argv[i], "--local") == 0) al_agent.local = al_agent.no_cgroup = true;
    else if (strcmp(argv[i], "--no-cgroup") == 0) al_agent.no_cgroup = true;
    else if (strcmp(argv[i], "--attach") == 0) al_agent.attached = true;
    else if (strcmp(argv[i], "--secret") == 0 && more) al_agent.secret_path = argv[++i];
    else if (strcmp(argv[i], "--home") == 0 && more) al_agent.home = argv[++i];
    else if (strcmp(argv[i], "--user") == 0 && more && strlen(argv[i + 1]) < sizeof(al_agent.user_name))
      snprintf(al_agent.user_name, sizeof(al_agent.user_name), "%s", argv[++i]);
    else return usage(argv[i]);
  }
  if (al_agent.secret_path == NULL) return usage("--secret is missing");
  if (!al_agent.local && geteuid() != 0) return usage("must be root, or --local");
  return 0;
}

int
main(int argc, char **argv) {
  sigset_t mask;
  if (argc > 1 && strcmp(argv[1], "--unpack") == 0) return al_unpack_main(argc, argv);
  int err = options(argc, argv);
  if (err != 0) return err;
  own_pid = getpid();
  umask(022);
  set_signals(&mask);
  (void) syscall(SYS_CLOSE_RANGE, 3u, ~0u, 0u);
  null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null_fd < 0 || al_spawn_init() != 0) al_stop_reject(AL_REJECT_SETUP, "the agent could not set itself up");
  al_stream_init();
  prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  for (int fd = 0; fd <= 1; fd++) {
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) return usage("stdin and stdout must be open");
  }
  one_file = is_one_file();
  al_io_init(one_file);
  al_hello_wait();
  take_frames(); /* of a host that did not wait for our answer */
  for (;;) turn(&mask);
}
