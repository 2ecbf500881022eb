/* SPDX-License-Identifier: Apache-2.0 */
/* Keeper: outlives the process that owns lanes, and ends them when that process is gone or their time is over. */
#include "keeper.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * Theory of operation. The owner starts
 *
 *   keeper --agent-lane-keeper 1 --owner PID:START --home DIR
 *
 * with one end of a socket pair as standard input. The keeper leaves the owner's session, terminal and family (a tree of
 * processes that is killed from its root does not reach it), watches, and says HELLO. From then on each lane is told
 * before it is created, and told again when its row is closed. The other end is the owner's alone: it closes with it,
 * however it ends. That is not trusted alone, since a child of the owner's may have got hold of it: the owner itself is
 * watched, too, by its identity, and either is enough. Then, or when a lane's time is over, each lane is ended in a process
 * of its own. The registry is not written: the next sweep finds nothing left and closes the row.
 *
 * What the owner says that is no record ends the keeper: the owner starts a new one and tells it all it has. Should the
 * owner be gone as well, the warden sees both gone and the sweep does the rest.
 */

static al_keeper_t k; /* large, and the heap is hardly used */

static int
usage(const char *why) {
  fprintf(stderr, "keeper: %s; this program is started by Agent Lane only\n", why);
  return 1;
}

/* PID:START, both decimal, nothing else. */
static bool
parse_owner(const char *text) {
  char *end;
  if (*text < '1' || *text > '9') return false;
  errno = 0;
  long pid = strtol(text, &end, 10);
  if (errno != 0 || *end != ':' || pid < 2 || pid > 0x7fffffff) return false;
  const char *start = end + 1;
  if (*start < '0' || *start > '9') return false;
  k.owner = (pid_t) pid;
  k.owner_start = strtoull(start, &end, 10);
  return errno == 0 && *end == 0;
}

/* Ours, private, and short enough for what is put below it. */
static bool
take_home(const char *home) {
  struct stat st;
  if (home[0] != '/' || strlen(home) + 16 > sizeof k.home) return false;
  if (lstat(home, &st) != 0 || !S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 022) != 0) return false;
  snprintf(k.home, sizeof k.home, "%s", home);
  snprintf(k.lima, sizeof k.lima, "%.*s/lima", (int) sizeof k.lima - 16, home);
  snprintf(k.run, sizeof k.run, "%.*s/run", (int) sizeof k.run - 16, home);
  return true;
}

static bool
is_socket(int fd) {
  struct stat st;
  return fstat(fd, &st) == 0 && S_ISSOCK(st.st_mode);
}

/* Nothing of the terminal or of the owner's reaches it: own session, own parent, no descriptor but the link. */
static int
leave(void) {
  pid_t pid = fork();
  if (pid < 0) return -errno;
  if (pid > 0) _exit(0);
  if (setsid() < 0) return -errno;
  int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  k.link = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
  if (null < 0 || k.link < 0) return -errno;
  for (int fd = 0; fd < 3; fd++) {
    if (dup2(null, fd) < 0) return -errno;
  }
  close(null);
  static const int ignored[] = {
    SIGHUP, SIGINT, SIGQUIT, SIGPIPE, SIGTSTP, SIGTTIN, SIGTTOU, SIGUSR1, SIGUSR2, SIGALRM, SIGXFSZ};
  for (size_t i = 0; i < sizeof ignored / sizeof ignored[0]; i++) (void) signal(ignored[i], SIG_IGN);
  (void) signal(SIGCHLD, SIG_DFL);
  umask(077);
  return chdir("/") == 0 ? 0 : -errno;
}

/* What the owner said last is heard before it is taken for gone. */
static bool
on_news(const al_keeper_news_t *news) {
  if (news->child) al_keeper_lanes_reap(&k);
  if (k.link >= 0 && (news->link || news->owner_gone) && !al_keeper_link_read(&k)) {
    al_keeper_log(&k, "what came over the link is no record; ends");
    return false;
  }
  if (news->owner_gone && !k.orphaned) {
    al_keeper_log(&k, "the owner is gone");
    k.orphaned = true;
  }
  if (k.orphaned && k.link >= 0) {
    close(k.link);
    k.link = -1;
  }
  return true;
}

int
main(int argc, char **argv) {
  if (argc != 7 || strcmp(argv[1], "--agent-lane-keeper") != 0 || strcmp(argv[2], AL_KEEPER_VERSION) != 0 ||
    strcmp(argv[3], "--owner") != 0 || strcmp(argv[5], "--home") != 0)
    return usage("unknown arguments");
  if (!parse_owner(argv[4])) return usage("--owner is not PID:START");
  if (!take_home(argv[6])) return usage("--home is not a directory of ours");
  if (!is_socket(STDIN_FILENO)) return usage("standard input is no socket");
  al_keeper_close_stray();
  int rc = leave();
  if (rc == 0) rc = al_keeper_watch_open(&k);
  if (rc == 0) rc = al_keeper_link_hello(&k);
  if (rc) {
    al_keeper_log(&k, "not started: %s", rc == -ESRCH ? "the owner is gone" : strerror(-rc));
    return 1;
  }
  al_keeper_log(&k, "started");
  while (!k.orphaned || al_keeper_lanes_busy(&k)) {
    al_keeper_news_t news;
    al_keeper_watch_wait(&k, al_keeper_lanes_turn(&k), &news);
    if (!on_news(&news)) return 1;
  }
  al_keeper_log(&k, "nothing is left to keep; ends");
  return 0;
}
