/* SPDX-License-Identifier: Apache-2.0 */
/* Asks a program for its version, by a child with a deadline. */
#include "ask.h"

#include "names.h"
#include "platform.h"
#include "utf8.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static pid_t
start(const char *program, int out) {
  char home[AL_PATH_MAX], *argv[] = {(char *) program, "--version", NULL};
  char *env[] = {"PATH=/usr/bin:/bin", "LC_ALL=C", home, NULL};
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attr;
  const char *user = getenv("HOME");
  pid_t pid = -1;

  snprintf(home, sizeof home, "HOME=%s", user ? user : "/");
  if (posix_spawn_file_actions_init(&files)) return -1;
  if (posix_spawnattr_init(&attr)) {
    posix_spawn_file_actions_destroy(&files);
    return -1;
  }
  int rc = posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  if (!rc) rc = posix_spawn_file_actions_adddup2(&files, out, 1);
  if (!rc) rc = posix_spawn_file_actions_adddup2(&files, out, 2);
  if (!rc) rc = posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP);
  if (!rc) rc = posix_spawn(&pid, program, &files, &attr, argv, env);
  posix_spawnattr_destroy(&attr);
  posix_spawn_file_actions_destroy(&files);
  return rc ? -1 : pid;
}

/* Reads until EOF, the deadline, or the buffer is full; the rest does not matter. */
static size_t
drain(int fd, char *text, size_t cap, uint64_t end) {
  size_t n = 0;

  while (n < cap) {
    uint64_t now = al_plat_mono_ms();
    struct pollfd p = {fd, POLLIN, 0};
    if (now >= end) break;
    int got = poll(&p, 1, (int) (end - now));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    ssize_t r = read(fd, text + n, cap - n);
    if (r < 0 && errno == EINTR) continue;
    if (r <= 0) break;
    n += (size_t) r;
  }
  return n;
}

int
al_ask_version(const char *program, char line[AL_ASK_LINE]) {
  uint64_t end = al_plat_mono_ms() + AL_ASK_MS;
  char text[4096];
  int fds[2], status = 0;

  line[0] = 0;
  if (pipe(fds)) return -errno;
  (void) fcntl(fds[0], F_SETFD, FD_CLOEXEC);
  (void) fcntl(fds[1], F_SETFD, FD_CLOEXEC);
  pid_t pid = start(program, fds[1]);
  close(fds[1]);
  size_t n = pid > 0 ? drain(fds[0], text, sizeof text, end) : 0;
  close(fds[0]);
  if (pid <= 0) return -EIO;
  pid_t gone;
  while ((gone = waitpid(pid, &status, WNOHANG)) == 0 && al_plat_mono_ms() < end) usleep(2000);
  if (gone == 0) {
    kill(-pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    return -ETIMEDOUT;
  }
  const char *stop = memchr(text, '\n', n);
  al_utf8_printable(line, AL_ASK_LINE, text, stop ? (size_t) (stop - text) : n, false);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -EIO;
}
