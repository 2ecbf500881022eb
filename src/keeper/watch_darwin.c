/* SPDX-License-Identifier: Apache-2.0 */
/* Watching on macOS: one kqueue for the owner's end, workers and the link. */
#include "keeper.h"
#include <errno.h>
#include <signal.h>
#include <sys/event.h>
#include <time.h>
#include <unistd.h>

static int queue = -1;
static bool owner_gone;

void
al_keeper_close_stray(void) {
  int max = getdtablesize();
  for (int fd = 3; fd < max; fd++) close(fd);
}

static int
watch(uintptr_t what, int16_t filter, uint16_t flags, uint32_t fflags) {
  struct kevent change;
  EV_SET(&change, what, filter, flags, fflags, 0, NULL);
  return kevent(queue, &change, 1, NULL, 0, NULL) == 0 ? 0 : -errno;
}

int
al_keeper_watch_open(const al_keeper_t *k) {
  al_ident_t owner = {.pid = k->owner, .start = k->owner_start};
  int rc = al_plat_boot_id(owner.boot);
  if (rc) return rc;
  queue = kqueue();
  if (queue < 0) return -errno;
  (void) signal(SIGCHLD, SIG_DFL);
  rc = watch(SIGCHLD, EVFILT_SIGNAL, EV_ADD, 0);
  if (rc == 0) rc = watch((uintptr_t) k->link, EVFILT_READ, EV_ADD, 0);
  if (rc == 0) rc = watch((uintptr_t) k->owner, EVFILT_PROC, EV_ADD | EV_ONESHOT, NOTE_EXIT);
  if (rc) return rc;
  /* What is watched is that very process only when it still is the one that was named. */
  int alive = al_plat_ident_alive(&owner);
  return alive < 0 ? alive : alive == 0 ? -ESRCH : 0;
}

void
al_keeper_watch_wait(const al_keeper_t *k, int timeout_ms, al_keeper_news_t *news) {
  struct kevent got[8];
  struct timespec timeout = {timeout_ms / 1000, timeout_ms % 1000 * 1000000L};
  int n = kevent(queue, NULL, 0, got, 8, timeout_ms < 0 ? NULL : &timeout);
  *news = (al_keeper_news_t) {0};
  for (int i = 0; i < n; i++) {
    news->link |= got[i].filter == EVFILT_READ && k->link >= 0;
    news->child |= got[i].filter == EVFILT_SIGNAL;
    owner_gone |= got[i].filter == EVFILT_PROC;
  }
  news->owner_gone = owner_gone;
}

void
al_keeper_watch_leave(void) {
  (void) signal(SIGPIPE, SIG_DFL); /* a kqueue is not inherited */
}

void
al_keeper_end_with_parent(void) {
}
