/* SPDX-License-Identifier: Apache-2.0 */
/* Watching on Linux: pidfds of owner, keeper, hostagent and QEMU; QEMU dies with us by PR_SET_PDEATHSIG. */
#include "warden.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct watch_s {
  int owner, keeper, hostagent, qemu, signals; /* pidfds and a signalfd; -1: that one is gone */
  pid_t qemu_pid;
  uint64_t kill_at;   /* 0: no TERM is pending */
  uint64_t keeper_by; /* 0: the owner lives */
  const char *reason;
} watch_t;

static int
open_pidfd(pid_t pid) {
  return (int) syscall(SYS_pidfd_open, pid, 0);
}

static uint64_t
now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t) t.tv_sec * 1000 + (uint64_t) t.tv_nsec / 1000000;
}

/* Field 22 of /proc/PID/stat, counted after the last ')': the name before it may hold anything. 0 when there is
 * none. */
static uint64_t
start_of(pid_t pid) {
  char path[32], text[1024];
  snprintf(path, sizeof path, "/proc/%ld/stat", (long) pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
  if (fd >= 0) close(fd);
  if (n <= 0) return 0;
  text[n] = 0;
  char *p = strrchr(text, ')');
  for (int field = 2; p != NULL && field < 22; field++) p = strchr(p + 1, ' ');
  return p != NULL ? strtoull(p + 1, NULL, 10) : 0;
}

static bool
has_ended(int pidfd) {
  struct pollfd p = {pidfd, POLLIN, 0};
  return poll(&p, 1, 0) != 0;
}

/* The pidfd is of that very process only when the start time agrees before and after the opening. */
static int
open_process(pid_t pid, uint64_t start) {
  if (start_of(pid) != start) return -1;
  int fd = open_pidfd(pid);
  if (fd < 0) return -1;
  if (start_of(pid) == start && !has_ended(fd)) return fd;
  close(fd);
  return -1;
}

void
al_warden_close_stray(void) {
  if (syscall(SYS_close_range, 3u, ~0u, 0u) == 0) return;
  for (int fd = 3; fd < 4096; fd++) close(fd); /* a kernel before 5.9 */
}

int
al_warden_extra(al_warden_vm_t *vm) {
  for (int i = 0; i < vm->sink_count; i++) {
    al_warden_sink_t *sink = &vm->sinks[i];
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0) {
      snprintf(vm->why, sizeof vm->why, "no pipe for the serial log: %s", strerror(errno));
      return -1;
    }
    sink->read_fd = fds[0];
    sink->write_fd = fds[1];
    (void) fcntl(fds[0], F_SETFL, O_NONBLOCK);
    for (int k = 0; k < vm->argc; k++) {
      char *log = strstr(vm->argv[k], "logfile=");
      size_t n = strlen(sink->path);
      if (log == NULL || strncmp(log + 8, sink->path, n) != 0 || (log[8 + n] != 0 && log[8 + n] != ',')) continue;
      char *at = vm->bytes + vm->used;
      int head = (int) (log - vm->argv[k]) + 8, argc = vm->argc;
      if (al_warden_add(vm, "%.*s/proc/self/fd/%d%s", head, vm->argv[k], fds[1], log + 8 + n) != 0) return -1;
      vm->argc = argc; /* it takes the place of the old one */
      vm->argv[argc] = NULL;
      vm->argv[k] = at;
    }
  }
  if (vm->port && al_warden_channel_open(vm) != 0) return -1;
  if (al_warden_add(vm, "-sandbox") != 0) return -1;
  return al_warden_add(vm, "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny");
}

static void
become_qemu(al_warden_vm_t *vm, pid_t parent, const sigset_t *before) {
  char *env[] = {"PATH=/usr/bin:/bin", "LC_ALL=C", NULL};
  struct rlimit none = {0, 0};
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent) _exit(126);
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) _exit(126);
  (void) setrlimit(RLIMIT_CORE, &none); /* the guest's memory stays off the disk */
  (void) sigprocmask(SIG_SETMASK, before, NULL);
  (void) signal(SIGPIPE, SIG_DFL);
  for (int i = 0; i < vm->sink_count; i++) (void) fcntl(vm->sinks[i].write_fd, F_SETFD, 0);
  execve(vm->argv[0], vm->argv, env);
  _exit(127);
}

/* QEMU's pid file outlives a KILL, and Lima later kills whatever pid it names: so it goes with its process. */
static void
remove_pidfile(const al_warden_vm_t *vm, pid_t qemu) {
  char path[AL_WARDEN_PATH_MAX + 16], text[32];
  snprintf(path, sizeof path, "%s/qemu.pid", vm->dir);
  int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
  if (fd >= 0) close(fd);
  if (n <= 0) return;
  text[n] = 0;
  if (strtol(text, NULL, 10) == (long) qemu) unlink(path);
}

static void
take_signal(watch_t *w) {
  struct signalfd_siginfo info;
  if (read(w->signals, &info, sizeof info) != (ssize_t) sizeof info) return;
  kill(w->qemu_pid, (int) info.ssi_signo); /* not reaped yet, so the pid is still QEMU's */
  if (w->kill_at == 0) w->kill_at = now_ms() + AL_WARDEN_TERM_MS;
  w->reason = "asked to stop";
}

/* Owner and keeper: why QEMU may live no longer, or NULL. The keeper of an owner that is gone ends the lane, and QEMU
 * with it; should it stand still, its time is over some time. */
static const char *
judge_owner(watch_t *w, bool owner_ended, bool keeper_ended) {
  if (owner_ended) {
    close(w->owner);
    w->owner = -1;
    w->keeper_by = now_ms() + AL_WARDEN_KEEPER_MS;
  }
  if (keeper_ended) {
    close(w->keeper);
    w->keeper = -1;
  }
  if (w->owner >= 0) return NULL;
  if (w->keeper < 0) return "the owner is gone, and its keeper";
  return now_ms() >= w->keeper_by ? "the owner is gone, and its keeper has not ended the lane" : NULL;
}

static int
timeout_of(const watch_t *w) {
  uint64_t now = now_ms(), at = w->kill_at;
  if (w->keeper_by != 0 && (at == 0 || w->keeper_by < at)) at = w->keeper_by;
  return at == 0 ? -1 : at > now ? (int) (at - now) : 0;
}

/* One turn. True while QEMU lives. */
static bool
wait_once(watch_t *w, al_warden_vm_t *vm) {
  struct pollfd p[6 + AL_WARDEN_SINKS] = {{w->qemu, POLLIN, 0}, {w->owner, POLLIN, 0}, {w->hostagent, POLLIN, 0},
    {w->signals, POLLIN, 0}, {vm->channel.monitor_fd, POLLIN, 0}, {w->keeper, POLLIN, 0}};
  for (int i = 0; i < vm->sink_count; i++) p[6 + i] = (struct pollfd) {vm->sinks[i].read_fd, POLLIN, 0};
  int n = poll(p, 6 + (nfds_t) vm->sink_count, timeout_of(w));
  if (n < 0 && errno == EINTR) return true;
  if (n > 0 && p[0].revents != 0) return false;
  const char *gone = n < 0 ? "poll failed" : judge_owner(w, p[1].revents != 0, p[5].revents != 0);
  if (gone == NULL && p[2].revents != 0) gone = "the hostagent is gone";
  if (gone == NULL && p[4].revents != 0 && al_warden_channel_pump(&vm->channel))
    gone = "the guest closed the channel's port";
  if (gone == NULL && w->kill_at != 0 && now_ms() >= w->kill_at) gone = "QEMU did not stop when asked";
  if (gone != NULL) {
    w->reason = gone;
    kill(w->qemu_pid, SIGKILL);
    return false;
  }
  if (p[3].revents != 0) take_signal(w);
  for (int i = 0; i < vm->sink_count; i++) {
    if (p[6 + i].revents != 0) al_warden_sink_pump(&vm->sinks[i]);
  }
  return true;
}

static int
finish(const watch_t *w, al_warden_vm_t *vm, int log_fd) {
  int status = 0;
  while (waitpid(w->qemu_pid, &status, 0) < 0 && errno == EINTR) {}
  remove_pidfile(vm, w->qemu_pid);
  for (int i = 0; i < vm->sink_count; i++) {
    for (int k = 0; k < 8; k++) al_warden_sink_pump(&vm->sinks[i]); /* what a pipe holds at most */
  }
  int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  const char *reason = w->reason;
  if (reason == NULL) reason = WIFEXITED(status) && code == 127 ? "QEMU could not be run" : "QEMU ended";
  al_warden_log(log_fd, "warden: ended: %s (status %d)", reason, code);
  return code;
}

/* Not for what QEMU was asked for: that is refused. */
static int
not_started(int log_fd, const char *why) {
  al_warden_log(log_fd, "warden: not started: %s", why);
  return 1;
}

int
al_warden_run(const al_warden_policy_t *policy, al_warden_vm_t *vm, int log_fd) {
  watch_t w = {0};
  sigset_t set, before;
  pid_t me = getpid(), parent = getppid();
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGHUP);
  if (sigprocmask(SIG_BLOCK, &set, &before) != 0) return not_started(log_fd, "signals cannot be blocked");
  w.signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (w.signals < 0) return not_started(log_fd, "no signalfd");
  w.hostagent = parent > 1 ? open_pidfd(parent) : -1;
  if (w.hostagent < 0 || getppid() != parent) return not_started(log_fd, "the hostagent that started this is gone");
  w.owner = open_process(policy->owner, policy->owner_start);
  if (w.owner < 0) return not_started(log_fd, "the owner of this lane is gone");
  w.keeper = open_process(policy->keeper, policy->keeper_start); /* the owner may be starting another one right now */
  w.qemu_pid = fork();
  if (w.qemu_pid == 0) become_qemu(vm, me, &before);
  if (w.qemu_pid < 0) return not_started(log_fd, "no process for QEMU");
  for (int i = 0; i < vm->sink_count; i++) close(vm->sinks[i].write_fd);
  al_warden_channel_started(&vm->channel);
  al_warden_log_argv(log_fd, vm, w.qemu_pid);
  w.qemu = open_pidfd(w.qemu_pid);
  if (w.qemu < 0) {
    w.reason = "no pidfd of QEMU";
    kill(w.qemu_pid, SIGKILL);
    return finish(&w, vm, log_fd);
  }
  while (wait_once(&w, vm)) {}
  return finish(&w, vm, log_fd);
}
