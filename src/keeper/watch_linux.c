/* SPDX-License-Identifier: Apache-2.0 */
/* Watching on Linux: a pidfd of the owner, a signalfd for workers, the link. */
#include "keeper.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif

static int owner_fd = -1; /* -1: a kernel before 5.3; the owner is looked at each second */
static int child_fd = -1;
static al_ident_t owner;

void
al_keeper_close_stray(void) {
  if (syscall(SYS_close_range, 3u, ~0u, 0u) == 0) return;
  for (int fd = 3; fd < 4096; fd++) close(fd); /* a kernel before 5.9 */
}

int
al_keeper_watch_open(const al_keeper_t *k) {
  sigset_t set;
  owner = (al_ident_t) {.pid = k->owner, .start = k->owner_start};
  int rc = al_plat_boot_id(owner.boot);
  if (rc) return rc;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  if (sigprocmask(SIG_SETMASK, &set, NULL) != 0) return -errno;
  child_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (child_fd < 0) return -errno;
  owner_fd = (int) syscall(SYS_pidfd_open, k->owner, 0);
  if (owner_fd < 0 && errno != ENOSYS) return -errno;
  /* The descriptor is of that very process only when it still is the one that was named. */
  int alive = al_plat_ident_alive(&owner);
  return alive < 0 ? alive : alive == 0 ? -ESRCH : 0;
}

void
al_keeper_watch_wait(const al_keeper_t *k, int timeout_ms, al_keeper_news_t *news) {
  struct pollfd p[] = {{k->link, POLLIN, 0}, {k->orphaned ? -1 : owner_fd, POLLIN, 0}, {child_fd, POLLIN, 0}};
  struct signalfd_siginfo info;
  if (owner_fd < 0 && (timeout_ms < 0 || timeout_ms > AL_KEEPER_LOOK_MS)) timeout_ms = AL_KEEPER_LOOK_MS;
  *news = (al_keeper_news_t) {0};
  int n = poll(p, 3, timeout_ms);
  news->link = n > 0 && p[0].revents != 0;
  news->owner_gone = (n > 0 && p[1].revents != 0) || (owner_fd < 0 && al_plat_ident_alive(&owner) == 0);
  news->child = n > 0 && p[2].revents != 0;
  while (news->child && read(child_fd, &info, sizeof info) == (ssize_t) sizeof info) {}
}

void
al_keeper_watch_leave(void) {
  sigset_t none;
  sigemptyset(&none);
  (void) sigprocmask(SIG_SETMASK, &none, NULL);
  (void) signal(SIGPIPE, SIG_DFL);
  if (owner_fd >= 0) close(owner_fd);
  close(child_fd);
}

void
al_keeper_end_with_parent(void) {
  (void) prctl(PR_SET_PDEATHSIG, SIGKILL);
}
