/* SPDX-License-Identifier: Apache-2.0 */
/* The keepers' common log: whole lines, a bounded file and one older one, whatever the disk says. */
#include "keeper.h"
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LINE_MAX_BYTES 1024

/* Nothing is kept open: several keepers write, and any of them may turn the file over. */
static int
open_log(const char *path, struct stat *st) {
  int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
  if (fd < 0) return -1;
  if (fstat(fd, st) == 0 && S_ISREG(st->st_mode) && st->st_uid == geteuid()) return fd;
  close(fd);
  return -1;
}

/* True when the path names that file no longer or not at all: another keeper was first. */
static bool
moved(const char *path, const struct stat *st) {
  struct stat now;
  return lstat(path, &now) != 0 || now.st_dev != st->st_dev || now.st_ino != st->st_ino;
}

/* The descriptor of a file with room, or -1: without room nothing is written. */
static int
with_room(const char *path) {
  struct stat st;
  char old[AL_KEEPER_HOME_MAX + 32];
  for (int turn = 0; turn < 3; turn++) {
    int fd = open_log(path, &st);
    if (fd < 0 || st.st_size <= AL_KEEPER_LOG_MAX - LINE_MAX_BYTES) return fd;
    snprintf(old, sizeof old, "%s.1", path);
    bool turned = flock(fd, LOCK_EX | LOCK_NB) == 0 && (moved(path, &st) || rename(path, old) == 0);
    close(fd);
    if (!turned) return -1;
  }
  return -1;
}

void
al_keeper_log(const al_keeper_t *k, const char *fmt, ...) {
  char path[AL_KEEPER_HOME_MAX + 24], line[LINE_MAX_BYTES];
  struct tm tm;
  time_t now = time(NULL);
  va_list ap;
  if (gmtime_r(&now, &tm) == NULL) memset(&tm, 0, sizeof tm);
  size_t n = strftime(line, 64, "%Y-%m-%dT%H:%M:%SZ", &tm);
  n += (size_t) snprintf(line + n, 64, " keeper %ld of %ld: ", (long) getpid(), (long) k->owner);
  va_start(ap, fmt);
  int rc = vsnprintf(line + n, sizeof line - n - 1, fmt, ap);
  va_end(ap);
  if (rc < 0) return;
  n = (size_t) rc < sizeof line - n - 1 ? n + (size_t) rc : sizeof line - 2;
  line[n++] = '\n';
  snprintf(path, sizeof path, "%s/log", k->home);
  (void) al_plat_mkdir(path, 0700);
  snprintf(path, sizeof path, "%s/log/keeper.log", k->home);
  int fd = with_room(path);
  if (fd < 0) return;
  ssize_t done = write(fd, line, n); /* a full disk must not stop the watch, and half a line is better than none */
  (void) done;
  close(fd);
}
