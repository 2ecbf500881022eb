/* SPDX-License-Identifier: Apache-2.0 */
/* Watching on macOS (QEMU lanes only; vz has no warden): a kqueue on owner, keeper, hostagent and QEMU. */
#include "warden.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/event.h>
#include <sys/proc_info.h>
#include <libproc.h>
#include <sys/wait.h>
#include <unistd.h>

/* Microseconds since 1970, as in al_ident_t; 0 when there is no such process. */
static uint64_t
start_of(pid_t pid) {
  struct proc_bsdinfo info;
  int n = proc_pidinfo(pid, PROC_PIDTBSDINFO, 0, &info, (int) sizeof info);
  if (n != (int) sizeof info) return 0;
  return (uint64_t) info.pbi_start_tvsec * 1000000u + (uint64_t) info.pbi_start_tvusec;
}

void
al_warden_close_stray(void) {
  int max = getdtablesize();
  for (int fd = 3; fd < max; fd++) close(fd);
}

int
al_warden_extra(al_warden_vm_t *vm) {
  /* QEMU has no seccomp here, and /dev/fd cannot be opened again for writing, so the serial logs stay QEMU's own
   * files. */
  vm->sink_count = 0;
  if (!vm->port) return 0;
  snprintf(vm->why, sizeof vm->why, "a lane on this system has no port");
  return -1;
}

/* Not for what QEMU was asked for: that is refused. */
static int
not_started(int log_fd, const char *why) {
  al_warden_log(log_fd, "warden: not started: %s", why);
  return 1;
}

static int
watch_process(int kq, pid_t pid) {
  struct kevent change;
  EV_SET(&change, pid, EVFILT_PROC, EV_ADD | EV_ONESHOT, NOTE_EXIT, 0, NULL);
  return kevent(kq, &change, 1, NULL, 0, NULL);
}

static int
watch_signals(int kq) {
  static const int signals[] = {SIGTERM, SIGINT, SIGHUP};
  for (size_t i = 0; i < 3; i++) {
    struct kevent change;
    signal(signals[i], SIG_IGN);
    EV_SET(&change, signals[i], EVFILT_SIGNAL, EV_ADD, 0, 0, NULL);
    if (kevent(kq, &change, 1, NULL, 0, NULL) != 0) return -1;
  }
  return 0;
}

/* True when that very process is watched from now on. */
static bool
watch_known(int kq, pid_t pid, uint64_t start) {
  return start_of(pid) == start && watch_process(kq, pid) == 0 && start_of(pid) == start;
}

/* `keeper` 0: it is gone. The keeper of an owner that is gone ends the lane, and QEMU with it; should it stand still, its
 * time is over some time. */
static const char *
wait_end(int kq, pid_t owner, pid_t keeper, pid_t hostagent, pid_t qemu) {
  const char *asked = NULL;
  bool owner_gone = false;
  for (;;) {
    struct kevent e;
    struct timespec grace = {(asked != NULL ? AL_WARDEN_TERM_MS : AL_WARDEN_KEEPER_MS) / 1000, 0};
    int n = kevent(kq, NULL, 0, &e, 1, asked != NULL || owner_gone ? &grace : NULL);
    if (n < 0 && errno == EINTR) continue;
    if (n == 1 && e.filter == EVFILT_PROC) {
      bool keeper_ended = keeper != 0 && (pid_t) e.ident == keeper;
      owner_gone |= (pid_t) e.ident == owner;
      if (keeper_ended) keeper = 0;
      if (keeper_ended && !owner_gone) continue;
      if ((pid_t) e.ident == owner && keeper != 0) continue;
    }
    if (n == 1 && e.filter == EVFILT_SIGNAL) {
      kill(qemu, (int) e.ident);
      asked = "asked to stop";
      continue;
    }
    if (n == 1 && (pid_t) e.ident == qemu) return asked != NULL ? asked : "QEMU ended";
    kill(qemu, SIGKILL);
    if (n == 1 && (pid_t) e.ident == hostagent) return "the hostagent is gone";
    if (n == 1 && owner_gone) return "the owner is gone, and its keeper";
    if (n == 0 && asked == NULL) return "the owner is gone, and its keeper has not ended the lane";
    return n == 0 ? "QEMU did not stop when asked" : "the watch failed";
  }
}

int
al_warden_run(const al_warden_policy_t *policy, al_warden_vm_t *vm, int log_fd) {
  char *env[] = {"PATH=/usr/bin:/bin", "LC_ALL=C", NULL};
  pid_t parent = getppid();
  int kq = kqueue(), status = 0;
  if (kq < 0) return not_started(log_fd, "no kqueue");
  if (parent <= 1 || watch_process(kq, parent) != 0 || getppid() != parent) {
    return not_started(log_fd, "the hostagent that started this is gone");
  }
  if (!watch_known(kq, policy->owner, policy->owner_start)) {
    return not_started(log_fd, "the owner of this lane is gone");
  }
  /* The owner may be starting another one right now. */
  pid_t keeper = watch_known(kq, policy->keeper, policy->keeper_start) ? policy->keeper : 0;
  pid_t qemu = fork();
  if (qemu == 0) {
    (void) signal(SIGPIPE, SIG_DFL);
    execve(vm->argv[0], vm->argv, env);
    _exit(127);
  }
  if (qemu < 0) return not_started(log_fd, "no process for QEMU");
  al_warden_log_argv(log_fd, vm, qemu);
  const char *reason = "QEMU ended";
  if (watch_signals(kq) != 0) {
    kill(qemu, SIGKILL);
    reason = "the watch failed";
  } else if (watch_process(kq, qemu) == 0) { /* fails with ESRCH when it has ended already */
    reason = wait_end(kq, policy->owner, keeper, parent, qemu);
  } else if (errno != ESRCH) {
    kill(qemu, SIGKILL);
    reason = "the watch failed";
  }
  while (waitpid(qemu, &status, 0) < 0 && errno == EINTR) {}
  int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  al_warden_log(log_fd, "warden: ended: %s (status %d)", reason, code);
  return code;
}
