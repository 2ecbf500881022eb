/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded into a process, shifts its wall clock by what the file of CHAOS_CLOCK says, in seconds, at any time; clocks that
 * count from boot are left alone, as they are when somebody sets the host's clock. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long
offset(void) {
  char text[32];
  const char *path = getenv("CHAOS_CLOCK");
  int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : 0;
  if (fd >= 0) close(fd);
  text[n > 0 ? n : 0] = 0;
  return atol(text);
}

int
clock_gettime(clockid_t id, struct timespec *t) {
  int rc = (int) syscall(SYS_clock_gettime, id, t);
  if (rc == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) t->tv_sec += offset();
  return rc;
}

int
gettimeofday(struct timeval *restrict t, void *restrict zone) {
  struct timespec now;
  (void) zone;
  clock_gettime(CLOCK_REALTIME, &now);
  t->tv_sec = now.tv_sec;
  t->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t
time(time_t *out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out) *out = now.tv_sec;
  return now.tv_sec;
}
